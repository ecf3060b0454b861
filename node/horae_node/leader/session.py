"""The leader's reign: it opens an epoch, stamps entries, sleeps until the next due moment, and hands out ready jobs.

A session is open from the moment its `OpenEpoch` was applied until leadership is lost; only then may it advance time
or grant. All waiting claims live here; every grant goes through the log. Runs on the loop.
Not here: what is due (the machine says), how entries travel (the proposer).
Next to read: `waiters.py`, `../proposer.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from horae_node import codec
from horae_node.applier import Applier
from horae_node.clock import Clock, ClusterClock
from horae_node.core import machine, views
from horae_node.core.changes import JobSubmitted
from horae_node.core.commands import (
    ENTRY_VERSION,
    AdvanceTime,
    CancelJob,
    CancelJobIn,
    ClaimJobs,
    Command,
    CompleteJob,
    Header,
    Nothing,
    OpenEpoch,
    ReleaseJob,
    RunJobNow,
)
from horae_node.core.results import EntryOutcome, EpochOpened, Granted, Outcome
from horae_node.core.tables import S_READY
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.leader.claim_book import ClaimBook
from horae_node.leader.scheduler import Scheduler
from horae_node.leader.waiters import Grants, Waiter, Waiters
from horae_node.proposer import COMMIT_DEADLINE_MS, Chunk, Plan, Proposer
from horae_node.raft.port import PeerStatus, Raft

QUEUES_REMEMBERED = 10_000
"""Names of queues that were looked at and had nothing; past them it looks anew, which costs a look-up a claim."""

STEP_LOOK_MS = 500
"""The longest sleep until a moment of cluster time, which may step ahead meanwhile (members' clocks are set, or heard):
a job is no later by that than this."""

ARM_AFTER_MS = 1
"""Between an applied entry and the look at what falls due next, which costs a lone submit 15 us."""

STAMP_MS = 5000
"""While leases run, the lease clock is written down at least so often: the next leader counts on from there, and what
had run of a dead worker's lease since then runs again."""

ON_TIME_MS = 1000
"""What a leader that is there fires within this is not late, whatever the grace: its timer's own lateness, and entries
that are under way. Not all that is due in a reign: a node that slept for an hour may lead on."""

GRANT_JOBS_MAX = 400
"""Jobs that one entry's claims ask for, unless a single one asks for more: some 15 ms of each node's loop."""

QUEUES_A_JOB = 4
"""So many queues that a claim names count as a job that it asks for: the machine looks into each, and 2000 that have
nothing cost it some 10 ms."""

QUEUES_LOOKED_MAX = 1000
"""Queues that are looked at for one entry, in 2 to 6 us each: the rest comes with the next one."""

DROPPED_ROW_BYTES = 400
"""What a row that goes with a job counts, in bytes of specs: it takes some two microseconds, and a job that waits for a
hundred others has a hundred."""

SILENT_MS = 1000
"""A node that was not heard of for so long hangs, or is cut off: ten heartbeats."""

HEARD_AGAIN_MS = 100
"""How long what is known of that counts."""

LOOK_AGAIN_MS = 500
"""Between two looks at jobs for which nobody waits but callers of such nodes."""

SHORT_WAIT_MS = 5
"""A claim that waited less is not worth a look at when its job fell due."""

LAST_LOOK_MS = 50
"""How long a claim whose wait is over may still be served when its queue has jobs that are about to be granted."""

DISMISSED_A_PASS = 100
"""Claims that are told in one pass of the loop that this node leads no more, at some 0.1 ms for each answer."""

SWEPT_A_PASS = 5000
"""Lines of queues that are freed meanwhile: a millisecond."""

OUTCOME_WAIT_MS = COMMIT_DEADLINE_MS
"""How long a claim whose wait is over waits for what an earlier call of it is granted: as long as that one waits."""

LAST_LOOKS_MAX = 40
"""So often, while no entry has left since its queue was to be looked at: under load a claim that does not want to wait
was told of no jobs, though there were thousands."""


class LeaderSession:
    """One for a node, open and closed with each reign."""

    def __init__(
        self,
        *,
        node_id: str,
        raft: Raft,
        applier: Applier,
        proposer: Proposer,
        clock: Clock,
        advance_limit: int,
        on_change: Callable[[], None],
        observe_claim_ms: Callable[[int], None],
    ) -> None:
        self._node_id = node_id
        self._raft = raft
        self._applier = applier
        self._proposer = proposer
        self._clock = clock
        self._advance_limit = advance_limit
        self._on_change = on_change
        self._observe_claim_ms = observe_claim_ms
        self._loop = asyncio.get_running_loop()
        self.cluster_clock = ClusterClock(clock, node_id)
        self.waiters = Waiters()
        self.open = False
        """This node leads, and its epoch is open."""
        self._draining = False
        self._term = 0
        self._epoch = 0
        self._lease_base = 0
        self._mono_base_ms = 0
        self._deadline = machine.Deadline(None, None)
        self._advancing = False
        self._unsettled = False
        """An entry has left something to the next advance that must not wait for a timer."""
        self._settling = False
        """The advance that does it is under way."""
        self._behind_next: dict[Waiter, None] = {}
        """Claims whose wait is over: what is unsettled may give them something. Behind the next advance to leave, and
        behind the one that is under way."""
        self._behind_this: dict[Waiter, None] = {}
        self.scheduler = Scheduler(clock)
        self._firing = False
        self._fire_ms: int | None = None
        """When the next trigger comes, as the last look had it: no entry pays for another."""
        self._seen_ms: int | None = None
        """By cluster time: since when triggers have been due without a pause, in this reign; `ON_TIME_MS` before that,
        if it had begun by then."""
        self._opened_ms = 0
        """By cluster time: when this reign began."""
        self._stamped_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._arming: asyncio.TimerHandle | None = None
        self._asked: dict[str, int] = {}
        self._nothing_ready: set[str] = set()
        """Queues that had nothing when somebody asked for them, and gained nothing since: of others it is not known."""
        self._check: dict[str, None] = {}
        self._repeats: dict[Waiter, None] = {}
        self._claims = ClaimBook()
        self._dismissed: deque[tuple[Waiter, NotApplied]] = deque()
        """Claims that have left, and are to be told why."""
        self._dismissing: asyncio.Handle | None = None
        self._silent: frozenset[str] = frozenset()
        self._heard_until_ms = 0
        self._passed_over: dict[str, None] = {}
        self._passing: asyncio.TimerHandle | None = None
        self._until_token: dict[str, asyncio.TimerHandle] = {}
        """Queues whose rate alone holds them up while somebody waits for their jobs."""

    # ------------------------------------------------------------------ the reign

    @property
    def epoch(self) -> int:
        return self._epoch

    async def open_epoch(self, term: int) -> None:
        """Take over, for a leader just elected in `term`. Returns when the session is open.

        Raises: `NotApplied`, `OutcomeUnknown` when leadership is gone, or another leader opened an epoch in between.
        """
        await self._raft.read_barrier()
        previous = self._applier.meta()
        self.cluster_clock.lead(len(self._raft.roster.voters), *self._applier.last_stamp)
        header = Header(ENTRY_VERSION, previous.epoch, self.cluster_clock.now_ms(), previous.lease_clock)
        blob = codec.pack_command(OpenEpoch(self._node_id, previous.epoch))
        entry = await self._raft.propose(codec.join_entry(header, [blob]))
        assert isinstance(entry, EntryOutcome)
        opened = entry.outcomes[0]
        if not isinstance(opened, EpochOpened) or not self._raft.is_leader or self._raft.term != term:
            raise NotApplied("no_leader", "another leader has taken over")
        self._term = term
        self._epoch = opened.epoch
        self._begin()

    def _begin(self) -> None:
        meta = self._applier.meta()
        self._lease_base = meta.lease_clock
        self._opened_ms = meta.now_ms
        self._mono_base_ms = self._clock.monotonic_ms()
        self._asked.clear()
        self._nothing_ready.clear()
        self._check.clear()
        self._repeats.clear()
        self._advancing = self._firing = False
        self._unsettled = self._settling = False
        self._behind_next.clear()
        self._behind_this.clear()
        self._seen_ms = None
        self.scheduler.begin()
        self._stamped_ms = self._mono_base_ms
        self.open = True
        self._arm()
        self._on_change()
        self._proposer.kick()

    def drain(self) -> None:
        """Before an orderly stop: no more claims are taken, those that wait are answered; what is under way may end.

        The session stays open meanwhile, so that grants whose callers are gone can still be given back.
        """
        self._draining = True
        self._dismiss(NotApplied("no_leader", "this node goes down; ask the new leader"))

    def _dismiss(self, why: NotApplied) -> None:
        """All claims leave at once, and those that nothing under way serves are told why, some a pass: to answer
        thousands in one would hold up whatever is to be done for the new leader."""
        for line in (self._repeats, self._behind_next, self._behind_this):
            line.clear()
        for waiter in self.waiters.remove_all():
            if not waiter.in_flight:
                if self._claims.matters_to_others(waiter):
                    self._end_call(waiter)  # at once: an orderly stop waits for what goes back, not for answers
                self._dismissed.append((waiter, why))
        if self._dismissing is None:
            self._tell_dismissed()

    def _tell_dismissed(self) -> None:
        self._dismissing = None
        for _ in range(min(len(self._dismissed), DISMISSED_A_PASS)):
            self._finish(*self._dismissed.popleft())
        if self.waiters.sweep(SWEPT_A_PASS) or self._dismissed:
            self._dismissing = self._loop.call_soon(self._tell_dismissed)

    @property
    def granting(self) -> bool:
        """Claims may be parked here."""
        return self.open and not self._draining

    def close(self) -> None:
        """Leadership is lost: every waiting claim is answered, some a pass, so that it can go to the new leader."""
        if not self.open:
            return
        self.open = False
        for timer in (self._timer, self._arming, self._passing, *self._until_token.values()):
            if timer is not None:
                timer.cancel()
        self._timer = self._arming = self._passing = None
        self._until_token.clear()
        self._passed_over.clear()
        gone = NotApplied("no_leader", "this node no longer leads; ask the new leader")
        self._proposer.fail_queued(gone)
        self._claims.clear()
        self._dismiss(gone)
        self._on_change()

    # ------------------------------------------------------------------ clocks

    def now_ms(self) -> int:
        """Cluster time, ms: the members' median, and never less than what the machine has seen."""
        return self.cluster_clock.now_ms()

    def lease_clock(self) -> int:
        """The lease clock, ms: this reign's own elapsed time on top of what earlier reigns counted."""
        return self._lease_base + self._clock.monotonic_ms() - self._mono_base_ms

    def header(self) -> Header:
        return Header(ENTRY_VERSION, self._epoch, self.now_ms(), self.lease_clock())

    def moved_bytes(self, command: Command) -> int:
        """Bytes of specs that a node reads, or makes, to apply the command, and what a row for each other job that its
        job waits for comes to. A completion needs none but to follow."""
        job_id: str = command.job_id  # type: ignore[union-attr]  # the proposer asks of commands that have one
        view, kind = self._applier.view, type(command)
        dropped = views.needs_of(view, job_id) if kind in (CancelJob, CancelJobIn, RunJobNow) else 0
        return views.spec_bytes(view, job_id, followed=kind is CompleteJob) + dropped * DROPPED_ROW_BYTES

    def _arm_soon(self) -> None:
        """As `_arm`, once for all entries of a moment, and not before those who wait for the first are answered."""
        if self._arming is None:
            self._arming = self._loop.call_later(ARM_AFTER_MS / 1000, self._arm)

    def _arm(self) -> None:
        """Sleep until the machine's next deadline."""
        if self._arming is not None:
            self._arming.cancel()
            self._arming = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.open or self._advancing or self._firing:
            return
        delays = []
        self._deadline = machine.next_deadline(self._applier.view)
        fire_ms = self._fire_ms = self.scheduler.next_firing(self._applier.view)
        if fire_ms is None or fire_ms > self.now_ms():
            self._seen_ms = None
        if fire_ms is not None:
            delays.append(min(STEP_LOOK_MS, fire_ms - self.now_ms()))
        if (again_ms := self.scheduler.again_in_ms()) is not None:
            delays.append(again_ms)
        if self._deadline.wall_ms is not None:
            delays.append(min(STEP_LOOK_MS, self._deadline.wall_ms - self.now_ms()))
        if self._deadline.lease_clock is not None:
            delays.append(self._deadline.lease_clock - self.lease_clock())
            delays.append(self._stamped_ms + STAMP_MS - self._clock.monotonic_ms())
        if delays:
            self._timer = self._loop.call_later(max(0, min(delays)) / 1000, self._on_due)

    def _on_due(self) -> None:
        """The moment may have come; a timer that fired too early is set again."""
        self._timer = None
        header = self.header()
        if self._is_due(header) or self._has_trigger(header):
            self._proposer.kick()
            return
        now_ms = self._clock.monotonic_ms()
        if self._deadline.lease_clock is not None and now_ms - self._stamped_ms >= STAMP_MS:
            self._stamped_ms = now_ms
            self._proposer.send([Nothing()])
        self._arm()

    def _is_due(self, header: Header) -> bool:
        wall, lease = self._deadline
        return (wall is not None and wall <= header.now_ms) or (lease is not None and lease <= header.lease_clock)

    def _has_trigger(self, header: Header) -> bool:
        """A schedule has a trigger that has come."""
        return self._fire_ms is not None and self._fire_ms <= header.now_ms

    # ------------------------------------------------------------------ planning an entry

    def plan(self, header: Header, due_now: dict[str, int]) -> Plan:
        first: list[Chunk] = []
        ready = dict(due_now)
        if not self._advancing and self._is_due(header):
            self._advancing = True
            self._settling, self._unsettled = self._unsettled, False
            self._behind_this, self._behind_next = self._behind_next, self._behind_this
            for queue, count in views.due_queues(self._applier.view, header.now_ms, self._advance_limit).items():
                ready[queue] = ready.get(queue, 0) + count
            advance = self._proposer.chunk(AdvanceTime(self._advance_limit))
            advance.future.add_done_callback(self._on_advanced)
            first.append(advance)
        if not self._firing and self._has_trigger(header):
            first += self._fire(header, ready)
        self._check.update(dict.fromkeys(queue for queue in ready if self.waiters.waits_on(queue)))
        return Plan(first, self._ask_waiting(ready) if self._check or self._repeats else [])

    def _ask_waiting(self, ready: dict[str, int]) -> list[Chunk]:
        """Claims for one entry; those that were granted jobs before get them again, whether or not any are ready."""
        chunks: list[Chunk] = []
        asked = looked = 0
        while self._repeats and asked < GRANT_JOBS_MAX:
            waiter = next(iter(self._repeats))
            del self._repeats[waiter]
            if waiter.ticket and not waiter.in_flight:
                asked += _weight(waiter)
                chunks.append(self._ask(waiter))
        while self._check and asked < GRANT_JOBS_MAX:
            if looked == QUEUES_LOOKED_MAX:
                self._proposer.kick()  # there may be nothing yet whose end would
                break
            looked += 1
            queue = next(iter(self._check))
            del self._check[queue]
            for waiter in self._to_ask(queue, ready.get(queue, 0)):
                if asked >= GRANT_JOBS_MAX:
                    self._check[queue] = None  # its turn comes with the next entry
                    break
                asked += _weight(waiter)
                chunks.append(self._ask(waiter))
        return chunks

    def _fire(self, header: Header, ready: dict[str, int]) -> list[Chunk]:
        """The triggers of schedules that have come. `ready`, jobs per queue, gains those that they will make."""
        chunks = []
        if self._seen_ms is None:
            self._seen_ms = max(self._opened_ms, header.now_ms - ON_TIME_MS)
        for firing in self.scheduler.firings(self._applier.view, header.now_ms, self._seen_ms):
            chunks.append(self._proposer.chunk(firing.command))
            if firing.jobs:
                ready[firing.queue] = ready.get(firing.queue, 0) + firing.jobs
        if chunks:
            self._firing = True
            chunks[-1].future.add_done_callback(self._on_fired)
        else:  # what it came to cannot be reckoned here
            self._fire_ms = self.scheduler.next_firing(self._applier.view)
            self._arm_soon()
        return chunks

    def _on_fired(self, done: asyncio.Future[Sequence[Outcome]]) -> None:
        self._firing = False
        self._arm()

    def _to_ask(self, queue: str, coming: int) -> list[Waiter]:
        """Those who wait longest on `queue`, for as many jobs as it would give or is about to have."""
        ready, room, wait_ms = views.takeable(self._applier.view, queue, self.lease_clock())
        if ready == 0:
            if len(self._nothing_ready) >= QUEUES_REMEMBERED:
                self._nothing_ready.clear()
            self._nothing_ready.add(queue)
        before = self._until_token.pop(queue, None)
        if before is not None:
            before.cancel()  # the rate may be another by now
        if wait_ms is not None:
            self._until_token[queue] = self._loop.call_later(wait_ms / 1000, self._on_token, queue)
        available = ready + coming if room is None else min(ready + coming, room)
        available -= self._asked.get(queue, 0)
        picked: list[Waiter] = []
        for waiter in self.waiters.idle(queue):
            if available <= 0:
                break
            if waiter.via and waiter.via in self._silent_members():
                self._pass_over(queue)
                continue
            available -= waiter.command.max_jobs
            picked.append(waiter)
        return picked

    def _silent_members(self) -> frozenset[str]:
        """Nodes that nothing was heard of for a while: what callers there are granted nobody gets."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._heard_until_ms:
            peers = self._raft.status().peers
            self._silent = frozenset(node_id for node_id, peer in peers.items() if _is_silent(peer))
            self._heard_until_ms = now_ms + HEARD_AGAIN_MS
        return self._silent

    def _pass_over(self, queue: str) -> None:
        """Somebody is passed over there: look again soon, for his node may be heard again."""
        self._passed_over[queue] = None
        if self._passing is None:
            self._passing = self._loop.call_later(LOOK_AGAIN_MS / 1000, self._on_passing)

    def _on_passing(self) -> None:
        self._passing = None
        queues, self._passed_over = self._passed_over, {}
        self._check.update(dict.fromkeys(queue for queue in queues if self.waiters.waits_on(queue)))
        self._proposer.kick()

    def _on_token(self, queue: str) -> None:
        """The queue's rate lets one more through, or nearly: then this is set again."""
        del self._until_token[queue]
        self._nothing_ready.discard(queue)
        if self.waiters.waits_on(queue):
            self._check[queue] = None
            self._proposer.kick()

    def _ask(self, waiter: Waiter) -> Chunk:
        waiter.in_flight = True
        waiter.asked = waiter.command.queues
        for queue in waiter.asked:
            self._asked[queue] = self._asked.get(queue, 0) + waiter.command.max_jobs
        chunk = self._proposer.chunk(waiter.command)
        chunk.future.add_done_callback(lambda done: self._on_claimed(waiter, done))
        chunk.late = lambda outcomes: self._on_late(waiter, outcomes)
        return chunk

    # ------------------------------------------------------------------ what came of it

    def on_entry(self, outcome: EntryOutcome) -> None:
        """After each applied entry: queues that gained ready jobs may have somebody waiting; deadlines have moved."""
        if not self.open:
            return
        self._stamped_ms = self._clock.monotonic_ms()
        for queue in outcome.ready_queues:
            self._nothing_ready.discard(queue)
            if self.waiters.waits_on(queue):
                self._check[queue] = None
        if outcome.unsettled:
            self._unsettled = True
            self._deadline = self._deadline._replace(wall_ms=0)
        if not _is_one_ready(outcome):
            self._arm_soon()
        if self._check or outcome.unsettled:
            self._proposer.kick()

    def _on_advanced(self, done: asyncio.Future[Sequence[Outcome]]) -> None:
        self._advancing = self._settling = False
        self._arm()
        answered, self._behind_this = self._behind_this, {}
        if self._unsettled and self.open and not self._is_due(self.header()):
            self._unsettled = False  # it left before this one, and lay behind it in the log
            answered |= self._behind_next
            self._behind_next = {}
        for waiter in answered:
            self._look_again(waiter, 1)

    def _on_claimed(self, waiter: Waiter, done: asyncio.Future[Sequence[Outcome]]) -> None:
        waiter.in_flight = False
        for queue in waiter.asked:
            left = self._asked.get(queue, 0) - waiter.command.max_jobs
            if left > 0:
                self._asked[queue] = left
            else:
                self._asked.pop(queue, None)
            if queue not in self._nothing_ready and self.waiters.waits_on(queue):
                self._check[queue] = None
        waiter.asked = ()
        error = done.exception()
        if error is not None:
            assert isinstance(error, (NotApplied, OutcomeUnknown))
            waiter.in_doubt = isinstance(error, OutcomeUnknown)
            self._finish(waiter, error)
            if not waiter.in_doubt:
                self._tell_repeats(waiter)
            return
        granted = done.result()[0]
        assert isinstance(granted, Granted)
        grants = self._claims.is_granted(waiter, granted)
        if grants or waiter.expired or waiter.abandoned:
            self._finish(waiter, grants)
        elif not (self.granting and waiter.ticket):
            self._finish(waiter, NotApplied("no_leader", "this node no longer leads; ask the new leader"))
        self._tell_repeats(waiter, granted=bool(grants))
        if self._check:
            self._proposer.kick()

    def _on_late(self, waiter: Waiter, outcomes: Sequence[Outcome]) -> None:
        """Its caller hung up, or was told that nobody knows: whatever it was granted goes to a repeat, or back."""
        (granted,) = outcomes
        waiter.in_doubt = False
        if not isinstance(granted, Granted) or not self.open:
            return
        grants = self._claims.is_granted(waiter, granted)
        if grants:
            self._lose(waiter, grants)
        self._end_call(waiter)
        self._tell_repeats(waiter, granted=bool(grants))

    def _tell_repeats(self, waiter: Waiter, *, granted: bool = False) -> None:
        """This call's outcome is known: repeats that came meanwhile ask for its jobs, or need not wait for it."""
        for repeat in self._claims.others(waiter):
            if repeat.in_flight or not repeat.ticket:
                continue
            if granted:
                self._repeats[repeat] = None
                self._proposer.kick()
            elif repeat.expired and not self._stands(repeat):
                self._look_again(repeat, LAST_LOOKS_MAX)

    # ------------------------------------------------------------------ claims

    def park(self, command: ClaimJobs, wait_ms: int, via: str = "") -> Waiter:
        """A claim begins to wait; its future ends with the grants, empty at the end of the wait. `via`: the node that
        passed it on. While nothing is heard of that, others get the jobs.

        The future raises `NotApplied("no_leader")` when leadership is lost first, and `OutcomeUnknown` when a call of
        the same claim may have been granted jobs, and it cannot be told in time which.

        Raises: `NotApplied("rate_limited")` when claims that wait name too many queues, or too many are this one's
        repeats.
        """
        self.waiters.require_room(command.queues)
        waiter = Waiter(command, self._clock.monotonic_ms(), self._loop.create_future(), via=via)
        if command.claim_id:
            waiter.claim = self._claims.claim(command)
            waiter.claim.calls.append(waiter)
        self.waiters.park(waiter)
        if command.claim_id and views.claim_known(self._applier.view, command.worker, command.claim_id, command.queues):
            self._repeats[waiter] = None
        for queue in command.queues:
            if queue not in self._nothing_ready:
                self._check[queue] = None
        waiter.timer = self._loop.call_later(wait_ms / 1000, self._on_wait_over, waiter, 0)
        self._proposer.kick()
        return waiter

    def _on_wait_over(self, waiter: Waiter, looks: int) -> None:
        waiter.expired = True
        if waiter.in_flight or waiter.future.done() or not waiter.ticket:
            return
        if looks == 0 and self._stands_behind(waiter):
            return
        if self._is_owed(waiter):
            waiter.timer = self._loop.call_later(OUTCOME_WAIT_MS / 1000, self._on_outcome_overdue, waiter)
        elif self._may_be_served(waiter, looks):
            waiter.timer = self._loop.call_later(LAST_LOOK_MS / 1000, self._on_wait_over, waiter, looks + 1)
        else:
            self._finish(waiter, ())

    def _is_owed(self, waiter: Waiter) -> bool:
        """Whether its claim may have been granted jobs that it was not told of: to say that there are none would leave
        them with nobody."""
        return waiter in self._repeats or any(call.in_flight or call.in_doubt for call in self._claims.others(waiter))

    def _on_outcome_overdue(self, waiter: Waiter) -> None:
        if waiter.ticket and not waiter.in_flight and not waiter.future.done():
            self._finish(waiter, OutcomeUnknown("what an earlier call of this claim was granted is not known yet"))

    def _look_again(self, waiter: Waiter, looks: int) -> None:
        """What it waited for beyond its time is over."""
        assert waiter.timer is not None
        waiter.timer.cancel()
        self._on_wait_over(waiter, looks)

    def _stands_behind(self, waiter: Waiter) -> bool:
        """Whether an advance that is to settle something will answer it: with jobs, or in `_on_advanced`."""
        if not (self._unsettled or self._settling):
            return False
        (self._behind_next if self._unsettled else self._behind_this)[waiter] = None
        late_s = LAST_LOOKS_MAX * LAST_LOOK_MS / 1000
        waiter.timer = self._loop.call_later(late_s, self._on_wait_over, waiter, LAST_LOOKS_MAX)
        return True

    def _stands(self, waiter: Waiter) -> bool:
        return waiter in self._behind_this or waiter in self._behind_next

    def _may_be_served(self, waiter: Waiter, looks: int) -> bool:
        queues = waiter.command.queues
        if looks == 0 and not self._nothing_ready.issuperset(queues):
            return True
        return looks < LAST_LOOKS_MAX and any(queue in self._check for queue in queues)

    def _finish(self, waiter: Waiter, end: Grants | NotApplied | OutcomeUnknown) -> None:
        self.waiters.remove(waiter)
        for line in (self._repeats, self._behind_next, self._behind_this):
            line.pop(waiter, None)
        if waiter.timer is not None:
            waiter.timer.cancel()
        gone = waiter.abandoned or waiter.future.done()
        if isinstance(end, tuple) and end:
            if gone:
                self._lose(waiter, end)
            else:
                self._claims.hand(waiter)
        if not waiter.in_doubt:
            self._end_call(waiter)
        if gone:
            return
        if isinstance(end, tuple):
            if end:
                self._observe_claim_ms(self._dispatch_ms(waiter, end))
            waiter.future.set_result(end)
        else:
            waiter.future.set_exception(end)

    def _dispatch_ms(self, waiter: Waiter, grants: Grants) -> int:
        """How long the first job of a grant and its claim had both been there: what a long poll waits is not the
        leader's doing."""
        waited_ms = self._clock.monotonic_ms() - waiter.since_ms
        if waited_ms < SHORT_WAIT_MS:
            return waited_ms
        run = views.run(self._applier.view, grants[0][0])
        return waited_ms if run is None else max(0, min(waited_ms, self.now_ms() - run.due_ms))

    def abandon(self, waiter: Waiter) -> None:
        """The caller hung up: nothing is granted to it any more, and what is under way goes straight back."""
        waiter.abandoned = True
        future = waiter.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self._lose(waiter, future.result())  # it was granted in the very pass in which the caller went
        elif not waiter.in_flight:
            self._finish(waiter, ())

    def undelivered(self, waiter: Waiter, grants: Grants) -> None:
        """The answer with these jobs surely did not reach its caller. They become ready again, the attempt not counted:
        now, or when the last call of the same claim that is open has not taken them either.

        Not when another answer with them may have been delivered. What this reign does not know for sure is left to the
        lease.
        """
        self._lose(waiter, grants)

    def no_room(self, waiter: Waiter, rest: Grants) -> None:
        """The answer holds what was granted up to these, which go back likewise."""
        self._release(self._claims.lose_rest(waiter.serial, rest) if waiter.claim is not None else rest)

    def mark(self, waiter: Waiter) -> str:
        """A name for this call that no other has, of any reign: for the node that passed it on."""
        return f"{self._epoch}.{waiter.serial}"

    def undelivered_elsewhere(self, mark: str, leases: Sequence[tuple[str, int]]) -> bool:
        """As `undelivered`, for a node that passed a claim with a claim id on; `leases`: ids and tokens of its jobs.

        Whether they are to be ended by whoever asks. A second call has the same answer.
        """
        epoch, _, serial = mark.partition(".")
        if not self.open or epoch != str(self._epoch) or not serial.isdecimal() or len(serial) > 20:
            return False
        view = self._applier.view
        grants = [(seq, token) for job_id, token in leases if (seq := views.job_seq(view, job_id)) is not None]
        return self._claims.lose(int(serial), tuple(grants)) != ()

    def _lose(self, waiter: Waiter, grants: Grants) -> None:
        self._release(self._claims.lose(waiter.serial, grants) if waiter.claim is not None else grants)

    def _end_call(self, waiter: Waiter) -> None:
        """This call is over: what was lost by others, and was to be its, has nobody else now."""
        self._release(self._claims.end(waiter))

    def _release(self, grants: Grants) -> None:
        view = self._applier.view
        releases = [
            ReleaseJob(spec.id, token, 0, None) for seq, token in grants if (spec := views.spec(view, seq)) is not None
        ]
        if releases:
            self._proposer.send_kept(releases)


def _is_silent(peer: PeerStatus) -> bool:
    return not peer.connected or peer.last_heard_ms is None or peer.last_heard_ms > SILENT_MS


def _weight(waiter: Waiter) -> int:
    """What a claim counts of `GRANT_JOBS_MAX`."""
    command = waiter.command
    return command.max_jobs + len(command.queues) // QUEUES_A_JOB


def _is_one_ready(outcome: EntryOutcome) -> bool:
    """Nothing but a submit of a job that is ready, and stays so: no moment comes sooner than before."""
    if len(outcome.changes) != 1:
        return False
    change = outcome.changes[0]
    return type(change) is JobSubmitted and change.run.state == S_READY and change.spec.expires_at_ms is None
