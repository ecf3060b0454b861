"""Runs a worker on a loop that handlers cannot end: not by `sys.exit` in a task of theirs, not by `loop.stop()`.

asyncio takes both for the program's own wish: `SystemExit` and `KeyboardInterrupt` leave a task through the loop, be
the task awaited or not. The loop is whole after that, so it is run on, and whoever awaits the task gets the exception
as any other. Not here: what a handler's outcome is (`runner.py`), signals (`signals.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from horae import logs
from horae.transport import new_event_loop

T = TypeVar("T")

_LEFT_SECONDS = 1.0
"""Tasks that handlers left behind get so long for their end: a stopped worker's process must not hang for them."""


def run(
    main: Coroutine[Any, Any, T],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = new_event_loop,
    left_seconds: float = _LEFT_SECONDS,
) -> T:
    """What `main` returns, or its exception. Then all that is left on the loop is cancelled, and the loop closed.

    No signal may raise KeyboardInterrupt meanwhile: it would be taken for a handler's.
    """
    loop = loop_factory()
    try:
        return _run_to_end(loop, main)
    finally:
        try:
            _run_to_end(loop, _cancel_rest(left_seconds))
        finally:
            loop.close()


def _run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    task = loop.create_task(main)
    task.add_done_callback(lambda _: loop.stop())
    while not task.done():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            if not task.done():
                logs.event(logging.WARNING, "exit_ignored", raised=repr(error), then="the worker goes on")
        else:
            if not task.done():
                logs.event(logging.WARNING, "loop_stop_ignored", then="the worker goes on")
    return task.result()


async def _cancel_rest(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=seconds)
    await loop.shutdown_asyncgens()
