"""A service in memory for the tests of `http`: records its calls, keeps submitted jobs, fails when told to.

It keeps no rules of the machine's: what it answers is what the test put there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec import Raw

from horae import wire
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.events import Place
from horae_node.feed import Feed, Subscription, Wanted
from horae_node.service import Refused
from horae_node.shedding import Rank
from horae_storage.memory import MemoryStore

NULL = Raw(b"null")


def job_view(job_id: str = "j1", **changes: Any) -> wire.JobView:
    """A ready job as it reads."""
    fields: dict[str, Any] = {
        "id": job_id,
        "execution_id": job_id,
        "task": "t",
        "payload": NULL,
        "queue": "default",
        "state": "ready",
        "attempt": 0,
        "lost": 0,
        "priority": 0,
        "max_attempts": 5,
        "retry": wire.RetryView(1.0, 2.0, 3600.0, 0.2),
        "lease_seconds": 30.0,
        "timeout_seconds": 3600.0,
        "max_lost": 3,
        "created_at": "2026-11-29T12:00:00.000Z",
        "run_at": "2026-11-29T12:00:00.000Z",
        "started_at": None,
        "finished_at": None,
        "expires_at": None,
        "ttl_seconds": None,
        "delay_seconds": None,
        "unique_key": None,
        "concurrency_key": None,
        "tags": {},
        "retention_seconds": 86400.0,
        "result": NULL,
        "progress": NULL,
        "last_error": None,
        "errors": [],
        "worker": None,
        "lease_expires_at": None,
        "dead_reason": None,
        "schedule_id": None,
        "nominal_time": None,
        "cancel_requested": False,
    }
    return wire.JobView(**(fields | changes))


def claimed_job(job_id: str = "j1", **changes: Any) -> wire.ClaimedJob:
    """A job as a claim hands it out."""
    fields: dict[str, Any] = {
        "id": job_id,
        "execution_id": job_id,
        "task": "t",
        "payload": Raw(b'{"n":1}'),
        "queue": "default",
        "attempt": 1,
        "max_attempts": 5,
        "lease_token": 7,
        "lease_expires_at": "2026-11-29T12:00:30.000Z",
        "lease_seconds": 30.0,
        "timeout_at": "2026-11-29T13:00:00.000Z",
        "tags": {},
        "schedule_id": None,
        "nominal_time": None,
        "run_at": "2026-11-29T12:00:00.000Z",
        "last_error": None,
        "progress": NULL,
    }
    return wire.ClaimedJob(**(fields | changes))


class FakeDelivery:
    mark = "1.7"

    def __init__(self, answer: wire.ClaimAnswer) -> None:
        self.answer = answer
        self.given_back = asyncio.Event()

    def undeliverable(self) -> None:
        self.given_back.set()


class FakeService:
    """Leads unless told otherwise."""

    def __init__(self, node_id: str = "n1", *, leads: bool = True, leader_url: str | None = "http://n1:7070") -> None:
        self._node_id = node_id
        self.leads = leads
        self.url = leader_url
        self.calls: list[tuple[str, Any]] = []
        self.stored: dict[str, wire.JobView] = {}
        self.gone: set[str] = set()
        """Ids of jobs whose records are gone."""
        self.failures: list[BaseException] = []
        """Raised by the next calls, one each."""
        self.claimed = FakeDelivery(wire.ClaimAnswer([claimed_job()]))
        self.entered = asyncio.Event()
        """Set when a call has begun."""
        self.gate: asyncio.Event | None = None
        """When there, every call waits for it."""
        self.cancelled = asyncio.Event()
        """Set when a waiting call was cancelled."""
        self.waits: list[int] = []
        self.ready_answer = (True, "")
        self.removed = False
        self.shed: list[Rank] = []
        self.no_room: NotApplied | None = None
        """Why new work is turned away unread."""

    async def _enter(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        self.entered.set()
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if self.failures:
            raise self.failures.pop(0)

    def names(self) -> list[str]:
        """What was called, in order."""
        return [name for name, _ in self.calls]

    def last(self) -> Any:
        """The argument of the last call."""
        return self.calls[-1][1]

    def _keep(self, request: wire.SubmitRequest) -> tuple[wire.JobView, bool]:
        job_id = request.id or f"made-{len(self.stored)}"
        known = self.stored.get(job_id)
        if known is not None:
            return known, False
        view = job_view(job_id, task=request.task, queue=request.queue, payload=request.payload, tags=request.tags)
        self.stored[job_id] = view
        return view, True

    def _find(self, job_id: str) -> wire.JobView:
        if job_id not in self.stored:
            raise Refused("not_found", "no such job")
        return self.stored[job_id]

    async def submit(self, request: wire.SubmitRequest) -> tuple[wire.JobView, bool]:
        await self._enter("submit", request)
        return self._keep(request)

    async def submit_batch(
        self, requests: Sequence[wire.SubmitRequest], *, atomic: bool
    ) -> list[tuple[wire.JobView, bool] | Refused | NotApplied | OutcomeUnknown]:
        await self._enter("submit_batch", (list(requests), atomic))
        answers: list[tuple[wire.JobView, bool] | Refused | NotApplied | OutcomeUnknown] = []
        for request in requests:
            refused = request.task == "refuse"
            answers.append(Refused("conflict", "another job has this id", "/id") if refused else self._keep(request))
        return answers

    async def job(self, job_id: str, *, wait_ms: int = 0, local: bool = False) -> wire.JobView:
        await self._enter("job", (job_id, wait_ms, local))
        return self._find(job_id)

    async def queues_of(self, job_ids: Sequence[str]) -> list[str | None]:
        await self._enter("queues_of", list(job_ids))
        return [self.stored[job_id].queue if job_id in self.stored else None for job_id in job_ids]

    def is_taken(self, job_id: str) -> bool:
        return job_id in self.stored or self.is_gone(job_id)

    def is_gone(self, job_id: str) -> bool:
        return job_id in self.gone

    async def jobs(self, query: wire.JobsQuery) -> wire.JobList:
        await self._enter("jobs", query)
        return wire.JobList(list(self.stored.values())[: query.limit], None)

    async def queues(
        self, *, limit: int, cursor: str | None, only: Collection[str] | None = None, local: bool = False
    ) -> wire.QueueList:
        await self._enter("queues", (limit, cursor, only, local))
        return wire.QueueList([wire.QueueView("mail", wire.DepthView(0, 2, 0, 0, 1, 0, 0), 1.5)], None)

    async def workers(self, *, limit: int, cursor: str | None, only: Collection[str] | None = None) -> wire.WorkerList:
        await self._enter("workers", (limit, cursor, only))
        return wire.WorkerList([wire.WorkerView("w", ["mail"], 2, "2026-11-29T12:00:00.000Z")], "more")

    def events(self, after: Place | None, wanted: Wanted) -> Subscription:
        """A stream that ends at once: the real one is tested with the real service."""
        self.calls.append(("events", (after, wanted)))
        feed = Feed(view=lambda: MemoryStore().txn, kept=1, applied_index=1, count_behind=lambda: None)
        subscription = feed.subscribe(after, wanted)
        feed.close()
        return subscription

    def end_events(self) -> None:
        self.calls.append(("end_events", None))

    async def queue(self, name: str, *, local: bool = False) -> wire.QueueView:
        await self._enter("queue", (name, local))
        return wire.QueueView(name, wire.DepthView(0, 0, 0, 0, 0, 0, 0), None)

    async def set_queue(self, name: str, patch: wire.QueuePatch) -> wire.QueueView:
        await self._enter("set_queue", (name, patch))
        return wire.QueueView(name, wire.DepthView(0, 0, 0, 0, 0, 0, 0), None)

    async def cancel_many(self, request: wire.CancelManyRequest) -> wire.BulkAnswer:
        await self._enter("cancel_many", request)
        return wire.BulkAnswer(2, "more")

    async def requeue_many(self, request: wire.RequeueManyRequest) -> wire.BulkAnswer:
        await self._enter("requeue_many", request)
        return wire.BulkAnswer(3, None)

    async def cancel(self, job_id: str) -> wire.JobView:
        await self._enter("cancel", job_id)
        return self._find(job_id)

    async def requeue(self, job_id: str) -> wire.JobView:
        await self._enter("requeue", job_id)
        return self._find(job_id)

    async def run_now(self, job_id: str) -> wire.JobView:
        await self._enter("run_now", job_id)
        return self._find(job_id)

    async def delete(self, job_id: str) -> None:
        await self._enter("delete", job_id)
        self._find(job_id)
        del self.stored[job_id]

    async def add_member(self, request: wire.MemberRequest, wait_ms: int = 30_000) -> wire.MemberStanding:
        await self._enter("add_member", request)
        counts = request.node != "slow" and wait_ms > 0
        return wire.MemberStanding(request.node, "voter" if counts else "learner", True)

    async def remove_member(self, node_id: str) -> wire.MemberStanding:
        await self._enter("remove_member", node_id)
        return wire.MemberStanding(node_id, "removed")

    async def move_member(self, node_id: str, request: wire.MoveRequest) -> wire.MemberStanding:
        await self._enter("move_member", (node_id, request))
        return wire.MemberStanding(node_id, "voter")

    async def hand_over(self, node_id: str) -> wire.LeaderView:
        await self._enter("hand_over", node_id)
        return wire.LeaderView(node_id, None)

    async def claim(self, request: wire.ClaimRequest, via: str = "") -> FakeDelivery:
        await self._enter("claim", request)
        return self.claimed

    def claim_undelivered(self, mark: str, leases: object) -> bool:
        return mark == self.claimed.mark

    async def heartbeat(self, request: wire.HeartbeatRequest) -> wire.HeartbeatAnswer:
        await self._enter("heartbeat", request)
        return wire.HeartbeatAnswer([wire.LeaseStatus(beat.job_id, "lost", None, False) for beat in request.leases])

    async def complete(self, job_id: str, request: wire.CompleteRequest) -> wire.JobView:
        await self._enter("complete", (job_id, request))
        return self._find(job_id)

    async def fail(self, job_id: str, request: wire.FailRequest) -> wire.JobView:
        await self._enter("fail", (job_id, request))
        return self._find(job_id)

    async def release(self, job_id: str, request: wire.ReleaseRequest) -> wire.JobView:
        await self._enter("release", (job_id, request))
        return self._find(job_id)

    async def end_many(
        self, request: wire.EndingsRequest
    ) -> list[wire.StateName | Refused | NotApplied | OutcomeUnknown | None]:
        """A job named `gone` is accepted and has no record any more."""
        await self._enter("end_many", request)
        return [None if item.job_id == "gone" else self._state_of(item.job_id) for item in request.leases]

    def _state_of(self, job_id: str) -> wire.StateName | Refused:
        job = self.stored.get(job_id)
        return Refused("lease_lost", "another attempt holds it") if job is None else job.state

    async def cluster(self, *, local: bool = False) -> wire.ClusterView:
        await self._enter("cluster", local)
        return wire.ClusterView(
            cluster="c",
            node=self._node_id,
            leader=self._node_id,
            leader_url=self.url,
            term=1,
            epoch=1,
            role="leader",
            commit_index=1,
            applied_index=1,
            durable_index=1,
            last_index=1,
            first_index=1,
            state_digest="0",
            version="0",
            machine_version=1,
            cluster_time="2026-11-29T12:00:00.000Z",
            disk={},
            members=[],
        )

    def leading(self) -> bool:
        return self.leads

    def require_room(self, rank: Rank) -> None:
        if self.no_room is not None:
            raise self.no_room

    def count_shed(self, rank: Rank) -> None:
        self.shed.append(rank)

    async def wait_for_leader(self, timeout_ms: int) -> str | None:
        self.waits.append(timeout_ms)
        if self.leads:
            return self._node_id
        return None if self.url is None else "leader"

    def leader_url(self) -> str | None:
        return self.url

    def watch_leader(self, callback: Callable[[], None]) -> None:
        self.leader_changed = callback

    def ready(self) -> tuple[bool, str]:
        return self.ready_answer

    def applied(self) -> tuple[int, int]:
        return 42, 1500

    @property
    def node_id(self) -> str:
        return self._node_id
