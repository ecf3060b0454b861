"""Second opinions on cron: lines made together with the values they mean, and a walk over every minute of a zone.

Shares nothing with the code under test, not even the zone's rules: it asks `zoneinfo` minute by minute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from horae_node.cron import Rule

MINUTE_MS = 60_000
EPOCH = datetime(1970, 1, 1)


def moment(text: str) -> int:
    """`2026-03-29 02:30`, with seconds or without, as ms: of UTC, or of whichever wall clock is meant."""
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def shown(at_ms: int) -> str:
    return (EPOCH + timedelta(milliseconds=at_ms)).isoformat(" ").removesuffix(":00")


def make_rule(
    cron: str | None = None,
    zone: str = "UTC",
    *,
    every_ms: int | None = None,
    gap: str = "after",
    repeat: str = "first",
    starts: str | None = None,
    ends: str | None = None,
    seed: str = "s",
) -> Rule:
    starts_ms, ends_ms = (None if text is None else moment(text) for text in (starts, ends))
    return Rule(cron, every_ms, zone, gap, repeat, starts_ms, ends_ms, seed)


class Meant(NamedTuple):
    """A field as text, and the values that it means."""

    text: str
    values: frozenset[int]


class Line(NamedTuple):
    minute: Meant
    hour: Meant
    day: Meant
    month: Meant
    weekday: Meant

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self)

    @property
    def follows_elapsed(self) -> bool:
        return any(sign in self.hour.text for sign in "*/-")

    def matches(self, local: datetime) -> bool:
        clock = local.minute in self.minute.values and local.hour in self.hour.values
        return clock and local.month in self.month.values and self._matches_day(local)

    def _matches_day(self, local: datetime) -> bool:
        day, weekday = local.day in self.day.values, local.isoweekday() % 7 in self.weekday.values
        starred = self.day.text.startswith("*") or self.weekday.text.startswith("*")
        return (day and weekday) if starred else (day or weekday)


@st.composite
def items(draw: st.DrawFn, low: int, high: int) -> Meant:
    """A star, a number, a range, each perhaps with a step."""
    first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    step = draw(st.integers(1, high + 2))
    stepped = {
        "*": range(low, high + 1, step),
        "range": range(first, last + 1, step),
        "from": range(first, high + 1, step),
    }
    kind = draw(st.sampled_from(["number", "number", "plain range", *stepped]))
    if kind == "number" or (kind == "range" and first == last):  # cronsim reads `5-5/2` as `5/2`
        return Meant(str(first), frozenset([first]))
    if kind == "plain range":
        return Meant(f"{first}-{last}", frozenset(range(first, last + 1)))
    text = {"*": "*", "range": f"{first}-{last}", "from": f"{first}"}[kind]
    return Meant(f"{text}/{step}", frozenset(stepped[kind]))


def fields(low: int, high: int, *, fixed: bool = False) -> st.SearchStrategy[Meant]:
    """One field; `fixed`: a list of numbers."""
    number = st.integers(low, high).map(lambda n: Meant(str(n), frozenset([n])))
    item = number if fixed else items(low, high)
    listed = st.lists(item, min_size=1, max_size=3).map(
        lambda each: Meant(",".join(one.text for one in each), frozenset[int]().union(*(one.values for one in each)))
    )
    return listed if fixed else listed | st.just(Meant("*", frozenset(range(low, high + 1))))


def _sunday_twice(field: Meant) -> Meant:
    return Meant(field.text, frozenset(day % 7 for day in field.values))


def lines(*, fixed: bool | None = None, often: bool = False) -> st.SearchStrategy[Line]:
    """Lines of five fields; `fixed` hours or not (None: either); `often`: on most days."""
    star = st.just(Meant("*", frozenset(range(32))))
    hours = fields(0, 23, fixed=True) if fixed else fields(0, 23)
    made = st.builds(
        Line,
        fields(0, 59),
        hours,
        star if often else fields(1, 31),
        star if often else star | fields(1, 12),
        (star | fields(0, 7).map(_sunday_twice)) if often else fields(0, 7).map(_sunday_twice),
    )
    return made if fixed is None else made.filter(lambda line: line.follows_elapsed is not fixed)


@cache
def info_of(zone: str) -> ZoneInfo:
    """The standard library's view of the same zone file; its own search would take the machine's."""
    with resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file)


class Walked(NamedTuple):
    """Each minute of a window: its moment, and what the wall clock shows."""

    zone: str
    from_ms: int
    to_ms: int
    minutes: list[tuple[int, datetime]]


@cache
def walked(zone: str, from_ms: int, to_ms: int) -> Walked:
    info = info_of(zone)
    moments = range(from_ms, to_ms, MINUTE_MS)
    minutes = [
        (ms, datetime.fromtimestamp(ms // 1000, UTC).astimezone(info).replace(tzinfo=None, fold=0)) for ms in moments
    ]
    return Walked(zone, from_ms, to_ms, minutes)


def due_in(walk: Walked, line: Line, *, gap: str, repeat: str) -> dict[int, str]:
    """Moment → kind, as the contract has it, of a window that begins and ends far from changes of the clocks."""
    if line.follows_elapsed:
        return {at_ms: "run" for at_ms, local in walk.minutes if line.matches(local)}
    shows: dict[datetime, list[int]] = {}
    for at_ms, local in walk.minutes:
        shows.setdefault(local, []).append(at_ms)
    due: dict[int, str] = {}
    local, last = walk.minutes[0][1], walk.minutes[-1][1]
    while local <= last:
        if line.matches(local):
            for at_ms, kind in _fates(walk, shows.get(local, []), local, gap=gap, repeat=repeat):
                due[at_ms] = "run" if due.get(at_ms) == "run" else kind
        local += timedelta(minutes=1)
    return dict(sorted(due.items()))


def _fates(walk: Walked, times_ms: list[int], local: datetime, *, gap: str, repeat: str) -> list[tuple[int, str]]:
    if times_ms:
        chosen = {"first": times_ms[:1], "last": times_ms[-1:], "both": times_ms}[repeat]
        return [(at_ms, "run") for at_ms in chosen]
    jump_ms = next(at_ms for at_ms, shown_then in walk.minutes if shown_then > local)
    return [(jump_ms, "run" if gap == "after" else "dst_skipped")]
