"""How long to wait before the next try: exponential, capped, and spread over its whole range.

Full jitter: after a fail-over all clients would otherwise come back in step and knock the new leader over.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_SECONDS = 0.05
"""A new leader is elected within a second or two: the first tries are frequent, to meet it early."""
MAX_SECONDS = 1.0
"""The promise is to serve within 2 s of a leader's death; waiting longer than this would break it from our side."""
_DOUBLINGS_MAX = 10  # keeps 2**n small however long a node is away


def delay_seconds(failures: int, chance: Callable[[], float] = random.random) -> float:
    """The wait after the n-th failure in a row (n >= 1): between a quarter and the whole of the capped exponential."""
    ceiling: float = min(MAX_SECONDS, FIRST_SECONDS * 2 ** min(max(failures - 1, 0), _DOUBLINGS_MAX))
    return ceiling * (0.25 + 0.75 * chance())


def spread(seconds: float, chance: Callable[[], float] = random.random) -> float:
    """A wait that the server asked for (`Retry-After`): never shorter, up to a quarter longer."""
    return seconds * (1 + 0.25 * chance())
