"""Leaders whose zone data differ: what is in the log counts, no local time is settled twice, none is passed over
without a word, and a schedule whose zone a leader does not know holds up no other."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.one_node import OneNode
from tests.helpers.zone_data import fixed, make_package, seen
from tests.unit.core.world import World, make_schedule
from tests.unit.node.cron_oracle import moment

from horae import wire
from horae_node import cron, zones
from horae_node.clock import ManualClock
from horae_node.core import schedule_views
from horae_node.core.commands import PutSchedule, RaiseMachineVersion
from horae_node.core.model import Fate, Missed, Occurrence, ScheduleSpec
from horae_node.errors import Refused
from horae_node.leader.scheduler import (
    AGAIN_MS,
    LOGGED_MAX,
    PAGES_MAX,
    WORK_MAX,
    Scheduler,
    following_occurrence,
    next_occurrence,
)
from horae_node.reads import moment_text

CITY = "Test/City"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DAWN = moment("2026-06-01 00:00")
EVE = DAWN - 2 * HOUR_MS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packages by the hours that the city is ahead of UTC; `none` has no such city."""
    home = tmp_path_factory.mktemp("zones")
    made = {str(hours): make_package(home / str(hours), {CITY: fixed(hours)}) for hours in (1, 2, 3)}
    return made | {"none": make_package(home / "none", {}, "2020.9")}


class Reign:
    """Leaders, one after the other, each with its data, on one log."""

    def __init__(self, data: dict[str, Path], first: str, *specs: ScheduleSpec) -> None:
        self._data = data
        self.world = World(version=4)
        self.world.now_ms = EVE
        self.clock = ManualClock()
        with seen(data[first]):
            for spec in specs:
                self.world.do(PutSchedule(spec, False, next_occurrence(spec, EVE), None))

    def until(self, text: str, whose: str) -> None:
        """A leader with those data is at work until then."""
        scheduler = Scheduler(self.clock)
        with seen(self._data[whose]):
            while (due_ms := scheduler.next_firing(self.world.txn)) is not None and due_ms <= moment(text):
                self.world.now_ms = max(self.world.now_ms, due_ms)
                firings = scheduler.firings(self.world.txn, self.world.now_ms, self.world.now_ms)
                self.world.apply(*[firing.command for firing in firings])
        self.world.now_ms = max(self.world.now_ms, moment(text))

    def lines(self, name: str = "s") -> list[str]:
        """The ledger, as `02 00:30 ran`: the day of June, and UTC."""
        _, run = schedule_views.schedule(self.world.txn, name)
        lines = schedule_views.ledger(self.world.txn, run, 0, 2**62, 1000)
        return [f"{_text(nominal_ms)} {Fate(fate).name.lower()}" for nominal_ms, (fate, _) in lines]


def _text(at_ms: int) -> str:
    minutes, rest_ms = divmod(at_ms - DAWN, 60_000)
    return f"{minutes // 1440 + 1:02} {minutes // 60 % 24:02}:{minutes % 60:02}" + (f"+{rest_ms}" if rest_ms else "")


def city(cron_line: str, **keys: object) -> ScheduleSpec:
    return make_schedule("s", cron=cron_line, timezone=CITY, missed=int(Missed.ALL), **keys)


def test_the_packages_are_what_they_say(data: dict[str, Path]):
    rule = cron.Rule("0 0 * * *", None, CITY, "after", "first", None, None, "s")
    for hours in (1, 2, 3):
        with seen(data[str(hours)]):
            assert zones.version() == "2030.1"
            assert zones.zone(CITY).offset_ms(DAWN) == hours * HOUR_MS
            assert cron.trouble(rule) is None
    with seen(data["none"]):
        assert zones.version() == "2020.9"
        assert "'Test/City' is unknown in tzdata 2020.9" in (cron.trouble(rule) or "")
    assert zones.zone("Europe/Berlin").offset_ms(DAWN) == 2 * HOUR_MS


@pytest.mark.parametrize("other", ["1", "3"])
def test_the_moment_that_is_in_the_log_counts_and_later_ones_are_the_new_leaders(data: dict[str, Path], other: str):
    reign = Reign(data, "2", city("30 2 * * *"))
    reign.until("2026-06-02 12:00", "2")
    reign.until("2026-06-05 12:00", other)
    later = "01:30" if other == "1" else "23:30"
    days = ("04", "05") if other == "1" else ("03", "04")
    assert reign.lines() == ["01 00:30 ran", "02 00:30 ran", "03 00:30 ran", *[f"{day} {later} ran" for day in days]]


def test_a_local_time_that_has_come_does_not_come_again_when_its_instant_moves(data: dict[str, Path]):
    reign = Reign(data, "2", city("30 2,4 * * *"))
    reign.until("2026-06-01 00:45", "2")  # 02:30 in the city; by the next leader's data it is 01:45 there
    reign.until("2026-06-02 12:00", "1")
    assert reign.lines() == ["01 00:30 ran", "01 02:30 ran", "02 01:30 ran", "02 03:30 ran"]


def test_local_times_that_another_leaders_data_put_in_the_past_are_as_those_that_clocks_jump_over(
    data: dict[str, Path],
):
    after, skip = city("*/20 2 * * *"), city("*/20 2 * * *", dst_gap="skip")
    for spec, fate in ((after, "ran"), (skip, "dst_skipped")):
        reign = Reign(data, "2", spec)
        reign.until("2026-06-01 00:10", "2")  # 02:00 has come; 02:20 is in the log
        reign.until("2026-06-02 12:00", "3")  # 03:20, when that comes: 02:40 does not exist
        assert reign.lines() == [
            "01 00:00 ran",
            "01 00:20 ran",
            f"01 00:20+1 {fate}",
            "01 23:00 ran",
            "01 23:20 ran",
            "01 23:40 ran",
        ]
    _, run = schedule_views.schedule(reign.world.txn, "s")
    (line,) = [why for _, (fate, why) in schedule_views.ledger(reign.world.txn, run, 0, 2**62, 9) if fate]
    assert "the rules of the time zone were changed" in line


def test_one_that_comes_at_a_local_time_that_is_due_stands_for_those_before_it(data: dict[str, Path]):
    reign = Reign(data, "2", city("0 2,3 * * *"))
    reign.until("2026-06-01 00:10", "2")
    reign.until("2026-06-02 12:00", "3")  # the log's 03:00 comes at 04:00: nothing is lost
    assert reign.lines() == ["01 00:00 ran", "01 01:00 ran", "01 23:00 ran", "02 00:00 ran"]
    reign = Reign(data, "2", city("0 2,3 * * *"))
    reign.until("2026-05-31 23:00", "2")
    reign.until("2026-06-02 12:00", "3")  # the log's 02:00 comes at 03:00, and is that one
    assert reign.lines() == ["01 00:00 ran", "01 23:00 ran", "02 00:00 ran"]


@pytest.mark.parametrize(
    "spec",
    [make_schedule("s", cron=None, every_ms=HOUR_MS, timezone=CITY), city("0 * * * *"), city("0 */2 * * *")],
    ids=["interval", "hourly", "step"],
)
def test_elapsed_time_goes_on(data: dict[str, Path], spec: ScheduleSpec):
    reign = Reign(data, "2", spec)
    for day, whose in enumerate(["1", "3", "2", "1"], 1):
        reign.until(f"2026-06-0{day} 12:10", whose)
    hours = [line[:8] for line in reign.lines()]
    assert len(set(hours)) == len(hours)
    assert {line[-3:] for line in reign.lines()} == {"ran"}
    span_ms = (2 if spec.cron == "0 */2 * * *" else 1) * HOUR_MS
    _, run = schedule_views.schedule(reign.world.txn, "s")
    moments = [at_ms for at_ms, _ in schedule_views.ledger(reign.world.txn, run, 0, 2**62, 1000)]
    assert all(HOUR_MS <= later - earlier <= span_ms + HOUR_MS for earlier, later in pairwise(moments))


LINES = st.sampled_from(["30 2 * * *", "0 0,1,2,3 * * *", "*/15 1,2,3 * * *", "0 12 * * 1-5", "0 0 1,2,3 * *"])


@settings(max_examples=40, deadline=None)
@given(
    line=LINES,
    gap=st.sampled_from(["after", "skip"]),
    reigns=st.lists(st.tuples(st.sampled_from(["1", "2", "3"]), st.integers(1, 12)), min_size=2, max_size=8),
)
def test_each_local_time_comes_once_or_is_jumped_over_however_often_the_data_change(
    data: dict[str, Path], line: str, gap: str, reigns: list[tuple[str, int]]
):
    spec = city(line, dst_gap=gap)
    with seen(data[reigns[0][0]]):
        come = [next_occurrence(spec, DAWN)]
    for whose, count in reigns:
        with seen(data[whose]):
            for _ in range(count):
                last = come[-1]
                assert last is not None
                come.append(following_occurrence(spec, last))
    found = [one for one in come if one is not None]
    assert len(found) == len(come)
    shown = [one.nominal_ms + (one.offset_ms or 0) for one in found]
    for (one, shown_ms), (other, later_ms) in pairwise(zip(found, shown, strict=True)):
        assert one.nominal_ms < other.nominal_ms
        assert shown_ms < later_ms, "a local time came twice"
        between = _local_times(line, shown_ms + 1, later_ms)
        # The data were put ahead: the later one is the one at that jump, or came at it.
        assert not between or other.nominal_ms == one.nominal_ms + 1 or _is_ahead(one, other, between)
        assert not other.note or gap == "skip"


def _local_times(line: str, from_ms: int, to_ms: int) -> list[int]:
    rule = cron.Rule(line, None, "UTC", "after", "first", None, None, "")
    return [one.nominal_ms for one in cron.between(rule, from_ms, to_ms, 1000)]


def _is_ahead(one: Occurrence, other: Occurrence, between: list[int]) -> bool:
    """By the data of the later one's leader all of them lay before the earlier one, which came when one is due."""
    assert one.offset_ms is not None
    assert other.offset_ms is not None
    return between[-1] <= one.nominal_ms + other.offset_ms and one.offset_ms < other.offset_ms


def test_a_zone_that_a_leader_does_not_know_waits_for_one_that_does(data: dict[str, Path]):
    every_day = make_schedule("fine", cron="0 12 * * *")
    reign = Reign(data, "2", city("30 2 * * *"), every_day)
    reign.until("2026-06-01 12:10", "2")
    reign.until("2026-06-03 12:10", "none")
    assert reign.lines() == ["01 00:30 ran"]
    assert reign.lines("fine") == ["01 12:00 ran", "02 12:00 ran", "03 12:00 ran"]
    reign.until("2026-06-04 12:10", "2")
    assert reign.lines() == ["01 00:30 ran", "02 00:30 skipped_missed", "03 00:30 ran", "04 00:30 ran"]
    _, run = schedule_views.schedule(reign.world.txn, "s")
    (late, made_up) = [why for _, (_, why) in schedule_views.ledger(reign.world.txn, run, 0, 2**62, 9)][1:3]
    assert late.endswith("more than catch_up_seconds")
    assert made_up.endswith("ms late")


def foreign(world: World, count: int) -> None:
    """Schedules that are due, of a zone that nobody knows."""
    for number in range(count):
        spec = make_schedule(f"foreign{number:04}", timezone="Mars/Olympus")
        world.do(PutSchedule(spec, False, Occurrence(DAWN + 1, DAWN + 1, ""), None))


def test_any_number_that_cannot_be_reckoned_is_passed_in_a_few_looks(caplog: pytest.LogCaptureFixture):
    world = World(version=4)
    world.now_ms = DAWN
    count = PAGES_MAX * WORK_MAX + WORK_MAX
    foreign(world, count)
    world.now_ms += 60_000
    world.do(PutSchedule(make_schedule("fine"), False, Occurrence(DAWN + 2, DAWN + 2, ""), None))
    clock = ManualClock()
    scheduler = Scheduler(clock)
    assert scheduler.firings(world.txn, world.now_ms, world.now_ms) == []
    assert scheduler.next_firing(world.txn) == DAWN + 1
    (firing,) = scheduler.firings(world.txn, world.now_ms, world.now_ms)
    assert firing.command.schedule_id == "fine"
    world.apply(firing.command)
    assert scheduler.broken == count
    assert scheduler.next_firing(world.txn) == firing.command.following.fire_ms if firing.command.following else None
    assert len([record for record in caplog.records if "schedule_cannot_be_reckoned" in str(record.msg)]) <= LOGGED_MAX


def test_what_is_put_before_them_comes_within_seconds():
    world = World(version=4)
    world.now_ms = DAWN
    foreign(world, 3)
    world.now_ms += 60_000
    clock = ManualClock()
    scheduler = Scheduler(clock)
    assert scheduler.again_in_ms() is None
    assert scheduler.firings(world.txn, world.now_ms, world.now_ms) == []
    assert scheduler.next_firing(world.txn) is None
    world.do(PutSchedule(make_schedule("before"), False, Occurrence(DAWN, DAWN, ""), None))
    assert scheduler.next_firing(world.txn) is None
    assert scheduler.again_in_ms() == AGAIN_MS
    clock.advance(AGAIN_MS)
    assert scheduler.next_firing(world.txn) == DAWN
    (firing,) = scheduler.firings(world.txn, world.now_ms, world.now_ms)
    assert firing.command.schedule_id == "before"
    world.apply(firing.command)
    assert scheduler.firings(world.txn, world.now_ms, world.now_ms) == []
    assert scheduler.broken == 3


def request(**keys: object) -> wire.ScheduleRequest:
    return msgspec.convert({"job": {"task": "t"}} | keys, wire.ScheduleRequest)


async def test_nobody_waits_for_one_that_cannot_be_reckoned(data: dict[str, Path]):
    """Those that came within a second of a look that found nothing were late by up to a second."""
    with seen(data["2"]):
        node = await OneNode().open()
        await node.proposer.run_one(RaiseMachineVersion(4))
        await node.service.schedules.put("s", request(cron="* * * * * *", timezone=CITY), None)
    with seen(data["none"]):
        starts_at = moment_text(node.session.now_ms() + 2500)
        await node.service.schedules.put("fine", request(every_seconds=1, starts_at=starts_at), None)
        await node.pass_ms(2000)
        for count in range(1, 5):
            await node.pass_ms(500)
            await node.have_lines("fine", count)
            await node.pass_ms(500)
        assert node.session.scheduler.broken == 1


async def test_what_cannot_be_reckoned_here_is_said(data: dict[str, Path]):
    with seen(data["2"]):
        node = await OneNode().open()
        await node.proposer.run_one(RaiseMachineVersion(4))
        schedules = node.service.schedules
        assert (await schedules.put("s", request(cron="* * * * *", timezone=CITY), None))[0].error is None
    with seen(data["none"]):
        with pytest.raises(Refused, match="unknown in tzdata") as refused:
            await schedules.put("t", request(cron="* * * * *", timezone=CITY), None)
        assert (refused.value.code, refused.value.pointer) == ("invalid", "/timezone")
        assert "'Test/City' is unknown in tzdata 2020.9" in ((await schedules.read("s", local=True)).error or "")
        await node.pass_ms(120_000)
        window = msgspec.convert({"from": "1970-01-01T00:00:00Z", "to": "1970-01-01T00:00:01Z"}, wire.BackfillRequest)
        for call in (
            schedules.put("s", request(cron="0 * * * *"), None),
            schedules.next_times("s", wire.NextQuery(consistency="local")),
            schedules.backfill("s", window),
            schedules.resume("s", missed=True) if (await schedules.pause("s")).paused else None,
        ):
            assert call is not None
            with pytest.raises(Refused, match="unknown in tzdata") as refused:
                await call
            assert refused.value.code == "conflict"
        assert (await schedules.trigger("s"))[1]
        await schedules.delete("s")


async def test_an_interval_needs_no_zone(data: dict[str, Path]):
    with seen(data["2"]):
        node = await OneNode().open()
        await node.proposer.run_one(RaiseMachineVersion(4))
        await node.service.schedules.put("s", request(every_seconds=1, timezone=CITY), None)
    with seen(data["none"]):
        await node.pass_ms(3000)
        assert (await node.service.schedules.read("s", local=True)).error is None
        await node.have_lines("s", 3)


async def test_an_edit_that_leaves_the_times_alone_leaves_the_next_one_alone(data: dict[str, Path]):
    with seen(data["2"]):
        node = await OneNode().open()
        await node.proposer.run_one(RaiseMachineVersion(4))
        schedules = node.service.schedules
        first, _ = await schedules.put("s", request(cron="30 2 * * *", timezone=CITY), None)
    with seen(data["1"]):
        edited, _ = await schedules.put("s", request(cron="30 2 * * *", timezone=CITY, missed="all"), None)
        assert edited.next_run_at == first.next_run_at
        changed, _ = await schedules.put("s", request(cron="31 2 * * *", timezone=CITY), None)
        assert changed.next_run_at is not None
        assert changed.next_run_at[11:16] == "01:31"
