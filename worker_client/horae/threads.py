"""A pool of daemon threads for plain functions. The standard one joins its threads at exit, so that a handler that
hangs would keep a stopped worker's process alive for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_Work = tuple[contextvars.Context, Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class ThreadPool:
    """At most `threads_max` threads, each made when first needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._threads = 0
        self._busy = 0
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call it in a thread, with the caller's context variables. On the loop's thread only."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        future.add_done_callback(self._one_less)
        if self._busy > self._threads and self._threads < self._threads_max:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        self._queue.put((contextvars.copy_context(), call, future, loop))
        return future

    def close(self) -> None:
        """Let idle threads end; busy ones end with their call."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _one_less(self, _future: asyncio.Future[Any]) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            context, call, future, loop = work
            settle: Callable[[asyncio.Future[Any], Any], None] = _set_result
            try:
                value = context.run(call)
            except BaseException as error:  # whatever a handler raises is its outcome, never this thread's end
                settle, value = _set_error, error
            try:
                loop.call_soon_threadsafe(settle, future, value)
            except RuntimeError:
                return  # the worker has stopped without waiting for this handler
            del work, context, call, future, value


def _set_result(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        # A future cannot carry StopIteration.
        future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
