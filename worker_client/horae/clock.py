"""The only place of `horae` that reads a clock, so that a test can hand in its own.

Spans use the monotonic clock; the wall clock serves new ids alone. Next to read: `backoff.py`, `leases.py`.
"""

from __future__ import annotations

import time

monotonic = time.monotonic
"""Seconds on a clock that never goes back. Comparable within this process only."""


def wall_ms() -> int:
    """The wall clock, int milliseconds since 1970 UTC. It may jump: never measure a span with it."""
    return time.time_ns() // 1_000_000
