"""Virtual time: one heap of events on true time, and event loops that live on it.

`World` owns what happens when; a `NodeLoop` is the asyncio loop of one process, run only when something of that process
is due. True time is int microseconds since the run began; a process sees only its machine's clocks, which may drift,
step and lie. Nothing here knows of nodes, disks or networks. Next to read: `machine.py`.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, Final

SECOND: Final = 1_000_000
MILLISECOND: Final = 1_000

WALL_START_MS: Final = 1_800_000_000_000
"""True time of day when a run begins."""

MONOTONIC_START_S: Final = 1000.0

CALLBACKS_A_STEP_MAX: Final = 200_000
"""A loop that goes on longer without time passing never ends."""

STRAGGLER_US: Final = 1
"""Between two things that may not happen at one moment."""


class Handle:
    """A callback that is due; `cancel` makes it nothing. Plays asyncio's `Handle` and `TimerHandle`."""

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object] | None, args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None


class Clock:
    """A machine's clocks (port `Clock`): `rate` of the monotonic one, `wall_offset_ms` of the wall clock."""

    __slots__ = ("_world", "now", "rate", "wall_offset_ms")

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self.rate = rate
        self.wall_offset_ms = 0
        self.now = MONOTONIC_START_S

    def look(self) -> None:
        """Take in what time it is: once a step of the process, as no time passes within one."""
        self.now = MONOTONIC_START_S + self._world.now_us * self.rate / SECOND

    def true_us(self, monotonic: float) -> int:
        """When, by true time, this clock has surely reached the moment."""
        return math.ceil((monotonic - MONOTONIC_START_S) * SECOND / self.rate) + STRAGGLER_US

    def wall_ms(self) -> int:
        return WALL_START_MS + self._world.now_us // MILLISECOND + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class Process:
    """One life of a program: its loop runs from its first event to its end; then nothing of it runs any more.

    It ends without any clean-up, as a killed process does: its tasks are kept until the run is over, so that no
    `finally` of theirs runs in between.
    """

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world = world
        self.name = name
        self.clock = clock
        self.alive = True
        self.paused = False
        self.paused_at_us = 0
        self.busy_until_us = 0
        """Until then it is held up in a call that blocks (a sync on its own thread)."""
        self.loop = NodeLoop(self)  # type: ignore[abstract]  # no sockets, signals or subprocesses here
        self.waiting: list[Handle] = []
        """What came while it was paused, in order."""
        self.on_error: Callable[[BaseException], None] = _raise
        self.after_step: Callable[[], None] | None = None

    def step(self, handle: Handle) -> None:
        """Run a callback, and all that it makes ready."""
        callback = handle.callback
        if callback is None:
            return
        self.clock.look()
        loop = self.loop
        ready = loop.ready
        asyncio_events._set_running_loop(loop)
        self.world.running = self
        try:
            callback(*handle.args)
            budget = CALLBACKS_A_STEP_MAX
            while ready:
                handle = ready.popleft()
                callback = handle.callback
                if callback is not None:
                    callback(*handle.args)
                budget -= 1
                if not budget:
                    raise RuntimeError(f"{self.name}: the loop spins")
        except Exception as error:  # the root of everything that the process runs
            self.on_error(error)
        finally:
            self.world.running = None
            asyncio_events._set_running_loop(None)
        if self.after_step is not None:
            self.after_step()

    def pause(self) -> None:
        self.paused = True
        self.paused_at_us = self.world.now_us

    def resume(self) -> None:
        """Everything that came meanwhile is there at once, the network's before the timers' as a poll finds it."""
        self.paused = False
        if not self.alive or not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        waiting.sort(key=_is_timer)
        self.loop.ready.extend(waiting)
        self.step(Handle(_nothing, ()))

    def end(self) -> None:
        self.alive = False
        self.world.graveyard.append(self)


class Timer(Handle):
    __slots__ = ("_when",)

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], when: float) -> None:
        super().__init__(callback, args)
        self._when = when

    def when(self) -> float:
        return self._when


class NodeLoop(asyncio.AbstractEventLoop):
    """What asyncio's tasks, futures and the node ask of a loop. Never polls: the world says when it runs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._clock = process.clock
        self.ready: deque[Handle] = deque()
        self.executor_us: Callable[[], int] = lambda: MILLISECOND
        """How long a call in a thread takes."""

    def time(self) -> float:
        return self._clock.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args)
        self.ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        return self.call_at(self._clock.now + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Timer:
        timer = Timer(callback, args, when)
        self._world.push(self._clock.true_us(when), self._process, timer)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name)

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self._world.after(self.executor_us(), self._process, _run_into, future, func, args)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def set_exception_handler(self, handler: object) -> None:
        """The process's own is not asked: what it would be told of is a finding here."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody waited for. A dead process has no voice: its tasks are simply gone."""
        error = context.get("exception")
        if self._process.alive and isinstance(error, BaseException):
            self._process.on_error(error)


class World:
    """True time and what is due. Order among equal moments is the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_us = 0
        self.running: Process | None = None
        self.graveyard: list[Process] = []
        self.events = 0
        self._heap: list[tuple[int, int, Process | None, Handle]] = []
        self._number = 0

    def push(self, when_us: int, process: Process | None, handle: Handle) -> None:
        """Let `handle` be due at a moment, in a process or (None) in the world itself."""
        self._number += 1
        heappush(self._heap, (when_us, self._number, process, handle))

    def after(self, delay_us: int, process: Process | None, callback: Callable[..., object], *args: Any) -> Handle:
        handle = Handle(callback, args)
        self.push(self.now_us + delay_us, process, handle)
        return handle

    def run_until(self, moment_us: int) -> None:
        """Let everything happen up to a moment. What an ended process had waiting is dropped."""
        heap = self._heap
        while heap and heap[0][0] <= moment_us:
            when_us, _, process, handle = heappop(heap)
            if handle.callback is None:
                continue
            if when_us > self.now_us:
                self.now_us = when_us
            self.events += 1
            if process is None:
                handle.callback(*handle.args)
            elif not process.alive:
                continue
            elif process.paused:
                process.waiting.append(handle)
            elif process.busy_until_us > when_us:
                self.push(process.busy_until_us, process, handle)
            else:
                process.step(handle)
        self.now_us = moment_us

    def true_wall_ms(self) -> int:
        return WALL_START_MS + self.now_us // MILLISECOND


def _run_into(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.done():
        return
    try:
        future.set_result(func(*args))
    except Exception as error:  # the root of a call in a thread: its caller gets it
        future.set_exception(error)


def _is_timer(handle: Handle) -> bool:
    return isinstance(handle, Timer)


def _nothing() -> None:
    """Only lets the loop run."""


def _raise(error: BaseException) -> None:
    raise error
