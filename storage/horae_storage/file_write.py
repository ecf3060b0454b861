"""Durable writes of one file that the owner's loop does not wait in: by the kernel's own queue, or by a thread.

The kernel's asynchronous I/O writes past the page cache, with the sync in the same call, and rings an eventfd: nobody
hands the interpreter from thread to thread, nothing is copied into a page that is written out afterwards. Measured for
400 bytes (`docs/decisions/0013-past-the-page-cache.md`): three quarters of the time and half of the processor time of
a buffered write and an fdatasync by that queue, which itself took a quarter of the thread's processor time. Used on the
file systems for which it was measured that nothing of it is done in the caller's time; elsewhere, and where the kernel
has no such queue, a thread writes and syncs. One write at a time. Not here: what is written. Next: `raft_log.py`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol

Post = Callable[..., object]
"""`loop.call_soon_threadsafe`, or what does its work: run the function with the arguments on the owner's loop."""

Done = Callable[[OSError | None], None]
"""Called on the owner's loop when a write has ended: with None when it is durable, or with why it failed."""

BLOCK_BYTES: Final = 512
"""Writes begin at multiples of it, and own the last block that they touch: what is left of that may become zero."""


class Watch(NamedTuple):
    """How a loop is told to look at a file descriptor: its `add_reader` and `remove_reader`."""

    add: Callable[[int, Callable[[], None]], object]
    remove: Callable[[int], object]


class FileWriter(Protocol):
    def begin(self, data: bytes, at: int) -> None:
        """Start to write `data` durably at the offset `at`; `done` is called once. None may be under way.

        Raises: OSError when the write was not begun.
        """
        ...

    def finish(self) -> OSError | None:
        """Wait for the write under way, if there is one, and say how it ended; `done` may still be called, or not."""
        ...

    def close(self) -> None:
        """Free everything; none may be under way. A second call does nothing. May take some 40 ms."""
        ...


def open_writer(path: Path, fd: int, done: Done, post: Post, watch: Watch | None, bytes_max: int) -> FileWriter:
    """The fastest that works here: the kernel's queue if the loop can be told to watch, else a thread.

    `fd` is `path`, open for writing; no write is larger than `bytes_max`. All of the file was written once: the first
    write of an allocated block waits, within the call, for the file system to note it.
    Raises: OSError when the file cannot be read.
    """
    numbers = _CALLS.get(platform.machine())
    if watch is not None and numbers is not None and os.name == "posix":
        try:
            if _is_direct(fd):
                return KernelWriter(path, done, watch, numbers, bytes_max)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    return ThreadWriter(fd, done, post)


_NOT_HERE: Final = frozenset(
    {
        errno.ENOSYS,
        errno.EPERM,  # forbidden, by a sandbox
        errno.EINVAL,  # not for this file, or blocks of the disk that are larger
        errno.EOPNOTSUPP,
        errno.EAGAIN,  # no more of them for this system
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
"""Errors that say that the kernel's queue is not to be had, not that the file could not be read."""

_DIRECT: Final = frozenset({0xEF53, 0x58465342})
"""ext4 and XFS, as `statfs` names them. Others may take such a write and do all of it, sync included, at once."""


_EMPTY_PATH: Final = 0x1000
_ALIGNMENT: Final = 0x2000
"""Of `statx`: the file that is open; and what a direct write of it must be aligned to (Linux 6.1 and later)."""


def _is_direct(fd: int) -> bool:
    """Whether direct writes of this file, in our blocks, are queued: the kernel must say so. Raises: OSError.

    Where all data goes through the journal, as ext4 may be told to, or is encrypted, such a write is taken, and all of
    it done within the call.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    about = ctypes.create_string_buffer(256)  # `struct statfs`; its first word is the type
    if libc.fstatfs(fd, about) < 0:
        raise _last_error()
    if ctypes.c_ulong.from_buffer(about).value not in _DIRECT or not hasattr(libc, "statx"):
        return False
    if libc.statx(fd, b"", _EMPTY_PATH, _ALIGNMENT, about) < 0:
        raise _last_error()
    said, memory, offset = (struct.unpack_from("<I", about, at)[0] for at in (0, 152, 156))  # of `struct statx`
    return bool(said & _ALIGNMENT) and 0 < offset <= BLOCK_BYTES and 0 < memory <= mmap.PAGESIZE


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class ThreadWriter:
    """`pwrite` and `fdatasync` in a thread."""

    def __init__(self, fd: int, done: Done, post: Post) -> None:
        self._fd = fd
        self._done = done
        self._post = post
        self._wanted: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._ended: SimpleQueue[OSError | None] = SimpleQueue()
        self._under_way = False
        self._thread = threading.Thread(target=self._run, name="log-write", daemon=True)
        self._thread.start()

    def begin(self, data: bytes, at: int) -> None:
        assert not self._under_way
        self._under_way = True
        self._wanted.put((data, at))

    def finish(self) -> OSError | None:
        return self._collect() if self._under_way else None

    def close(self) -> None:
        if self._thread.is_alive():
            self._wanted.put(None)
            self._thread.join()

    def _run(self) -> None:
        """The thread, root."""
        while (wanted := self._wanted.get()) is not None:
            self._ended.put(_write(self._fd, *wanted))
            try:
                self._post(self._tell)
            except RuntimeError:  # the loop is closed: whoever closes the log asks by `finish`
                pass

    def _tell(self) -> None:
        if self._under_way and not self._ended.empty():
            self._done(self._collect())

    def _collect(self) -> OSError | None:
        error = self._ended.get()
        self._under_way = False
        return error


def _write(fd: int, data: bytes, at: int) -> OSError | None:
    try:
        written = os.pwrite(fd, data, at)
        while written < len(data):
            written += os.pwrite(fd, data[written:], at + written)
        os.fdatasync(fd)
    except OSError as error:
        return error
    return None


class Calls(NamedTuple):
    """Numbers of the kernel's calls on one kind of processor."""

    setup: int
    destroy: int
    submit: int
    getevents: int


_CALLS: Final = {"x86_64": Calls(206, 207, 209, 208), "aarch64": Calls(0, 1, 2, 4)}

_READ: Final = 0
_WRITE: Final = 1
_SYNCED: Final = 2
"""`RWF_DSYNC`: the write ends when its data is on the disk."""
_RESULT_BY_EVENTFD: Final = 1
_CONTROL_BLOCK: Final = struct.Struct("<QIiHhIQQqQII")
"""Linux' `struct iocb`, little-endian: data, key, flags of the call, operation, priority, file, buffer, length, offset,
reserved, flags, eventfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""`struct io_event`: data, control block, result, second result."""


class KernelWriter:
    """Linux' asynchronous I/O: `io_submit` of a direct write and its sync; an eventfd tells of their end.

    `ctypes.PyDLL`, which keeps the interpreter: none of the calls made on the loop waits for the disk.
    """

    def __init__(self, path: Path, done: Done, watch: Watch, calls: Calls, bytes_max: int) -> None:
        """Raises: OSError where the kernel has no such queue, or it cannot write this file directly."""
        self._done = done
        self._watch = watch
        self._calls = calls
        self._submit = ctypes.c_long(calls.submit)
        self._getevents = ctypes.c_long(calls.getevents)
        self._one = ctypes.c_long(1)
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._waiting_call = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self._under_way = False
        self._length = 0
        self._buffer = mmap.mmap(-1, -(-bytes_max // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._view = (ctypes.c_char * len(self._buffer)).from_buffer(self._buffer)
        self._address = ctypes.addressof(self._view)
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._at_once = ctypes.create_string_buffer(16)  # a `struct timespec` of zero
        self._block = ctypes.create_string_buffer(_CONTROL_BLOCK.size)
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
        self._bell = -1
        try:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._require(self._call(ctypes.c_long(calls.setup), 1, ctypes.byref(self._context)))
            self._try_out()
        except OSError:
            self._free()
            raise
        watch.add(self._bell, self._on_bell)

    def begin(self, data: bytes, at: int) -> None:
        end = len(data)
        length = -(-end // BLOCK_BYTES) * BLOCK_BYTES
        self._buffer[:end] = data
        self._buffer[end:length] = bytes(length - end)
        self._ask(_WRITE, _SYNCED, length, at)

    def finish(self) -> OSError | None:
        if not self._under_way:
            return None
        ended = self._collect(self._waiting_call, None)
        assert ended, "the kernel was asked to wait for it"
        return self._result()

    def close(self) -> None:
        if self._fd >= 0:
            self._watch.remove(self._bell)
            self._free()

    def _ask(self, operation: int, flags: int, length: int, at: int) -> None:
        assert not self._under_way
        self._length = length
        _CONTROL_BLOCK.pack_into(
            self._block,
            0,
            *(0, 0, flags, operation, 0, self._fd, self._address, length, at, 0, _RESULT_BY_EVENTFD, self._bell),
        )
        self._require(self._call(self._submit, self._context, self._one, self._blocks))
        self._under_way = True

    def _try_out(self) -> None:
        """By a read, which changes nothing: it has to be aligned like a write."""
        self._ask(_READ, 0, BLOCK_BYTES, 0)
        error = self.finish()
        if error is not None:
            raise error
        os.eventfd_read(self._bell)

    def _on_bell(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        if self._under_way and self._collect(self._call, self._at_once):
            self._done(self._result())

    def _collect(self, call: Callable[..., int], patience: ctypes.Array[ctypes.c_char] | None) -> bool:
        """Fetch the end of the write under way; False when it has not ended."""
        while (found := call(self._getevents, self._context, self._one, self._one, self._event, patience)) < 0:
            if ctypes.get_errno() != errno.EINTR:
                self._require(found)
        self._under_way = found != 1
        return found == 1

    def _result(self) -> OSError | None:
        _, _, result, _ = _EVENT.unpack(self._event)
        if result < 0:
            return OSError(-result, os.strerror(-result))
        if result != self._length:
            return OSError(errno.EIO, f"{result} of {self._length} bytes went to the disk")
        return None

    def _require(self, result: int) -> None:
        if result < 0:
            raise _last_error()

    def _free(self) -> None:
        if self._context.value:
            self._waiting_call(ctypes.c_long(self._calls.destroy), self._context)
        for fd in (self._bell, self._fd):
            if fd >= 0:
                os.close(fd)
        self._bell = self._fd = -1
