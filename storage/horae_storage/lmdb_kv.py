"""The node's store: the state tables in one LMDB file, one open write transaction on the thread of its owner.

The file's name is a generation, `00000001.mdb`. `install` gives a copy the next number: one rename, and the highest
number is the state, so that a crash leaves the old state or the new one, and a copy of the old that still runs on
another thread ends in peace. Not here: jobs, and how often to commit. Next to read: `environment.py`, `snapshot.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
from msgpack import unpackb
from msgspec.msgpack import Encoder

from horae_storage.environment import (
    LOCK_SUFFIX,
    RESERVE_BYTES,
    Environment,
    as_file_error,
    as_storage_error,
    read_shape,
)
from horae_storage.errors import StorageError, StorageFailed, StorageFull
from horae_storage.files import PACE_BYTES, pace, publish, sweep_temporaries, sync_directory, temporary_of
from horae_storage.kv import Row
from horae_storage.rows import CRC_BYTES, DELETED, INTACT, corrupt_row, require_key

_SUFFIX = ".mdb"

STATE_MAP_BYTES = 64 << 30
"""Address space only, and far more than a state takes: the map cannot grow while a copy is read, which takes minutes
for a large state."""


_pack = Encoder().encode
"""Makes the very bytes of `msgpack.packb` in a third of its time. It takes some kinds of values (sets, dates) that are
no row; the memory store, under which every rule is tested, refuses them."""


class LmdbTxn:
    """The open write transaction over LMDB (port `Txn`).

    Its methods are the hottest of the product: bound functions in slots, the row's bytes made and checked in place.
    """

    __slots__ = (
        "_cursor",
        "_delete",
        "_digest",
        "_get",
        "_large_from",
        "_pack",
        "_path",
        "_put",
        "deletes",
        "large_bytes",
        "large_writes",
        "puts",
        "written_bytes",
    )

    def __init__(self, txn: Any, env: Environment) -> None:
        self._get = txn.get
        self._put = txn.put
        self._delete = txn.delete
        self._cursor = txn.cursor
        self._pack = _pack
        self._path = env.path
        self._large_from = env.large_bytes
        self._digest = 0
        self.written_bytes = 0
        """Bytes of the keys and rows written so far; 0 means that there is nothing to commit."""
        self.puts = self.deletes = self.large_writes = self.large_bytes = 0  # the room for the commit is reckoned by it

    def get(self, key: bytes) -> Row | None:
        try:
            value = self._get(key)
        except lmdb.Error as error:
            raise self._failure(error, key) from error
        if value is None:
            return None
        if crc32(value, crc32(key)) != INTACT:
            raise corrupt_row(key, self._path)
        return unpackb(value[:-CRC_BYTES], use_list=False)  # type: ignore[no-any-return]

    def row_bytes(self, key: bytes) -> int:
        try:
            return len(self._get(key, b""))
        except lmdb.Error as error:
            raise self._failure(error, key) from error

    def put(self, key: bytes, row: Row) -> None:
        packed = self._pack(row)
        crc = crc32(packed, crc32(key)).to_bytes(CRC_BYTES, "little")
        try:
            self._put(key, packed + crc)
        except lmdb.Error as error:
            raise self._failure(error, key) from error
        self._digest = crc32(crc, self._digest)
        size = len(packed)
        self.written_bytes += len(key) + size
        self.puts += 1
        if size > self._large_from:
            self.large_writes += 1
            self.large_bytes += size

    def delete(self, key: bytes) -> bool:
        try:
            if not self._delete(key):
                return False
        except lmdb.Error as error:
            raise self._failure(error, key) from error
        self._digest = crc32(key, self._digest ^ DELETED)
        self.written_bytes += len(key)
        self.deletes += 1
        return True

    def scan(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[tuple[bytes, Row]]:
        rows: list[tuple[bytes, Row]] = []
        try:
            for key, value in islice(self._walk(start, stop, reverse, True), limit):
                if key < start if reverse else key >= stop:
                    break
                if crc32(value, crc32(key)) != INTACT:
                    raise corrupt_row(key, self._path)
                rows.append((key, unpackb(value[:-CRC_BYTES], use_list=False)))
        except lmdb.Error as error:
            raise self._failure(error, start) from error
        return rows

    def keys(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[bytes]:
        within = start.__le__ if reverse else stop.__gt__
        try:
            return list(islice(takewhile(within, self._walk(start, stop, reverse, False)), limit))
        except lmdb.Error as error:
            raise self._failure(error, start) from error

    @property
    def digest(self) -> int:
        return self._digest

    def seed_digest(self, value: int) -> None:
        self._digest = value

    def _walk(self, start: bytes, stop: bytes, reverse: bool, values: bool) -> Iterable[Any]:
        """Pairs, or keys alone, from the near end of the range on: past its far end, if nobody stops it there."""
        cursor = self._cursor()
        if not reverse:
            return cursor.iternext(True, values) if cursor.set_range(start) else ()
        found = cursor.prev() if cursor.set_range(stop) else cursor.last()
        return cursor.iterprev(True, values) if found else ()

    def _failure(self, error: lmdb.Error, key: bytes) -> Exception:
        """What a failed call means. A full map or disk dooms the transaction: LMDB refuses all later calls."""
        if isinstance(error, lmdb.BadValsizeError):
            require_key(key)
        failure = as_storage_error(error, self._path)
        return StorageFailed(str(failure)) if isinstance(failure, StorageFull) else failure


class LmdbFrozen:
    """The state as it was committed when `LmdbStore.freeze` was called (port `Frozen`). It pins old pages: be brief."""

    def __init__(self, env: Environment, txn: Any, on_release: Any) -> None:
        self._env = env
        self._txn = txn
        self._on_release = on_release
        self._lock = threading.Lock()

    def copy_to(self, path: Path) -> None:
        temporary = temporary_of(path)
        try:
            with self._lock:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    self._copy_paced(fd)
                finally:
                    os.close(fd)
            publish_new(temporary, path)
        except OSError as error:
            raise as_file_error(error, path) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _copy_paced(self, fd: int) -> None:
        """LMDB writes as fast as it can, and all of it would be synced at once in the end: both hold up the syncs of
        the log. So it writes into a pipe, whose other end gives it to the disk bit by bit. Raises: `StorageError`."""
        reader, writer = os.pipe()
        drain = _Drain(reader, fd)
        drain.start()
        try:
            self._env.copy_compact(writer, self._txn)
        except StorageError:
            if drain.error is None:
                raise
        finally:
            os.close(writer)
            drain.join()
        if drain.error is not None:
            raise as_file_error(drain.error, self._env.path)

    def release(self) -> None:
        with self._lock:
            on_release, self._on_release = self._on_release, None
        if on_release is not None:
            self._txn.abort()
            on_release(self._env)


class _Drain(threading.Thread):
    """Moves what comes through a pipe into a file, inside the kernel, paced and synced on the way."""

    def __init__(self, reader: int, fd: int) -> None:
        super().__init__(name="state-copy")
        self._reader = reader
        self._fd = fd
        self.error: OSError | None = None

    def run(self) -> None:
        moved = 0
        try:
            while count := os.splice(self._reader, self._fd, PACE_BYTES):
                moved += count
                if moved >= PACE_BYTES:
                    os.fdatasync(self._fd)
                    pace()
                    moved = 0
        except OSError as error:
            self.error = error
        finally:
            os.close(self._reader)  # whoever writes on learns it from the broken pipe


class LmdbStore:
    """The state in a directory of its own (port `Store`). All calls but `copy_to` come on the thread that made it."""

    def __init__(
        self,
        directory: Path,
        *,
        create: bool = True,
        map_bytes: int = STATE_MAP_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        """Open the newest state in `directory`, or make an empty one when there is none and `create` says so.

        Raises: `Corrupt` for a missing (`create` false), truncated or damaged file; `StorageFull`; `StorageFailed`.
        """
        self._directory = directory
        self._map_bytes = map_bytes
        self._reserve_bytes = reserve_bytes
        self._pins: dict[Environment, int] = {}
        self._pins_lock = threading.Lock()
        self._disposing: threading.Thread | None = None
        self._closed = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            sweep_temporaries(directory)
            self._generation = _sweep_old_generations(directory)
        except OSError as error:
            raise as_file_error(error, directory) from error
        self._env = self._open(self._generation, create=create)
        self._begin()

    @property
    def txn(self) -> LmdbTxn:
        return self._txn

    @property
    def dirty(self) -> bool:
        return self._txn.written_bytes > 0

    @property
    def dirty_bytes(self) -> int:
        return self._txn.written_bytes

    def commit(self) -> None:
        if not self.dirty:
            return
        if not self._env.reserve_commit(self._lmdb_txn, self._txn):
            raise StorageFull(f"{self._directory}: no room on the disk")
        try:
            self._lmdb_txn.commit()
        except lmdb.Error as error:
            raise StorageFailed(f"{self._env.path}: the commit failed: {error}") from error
        self._begin()

    def abort(self) -> None:
        self._lmdb_txn.abort()
        self._begin()

    def freeze(self) -> LmdbFrozen:
        txn = self._env.begin_read()
        with self._pins_lock:
            self._pins[self._env] = self._pins.get(self._env, 0) + 1
        return LmdbFrozen(self._env, txn, self._unpin)

    def copy_to(self, path: Path) -> None:
        frozen = self.freeze()
        try:
            frozen.copy_to(path)
        finally:
            frozen.release()

    def install(self, path: Path) -> None:
        read_shape(path)
        following = self._generation + 1
        target = _file_of(self._directory, following)
        try:
            _move_durably(path, target)
            env = self._open(following, create=False)
        except OSError as error:
            _unlink_generation(target)
            raise as_file_error(error, target) from error
        except StorageError:
            _unlink_generation(target)
            raise
        self._lmdb_txn.abort()
        self._retire(self._env)
        self._env, self._generation = env, following
        self._begin()

    def size_bytes(self) -> int:
        total = 0
        for path in self._directory.glob("*" + _SUFFIX):
            with contextlib.suppress(FileNotFoundError):  # one that was replaced goes in a thread
                total += path.stat().st_blocks * 512
        return total

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lmdb_txn.abort()
        self._retire(self._env, unlink=False)
        if self._disposing is not None:
            self._disposing.join()

    def _open(self, generation: int, *, create: bool) -> Environment:
        return Environment(
            _file_of(self._directory, generation),
            create=create,
            map_bytes=self._map_bytes,
            reserve_bytes=self._reserve_bytes,
        )

    def _begin(self) -> None:
        with self._pins_lock:
            copied = self._pins.get(self._env, 0) > 0
        self._lmdb_txn = self._env.begin(may_grow=not copied)
        self._txn = LmdbTxn(self._lmdb_txn, self._env)

    def _retire(self, env: Environment, *, unlink: bool = True) -> None:
        """Close an environment, now or when the last copy of it has ended.

        One that is replaced goes in a thread: to unmap and delete a large file takes longer than the loop may stand.
        """
        with self._pins_lock:
            pinned = self._pins.get(env, 0)
            if pinned:
                self._pins[env] = -pinned
        if not unlink:
            if not pinned:
                env.close()
            return
        self._disposing = threading.Thread(target=_dispose, args=(env, not pinned), name="state-disposal")
        self._disposing.start()

    def _unpin(self, env: Environment) -> None:
        """One copy has ended. A retired environment's count is negative: the last copy closes it."""
        with self._pins_lock:
            count = self._pins[env]
            left = count - 1 if count > 0 else count + 1
            if left:
                self._pins[env] = left
                return
            del self._pins[env]
        if count < 0:
            env.close()


def publish_new(temporary: Path, path: Path) -> None:
    """As `publish`, but never over a file that is there. Raises: OSError."""
    if path.exists():
        raise FileExistsError(17, "the file is there already", str(path))
    publish(temporary, path)


def _file_of(directory: Path, generation: int) -> Path:
    return directory / _name_of(generation)


def _name_of(generation: int) -> str:
    return f"{generation:08d}{_SUFFIX}"


FIRST_STATE = _name_of(1)
"""Name of the file under which a new directory's state is opened: a copy that is put there becomes it."""


def _sweep_old_generations(directory: Path) -> int:
    """Delete all states but the newest; the newest's number, 1 in an empty directory. Raises: OSError."""
    numbers = sorted(int(p.stem) for p in directory.glob("*" + _SUFFIX) if p.stem.isdigit())
    for number in numbers[:-1]:
        _unlink_generation(_file_of(directory, number))
    return numbers[-1] if numbers else 1


def _dispose(env: Environment, close: bool) -> None:
    _unlink_generation(env.path)
    if close:
        env.close()


def _unlink_generation(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + LOCK_SUFFIX).unlink(missing_ok=True)


def _move_durably(source: Path, target: Path) -> None:
    """Rename, by way of a copy where source and target are on two file systems. Raises: OSError."""
    if source.stat().st_dev == target.parent.stat().st_dev:
        publish(source, target)
    else:
        temporary = temporary_of(target)
        shutil.copyfile(source, temporary)
        publish(temporary, target)
        source.unlink()
    sync_directory(source.parent)
