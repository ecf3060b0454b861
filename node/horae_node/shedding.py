"""What is turned away under load, in which order, how much may wait of what, and when it is worth asking again.

New work goes first, then reads, then endings: so work in hand drains, and with it the load. A refusal names a moment
that is reckoned, not wished: from what waits, and how fast such things were done lately. Not here: what waits (the
proposer's commands, the service's callers). Next to read: `proposer.py`, then `docs/operations.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final, NamedTuple

from horae_node.clock import Clock
from horae_node.errors import NotApplied


class Rank(IntEnum):
    """What a call is, in the order in which calls are turned away."""

    NEW = 0
    """Submits, claims, and whatever else changes jobs that nobody has in hand."""
    READ = 1
    """Linearizable readings: they wait for the leader to be sure that it leads."""
    ENDING = 2
    """Heartbeats and endings, and what operators take load off with."""


SHARES: Final[dict[Rank, int]] = {Rank.NEW: 100, Rank.READ: 150, Rank.ENDING: 200}
"""Percent of a bound at which each rank is turned away. Between two of them lies more than one call can add."""

FLOORS: Final[dict[Rank, int]] = {Rank.NEW: 0, Rank.READ: 100, Rank.ENDING: 150}
"""Percent of a bound by which each rank is asked back: who brings new work once all that waits is done, the others as
soon as no more waits than the rank before them may add to."""

RETRY_AFTER_S_MAX: Final = 60
"""What was reckoned for later than this would be a guess."""

MEMORY_S: Final = 3.0
"""A rate is that of the last seconds in which there was something to do: longer than a pause for a sync, and shorter
than what a queue that is full takes to drain."""


class Bounds(NamedTuple):
    """How much may wait on one node."""

    commands: int = 20_000
    """Two to four seconds of what small machines store, one job a request."""
    command_bytes: int = 32 * 1024 * 1024
    """The same of large ones: four of the largest bodies."""
    claims: int = 20_000
    """Parked claims: each costs a connection, and no work while nothing is ready."""
    finish_waits: int = 20_000
    """Readings with `wait_seconds`, likewise."""
    reads: int = 5_000
    """Readings that wait for a round of heartbeats, which serves all of them at once."""
    turns: int = 100
    """Pages of lists, large batches, reckonings of schedules: one a pass of the loop, the largest some 20 ms of it."""

    def within(self, connections: int) -> Bounds:
        """No more long waits than so many connections allow, with a quarter left for all other calls."""
        claims, finish_waits = min(self.claims, connections // 2), min(self.finish_waits, connections // 4)
        return self._replace(claims=claims, finish_waits=finish_waits)


class Drain:
    """How fast something that waits is done: a second of the time in which there was anything to do, lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._units = self._busy_s = 0.0
        self._since_s: float | None = None

    @property
    def busy(self) -> bool:
        return self._since_s is not None

    def begin(self) -> None:
        """There is something to do from now on. A second call does nothing."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic()

    def took(self, units: int) -> None:
        """So much was done since the last word. Nothing is counted in a pause."""
        if self._since_s is None:
            return
        now_s = self._clock.monotonic()
        self._units, self._busy_s = self._faded(now_s)
        self._units += units
        self._since_s = now_s

    def pause(self) -> None:
        """There is nothing to do any more."""
        self._since_s = None

    def per_second(self) -> float:
        """0 when nothing was done yet."""
        units, busy_s = self._faded(self._clock.monotonic())
        return units / busy_s if busy_s > 0 else 0.0

    def seconds_for(self, units: float) -> int:
        """Whole seconds, from 1 to `RETRY_AFTER_S_MAX`, until so much is done. Of what has not moved at all nobody
        knows: as long again as it has been standing still."""
        rate = self.per_second()
        wait_s = units / rate if rate > 0 else self._faded(self._clock.monotonic())[1]
        return min(max(1, math.ceil(wait_s)), RETRY_AFTER_S_MAX)

    def _faded(self, now_s: float) -> tuple[float, float]:
        """Units and seconds by now, older ones weighing less."""
        span_s = 0.0 if self._since_s is None else now_s - self._since_s
        kept = math.exp(-span_s / MEMORY_S)
        return self._units * kept, self._busy_s * kept + span_s


class Crowd:
    """Callers that wait for one kind of thing, at most so many of them."""

    def __init__(self, what: str, most: int) -> None:
        """`what`: whom the refusal names, in the plural."""
        self._what = what
        self._most = most
        self.waiting = 0

    @contextmanager
    def one(self, percent: int = 100) -> Iterator[None]:
        """While entered, one more waits; only `percent` of the bound are free to this one.

        Raises: `NotApplied("rate_limited")` when as many wait already: a second frees places, for these waits are short
        or, where they last for up to a minute, thousands end at different moments of it.
        """
        if self.waiting * 100 >= self._most * percent:
            raise shed(f"{self.waiting} {self._what} wait already", 1)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1


def shed(why: str, seconds: int) -> NotApplied:
    """The refusal that load is turned away with."""
    return NotApplied("rate_limited", f"{why}: try again in {seconds} s", retry_after_ms=seconds * 1000)
