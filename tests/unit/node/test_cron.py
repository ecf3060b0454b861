"""When schedules are due: bounds, intervals, refusals, jitter, and a table of clock changes checked by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.unit.node.cron_oracle import make_rule, moment, shown

from horae_node import cron
from horae_node.cron import CronError, Occurrence, Rule, after, between, check, jitter_ms, local_text

HOUR_MS = 3_600_000


def times(rule: Rule, from_text: str, to_text: str, limit: int = 50) -> list[str]:
    """What is due, in UTC; what is no run with its kind, what has a note with it."""
    return [_told(found) for found in between(rule, moment(from_text), moment(to_text), limit)]


def _told(found: Occurrence) -> str:
    kind = "" if found.kind == "run" else f" {found.kind}"
    return f"{shown(found.nominal_ms)}{kind}{' · ' if found.note else ''}{found.note}"


GAPS = [
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28 12:00",
        ["2026-03-29 01:00 · 02:30 does not exist: moved to 03:00 CEST"],
    ),
    (
        "30 2 * * *",
        "America/New_York",
        "2026-03-07 12:00",
        ["2026-03-08 07:00 · 02:30 does not exist: moved to 03:00 EDT"],
    ),
    # 02:00 → 02:30: only the first half of the hour is missing.
    (
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03 12:00",
        ["2026-10-03 15:30 · 02:15 does not exist: moved to 02:30 +11"],
    ),
    ("45 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", ["2026-10-03 15:45"]),
    # 00:00 → 01:00, so the day begins at 01:00.
    (
        "0 0 * * *",
        "America/Santiago",
        "2026-09-05 12:00",
        ["2026-09-06 04:00 · 00:00 does not exist: moved to 01:00 -03"],
    ),
    ("0 0 * * *", "Asia/Beirut", "2026-03-28 12:00", ["2026-03-28 22:00 · 00:00 does not exist: moved to 01:00 EEST"]),
    (
        "0 0 * * *",
        "America/Havana",
        "2026-03-07 12:00",
        ["2026-03-08 05:00 · 00:00 does not exist: moved to 01:00 CDT"],
    ),
    # 01:00 → 03:00: two hours at once.
    (
        "0 1,2 * * *",
        "Antarctica/Troll",
        "2026-03-28 12:00",
        ["2026-03-29 01:00 · 01:00 and others do not exist: moved to 03:00 +02"],
    ),
    # 23:30 → 24:00, the last half-hour of 4 May 2018.
    (
        "45 23 4 * *",
        "Asia/Pyongyang",
        "2018-05-04 00:00",
        ["2018-05-04 15:00 · 2018-05-04 23:45 does not exist: moved to 00:00 KST"],
    ),
    # Several in one gap are one, and one with what is due at the jump.
    (
        "0,20,40 2 * * *",
        "Europe/Berlin",
        "2026-03-28 12:00",
        ["2026-03-29 01:00 · 02:00 and others do not exist: moved to 03:00 CEST"],
    ),
    (
        "0 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28 12:00",
        ["2026-03-29 01:00 · 02:00 does not exist: this run stands for it"],
    ),
    ("0 3 * * *", "Europe/Berlin", "2026-03-28 12:00", ["2026-03-29 01:00"]),
    (
        "15 30 2 * * *",
        "Europe/Berlin",
        "2026-03-28 12:00",
        ["2026-03-29 01:00 · 02:30:15 does not exist: moved to 03:00 CEST"],
    ),
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2200-03-29 12:00",
        ["2200-03-30 01:00 · 02:30 does not exist: moved to 03:00 CEST"],
    ),
]


@pytest.mark.parametrize(("line", "zone", "from_text", "due"), GAPS)
def test_a_local_time_that_the_clocks_jump_over_is_due_at_the_jump(
    line: str, zone: str, from_text: str, due: list[str]
):
    to_text = shown(moment(from_text) + 24 * HOUR_MS)
    assert times(make_rule(line, zone), from_text, to_text) == due


@pytest.mark.parametrize(
    ("line", "due"),
    [
        ("30 2 * * *", "2026-03-29 01:00 dst_skipped · 02:30 does not exist: skipped"),
        ("0,30 2 * * *", "2026-03-29 01:00 dst_skipped · 02:00 and others do not exist: skipped"),
        ("0 2,3 * * *", "2026-03-29 01:00 · 02:00 does not exist: skipped"),
    ],
)
def test_or_is_skipped_and_told(line: str, due: str):
    assert times(make_rule(line, "Europe/Berlin", gap="skip"), "2026-03-28 12:00", "2026-03-29 12:00") == [due]


def test_a_day_that_a_zone_left_out():
    """Samoa went from the end of 29 December 2011 to 31 December: each day's midnight-less time is due at the jump."""
    rule = make_rule("30 2 * * *", "Pacific/Apia")
    assert times(rule, "2011-12-29 00:00", "2012-01-01 00:00") == [
        "2011-12-29 12:30",
        "2011-12-30 10:00 · 2011-12-30 02:30 does not exist: moved to 00:00 +14",
        "2011-12-30 12:30",
        "2011-12-31 12:30",
    ]
    friday = make_rule("0 0 * * 5", "Pacific/Apia", gap="skip")
    assert times(friday, "2011-12-29 00:00", "2012-01-07 00:00") == [
        "2011-12-30 10:00 dst_skipped · 2011-12-30 00:00 does not exist: skipped",
        "2012-01-05 10:00",
    ]
    hourly = make_rule("0 * * * *", "Pacific/Apia")
    assert times(hourly, "2011-12-30 09:00", "2011-12-30 11:01") == [
        f"2011-12-30 {hour}:00" for hour in ("09", "10", "11")
    ]


REPEATS = [
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-25 00:00",
        "2026-10-25 00:30 · first of two 02:30",
        "2026-10-25 01:30 · second of two 02:30",
    ),
    (
        "30 1 * * *",
        "America/New_York",
        "2026-11-01 00:00",
        "2026-11-01 05:30 · first of two 01:30",
        "2026-11-01 06:30 · second of two 01:30",
    ),
    (
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2026-04-04 12:00",
        "2026-04-04 14:45 · first of two 01:45",
        "2026-04-04 15:15 · second of two 01:45",
    ),
    (
        "30 23 * * *",
        "America/Santiago",
        "2026-04-04 12:00",
        "2026-04-05 02:30 · first of two 23:30",
        "2026-04-05 03:30 · second of two 23:30",
    ),
    (
        "30 23 * * *",
        "Asia/Beirut",
        "2026-10-24 12:00",
        "2026-10-24 20:30 · first of two 23:30",
        "2026-10-24 21:30 · second of two 23:30",
    ),
    (
        "0 0 * * *",
        "America/Havana",
        "2025-11-01 12:00",
        "2025-11-02 04:00 · first of two 00:00",
        "2025-11-02 05:00 · second of two 00:00",
    ),
    (
        "45 1 * * *",
        "Australia/Lord_Howe",
        "2300-03-31 12:00",
        "2300-03-31 14:45 · first of two 01:45",
        "2300-03-31 15:15 · second of two 01:45",
    ),
    (
        "0 1 * * *",
        "Antarctica/Troll",
        "2026-10-24 12:00",
        "2026-10-24 23:00 · first of two 01:00",
        "2026-10-25 01:00 · second of two 01:00",
    ),
]


@pytest.mark.parametrize(("line", "zone", "from_text", "first", "second"), REPEATS)
def test_a_local_time_that_comes_twice(line: str, zone: str, from_text: str, first: str, second: str):
    to_text = shown(moment(from_text) + 20 * HOUR_MS)
    assert times(make_rule(line, zone), from_text, to_text) == [first]
    assert times(make_rule(line, zone, repeat="last"), from_text, to_text) == [second]
    assert times(make_rule(line, zone, repeat="both"), from_text, to_text) == [first, second]


def test_several_times_that_come_twice_stay_in_order():
    due = times(make_rule("15,45 2 * * *", "Europe/Berlin", repeat="both"), "2026-10-25 00:00", "2026-10-25 12:00")
    assert [text[:16] for text in due] == [f"2026-10-25 {at}" for at in ("00:15", "00:45", "01:15", "01:45")]
    twice_late = between(
        make_rule("59 59 2 * * *", "Europe/Berlin"), moment("2026-10-25 01:00"), moment("2026-10-27 00:00"), 9
    )
    assert [shown(found.nominal_ms) for found in twice_late] == ["2026-10-26 01:59:59"]


def test_elapsed_time_has_no_gap_and_no_repeat():
    hourly = make_rule("30 * * * *", "Europe/Berlin", repeat="last", gap="skip")
    assert times(hourly, "2026-03-29 00:00", "2026-03-29 03:00") == [f"2026-03-29 0{hour}:30" for hour in range(3)]
    assert times(hourly, "2026-10-24 23:00", "2026-10-25 03:00") == [
        "2026-10-24 23:30",
        "2026-10-25 00:30 · first of two 02:30",
        "2026-10-25 01:30 · second of two 02:30",
        "2026-10-25 02:30",
    ]
    assert times(make_rule("0 1-3 * * *", "Europe/Berlin"), "2026-03-29 00:00", "2026-03-29 12:00") == [
        "2026-03-29 00:00",
        "2026-03-29 01:00",
    ]
    half = make_rule("*/30 * * * *", "Australia/Lord_Howe")
    due = between(half, moment("2026-04-04 14:00"), moment("2026-04-04 16:00"), 9)
    assert [found.nominal_ms for found in due] == [moment("2026-04-04 14:00") + n * HOUR_MS // 2 for n in range(4)]


def test_two_more_changes_for_ramadan():
    """Morocco sets its clocks back for Ramadan, and forth again: 02:30 is missing once a year, and comes twice once."""
    rule = make_rule("30 2 * * *", "Africa/Casablanca", repeat="both", gap="skip")
    year = between(rule, moment("2025-01-01 00:00"), moment("2026-01-01 00:00"), 400)
    odd = [_told(found) for found in year if found.note]
    assert odd == [
        "2025-02-23 01:30 · first of two 02:30",
        "2025-02-23 02:30 · second of two 02:30",
        "2025-04-06 02:00 dst_skipped · 02:30 does not exist: skipped",
    ]


def test_four_changes_in_one_year():
    """Egypt, 2014: summer time from 16 May on, with a pause from 26 June to 31 July; each change is at midnight."""
    odd = []
    for line in ("0 0 * * *", "30 23 * * *"):
        year = between(
            make_rule(line, "Africa/Cairo", repeat="both"), moment("2014-01-01 00:00"), moment("2015-01-01 00:00"), 400
        )
        odd += [_told(found) for found in year if found.note]
    assert odd == [
        "2014-05-15 22:00 · 00:00 does not exist: moved to 01:00 EEST",
        "2014-07-31 22:00 · 00:00 does not exist: moved to 01:00 EEST",
        "2014-06-26 20:30 · first of two 23:30",
        "2014-06-26 21:30 · second of two 23:30",
        "2014-09-25 20:30 · first of two 23:30",
        "2014-09-25 21:30 · second of two 23:30",
    ]


def test_leap_days_and_rare_days():
    assert times(make_rule("0 0 29 2 *"), "2095-01-01 00:00", "2110-01-01 00:00") == [
        "2096-02-29 00:00",
        "2104-02-29 00:00",
        "2108-02-29 00:00",
    ]
    rare = after(make_rule("0 0 29 2 */7", "Europe/Berlin"), moment("2088-03-01 00:00"))
    assert rare is not None
    assert shown(rare.nominal_ms) == "2128-02-28 23:00"  # from Sunday to Sunday over 2100: 40 years
    assert times(make_rule("0 0 L * *"), "2026-01-01 00:00", "2026-04-01 00:00")[1] == "2026-02-28 00:00"
    assert times(make_rule("0 0 15W * *"), "2026-08-01 00:00", "2026-09-01 00:00") == ["2026-08-14 00:00"]
    assert times(make_rule("0 0 * * 5L"), "2026-08-01 00:00", "2026-09-01 00:00") == ["2026-08-28 00:00"]
    assert times(make_rule("0 0 1 * 5#2"), "2026-08-01 00:00", "2026-09-01 00:00") == [
        "2026-08-01 00:00",
        "2026-08-14 00:00",
    ]


def test_seconds_come_first():
    assert times(make_rule("*/20 59 23 * * *"), "2026-01-01 12:00", "2026-01-02 00:00") == [
        f"2026-01-01 23:59{second}" for second in ("", ":20", ":40")
    ]


@pytest.mark.parametrize(
    ("rule", "field", "advice"),
    [
        (make_rule("61 * * * *"), "cron", "write 0-59"),
        (make_rule("0 0 30 2 *"), "cron", "never fires"),
        (make_rule("0 0 31 2,4,6,9,11 *"), "cron", "never fires"),
        (make_rule("0 0 30 2 */7"), "cron", "never fires"),
        (make_rule(), "cron", "write either"),
        (make_rule("@daily", every_ms=1000), "cron", "write either"),
        (make_rule(every_ms=999), "every_seconds", "write 1 or more"),
        (make_rule(every_ms=0), "every_seconds", "write 1 or more"),
        (make_rule("@daily", "Europe/Berln"), "timezone", "write Europe/Berlin"),
        (make_rule(every_ms=1000, zone=""), "timezone", "an IANA name"),
        (make_rule("@daily", gap="before"), "dst_gap", "write after or skip"),
        (make_rule("@daily", repeat=""), "dst_repeat", "write first, last or both"),
        (make_rule("@daily", starts="2026-01-02 00:00", ends="2026-01-01 00:00"), "starts_at", "earlier start"),
        (make_rule("@daily", starts="2026-01-01 00:01", ends="2026-01-01 23:59"), "ends_at", "later end"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(rule: Rule, field: str, advice: str):
    with pytest.raises(CronError) as raised:
        check(rule)
    assert raised.value.field == field
    assert advice in str(raised.value)


@pytest.mark.parametrize(
    "rule",
    [
        make_rule("0 0 29 2 *"),
        make_rule("0 0 30 2 1"),
        make_rule("@weekly", "Pacific/Apia"),
        make_rule(every_ms=1000),
        make_rule("@daily", starts="2026-01-01 00:00", ends="2026-01-01 00:00"),
    ],
)
def test_a_rule_that_can_be_is_not(rule: Rule):
    check(rule)


def test_a_rule_that_never_fires_ends_the_search():
    assert after(make_rule("0 0 30 2 *", "Europe/Berlin"), 0) is None


def test_bounds_are_inclusive_and_hold_for_both_kinds():
    for rule in (make_rule("0 * * * *"), make_rule(every_ms=HOUR_MS)):
        bound = rule._replace(starts_ms=moment("2026-01-01 02:00"), ends_ms=moment("2026-01-01 04:00"))
        hours = [f"2026-01-01 0{hour}:00" for hour in (2, 3, 4)]
        assert times(bound, "1970-01-01 00:00", "2027-01-01 00:00") == hours
        assert after(bound, moment("2026-01-01 04:00")) is None
        assert times(bound, "2026-01-01 03:00", "2026-01-01 04:00", limit=9) == hours[1:2]
        assert times(bound, "2026-01-01 00:00", "2027-01-01 00:00", limit=1) == hours[:1]
        assert times(bound, "2026-01-01 00:00", "2027-01-01 00:00", limit=0) == []


def test_an_interval_is_anchored():
    week = make_rule(every_ms=7 * 24 * HOUR_MS)
    assert times(week, "2026-01-01 00:00", "2026-01-09 00:00") == ["2026-01-01 00:00", "2026-01-08 00:00"]
    odd = make_rule(every_ms=7000, starts="2026-01-01 00:00:03")
    first = after(odd, 0)
    assert first is not None
    assert first.nominal_ms == odd.starts_ms
    for moment_ms in range(first.nominal_ms, first.nominal_ms + 30_000, 1234):
        found = after(odd, moment_ms)
        assert found is not None
        assert 0 < found.nominal_ms - moment_ms <= 7000
        assert (found.nominal_ms - first.nominal_ms) % 7000 == 0


def test_nothing_is_due_before_1970_or_at_the_end_of_the_calendar():
    for rule in (make_rule("* * * * *", "Asia/Tokyo"), make_rule(every_ms=60_000)):
        assert after(rule, -(10**15)) == Occurrence(0, "run", "")
        assert after(rule, 10**15) is None
    late = after(make_rule("0 0 29 2 *", "Australia/Lord_Howe"), moment("9890-01-01 00:00"))
    assert late is None or late.nominal_ms < moment("9900-01-01 00:00")


def test_a_zone_that_this_node_lacks_is_told():
    with pytest.raises(CronError, match="unknown in tzdata") as raised:
        after(make_rule("@daily", "Mars/Olympus"), 0)
    assert raised.value.field == "timezone"


def test_local_text():
    rule = make_rule("@daily", "Europe/Berlin")
    assert local_text(rule, moment("2026-10-25 01:30")) == "2026-10-25T02:30:00.000+01:00"


def test_jitter_stays_before_the_next_and_is_spread():
    rules = [make_rule("0 * * * *", seed=f"job-{n}") for n in range(500)]
    noon_ms = moment("2026-01-01 12:00")
    drawn = [jitter_ms(rule, noon_ms, 60_000) for rule in rules]
    assert drawn == [jitter_ms(rule, noon_ms, 60_000) for rule in rules]
    assert 0 <= min(drawn) < 5_000
    assert 55_000 < max(drawn) <= 60_000
    assert max(jitter_ms(rule, noon_ms, 10**9) for rule in rules) < HOUR_MS
    assert {jitter_ms(rule, noon_ms, 0) for rule in rules} == {0}
    last = rules[0]._replace(ends_ms=noon_ms)
    assert max(jitter_ms(last._replace(seed=str(n)), noon_ms, 10**9) for n in range(50)) > HOUR_MS


def test_jitter_may_come_close_to_the_next_but_not_to_it():
    rule = make_rule(every_ms=1000)
    drawn = {jitter_ms(rule._replace(seed=str(n)), 0, 5000) for n in range(20_000)}
    assert drawn == set(range(1000))


def test_schedules_that_are_due_together_cost_one_evaluation():
    at_ms = moment("2033-05-05 05:05")
    before = cron._next_kept.cache_info()
    for n in range(1000):
        after(make_rule("0 * * * *", "Europe/Berlin", seed=f"job-{n}"), at_ms)
        after(make_rule("H * * * *", "Europe/Berlin", seed=f"job-{n}"), at_ms)
    assert cron._next_kept.cache_info().misses - before.misses <= 1 + 60


CODE = """
from horae_node.cron import *
made = [Rule("H H(1-5) H * *", None, "Europe/Berlin", "after", "first", None, None, f"job-{n}") for n in range(20)]
told = repr([(after(rule, 10**12), jitter_ms(rule, 10**12, 9999)) for rule in made])
"""


def test_every_process_agrees():
    """Whatever its `PYTHONHASHSEED`."""
    here: dict[str, str] = {}
    exec(CODE, here)
    command = [sys.executable, "-c", f"{CODE}\nprint(told)"]
    for seed in ("0", "1", "77"):
        there = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert there.stdout.strip() == here["told"]
