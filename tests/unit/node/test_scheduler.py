"""The leader's reckoning and the machine together: over outages of any length, each moment that a schedule names comes
to what its policy says, and to nothing else. The oracle is a plain list of the moments and the rule in words."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.one_node import OneNode, settle
from tests.unit.core.world import NOW_MS, World, make_schedule, make_spec
from tests.unit.node.cron_oracle import moment

from horae import wire
from horae_node import cron, translate
from horae_node.clock import ManualClock
from horae_node.core import schedule_views
from horae_node.core.changes import JobSubmitted
from horae_node.core.commands import (
    AdvanceTime,
    BackfillSchedule,
    CancelJob,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    RaiseMachineVersion,
    ResumeSchedule,
)
from horae_node.core.decide import schedules
from horae_node.core.model import Fate, Missed, Occurrence, Overlap, ScheduleSpec
from horae_node.core.results import ScheduleChanged
from horae_node.core.tables import LEDGER_ROWS_MAX, TOMBSTONE_MS, trigger_id
from horae_node.leader.scheduler import (
    OCCURRENCES_MAX,
    RECKON_MS_MAX,
    WORK_MAX,
    Scheduler,
    fire_command,
    next_occurrence,
)
from horae_node.leader.session import ON_TIME_MS
from horae_storage.kv import View

HOUR_MS = 3_600_000
BEGIN_MS = 1_774_000_000_000
"""March 2026: the clocks of Europe and America change in the weeks to come."""
BEGINS = st.sampled_from([BEGIN_MS, moment("2026-10-20 05:00"), moment("2028-02-25 05:00"), moment("2200-03-20 05:00")])
"""And autumn, a leap day, and a year that only the rules of zones know."""

RULES = st.sampled_from(
    [
        {"cron": "*/10 * * * *"},
        {"cron": "30 2 * * *"},
        {"cron": "15 */3 * * *"},
        {"cron": "0 0,12 * * 1-5"},
        {"cron": "0 0,23 * * *"},
        {"cron": "30 1 29 2 *"},
        {"cron": "H H * * *"},
        {"cron": None, "every_ms": 37 * 60_000},
        {"cron": None, "every_ms": 7_200_000, "starts_ms": BEGIN_MS + 5_000_000},
        {"cron": "0 * * * *", "ends_ms": moment("2200-04-05 00:00")},
    ]
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Beirut"]
)
specs = st.builds(
    lambda rule, zone, gap, repeat, missed, grace_ms, catch_up_ms, most, jitter_ms: make_schedule(
        "s",
        **{"cron": None}
        | rule
        | {
            "timezone": zone,
            "dst_gap": gap,
            "dst_repeat": repeat,
            "missed": int(missed),
            "grace_ms": grace_ms,
            "catch_up_ms": catch_up_ms,
            "max_catch_up": most,
            "jitter_ms": jitter_ms,
        },
    ),
    RULES,
    ZONES,
    st.sampled_from(["after", "skip"]),
    st.sampled_from(["first", "last", "both"]),
    st.sampled_from(Missed),
    st.sampled_from([0, 60_000, HOUR_MS]),
    st.sampled_from([HOUR_MS, 24 * HOUR_MS, 1000 * HOUR_MS]),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([0, 90_000]),
)
outages = st.lists(
    st.sampled_from([1, 60_000, HOUR_MS, 5 * HOUR_MS, 40 * HOUR_MS, 300 * HOUR_MS]), min_size=1, max_size=8
)


def put(world: World, spec: ScheduleSpec) -> None:
    outcome = world.do(PutSchedule(spec, False, next_occurrence(spec, world.now_ms), None))
    assert isinstance(outcome, ScheduleChanged)


def due_commands(scheduler: Scheduler, world: World) -> list[FireSchedule]:
    return [firing.command for firing in scheduler.firings(world.txn, world.now_ms, world.now_ms)]


def look(world: World) -> None:
    """The leader at this moment: whatever has come is commanded, until nothing is due."""
    scheduler = Scheduler(ManualClock())
    while commands := due_commands(scheduler, world):
        world.apply(*commands)


def moments(spec: ScheduleSpec, from_ms: int, to_ms: int) -> list[Occurrence]:
    """Those whose turn comes by then, by the calendar alone."""
    found, at_ms = [], from_ms
    while (one := next_occurrence(spec, at_ms)) is not None and one.fire_ms <= to_ms:
        found.append(one)
        at_ms = one.nominal_ms
    return found


def expected(spec: ScheduleSpec, named: list[Occurrence], looks: list[int]) -> list[tuple[int, Fate]]:
    fates = []
    made_up = 0
    for place, one in enumerate(named):
        seen_ms = next(moment for moment in looks if moment >= one.fire_ms)
        later = next((other for other in named[place + 1 :] if not other.note), None)
        late_ms = seen_ms - one.fire_ms
        if one.note:
            fate = Fate.DST_SKIPPED
        elif late_ms <= spec.grace_ms:
            fate, made_up = Fate.RAN, 0
        elif spec.missed == Missed.SKIP or late_ms > spec.catch_up_ms:
            fate = Fate.SKIPPED_MISSED
        elif spec.missed == Missed.LATEST and later is not None and seen_ms - later.fire_ms > spec.grace_ms:
            fate = Fate.FOLDED
        elif spec.missed == Missed.ALL and made_up >= spec.max_catch_up:
            fate = Fate.DROPPED_LIMIT
        else:
            fate, made_up = Fate.RAN, made_up + 1
        fates.append((one.nominal_ms, fate))
    return fates


@settings(max_examples=60, deadline=None)
@given(specs, BEGINS, outages)
def test_each_moment_comes_to_what_the_policy_says(spec: ScheduleSpec, begin_ms: int, pauses: list[int]):
    world = World(version=4)
    world.now_ms = begin_ms
    put(world, spec)
    looks = []
    for pause_ms in pauses:
        world.now_ms += pause_ms
        looks.append(world.now_ms)
        look(world)
    named = moments(spec, begin_ms, looks[-1])
    _, run = schedule_views.schedule(world.txn, "s")
    lines = schedule_views.ledger(world.txn, run, 0, 2**62, 10_000)
    fates = expected(spec, named, looks)
    assert [(nominal_ms, Fate(fate)) for nominal_ms, (fate, _) in lines] == fates[-LEDGER_ROWS_MAX:]
    made = {nominal_ms for nominal_ms, fate in fates if fate == Fate.RAN}
    prefix = b"J" + b"s\0"
    assert len(world.txn.keys(prefix, b"J" + b"s\1", limit=20_000)) == len(made)
    following = next_occurrence(spec, named[-1].nominal_ms if named else begin_ms)
    assert run.next == following


def test_an_outage_is_worked_off_in_steps_and_others_have_their_turn():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    put(world, make_schedule("backlog", cron=None, every_ms=1000, missed=int(Missed.ALL)))
    world.now_ms += 60 * 60_000
    put(world, make_schedule("other", cron="* * * * *"))
    world.now_ms += 60_000
    order = []
    scheduler = Scheduler(ManualClock())
    for _ in count():
        commands = due_commands(scheduler, world)
        if not commands:
            break
        assert all(len(command.occurrences) <= OCCURRENCES_MAX for command in commands)
        order += [command.schedule_id for command in commands]
        world.apply(*commands)
    assert order[:2] == ["backlog", "other"]
    assert order.count("backlog") >= 3660 // OCCURRENCES_MAX


def test_a_schedule_that_cannot_be_reckoned_holds_up_no_other():
    """Another node knew the zone when it was made; this one's data do not."""
    world = World(version=4)
    world.now_ms = BEGIN_MS
    fine = make_schedule("fine", cron="* * * * *")
    put(world, fine)
    foreign = make_schedule("foreign", cron="* * * * *", timezone="Mars/Olympus")
    world.do(PutSchedule(foreign, False, Occurrence(BEGIN_MS + 1, BEGIN_MS + 1, ""), None))
    world.now_ms += 60_000
    clock = ManualClock()
    scheduler = Scheduler(clock)
    assert [command.schedule_id for command in due_commands(scheduler, world)] == ["fine"]
    with pytest.raises(cron.CronError):
        fire_command(*schedule_views.schedule(world.txn, "foreign"), world.now_ms, world.now_ms, 1)


def test_a_pause_between_reckoning_and_entry_is_a_pause():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    put(world, make_schedule("s", cron="* * * * *"))
    world.now_ms += 60_000
    (command,) = due_commands(Scheduler(ManualClock()), world)
    world.apply(PauseSchedule("s"), command)
    _, run = schedule_views.schedule(world.txn, "s")
    lines = schedule_views.ledger(world.txn, run, 0, 2**62, 10)
    assert [Fate(fate) for _, (fate, _) in lines] == [Fate.PAUSED]


def ledger(world: World, name: str = "s") -> list[tuple[int, str]]:
    _, run = schedule_views.schedule(world.txn, name)
    lines = schedule_views.ledger(world.txn, run, 0, 2**62, 20_000)
    return [(nominal_ms - BEGIN_MS, Fate(fate).name.lower()) for nominal_ms, (fate, _) in lines]


def test_a_resume_makes_up_for_all_that_went_by_and_passes_over_nothing():
    """The simulator's seed 99500066: a trigger named before a pause, and due after the resume, was passed over."""
    world = World(version=4)
    world.now_ms = BEGIN_MS
    spec = make_schedule("s", cron=None, every_ms=20_000, jitter_ms=19_000, missed=int(Missed.ALL), grace_ms=0)
    put(world, spec)
    world.now_ms += 20_001
    world.do(PauseSchedule("s"))
    world.now_ms += 60_000
    look(world)
    assert [fate for _, fate in ledger(world)] == ["paused"] * len(ledger(world))
    _, run = schedule_views.schedule(world.txn, "s")
    assert run.paused_ms == BEGIN_MS + 20_000
    world.do(ResumeSchedule("s", next_occurrence(spec, run.paused_ms - 1)))
    look(world)
    assert [fate for _, fate in ledger(world)] == ["ran"] * len(ledger(world))
    assert [nominal_ms for nominal_ms, _ in ledger(world)] == [20_000 * n for n in range(1, len(ledger(world)) + 1)]


def test_an_edit_lets_a_trigger_run_that_has_had_its_time():
    """Its jitter was not over: the new rule began after it, and it was in no ledger."""
    world = World(version=4)
    world.now_ms = BEGIN_MS
    spec = make_schedule("s", cron=None, every_ms=20_000, jitter_ms=19_000)
    put(world, spec)
    world.now_ms += 20_001
    put(world, spec._replace(grace_ms=1))
    world.now_ms += 60_000
    look(world)
    assert ledger(world)[0][0] == 20_000


def edited_while_one_waits(world: World, jitter_ms: int, **edit: Any) -> int:
    """A rule of each 20 s becomes one of each second, while a trigger waits for its jitter. When that was."""
    world.now_ms = BEGIN_MS
    spec = make_schedule("s", cron=None, every_ms=20_000, starts_ms=BEGIN_MS, jitter_ms=jitter_ms)
    put(world, spec)
    next_ = schedule_views.schedule(world.txn, "s").run.next
    assert next_ is not None
    world.now_ms = next_.fire_ms - 500
    assert next_.nominal_ms + 2000 < world.now_ms
    put(world, spec._replace(every_ms=1000, jitter_ms=0, **edit))
    return world.now_ms - BEGIN_MS


def test_a_new_rule_names_nothing_from_before_the_edit():
    world = World(version=4)
    edited_ms = edited_while_one_waits(world, 19_000)
    world.now_ms += 3000
    look(world)
    named = [nominal_ms for nominal_ms, fate in ledger(world) if fate == "ran"]
    assert named[0] == 20_000
    assert named[1:] == [ms for ms in range(21_000, world.now_ms - BEGIN_MS + 1, 1000) if ms > edited_ms]


def test_what_waits_for_its_jitter_comes_before_the_first_of_a_new_rule():
    """Else it would hold up all that the new rule names, until that counts as missed."""
    world = World(version=4)
    world.now_ms = BEGIN_MS
    hourly = make_schedule("s", cron=None, every_ms=HOUR_MS, starts_ms=BEGIN_MS, jitter_ms=HOUR_MS - 1)
    put(world, hourly)
    next_ = schedule_views.schedule(world.txn, "s").run.next
    assert next_ is not None
    assert next_.fire_ms - next_.nominal_ms > 600_000
    world.now_ms = next_.nominal_ms + 1
    put(world, hourly._replace(every_ms=60_000, jitter_ms=0))
    for _ in range(3):
        world.now_ms += 60_000
        look(world)
    assert ledger(world) == [(HOUR_MS + 60_000 * n, "ran") for n in range(4)]


def test_what_went_by_in_a_pause_is_made_up_for_by_the_rule_of_then():
    world = World(version=4)
    edited_ms = edited_while_one_waits(world, 19_000, missed=int(Missed.ALL), grace_ms=0)
    world.do(PauseSchedule("s"))
    world.now_ms += 3000
    look(world)
    spec, run = schedule_views.schedule(world.txn, "s")
    world.do(ResumeSchedule("s", next_occurrence(spec, schedules.missed_from_ms(run) - 1)))
    look(world)
    named = [nominal_ms for nominal_ms, fate in ledger(world) if fate == "ran"]
    assert named == [ms for ms in range(21_000, world.now_ms - BEGIN_MS + 1, 1000) if ms > edited_ms]


def test_a_first_moment_that_was_reckoned_before_what_has_come_is_reckoned_again():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    spec = make_schedule("s", cron=None, every_ms=20_000, starts_ms=BEGIN_MS, jitter_ms=19_000)
    put(world, spec)
    other = spec._replace(every_ms=1000, jitter_ms=0)
    asked = PutSchedule(other, False, next_occurrence(other, BEGIN_MS + 18_500), None)
    world.now_ms = BEGIN_MS + 20_001
    assert world.do(asked) == schedules.DUE_FIRST
    put(world, other)


def test_what_came_to_something_does_not_come_to_something_else():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    spec = make_schedule(
        "s", cron=None, every_ms=60_000, missed=int(Missed.ALL), grace_ms=0, job=make_spec("", retention_ms=0)
    )
    put(world, spec)
    world.do(PauseSchedule("s"))
    world.now_ms += 180_000
    look(world)
    named = moments(spec, BEGIN_MS, world.now_ms)
    world.do(BackfillSchedule("s", tuple(named[:2])))
    for nominal_ms, _ in ledger(world)[:2]:
        world.do(CancelJob(trigger_id("s", BEGIN_MS + nominal_ms)))
    world.now_ms += 2 * TOMBSTONE_MS
    world.do(AdvanceTime(1000))
    _, run = schedule_views.schedule(world.txn, "s")
    assert run.paused_ms is not None
    world.do(ResumeSchedule("s", next_occurrence(spec, run.paused_ms - 1)))
    made = world.apply(*due_commands(Scheduler(ManualClock()), world)).changes
    ids = [change.spec.id for change in made if isinstance(change, JobSubmitted)]
    assert trigger_id("s", named[0].nominal_ms) not in ids
    assert trigger_id("s", named[2].nominal_ms) in ids


def test_an_overlap_that_cancels_frees_the_place_in_its_queue():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    world.set_queue("default", max_depth=1)
    put(world, make_schedule("s", cron=None, every_ms=60_000, overlap=int(Overlap.CANCEL)))
    for _ in range(3):
        world.now_ms += 60_000
        look(world)
    assert [fate for _, fate in ledger(world)] == ["ran"] * 3
    states = [world.state(trigger_id("s", BEGIN_MS + nominal_ms)) for nominal_ms, _ in ledger(world)]
    assert states == ["cancelled", "cancelled", "ready"]
    world.now_ms += 180_000
    look(world)
    assert [fate for _, fate in ledger(world)[3:]] == ["folded", "folded", "ran"]


def test_a_full_ledger_keeps_the_newest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schedules, "LEDGER_ROWS_MAX", 5)
    world = World(version=4)
    world.now_ms = BEGIN_MS
    spec = make_schedule("s", cron=None, every_ms=1000)
    put(world, spec)
    for _ in range(3):
        world.now_ms += 4000
        look(world)
    assert [nominal_ms for nominal_ms, _ in ledger(world)] == [8000, 9000, 10_000, 11_000, 12_000]
    world.do(PauseSchedule("s"))
    world.do(BackfillSchedule("s", tuple(moments(spec, BEGIN_MS, BEGIN_MS + 9000))))
    assert [nominal_ms for nominal_ms, _ in ledger(world)] == [8000, 9000, 10_000, 11_000, 12_000]


def test_one_entry_has_so_much_to_do():
    world = World(version=4)
    world.now_ms = BEGIN_MS
    for number in range(10):
        put(world, make_schedule(f"s{number}", cron=None, every_ms=1000))
    world.now_ms += 60_000
    commands = due_commands(Scheduler(ManualClock()), world)
    assert sum(len(command.occurrences) for command in commands) == WORK_MAX


def test_an_entry_leaves_with_what_is_reckoned_when_reckoning_takes_long():
    """So that the first jobs of a herd do not wait for the calendars of all."""
    clock = ManualClock()

    class SlowView:
        """A state in which each look at a schedule takes a while."""

        def __init__(self, world: World) -> None:
            self.keys = world.txn.keys
            self._world = world

        def get(self, key: bytes) -> Any:
            clock.advance(1)
            return self._world.txn.get(key)

    world = World(version=4)
    world.now_ms = BEGIN_MS
    for number in range(50):
        put(world, make_schedule(f"s{number:02}", cron="0 * * * *"))
    world.now_ms += HOUR_MS
    firings = Scheduler(clock).firings(cast(View, SlowView(world)), world.now_ms, world.now_ms)
    assert len(firings) == RECKON_MS_MAX // 2, "two rows are read for each"


def test_the_rule_that_is_stored_is_the_one_that_was_said():
    spec = make_schedule("s", cron="0 5 * * *", timezone="Asia/Tokyo", starts_ms=NOW_MS, ends_ms=NOW_MS * 2)
    rule = translate.rule_of(spec)
    assert rule == cron.Rule("0 5 * * *", None, "Asia/Tokyo", "after", "first", NOW_MS, NOW_MS * 2, "s")


async def test_what_waits_its_turn_behind_others_is_not_missed():
    """A herd takes longer to fire than the grace: all of it came in time, since a leader was at work on it."""
    node = await OneNode().open()
    await node.proposer.run_one(RaiseMachineVersion(4))
    body = {"every_seconds": 1, "grace_seconds": 0, "job": {"task": "t"}, "missed": "skip"}
    request = msgspec.convert(body, wire.ScheduleRequest)
    for number in range(WORK_MAX + 5):
        await node.service.schedules.put(f"s{number:02d}", request, None)
    node.raft.hold = True
    await node.pass_ms(1000)
    node.clock.advance(5000)  # the first entry takes its time
    node.raft.hold = False
    node.raft.commit_all()
    await settle()
    query = wire.TriggersQuery(consistency="local")
    first = [
        (await node.service.schedules.triggers(f"s{number:02d}", query)).triggers[0] for number in range(WORK_MAX + 5)
    ]
    assert {line.outcome for line in first} == {"ran"}


async def every_two_seconds(node: OneNode) -> None:
    """A schedule `s` that skips what is missed, without grace; the clock stands at a moment of it."""
    await node.proposer.run_one(RaiseMachineVersion(4))
    node.clock.advance(-node.clock.wall_ms() % 2000)
    body = {"every_seconds": 2, "grace_seconds": 0, "job": {"task": "t"}, "missed": "skip"}
    await node.service.schedules.put("s", msgspec.convert(body, wire.ScheduleRequest), None)


async def outcomes(node: OneNode) -> list[str]:
    lines = await node.service.schedules.triggers("s", wire.TriggersQuery(consistency="local"))
    return [line.outcome for line in lines.triggers]


async def reign_again(node: OneNode) -> None:
    node.session.close()
    await node.session.open_epoch(node.raft.term)


async def test_with_no_grace_a_trigger_is_not_missed_while_a_leader_is_there():
    """A timer's own millisecond, or an entry under way, made it late."""
    node = await OneNode().open()
    await every_two_seconds(node)
    await reign_again(node)
    await node.pass_ms(2003)
    await node.pass_ms(1997 + ON_TIME_MS)
    await node.pass_ms(2001)
    assert await outcomes(node) == ["ran", "ran", "skipped_missed"]


async def test_with_no_grace_what_came_before_the_reign_is_missed():
    node = await OneNode().open()
    await every_two_seconds(node)
    node.clock.advance(2001)
    await reign_again(node)
    await node.pass_ms(1)
    assert await outcomes(node) == ["skipped_missed"]
