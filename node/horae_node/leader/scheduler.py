"""What schedules ask for that has come: the commands that the leader proposes for them.

Only here, and for people's questions, are calendars and zones looked at, by the leader alone: what it reckons is
written into its commands, and the machine needs neither. The trigger that the log has as a schedule's next counts,
whatever this node's data say of it; what comes after it is by this node's data. A schedule that cannot be reckoned here
(its zone is not among them) is told of and waits for a leader that can: it holds up no other.
Not here: what becomes of a trigger (`core/decide/schedules.py`), calendars (`cron.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from horae_node import cron, translate
from horae_node.clock import Clock
from horae_node.core import schedule_views
from horae_node.core.commands import FireSchedule
from horae_node.core.decide.schedules import LIVE_MAX
from horae_node.core.model import Occurrence, Overlap, ScheduleRun, ScheduleSpec
from horae_node.core.schedule_views import Turn
from horae_node.logs import get_log
from horae_storage.kv import View

WORK_MAX: Final = 60
"""Triggers that one entry deals with, and jobs that it may cancel for them: some five to ten milliseconds of each
node's loop. Everybody's claims, endings and heartbeats wait for the entry under way: with 150, jobs of a herd were
handed out at a fifth of the usual speed while it was fired."""
RECKON_MS_MAX: Final = 10
"""Of reckoning before an entry leaves with what there is: a moment that no other schedule has asked for takes some
150 us, one that is known 3. Lines of which each is new do not hold up the first jobs."""
OCCURRENCES_MAX: Final = 40
"""Triggers of one schedule in one command: what an outage left behind is worked off in steps, others between them."""
AGAIN_MS: Final = 10_000
"""Before all that is due is looked through from the first on: what was put in before the place up to which nothing can
be reckoned comes no later than that."""
PAGES_MAX: Final = 8
"""So many times `WORK_MAX` turns one look reads, half a millisecond, where none of them can be reckoned."""
LOGGED_MAX: Final = 100
"""Schedules that cannot be reckoned, each with a line in the log: a hundred say what a hundred thousand would."""

log = get_log("schedules")


class Firing(NamedTuple):
    """A command; to which queue it brings how many jobs, unless a policy or an edit is against it; and its share of
    `WORK_MAX`."""

    command: FireSchedule
    queue: str
    jobs: int
    work: int


class Scheduler:
    """One for a node; `begin` with each reign."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Nothing is known to be out of reach."""
        self._broken: dict[str, Turn] = {}
        self._known: dict[str, Turn] = {}
        """What `_broken` was before all was looked through anew."""
        self._passed: Turn | None = None
        """Up to here all turns are those of schedules that cannot be reckoned."""
        self._passed_since_ms = self._clock.monotonic_ms()
        self._logged = 0

    @property
    def broken(self) -> int:
        """Schedules that have a trigger that has come, and were found to be beyond this node's zone data."""
        return len(self._broken)

    def again_in_ms(self) -> int | None:
        """Until `next_firing` begins with the first turn of all; None: it does so each time."""
        return None if self._passed is None else max(0, self._passed_since_ms + AGAIN_MS - self._clock.monotonic_ms())

    def next_firing(self, view: View) -> int | None:
        """When the next schedule is to be looked at, those aside that cannot be reckoned; None: there is none."""
        if self.again_in_ms() == 0:
            self._known, self._broken, self._passed = self._broken, {}, None
        turns = schedule_views.turns(view, self._passed, None, 1)
        return turns[0].look_ms if turns else None

    def firings(self, view: View, now_ms: int, seen_ms: int) -> list[Firing]:
        """For the schedules due for longest, as many as one entry may have. Empty: none that it came to can be
        reckoned, and `next_firing` says whether there are others.

        `seen_ms`: since when this leader has been at work on what is due.
        """
        found: list[Firing] = []
        left = WORK_MAX
        begun_ms = self._clock.monotonic_ms()
        for turn in self._turns(view, now_ms):
            firing = self._firing(view, turn, now_ms, seen_ms, left)
            if firing is not None:
                found.append(firing)
                left -= firing.work
            elif not found:
                self._pass(turn)
            if left <= 0 or self._clock.monotonic_ms() - begun_ms >= RECKON_MS_MAX:
                break
        return found

    def _turns(self, view: View, now_ms: int) -> Iterator[Turn]:
        after = self._passed
        for _ in range(PAGES_MAX):
            page = schedule_views.turns(view, after, now_ms, WORK_MAX)
            yield from page
            if len(page) < WORK_MAX:
                return
            after = page[-1]

    def _pass(self, turn: Turn) -> None:
        if self._passed is None:
            self._passed_since_ms = self._clock.monotonic_ms()
        self._passed = turn

    def _firing(self, view: View, turn: Turn, now_ms: int, seen_ms: int, most: int) -> Firing | None:
        schedule_id = turn.schedule_id
        if turn in (self._broken.get(schedule_id), self._known.get(schedule_id)):
            self._broken[schedule_id] = turn
            return None
        spec, run = schedule_views.schedule(view, schedule_id)
        try:
            command = fire_command(spec, run, now_ms, seen_ms, min(most, OCCURRENCES_MAX))
        except cron.CronError as error:
            self._tell(schedule_id, error)
            self._broken[schedule_id] = turn
            return None
        self._broken.pop(schedule_id, None)
        triggers = len(command.occurrences)
        cancelled = len(schedule_views.live(view, schedule_id, LIVE_MAX)) if spec.overlap == Overlap.CANCEL else 0
        return Firing(command, spec.job.queue, 0 if run.paused_ms is not None else triggers, triggers + cancelled)

    def _tell(self, schedule_id: str, error: cron.CronError) -> None:
        self._logged += 1
        if self._logged <= LOGGED_MAX:
            log.warning("schedule_cannot_be_reckoned", schedule=schedule_id, reason=str(error))


def fire_command(spec: ScheduleSpec, run: ScheduleRun, now_ms: int, seen_ms: int, most: int) -> FireSchedule:
    """All triggers that have come, at most so many, and the one after them. Raises: `CronError`."""
    assert run.next is not None
    come = [run.next]
    while (following := following_occurrence(spec, come[-1], run.from_ms)) is not None:
        if following.fire_ms > now_ms or len(come) == most:
            break
        come.append(following)
    return FireSchedule(spec.id, tuple(come), following, seen_ms)


def next_occurrence(spec: ScheduleSpec, after_ms: int) -> Occurrence | None:
    """The first one whose nominal moment is later. Raises: `CronError`."""
    rule = translate.rule_of(spec)
    return _occurrence(spec, rule, cron.after(rule, after_ms))


def following_occurrence(spec: ScheduleSpec, come: Occurrence, from_ms: int = 0) -> Occurrence | None:
    """The one after that, which another leader may have reckoned by other zone data. Before `from_ms` another rule
    counted: it may have named that one, and what this one names there is not its own. Raises: `CronError`."""
    rule = translate.rule_of(spec)
    if come.nominal_ms < from_ms:
        return _occurrence(spec, rule, cron.after(rule, from_ms - 1))
    return _occurrence(spec, rule, cron.following(rule, come.nominal_ms, come.offset_ms))


def _occurrence(spec: ScheduleSpec, rule: cron.Rule, found: cron.Occurrence | None) -> Occurrence | None:
    if found is None:
        return None
    jitter_ms = cron.jitter_ms(rule, found.nominal_ms, spec.jitter_ms) if spec.jitter_ms else 0
    note = found.note if found.kind == "dst_skipped" else ""
    offset_ms = cron.offset_ms(rule, found.nominal_ms)
    return Occurrence(found.nominal_ms, found.nominal_ms + jitter_ms, note, offset_ms)
