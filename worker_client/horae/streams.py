"""The three standard streams of a command, made fit before anything else runs: there, and able to write any text.

A process may be started without one (`2>&-`, some supervisors): the next file or socket that it opens then gets that
number, what is written as an error goes into it, and libraries that know the number end the process. Only the standard
library is imported here: both commands, with the server and without, call it first.
Not here: what is printed (`show.py`), or that a write fails (whoever writes).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO

_ESCAPING = frozenset({"backslashreplace", "ignore", "namereplace", "replace", "xmlcharrefreplace"})
"""Ways with characters that an encoding lacks that never fail. The default, `strict`, ends a command in its print."""


_missing: set[int] = set()


def prepare() -> None:
    """Open the null device where a standard descriptor is missing, and escape what the output's encoding lacks.

    Afterwards `sys.stdin`, `sys.stdout` and `sys.stderr` are files. A second call does nothing. Raises: OSError.
    """
    for fd in range(3):
        _require_open(fd)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or _writer(1)
    sys.stderr = sys.stderr or _writer(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors not in _ESCAPING:
            stream.reconfigure(errors="backslashreplace")


def is_missing(fd: int) -> bool:
    """`prepare` found this one closed: what is written there is lost."""
    return fd in _missing


def drop_unwritten() -> None:
    """At a command's end: what cannot be written by now is let go, where the interpreter would fail in its last flush
    and change the exit code to 120.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            _flush_or_drop(stream)


def _require_open(fd: int) -> None:
    try:
        os.fstat(fd)
    except OSError:
        _missing.add(fd)
        opened = os.open(os.devnull, os.O_RDWR)
        assert opened == fd  # the lowest that is free, and those below are taken
        os.set_inheritable(fd, True)


def _writer(fd: int) -> TextIO:
    return open(fd, "w", encoding="utf-8", closefd=False)


def _flush_or_drop(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):  # ValueError: closed already
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()
