"""Syncs of one file that the owner's loop does not wait in: by the kernel's own queue, or by a thread.

The kernel's asynchronous I/O (Linux 4.18 and later) syncs in a worker of its own and rings an eventfd, so that nobody
hands the interpreter from thread to thread: measured, 0.11 ms and 20 us of processor time a sync instead of 0.15 ms
and 90 us. Where it is not there (another system, a sandbox that forbids it, a file system without it), a thread calls
`fdatasync`. One sync at a time. Not here: what is written. Next to read: `raft_log.py`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol

Post = Callable[..., object]
"""`loop.call_soon_threadsafe`, or what does its work: run the function with the arguments on the owner's loop."""

Done = Callable[[OSError | None], None]
"""Called on the owner's loop when a sync has ended: with None, or with why it failed."""


class Watch(NamedTuple):
    """How a loop is told to look at a file descriptor: its `add_reader` and `remove_reader`."""

    add: Callable[[int, Callable[[], None]], object]
    remove: Callable[[int], object]


class FileSync(Protocol):
    def begin(self) -> None:
        """Start a sync of all that was written so far; `done` is called once. None may be under way."""
        ...

    def finish(self) -> OSError | None:
        """Wait for the sync under way, if there is one, and say how it ended; `done` may still be called, or not."""
        ...

    def close(self) -> None:
        """Free everything; none may be under way. A second call does nothing."""
        ...


def open_sync(fd: int, done: Done, post: Post, watch: Watch | None) -> FileSync:
    """The fastest that works here: the kernel's queue if the loop can be told to watch, else a thread.

    Raises: OSError when a first sync of the file fails. The kernel tells of a failed write once: it must not be lost.
    """
    if watch is not None and (numbers := _CALLS.get(platform.machine())) is not None and os.name == "posix":
        try:
            return KernelSync(fd, done, watch, numbers)
        except OSError as error:
            if error.errno not in _NOT_HERE:
                raise
    return ThreadSync(fd, done, post)


_NOT_HERE: Final = frozenset(
    {
        errno.ENOSYS,
        errno.EPERM,  # forbidden, by a sandbox
        errno.EINVAL,  # not for this file
        errno.EOPNOTSUPP,
        errno.EAGAIN,  # no more of them for this system
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
    }
)
"""Errors that say that the kernel's queue is not to be had, not that the file could not be synced."""


class ThreadSync:
    """`fdatasync` in a thread."""

    def __init__(self, fd: int, done: Done, post: Post) -> None:
        self._fd = fd
        self._done = done
        self._post = post
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self._ended: SimpleQueue[OSError | None] = SimpleQueue()
        self._under_way = False
        self._thread = threading.Thread(target=self._run, name="log-sync", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        assert not self._under_way
        self._under_way = True
        self._wanted.put(True)

    def finish(self) -> OSError | None:
        return self._collect() if self._under_way else None

    def close(self) -> None:
        if self._thread.is_alive():
            self._wanted.put(False)
            self._thread.join()

    def _run(self) -> None:
        """The thread, root."""
        while self._wanted.get():
            self._ended.put(_sync(self._fd))
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


def _sync(fd: int) -> OSError | None:
    try:
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

_FDSYNC: Final = 3
_RESULT_BY_EVENTFD: Final = 1
_CONTROL_BLOCK: Final = struct.Struct("<QIiHhIQQqQII")
"""Linux' `struct iocb`, little-endian: data, key, flags, operation, priority, file, buffer, length, offset, reserved,
flags, eventfd."""
_EVENT: Final = struct.Struct("<QQqq")
"""`struct io_event`: data, control block, result, second result."""


class KernelSync:
    """Linux' asynchronous I/O: `io_submit` of an fdatasync, its end told by an eventfd that the loop watches.

    `ctypes.PyDLL`, which keeps the interpreter: none of the calls made on the loop ever waits.
    """

    def __init__(self, fd: int, done: Done, watch: Watch, calls: Calls) -> None:
        """Raises: OSError where the kernel has no such queue, or it cannot sync this file."""
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
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._at_once = ctypes.create_string_buffer(16)  # a `struct timespec` of zero
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        block = _CONTROL_BLOCK.pack(0, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _RESULT_BY_EVENTFD, self._bell)
        self._block = ctypes.create_string_buffer(block, len(block))
        self._blocks = (ctypes.c_void_p * 1)(ctypes.addressof(self._block))
        try:
            self._require(self._call(ctypes.c_long(calls.setup), 1, ctypes.byref(self._context)))
            self._try_out()
        except OSError:
            self._free()
            raise
        watch.add(self._bell, self._on_bell)

    def begin(self) -> None:
        assert not self._under_way
        self._require(self._call(self._submit, self._context, self._one, self._blocks))
        self._under_way = True

    def finish(self) -> OSError | None:
        if not self._under_way:
            return None
        ended = self._collect(self._waiting_call, None)
        assert ended, "the kernel was asked to wait for it"
        return self._result()

    def close(self) -> None:
        if self._bell >= 0:
            self._watch.remove(self._bell)
            self._free()

    def _try_out(self) -> None:
        self.begin()
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
        """Fetch the end of the sync under way; False when it has not ended."""
        while (found := call(self._getevents, self._context, self._one, self._one, self._event, patience)) < 0:
            if ctypes.get_errno() != errno.EINTR:
                self._require(found)
        self._under_way = found != 1
        return found == 1

    def _result(self) -> OSError | None:
        _, _, result, _ = _EVENT.unpack(self._event)
        return OSError(-result, os.strerror(-result)) if result < 0 else None

    def _require(self, result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _free(self) -> None:
        if self._context.value:
            self._call(ctypes.c_long(self._calls.destroy), self._context)
        os.close(self._bell)
        self._bell = -1
