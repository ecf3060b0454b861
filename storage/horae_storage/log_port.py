"""The port of the durable Raft log: entries, term and vote, written in groups, synced off the loop.

The adapter of the consensus library writes through this port and learns of durability by one callback. Writes are
cheap and never block: they join the *open group*; `seal` hands the group to the writer, which makes whole groups
durable in order, several groups by one sync when they wait (group commit). What one message handler deletes and
adds must be sealed as one group, so that a crash never shows half of it.
Two implementations pass `tests/conformance/test_raft_log.py`: `raft_log.LmdbRaftLog` and `memory_log.MemoryRaftLog`
(tests and the simulator: it can lose unsynced groups on purpose).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from horae_storage.errors import StorageFull


class LogEntry(NamedTuple):
    """One entry, in the field order of the consensus library's own tuples."""

    data: bytes
    log_index: int  # not `index`: a tuple has a method of that name
    term: int


class LogState(NamedTuple):
    """What a restart finds on disk."""

    term: int
    voted_for: str | None
    commit_index: int
    entries: list[LogEntry]  # contiguous, ascending; empty for a new log. Data included.


class RaftLog(Protocol):
    def load(self) -> LogState:
        """Read everything durable. Called once, before any write.

        Raises: `Corrupt` when a checksum fails or the indexes have a hole.
        """
        ...

    def append(self, entries: list[LogEntry]) -> None:
        """Add entries right after the last one (or anywhere in an empty log). Owned by the log from now on."""
        ...

    def truncate_from(self, index: int) -> None:
        """Drop the entry at `index` and all after it (a real conflict)."""
        ...

    def truncate_before(self, index: int) -> None:
        """Drop all entries below `index` (compaction)."""
        ...

    def reset(self, entries: list[LogEntry]) -> None:
        """Replace the whole log by these (after a snapshot was installed)."""
        ...

    def set_vote(self, term: int, voted_for: str | None) -> None:
        """Record the current term and the vote in it."""
        ...

    def set_commit(self, index: int) -> None:
        """Record a commit index. Lazy: alone it neither counts as a write nor causes a sync; it rides along."""
        ...

    def seal(self) -> int:
        """Close the open group and hand it to the writer; the number of the last group (0 before any).

        Nothing in the open group: no new one.
        """
        ...

    @property
    def sealed(self) -> int:
        """Number of the last sealed group."""
        ...

    @property
    def durable(self) -> int:
        """Number of the last group known to be synced. All groups up to it are durable."""
        ...

    def on_durable(self, callback: Callable[[int], None]) -> None:
        """Call `callback(durable)` on the owner's loop each time `durable` has grown. One, set before writing."""
        ...

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Call `callback(error)` on the owner's loop when a write or sync failed.

        `StorageFull`: nothing becomes durable while the disk is full, nothing is lost, and `durable` grows again when
        there is room; called once each time it fills up. Any other error is fatal: nothing becomes durable any more.
        """
        ...

    def hold(self, reason: StorageFull | None) -> None:
        """Let nothing more become durable, as if the disk were full: for an owner that has no room for what follows
        from the log. `on_failure(reason)` is called once, when something waits. None: go on."""
        ...

    def size_bytes(self) -> int:
        """Bytes the log takes on disk."""
        ...

    def close(self) -> None:
        """Write and sync what was sealed, stop the writer, free everything. A second call does nothing."""
        ...
