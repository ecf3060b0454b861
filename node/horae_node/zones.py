"""The clocks of a time zone: how far from UTC they stand, when they change, and when a wall clock shows a local time.

The rules come from the `tzdata` package alone, never from the machine's own files: nodes with the same package agree,
whatever their systems have (`version` says which it is, so that a difference between nodes can be seen). All moments
are ms; a *local* moment is what the wall clock shows, reckoned as if it were UTC. Not here: cron (`cron.py`).
"""

from __future__ import annotations

import difflib
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from importlib import metadata, resources
from itertools import pairwise
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

REACH_MS: Final = 48 * 3_600_000
"""Further from a change than this a local time is not touched by it: the widest change was a whole day (Apia, 2011)."""

ZONES_MAX: Final = 1024
"""There are about 600 names."""

YEARS_MAX: Final = 4096
"""Tables of one zone and year: all zones for a few years, of some ten numbers each."""

_DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A stretch of time, `start_ms <= t < end_ms`, of one offset; `before_ms` is the offset just before it.

    A span may also begin or end where nothing changes, a year or more away: then its neighbour has the same offset.
    """

    start_ms: int
    end_ms: int
    offset_ms: int
    before_ms: int

    def is_quiet_at(self, at_ms: int) -> bool:
        """No change is near enough for the local time of `at_ms` to come twice."""
        return self.start_ms + REACH_MS <= at_ms < self.end_ms - REACH_MS


class Zone:
    """One IANA zone. Get it from `zone`; it keeps nothing but its rules."""

    def __init__(self, name: str) -> None:
        self.name = name
        path = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
        with path.open("rb") as file:
            self._info = ZoneInfo.from_file(file, key=name)

    def span_at(self, at_ms: int) -> Span:
        """The span that holds `at_ms`, which is of the years 1 to 9998."""
        starts_ms, offsets_ms = _table(self.name, _year(at_ms))
        index = bisect_right(starts_ms, at_ms) - 1
        before_ms = offsets_ms[max(index - 1, 0)]
        return Span(starts_ms[index], starts_ms[index + 1], offsets_ms[index], before_ms)

    def instants_of(self, local_ms: int) -> list[int]:
        """When the wall clock shows `local_ms`, in order: none in a gap, two or more where it is set back."""
        found = ((span, local_ms - span.offset_ms) for span in self.spans_near(local_ms))
        return sorted({at_ms for span, at_ms in found if span.start_ms <= at_ms < span.end_ms})

    def spans_near(self, local_ms: int) -> list[Span]:
        """The spans, in order, in which the wall clock could show `local_ms`."""
        spans = [self.span_at(local_ms - REACH_MS)]
        while spans[-1].end_ms <= local_ms + REACH_MS:
            spans.append(self.span_at(spans[-1].end_ms))
        return spans

    def short_name(self, at_ms: int) -> str:
        """What people call its time then: `CEST`, `+1030`."""
        return self._at(at_ms).tzname() or ""

    def text(self, at_ms: int) -> str:
        """RFC 3339 with ms and the zone's offset; in UTC where that offset has seconds, which RFC 3339 cannot say."""
        moment = self._at(at_ms)
        if self.offset_ms(at_ms) % 60_000:
            moment = moment.astimezone(UTC)
        return moment.isoformat(timespec="milliseconds")

    def offset_ms(self, at_ms: int) -> int:
        """Local time less UTC."""
        offset = datetime.fromtimestamp(at_ms // 1000, self._info).utcoffset() or timedelta()
        return (offset.days * _DAY_S + offset.seconds) * 1000

    def _at(self, at_ms: int) -> datetime:
        return (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(self._info)


@lru_cache(ZONES_MAX)
def zone(name: str) -> Zone:
    """The zone of that IANA name. Raises: `KeyError`, the package has no such name."""
    if name not in _names():
        raise KeyError(name)
    return Zone(name)


@lru_cache(ZONES_MAX)
def names_like(name: str) -> list[str]:
    """At most three names that somebody may have meant."""
    folded = {known.casefold(): known for known in sorted(_names())}
    return [folded[near] for near in difflib.get_close_matches(name.casefold(), folded, n=3)]


def forget() -> None:
    """Nothing that was read is kept."""
    for kept in (zone, _names, _table, _changes, names_like):
        kept.cache_clear()


def version() -> str:
    """The release of the rules: `2026.6`. Two nodes with different ones may differ over a future local time."""
    return metadata.version("tzdata")


@cache
def _names() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


@lru_cache(YEARS_MAX)
def _table(name: str, year: int) -> tuple[list[int], list[int]]:
    """Where spans start, and after them the end of all; their offsets. Over the year and both its neighbours: a span
    that holds a moment of the year has its true edges, or ends further away than `REACH_MS`."""
    years = range(max(year - 1, 1), year + 2)
    first_ms = _new_year_ms(years[0])
    changes = [change for each in years for change in _changes(name, each)]
    starts_ms = [first_ms, *(at_ms for at_ms, _ in changes), _new_year_ms(year + 2)]
    return starts_ms, [zone(name).offset_ms(first_ms), *(offset_ms for _, offset_ms in changes)]


@lru_cache(YEARS_MAX)
def _changes(name: str, year: int) -> list[tuple[int, int]]:
    """The moments of a year of UTC at which the zone's offset changes, each with the new offset.

    Looks once a day: no zone has changed twice within six since 1970 (a test holds every new release to that).
    """
    clock = zone(name)
    days_s = range(_new_year_ms(year) // 1000, _new_year_ms(year + 1) // 1000 + 1, _DAY_S)
    offsets = [(day_s, clock.offset_ms(day_s * 1000)) for day_s in days_s]
    return [
        (_change_s(clock, low_s, high_s) * 1000, after_ms)
        for (low_s, before_ms), (high_s, after_ms) in pairwise(offsets)
        if before_ms != after_ms
    ]


def _change_s(clock: Zone, low_s: int, high_s: int) -> int:
    """The first second after `low_s` whose offset is that of `high_s`."""
    old_ms = clock.offset_ms(low_s * 1000)
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if clock.offset_ms(middle_s * 1000) == old_ms:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s


def _new_year_ms(year: int) -> int:
    return (datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def _year(at_ms: int) -> int:
    return (_EPOCH + timedelta(milliseconds=at_ms)).year
