"""What schedules ask for that has come: the commands that the leader proposes for them.

Only here, and for people's questions, are calendars and zones looked at, by the leader alone: what it reckons is
written into its commands, and the machine needs neither. A schedule whose triggers cannot be reckoned on this node (a
zone that its data does not know) is told of, and looked at again later: it holds up no other.
Not here: what becomes of a trigger (`core/decide/schedules.py`), calendars (`cron.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from horae_node import cron, translate
from horae_node.clock import Clock
from horae_node.core import schedule_views
from horae_node.core.commands import FireSchedule
from horae_node.core.decide.schedules import LIVE_MAX
from horae_node.core.model import Occurrence, Overlap, ScheduleRun, ScheduleSpec
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
"""Before a schedule is looked at again whose triggers could not be reckoned."""

log = get_log("schedules")


class Firing(NamedTuple):
    """A command; to which queue it brings how many jobs, unless a policy or an edit is against it; and its share of
    `WORK_MAX`."""

    command: FireSchedule
    queue: str
    jobs: int
    work: int


class Scheduler:
    """One for a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._broken: dict[str, int] = {}

    def firings(self, view: View, now_ms: int, seen_ms: int) -> list[Firing]:
        """For the schedules due for longest, as many as one entry may have. Empty: none can be reckoned.

        `seen_ms`: since when this leader has been at work on what is due.
        """
        found: list[Firing] = []
        left = WORK_MAX
        begun_ms = self._clock.monotonic_ms()
        for schedule_id in schedule_views.due(view, now_ms, WORK_MAX + len(self._broken)):
            if left <= 0 or (found and self._clock.monotonic_ms() - begun_ms >= RECKON_MS_MAX):
                break
            firing = self._firing(view, schedule_id, now_ms, seen_ms, left)
            if firing is not None:
                found.append(firing)
                left -= firing.work
        return found

    def _firing(self, view: View, schedule_id: str, now_ms: int, seen_ms: int, most: int) -> Firing | None:
        again_ms = self._broken.get(schedule_id)
        if again_ms is not None and self._clock.monotonic_ms() < again_ms:
            return None
        spec, run = schedule_views.schedule(view, schedule_id)
        try:
            command = fire_command(spec, run, now_ms, seen_ms, min(most, OCCURRENCES_MAX))
        except cron.CronError as error:
            log.warning("schedule_cannot_be_reckoned", schedule=schedule_id, reason=str(error))
            self._broken[schedule_id] = self._clock.monotonic_ms() + AGAIN_MS
            return None
        self._broken.pop(schedule_id, None)
        triggers = len(command.occurrences)
        cancelled = len(schedule_views.live(view, schedule_id, LIVE_MAX)) if spec.overlap == Overlap.CANCEL else 0
        return Firing(command, spec.job.queue, 0 if run.paused_ms is not None else triggers, triggers + cancelled)


def fire_command(spec: ScheduleSpec, run: ScheduleRun, now_ms: int, seen_ms: int, most: int) -> FireSchedule:
    """All triggers that have come, at most so many, and the one after them. Raises: `CronError`."""
    assert run.next is not None
    come = [run.next]
    while (following := next_occurrence(spec, come[-1].nominal_ms)) is not None:
        if following.fire_ms > now_ms or len(come) == most:
            break
        come.append(following)
    return FireSchedule(spec.id, tuple(come), following, seen_ms)


def next_occurrence(spec: ScheduleSpec, after_ms: int) -> Occurrence | None:
    """The first one whose nominal moment is later. Raises: `CronError`."""
    rule = translate.rule_of(spec)
    found = cron.after(rule, after_ms)
    if found is None:
        return None
    jitter_ms = cron.jitter_ms(rule, found.nominal_ms, spec.jitter_ms) if spec.jitter_ms else 0
    note = found.note if found.kind == "dst_skipped" else ""
    return Occurrence(found.nominal_ms, found.nominal_ms + jitter_ms, note)
