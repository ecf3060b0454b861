"""When a schedule is due: cron lines and intervals, in any time zone, over every change of its clocks.

The leader evaluates schedules here and writes what comes out into the log; the machine never does (nodes may differ in
their zone data, the log may not). croniter, whose only home this is, walks the wall clock as if there were no zones:
what becomes of a local time when clocks change is ours (`dst.py`), because croniter 7 fires a fixed daily time twice
when they go back.

Cheap for many schedules that are due at once: they share one evaluation. Pure but for its caches; one thread. The text
of a line is read in `cron_text.py`, the clocks are in `zones.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from croniter import MONTH_FIELD, CroniterBadDateError, CroniterError, croniter

from horae_node import cron_text, zones
from horae_node.cron_text import CronError
from horae_node.dst import LAST_MS, Occurrence, Policy, next_occurrence
from horae_node.zones import Zone

__all__ = [
    "CronError",
    "Occurrence",
    "Rule",
    "after",
    "between",
    "check",
    "each",
    "following",
    "forget",
    "jitter_ms",
    "local_text",
    "offset_ms",
    "trouble",
]

EVERY_MIN_MS: Final = 1000
"""The contract's: nothing is due more often than once a second."""

SOON_YEARS: Final = 12
"""A month begins with each weekday at least once in so many years, 2100 or not."""

LEAP_YEARS: Final = 41
"""29 February is on each weekday at least once in so many: over 2100 it takes 40."""

ANSWERS_MAX: Final = 16_384
"""Answers kept, some 500 bytes each: a herd has 300 lines × 50 zones at one instant."""

PLANS_MAX: Final = 16_384
"""Some 300 bytes each."""

EXPRESSIONS_MAX: Final = 8192
"""Compiled lines kept, about 3 KB each: `H H` gives 3600 texts for one line."""

_EPOCH: Final = datetime(1970, 1, 1)


class Rule(NamedTuple):
    """What determines the nominal times; either `cron` or `every_ms`. Moments are UTC; both bounds are inclusive."""

    cron: str | None
    every_ms: int | None
    timezone: str
    dst_gap: str
    """`after`: once, at the jump; or `skip`."""
    dst_repeat: str
    """`first`, `last` or `both`."""
    starts_ms: int | None
    ends_ms: int | None
    seed: str
    """The schedule's id: spreads `H`, and the jitter."""


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What schedules have in common that are due at the same times.

    Compared by identity, so that the answers kept for it are found fast: `_plan_of` gives one for equal values.
    """

    expressions: tuple[str, ...]
    timezone: str
    policy: Policy


def check(rule: Rule) -> None:
    """The rule can be evaluated and is due at least once. Raises: `CronError`."""
    if (rule.cron is None) == (rule.every_ms is None):
        raise CronError("cron", "write either cron or every_seconds")
    if rule.every_ms is not None and rule.every_ms < EVERY_MIN_MS:
        raise CronError("every_seconds", "shorter than a second: write 1 or more")
    if rule.dst_gap not in ("after", "skip"):
        raise CronError("dst_gap", f"{rule.dst_gap!r}: write after or skip")
    if rule.dst_repeat not in ("first", "last", "both"):
        raise CronError("dst_repeat", f"{rule.dst_repeat!r}: write first, last or both")
    _zone(rule.timezone)
    if rule.cron is not None and _wall(_plan(rule).expressions).at_or_after(0) is None:
        raise CronError(
            "cron", f"{rule.cron!r} never fires: no month that it names has such a day; change day or month"
        )
    _check_bounds(rule)


def after(rule: Rule, moment_ms: int) -> Occurrence | None:
    """The first occurrence after `moment_ms`; none before 1970. None: there is none any more, which stays so.

    Raises: `CronError`, this node cannot evaluate it: its zone data lack the zone.
    """
    return _after(rule, moment_ms, _next_kept)


def following(rule: Rule, settled_ms: int, settled_offset_ms: int | None) -> Occurrence | None:
    """The first occurrence after one that has come; `settled_offset_ms`: what `offset_ms` said of it, maybe elsewhere.

    Where this node's data have another offset for that moment, its clocks were changed since, as it were right after
    it. Local times up to the settled one do not come once more. Those that now lie before it were jumped over: they are
    due once, a millisecond after it, or skipped (`dst_gap`), as at any jump. Raises: as `after`.
    """
    if settled_offset_ms is None:
        return after(rule, settled_ms)
    own_ms = _offset_ms(rule.timezone, settled_ms)
    if own_ms == settled_offset_ms or not _has_fixed_times(rule):
        return after(rule, settled_ms)
    if own_ms > settled_offset_ms:
        lost = _lost_to_data(rule, settled_ms, settled_offset_ms, own_ms)
        return after(rule, settled_ms) if lost is None else lost
    found = after(rule, _passed_again_ms(rule, settled_ms, settled_offset_ms, own_ms))
    while found is not None and _local_ms(rule, found.nominal_ms) <= settled_ms + settled_offset_ms:
        found = after(rule, found.nominal_ms)
    return found


def offset_ms(rule: Rule, at_ms: int) -> int | None:
    """Local time less UTC, then. None: local times do not count, it is an interval or follows elapsed time.

    Raises: as `after`.
    """
    return _offset_ms(rule.timezone, at_ms) if _has_fixed_times(rule) else None


def between(rule: Rule, from_ms: int, to_ms: int, limit: int) -> list[Occurrence]:
    """The first `limit` occurrences with `from_ms <= nominal_ms < to_ms`, in order: what repeated `after` gives.

    Each is evaluated anew, some 50 µs, and nothing is kept: a long list shall not push out what the herd shares.
    Raises: as `after`.
    """
    return list(islice(each(rule, from_ms, to_ms), limit))


def each(rule: Rule, from_ms: int, to_ms: int) -> Iterator[Occurrence]:
    """All of them, one by one: a rare one takes a millisecond or two. Raises: as `after`."""
    moment_ms = from_ms - 1
    while (occurrence := _after(rule, moment_ms, _next_cron)) is not None and occurrence.nominal_ms < to_ms:
        yield occurrence
        moment_ms = occurrence.nominal_ms


def trouble(rule: Rule) -> str | None:
    """Why this node cannot evaluate a rule that another one could. An interval needs no zone."""
    if rule.cron is None:
        return None
    try:
        _zone(rule.timezone)
        _plan(rule)
    except CronError as error:
        return str(error)
    return None


def forget() -> None:
    """Nothing that was reckoned is kept: the zone data are others now (no node's change while it runs)."""
    zones.forget()
    _next_kept.cache_clear()
    _offset_ms.cache_clear()


def local_text(rule: Rule, at_ms: int) -> str:
    """The moment as the schedule's zone shows it: RFC 3339 with the zone's offset. Raises: as `after`."""
    return _zone(rule.timezone).text(at_ms)


def jitter_ms(rule: Rule, nominal_ms: int, jitter_max_ms: int) -> int:
    """How long after its nominal time that trigger is due, 0 to `jitter_max_ms`, and before the next occurrence.

    The same on every node and each time, evenly spread over schedules. Raises: as `after`.
    """
    following = after(rule, nominal_ms) if jitter_max_ms > 0 else None
    widest_ms = jitter_max_ms if following is None else min(jitter_max_ms, following.nominal_ms - nominal_ms - 1)
    text = f"{nominal_ms}\0{rule.seed}".encode()
    digest = hashlib.blake2b(text, digest_size=8, person=b"horae jitter").digest()
    return int.from_bytes(digest, "big") % (max(widest_ms, 0) + 1)


def _after(rule: Rule, moment_ms: int, next_cron: Callable[[_Plan, int], Occurrence | None]) -> Occurrence | None:
    from_ms = max(moment_ms + 1, rule.starts_ms or 0, 0)
    if from_ms > LAST_MS:
        return None
    found = _next_interval(rule, from_ms) if rule.every_ms is not None else next_cron(_plan(rule), from_ms)
    return found if found is not None and found.nominal_ms <= _end_ms(rule) else None


def _has_fixed_times(rule: Rule) -> bool:
    return rule.cron is not None and not cron_text.read(rule.cron).follows_elapsed


@lru_cache(ANSWERS_MAX)
def _offset_ms(zone: str, at_ms: int) -> int:
    """A herd asks for one instant again and again."""
    return _zone(zone).offset_ms(at_ms)


def _local_ms(rule: Rule, at_ms: int) -> int:
    return at_ms + _offset_ms(rule.timezone, at_ms)


def _lost_to_data(rule: Rule, settled_ms: int, old_ms: int, own_ms: int) -> Occurrence | None:
    """What stands for the local times after the settled one that by this node's offset were before it."""
    wall = _wall(_plan(rule).expressions)
    lost_ms = wall.at_or_after(settled_ms + old_ms + 1)
    if lost_ms is None or lost_ms >= settled_ms + own_ms or settled_ms + 1 > _end_ms(rule):
        return None
    if wall.at_or_after(settled_ms + own_ms) == settled_ms + own_ms:
        return None  # the settled one stands for them: it came at a local time that is due
    kind = "dst_skipped" if rule.dst_gap == "skip" else "run"
    return Occurrence(settled_ms + 1, kind, "local times were passed over: the rules of the time zone were changed")


def _passed_again_ms(rule: Rule, settled_ms: int, old_ms: int, own_ms: int) -> int:
    """When the wall clock, put back by a release of data, shows the settled local time; no later than its next change:
    so that it is no walk over each second until then."""
    span = _zone(rule.timezone).span_at(settled_ms)
    return max(settled_ms, min(settled_ms + old_ms - own_ms, span.end_ms - 1))


def _check_bounds(rule: Rule) -> None:
    if rule.starts_ms is None or rule.ends_ms is None:
        return
    if rule.starts_ms > rule.ends_ms:
        raise CronError("starts_at", "is after ends_at: write an earlier start, or a later end")
    if after(rule, rule.starts_ms - 1) is None:
        raise CronError("ends_at", "nothing is due between starts_at and ends_at: write a later end")


def _end_ms(rule: Rule) -> int:
    return LAST_MS if rule.ends_ms is None else min(rule.ends_ms, LAST_MS)


def _next_interval(rule: Rule, from_ms: int) -> Occurrence:
    """Reckoned from the anchor, never from the last trigger: nothing drifts."""
    assert rule.every_ms is not None
    anchor_ms = rule.starts_ms or 0
    steps = -((anchor_ms - from_ms) // rule.every_ms)
    return Occurrence(anchor_ms + steps * rule.every_ms, "run", "")


def _zone(name: str) -> Zone:
    try:
        return zones.zone(name)
    except KeyError:
        near = " or ".join(zones.names_like(name)) or "an IANA name such as Europe/Berlin"
        raise CronError("timezone", f"{name!r} is unknown in tzdata {zones.version()}: write {near}") from None


def _plan(rule: Rule) -> _Plan:
    """Lines with `H` are spread each time: there are as many as schedules, and they would push out what is shared."""
    if rule.cron is None:
        raise CronError("cron", "write either cron or every_seconds")
    line = cron_text.read(rule.cron)
    if not line.has_spread:
        return _plan_of_text(rule.cron, rule.timezone, rule.dst_gap, rule.dst_repeat)
    texts = cron_text.expressions(line, rule.seed)
    return _plan_of(texts, line.follows_elapsed, rule.timezone, rule.dst_gap, rule.dst_repeat)


@lru_cache(PLANS_MAX)
def _plan_of_text(cron: str, timezone: str, gap: str, repeat: str) -> _Plan:
    line = cron_text.read(cron)
    return _plan_of(cron_text.expressions(line, ""), line.follows_elapsed, timezone, gap, repeat)


@lru_cache(PLANS_MAX)
def _plan_of(expressions: tuple[str, ...], follows_elapsed: bool, timezone: str, gap: str, repeat: str) -> _Plan:
    return _Plan(expressions, timezone, Policy(follows_elapsed, gap, repeat))


def _next_cron(plan: _Plan, from_ms: int) -> Occurrence | None:
    return next_occurrence(plan.policy, _zone(plan.timezone), _wall(plan.expressions), from_ms)


_next_kept = lru_cache(ANSWERS_MAX)(_next_cron)


class _Wall:
    """The local times that one or two croniter expressions match. Remembers its last answer, which often serves the
    next question: other zones, other spans and the next trigger ask for the same stretch."""

    def __init__(self, expressions: tuple[str, ...]) -> None:
        self._expressions = [_Expression(text) for text in expressions]
        self._asked_ms, self._found_ms = 1, 0

    def at_or_after(self, local_ms: int) -> int | None:
        """The first match at or after `local_ms`. None: there never is any."""
        if not self._asked_ms <= local_ms <= self._found_ms:
            found = [at_ms for each in self._expressions if (at_ms := each.at_or_after(local_ms)) is not None]
            if not found:
                return None
            self._asked_ms, self._found_ms = local_ms, min(found)
        return self._found_ms


@lru_cache(EXPRESSIONS_MAX)
def _wall(expressions: tuple[str, ...]) -> _Wall:
    return _Wall(expressions)


class _Expression:
    """One croniter expression. What `SOON_YEARS` do not have, only a leap day can: then it looks at Februaries alone.
    So a search that finds nothing takes some tens of milliseconds at most; and it is made once."""

    def __init__(self, text: str) -> None:
        *clock, day, _, weekday = text.split()
        self._soon = _compiled(text, SOON_YEARS)
        has_february = not {"*", 2}.isdisjoint(self._soon.expanded[MONTH_FIELD])
        self._february = " ".join([*clock, day, "2", weekday]) if has_february else None
        self._is_never = False

    def at_or_after(self, local_ms: int) -> int | None:
        if self._is_never:
            return None
        found_ms = _ask(self._soon, local_ms)
        if found_ms is None and self._february is not None:
            found_ms = _ask(_compiled(self._february, LEAP_YEARS), local_ms)
        self._is_never = found_ms is None
        return found_ms


def _compiled(text: str, years: int) -> croniter:
    """Day-of-month and day-of-week are always and-ed here: `cron_text.expressions` took an or apart."""
    try:
        return croniter(text, _EPOCH, day_or=False, max_years_between_matches=years, second_at_beginning=True)
    except CroniterError as error:
        raise CronError("cron", f"is not understood: {error}; write it as crontab(5) has it") from error


def _ask(iterator: croniter, local_ms: int) -> int | None:
    """croniter looks strictly after a moment, in whole seconds."""
    before_s = -(-local_ms // 1000) - 1
    try:
        found = iterator.get_next(datetime, start_time=_EPOCH + timedelta(seconds=before_s))
    except CroniterBadDateError:
        return None
    found_s: int = (found - _EPOCH) // timedelta(seconds=1)
    return found_s * 1000
