"""A pool of daemon threads for plain functions. The standard one joins its threads at exit, so that a handler that
hangs would keep a stopped worker's process alive for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    """What a call returned or raised. Not set on the future as its exception: a future cannot carry StopIteration, and
    throws GeneratorExit into whoever waits as if to close them.
    """

    value: Any
    error: BaseException | None


_Work = tuple[contextvars.Context, Callable[[], Any], "asyncio.Future[Outcome]", asyncio.AbstractEventLoop]


class ThreadPool:
    """At most `threads_max` threads, each made when first needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._threads = 0
        self._busy = 0
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Outcome]:
        """Call it in a thread, with the caller's context variables. On the loop's thread only.

        The future has no exception of the call's: what it raised is in the outcome.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
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
            try:
                outcome = Outcome(context.run(call), None)
            except BaseException as error:  # whatever a handler raises is its outcome, never this thread's end
                outcome = Outcome(None, error)
            try:
                loop.call_soon_threadsafe(_settle, future, outcome)
            except RuntimeError:
                return  # the worker has stopped without waiting for this handler
            del work, context, call, future, outcome


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
