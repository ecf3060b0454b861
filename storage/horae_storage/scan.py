"""Walks all pages of an LMDB file before it is used, in a process of its own: damage there is a signal, not an error.

LMDB trusts its pages. A page of zeroes ends the process with SIGABRT, one past the end of the file with SIGBUS: here
that is the child's end, and becomes the one line that a refused start owes its operator. Rows are not looked at: each
carries a checksum, checked when it is read. Not here: when a file is suspect (`directory.py`). Next to read:
`page_walk.py`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import lmdb

from horae_storage.environment import as_file_error, read_shape
from horae_storage.errors import REJOIN, Corrupt, DirectoryUnusable
from horae_storage.page_walk import find_damage

_OF_DAMAGE = frozenset({signal.SIGBUS, signal.SIGABRT, signal.SIGSEGV})
_REASON_BYTES_MAX = 1000


def require_sound(path: Path) -> None:
    """Walk the file; a missing one is nobody's trouble here. At the speed of reading it; blocks.

    Forks: call it before threads are started and environments opened.
    Raises: `Corrupt`; `StorageFailed`; `DirectoryUnusable` when the walk itself was ended.
    """
    if not path.exists():
        return
    _settle(path)
    shape = read_shape(path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _walk_and_exit(path, 2 * shape.used_bytes, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        reason = pipe.read(_REASON_BYTES_MAX).decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        if number not in _OF_DAMAGE:
            raise DirectoryUnusable(f"the check of {path} was ended by {number.name}: start again")
        reason = number.name
    if status != 0:
        raise Corrupt(f"{path} is damaged ({reason}); {REJOIN}")


def _settle(path: Path) -> None:
    """See to it that the walk, and all after it, reads what is on the disk: what a failed sync left in memory is not,
    though the kernel calls it clean. Raises: `StorageError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    except OSError as error:
        raise as_file_error(error, path) from error


def _walk_and_exit(path: Path, map_bytes: int, report: int) -> NoReturn:
    """The child, root of all it does: it only reads, and never comes back."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 2)  # where LMDB writes its assertion
        env = lmdb.open(str(path), map_size=map_bytes, subdir=False, create=False, readonly=True, lock=False)
        with env.begin() as txn:
            env.copyfd(nothing, compact=True, txn=txn)
        damage = find_damage(path)
        if damage is None:
            os._exit(0)
        os.write(report, damage.encode())
    except BaseException as error:
        os.write(report, str(error).encode()[:_REASON_BYTES_MAX])
    finally:
        os._exit(1)
