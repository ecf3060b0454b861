"""A consensus port for tests of what stands on it: entries are committed when the test says so, or at once.

Not a Raft: one node, no log. The real parts pass `tests/conformance/test_raft.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.raft.port import Member, PeerStatus, RaftStatus, Roster, StateMachine


class FakeRaft:
    """Leads in term 1 until told otherwise; `hold` keeps proposals until `commit_all`."""

    def __init__(self, machine: StateMachine, *, hold: bool = False) -> None:
        self.machine = machine
        self.hold = hold
        self.is_leader = True
        self.leader_id: str | None = "n1"
        self.term = 1
        self.entries: list[bytes] = []
        self.pending: list[tuple[bytes, asyncio.Future[object]]] = []
        self._on_role: Callable[[], None] = lambda: None
        self.peers: dict[str, PeerStatus] = {}
        self.handed_to: list[str] = []
        self.hands_over = False
        """Somebody takes over."""
        self.disk_low = False
        """What the others are told."""
        self.disk_full = False
        """Its log waits for room."""

    def propose(self, entry: bytes) -> asyncio.Future[object]:
        if not self.is_leader:
            raise NotApplied("no_leader", "this node does not lead")
        self.entries.append(entry)
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.pending.append((entry, future))
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.commit_all)
        return future

    def term_of(self, index: int) -> int:
        return self.term

    def compact(self) -> int:
        return 1

    def commit_all(self) -> None:
        """Apply everything proposed so far."""
        pending, self.pending = self.pending, []
        for entry, future in pending:
            future.set_result(self.machine.apply(self.machine.applied_index + 1, entry))

    def lose_leadership(self) -> None:
        """Another leads now; what was under way ends as unknown."""
        self.is_leader, self.leader_id = False, "n2"
        pending, self.pending = self.pending, []
        for _, future in pending:
            future.set_exception(OutcomeUnknown("leadership was lost"))
        self._on_role()

    def follow(self, leader_id: str | None) -> None:
        """Another node leads, or none does."""
        self.is_leader, self.leader_id = False, leader_id
        self._on_role()

    async def read_barrier(self) -> int:
        if not self.is_leader:
            raise NotApplied("no_leader", "this node does not lead")
        return self.machine.applied_index

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @property
    def roster(self) -> Roster:
        """Of as many voters as there are peers, and itself."""
        ids = ["n1", *self.peers]
        return self.machine.roster or Roster(0, tuple(Member(name, f"{name}:1", f"http://{name}") for name in ids))

    async def hand_over(self, node_id: str) -> bool:
        self.handed_to.append(node_id)
        return self.hands_over

    def on_roster(self, callback: Callable[[Roster], None]) -> None: ...

    def on_removed(self, callback: Callable[[], None]) -> None: ...

    def retire(self) -> None:
        self.lose_leadership()

    def on_role(self, callback: Callable[[], None]) -> None:
        self._on_role = callback

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None: ...

    def on_peer_clock(self, callback: Callable[[str, int], None]) -> None: ...

    def set_disk_low(self, low: bool) -> None:
        self.disk_low = low

    def status(self) -> RaftStatus:
        index = self.machine.applied_index
        role = "leader" if self.is_leader else "follower"
        return RaftStatus(
            role,
            self.term,
            self.leader_id,
            index,
            index,
            index,
            1,
            index,
            self.peers,
            self.disk_full,
            leader_commit=index,
        )
