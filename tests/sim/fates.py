"""What must become of each moment that a schedule names, reckoned beside the machine from the log [S10, S12-S14].

An oracle: it follows jobs, queues and what people said by the changes that entries wrote; it names the moments and says
what each comes to by itself, from docs/contract.md, "Schedules". Of a firing it believes what only the leader knows:
how far the jitter of a moment goes (within its bounds, and always the same), and since when it has been at work on what
is due (not before its reign). Every firing must go on exactly where the last one ended. Nothing here acts, and nothing
scans: each entry costs what it changed. Next to read: `judge.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tests.sim.clients import CRONS

from horae_node.core import schedule_views
from horae_node.core.changes import (
    Change,
    EpochRaised,
    JobChanged,
    JobGranted,
    JobSubmitted,
    QueueSet,
    ScheduleDeleted,
    ScheduleMoved,
    SchedulePut,
    TriggerNoted,
)
from horae_node.core.commands import (
    BackfillSchedule,
    Command,
    DeleteSchedule,
    FireSchedule,
    Header,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
)
from horae_node.core.decide.schedules import ANY_VERSION
from horae_node.core.model import FINISHED, Fate, JobSpec, Missed, Occurrence, Overlap, ScheduleSpec, State
from horae_node.core.results import EntryOutcome, Outcome, Rejected, ScheduleChanged, TriggersRan
from horae_node.core.tables import trigger_id
from horae_storage.kv import View

ASKED_MS: Final = 12_000
"""A change reckons the first moment of its rule when it is asked for, and takes effect this much later at most."""

AHEAD_MS: Final = 30
"""How far cluster time may be ahead of true time (`judge.AHEAD_MS`)."""

ON_TIME_MS: Final = 1000
"""What a leader that is there deals with within this is not late."""

PUNCTUAL_MS: Final = 300
"""Once all is well nothing that is due waits longer: some 50 ms were seen. Callers come twice a second, and whatever
they ask for lets a leader look, also one that would not wake by itself."""

LAG_MS: Final = 100
"""Cluster time that is further behind may catch up by a leap, and with it triggers."""

STEADY_MS: Final = 2000
"""A reign is new for so long."""

WAITING: Final = (State.PENDING, State.READY)


class Rule:
    """The moments that a schedule names: all of the simulator's come at even steps."""

    def __init__(self, spec: ScheduleSpec) -> None:
        self.spec = spec
        self._step_ms = CRONS[spec.cron] if spec.cron is not None else spec.every_ms or 0
        self._anchor_ms = 0 if spec.cron is not None else spec.starts_ms or 0

    def at_or_after(self, moment_ms: int) -> int | None:
        from_ms = max(moment_ms, self.spec.starts_ms or 0)
        behind_ms = (from_ms - self._anchor_ms) % self._step_ms
        found_ms = from_ms + (self._step_ms - behind_ms) % self._step_ms
        return None if self.spec.ends_ms is not None and found_ms > self.spec.ends_ms else found_ms

    def names_as(self, other: Rule) -> bool:
        """The same moments."""
        return _times(self.spec) == _times(other.spec)

    def fits(self, one: Occurrence) -> bool:
        """A moment that it names, due within its jitter, and before the next one."""
        following_ms = self.at_or_after(one.nominal_ms + 1)
        latest_ms = one.nominal_ms + self.spec.jitter_ms
        if following_ms is not None:
            latest_ms = min(latest_ms, following_ms - 1)
        return self.at_or_after(one.nominal_ms) == one.nominal_ms <= one.fire_ms <= latest_ms and not one.note


def _times(spec: ScheduleSpec) -> tuple[object, ...]:
    return spec.cron, spec.every_ms, spec.starts_ms, spec.ends_ms, spec.jitter_ms, spec.timezone


class Jobs:
    """What overlap, unique keys and depths look at: the jobs and queues, as the log made them."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        """Of all that schedules ever made."""
        self.last_seq = 0
        """The last number that was given to a job or a schedule."""
        self.asked_to_stop: set[int] = set()
        self._live: dict[str, dict[int, None]] = {}
        self._unique: dict[tuple[str, str], int] = {}
        self._depth: dict[str, int] = {}
        self._depth_max: dict[str, int | None] = {}
        self._specs: dict[int, JobSpec] = {}
        self._states: dict[int, tuple[int, int]] = {}
        """(state, attempt) by number."""

    def take(self, change: Change) -> None:
        kind = type(change)
        if kind is JobGranted:
            self._move(change.seq, change.after.state, change.after.attempt)  # type: ignore[union-attr]
        elif kind is JobChanged:
            self._move(change.handle.seq, change.after.state, change.after.attempt)  # type: ignore[union-attr]
            if change.after.cancel_requested:  # type: ignore[union-attr]
                self.asked_to_stop.add(change.handle.seq)  # type: ignore[union-attr]
        elif kind is JobSubmitted:
            self._specs[change.seq] = change.spec  # type: ignore[union-attr]
            self.last_seq = change.seq  # type: ignore[union-attr]
            if change.spec.schedule_id is not None:  # type: ignore[union-attr]
                self.ids.add(change.spec.id)  # type: ignore[union-attr]
            self._move(change.seq, change.run.state, 0)  # type: ignore[union-attr]
        elif kind is QueueSet:
            self._depth_max[change.queue] = change.after.max_depth  # type: ignore[union-attr]
        elif kind is SchedulePut and change.before is None:  # type: ignore[union-attr]
            self.last_seq = change.after.number  # type: ignore[union-attr]

    def _move(self, seq: int, state: int, attempt: int) -> None:
        spec = self._specs[seq]
        before = self._states.get(seq, (State.SUCCEEDED, 0))[0]
        self._states[seq] = state, attempt
        if before == state:
            return
        self._depth[spec.queue] = self._depth.get(spec.queue, 0) + (state in WAITING) - (before in WAITING)
        if (state in FINISHED) == (before in FINISHED):
            return
        lives = state not in FINISHED
        if spec.schedule_id is not None:
            live = self._live.setdefault(spec.schedule_id, {})
            _ = live.setdefault(seq) if lives else live.pop(seq, None)
        if spec.unique_key is not None:
            key = spec.queue, spec.unique_key
            _ = self._unique.setdefault(key, seq) if lives else self._unique.pop(key, None)

    def live(self, schedule_id: str) -> list[int]:
        return list(self._live.get(schedule_id, ()))

    def schedule_of(self, seq: int) -> str | None:
        spec = self._specs.get(seq)
        return None if spec is None else spec.schedule_id

    def has_key(self, job: JobSpec) -> bool:
        """An unfinished one has its unique key."""
        return job.unique_key is not None and (job.queue, job.unique_key) in self._unique

    def room(self, queue: str) -> int | None:
        """How many more the queue takes; None: as many as come."""
        most = self._depth_max.get(queue)
        return None if most is None else most - self._depth.get(queue, 0)

    def waits_in(self, queue: str, seq: int) -> bool:
        """It has a place there: an edit may have sent later ones elsewhere."""
        return self._specs[seq].queue == queue and self._states[seq][0] in WAITING

    def is_new(self, seq: int) -> bool:
        """It waits, and has not been started."""
        state, attempt = self._states.get(seq, (State.SUCCEEDED, 0))
        return state in WAITING and attempt == 0

    def is_live(self, seq: int) -> bool:
        return self._states[seq][0] not in FINISHED


@dataclass(slots=True, eq=False)
class Course:
    """A schedule from its making to its end, as it must be."""

    number: int
    rule: Rule
    version: int
    paused_ms: int | None
    next: Occurrence | None
    since_ms: int
    """When that became the next one."""
    from_ms: int = 0
    """Where the rule of now begins to count."""
    made_up: int = 0
    queued_seq: int = 0
    lines: dict[int, int] = field(default_factory=dict)
    """The ledger: by nominal moment, its fate."""
    fires: dict[int, int] = field(default_factory=dict)
    """By nominal moment of the rule of now: when it is due."""

    @property
    def spec(self) -> ScheduleSpec:
        return self.rule.spec

    def has_run(self, occurrences: Sequence[Occurrence]) -> bool:
        return all(self.lines.get(one.nominal_ms) == Fate.RAN for one in occurrences)


class Turn:
    """The triggers of one command, one after the other: what must come of them."""

    def __init__(self, course: Course, jobs: Jobs, *, now_ms: int, seen_ms: int, reign_ms: int) -> None:
        """`seen_ms`: since when the leader says that it was at work on what is due; `reign_ms`: since when it led."""
        spec = course.spec
        self._course = course
        self._spec = spec
        self._jobs = jobs
        self._now_ms = now_ms
        self._seen_ms = min(seen_ms, now_ms)
        self._reign_ms = reign_ms
        self._one_waits = jobs.is_new(course.queued_seq)
        self._has_key = jobs.has_key(spec.job)
        self._room = jobs.room(spec.job.queue)
        self._live = jobs.live(spec.id)
        self.lines: list[tuple[int, int]] = []
        self.made: list[tuple[int, str]] = []
        self.waits: dict[int, list[int]] = {}
        """Of those made that must wait: for whom."""
        self.cancelled: list[int] = []

    def settle(self, one: Occurrence, later: Occurrence | None, *, at_once: bool) -> None:
        """`later`: the moment after it; `at_once`: that comes by the same command."""
        course, spec = self._course, self._spec
        if course.lines.get(one.nominal_ms, Fate.PAUSED) != Fate.PAUSED:
            return  # it has come to something
        if course.paused_ms is not None:
            self._line(one, Fate.PAUSED)
        elif at_once and spec.overlap == Overlap.CANCEL:
            self._line(one, Fate.FOLDED)
        elif self._late_ms(one) <= spec.grace_ms:
            course.made_up = 0
            self._overlap(one)
        elif spec.missed == Missed.SKIP or self._late_ms(one) > spec.catch_up_ms:
            self._line(one, Fate.SKIPPED_MISSED)
        elif spec.missed == Missed.LATEST and later is not None and self._late_ms(later) > spec.grace_ms:
            self._line(one, Fate.FOLDED)
        elif spec.missed == Missed.ALL and course.made_up >= spec.max_catch_up:
            self._line(one, Fate.DROPPED_LIMIT)
        else:
            course.made_up += 1
            self._overlap(one)

    def _late_ms(self, one: Occurrence) -> int:
        """For want of a leader: none while there is one, and it takes a second at most."""
        if one.fire_ms >= max(self._reign_ms, self._now_ms - ON_TIME_MS):
            return 0
        return self._seen_ms - one.fire_ms

    def _overlap(self, one: Occurrence) -> None:
        overlap = self._spec.overlap
        if not self._live or overlap == Overlap.ALLOW:
            self.make(one)
        elif overlap == Overlap.SKIP or (overlap == Overlap.QUEUE and self._one_waits):
            self._line(one, Fate.SKIPPED_OVERLAP)
        elif overlap == Overlap.QUEUE:
            earlier = list(self._live)
            if self.make(one):
                seq = self.made[-1][0]
                self._one_waits, self._course.queued_seq, self.waits[seq] = True, seq, earlier
        else:
            self.cancelled, self._live = self._live, []
            if self._room is not None:
                self._room += sum(self._jobs.waits_in(self._spec.job.queue, seq) for seq in self.cancelled)
            self.make(one)

    def make(self, one: Occurrence) -> bool:
        """A new job, or why there is none."""
        job_id = trigger_id(self._spec.id, one.nominal_ms)
        if job_id in self._jobs.ids:
            self._line(one, Fate.RAN)
        elif self._has_key:
            self._line(one, Fate.FOLDED)
        elif self._room is not None and self._room <= 0:
            self._line(one, Fate.DROPPED_LIMIT)
        else:
            seq = self._jobs.last_seq + 1 + len(self.made)
            self.made.append((seq, job_id))
            self._live.append(seq)
            self._has_key = self._spec.job.unique_key is not None
            self._room = None if self._room is None else self._room - 1
            self._line(one, Fate.RAN)
            return True
        return False

    def _line(self, one: Occurrence, fate: Fate) -> None:
        self._course.lines[one.nominal_ms] = int(fate)
        self.lines.append((one.nominal_ms, int(fate)))


class Fates:
    """All schedules of a run."""

    def __init__(self, report: Callable[[str], None], count: Callable[[str], None]) -> None:
        self._report = report
        self._count = count
        self.courses: dict[str, Course] = {}
        self.versions: dict[str, set[int]] = {}
        """By schedule: those that it ever had."""
        self.steady_from_ms: int | None = None
        """True time since when all is well, and some node leads; None: there may be faults."""
        self._jobs = Jobs()
        self._waits: dict[int, list[int]] = {}
        """By number of a job that was made to wait: for whom."""
        self._reign_ms = 0
        """By cluster time: when the reign of now began."""
        self._opened_ms = 0
        """The earliest time that its leader has read: the machine keeps the latest, which may be of another one."""
        self._now_ms = 0
        self._true_ms = 0
        self._lagged = False
        """Cluster time was behind at the entry before: where clocks lie and honest ones are not heard, it may be."""
        self._index = 0

    # ------------------------------------------------------------------ entries

    def on_entry(
        self, index: int, true_ms: int, outcome: EntryOutcome, entry: Callable[[], tuple[Header, Sequence[Command]]]
    ) -> None:
        """The first time that it was applied anywhere. `entry`: what it is, asked for where that matters."""
        self._lagged = self._true_ms - self._now_ms > LAG_MS
        self._index, self._true_ms, self._now_ms = index, true_ms, outcome.now_ms
        changes, at = outcome.changes, 0
        if any(_is_of_schedules(one) for one in outcome.outcomes):
            header, commands = entry()
            self._opened_ms = min(self._opened_ms, header.now_ms)
            for command, result in zip(commands, outcome.outcomes, strict=True):
                judged = _JUDGED.get(type(command))
                if judged is not None:
                    at = self._on_command(judged, command, result, changes, at)
        for change in changes[at:]:
            self._take(change)

    def _on_command(self, judged: _Judged, command: Any, result: Outcome, changes: Sequence[Change], at: int) -> int:
        """What came before it is taken in, then it is judged, then what it did is taken in. Where that ends."""
        schedule_id = command.spec.id if isinstance(command, PutSchedule) else command.schedule_id
        course = self.courses.get(schedule_id)
        begin, end = self._own_changes(schedule_id, course, command, result, changes, at)
        for change in changes[at:begin]:
            self._take(change)
        own = changes[begin:end]
        if isinstance(result, Rejected):
            self._on_rejected(course, command, result)
        elif course is None and not isinstance(command, PutSchedule):
            self._report(f"{command} was taken, and there is no such schedule [S12]")
        elif not (isinstance(result, ScheduleChanged) and result.repeated):
            judged(self, course, command, own)
        for change in own:
            self._take(change)
        return end

    def _own_changes(
        self,
        schedule_id: str,
        course: Course | None,
        command: Command,
        result: Outcome,
        changes: Sequence[Change],
        at: int,
    ) -> tuple[int, int]:
        """Which of an entry's changes, from `at` on, a command made: side by side, the schedule's own is the last."""
        if isinstance(result, Rejected) or (isinstance(result, ScheduleChanged) and result.repeated):
            return at, at
        if isinstance(command, BackfillSchedule) and course is not None and course.has_run(command.occurrences):
            return at, at
        end = next(place for place in range(at, len(changes)) if _is_end(changes[place], schedule_id)) + 1
        begin = end - 1
        if isinstance(command, FireSchedule | BackfillSchedule):
            while begin > at and self._is_part(changes[begin - 1], schedule_id, course):
                begin -= 1
        return begin, end

    def _is_part(self, change: Change, schedule_id: str, course: Course | None) -> bool:
        """A line, a job, or (of a schedule whose triggers cancel) the cancel of a job, of this schedule."""
        if isinstance(change, TriggerNoted):
            return change.schedule_id == schedule_id
        if isinstance(change, JobSubmitted):
            return change.spec.schedule_id == schedule_id and change.spec.nominal_ms is not None
        if not isinstance(change, JobChanged) or course is None or course.spec.overlap != Overlap.CANCEL:
            return False
        is_cancel = change.after.state == State.CANCELLED or change.after.cancel_requested
        return is_cancel and self._jobs.schedule_of(change.handle.seq) == schedule_id

    def _take(self, change: Change) -> None:
        self._jobs.take(change)
        if type(change) is JobGranted:
            earlier = self._waits.pop(change.seq, ())
            if any(map(self._jobs.is_live, earlier)):
                self._report(f"job {change.seq} was granted before those that it was to wait for had ended [S14]")
        elif type(change) is EpochRaised:
            self._opened_ms = self._reign_ms = self._now_ms
            if self.steady_from_ms is not None:
                self.steady_from_ms = self._true_ms

    # ------------------------------------------------------------------ what people say

    def _on_rejected(self, course: Course | None, command: Command, result: Rejected) -> None:
        """What should have been taken is a finding too."""
        version = 0 if course is None else course.version
        if isinstance(command, PutSchedule) and result.code == "version" and _may_replace(command, version):
            self._report(f"{command.spec.id}: version {command.if_version} was refused, it is {version} [S15]")
        if isinstance(command, FireSchedule) and result.code == "conflict" and course is not None:
            latest_ms = max(one.fire_ms for one in command.occurrences)
            if course.next == command.occurrences[0] and latest_ms <= self._now_ms:
                self._report(f"{command} was refused, and has come [S10]")

    def _on_put(self, course: Course | None, command: PutSchedule, own: Sequence[Change]) -> None:
        rule, now_ms = Rule(command.spec), self._now_ms
        name = command.spec.id
        (put,) = own
        assert isinstance(put, SchedulePut)
        if not _may_replace(command, 0 if course is None else course.version):
            self._report(f"{name} was replaced, though its version was not {command.if_version} [S15]")
        first = command.first
        if course is None or first != course.next or not course.rule.names_as(rule):
            self._check_first(name, rule, first)  # else it has still what it had, be it the last one of an older rule
        paused_ms = now_ms if command.paused else None
        self._count("schedule edited" if course is not None else "schedule made")
        if course is None:
            course = self.courses[name] = Course(put.after.number, rule, self._index, paused_ms, first, now_ms)
        else:
            self._require_nothing_due(course, "was replaced")
            if first != course.next:
                course.from_ms = now_ms + 1 if first is None else first.nominal_ms
                first = self._last_of_old(course, first) or first
            course.rule, course.paused_ms, course.next, course.since_ms = rule, paused_ms, first, now_ms
            course.made_up = 0
            course.fires.clear()
        self._note_version(course)
        self._require_next(course, put.after.next)

    def _check_first(self, name: str, rule: Rule, first: Occurrence | None) -> None:
        now_ms = self._now_ms
        if first is None or first.nominal_ms > now_ms:
            if (None if first is None else first.nominal_ms) != rule.at_or_after(now_ms + 1):
                self._report(f"{name} begins with {first} after {now_ms}, not {rule.at_or_after(now_ms + 1)} [S10]")
        elif first.nominal_ms < now_ms - ASKED_MS:
            self._report(f"{name} begins with {first} before it was made, at {now_ms} [S10]")
        if first is not None and not rule.fits(first):
            self._report(f"{name} does not name {first} [S10]")

    def _last_of_old(self, course: Course, first: Occurrence | None) -> Occurrence | None:
        """What has had its time by the old rule, and waits for its jitter: it comes before the new rule's first."""
        waiting = course.next
        if waiting is None or waiting.nominal_ms > self._now_ms:
            return None
        if first is None:
            return waiting
        if first.nominal_ms <= waiting.nominal_ms:
            self._report(f"{course.spec.id} begins anew with {first}, before {waiting} that is to come yet [S10]")
        return waiting._replace(fire_ms=min(waiting.fire_ms, first.nominal_ms - 1))

    def _on_pause(self, course: Course, command: PauseSchedule, own: Sequence[Change]) -> None:
        """Also what has had its time, and was not dealt with yet, is of the pause."""
        next_ms = self._now_ms if course.next is None else course.next.nominal_ms
        if course.paused_ms is None:
            course.paused_ms = min(self._now_ms, next_ms)
        self._note_version(course)
        self._moved(course, own)

    def _on_resume(self, course: Course, command: ResumeSchedule, own: Sequence[Change]) -> None:
        rewind = command.rewind
        assert course.paused_ms is not None
        if rewind is not None and rewind.nominal_ms < max(course.paused_ms, course.from_ms):
            rewind = None  # of an earlier pause, or rule
        if rewind is None:
            self._require_nothing_due(course, "was resumed")
        else:
            self._count("schedule rewound")
            if rewind.nominal_ms != course.rule.at_or_after(
                max(course.paused_ms, course.from_ms)
            ) or not course.rule.fits(rewind):
                self._report(f"{course.spec.id}, paused since {course.paused_ms}, goes back to {rewind} [S13]")
            if course.next is None or rewind.nominal_ms < course.next.nominal_ms:
                course.next, course.since_ms = rewind, self._now_ms
        course.paused_ms, course.made_up = None, 0
        self._note_version(course)
        self._moved(course, own)

    def _on_delete(self, course: Course, command: DeleteSchedule, own: Sequence[Change]) -> None:
        self._count("schedule deleted")
        del self.courses[course.spec.id]

    def _require_nothing_due(self, course: Course, what: str) -> None:
        if course.next is not None and course.next.fire_ms <= self._now_ms:
            self._report(f"{course.spec.id} {what}, and {course.next} had come before [S10]")

    def _note_version(self, course: Course) -> None:
        course.version = self._index
        self.versions.setdefault(course.spec.id, set()).add(self._index)

    # ------------------------------------------------------------------ what triggers do

    def _on_fire(self, course: Course, command: FireSchedule, own: Sequence[Change]) -> None:
        if command.seen_ms < self._opened_ms:
            self._report(f"{command}: nobody led at {command.seen_ms}, the reign began at {self._opened_ms} [S13]")
        self._check_punctual(course)
        sequence = [*command.occurrences, *([] if command.following is None else [command.following])]
        self._check_sequence(course, sequence, ends=command.following is None)
        turn = self._turn(course, command.seen_ms)
        for place, one in enumerate(command.occurrences):
            if one.fire_ms > min(self._now_ms, self._true_ms + AHEAD_MS):
                self._report(f"{course.spec.id}: {one} came early, at {self._now_ms} [S11]")
            later = sequence[place + 1] if place + 1 < len(sequence) else None
            turn.settle(one, later, at_once=place + 1 < len(command.occurrences))
        course.next, course.since_ms = command.following, self._now_ms
        self._check_turn(course, turn, own)
        self._moved(course, own)

    def _turn(self, course: Course, seen_ms: int) -> Turn:
        return Turn(course, self._jobs, now_ms=self._now_ms, seen_ms=seen_ms, reign_ms=self._reign_ms)

    def _check_sequence(self, course: Course, sequence: list[Occurrence], *, ends: bool) -> None:
        """They are the moments that the schedule names, one after the other, from its next one on."""
        name, rule = course.spec.id, course.rule
        if sequence[0] != course.next:
            self._report(f"{name}: {sequence[0]} came, and {course.next} is its next one [S10]")
        for one, other in pairwise(sequence):
            after_ms = rule.at_or_after(max(one.nominal_ms + 1, course.from_ms))
            if other.nominal_ms != after_ms or not rule.fits(other):
                self._report(f"{name}: after {one} comes {after_ms}, not {other} [S10]")
            if course.fires.setdefault(other.nominal_ms, other.fire_ms) != other.fire_ms:
                self._report(f"{name}: {other} had another jitter before [S10]")
        if ends and rule.at_or_after(max(sequence[-1].nominal_ms + 1, course.from_ms)) is not None:
            self._report(f"{name} ends after {sequence[-1]}, and names more [S10]")

    def _check_punctual(self, course: Course) -> None:
        """[L1]: once all is well, nothing waits."""
        if self.steady_from_ms is None or course.next is None or self._lagged:
            return
        due_ms = max(course.next.fire_ms, course.since_ms)
        late_ms = min(self._true_ms, self._now_ms) - due_ms
        if due_ms > self.steady_from_ms + STEADY_MS and late_ms > PUNCTUAL_MS:
            self._report(f"{course.spec.id}: {course.next} came {late_ms} ms late, and all was well [L1]")

    def _on_backfill(self, course: Course, command: BackfillSchedule, own: Sequence[Change]) -> None:
        turn = self._turn(course, self._now_ms)
        for one in command.occurrences:
            if course.lines.get(one.nominal_ms) != Fate.RAN:
                turn.make(one)
                self._count("trigger backfilled")
        self._check_turn(course, turn, own)
        if own:
            self._moved(course, own)

    def _check_turn(self, course: Course, turn: Turn, own: Sequence[Change]) -> None:
        name = course.spec.id
        lines = [(one.nominal_ms, one.trigger.fate) for one in own if isinstance(one, TriggerNoted)]
        if lines != turn.lines:
            self._report(f"{name} at {self._now_ms}: {_told(lines)} and not {_told(turn.lines)} [S10, S13, S14]")
        for _, fate in lines:
            self._count(f"trigger {Fate(fate).name.lower()}")
        made = [(one.seq, one.spec.id) for one in own if isinstance(one, JobSubmitted)]
        if made != turn.made:
            self._report(f"{name} made {made} and not {turn.made} [S10]")
        stopped = {one.handle.seq for one in own if isinstance(one, JobChanged)} | self._jobs.asked_to_stop
        if not stopped.issuperset(turn.cancelled):
            self._report(f"{name} was to cancel {turn.cancelled} [S14]")
        self._waits.update(turn.waits)

    def _moved(self, course: Course, own: Sequence[Change]) -> None:
        moved = own[-1]
        assert isinstance(moved, ScheduleMoved)
        self._require_next(course, moved.after.next)

    def _require_next(self, course: Course, found: Occurrence | None) -> None:
        if found != course.next:
            self._report(f"{course.spec.id} has {found} as its next, not {course.next} [S10]")

    # ------------------------------------------------------------------ the end

    def is_over(self) -> bool:
        """No schedule has anything before it."""
        return all(course.next is None for course in self.courses.values())

    def check_end(self, view: View, true_ms: int) -> None:
        """All that has come, came to something; and the ledgers say just what must have become of it."""
        now_ms = self._now_ms + true_ms - self._true_ms
        for name, course in self.courses.items():
            found = schedule_views.find(view, name)
            if found is None:
                self._report(f"schedule {name} is gone [S1]")
                continue
            if course.next is not None and course.next.fire_ms <= now_ms - PUNCTUAL_MS:
                self._report(f"schedule {name} has still {course.next} before it [L3]")
            ledger = schedule_views.ledger(view, found.run, 0, 2**62, len(course.lines) + 1)
            lines = [(nominal_ms, line.fate) for nominal_ms, line in ledger]
            if lines != sorted(course.lines.items()):
                self._report(
                    f"the ledger of {name} has {_told(lines)}, not {_told(sorted(course.lines.items()))} [S10]"
                )
        for name in schedule_views.ids(view, "", len(self.courses) + 1):
            schedule = schedule_views.schedule(view, name)
            if schedule.spec.id not in self.courses:
                self._report(f"schedule {schedule.spec.id} is there, and must not be [S2, S12]")


_Judged = Callable[[Fates, Any, Any, Sequence[Change]], None]
_JUDGED: Final[dict[type, _Judged]] = {
    PutSchedule: Fates._on_put,
    PauseSchedule: Fates._on_pause,
    ResumeSchedule: Fates._on_resume,
    DeleteSchedule: Fates._on_delete,
    FireSchedule: Fates._on_fire,
    BackfillSchedule: Fates._on_backfill,
}


def _is_of_schedules(outcome: Outcome) -> bool:
    if isinstance(outcome, Rejected):
        return outcome.code in ("version", "conflict")
    return isinstance(outcome, TriggersRan | ScheduleChanged)


def _is_end(change: Change, schedule_id: str) -> bool:
    if isinstance(change, SchedulePut):
        return change.spec.id == schedule_id
    return isinstance(change, ScheduleMoved | ScheduleDeleted) and change.schedule_id == schedule_id


def _may_replace(command: PutSchedule, version: int) -> bool:
    """Its guard lets it. `version`: 0 for none."""
    guard = command.if_version
    return guard is None or guard == version or (guard == ANY_VERSION and version > 0)


def _told(lines: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{nominal_ms}:{Fate(fate).name.lower()}" for nominal_ms, fate in lines) or "nothing"
