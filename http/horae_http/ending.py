"""How a server's process ends: by Ctrl-C before it has begun, deaf once it has stopped, with a last line if it can.

Not here: what a signal means while the process works (`main.py`, `dev.py`), its streams (`horae/streams.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interrupt_kills() -> Iterator[None]:
    """Within, Ctrl-C ends the process at once and without a word, as SIGTERM does, until somebody handles it.

    For the time of imports and checks: nothing is begun that would have to be ended in order, and the traceback of
    an import that was broken off tells nobody anything.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if before is signal.default_int_handler and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, before)


def hang_up_stops() -> bool:
    """A terminal that closes is a wish to stop; not so under `nohup`, which had SIGHUP ignored before the start."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def ignore_signals() -> None:
    """From now on no signal to stop does anything: all has stopped, and the exit code is to say so.

    Call it in the running loop that handles them: when it closes, it gives them back their default, which kills.
    """
    loop = asyncio.get_running_loop()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # none falls between the two lines below
    try:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def say_last(why: object) -> None:
    """One line on standard error; left out when that is full or gone: the exit code tells, too."""
    with contextlib.suppress(OSError):
        print(f"horae: {why}", file=sys.stderr, flush=True)
