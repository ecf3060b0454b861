"""Tasks beside a test: they end with it, and one that failed fails it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run them meanwhile; cancelled at the end. Raises: what the first of them raised."""
    tasks = [asyncio.create_task(each) for each in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
                raise end
