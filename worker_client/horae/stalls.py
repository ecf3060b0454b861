"""Tells of a loop that a handler blocks: which one, where, and for how long. Watched from another thread's loop.

A handler that blocks the worker's loop holds up every other one, claims and reports; its leases are renewed all the
same (`leases.py`). What to do about it is the program's: `await` what waits, or make the handler a plain function.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from horae import clock, logs

BLOCKED_SECONDS = 1.0
"""Longer than a pause of the garbage collector or of a busy machine; others wait for as long."""

_ASYNCIO = str(Path(asyncio.__file__).parent)

Names = Callable[["asyncio.Task[Any] | None"], dict[str, object]]


class StallWatch:
    """Watches the loop of the thread that makes it."""

    def __init__(self, names: Names, *, seconds: float = BLOCKED_SECONDS) -> None:
        """`names`: the fields to tell of the task that blocks; called from the watching thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._names = names
        self._seconds = seconds

    async def run(self) -> None:
        """Until cancelled, or the loop is closed. On the watching loop."""
        watches = True
        while watches:
            await asyncio.sleep(self._seconds)
            watches = await self._look()

    async def _look(self) -> bool:
        """Wait for a sign of life. False: the loop is closed."""
        own, alive = asyncio.get_running_loop(), asyncio.Event()
        asked = clock.monotonic()
        try:
            self._loop.call_soon_threadsafe(_answer, own, alive)
        except RuntimeError:
            return False
        try:
            async with asyncio.timeout(self._seconds):
                await alive.wait()
        except TimeoutError:
            self._tell()
            await alive.wait()
            logs.event(logging.WARNING, "loop_runs_again", blocked_seconds=f"{clock.monotonic() - asked:.1f}")
        return True

    def _tell(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        at = {} if frame is None else {"at": place(frame)}
        names = self._names(asyncio.current_task(self._loop))
        then = "await what waits, or make the handler a plain function, which gets a thread"
        logs.event(logging.WARNING, "loop_blocked", **names, **at, for_seconds=f"{self._seconds:g}", then=then)


def _answer(watching: asyncio.AbstractEventLoop, alive: asyncio.Event) -> None:
    try:
        watching.call_soon_threadsafe(alive.set)
    except RuntimeError:
        return  # nobody watches any more


def place(frame: FrameType) -> str:
    """File, line and function."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


def place_of(task: asyncio.Task[Any]) -> str | None:
    """Where a task is: the innermost of the coroutines that wait for each other, asyncio's own aside. None: nowhere."""
    found: FrameType | None = None
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(_ASYNCIO):
            found = frame
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None)
    return None if found is None else place(found)
