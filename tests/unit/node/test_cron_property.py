"""Random cron lines against two oracles: cronsim, and a walk over every minute of a zone.

Where cronsim (and Debian's cron, which it follows) has other rules than ours, on purpose:

- *Which times are fixed.* Ours: the hour decides, and a range or step makes it elapsed time (the contract). Debian: a
  star at the start of the minute or the hour makes it elapsed. So `0 1-5 * * *` is elapsed here and fixed there, and
  `*/5 2 * * *` fixed here and elapsed there.
- *Six fields.* cronsim has no fixed times with seconds; we have.
- *Two times that fall on one moment.* `0 2,3 * * *` in a gap is due once here; cronsim gives the moment twice.
- *A jump of three hours or more.* Debian takes it for a clock set right and makes up for nothing; we do, as cronsim.
- *A range of one with a step.* cronsim reads `5-5/2` as `5/2`, from 5 to the end; we read 5.
- *A change of half an hour.* cronsim looks for an elapsed hour in whole hours, and so past the beginning of the one
  after the change (Caracas, 1 May 2016, 02:30 to 03:00: `0 * * * *` lacks 03:00). The walk over minutes sides with us.
- *A day without its midnight.* cronsim gives an elapsed hour 0 that day, at the jump (Santiago, 6 September 2026, 00:00
  to 01:00: `0 0-0 * * 0`). Debian, the walk over minutes and we do not: that hour is not there.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.node.cron_oracle import Line, due_in, fields, info_of, lines, make_rule, moment, walked

from horae_node.cron import CronError, Rule, after, between, check, jitter_ms

DAY_MS = 86_400_000
CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("Europe/Berlin", "2200-03-30"),
    ("Europe/Berlin", "2399-10-31"),
    ("Australia/Lord_Howe", "2300-04-01"),
    ("America/Santiago", "4000-04-02"),
    ("Africa/Cairo", "2014-06-26"),
    ("Africa/Cairo", "2014-07-31"),
    ("Europe/Dublin", "2026-03-29"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("Asia/Beirut", "2026-03-28"),
    ("Asia/Beirut", "2026-10-24"),
    ("America/Havana", "2025-03-09"),
    ("America/Havana", "2025-11-02"),
    ("Antarctica/Troll", "2026-03-29"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Africa/Casablanca", "2025-02-23"),
    ("Africa/Casablanca", "2025-04-06"),
    ("America/Caracas", "2007-12-09"),
    ("America/Caracas", "2016-05-01"),
    ("Asia/Pyongyang", "2018-05-04"),
    ("Pacific/Apia", "2011-12-30"),
    ("Pacific/Kwajalein", "1993-08-21"),
    ("Pacific/Kiritimati", "1994-12-31"),
    ("UTC", "2026-03-29"),
]
"""Zones, and UTC days close to a change of their clocks."""

ON_THE_HOUR = ("Europe/Berlin", "Europe/Dublin", "America/New_York", "Antarctica/Troll", "Africa/Casablanca", "UTC")
"""Zones whose changes here are by whole hours, and not at midnight: over others cronsim's elapsed times are wrong."""

changes = st.sampled_from(CHANGES)
gaps = st.sampled_from(["after", "skip"])
repeats = st.sampled_from(["first", "last", "both"])


EDGE_MS = 30 * 3_600_000
"""Further from a walk's edge than this, no change outside of it matters: the widest is a day."""


def window(day: str) -> tuple[int, int]:
    """Two days each way: the change is well within, further than `EDGE_MS` from both edges."""
    middle_ms = moment(f"{day} 12:00")
    return middle_ms - 2 * DAY_MS, middle_ms + 2 * DAY_MS


def simulated(line: str, zone: str, from_ms: int, to_ms: int) -> list[int]:
    """cronsim's moments in a window, each once."""
    start = datetime.fromtimestamp(-(-from_ms // 1000) - 1, UTC)
    try:
        dates = CronSim(line, start if zone == "UTC" else start.astimezone(info_of(zone)))
    except CronSimError:
        return []
    found: list[int] = []
    for date in dates:
        at_ms = (date.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        if at_ms >= to_ms:
            break
        found.append(at_ms)
    return list(dict.fromkeys(found))


def ours(rule: Rule, from_ms: int, to_ms: int) -> dict[int, str]:
    return {found.nominal_ms: found.kind for found in between(rule, from_ms, to_ms, 100_000)}


@settings(max_examples=100)
@given(lines(), changes, gaps, repeats)
def test_the_minutes_of_a_zone_are_walked_to_the_same_moments(
    line: Line, change: tuple[str, str], gap: str, repeat: str
):
    zone, day = change
    from_ms, to_ms = window(day)
    expected = due_in(walked(zone, from_ms, to_ms), line, gap=gap, repeat=repeat)
    inner = {at_ms: kind for at_ms, kind in expected.items() if from_ms + EDGE_MS <= at_ms < to_ms - EDGE_MS}
    assert ours(make_rule(line.text, zone, gap=gap, repeat=repeat), from_ms + EDGE_MS, to_ms - EDGE_MS) == inner


@settings(max_examples=150)
@given(lines(fixed=True, often=True), changes, gaps, repeats)
def test_so_are_fixed_times_of_most_days(line: Line, change: tuple[str, str], gap: str, repeat: str):
    zone, day = change
    from_ms, to_ms = window(day)
    expected = due_in(walked(zone, from_ms, to_ms), line, gap=gap, repeat=repeat)
    inner = {at_ms: kind for at_ms, kind in expected.items() if from_ms + EDGE_MS <= at_ms < to_ms - EDGE_MS}
    assert ours(make_rule(line.text, zone, gap=gap, repeat=repeat), from_ms + EDGE_MS, to_ms - EDGE_MS) == inner


@settings(max_examples=150)
@given(lines(), st.integers(0, moment("2200-01-01 00:00")))
def test_in_utc_cronsim_agrees(line: Line, start_ms: int):
    rule = make_rule(line.text)
    try:
        check(rule)
    except CronError:
        assert simulated(line.text, "UTC", start_ms, start_ms + 366 * DAY_MS) == []
        return
    found = after(rule, start_ms - 1)
    assert found is not None
    assert simulated(line.text, "UTC", start_ms, found.nominal_ms + 1) == [found.nominal_ms]
    few = [each.nominal_ms for each in between(rule, start_ms, found.nominal_ms + DAY_MS, 20)]
    assert simulated(line.text, "UTC", start_ms, found.nominal_ms + DAY_MS)[:20] == few


@settings(max_examples=60)
@given(fields(0, 59), lines(), st.integers(0, moment("2100-01-01 00:00")))
def test_with_seconds_too(second: tuple[str, frozenset[int]], line: Line, start_ms: int):
    text = f"{second[0]} {line.text}"
    found = between(make_rule(text), start_ms, start_ms + 31 * DAY_MS, 20)
    to_ms = found[-1].nominal_ms + 1 if found else start_ms + 31 * DAY_MS
    assert simulated(text, "UTC", start_ms, to_ms) == [each.nominal_ms for each in found]


@settings(max_examples=100)
@given(st.sampled_from(["0", "5L", "2#1", "3#5", "L"]), st.integers(0, 23), st.integers(1, 12))
def test_last_and_nth_days_are_those_of_cronsim(special: str, hour: int, month: int):
    days = f"{special} {month} *" if special == "L" else f"* {month} {special}"
    text = f"0 {hour} {days}"
    from_ms, to_ms = moment("2026-01-01 00:00"), moment("2031-01-01 00:00")
    assert simulated(text, "UTC", from_ms, to_ms) == list(ours(make_rule(text), from_ms, to_ms))


@pytest.mark.parametrize("start", [f"{year}-03-01 00:00" for year in (2000, 2072, 2076, 2088, 2096, 2120)])
def test_leap_days_are_found_however_far(start: str):
    """29 February on each weekday, over 2100 too, and beside a month that has no such day."""
    start_ms = moment(start)
    texts = [f"0 0 * 2 {weekday}#5" for weekday in range(7)]
    for text in [*texts, "0 0 29 2 */7", "30 12 29,30 2 */6", "0 0 29 2 *"]:
        found = after(make_rule(text), start_ms)
        assert found is not None
        assert simulated(text, "UTC", start_ms, found.nominal_ms + 1) == [found.nominal_ms]


@pytest.mark.parametrize("month", range(1, 13))
def test_sundays_that_begin_a_month_are_found_over_2100(month: int):
    sundays = [year for year in range(1980, 2130) if datetime(year, month, 1).isoweekday() == 7]
    due = between(make_rule(f"0 0 1 {month} */7"), moment("1980-01-01 00:00"), moment("2130-01-01 00:00"), 50)
    assert [found.nominal_ms for found in due] == [moment(f"{year}-{month:02}-01 00:00") for year in sundays]


YEARS = [
    ("Australia/Lord_Howe", 2026),
    ("America/Santiago", 2026),
    ("Asia/Beirut", 2026),
    ("Africa/Cairo", 2014),
    ("Africa/Casablanca", 2012),
    ("Pacific/Apia", 2011),
    ("Europe/Berlin", 2028),
    ("Australia/Lord_Howe", 2300),
    ("America/Santiago", 4000),
]
"""Half-hour and midnight changes, four changes in one year (summer time, and a Ramadan within it), a day that is left
out, a leap year, and years that only a zone's rule knows."""


@pytest.mark.parametrize(("zone", "year"), YEARS)
@settings(max_examples=5, deadline=None)
@given(line=lines(fixed=True, often=True))
def test_a_year_of_fixed_times_is_that_of_cronsim(zone: str, year: int, line: Line):
    assume(not line.minute.text.startswith("*"))
    from_ms, to_ms = moment(f"{year}-01-01 12:00"), moment(f"{year}-12-31 12:00")
    assert simulated(line.text, zone, from_ms, to_ms) == list(ours(make_rule(line.text, zone), from_ms, to_ms))


@pytest.mark.parametrize("zone", [zone for zone, _ in YEARS])
@pytest.mark.parametrize("line", ["0 0 29 2 *", "30 23 29 2 *", "15 2 29 2 *"])
def test_a_leap_day_is_that_of_the_zone(zone: str, line: str):
    from_ms, to_ms = moment("2092-01-01 00:00"), moment("2110-01-01 00:00")
    due = list(ours(make_rule(line, zone), from_ms, to_ms))
    assert len(due) == 4, "2092, 2096, and over 2100 to 2104 and 2108"
    assert simulated(line, zone, from_ms, to_ms) == due


@settings(max_examples=80)
@given(lines(often=True), changes)
def test_over_changes_cronsim_agrees_where_its_rule_is_ours(line: Line, change: tuple[str, str]):
    starred = line.minute.text.startswith("*") or line.hour.text.startswith("*")
    assume(starred is line.follows_elapsed)
    zone, day = change
    assume(zone in ON_THE_HOUR or not line.follows_elapsed)
    from_ms, to_ms = window(day)
    due = list(ours(make_rule(line.text, zone), from_ms + EDGE_MS, to_ms - EDGE_MS))
    assert simulated(line.text, zone, from_ms + EDGE_MS, to_ms - EDGE_MS) == due


def test_where_cronsim_has_another_rule_for_what_is_fixed():
    """Berlin, 29 March 2026: 02:00 to 03:00 do not exist."""
    from_ms, to_ms = moment("2026-03-29 00:00"), moment("2026-03-29 02:00")
    half_past, jump, after_jump = (moment(f"2026-03-29 {at}") for at in ("00:30", "01:00", "01:30"))
    for line, here, there in (
        ("30 1-3 * * *", [half_past, after_jump], [half_past, jump, after_jump]),
        ("*/30 2 * * *", [jump], []),
        ("0 30 2 * * *", [jump], []),
    ):
        assert list(ours(make_rule(line, "Europe/Berlin"), from_ms, to_ms)) == here
        assert simulated(line, "Europe/Berlin", from_ms, to_ms) == there


def test_where_cronsim_errs_over_elapsed_hours():
    from_ms, to_ms = moment("2016-05-01 06:00"), moment("2016-05-01 09:00")
    hours = list(ours(make_rule("0 * * * *", "America/Caracas"), from_ms, to_ms))
    assert hours == [moment(f"2016-05-01 {at}") for at in ("06:30", "07:00", "08:00")]
    assert simulated("0 * * * *", "America/Caracas", from_ms, to_ms) == [hours[0], hours[2]]
    from_ms, to_ms = moment("2026-09-06 00:00"), moment("2026-09-07 00:00")
    assert ours(make_rule("0 0-0 * * 0", "America/Santiago"), from_ms, to_ms) == {}
    assert simulated("* 0 * * 0", "America/Santiago", from_ms, to_ms) == [moment("2026-09-06 04:00")]


@settings(max_examples=100)
@given(lines(often=True), changes, gaps, repeats, st.integers(0, 4 * 86_400), st.integers(1, 30))
def test_between_is_repeated_after_and_grows(
    line: Line, change: tuple[str, str], gap: str, repeat: str, offset_s: int, limit: int
):
    zone, day = change
    rule = make_rule(line.text, zone, gap=gap, repeat=repeat)
    from_ms = window(day)[0] + offset_s * 1000 + 1
    to_ms = from_ms + 3 * DAY_MS
    listed = between(rule, from_ms, to_ms, limit)
    stepped, moment_ms = [], from_ms - 1
    while (found := after(rule, moment_ms)) is not None and found.nominal_ms < to_ms and len(stepped) < limit:
        stepped.append(found)
        moment_ms = found.nominal_ms
    assert listed == stepped
    assert all(one.nominal_ms < next_one.nominal_ms for one, next_one in pairwise(listed))


@settings(max_examples=100)
@given(lines(often=True), changes, st.integers(0, 10**6), st.integers(0, 10**9), st.text(max_size=5))
def test_after_does_not_depend_on_what_was_asked_before(
    line: Line, change: tuple[str, str], jump_s: int, jitter_max_ms: int, seed: str
):
    """Its memories (a wall clock's last answer, the answers kept) are only that; and jitter reaches no next one."""
    zone, day = change
    rule = make_rule(line.text, zone, seed=seed)
    start_ms = window(day)[0]
    fresh = after(rule, start_ms)
    after(rule, start_ms + jump_s * 1000)
    between(rule, start_ms - jump_s * 1000, start_ms, 3)
    assert after(rule, start_ms) == fresh
    assert between(rule, start_ms + 1, start_ms + 400 * DAY_MS, 1) == [fresh]
    assert fresh is not None
    following = after(rule, fresh.nominal_ms)
    assert following is not None
    drawn_ms = jitter_ms(rule, fresh.nominal_ms, jitter_max_ms)
    assert 0 <= drawn_ms <= jitter_max_ms
    assert fresh.nominal_ms + drawn_ms < following.nominal_ms
    assert drawn_ms == jitter_ms(rule, fresh.nominal_ms, jitter_max_ms)


@given(st.integers(1000, 10**10), st.integers(0, 10**13), st.integers(0, 10**13))
def test_an_interval_is_the_first_multiple(every_ms: int, starts_ms: int, moment_ms: int):
    rule = make_rule(every_ms=every_ms)._replace(starts_ms=starts_ms)
    found = after(rule, moment_ms)
    assert found is not None
    nominal_ms = found.nominal_ms
    assert (nominal_ms - starts_ms) % every_ms == 0
    assert nominal_ms > moment_ms
    assert nominal_ms == starts_ms or nominal_ms - every_ms <= moment_ms
