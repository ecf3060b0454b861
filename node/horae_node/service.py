"""The facade that `http` calls: every call of the contract, in its own shapes, as one coroutine.

Runs on the node's loop. Linearizable unless told otherwise. Errors: `NotApplied` (definite, carries the contract's
code), `OutcomeUnknown` (504), `Refused` (the machine said no). Not here: HTTP, the wire's encodings, Raft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from horae import wire


class Refused(Exception):
    """The rules refused the call; nothing changed. `code`: not_found | conflict | lease_lost | invalid | too_large.

    `pointer` names the offending field (`/run_at`), `""` when none does.
    """

    def __init__(self, code: str, detail: str, pointer: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.pointer = pointer


class SubmitResult(Protocol):
    job: wire.JobView
    created: bool


class Service(Protocol):
    """Declared for those who build beside it. Payload/result/progress `Raw` hold JSON text in both directions."""

    async def submit(self, request: wire.SubmitRequest) -> tuple[wire.JobView, bool]:
        """The job and whether it is new. Raises: `Refused` (`conflict`, `invalid`), `NotApplied`, `OutcomeUnknown`."""
        ...

    async def submit_batch(
        self, requests: Sequence[wire.SubmitRequest], *, atomic: bool
    ) -> list[tuple[wire.JobView, bool] | Refused | NotApplied | OutcomeUnknown]:
        """One result a job, in order. Atomic: raises `Refused` (pointer `/jobs/3/…`) and makes none when one is refused."""
        ...

    async def job(self, job_id: str, *, wait_ms: int = 0, local: bool = False) -> wire.JobView:
        """Read one; with `wait_ms`, as soon as it is finished or at the end of the wait. Raises: `Refused("not_found")`."""
        ...

    async def jobs(
        self, *, queue: str | None, state: str | None, limit: int, cursor: str | None, local: bool = False
    ) -> wire.JobList:
        """Newest first. Raises: `Refused("invalid", …, "/cursor")`."""
        ...

    async def cancel(self, job_id: str) -> wire.JobView: ...

    async def requeue(self, job_id: str) -> wire.JobView: ...

    async def run_now(self, job_id: str) -> wire.JobView: ...

    async def delete(self, job_id: str) -> None: ...

    async def claim(self, request: wire.ClaimRequest) -> Delivery:
        """Wait for jobs. A cancelled caller (hung up) gives its jobs back by itself, the attempt not counted."""
        ...

    async def heartbeat(self, request: wire.HeartbeatRequest) -> wire.HeartbeatAnswer: ...

    async def complete(self, job_id: str, request: wire.CompleteRequest) -> wire.JobView: ...

    async def fail(self, job_id: str, request: wire.FailRequest) -> wire.JobView: ...

    async def release(self, job_id: str, request: wire.ReleaseRequest) -> wire.JobView: ...

    async def end_many(self, request: wire.EndingsRequest) -> list[wire.JobView | Refused | NotApplied | OutcomeUnknown]:
        """One result an item, in order."""
        ...

    async def cluster(self, *, local: bool = False) -> wire.ClusterView: ...

    def leading(self) -> bool:
        """This node leads and its epoch is open: it may serve. False: pass the request on to `leader_url()`."""
        ...

    async def wait_for_leader(self, timeout_ms: int) -> str | None:
        """The node id of the leader once one is known to this node (itself only once it may serve); None at the end of the wait."""
        ...

    def leader_url(self) -> str | None:
        """The leader's advertised URL, or None while there is none."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether this node can serve (knows a leader and has caught up), and if not, why."""
        ...

    def applied(self) -> tuple[int, int]:
        """Applied index, and how old this node's state is: ms since it was surely current (0 on the leader)."""
        ...

    @property
    def node_id(self) -> str: ...


class Delivery(Protocol):
    """A claim's answer on its way out."""

    answer: wire.ClaimAnswer

    def undeliverable(self) -> None:
        """The caller was gone before the answer could be written: give the jobs straight back, not counted."""
        ...


from horae_node.errors import NotApplied, OutcomeUnknown  # noqa: E402  (declaration file; the real one imports on top)
