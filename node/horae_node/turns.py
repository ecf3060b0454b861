"""Long pieces of work on the loop: one a pass, whoever they are for, and how many callers may wait for theirs.

Not here: small work that is counted in bytes (`pace.py`). Next to read: `shedding.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from horae_node.clock import Clock
from horae_node.shedding import Drain, shed


class Turns:
    """One long piece of work a pass of the loop: callers that waited for the same barrier come one by one."""

    def __init__(self, clock: Clock, what: str, waiting_max: int) -> None:
        """`what`: whom the refusal names, in the plural."""
        self._what = what
        self._lock = asyncio.Lock()
        self._waiting_max = waiting_max
        self._drain = Drain(clock)
        self.waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises: `NotApplied("rate_limited")` when as many wait already as may."""
        if self.waiting >= self._waiting_max:
            raise shed(f"{self.waiting} {self._what} wait already", self._drain.seconds_for(self.waiting))
        self.waiting += 1
        self._drain.begin()
        try:
            async with self._lock:
                await asyncio.sleep(0)
                yield
                self._drain.took(1)
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._drain.pause()
