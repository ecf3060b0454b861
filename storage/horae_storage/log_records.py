"""The log's database: records of entries under the index of their first, and one row of what else must be known.

A *record* holds the entries of one write together: one call into LMDB however many entries came, because each such
call gives up the interpreter lock and may wait long to get it back. All calls after `load` come on one thread.
Not here: when to write (`raft_log.py`), what became durable before it came here (`tail.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
from msgpack import Packer

from horae_storage.environment import Environment, Written, as_storage_error
from horae_storage.errors import REJOIN, Corrupt, StorageError, StorageFailed, StorageFull
from horae_storage.log_groups import Batch
from horae_storage.log_port import LogEntry, LogState
from horae_storage.rows import decode_row, encode_row

FORMAT_VERSION = 2
"""1 had no tail: all that was acknowledged lay here."""

_META_KEY = b"\x00"  # shorter than a record's key: sorts before all of them

_RECORD_BYTES_MAX = 1 << 20
"""Data in one record, unless a single entry is larger: LMDB needs its pages in one run, and a cut rewrites a record."""


class Meta(NamedTuple):
    """What is stored beside the records."""

    format_version: int
    term: int
    voted_for: str | None
    commit_index: int
    first_index: int
    """Entries below it are compacted, also where a record still holds them."""
    folded: int = 0
    """The last round of the tail whose frames are all in here."""
    tail_key: int = 0
    """Of the tail that belongs to this database."""
    frames: int = 0
    """The tail had at least this frame when this was written."""


HasRoom = Callable[[Any, Written], bool]
"""Whether there is room on the disk for the commit of a transaction that wrote this."""


class _Tally:
    """What the open transaction wrote (`environment.Written`)."""

    def __init__(self, large_from: int) -> None:
        self._large_from = large_from
        self.puts = self.deletes = self.large_writes = self.large_bytes = 0

    def put(self, value: bytes) -> None:
        self.puts += 1
        if len(value) > self._large_from:
            self.large_writes += 1
            self.large_bytes += len(value)


class Records:
    """The records in LMDB. After `load`, all calls come on the writer's thread."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._txn: Any = None
        self._tally = _Tally(env.large_bytes)
        self._pack = Packer().pack
        self._meta = Meta(FORMAT_VERSION, 0, None, 0, 0)
        self.format_found = 0
        """The format of what `load` found: 0 when it found nothing."""
        self._starts: list[int] = []
        """First index of each record, ascending."""

    def load(self) -> LogState:
        """Read everything. Raises: `Corrupt`, `StorageFailed`."""
        try:
            return self._load()
        except lmdb.Error as error:  # a page that passes the walk of its file may still be no page of a tree
            raise as_storage_error(error, self._env.path) from error

    def _load(self) -> LogState:
        with self._env.begin_read() as txn:
            stored = txn.get(_META_KEY)
            if stored is not None:
                self._meta, self.format_found = _decode_meta(stored, self._env.path)
            commit_index = self._meta.commit_index
            entries: list[LogEntry] = []
            for key, value in _stored_records(txn):
                start, committed, held = _decode_record(key, value, self._env.path)
                if entries and start != entries[-1].log_index + 1:
                    raise Corrupt(f"{self._env.path} is damaged: it has a hole before index {start}; {REJOIN}")
                self._starts.append(start)
                entries += held
                commit_index = max(commit_index, committed)
        self._meta = self._meta._replace(commit_index=commit_index)
        if entries:
            del entries[: max(self._meta.first_index - entries[0].log_index, 0)]
        return LogState(self._meta.term, self._meta.voted_for, commit_index, entries)

    @property
    def meta(self) -> Meta:
        """What was stored last beside the records."""
        return self._meta

    def begin(self, commit_index: int, tail_key: int) -> None:
        """Write down which tail belongs to this database. Raises: `StorageFull`, `StorageFailed`."""
        batch = Batch()
        batch.commit_index = commit_index
        self._meta = self._meta._replace(tail_key=tail_key)
        if not self.write(batch, folded=0, frames=0, has_room=self._env.reserve_commit):
            raise StorageFull(f"{self._env.path}: no room on the disk")

    def write(self, batch: Batch, folded: int, frames: int, has_room: HasRoom) -> bool:
        """Make the batch durable, and with it that the tail is in here up to the round `folded`, and has `frames`.

        `has_room` is asked when all is ready for the commit, and may wait for room; what is ready is kept in memory
        meanwhile. False when it says no: all is as before. Raises: `StorageFailed` for whatever happens: then nothing
        of it is certain.
        """
        meta_before = self._meta
        self._begin()
        try:
            while not self._put(batch, folded, frames):
                self._txn.abort()
                self._env.grow()
                self._read_starts()
                self._begin()
            if not has_room(self._txn, self._tally):
                self._txn.abort()
                self._meta = meta_before
                self._read_starts()
                return False
            self._txn.commit()
        except lmdb.Error as error:
            self._txn.abort()
            failure = as_storage_error(error, self._env.path)
            raise StorageFailed(str(failure)) from error
        except StorageError:
            self._txn.abort()
            raise
        return True

    def _begin(self) -> None:
        self._tally = _Tally(self._env.large_bytes)
        self._txn = self._env.begin()

    def _put(self, batch: Batch, folded: int, frames: int) -> bool:
        """Put the batch into the open transaction; False when the map is too small for it."""
        try:
            if batch.cut_from is not None:
                self._cut_from(batch.cut_from)
            for record in _split(batch.entries):
                self._put_record(record, batch.commit_index, append=True)
            if batch.first_index is not None:
                self._cut_before(batch.first_index)
            self._put_meta(batch, folded, frames)
        except lmdb.MapFullError:
            return False
        return True

    def _put_record(self, entries: list[LogEntry], commit_index: int, *, append: bool) -> None:
        start = entries[0].log_index
        key = start.to_bytes(8, "big")
        value = encode_row(self._pack((commit_index, entries)), key)
        added = self._txn.put(key, value, append=append)
        assert added, "records out of order"
        self._tally.put(value)
        if append:
            self._starts.append(start)

    def _put_meta(self, batch: Batch, folded: int, frames: int) -> None:
        term, voted_for = batch.vote if batch.vote is not None else (self._meta.term, self._meta.voted_for)
        first_index = self._meta.first_index if batch.first_index is None else batch.first_index
        commit_index = max(self._meta.commit_index, batch.commit_index)
        meta = Meta(FORMAT_VERSION, term, voted_for, commit_index, first_index, folded, self._meta.tail_key, frames)
        value = encode_row(self._pack(meta), _META_KEY)
        self._txn.put(_META_KEY, value)
        self._tally.put(value)
        self._meta = meta

    def _cut_from(self, index: int) -> None:
        """Drop the stored entries at `index` and after it; the record across the cut is written anew."""
        at = bisect_left(self._starts, index)
        self._delete_records(at, len(self._starts))
        if at:
            key = self._starts[at - 1].to_bytes(8, "big")
            start, committed, entries = _decode_record(key, self._txn.get(key), self._env.path)
            if start + len(entries) > index:
                self._put_record(entries[: index - start], committed, append=False)

    def _cut_before(self, index: int) -> None:
        """Drop the records that hold nothing at or after `index`."""
        self._delete_records(0, max(bisect_right(self._starts, index) - 1, 0))

    def _delete_records(self, begin: int, end: int) -> None:
        for start in self._starts[begin:end]:
            self._txn.delete(start.to_bytes(8, "big"))
            self._tally.deletes += 1
        del self._starts[begin:end]

    def _read_starts(self) -> None:
        """What is stored, after a transaction was dropped."""
        with self._env.begin_read() as txn:
            self._starts = [int.from_bytes(key, "big") for key, _ in _stored_records(txn)]


def _stored_records(txn: Any) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if cursor.set_range(bytes(8)):
        yield from cursor.iternext()


def _split(entries: list[LogEntry]) -> Iterator[list[LogEntry]]:
    """The entries as records of bounded size."""
    begin = size = 0
    for at, entry in enumerate(entries):
        size += len(entry.data)
        if size > _RECORD_BYTES_MAX and at > begin:
            yield entries[begin:at]
            begin, size = at, len(entry.data)
    if entries:
        yield entries[begin:]


def _decode_meta(value: bytes, path: Path) -> tuple[Meta, int]:
    """What is stored, and the format that it is stored in."""
    row = decode_row(_META_KEY, value, path)
    if row[0] not in (1, FORMAT_VERSION):
        raise Corrupt(f"{path} has format {row[0]}, this program reads {FORMAT_VERSION}: run what wrote it")
    return Meta(*row), row[0]


def _decode_record(key: bytes, value: bytes, path: Path) -> tuple[int, int, list[LogEntry]]:
    """First index, commit index and entries of a record. Raises: `Corrupt`."""
    committed, held = decode_row(key, value, path)
    entries = [LogEntry._make(entry) for entry in held]
    start = int.from_bytes(key, "big")
    if [entry.log_index for entry in entries] != list(range(start, start + len(entries))):
        raise Corrupt(f"{path} is damaged: the record at index {start} holds other entries; {REJOIN}")
    return start, committed, entries
