"""Cron lines as text: what is read, how croniter gets it, what is refused and with which advice; `H`."""

from __future__ import annotations

from collections import Counter

import pytest

from horae_node.cron_text import ALIASES, FIELDS, CronError, expressions, read


def spelled(cron: str, seed: str = "s") -> list[str]:
    return list(expressions(read(cron), seed))


@pytest.mark.parametrize(
    ("cron", "texts"),
    [
        ("*/5 0-12/3 1,15 * ?", ["*/5 0-12/3 1,15 * *"]),
        ("  0   0  *\t* *", ["0 0 * * *"]),
        ("30 59 23 31 DEC *", ["30 59 23 31 12 *"]),
        ("0 0 * jan-Mar,OCT mon-FRI", ["0 0 * 1-3,10 1-5"]),
        ("0 0 L * *", ["0 0 l * *"]),
        ("0 0 25-L/2 * *", ["0 0 25-31/2 * *"]),
        ("0 0 15W * *", ["0 0 15w * *"]),
        ("0 0 W1 * *", ["0 0 1w * *"]),
        ("0 0 * * 5L,L1", ["0 0 * * l5,l1"]),
        ("0 0 * * fri#2", ["0 0 * * 5#2"]),
        ("0 0 * * mon-wed#1", ["0 0 * * 1#1,2#1,3#1"]),
        ("@daily", ["0 0 * * *"]),
        (" @Hourly ", ["0 * * * *"]),
    ],
)
def test_a_line_is_read(cron: str, texts: list[str]):
    assert spelled(cron) == texts


@pytest.mark.parametrize(
    ("cron", "texts"),
    [
        ("0 5-5 * * *", ["0 5 * * *"]),
        ("0 5-05/2 * * *", ["0 5 * * *"]),
        ("0 0 * * 7-0", ["0 0 * * 7"]),
        ("0 0 * * mon-1", ["0 0 * * 1"]),
        ("0 0 * * 1/2", ["0 0 * * 1-7/2"]),
        ("0 0 * * 7/2", ["0 0 * * 7"]),
    ],
)
def test_what_croniter_reads_as_more_is_spelled_out(cron: str, texts: list[str]):
    assert spelled(cron) == texts


@pytest.mark.parametrize(
    ("cron", "texts"),
    [
        ("0 0 13 * 5", ["0 0 13 * *", "0 0 * * 5"]),
        ("1 2 3 L * 5L", ["1 2 3 l * *", "1 2 3 * * l5"]),
        ("0 0 15W * 1", ["0 0 15w * *", "0 0 * * 1"]),
        ("0 0 */2 * 1", ["0 0 */2 * 1"]),
        ("0 0 13 * */2", ["0 0 13 * */2"]),
        ("0 0 ? * 1", ["0 0 * * 1"]),
    ],
)
def test_two_restricted_days_are_either(cron: str, texts: list[str]):
    assert spelled(cron) == texts


@pytest.mark.parametrize(
    ("hours", "elapsed"),
    [("2 2,14 H H(1-5)", False), ("* */2 1-5 1-1 2,4-6 H/4 H(1-5)/2 5/6 5,*", True)],
)
def test_the_hour_says_whether_times_are_fixed(hours: str, elapsed: bool):
    for hour in hours.split():
        assert read(f"0 {hour} * * *").follows_elapsed is elapsed
        assert read(f"0 0 {hour} * * *").follows_elapsed is elapsed


@pytest.mark.parametrize(
    ("cron", "advice"),
    [
        ("", "0 fields: write 5"),
        ("* * * *", "4 fields"),
        ("* * * * * * *", "7 fields"),
        ("@reboot", "write one of @hourly"),
        ("@daily now", "write one of @hourly"),
        ("61 * * * *", "minute '61' is out of range: write 0-59"),
        ("* 24 * * *", "hour '24' is out of range: write 0-23"),
        ("* * 0 * *", "day-of-month '0' is out of range: write 1-31"),
        ("* * * 13 *", "month '13'"),
        ("* * * * 8", "day-of-week '8'"),
        ("60 * * * * *", "second '60'"),
        ("*/0 * * * *", "a step of 0: write 1 or more"),
        ("H/0 * * * *", "a step of 0: write 1 or more"),
        ("-5 * * * *", "minute '-5' is not understood: write 0-59"),
        ("1,,2 * * * *", "minute '' is not understood"),
        ("? * * * *", "minute '?' is not understood"),
        ("R * * * *", "write H"),
        ("R(0-9) * * * *", "write H"),
        ("* mon * * *", "hour 'mon' is not understood"),
        ("* * * * friday", "day-of-week '5day' is not understood"),
        ("* * LW * *", "day-of-month 'lw' is not understood"),
        ("* * 15W,20W * *", "W stands alone"),
        ("* * 32W * *", "out of range"),
        ("* * * * 1,2#3", "do not mix"),
        ("* * * * 2#6", "write #1 to #5"),
        ("* * * * 5-1#2", "write the earlier day first"),
        ("* * * * L", "day-of-week 'l' is not understood"),
        ("* * * * L8", "out of range"),
        ("H(5-1) * * * *", "runs backwards"),
        ("H(0-99) * * * *", "out of range"),
        ("H(5) * * * *", "is not understood"),
        ("١ * * * *", "not ASCII"),
        ("0 0 * * *" + " " * 400, "at most 400"),
    ],
)
def test_a_refusal_names_the_fix(cron: str, advice: str):
    with pytest.raises(CronError) as raised:
        read(cron)
    assert advice in str(raised.value)
    assert raised.value.field == "cron"


def test_every_alias_is_a_line():
    for text in ALIASES.values():
        assert len(spelled(text)[0].split()) == len(FIELDS)


def test_h_stays_and_differs_between_schedules():
    """The values are pinned: another hash would move every schedule's triggers with an upgrade."""
    once = spelled("H H(1-5) H * *", "nightly")
    assert once == spelled("h h(1-5) h * *", "nightly") == ["16 2 15 * *"]
    assert spelled("H/15 * * * *", "nightly") == ["1-59/15 * * * *"]
    minutes = Counter(int(spelled("H * * * *", f"job-{n}")[0].split()[0]) for n in range(6000))
    assert set(minutes) == set(range(60))
    assert max(minutes.values()) < 2 * min(minutes.values())


def test_h_keeps_its_bounds():
    for n in range(200):
        minute, hour, day, month, weekday = spelled("H(10-19) H/7 H H(11-12) *", f"s{n}")[0].split()
        assert 10 <= int(minute) <= 19
        assert hour.endswith("-23/7")
        assert 0 <= int(hour.split("-")[0]) < 7
        assert 1 <= int(day) <= 28
        assert month in ("11", "12")
        assert weekday == "*"
        assert 0 <= int(spelled("0 0 * * H", f"s{n}")[0].split()[4]) <= 6
        (first, _, rest) = spelled("0 0 * * *  H(3-5)/9".replace("*  ", ""), f"s{n}")[0].split()[4].partition("-")
        assert (3 <= int(first) <= 4 and rest == "5/9") or (first == "5" and rest == "")


def test_fields_of_one_schedule_are_spread_apart():
    pairs = {tuple(spelled("H H * * *", f"job-{n}")[0].split()[:2]) for n in range(2000)}
    assert len(pairs) > 1000


def test_h_may_be_one_of_a_list():
    minutes = spelled("H(0-29),H(30-59) * * * *", "nightly")[0].split()[0].split(",")
    assert int(minutes[1]) - int(minutes[0]) == 30
