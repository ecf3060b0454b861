"""One node: the log on its own disk is the cluster. The `Raft` port without a peer, on the same log format.

An entry is committed when it is synced. Each start opens a new term, as an election would, so that what is written now
is told apart from what was there. Not here: replication (`pysyncobj_adapter.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from horae_node.errors import NotApplied, OutcomeUnknown, Outdated
from horae_node.logs import get_log
from horae_node.raft import boot
from horae_node.raft.port import ENTRY_BYTES_MAX, LogLimits, Member, RaftStatus, Roster, StateMachine
from horae_node.raft.pysyncobj_journal import ENTRY_NOOP, ENTRY_REGULAR, Journal
from horae_storage.errors import StorageFull
from horae_storage.log_port import RaftLog

_events = get_log("raft")


class LocalRaft:
    """The `Raft` port for a cluster of one."""

    def __init__(
        self,
        own_id: str,
        log: RaftLog,
        machine: StateMachine,
        *,
        members: tuple[Member, ...] = (),
        limits: LogLimits | None = None,
    ) -> None:
        """`members`: this node, for those who ask."""
        self._roster = Roster(0, members)
        self._own_id = own_id
        self._log = log
        self._machine = machine
        self._limits = limits or LogLimits()
        self._journal: Journal
        self._loop: asyncio.AbstractEventLoop
        self._term = 0
        self._applied = 0
        self._running = False
        self._woken = False
        self._durable = 0
        self._waiting: deque[tuple[int, asyncio.Future[object]]] = deque()
        self._on_role: Callable[[], None] = lambda: None
        self._on_fatal: Callable[[BaseException], None] = lambda error: None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._log.on_durable(self._on_durable)
        self._log.on_failure(self._on_log_failure)
        self._journal, state = boot.open_journal(self._log, self._machine)
        self._term = max(state.term, self._journal.last.term) + 1
        self._applied = self._machine.applied_index
        self._journal.setCurrentTerm(self._term, self._own_id)
        self._append(ENTRY_NOOP)
        self._running = True
        self._wake()
        self._loop.call_soon(self._tell_role)

    def retire(self) -> None:
        """There is nobody else to lead."""

    async def hand_over(self, node_id: str) -> bool:
        """There is nobody to hand over to."""
        return not self._running

    @property
    def roster(self) -> Roster:
        return self._roster

    def on_roster(self, callback: Callable[[Roster], None]) -> None:
        """Never called: a node that runs alone has fixed members."""

    def on_removed(self, callback: Callable[[], None]) -> None:
        """Never called."""

    async def stop(self) -> None:
        if not self._running:
            return
        self._running = False
        self._end_waiting()
        self._journal.seal()
        self._log.close()

    @property
    def is_leader(self) -> bool:
        return self._running

    @property
    def leader_id(self) -> str | None:
        return self._own_id if self._running else None

    @property
    def term(self) -> int:
        return self._term

    def propose(self, entry: bytes) -> asyncio.Future[object]:
        if not self._running:
            raise NotApplied("no_leader", "this node has stopped")
        assert 0 < len(entry) <= ENTRY_BYTES_MAX
        future: asyncio.Future[object] = self._loop.create_future()
        self._append(ENTRY_REGULAR + entry)
        self._waiting.append((self._journal.last_index, future))
        self._wake()
        return future

    async def read_barrier(self) -> int:
        """Whatever was acknowledged is applied already: nothing to wait for."""
        if not self._running:
            raise NotApplied("no_leader", "this node has stopped")
        return self._applied

    def term_of(self, index: int) -> int:
        term = self._journal.term_at(max(index, self._journal.first_index))
        assert term is not None
        return term

    def compact(self) -> int:
        self._journal.cut_below(min(self._machine.durable_index, self._journal.durable_index))
        self._wake()
        return self._journal.first_index

    def on_role(self, callback: Callable[[], None]) -> None:
        self._on_role = callback

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        self._on_fatal = callback

    def on_peer_clock(self, callback: Callable[[str, int], None]) -> None:
        """There is no peer: never called."""

    def status(self) -> RaftStatus:
        journal = self._journal
        return RaftStatus(
            role="leader",
            term=self._term,
            leader_id=self.leader_id,
            last_index=journal.last_index,
            commit_index=journal.durable_index,
            applied_index=self._applied,
            first_index=journal.first_index,
            durable_log_index=journal.durable_index,
            peers={},
        )

    # ------------------------------------------------------------------ inside

    def _append(self, data: bytes) -> None:
        self._journal.add(data, self._journal.last_index + 1, self._term)

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _on_durable(self, durable: int) -> None:
        self._durable = durable
        self._wake()

    def _on_log_failure(self, error: BaseException) -> None:
        """A full disk is waited out by the log itself; after anything else nothing becomes durable any more."""
        if isinstance(error, StorageFull):
            _events.warning("log_disk_full", reason=str(error))
        else:
            self._fail(error)

    def _pump(self) -> None:
        self._woken = False
        if not self._running:
            return
        try:
            self._journal.on_durable(self._durable)
            self._apply_durable()
            self._maybe_cut()
            self._journal.seal()
        except Exception as error:  # the root of all that consensus does: whatever it is, it ends the node
            self._fail(error)

    def _apply_durable(self) -> None:
        durable = self._journal.durable_index
        if durable == self._applied:
            return
        until = min(durable, self._journal.turn_end(self._applied + 1))
        for data, index, _ in self._journal.entries(self._applied + 1, until):
            result = self._machine.apply(index, data[1:] if data[:1] == ENTRY_REGULAR else b"")
            self._applied = index
            if self._waiting and self._waiting[0][0] == index:
                _, future = self._waiting.popleft()
                if not future.done():
                    future.set_result(result)
        self._journal.setRaftCommitIndex(until)
        if until < durable:
            self._wake()

    def _maybe_cut(self) -> None:
        limits, journal = self._limits, self._journal
        if journal.data_bytes * 4 <= limits.tail_bytes * 5 and len(journal) * 4 <= limits.tail_entries * 5:
            return
        wanted = journal.cut_for(tail_bytes=limits.tail_bytes, tail_entries=limits.tail_entries)
        journal.cut_below(min(wanted, self._machine.durable_index))

    def _end_waiting(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(OutcomeUnknown("this node stopped before the entry was on its disk"))

    def _fail(self, error: BaseException) -> None:
        if not self._running:
            return
        self._running = False
        if not isinstance(error, Outdated):  # that is one line, and its end says it
            _events.error("raft_failed", exc=error)
        self._end_waiting()
        self._on_fatal(error)

    def _tell_role(self) -> None:
        if self._running:
            self._on_role()
