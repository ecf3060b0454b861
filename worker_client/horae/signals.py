"""The signals that stop a worker: heard from its start to its end, so that none of them cuts it short in between.

Plain handlers, not the loop's: a loop that lets go of its own sets the default first, which kills. On another thread
than the main one, which alone gets signals, nothing is done. Not here: what a stop is (`worker.py`).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from horae import streams

STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
"""The last: a terminal that closes. Windows has none."""

_Handlers = dict[signal.Signals, Any]


@contextmanager
def heard(tell: Callable[[], object]) -> Iterator[None]:
    """Within, each signal is told, between any two instructions of the main thread; then all is as before."""
    before = _set(tell)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def asked(show: Callable[[], object]) -> Iterator[None]:
    """Within, SIGUSR1 shows what there is to show, also while the loop is blocked. Windows has none."""
    number = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda _number, _frame: show())
    try:
        yield
    finally:
        _restore({number: before})


@contextmanager
def heard_to_the_end(tell: Callable[[], object]) -> Iterator[None]:
    """The same for a process that has nothing else to do: once the work within has ended well, a further signal ends
    the process at once, with the exit code 0 that it would have had.
    """
    before = _set(tell)
    try:
        yield
    except BaseException:
        _restore(before)
        raise
    if before:
        _set(_leave)
        atexit.register(_ignore)


def _set(tell: Callable[[], object]) -> _Handlers:
    if threading.current_thread() is not threading.main_thread():
        return {}

    hung_up = False

    def told(number: int, _frame: FrameType | None) -> None:
        nonlocal hung_up
        if signal.Signals(number).name == "SIGHUP":
            if hung_up:  # a terminal that closes may tell twice, and means no haste by it
                return
            hung_up = True
        tell()

    return {number: signal.signal(number, told) for number in STOPS if not _is_ignored_hang_up(number)}


def _is_ignored_hang_up(number: signal.Signals) -> bool:
    """Under `nohup` it had been ignored before the start, and stays so."""
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


def _restore(before: _Handlers) -> None:
    for number, handler in before.items():
        signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _leave() -> None:
    """Threads that never end (a handler's, most likely) hold up no stop that somebody asks for again."""
    streams.drop_unwritten()
    os._exit(0)


def _ignore() -> None:
    """From here on the interpreter gives handlers up for the default, which kills."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
