"""The library's journal over our log port: entries in memory for its reads, writes in sealed groups for the disk.

Positions are the library's (0 = the oldest entry kept); indexes are the log's. The first entry kept is the *root*: its
data is never sent or applied again, only its index and term matter. `mark` names the group that the writes so far are
in; `durable_index` is how much of the log, as it is now, is synced. May not decide when to write what; see `guard.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, overload

from horae_node.errors import Fatal
from horae_storage.log_port import LogEntry, LogState, RaftLog

ENTRY_REGULAR: Final = b"\x00"
ENTRY_NOOP: Final = b"\x01"
"""First byte of an entry: the library's command types."""

TURN_BYTES: Final = 16 << 10
TURN_ENTRIES: Final = 64
"""Applied before the loop gets its turn again: one entry of a batch, or some 10 ms of entries with a command each.
All that is committed at once stopped the loop for 120 ms under a load of batches; and what came meanwhile, the next
entry to be stored and acknowledged, waited for it (docs/decisions/0010-small-entries.md)."""

ROOT_INDEX: Final = 1
"""Index of the first entry of every log: the library's own, in term 0."""


class _Tail:
    """The entries from a position on, without copying them: the library asks for such a tail with every message."""

    __slots__ = ("_entries", "_start")

    def __init__(self, entries: list[LogEntry], start: int) -> None:
        self._entries = entries
        self._start = start

    def __len__(self) -> int:
        return max(0, len(self._entries) - self._start)

    def __iter__(self) -> Iterator[LogEntry]:
        entries = self._entries
        return (entries[at] for at in range(self._start, len(entries)))

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            start, stop, _ = at.indices(len(self))
            return self._entries[self._start + start : self._start + stop]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._entries[at + (self._start if at >= 0 else len(self._entries))]


class Journal:
    def __init__(self, log: RaftLog, state: LogState) -> None:
        self._log = log
        self._entries: list[LogEntry] = list(state.entries)
        self._bytes = sum(len(entry.data) for entry in self._entries)
        self.dirty = False
        """The handlers have written what is not sealed yet."""
        self._commit = state.commit_index
        self._groups: deque[tuple[int, int]] = deque()
        self.durable_index = self._entries[-1].log_index if self._entries else 0
        """Highest index up to which the log as it now stands is synced."""

    # ------------------------------------------------------------------ what the guard asks

    @property
    def first_index(self) -> int:
        return self._entries[0].log_index

    @property
    def last(self) -> LogEntry:
        return self._entries[-1]

    @property
    def last_index(self) -> int:
        return self._entries[-1].log_index

    @property
    def data_bytes(self) -> int:
        """Bytes of all entries kept."""
        return self._bytes

    @property
    def mark(self) -> int:
        """Number of the group that all writes so far are in: they are durable when the log's `durable` reaches it."""
        return self._log.sealed + self.dirty

    @property
    def durable(self) -> int:
        return self._log.durable

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`, None when it is not kept."""
        at = index - self._entries[0].log_index
        return self._entries[at].term if 0 <= at < len(self._entries) else None

    def one(self, index: int) -> list[LogEntry]:
        """The entry at `index` alone; none when it is not kept."""
        entries = self._entries
        at = index - entries[0].log_index
        return entries[at : at + 1] if at >= 0 else []

    def entries(self, start: int, last: int) -> list[LogEntry]:
        """The entries from index `start` to `last`, both kept."""
        first = self._entries[0].log_index
        return self._entries[start - first : last + 1 - first]

    def turn_end(self, index: int) -> int:
        """The last index of what is applied in one turn of the loop that begins with `index`: one entry at least."""
        at = index - self._entries[0].log_index
        left = TURN_BYTES
        for entry in self._entries[at : at + TURN_ENTRIES]:
            left -= len(entry.data)
            if left < 0:
                return max(index, entry.log_index - 1)
        return min(index + TURN_ENTRIES - 1, self.last_index)

    def cut_for(self, *, tail_bytes: int, tail_entries: int) -> int:
        """The index to cut below so that no more than such a tail stays."""
        entries = self._entries
        at = max(0, len(entries) - tail_entries)
        surplus = self._bytes - sum(len(entry.data) for entry in entries[:at]) - tail_bytes
        while surplus > 0 and at < len(entries) - 1:
            surplus -= len(entries[at].data)
            at += 1
        return entries[at].log_index

    def cut_below(self, index: int) -> None:
        """Drop the entries below `index`, which becomes the root. Nothing is dropped when it is not kept."""
        at = index - self._entries[0].log_index
        if 0 < at < len(self._entries):
            self.deleteEntriesTo(at)

    def restart_at(self, index: int, term: int) -> None:
        """Begin anew at an installed snapshot's last entry."""
        root = LogEntry(ENTRY_NOOP, index, term)
        self._entries[:] = [root]
        self._bytes = len(root.data)
        self._groups.clear()
        self.durable_index = 0
        self._log.reset([root])
        self._wrote()

    def seal(self) -> int:
        """Hand what the handlers wrote to the writer, as one group."""
        if self.dirty:
            self.dirty = False
            self._log.seal()
        return self._log.sealed

    def on_durable(self, durable: int) -> None:
        """Take in that all groups up to `durable` are synced."""
        groups = self._groups
        while groups and groups[0][0] <= durable:
            self.durable_index = groups.popleft()[1]

    # ------------------------------------------------------------------ the library's journal

    def add(self, data: bytes, index: int, term: int) -> None:
        if self._entries and index != self._entries[-1].log_index + 1:
            raise Fatal(f"log entry {index} does not follow {self._entries[-1].log_index}")
        entry = LogEntry(data, index, term)
        self._entries.append(entry)
        self._bytes += len(data)
        self._log.append([entry])
        self._wrote()

    def clear(self) -> None:
        raise Fatal("the library tried to clear the log")

    def deleteEntriesFrom(self, position: int) -> None:
        if position >= len(self._entries):
            return
        if position == 0:
            raise Fatal(f"all of the log would go, its root {self._entries[0].log_index} with it")  # 18
        index = self._entries[position].log_index
        self._bytes -= sum(len(entry.data) for entry in self._entries[position:])
        del self._entries[position:]
        self.durable_index = min(self.durable_index, index - 1)
        # What an older group promised about these indexes holds no longer: others will stand there.
        self._groups = deque((group, min(last, index - 1)) for group, last in self._groups)
        self._log.truncate_from(index)
        self._wrote()

    def deleteEntriesTo(self, position: int) -> None:
        if position >= len(self._entries):
            raise Fatal(f"all of the log would go, up to {self._entries[-1].log_index}")  # 18
        self._bytes -= sum(len(entry.data) for entry in self._entries[:position])
        del self._entries[:position]
        self._log.truncate_before(self._entries[0].log_index)
        self._wrote()

    @overload
    def __getitem__(self, at: int) -> LogEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[LogEntry] | _Tail: ...
    def __getitem__(self, at: int | slice) -> LogEntry | list[LogEntry] | _Tail:
        if isinstance(at, slice) and at.stop is None and at.start is not None:
            return _Tail(self._entries, at.start)
        return self._entries[at]

    def __len__(self) -> int:
        return len(self._entries)

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._log.set_vote(term, voted_for)
        self._wrote()

    def setRaftCommitIndex(self, index: int) -> None:
        if index != self._commit:
            self._commit = index
            self._log.set_commit(index)

    def onOneSecondTimer(self) -> None:
        """Nothing waits for it: the commit index rides along with the next group."""

    def _destroy(self) -> None:
        """The adapter closes the log."""

    # ------------------------------------------------------------------ inside

    def _wrote(self) -> None:
        self.dirty = True
        group, last = self._log.sealed + 1, self._entries[-1].log_index
        if self._groups and self._groups[-1][0] == group:
            self._groups.pop()
        self._groups.append((group, last))
