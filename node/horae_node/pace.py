"""Large answers to callers who were woken together: so many bytes a pass of the loop, the others wait behind them.

One entry that ends a job wakes all who wait for it, and one barrier all who read: to make and write eight hundred
answers of 250 kB in one pass would hold the loop for a second. Not here: lists, of which one comes a pass whatever it
holds (`turns.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PASS_BYTES_MAX: Final = 64 * 1024
"""Made before others have their turn: a millisecond, with what it takes to encode and write them."""


class Pace:
    """One for a node. Small answers, and one that comes alone, wait for nothing."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()
        self._bytes = 0

    async def show(self, make: Callable[[], T], bytes_of: Callable[[T], int]) -> T:
        """What `make()` makes once it has its turn. Raises: what `make` does."""
        async with self._line:
            shown = make()
            if self._is_much(bytes_of(shown)):
                await asyncio.sleep(0)
        return shown

    async def took(self, more_bytes: int) -> None:
        """Count what was made outside of the line: when it is much others have their turn, those in the line first."""
        if self._is_much(more_bytes):
            async with self._line:
                await asyncio.sleep(0)

    def _is_much(self, more_bytes: int) -> bool:
        self._bytes += more_bytes
        if self._bytes < PASS_BYTES_MAX:
            return False
        self._bytes = 0
        return True
