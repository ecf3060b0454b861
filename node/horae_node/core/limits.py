"""How much a queue's settings let be taken of it: pure reckoning, for decisions and for the leader alike.

A token bucket in whole numbers: the milliseconds that went by on the lease clock times thousandths of a job a second
are millionths of a job. That clock stands still without a leader and knows no steps: no jump of a wall clock fills a
bucket.
Not here: where the settings lie (`tables.py`), turns of concurrency keys (`decide/turns.py`).
"""

from __future__ import annotations

from horae_node.core.model import Bucket, QueueSettings

MICRO = 1_000_000
"""Of one token."""


def burst_of(settings: QueueSettings) -> int:
    """Whole tokens that the bucket holds: as many as a second brings, at least one, unless said otherwise."""
    if settings.burst is not None:
        return settings.burst
    return max(1, -(-(settings.rate_milli or 0) // 1000))


def tokens(bucket: Bucket, settings: QueueSettings, lease_clock: int) -> int:
    """Millionths of a token in the bucket by now."""
    gained = max(0, lease_clock - bucket.at) * (settings.rate_milli or 0)
    return min(burst_of(settings) * MICRO, bucket.micro + gained)


def ms_to_token(micro: int, settings: QueueSettings) -> int:
    """Until the bucket that holds `micro` has a whole token."""
    return max(0, -(-(MICRO - micro) // (settings.rate_milli or 1)))


def allowance(settings: QueueSettings, running: int, micro: int | None) -> int | None:
    """How many jobs may be granted now, with `running` under way and `micro` in the bucket; None for no limit."""
    if settings.paused:
        return 0
    left = None if settings.max_running is None else max(0, settings.max_running - running)
    if micro is None:
        return left
    whole = micro // MICRO
    return whole if left is None else min(left, whole)
