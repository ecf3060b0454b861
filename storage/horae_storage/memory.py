"""The store of tests and of the simulator: a dictionary and its keys in order, with the bytes and digests of the real.

Rows are kept encoded, so that what LMDB would refuse or change (a list becomes a tuple) happens here too. Not here:
any durability; what is committed lives as long as the object. Next to read: `lmdb_kv.py`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from pathlib import Path

import msgpack

from horae_storage.environment import as_file_error
from horae_storage.errors import Corrupt
from horae_storage.files import publish, temporary_of
from horae_storage.kv import Row
from horae_storage.rows import decode_row, digest_of_delete, digest_of_put, encode_row, require_key

_COPY_MAGIC = b"horae-memory-1\n"
_WHERE = "the store in memory"


class SortedKeys:
    """A set of byte strings in order: short sorted lists, and the first key of each, so that an insert moves little."""

    BUCKET_KEYS_MAX = 1024

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        ordered = sorted(keys)
        half = self.BUCKET_KEYS_MAX // 2
        self._buckets = [ordered[i : i + half] for i in range(0, len(ordered), half)] or [[]]
        self._firsts = [bucket[0] if bucket else b"" for bucket in self._buckets]

    def add(self, key: bytes) -> None:
        """Take in a key that is not there."""
        at = self._bucket_of(key)
        bucket = self._buckets[at]
        insort(bucket, key)
        if len(bucket) > self.BUCKET_KEYS_MAX:
            half = len(bucket) // 2
            self._buckets.insert(at + 1, bucket[half:])
            self._firsts.insert(at + 1, bucket[half])
            del bucket[half:]
        self._firsts[at] = bucket[0]

    def remove(self, key: bytes) -> None:
        """Take out a key that is there."""
        at = self._bucket_of(key)
        bucket = self._buckets[at]
        del bucket[bisect_left(bucket, key)]
        if bucket:
            self._firsts[at] = bucket[0]
        elif len(self._buckets) > 1:
            del self._buckets[at], self._firsts[at]

    def ascending(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """Keys with start <= key < stop. No key may be added or removed meanwhile."""
        at = self._bucket_of(start)
        bucket = self._buckets[at]
        from_start = islice(bucket, bisect_left(bucket, start), None)
        rest = chain.from_iterable(islice(self._buckets, at + 1, None))
        return takewhile(stop.__gt__, chain(from_start, rest))

    def descending(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        """As `ascending`, from the end."""
        at = self._bucket_of(stop)
        bucket = self._buckets[at]
        from_stop = reversed(bucket[: bisect_left(bucket, stop)])
        rest = chain.from_iterable(reversed(self._buckets[i]) for i in range(at - 1, -1, -1))
        return takewhile(start.__le__, chain(from_stop, rest))

    def _bucket_of(self, key: bytes) -> int:
        return max(bisect_right(self._firsts, key) - 1, 0)


class MemoryTxn:
    """The open transaction (port `Txn`). It remembers what it replaced, for `abort` and for copies."""

    __slots__ = ("_digest", "_keys", "_pack", "_rows", "undo", "written_bytes")

    def __init__(self, rows: dict[bytes, bytes], keys: SortedKeys) -> None:
        self._rows = rows
        self._keys = keys
        self._pack = msgpack.Packer().pack
        self._digest = 0
        self.undo: dict[bytes, bytes | None] = {}
        """What each written key held when the transaction began; None = nothing."""
        self.written_bytes = 0

    def get(self, key: bytes) -> Row | None:
        value = self._rows.get(key)
        return None if value is None else decode_row(key, value, _WHERE)

    def row_bytes(self, key: bytes) -> int:
        return len(self._rows.get(key, b""))

    def put(self, key: bytes, row: Row) -> None:
        value = encode_row(self._pack(row), key)
        require_key(key)
        before = self._rows.get(key)
        self.undo.setdefault(key, before)
        if before is None:
            self._keys.add(key)
        self._rows[key] = value
        self._digest = digest_of_put(self._digest, value)
        self.written_bytes += len(key) + len(value)

    def delete(self, key: bytes) -> bool:
        before = self._rows.get(key)
        if before is None:
            return False
        self.undo.setdefault(key, before)
        del self._rows[key]
        self._keys.remove(key)
        self._digest = digest_of_delete(self._digest, key)
        self.written_bytes += len(key)
        return True

    def scan(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[tuple[bytes, Row]]:
        rows = self._rows
        return [
            (key, decode_row(key, rows[key], _WHERE)) for key in self.keys(start, stop, limit=limit, reverse=reverse)
        ]

    def keys(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[bytes]:
        walk = self._keys.descending if reverse else self._keys.ascending
        return list(islice(walk(start, stop), limit))

    @property
    def digest(self) -> int:
        return self._digest

    def seed_digest(self, value: int) -> None:
        self._digest = value


class MemoryFrozen:
    """The state as it was committed when `MemoryStore.freeze` was called (port `Frozen`)."""

    def __init__(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows

    def copy_to(self, path: Path) -> None:
        temporary = temporary_of(path)
        try:
            with temporary.open("xb") as file:
                file.write(_COPY_MAGIC + msgpack.packb(sorted(self._rows.items())))
            if path.exists():
                raise FileExistsError(17, "the file is there already", str(path))
            publish(temporary, path)
        except OSError as error:
            raise as_file_error(error, path) from error
        finally:
            temporary.unlink(missing_ok=True)

    def release(self) -> None:
        self._rows = {}


class MemoryStore:
    """The store in memory (port `Store`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # between `freeze` on another thread and whatever ends a transaction
        self._load({})

    @property
    def txn(self) -> MemoryTxn:
        return self._txn

    @property
    def dirty(self) -> bool:
        return self._txn.written_bytes > 0

    @property
    def dirty_bytes(self) -> int:
        return self._txn.written_bytes

    def commit(self) -> None:
        if self.dirty:
            with self._lock:
                self._txn = MemoryTxn(self._rows, self._keys)

    def abort(self) -> None:
        with self._lock:
            self._load(self._committed())

    def freeze(self) -> MemoryFrozen:
        with self._lock:
            return MemoryFrozen(self._committed())

    def copy_to(self, path: Path) -> None:
        self.freeze().copy_to(path)

    def install(self, path: Path) -> None:
        rows = _read_copy(path)
        path.unlink()
        with self._lock:
            self._load(rows)

    def size_bytes(self) -> int:
        return 0

    def close(self) -> None:
        self._load({})

    def _load(self, rows: dict[bytes, bytes]) -> None:
        self._rows = rows
        self._keys = SortedKeys(rows)
        self._txn = MemoryTxn(rows, self._keys)

    def _committed(self) -> dict[bytes, bytes]:
        """The rows without what the open transaction wrote. The rows are copied first: undoing too much is harmless."""
        rows = self._rows.copy()
        for key, before in list(self._txn.undo.items()):
            if before is None:
                rows.pop(key, None)
            else:
                rows[key] = before
        return rows


def _read_copy(path: Path) -> dict[bytes, bytes]:
    data = path.read_bytes()
    if not data.startswith(_COPY_MAGIC):
        raise Corrupt(f"{path} is not a copy of a store in memory")
    return dict(msgpack.unpackb(data[len(_COPY_MAGIC) :], use_list=False))
