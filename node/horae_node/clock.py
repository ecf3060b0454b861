"""The only place of the node that reads a clock. Everything else is handed a `Clock`, or a moment.

Moments are `int` milliseconds since the Unix epoch, UTC (`*_ms`); spans are measured on the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Collection
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

    monotonic = staticmethod(time.monotonic)  # asked two dozen times an entry: no frame of ours around it


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
    """The members' wall clocks, carried on this node's monotonic clock: no minority of wrong ones makes it run ahead.

    Of n members (n - 1) // 2 may lie. What is taken is the latest clock that cannot lie ahead whoever of them lies:
    with all members heard, the median; with fewer, an earlier one. An earlier one may lag behind what the cluster was
    told before, as far as a liar wishes: so while some member is not heard, time goes on from there, a breath slower
    than any host's monotonic clock runs (a job with a delay that was submitted in a time that lags would start early
    when it no longer does). Offsets of members not heard of for `STALE_MS` are left out.
    """

    STALE_MS = 10_000
    SLOWER_PER_MILLE = 1

    def __init__(self, clock: Clock, own_id: str) -> None:
        self._clock = clock
        self._own_id = own_id
        self._offsets: dict[str, tuple[int, int]] = {}
        self._liars_max = 0
        self._told: tuple[int, int] | None = None
        """Cluster time as it was last known, and when (monotonic)."""

    def lead(self, voters: int, now_ms: int, seen_ms: int) -> None:
        """Begin to tell the time for so many members, this one included.

        `now_ms` was cluster time when, or before, an entry with it was applied here, at the monotonic moment `seen_ms`.
        """
        self._liars_max = (voters - 1) // 2
        carried = self._carried(seen_ms)
        if carried is None or carried < now_ms:
            self._told = (now_ms, seen_ms)

    def resize(self, voters: Collection[str]) -> None:
        """The members are these now: others' clocks count no more, and as many may lie as of so many can."""
        self._liars_max = (len(voters) - 1) // 2
        self._offsets = {node_id: kept for node_id, kept in self._offsets.items() if node_id in voters}

    def observe(self, node_id: str, wall_ms: int) -> None:
        """Take in a member's wall clock as it stood when its answer arrived."""
        mono = self._clock.monotonic_ms()
        self._offsets[node_id] = (wall_ms - mono, mono)

    def now_ms(self) -> int:
        """Cluster time, ms since the Unix epoch. Before the first `lead` of a larger cluster: this host's own."""
        mono = self._clock.monotonic_ms()
        oldest = mono - self.STALE_MS
        offsets = [offset for offset, seen in self._offsets.values() if seen > oldest]
        offsets.append(self._clock.wall_ms() - mono)
        offsets.sort()
        # At most so many lie: of one more than that, the earliest is not ahead of some honest clock.
        at = len(offsets) - 1 - self._liars_max
        carried = self._carried(mono)
        if at < 0:
            return mono + offsets[0] if carried is None else carried
        now = mono + offsets[at]
        if carried is not None and now < carried and len(offsets) <= 2 * self._liars_max:
            return carried  # what it goes on from stays: a thousandth of the few ms since it was last asked is nothing
        self._told = (now, mono)
        return now

    def skew_ms(self) -> dict[str, int]:
        """The wall clock of each member that is heard less cluster time, ms (this node included)."""
        mono = self._clock.monotonic_ms()
        now = self.now_ms()
        oldest = mono - self.STALE_MS
        skews = {node: mono + offset - now for node, (offset, seen) in sorted(self._offsets.items()) if seen > oldest}
        skews[self._own_id] = self._clock.wall_ms() - now
        return skews

    def _carried(self, mono: int) -> int | None:
        """What was last known, gone on since."""
        if self._told is None:
            return None
        told, at = self._told
        elapsed = mono - at
        return told + elapsed - elapsed * self.SLOWER_PER_MILLE // 1000
