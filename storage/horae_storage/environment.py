"""One LMDB file, opened so that it keeps what was acknowledged: the only place that opens LMDB.

Default sync mode and no writemap: measured, the only mode in which power cuts lost and corrupted nothing. The file is
looked at before it is mapped (a truncated one is SIGBUS at the first read), the map grows before it is needed (LMDB
cannot grow under an open transaction), and for all that a commit may write there is room on the disk before it begins:
LMDB never meets a full disk. Not here: what is stored. Next: `lmdb_kv.py`, `raft_log.py`.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import lmdb

from horae_storage.errors import REJOIN, Corrupt, DirectoryUnusable, StorageError, StorageFailed, StorageFull
from horae_storage.files import publish, temporary_of
from horae_storage.kv import MAX_KEY_BYTES

MAP_BYTES = 1 << 30
"""First map size: address space only, no disk, no memory. It doubles when 60 % of it are used."""

RESERVE_BYTES = 16 << 20
"""Room taken on the disk beyond what the next commit may write, so that not each commit has to ask for some."""

LOCK_SUFFIX = "-lock"
"""LMDB's own name for the file of its reader table."""

MAX_READERS = 1024
"""Slots for read transactions (default 126): copies and scans of other threads, and what a killed process left."""

_GROW_NUMERATOR, _GROW_DENOMINATOR = 6, 10

_NODE_BYTES_MAX: Final = MAX_KEY_BYTES + 32
"""Key, head and checksum of a row, and more."""

_LOCK_BYTES: Final = 128 * 1024
"""Of the reader table, rounded up. It is a map of a file with holes: touched on a full disk, a hole is SIGBUS."""

_PAGE_HEADER_BYTES = 16
_META = struct.Struct("<IIQQ48s48sQQ")  # magic, version, address, map size, free db, main db, last page, txn id
_META_MAGIC = 0xBEEFC0DE
_DB_END = struct.Struct("<QQ")  # entries, root page
_NO_PAGE = 2**64 - 1
_META_PAGES = 2
_PAGE_SIZES = frozenset(1 << n for n in range(9, 17))

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_CORRUPT_ERRORS = (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)


class FileShape(NamedTuple):
    """What the newest meta page of an LMDB file says."""

    page_bytes: int
    used_bytes: int
    """Bytes up to and with the last page: a shorter file is truncated."""
    roots: tuple[int, ...]
    """First pages of the trees that are not empty: of the free pages, and of the rows."""


class Written(Protocol):
    """What a transaction wrote: enough to say how many pages a commit of it may add to the file."""

    @property
    def puts(self) -> int: ...

    @property
    def deletes(self) -> int: ...

    @property
    def large_writes(self) -> int:
        """Puts of values of more than `Environment.large_bytes`: these may get pages of their own."""
        ...

    @property
    def large_bytes(self) -> int:
        """Of their values."""
        ...


class Environment:
    """An open LMDB file. One per process and path; write transactions stay on the thread that began them."""

    def __init__(
        self, path: Path, *, create: bool = True, map_bytes: int = MAP_BYTES, reserve_bytes: int = RESERVE_BYTES
    ) -> None:
        """Open the file at `path`, making it first when it is missing and `create` says so.

        Raises: `Corrupt` for a missing, truncated or foreign file; `DirectoryUnusable` for one that this process may
        not use; `StorageFull`; `StorageFailed`.
        """
        self.path = path
        if not path.exists():
            if not create:
                raise Corrupt(f"{path} is missing; {REJOIN}")
            _create_file(path)
        self._fd = _open_fd(path)
        try:
            shape = read_shape(path)
            self._page_bytes = shape.page_bytes
            self._reserve_bytes = reserve_bytes
            self._map_bytes = max(map_bytes, 2 * shape.used_bytes)
            _take_lock_room(path)
            self._lmdb = _open(path, self._map_bytes)
            self._rows = self._lmdb.open_db(None)
        except StorageError:
            os.close(self._fd)
            raise
        self._reserved_bytes = os.fstat(self._fd).st_size
        self._closed = False
        self.reserve()

    @property
    def large_bytes(self) -> int:
        """A value of so many bytes surely has no pages of its own, whatever its key: that is for half a page and more,
        of key, value and what is kept beside them."""
        return self._page_bytes // 2 - _NODE_BYTES_MAX

    def begin(self, *, may_grow: bool = True) -> Any:
        """A write transaction of py-lmdb, with at least 40 % of the map free for it. Raises: `StorageFailed`.

        Not `may_grow` while another thread reads: a map that grows moves, and what is read is gone from under it.
        """
        try:
            if may_grow:
                self.grow_when_needed()
            return self._lmdb.begin(write=True)
        except lmdb.Error as error:
            raise as_storage_error(error, self.path) from error

    def begin_read(self) -> Any:
        """A read transaction of py-lmdb on what is committed. It may move to another thread.

        Raises: `StorageFailed`.
        """
        try:
            return self._lmdb.begin()
        except lmdb.Error as error:
            raise as_storage_error(error, self.path) from error

    def grow_when_needed(self) -> None:
        """Double the map until 40 % of it are free. No transaction may be open on it."""
        used = self.used_bytes()
        while used * _GROW_DENOMINATOR > self._map_bytes * _GROW_NUMERATOR:
            self.grow()

    def grow(self) -> None:
        """Double the map. No transaction may be open on it."""
        self._map_bytes *= 2
        self._lmdb.set_mapsize(self._map_bytes)

    def reserve(self, least_bytes: int = 0) -> bool:
        """See to room on the disk beyond the last page; False when the disk does not give enough: `least_bytes`, and
        a quarter of what is usually reserved at the least.
        """
        least = self.used_bytes() + max(least_bytes, self._reserve_bytes // 4)
        if self._reserved_bytes >= least:
            return True
        return self._allocate(least + self._reserve_bytes) or self._allocate(least)

    def reserve_commit(self, txn: Any, written: Written) -> bool:
        """See to room for all that a commit of `txn`, which wrote `written`, may add to the file; False when the disk
        does not give it.

        True: the commit does not meet a full disk. Asked on the thread of the open transaction, before the commit.
        """
        return self.reserve(self.commit_pages_max(txn, written) * self._page_bytes)

    def commit_pages_max(self, txn: Any, written: Written) -> int:
        """More than a commit can take from the end of the file: as if no free page within were of use.

        A page of the tree is copied once in a transaction, however often it is written. A write touches a leaf, and
        one beside it where both are to be levelled. A put splits a leaf at most, a delete joins two at most: so what
        the tree has grown by, and the deletes, say how often one was split. A parent splits as its children do. What
        is freed is written down, eight bytes a page.
        """
        page_bytes, before, now = self._page_bytes, self._lmdb.stat(), txn.stat(self._rows)
        writes = written.puts + written.deletes
        leaves = min(2 * writes, before["leaf_pages"])
        splits = min(written.puts, max(now["leaf_pages"] - before["leaf_pages"] + written.deletes, 0)) + 1
        branches = min(2 * writes * before["depth"], before["branch_pages"])
        tree = leaves + splits + 2 * branches + splits // 3 + 2
        large = written.large_bytes // page_bytes + 2 * written.large_writes
        freed = (self.used_bytes() // page_bytes + tree + large) * 32 // page_bytes + 16
        return int(tree + large + freed)

    def _allocate(self, until: int) -> bool:
        """Asks only for what is there: a file system that gives up on the way may keep what it found until then, and
        the other files of the node would be left without."""
        try:
            room = os.fstatvfs(self._fd)
            if room.f_bavail * room.f_frsize < until - self._reserved_bytes:
                return False
            os.posix_fallocate(self._fd, self._reserved_bytes, until - self._reserved_bytes)
        except OSError as error:
            if error.errno in _FULL_ERRNOS:
                return False
            raise StorageFailed(f"cannot reserve room for {self.path}: {error.strerror}") from error
        self._reserved_bytes = until
        return True

    def used_bytes(self) -> int:
        """Bytes up to the last page of the committed state (free pages within included)."""
        return int(self._lmdb.info()["last_pgno"] + 1) * self._page_bytes

    def copy_compact(self, fd: int, txn: Any) -> None:
        """Write a compacted copy of what the read transaction `txn` sees to the file descriptor, unsynced.

        Compact only: the plain copy of LMDB waits for the open write transaction. Raises: `StorageError`.
        """
        try:
            self._lmdb.copyfd(fd, compact=True, txn=txn)
        except lmdb.Error as error:
            raise as_storage_error(error, self.path) from error

    def close(self) -> None:
        """Free everything; open transactions are aborted by their owner first. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._lmdb.close()
            os.close(self._fd)


def as_storage_error(error: lmdb.Error, path: Path) -> StorageError:
    """What an error of LMDB means for the caller."""
    if isinstance(error, _CORRUPT_ERRORS):
        return Corrupt(f"{path} is damaged ({error}); {REJOIN}")
    if isinstance(error, lmdb.DiskError):
        return StorageFull(f"{path}: no room on the disk")
    return StorageFailed(f"{path}: {error}")


def read_shape(path: Path) -> FileShape:
    """Check that the file is LMDB's and complete, without mapping it.

    Raises: `Corrupt` when one of the two meta pages is not whole or the file is shorter than its last page;
    `StorageFailed`.
    """
    try:
        with path.open("rb") as file:
            head = file.read(2 * max(_PAGE_SIZES))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
    shape = _newest_shape(head)
    if shape is None:
        raise Corrupt(f"{path} is damaged: its first pages are not those of a data file; {REJOIN}")
    if size < shape.used_bytes:
        raise Corrupt(f"{path} is damaged: truncated ({size} of {shape.used_bytes} bytes); {REJOIN}")
    return shape


def _newest_shape(head: bytes) -> FileShape | None:
    """By the newer meta page; None when either is damaged: LMDB would take the other, and an older state with it."""
    first = _read_meta(head, 0)
    second = _read_meta(head, first[1].page_bytes) if first is not None else None
    return max(first, second)[1] if first is not None and second is not None else None


def _read_meta(head: bytes, offset: int) -> tuple[int, FileShape] | None:
    """Transaction id and shape of the meta page at `offset`, or None when it is not one."""
    start = offset + _PAGE_HEADER_BYTES
    if len(head) < start + _META.size:
        return None
    magic, _, _, _, free_db, main_db, last_page, txn_id = _META.unpack_from(head, start)
    page_bytes = int.from_bytes(free_db[:4], "little")
    if magic != _META_MAGIC or page_bytes not in _PAGE_SIZES:
        return None
    if not all(_is_tree(db, last_page) for db in (free_db, main_db)):
        return None
    roots = tuple(root for root in map(_root_of, (free_db, main_db)) if root != _NO_PAGE)
    return txn_id, FileShape(page_bytes, (last_page + 1) * page_bytes, roots)


def _is_tree(db: bytes, last_page: int) -> bool:
    """A tree without a root has no entries; else its root lies in the file. LMDB reads a lost root as an empty tree."""
    entries, root = _DB_END.unpack_from(db, len(db) - _DB_END.size)
    return bool(entries == 0 if root == _NO_PAGE else entries > 0 and _META_PAGES <= root <= last_page)


def _root_of(db: bytes) -> int:
    root: int = _DB_END.unpack_from(db, len(db) - _DB_END.size)[1]
    return root


def _open_fd(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DirectoryUnusable(f"{path} cannot be used: {error.strerror}: mend its owner, mode or disk") from error


def _take_lock_room(path: Path) -> None:
    """Fill the holes of the reader table before it is mapped. One that was in use before does without.

    Raises: `StorageFull`, `StorageFailed`.
    """
    lock_path = path.with_name(path.name + LOCK_SUFFIX)
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, _LOCK_BYTES)
        except OSError:
            if not os.fstat(fd).st_blocks:
                raise
        finally:
            os.close(fd)
    except OSError as error:
        raise as_file_error(error, lock_path) from error


def _open(path: Path, map_bytes: int) -> Any:
    try:
        env = lmdb.open(
            str(path),
            map_size=map_bytes,
            subdir=False,
            create=False,
            max_readers=MAX_READERS,
            max_spare_txns=0,  # a cached read transaction would pin old pages, and must not live through a fork
        )
        env.reader_check()
    except lmdb.Error as error:
        raise as_storage_error(error, path) from error
    return env


def _create_file(path: Path) -> None:
    """Make an empty environment, complete before it has its name: LMDB does not sync its first pages by itself."""
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)
    try:
        lmdb.open(str(temporary), map_size=1 << 20, subdir=False, lock=False).close()
        publish(temporary, path)
    except lmdb.Error as error:
        raise as_storage_error(error, path) from error
    except OSError as error:
        raise as_file_error(error, path) from error


def as_file_error(error: OSError, path: Path) -> StorageError:
    """What an error of the operating system means for the caller."""
    if error.errno in _FULL_ERRNOS:
        return StorageFull(f"{path}: no room on the disk")
    return StorageFailed(f"{path}: {error.strerror}")
