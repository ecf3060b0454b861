"""The durable Raft log (port `RaftLog`): one durable write for all groups that wait, by way of the log's tail.

What is sealed is written durably at once (`file_write.py`) into `tail.py`, a plain file; when a region of it is full, a
thread folds that into the database (`log_records.py`) in one commit, while the next writes go into the other region.
An LMDB commit syncs twice and moves pages of a tree; measured, 0.35 ms of each lone submit went there, and 0.11 ms go
into the tail. Of the database nothing is read but at a start: what is there, then the tail over it.
Not here: when an acknowledgement may leave (`horae_node/raft/guard.py`). Next to read: `log_groups.py`.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from msgpack import unpackb
from msgspec.msgpack import Encoder

from horae_storage.environment import MAP_BYTES, RESERVE_BYTES, Environment, Written, as_file_error
from horae_storage.errors import REJOIN, Corrupt, StorageError, StorageFailed, StorageFull
from horae_storage.file_write import FileWriter, Post, ThreadWriter, Watch, open_writer
from horae_storage.files import sweep_temporaries
from horae_storage.log_groups import Batch, Group, GroupedLog, fold
from horae_storage.log_port import LogEntry, LogState
from horae_storage.log_records import FORMAT_VERSION, Records
from horae_storage.tail import REGION_BYTES, Tail, Write

_FILE_NAME: Final = "log.mdb"
_TAIL_NAME: Final = "tail"

_GROUPS_MAX: Final = 512
"""Groups in one write: a follower that catches up still acknowledges often."""

_RETRY_S: Final = 0.25
"""How long a fold waits for room on a full disk before it looks again."""

_GATHERED_BYTES_MAX: Final = 256 << 10
"""Of the entries of several groups in one frame: more would wait too long for each other."""

_pack = Encoder().encode


class Fold(NamedTuple):
    """What the thread moves into the database in one commit."""

    batch: Batch
    round: int
    """The tail is in the database up to here afterwards."""
    frames: int
    """The tail has this frame."""
    number: int | None
    """The group that is durable by this alone: one too large for the tail."""


class LmdbRaftLog(GroupedLog):
    """The log on disk (port `RaftLog`). All calls and callbacks are on the owner's loop.

    A full disk stops nothing until the tail is full, whose room was taken when it was made. Then it is waited out:
    `on_failure(StorageFull)` once, then retries; meanwhile nothing becomes durable, the groups stay in line, and
    `durable` grows again when there is room. After any other failure nothing becomes durable any more.
    """

    def __init__(
        self,
        directory: Path,
        post: Post,
        *,
        watch: Watch | None = None,
        create: bool = True,
        map_bytes: int = MAP_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        region_bytes: int = REGION_BYTES,
    ) -> None:
        """Open the log in `directory`, or make an empty one.

        `post` runs a callback on the owner's loop, from a thread; `watch` has the loop look at a file descriptor:
        without it, each write takes a thread's help. `region_bytes` is used when the tail is made.
        Raises: `Corrupt` for a missing (`create` false), truncated or damaged file; `StorageFull`; `StorageFailed`.
        """
        super().__init__()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            sweep_temporaries(directory)
        except OSError as error:
            raise as_file_error(error, directory) from error
        self._path = directory / _FILE_NAME
        self._tail_path = directory / _TAIL_NAME
        self._region_bytes = region_bytes
        self._env = Environment(self._path, create=create, map_bytes=map_bytes, reserve_bytes=reserve_bytes)
        self._post = post
        self._watch = watch
        self._records = Records(self._env)
        self._tail: Tail
        self._writer: FileWriter
        self._former: FileWriter | None = None
        self._waiting: deque[Group] = deque()
        self._under_way: int | None = None
        """The last group of the write that is not durable yet."""
        self._writing = False
        self._stalled = False
        """The next write has no place until a fold ends, or the disk has room."""
        self._unfolded = Batch()
        """What the round that is being filled holds."""
        self._fold_next: Fold | None = None
        """To be given to the thread when the write under way is durable: a round is folded after the next has begun."""
        self._folded = 0
        self._durable_frame = 0
        self._no_room: StorageFull | None = None
        """Why the thread waits."""
        self._held: StorageFull | None = None
        """Why nothing is to be written, though there may be room."""
        self._held_told = False
        self._failed = False
        self._closed = False
        self._loaded = False
        self._closing = threading.Event()
        self._folds: SimpleQueue[Fold | None] = SimpleQueue()
        self._told: SimpleQueue[Fold | StorageError | None] = SimpleQueue()
        """What the thread has to say: taken out on the loop, or by `close`."""
        self._thread = threading.Thread(target=self._run, name="log-fold", daemon=True)

    def load(self) -> LogState:
        state = self._records.load()
        if self._records.format_found != FORMAT_VERSION:
            self._begin_tail(state.commit_index)
        self._tail = Tail(self._tail_path)
        try:
            state = self._load_tail(state)
            self._writer = open_writer(
                *(self._tail_path, self._tail.fd, self._on_written, self._post, self._watch),
                bytes_max=self._tail.write_bytes_max,
            )
        except OSError as error:
            self._tail.close()
            raise as_file_error(error, self._tail_path) from error
        except StorageError:
            self._tail.close()
            raise
        self._thread.start()
        self._loaded = True
        return state

    def _load_tail(self, state: LogState) -> LogState:
        """What the database and its tail hold together. Raises: `Corrupt`, `StorageFailed`."""
        meta = self._records.meta
        if self._tail.key != meta.tail_key:
            raise Corrupt(f"{self._tail_path} is damaged: it is not the tail of {self._path}; {REJOIN}")
        self._folded = meta.folded
        rounds = [Batch(), Batch()]
        for frame in self._tail.read(meta.folded, at_least=meta.frames):
            rounds[frame.round - meta.folded - 1].then(_decode_batch(frame.data))
        for batch in rounds:
            state = batch.apply_to(state)
        _require_no_hole(state.entries, self._tail_path)
        self._unfolded = rounds[self._tail.round - meta.folded - 1]
        if self._tail.round == meta.folded + 2:
            self._folds.put(Fold(rounds[0], meta.folded + 1, self._tail.last_frame, None))
        self._continue_from(state)
        return state

    def size_bytes(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in (self._path, self._tail_path))

    def close(self) -> None:
        if self._closed:
            return
        self._closing.set()
        if self._loaded:
            self._write_rest()
            self._folds.put(None)
            self._thread.join()
            self._writer.close()
            if self._former is not None:
                self._former.close()
            self._note_end()
            self._tail.close()
        self._closed = True
        self._env.close()

    def _begin_tail(self, commit_index: int) -> None:
        """A new log, or one that was written before there was a tail. Raises: `Corrupt`, `StorageFull`."""
        if self._tail_path.exists():
            with closing(Tail(self._tail_path)) as found:
                if found.is_used():
                    raise Corrupt(f"{self._path} is damaged: it is older than its tail; {REJOIN}")
        if not self._env.reserve():
            raise StorageFull(f"{self._path}: no room on the disk")
        Tail.create(self._tail_path, self._region_bytes)
        with closing(Tail(self._tail_path)) as made:
            self._records.begin(commit_index, made.key)

    def _note_end(self) -> None:
        """After an orderly end, no frame can be missing unnoticed. Without room, it is as after a crash."""
        meta = self._records.meta
        if self._durable_frame > meta.frames:
            try:
                self._records.write(Batch(), meta.folded, self._durable_frame, self._env.reserve_commit)
            except StorageError:
                return  # nothing is lost: all of it is in the tail

    # ---------------------------------------------------------------- on the owner's loop

    def _hand_over(self, group: Group) -> None:
        self._waiting.append(group)
        self._write_next()

    def hold(self, reason: StorageFull | None) -> None:
        self._held = reason
        self._held_told = False
        self._write_next()

    def _write_next(self) -> None:
        """Begin to write what waits; nothing while another write is under way."""
        if not self._waiting or self._under_way is not None or self._stalled or self._failed:
            return
        if self._held is not None:
            self._tell_held(self._held)
            return
        groups = self._take_groups()
        batch = fold(groups)
        write = self._frame(batch)
        if write is None:
            self._waiting.extendleft(reversed(groups))
            return
        self._under_way = batch.number
        self._begin(write)

    def _begin(self, write: Write) -> None:
        self._writing = True
        try:
            self._writer.begin(*write)
        except OSError:  # the kernel takes no more: the thread will do
            self._former = self._writer  # closed with the log: that would hold the loop up
            self._writer = ThreadWriter(self._tail.fd, self._on_written, self._post)
            self._writer.begin(*write)

    def _take_groups(self) -> list[Group]:
        """At least one, and of those that wait with it so many as one frame takes."""
        waiting = self._waiting
        groups = [waiting.popleft()]
        data_bytes = groups[0].data_bytes
        while waiting and len(groups) < _GROUPS_MAX and data_bytes + waiting[0].data_bytes <= _GATHERED_BYTES_MAX:
            data_bytes += waiting[0].data_bytes
            groups.append(waiting.popleft())
        return groups

    def _frame(self, batch: Batch) -> Write | None:
        """The batch as the next frame of the tail; None when it must wait."""
        frame = _encode_batch(batch)
        large = len(frame) > self._tail.frame_bytes_max
        turns = large or not self._tail.has_room(len(frame))
        if turns and self._folded < self._tail.round - 1:  # the other region is not folded yet
            self._stalled = True
            self._tell_full()
            return None
        if turns:
            self._turn_over(batch if large else None)
        if not large:
            self._unfolded.then(batch)
        return self._tail.frame(b"" if large else frame)

    def _turn_over(self, large: Batch | None) -> None:
        """Go on in the other region; what this one holds is to be folded, and a batch with it that is too large."""
        if large is not None:
            self._unfolded.then(large)
        number = None if large is None else large.number
        self._fold_next = Fold(self._unfolded, self._tail.round, self._durable_frame, number)
        self._unfolded = Batch()
        self._tail.turn_over()

    def _on_written(self, error: OSError | None) -> None:
        self._writing = False
        if error is not None:
            self._fail(StorageFailed(f"cannot write {self._tail_path}: {error.strerror}"))
            return
        self._durable_frame = self._tail.last_frame
        fold_next, self._fold_next = self._fold_next, None
        if fold_next is not None:
            self._folds.put(fold_next)
        if fold_next is None or fold_next.number is None:
            self._end_write()

    def _end_write(self) -> None:
        assert self._under_way is not None
        self.durable, self._under_way = self._under_way, None
        self._write_next()
        self._durable_callback(self.durable)

    def _on_told(self) -> None:
        """The thread said something."""
        if not self._closed and not self._told.empty():
            self._take_told()

    def _take_told(self) -> bool:
        """Wait for the thread's next word; False when it says no more."""
        told = self._told.get()
        if isinstance(told, Fold):
            self._folded = told.round
            self._stalled, self._no_room = False, None
            if told.number is not None:
                self._end_write()
            else:
                self._write_next()
        elif isinstance(told, StorageFull):
            self._no_room = told
            self._tell_full()
        elif told is not None:
            self._fail(told)
        return told is not None

    def _tell_full(self) -> None:
        """Not before something waits for the room: until then all becomes durable in the tail."""
        waits_for_fold = self._under_way is not None and not self._writing
        if self._no_room is not None and (self._stalled or waits_for_fold):
            error, self._no_room = self._no_room, None
            self._failure_callback(error)

    def _tell_held(self, reason: StorageFull) -> None:
        """Once, when something waits for it."""
        if not self._held_told:
            self._held_told = True
            self._failure_callback(reason)

    def _fail(self, error: StorageError) -> None:
        self._failed = True
        self._failure_callback(error)

    def _write_rest(self) -> None:
        """What was sealed, before the end: waits for the disk, not for room on it."""
        self._durable_callback = self._failure_callback = _ignore
        self._held = None
        more = True
        self._write_next()
        while more and not self._failed and (self._under_way is not None or self._waiting):
            if self._writing:
                self._on_written(self._writer.finish())
            else:
                more = self._take_told()
        self._failed = True
        self._writer.finish()

    # ---------------------------------------------------------------- on the thread

    def _run(self) -> None:
        """The thread, root: it ends when it is told to, or after a failure."""
        try:
            while (fold := self._folds.get()) is not None and self._records.write(
                fold.batch, fold.round, fold.frames, self._has_room
            ):
                self._tell(fold)
        except StorageError as error:
            self._tell(error)
        except Exception as error:
            self._tell(StorageFailed(f"the fold of {self._tail_path} failed: {error!r}"))
        finally:
            self._tell(None)

    def _has_room(self, txn: Any, written: Written) -> bool:
        """Wait until the disk has room, telling the owner once; False when the log is closed meanwhile."""
        if self._env.reserve_commit(txn, written):
            return True
        self._tell(StorageFull(f"{self._path}: no room on the disk"))
        while not self._env.reserve_commit(txn, written):
            if self._closing.wait(_RETRY_S):
                return False
        return True

    def _tell(self, what: Fold | StorageError | None) -> None:
        self._told.put(what)
        try:
            self._post(self._on_told)
        except RuntimeError:  # the loop is closed: `close` will take it out
            pass


def _require_no_hole(entries: list[LogEntry], path: Path) -> None:
    first = entries[0].log_index if entries else 0
    if [entry.log_index for entry in entries] != list(range(first, first + len(entries))):
        raise Corrupt(f"{path} is damaged: it does not go on where the database ends; {REJOIN}")


def _encode_batch(batch: Batch) -> bytes:
    return _pack((batch.commit_index, batch.cut_from, batch.first_index, batch.vote, batch.entries))


def _decode_batch(data: bytes) -> Batch:
    """What `_encode_batch` encoded; no data is an empty batch."""
    batch = Batch()
    if data:
        batch.commit_index, batch.cut_from, batch.first_index, batch.vote, entries = unpackb(data, use_list=False)
        batch.entries = [LogEntry._make(entry) for entry in entries]
    return batch


def _ignore(_: object) -> None:
    """A callback of an owner that is gone."""
