"""Long pieces of work on the loop: one a pass, whoever they are for, and how many callers may wait for theirs.

Not here: small work that is counted in bytes (`pace.py`). Next to read: `shedding.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakKeyDictionary

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
        with self.place():
            async with self.part():
                yield

    @contextmanager
    def place(self) -> Iterator[None]:
        """For a caller whose work is long even for one pass: while entered it has a place, and does its work by parts.

        Raises: as `one`.
        """
        if self.waiting >= self._waiting_max:
            raise shed(f"{self.waiting} {self._what} wait already", self._drain.seconds_for(self.waiting))
        self.waiting += 1
        self._drain.begin()
        try:
            yield
            self._drain.took(1)
        finally:
            self.waiting -= 1
            if not self.waiting:
                self._drain.pause()

    @asynccontextmanager
    async def part(self) -> AsyncIterator[None]:
        """One part of the work of a caller that has a place, behind those of all others that wait."""
        async with self._lock:
            await asyncio.sleep(0)
            yield


_LINES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


async def let_others() -> None:
    """Between two parts of long work that takes no place: others have their turn, and of all who are here at once only
    one goes on in each pass of the loop."""
    loop = asyncio.get_running_loop()
    line = _LINES.get(loop)
    if line is None:
        line = _LINES[loop] = asyncio.Lock()
    async with line:
        await asyncio.sleep(0)
