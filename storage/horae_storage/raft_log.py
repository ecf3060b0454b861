"""The durable Raft log in one LMDB file (port `RaftLog`), written by one thread, several groups by one sync.

A *record* holds the entries of one write together, under the 8-byte big-endian index of its first entry: one call
into LMDB however many entries came, because each such call gives up the interpreter lock and may wait long to get it
back. The thread keeps its next transaction open ahead, so that from wake-up to durable there are two such calls.
A process with a busy loop sets `sys.setswitchinterval` to 0.2 ms: with Python's 5 ms this thread was seen to starve.
Not here: when an acknowledgement may leave (`horae_node/raft/guard.py`). Next to read: `log_groups.py`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import lmdb
from msgpack import Packer

from horae_storage.environment import MAP_BYTES, RESERVE_BYTES, Environment, as_file_error, as_storage_error
from horae_storage.errors import REJOIN, Corrupt, StorageFailed, StorageFull
from horae_storage.files import sweep_temporaries
from horae_storage.log_groups import Batch, Group, GroupedLog, Post, fold
from horae_storage.log_port import LogEntry, LogState
from horae_storage.rows import decode_row, encode_row

FORMAT_VERSION = 1

_FILE_NAME = "log.mdb"

_META_KEY = b"\x00"  # shorter than a record's key: sorts before all of them

_GROUPS_MAX = 512
"""Groups in one write: a follower that catches up still acknowledges often."""

_RECORD_BYTES_MAX = 1 << 20
"""Data in one record, unless a single entry is larger: LMDB needs its pages in one run, and a cut rewrites a record."""

_RETRY_S = 0.25
"""How long the writer waits for room on a full disk before it looks again."""


class _Meta(NamedTuple):
    """What is stored beside the records."""

    format_version: int
    term: int
    voted_for: str | None
    commit_index: int
    first_index: int
    """Entries below it are compacted, also where a record still holds them."""


class LmdbRaftLog(GroupedLog):
    """The log on disk (port `RaftLog`). A full disk is waited out: `on_failure(StorageFull)` once, then retries.

    While the disk is full nothing becomes durable; the groups stay in line, and `durable` grows again when there is
    room. After any other failure nothing becomes durable any more.
    """

    def __init__(
        self,
        directory: Path,
        post: Post,
        *,
        create: bool = True,
        map_bytes: int = MAP_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        """Open the log in `directory`, or make an empty one. `post` runs a callback on the owner's loop, from a thread.

        Raises: `Corrupt` for a missing (`create` false), truncated or damaged file; `StorageFull`; `StorageFailed`.
        """
        super().__init__()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            sweep_temporaries(directory)
        except OSError as error:
            raise as_file_error(error, directory) from error
        self._path = directory / _FILE_NAME
        self._env = Environment(self._path, create=create, map_bytes=map_bytes, reserve_bytes=reserve_bytes)
        self._post = post
        self._queue: SimpleQueue[Group | None] = SimpleQueue()
        self._closing = threading.Event()
        self._records = _Records(self._env)
        self._thread = threading.Thread(target=self._run, name="raft-log", daemon=True)
        self._closed = False

    def load(self) -> LogState:
        state = self._records.load()
        self._continue_from(state)
        self._thread.start()
        return state

    def size_bytes(self) -> int:
        return self._path.stat().st_blocks * 512

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._env.close()

    def _hand_over(self, group: Group) -> None:
        self._queue.put(group)

    def _run(self) -> None:
        """The writer thread, root."""
        try:
            self._records.begin()
            while self._write_waiting():
                pass
        except Exception as error:
            self._tell(self._failure_callback, error)
        finally:
            self._records.end()

    def _write_waiting(self) -> bool:
        """Wait for groups and make them durable; False when there will be no more."""
        groups, more = self._take_groups()
        if groups and self._has_room():
            self._records.write(fold(groups))
            self._durable = groups[-1].number
            self._tell(self._durable_callback, self._durable)
            self._records.begin()
        return more

    def _take_groups(self) -> tuple[list[Group], bool]:
        """At least one group, and all that wait with it; and whether more may come."""
        groups: list[Group] = []
        group = self._queue.get()
        try:
            while group is not None:
                groups.append(group)
                if len(groups) == _GROUPS_MAX:
                    return groups, True
                group = self._queue.get_nowait()
        except Empty:
            return groups, True
        return groups, False

    def _has_room(self) -> bool:
        """Wait until the disk has room, telling the owner once; False when the log is closed meanwhile."""
        if self._records.has_room:
            return True
        self._tell(self._failure_callback, StorageFull(f"{self._path}: no room on the disk"))
        while not self._env.reserve():
            if self._closing.wait(_RETRY_S):
                return False
        return True

    def _tell(self, callback: Any, value: object) -> None:
        try:
            self._post(callback, value)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            self._closing.set()


class _Records:
    """The records in LMDB. After `load`, all calls come on the writer's thread."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._txn: Any = None
        self._pack = Packer().pack
        self._meta = _Meta(FORMAT_VERSION, 0, None, 0, 0)
        self.has_room = False
        """Whether the disk had room when the next transaction was opened."""
        self._starts: list[int] = []
        """First index of each record, ascending."""

    def load(self) -> LogState:
        """Read everything. Raises: `Corrupt`."""
        with self._env.begin_read() as txn:
            stored = txn.get(_META_KEY)
            if stored is not None:
                self._meta = _decode_meta(stored, self._env.path)
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

    def begin(self) -> None:
        """Open the next transaction, ahead of need: room on the disk and in the map is seen to here."""
        if self._txn is None:
            self.has_room = self._env.reserve()
            self._txn = self._env.begin()

    def end(self) -> None:
        """Drop the open transaction."""
        if self._txn is not None:
            self._txn.abort()
            self._txn = None

    def write(self, batch: Batch) -> None:
        """Make the batch durable. Raises: `StorageFailed` for whatever happens: then nothing of it is certain."""
        try:
            while not self._try_write(batch):
                self.end()
                self._env.grow()
                self._read_starts()
                self._txn = self._env.begin()
            txn, self._txn = self._txn, None
            txn.commit()
        except lmdb.Error as error:
            failure = as_storage_error(error, self._env.path)
            raise StorageFailed(str(failure)) from error

    def _try_write(self, batch: Batch) -> bool:
        """Put the batch into the open transaction; False when the map is too small for it."""
        try:
            if batch.cut_from is not None:
                self._cut_from(batch.cut_from)
            for record in _split(batch.entries):
                self._put_record(record, batch.commit_index, append=True)
            if batch.first_index is not None:
                self._cut_before(batch.first_index)
            if batch.vote is not None or batch.first_index is not None or not batch.entries:
                self._put_meta(batch)
        except lmdb.MapFullError:
            return False
        return True

    def _put_record(self, entries: list[LogEntry], commit_index: int, *, append: bool) -> None:
        start = entries[0].log_index
        key = start.to_bytes(8, "big")
        added = self._txn.put(key, encode_row(self._pack((commit_index, entries)), key), append=append)
        assert added, "records out of order"
        if append:
            self._starts.append(start)

    def _put_meta(self, batch: Batch) -> None:
        term, voted_for = batch.vote if batch.vote is not None else (self._meta.term, self._meta.voted_for)
        first_index = self._meta.first_index if batch.first_index is None else batch.first_index
        meta = _Meta(FORMAT_VERSION, term, voted_for, batch.commit_index, first_index)
        self._txn.put(_META_KEY, encode_row(self._pack(meta), _META_KEY))
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


def _decode_meta(value: bytes, path: Path) -> _Meta:
    row = decode_row(_META_KEY, value, path)
    if row[0] != FORMAT_VERSION:
        raise Corrupt(f"{path} has format {row[0]}, this program reads {FORMAT_VERSION}: run what wrote it")
    return _Meta._make(row)


def _decode_record(key: bytes, value: bytes, path: Path) -> tuple[int, int, list[LogEntry]]:
    """First index, commit index and entries of a record. Raises: `Corrupt`."""
    committed, held = decode_row(key, value, path)
    entries = [LogEntry._make(entry) for entry in held]
    start = int.from_bytes(key, "big")
    if [entry.log_index for entry in entries] != list(range(start, start + len(entries))):
        raise Corrupt(f"{path} is damaged: the record at index {start} holds other entries; {REJOIN}")
    return start, committed, entries
