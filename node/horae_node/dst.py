"""What becomes of local times when the clocks change: from matches of a wall clock to moments of UTC.

- *Fixed local times* (cron: the hour is a number or a list of numbers). A time that the clocks jump over is due once,
  at the jump, or `skip`ped; several at one jump are one, and one with what is due there anyway. A time that comes twice
  is due the `first`, the `last` or `both` times.
- *Elapsed time* (the hour has a wildcard, range or step): due whenever the wall clock matches, so an hourly job is due
  in every real hour, and nothing is made up for. As Debian's cron, which however asks for a star, in the minutes too:
  ours is the contract's rule.

Pure, and free of croniter: a wall clock is whatever answers as `Wall` does. The clocks are in `zones.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from horae_node.zones import REACH_MS, Span, Zone

LAST_MS: Final = 250_000_000_000_000
"""The year 9892: later there is nothing, so that no search meets the end of the calendar."""

_EPOCH: Final = datetime(1970, 1, 1)
_ORDINALS: Final = ("first", "second", "third", "fourth")
_NUMBERS: Final = ("", "one", "two", "three", "four")


class Occurrence(NamedTuple):
    """One nominal time, UTC. `kind` is `run`, or `dst_skipped`: a local time that does not exist, at the jump."""

    nominal_ms: int
    kind: str
    note: str
    """For people, of what the clocks did: empty, or `02:30 does not exist: moved to 03:00 CEST`."""


class Policy(NamedTuple):
    """How a schedule takes a change of the clocks."""

    follows_elapsed: bool
    gap: str
    """`after` or `skip`; of fixed local times only, as `repeat` is."""
    repeat: str
    """`first`, `last` or `both`."""


class Wall(Protocol):
    """The local times of a schedule, as if clocks never changed."""

    def at_or_after(self, local_ms: int) -> int | None:
        """The first one at or after `local_ms`. None: there is none any more, whatever comes later."""
        ...


def next_occurrence(policy: Policy, clock: Zone, wall: Wall, from_ms: int) -> Occurrence | None:
    """The first occurrence at or after `from_ms`; None: there is none any more.

    Goes span by span, each with one offset. Where the wall clock has nothing until much later, the changes in between
    need no look: they move no local time further than `REACH_MS`.
    """
    at_ms = from_ms
    while at_ms <= LAST_MS:
        span = clock.span_at(at_ms)
        if (found := _first_in(_Search(policy, clock, wall, span), at_ms)) is not None:
            return found
        local_ms = wall.at_or_after(at_ms + span.offset_ms)
        if local_ms is None:
            return None
        at_ms = max(span.end_ms, local_ms - REACH_MS) if span.end_ms - at_ms > REACH_MS else span.end_ms
    return None


class _Search(NamedTuple):
    """One span of a zone, looked through."""

    policy: Policy
    clock: Zone
    wall: Wall
    span: Span


def _first_in(search: _Search, from_ms: int) -> Occurrence | None:
    """The first occurrence at or after `from_ms` within the span: a run, or what the jump at its start passed over."""
    run_ms = _first_run(search, from_ms)
    lost_ms = _lost_at_start(search) if from_ms <= search.span.start_ms else []
    if not lost_ms:
        return None if run_ms is None else Occurrence(run_ms, "run", _note_of_repeat(search, run_ms))
    at_ms = search.span.start_ms
    if run_ms == at_ms:
        became = "skipped" if search.policy.gap == "skip" else "this run stands for it"
        return Occurrence(at_ms, "run", _note_of_gap(search, lost_ms, became))
    if search.policy.gap == "skip":
        return Occurrence(at_ms, "dst_skipped", _note_of_gap(search, lost_ms, "skipped"))
    target = f"moved to {_clock_text(at_ms + search.span.offset_ms)} {search.clock.short_name(at_ms)}"
    return Occurrence(at_ms, "run", _note_of_gap(search, lost_ms, target))


def _first_run(search: _Search, from_ms: int) -> int | None:
    """The first local time of the span that the wall clock matches and the policy does not leave to another span."""
    span = search.span
    local_ms = search.wall.at_or_after(max(from_ms, span.start_ms) + span.offset_ms)
    while local_ms is not None and local_ms - span.offset_ms < span.end_ms:
        rival = _rival(search, local_ms)
        if rival is None:
            return local_ms - span.offset_ms
        local_ms = search.wall.at_or_after(rival.end_ms + rival.offset_ms)
    return None


def _rival(search: _Search, local_ms: int) -> Span | None:
    """The other span that has this local time too and the better right to it; it has all that follow until its end."""
    policy, span = search.policy, search.span
    at_ms = local_ms - span.offset_ms
    if policy.follows_elapsed or policy.repeat == "both" or span.is_quiet_at(at_ms):
        return None
    others = [
        other
        for other in search.clock.spans_near(local_ms)
        if other.start_ms <= local_ms - other.offset_ms < other.end_ms
        and (local_ms - other.offset_ms < at_ms if policy.repeat == "first" else local_ms - other.offset_ms > at_ms)
    ]
    return others[0] if others else None


def _lost_at_start(search: _Search) -> list[int]:
    """The first fixed local times, at most two, that the jump at the span's start passed over.

    Two tell one from many; a jump over a whole day may pass over thousands. No other change is near enough to bring one
    of them after all.
    """
    span, lost = search.span, list[int]()
    if search.policy.follows_elapsed:
        return lost
    end_ms = span.start_ms + span.offset_ms
    local_ms = search.wall.at_or_after(span.start_ms + span.before_ms)
    while local_ms is not None and local_ms < end_ms and len(lost) < 2:
        lost.append(local_ms)
        local_ms = search.wall.at_or_after(local_ms + 1)
    return lost


def _note_of_repeat(search: _Search, at_ms: int) -> str:
    if search.span.is_quiet_at(at_ms):
        return ""
    local_ms = at_ms + search.span.offset_ms
    times_ms = search.clock.instants_of(local_ms)
    if len(times_ms) < 2:
        return ""
    return f"{_ORDINALS[times_ms.index(at_ms)]} of {_NUMBERS[len(times_ms)]} {_clock_text(local_ms)}"


def _note_of_gap(search: _Search, lost_ms: list[int], became: str) -> str:
    """Of many lost times the first is named; with its date, if the jump was over midnight."""
    first_ms = lost_ms[0]
    lost, jump = (
        _EPOCH + timedelta(milliseconds=ms) for ms in (first_ms, search.span.start_ms + search.span.offset_ms)
    )
    date = "" if lost.date() == jump.date() else f"{lost.date().isoformat()} "
    more = " and others do not exist" if len(lost_ms) > 1 else " does not exist"
    return f"{date}{_clock_text(first_ms)}{more}: {became}"


def _clock_text(local_ms: int) -> str:
    """`02:30`, with seconds where there are any."""
    local = _EPOCH + timedelta(milliseconds=local_ms)
    return local.strftime("%H:%M:%S" if local.second else "%H:%M")
