"""Several nodes: PySyncObj behind its guard, driven from the asyncio loop.

`_pump` is the only place that calls into the library: frames first, then what the disk finished, then the library's
tick, then sends; what all of that wrote is sealed as one group. It is woken by frames, syncs, proposals and a timer,
and never runs inside itself. An exception in it ends the node: nothing more is sent, `on_fatal` is called.
Not here: what may be believed (`guard.py`), bytes on a wire (`transport.py`), jobs. Next to read: `guard.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from horae_node.clock import Clock
from horae_node.errors import Fatal, Misfit, NotApplied, OutcomeUnknown, Outdated
from horae_node.logs import get_log
from horae_node.raft import boot
from horae_node.raft.guard import Guard, Round
from horae_node.raft.handover import Handover
from horae_node.raft.members import addresses_of, seats_of
from horae_node.raft.port import (
    ENTRY_BYTES_MAX,
    LogLimits,
    PeerStatus,
    RaftStatus,
    Roster,
    SnapshotInfo,
    StateMachine,
    Timing,
)
from horae_node.raft.pysyncobj_core import (
    CANDIDATE,
    LEADER,
    NOT_APPLIED,
    SUCCESS,
    Core,
    Message,
    require_pinned,
)
from horae_node.raft.pysyncobj_journal import ENTRY_REGULAR, ROOT_INDEX, Journal
from horae_node.raft.snapshots import InstallNote, Intake, Reception, Shelf, Transfer
from horae_node.raft.transport import TransportPort
from horae_storage.errors import Corrupt, StorageFull
from horae_storage.log_port import RaftLog

TICK_S: Final = 0.025
"""Between two looks at the timers: well under a heartbeat; an idle tick costs some microseconds."""

FRAMES_PER_PUMP: Final = 256
"""Messages taken in before the loop gets its turn again."""

COMPACT_EVERY_S: Final = 1.0

SNAPSHOT_RETRY_S: Final = 5.0
"""After a snapshot failed for want of room: long enough for somebody to make some."""

FEED_PAUSE_S: Final = 0.015
"""Between two readings of 1 MiB for one follower: at most some 60 MiB/s, so that a submit waits for little of it."""

HANDOVER_S: Final = 1.0
"""How long a leader that hands over proposes nothing: then it leads on. A call takes some round trips and one vote."""

LEADERLESS_S: Final = 5.0
"""Ten elections long: what lasts longer needs somebody to look. An orderly start of all nodes is well within it."""

_events = get_log("raft")

_ROLES: Final = ("follower", "candidate", "leader")


class PySyncObjRaft:
    """The `Raft` port over a PySyncObj cluster."""

    def __init__(
        self,
        *,
        own_id: str,
        book: Roster,
        configured: Roster | None = None,
        cluster: str,
        log: RaftLog,
        machine: StateMachine,
        snapshot_dir: Path,
        transport: TransportPort,
        clock: Clock,
        timing: Timing | None = None,
        limits: LogLimits | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`book` is the newest roster known, be it by hearsay. Who counts is what the state holds; while that holds
        none, the `configured`: by default those of the book. The directory is this node's alone; it is made when
        missing.

        Raises: `ConfigError` when the installed library is not the pinned one.
        """
        require_pinned()
        timing = timing or Timing()
        self._own_id = own_id
        self._configured = configured or book
        self._seen = machine.roster
        """What the state holds: compared by identity after each entry."""
        assert self._seen is not None or self._configured.standing(own_id) is not None
        self._book = max(book, self.roster, key=lambda roster: roster.at_index)
        self._cluster = cluster
        self._log = log
        self._machine = machine
        self._transport = transport
        self._clock = clock
        self._limits = limits or LogLimits()
        self._make_room_for_snapshots(snapshot_dir)
        self._core = Core(
            own_id=own_id,
            peer_ids=[member.node_id for member in self.roster.voters if member.node_id != own_id],
            timing=timing,
            clock=clock,
            rng=rng or random.Random(),
            pieces=self._shelf,
            apply=self._apply,
            on_state=self._on_state,
        )
        self._timing = timing
        self._journal: Journal
        self._guard: Guard
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._inbox: deque[tuple[str, Message]] = deque()
        self._durable = 0
        self._woken = False
        self._timers_due = True
        self._running = False
        # In order, not a set: where futures lie in memory may not decide who is answered first.
        self._waiting: dict[asyncio.Future[object], None] = {}
        self._readers: list[asyncio.Future[int]] = []
        self._rounds: list[tuple[Round, list[asyncio.Future[int]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._commit_sent = 0
        self._told: tuple[int, int, str | None] | None = None
        self._handover: Handover | None = None
        self._handed_over: asyncio.Future[bool] | None = None
        self._know_nothing()
        self._tell_nobody()

    def _know_nothing(self) -> None:
        self._heard: Roster | None = None
        """The newest members that a peer told of while somebody led."""
        self._knew_leader = False
        self._leaderless_since: float | None = None
        """None while a leader is known, or its lack was told."""
        self._retired = False
        self._removed = False

    def _make_room_for_snapshots(self, directory: Path) -> None:
        self._directory = directory
        self._shelf = Shelf()
        self._intake = Intake(directory)
        self._note = InstallNote(directory)
        self._snapshot_task: asyncio.Task[None] | None = None
        self._taking_index: int | None = None
        self._snapshots_taken = 0
        self._note_group: int | None = None
        self._told_not_kept = False
        self._compact_at = 0.0

    def _tell_nobody(self) -> None:
        self._on_role: Callable[[], None] = lambda: None
        self._on_fatal: Callable[[BaseException], None] = lambda error: None
        self._on_peer_clock: Callable[[str, int], None] = lambda node_id, wall_ms: None
        self._on_roster: Callable[[Roster], None] = lambda book: None
        self._on_removed: Callable[[], None] = lambda: None

    # ================================================================== the port

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in self._directory.glob("*.snapshot"):
            stale.unlink()
        self._log.on_durable(self._on_durable)
        self._log.on_failure(self._on_log_failure)
        self._journal, state = boot.open_journal(self._log, self._machine, self._note)
        applied = self._machine.applied_index
        self._core.enter()
        self._core.start(
            self._journal,
            term=max(state.term, self._journal.last.term),
            voted_for=state.voted_for,
            commit=applied,
            applied=applied,
        )
        self._guard = Guard(
            core=self._core,
            journal=self._journal,
            shelf=self._shelf,
            intake=self._intake,
            clock=self._clock,
            timing=self._timing,
            known_versions=self._machine.known_versions,
            commit_known=min(max(state.commit_index, applied), self._journal.last_index),
            send=self._transport.send,
            disconnect=self._transport.disconnect,
            install=self._begin_install,
            on_peer_clock=self._tell_peer_clock,
        )
        self._shelf.oldest_index = lambda: self._journal.first_index
        self._shelf.want = self._begin_snapshot
        self._shelf.feed = self._feed_transfer
        self._shelf.remove = self._remove_snapshot
        self._intake.store = self._store_pieces
        self._intake.discard = self._discard_reception
        self._running = True
        self._leaderless_since = self._clock.monotonic()
        self._take_seats()
        await self._transport.start(self)
        if self._own_id in self.roster.removed:
            self.on_sent_away()
        self._on_timer()

    def retire(self) -> None:
        self._retired = True
        self._guarded(self._guard.retire)
        self._wake()

    async def stop(self) -> None:
        if not self._running:
            return
        self._running = False
        self._end_waiting()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.stop()
        self._intake.drop()
        self._shelf.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)  # what these two have begun
        self._journal.seal()
        self._log.close()

    @property
    def is_leader(self) -> bool:
        return self._running and self._core.state == LEADER

    @property
    def leader_id(self) -> str | None:
        return self._core.leader_id if self._running else None

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def roster(self) -> Roster:
        return self._configured if self._seen is None else self._seen

    async def hand_over(self, node_id: str) -> bool:
        if not self.is_leader:
            return True
        if self._handed_over is None:
            handover = self._guard.begin_handover(node_id, HANDOVER_S)
            if handover is None:
                return False
            self._handover = handover
            self._handed_over = self._loop.create_future()
            _events.event("handover_begun", to=node_id, term=self._core.term)
            self._wake()
        return await asyncio.shield(self._handed_over)

    def propose(self, entry: bytes) -> asyncio.Future[object]:
        if not self.is_leader or self._handover is not None:
            raise NotApplied("no_leader", "this node does not lead")
        assert 0 < len(entry) <= ENTRY_BYTES_MAX
        future: asyncio.Future[object] = self._loop.create_future()
        self._waiting[future] = None

        def done(result: object, reason: int) -> None:
            self._waiting.pop(future, None)
            if future.done():
                return
            if reason == SUCCESS:
                future.set_result(result)
            elif reason in NOT_APPLIED:
                future.set_exception(NotApplied("no_leader", "the leadership ended before the entry was in the log"))
            else:
                future.set_exception(OutcomeUnknown("a snapshot took the place of the entry"))

        self._core.propose(entry, done)
        self._wake()
        return future

    async def read_barrier(self) -> int:
        if not self.is_leader:
            raise NotApplied("no_leader", "this node does not lead")
        reader: asyncio.Future[int] = self._loop.create_future()
        self._readers.append(reader)
        self._wake()
        return await reader

    def term_of(self, index: int) -> int:
        # Below our first entry the exact term is known no more, nor does anybody need it: the log begins at the root.
        term = self._journal.term_at(max(index, self._journal.first_index))
        if term is None:
            raise Fatal(f"the state says index {index}, the log ends at {self._journal.last_index}")
        return term

    def compact(self) -> int:
        journal, core = self._journal, self._core
        allowed = [self._machine.durable_index, core.applied, journal.durable_index]
        if core.state == LEADER:
            links = self._guard.links.values()
            allowed += [core.match_index.get(link.peer, 0) for link in links if link.connected and link.fed]
            allowed += [at for at in (self._guard.holding_index, self._taking_index) if at is not None]
        if min(allowed) > journal.first_index:
            journal.cut_below(min(allowed))
            self._wake()
        return journal.first_index

    def on_role(self, callback: Callable[[], None]) -> None:
        self._on_role = callback

    def on_roster(self, callback: Callable[[Roster], None]) -> None:
        self._on_roster = callback

    def on_removed(self, callback: Callable[[], None]) -> None:
        self._on_removed = callback

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        self._on_fatal = callback

    def on_peer_clock(self, callback: Callable[[str, int], None]) -> None:
        self._on_peer_clock = callback

    def set_disk_low(self, low: bool) -> None:
        self._guard.disk_low = low

    def status(self) -> RaftStatus:
        core, journal = self._core, self._journal
        return RaftStatus(
            role=_ROLES[core.state],
            term=core.term,
            leader_id=self.leader_id,
            last_index=journal.last_index,
            commit_index=core.commit,
            applied_index=core.applied,
            first_index=journal.first_index,
            durable_log_index=journal.durable_index,
            disk_full=self._guard.disk_full,
            leader_commit=self._guard.leader_commit,
            installs=self._guard.installing is not None or self._intake.reception is not None,
            peers={node_id: self._peer_status(node_id) for node_id in self._guard.links},
        )

    # ================================================================== what the transport tells

    def on_messages(self, node_id: str, messages: list[Message]) -> None:
        """Frames of a peer, in order."""
        self._inbox.extend([(node_id, message) for message in messages])
        self._wake()

    def on_connection(self, node_id: str, up: bool) -> None:
        """A peer came or went. What it sent before is taken in first, so that nothing of it is mixed with the new."""
        if not self._running:
            return
        self._timers_due = True
        self._guarded(self._take_connection, node_id, up)
        self._wake()

    def _take_connection(self, node_id: str, up: bool) -> None:
        while self._inbox:
            self._guard.inp(*self._inbox.popleft())
        self._guard.on_connection(node_id, up)
        _events.event("peer_connected" if up else "peer_lost", peer=node_id)

    def on_book(self, book: Roster) -> None:
        """A peer knows members that our own state may not hold yet: be acquainted with them, if nobody leads us.

        Who is led gets all changes by the log, and needs nobody's word; should the leader go, that word is at hand. Of
        what is applied here our state holds the members itself: a book of such an index that it does not hold is of
        another life of the cluster, which ended with a recovery.
        """
        if not self._running or book.at_index <= max(self._book.at_index, self._machine.applied_index):
            return
        if self.lacks_leader():
            self._guarded(self._be_acquainted, book)
        elif self._heard is None or self._heard.at_index < book.at_index:
            self._heard = book

    def _be_acquainted(self, book: Roster) -> None:
        self._book = book
        self._take_seats()
        self._on_roster(book)

    def _doubt_book(self) -> None:
        """What was heard of members at an index past all that a leader of today knows never was: a file was damaged, or
        somebody lied. The greatest number must not be believed for ever. Should that leader go, it is heard again."""
        if self._book.at_index > self._core.applied and self._guard.has_all_before_reign():
            self._heard = self._book
            _events.warning("members_refuted", index=self._book.at_index, leader=self._core.leader_id)
            self._be_acquainted(self.roster)

    def lacks_leader(self) -> bool:
        return self._core.leader_id is None

    def on_sent_away(self) -> None:
        """A peer's word, or our own state's: we are no member any more."""
        if self._running and not self._removed:
            self._removed = True
            _events.warning("removed_from_cluster")
            self.retire()
            self._on_removed()

    def on_misfit(self, reason: str, origin_index: int | None) -> None:
        """A peer is of another cluster by its configuration, or by its backup. It is refused, and that is all, once
        this node holds anything beyond its own backup: a newcomer that is wrong may not end who serves. Before, the
        wrong one may well be this node."""
        begun_index = ROOT_INDEX if origin_index is None else origin_index
        nothing_held = self._machine.applied_index == self._journal.last_index == begun_index
        if nothing_held and not self._knew_leader:
            self._fail(Misfit(reason))

    def on_unreachable(self, node_id: str, address: str, reason: str, for_s: float) -> None:
        """A node that is about to end is left by its peers, and needs them no more."""
        if self._running and not self._retired:
            _events.warning("peer_unreachable", peer=node_id, address=address, reason=reason, for_seconds=round(for_s))

    # ================================================================== the drive

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump)

    def _on_timer(self) -> None:
        if self._running:
            self._timer = self._loop.call_later(TICK_S, self._on_timer)
            self._timers_due = True
            if self._core.state == LEADER and self._core.commit > self._commit_sent:
                self._commit_sent = -1  # tell the followers of a commit that no entry has carried to them
            self._wake()

    def _on_durable(self, durable: int) -> None:
        self._durable = durable
        self._guard.disk_full = False
        self._wake()

    def _on_log_failure(self, error: BaseException) -> None:
        """A full disk is waited out by the log itself; after anything else nothing becomes durable any more."""
        if isinstance(error, StorageFull):
            self._guard.disk_full = True
            _events.warning("log_disk_full", reason=str(error))
        else:
            self._fail(error)

    def _pump(self) -> None:
        self._woken = False
        if self._running:
            self._guarded(self._run_once)

    def _guarded(self, step: Callable[..., None], *args: object) -> None:
        try:
            self._core.enter()
            step(*args)
        except Exception as error:  # the root of all that consensus does: whatever it is, it ends the node
            self._fail(error)

    def _run_once(self) -> None:
        guard, core = self._guard, self._core
        applied = core.applied
        for _ in range(min(FRAMES_PER_PUMP, len(self._inbox))):
            guard.inp(*self._inbox.popleft())
        synced = self._durable
        if synced:
            self._journal.on_durable(synced)
            guard.on_durable(synced, self._journal.durable_index)
            self._durable = 0
        core.append_proposals()
        if core.state == LEADER:
            self._send_what_waits()
        sealed = self._log.sealed
        self._hand_over()
        # What is to be applied waits for the sync of what was just sealed, a moment later: the acknowledgement of it is
        # what somebody waits for. Applying first cost a lone submit 150 us.
        waits_for_sync = self._log.sealed != sealed and not synced
        if self._timers_due or (not waits_for_sync and guard.may_move()):
            self._timers_due = False
            now = self._clock.monotonic()
            guard.tick(now)
            if core.state == LEADER:
                self._send_what_waits()
            self._maybe_forget_note()
            self._maybe_compact(now)
            self._doubt_book()
            if self._leaderless_since is not None and now - self._leaderless_since >= LEADERLESS_S:
                self._tell_leaderless(now - self._leaderless_since)
        self._maybe_begin_round()
        if self._handover is not None:
            self._drive_handover(self._handover)
        self._hand_over()
        self._settle_readers()
        self._maybe_tell_role()
        if self._inbox or core.commit > core.applied > applied:
            self._wake()

    def _hand_over(self) -> None:
        """Send to as many as make a majority with us, write our own log, send to the rest.

        What must wait for the disk is not among what is sent (rule 1). An entry commits when both its first peers and
        our own disk have it, and each send costs the time of a quarter of a sync: whoever is sent to or synced last
        is waited for, unless nobody needs it.
        """
        more = self._transport.flush(peers_max=(len(self._core.others) + 1) // 2 or 1)
        if self._journal.dirty:
            self._journal.seal()
        if more:
            self._transport.flush()

    def _send_what_waits(self) -> None:
        guard = self._guard
        guard.unmute()
        if self._commit_sent < 0 or guard.has_unsent():
            self._core.send_entries()
            self._commit_sent = self._core.commit

    def _apply(self, index: int, data: bytes) -> object:
        result = self._machine.apply(index, data[1:] if data[:1] == ENTRY_REGULAR else b"")
        if self._machine.roster is not self._seen:
            self._adopt_roster()
        return result

    def _adopt_roster(self) -> None:
        """The state's members are others now: they count from this entry on."""
        self._seen = roster = self._machine.roster
        assert roster is not None
        tell = _events.debug  # who was away or is new applies one change after the other: the last one is news
        if roster.at_index >= self._book.at_index:
            self._book, tell = roster, _events.event
        self._take_seats()
        tell(
            "members_changed",
            index=roster.at_index,
            voters=",".join(member.node_id for member in roster.voters),
            learners=",".join(member.node_id for member in roster.learners),
        )
        self._on_roster(self._book)
        if self._own_id in roster.removed:
            self._loop.call_soon(self.on_sent_away)  # not amid the apply: it resigns

    def _take_seats(self) -> None:
        roster, book = self.roster, self._book
        self._guard.adopt(seats_of(self._own_id, roster, book))
        self._transport.set_peers(addresses_of(self._own_id, roster, book), roster.removed, book)

    def _on_state(self, old: int, new: int) -> None:
        self._guard.on_state(old, new)
        if old == LEADER:
            wanted = self._handover is not None or self._guard.wants_no_lead
            tell = _events.event if wanted else _events.warning
            if len(self.roster.voters) > 1:
                tell("leadership_handed_on" if wanted else "leadership_lost", term=self._core.term)
            self._end_waiting()
        if new == CANDIDATE:
            _events.event("election_begun", term=self._core.term + 1)
        if new == LEADER:
            self._commit_sent = 0

    def _drive_handover(self, handover: Handover) -> None:
        leads = self._core.state == LEADER
        if leads and self._clock.monotonic() < handover.deadline:
            self._guard.maybe_call(handover)
            return
        if leads:
            self._guard.call_off(handover)
        self._handover = None
        done, self._handed_over = self._handed_over, None
        _events.event("handover_ended", to=handover.peer.id, done=not leads)
        if done is not None and not done.done():
            done.set_result(not leads)
        if leads:
            self._told = None  # whoever waits to lead on looks again

    def _end_waiting(self) -> None:
        """Proposals may or may not be committed by whoever leads next; reads were surely not served (13).

        Who hands over has done so.
        """
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_exception(OutcomeUnknown("this node stopped leading before the entry was committed"))
        readers = self._readers + [reader for _, readers in self._rounds for reader in readers]
        self._readers, self._rounds = [], []
        for reader in readers:
            if not reader.done():
                reader.set_exception(NotApplied("no_leader", "this node stopped leading"))
        if self._handed_over is not None and not self._handed_over.done():
            self._handed_over.set_result(True)

    def _fail(self, error: BaseException) -> None:
        """Nothing can be trusted any more: fall silent, and say so."""
        if not self._running:
            return
        self._running = False
        if not isinstance(error, (Outdated, Misfit)):  # that is one line, and its end says it
            _events.error("raft_failed", exc=error)
        if self._timer is not None:
            self._timer.cancel()
        self._end_waiting()
        self._transport.silence()
        self._on_fatal(error)

    # ------------------------------------------------------------------ reads

    def _maybe_begin_round(self) -> None:
        if not self._readers:
            return
        assert self._core.state == LEADER  # `_end_waiting` answered them all when that ended
        readers, self._readers = self._readers, []
        self._rounds.append((self._guard.begin_round(), readers))

    def _settle_readers(self) -> None:
        if not self._rounds:
            return
        applied, open_rounds = self._core.applied, []
        for round_, readers in self._rounds:
            if not round_.confirmed or applied < round_.read_index:
                open_rounds.append((round_, readers))
                continue
            for reader in readers:
                if not reader.done():
                    reader.set_result(applied)
        self._rounds = open_rounds

    # ------------------------------------------------------------------ roles

    def _maybe_tell_role(self) -> None:
        core = self._core
        now = (core.state, core.term, core.leader_id)
        if now != self._told:
            if self._told is not None and now[2] != self._told[2]:
                if now[2] is None:
                    _events.event("leader_lost", leader=self._told[2], term=now[1], role=_ROLES[now[0]])
                else:
                    _events.event("leader_known", leader=now[2], term=now[1], role=_ROLES[now[0]])
            if now[2] is not None:
                self._knew_leader, self._leaderless_since = True, None
            elif self._told is not None and self._told[2] is not None:
                self._leaderless_since = self._clock.monotonic()
                if self._heard is not None:
                    self._loop.call_soon(self.on_book, self._heard)
            self._told = now
            self._on_role()

    def _tell_leaderless(self, for_s: float) -> None:
        """Once, until a leader is known."""
        self._leaderless_since = None
        if self._retired:
            return
        links = self._guard.links
        others = sorted(member.node_id for member in self.roster.voters if member.node_id != self._own_id)
        connected = [node_id for node_id in others if node_id in links and links[node_id].connected]
        _events.warning(
            "no_leader",
            for_seconds=round(for_s),
            connected=",".join(connected),
            missing=",".join(node_id for node_id in others if node_id not in connected),
        )

    def _tell_peer_clock(self, node_id: str, wall_ms: int) -> None:
        self._on_peer_clock(node_id, wall_ms)

    def _peer_status(self, node_id: str) -> PeerStatus:
        link = self._guard.links[node_id]
        heard = link.heard_at
        match = self._core.match_index.get(link.peer, 0) if self._core.state == LEADER else 0
        since = None if heard is None else max(0, round((self._clock.monotonic() - heard) * 1000))
        return PeerStatus(link.connected, match, since, link.disk_full, link.known_versions, link.disk_low)

    # ------------------------------------------------------------------ compaction and snapshots

    def _maybe_compact(self, now: float) -> None:
        """Cut the log to its tail, below what the state's disk holds: from there a copy of the state goes on (9)."""
        if now < self._compact_at:
            return
        self._compact_at = now + COMPACT_EVERY_S
        self._shelf.sweep(now)
        limits, journal = self._limits, self._journal
        # A quarter of slack, so that not each second cuts.
        if journal.data_bytes * 4 <= limits.tail_bytes * 5 and len(journal) * 4 <= limits.tail_entries * 5:
            return
        wanted = journal.cut_for(tail_bytes=limits.tail_bytes, tail_entries=limits.tail_entries)
        allowed = min(wanted, self._machine.durable_index, self._core.applied, journal.durable_index)
        if journal.data_bytes < 4 * limits.tail_bytes:
            for held_at in (self._guard.holding_index, self._taking_index):
                if held_at is not None:
                    allowed = min(allowed, held_at)  # a receiver of that snapshot goes on from there
        if allowed > journal.first_index:
            journal.cut_below(allowed)
            _events.debug("log_cut", first_index=allowed)

    def _begin_snapshot(self) -> None:
        """A follower is behind our log: copy the state for it."""
        if self._snapshot_task is None:
            self._snapshot_task = self._spawn(self._take_snapshot())

    async def _take_snapshot(self) -> None:
        self._taking_index = self._core.applied  # it takes long, and is of use only while the log goes on from it
        try:
            while True:
                self._snapshots_taken += 1
                path = self._directory / f"taken-{self._snapshots_taken}.snapshot"
                try:
                    info = await self._machine.take_snapshot(path, self.term_of)
                except StorageFull as error:
                    path.unlink(missing_ok=True)
                    _events.warning("snapshot_put_off", reason=str(error))
                    await asyncio.sleep(SNAPSHOT_RETRY_S)
                    continue
                break
            self._shelf.put(info)
            _events.event("snapshot_taken", index=info.last_index, bytes=info.size_bytes)
        finally:
            self._snapshot_task = self._taking_index = None
        self._wake()

    def _begin_install(self, snapshot: SnapshotInfo) -> None:
        reception = self._intake.reception
        assert reception is not None
        self._intake.done()
        self._spawn(self._finish_install(snapshot, reception))

    async def _finish_install(self, snapshot: SnapshotInfo, reception: Reception) -> None:
        """All that takes long is done in threads, before the state is swapped in one step of the loop."""
        try:
            await asyncio.to_thread(reception.finish)
            await self._machine.check_snapshot(snapshot)
            await asyncio.to_thread(self._note.write, snapshot.last_index, snapshot.last_term)
        except Corrupt as error:
            _events.warning("snapshot_damaged", reason=str(error))
            self._guarded(self._abandon_install, True)
        except (OSError, StorageFull) as error:
            await self._rest_from_snapshots(error)
        else:
            if self._running:
                self._guarded(self._install)
        await asyncio.to_thread(reception.discard)

    def _abandon_install(self, damaged: bool) -> None:
        self._guard.abandon_install(damaged=damaged)
        self._wake()

    async def _rest_from_snapshots(self, error: BaseException) -> None:
        """The disk does not take it: ask again later."""
        if not self._told_not_kept:
            self._told_not_kept = True
            _events.warning("snapshot_not_kept", reason=str(error), then="asked for again until it is")
        self._guarded(self._guard.rest_intake)
        await asyncio.sleep(SNAPSHOT_RETRY_S)
        self._guarded(self._abandon_install, False)

    def _store_pieces(self, reception: Reception) -> None:
        if not reception.writing:
            reception.writing = True
            self._spawn(self._write_pieces(reception))

    async def _write_pieces(self, reception: Reception) -> None:
        try:
            await asyncio.to_thread(reception.write)
        except OSError as error:
            if reception is self._intake.reception:
                await self._rest_from_snapshots(error)
            return
        finally:
            reception.writing = False
        if self._running and reception is self._intake.reception:
            if reception.unwritten_bytes:
                self._store_pieces(reception)
            self._guarded(self._guard.on_pieces_written)
            self._wake()

    def _feed_transfer(self, transfer: Transfer) -> None:
        if not transfer.feeding:
            transfer.feeding = True
            self._spawn(self._read_pieces(transfer))

    async def _read_pieces(self, transfer: Transfer) -> None:
        try:
            await asyncio.to_thread(transfer.fill)
            self._timers_due = True
            self._wake()
            await asyncio.sleep(FEED_PAUSE_S)
        finally:
            transfer.feeding = False
        self._timers_due = True
        self._wake()

    def _remove_snapshot(self, path: Path) -> None:
        self._spawn(_in_thread(partial(path.unlink, missing_ok=True)))

    def _discard_reception(self, reception: Reception) -> None:
        self._spawn(_in_thread(reception.discard))

    def _install(self) -> None:
        if self._guard.finish_install(self._machine.install_snapshot):
            if self._machine.roster is not self._seen:
                self._adopt_roster()
            self._told_not_kept = False
            _events.event("snapshot_installed", index=self._core.applied)
        self._note_group = self._journal.mark
        self._wake()

    def _maybe_forget_note(self) -> None:
        """The note of an install is needed until the log has begun anew on disk."""
        if self._note_group is not None and self._log.durable >= self._note_group:
            self._note_group = None
            self._note.remove()

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)


async def _in_thread(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)
