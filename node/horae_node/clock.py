"""The only place of the node that reads a clock. Everything else is handed a `Clock`, or a moment.

Moments are `int` milliseconds since the Unix epoch, UTC (`*_ms`); spans are measured on the monotonic clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """This host's wall clock, ms since the Unix epoch. May jump."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back within one process."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back within one process (the consensus library's unit)."""
        ...


class SystemClock:
    """The host's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to (tests). `wall_offset_ms` lets the wall clock lie."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._elapsed_ms = 0
        self.wall_offset_ms = 0

    def advance(self, ms: int) -> None:
        """Move both clocks on by `ms` (>= 0)."""
        assert ms >= 0
        self._elapsed_ms += ms

    def wall_ms(self) -> int:
        return self._start_ms + self._elapsed_ms + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return self._elapsed_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000


class ClusterClock:
    """The median of the members' wall clocks, carried on this node's monotonic clock.

    One member whose clock is wrong, this one or another, moves the median by no more than the spread of the right
    ones. With fewer than three samples the median is the lower one: the earlier clock, so nothing fires early
    (DESIGN.md 4). Offsets of members not heard of for `STALE_MS` are left out.
    """

    STALE_MS = 10_000

    def __init__(self, clock: Clock, own_id: str) -> None:
        self._clock = clock
        self._own_id = own_id
        self._offsets: dict[str, tuple[int, int]] = {}

    def observe(self, node_id: str, wall_ms: int) -> None:
        """Take in a member's wall clock as it stood when its answer arrived."""
        mono = self._clock.monotonic_ms()
        self._offsets[node_id] = (wall_ms - mono, mono)

    def forget(self) -> None:
        """Drop what was learnt (leadership lost)."""
        self._offsets.clear()

    def now_ms(self) -> int:
        """Cluster time, ms since the Unix epoch."""
        mono = self._clock.monotonic_ms()
        oldest = mono - self.STALE_MS
        offsets = [offset for offset, seen in self._offsets.values() if seen > oldest]
        offsets.append(self._clock.wall_ms() - mono)
        offsets.sort()
        return mono + offsets[(len(offsets) - 1) // 2]

    def skew_ms(self) -> dict[str, int]:
        """Each known member's wall clock less cluster time, ms (this node included)."""
        mono = self._clock.monotonic_ms()
        now = self.now_ms()
        skews = {node: mono + offset - now for node, (offset, _) in sorted(self._offsets.items())}
        skews[self._own_id] = self._clock.wall_ms() - now
        return skews
