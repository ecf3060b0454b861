"""The Raft log of tests and of the simulator: durable only when told, and able to lose what was not.

`sync` plays the disk's part; with `post`, the log plays it by itself on the owner's loop (`auto`). `crash` gives the
log that a restart would find. Next to read: `log_groups.py`, `raft_log.py`.
"""

from __future__ import annotations

from collections import deque

from horae_storage.errors import StorageFailed, StorageFull
from horae_storage.file_write import Post
from horae_storage.log_groups import Batch, Group, GroupedLog, fold
from horae_storage.log_port import LogEntry, LogState


class MemoryRaftLog(GroupedLog):
    """The log in memory (port `RaftLog`)."""

    def __init__(self, post: Post | None = None) -> None:
        """With `post`, sealed groups become durable by themselves at the loop's next pass; without, by `sync` only."""
        super().__init__()
        self._post = post
        self._posted = False
        self._held: StorageFull | None = None
        self._held_told = False
        self._failed = False
        self._closed = False
        self._unsynced: deque[Group] = deque()
        self._disk = _Disk()

    def load(self) -> LogState:
        state = self._disk.state()
        self._continue_from(state)
        return state

    def sync(self, through: int | None = None) -> None:
        """Make the sealed groups up to number `through` (None: all) durable and tell the owner, as one write."""
        self._posted = False
        if self._failed or self._closed:
            return
        if self._held is not None:
            if self._unsynced and not self._held_told:
                self._held_told = True
                self._failure_callback(self._held)
            return
        batch = fold(self._take_sealed(self.sealed if through is None else through))
        if batch.number:
            self._disk.write(batch)
            self.durable = batch.number
            self._durable_callback(batch.number)

    def hold(self, reason: StorageFull | None) -> None:
        self._held = reason
        self._held_told = False
        if self._post is not None and not self._posted:
            self._posted = True
            self._post(self.sync)

    def fail(self, error: StorageFailed) -> None:
        """Let the disk fail: the owner is told, and nothing becomes durable from now on."""
        self._failed = True
        self._failure_callback(error)

    def crash(self, keep_groups: int = 0) -> MemoryRaftLog:
        """The log that a restart finds: what is durable, and of the unsynced groups the first `keep_groups`.

        A crash may keep any prefix of what was on its way to the disk. This log is dead from now on.
        """
        self._closed = True
        restarted = MemoryRaftLog(self._post)
        restarted._disk = self._disk
        restarted._disk.write(fold(self._take_sealed(self.durable + keep_groups)))
        return restarted

    def size_bytes(self) -> int:
        return sum(len(entry.data) for entry in self._disk.entries)

    def close(self) -> None:
        self._held = None
        self.sync()
        self._closed = True

    def _hand_over(self, group: Group) -> None:
        self._unsynced.append(group)
        if self._post is not None and not self._posted:
            self._posted = True
            self._post(self.sync)

    def _take_sealed(self, through: int) -> list[Group]:
        taken: list[Group] = []
        while self._unsynced and self._unsynced[0].number <= through:
            taken.append(self._unsynced.popleft())
        return taken


class _Disk:
    """What survives."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self._vote: tuple[int, str | None] = (0, None)
        self._commit_index = 0

    def write(self, batch: Batch) -> None:
        entries = self.entries
        if batch.cut_from is not None and entries:
            del entries[max(batch.cut_from - entries[0].log_index, 0) :]
        entries += batch.entries
        if batch.first_index is not None and entries:
            del entries[: max(batch.first_index - entries[0].log_index, 0)]
        if batch.vote is not None:
            self._vote = batch.vote
        if batch.number:
            self._commit_index = batch.commit_index

    def state(self) -> LogState:
        return LogState(*self._vote, self._commit_index, list(self.entries))
