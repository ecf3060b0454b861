"""What both Raft logs share: how the owner's calls become groups, and how many groups become one write.

Not here: any disk, any thread. Next to read: `raft_log.py`, `memory_log.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from horae_storage.log_port import LogEntry, LogState

Change = tuple[Callable[..., None], tuple[object, ...]]
"""A method of `Batch` and what to call it with."""


_ALL = 0
"""`cut_from` of a batch that replaces all there was: no entry has this index."""


class Group(NamedTuple):
    """What became durable together or not at all."""

    number: int
    changes: list[Change]
    commit_index: int
    data_bytes: int
    """Of its entries."""


class Batch:
    """Any number of groups, folded into the one write that has their effect."""

    __slots__ = ("commit_index", "cut_from", "entries", "first_index", "number", "vote")

    def __init__(self) -> None:
        self.number = 0
        self.entries: list[LogEntry] = []
        """To be appended, after the cuts."""
        self.cut_from: int | None = None
        """What is stored at this index and after it goes."""
        self.first_index: int | None = None
        """What is stored below this index goes, after the append: what lies between stays, so that no hole appears."""
        self.vote: tuple[int, str | None] | None = None
        self.commit_index = 0

    def add(self, group: Group) -> None:
        """Take in the group that follows."""
        self.number = group.number
        self.commit_index = group.commit_index
        for change, arguments in group.changes:
            change(self, *arguments)

    def then(self, later: Batch) -> None:
        """Take in the batch that follows."""
        if later.cut_from == _ALL:
            self.reset(later.entries)
        else:
            if later.cut_from is not None:
                self.truncate_from(later.cut_from)
            self.entries += later.entries
        if later.first_index is not None:
            self.truncate_before(later.first_index)
        if later.vote is not None:
            self.vote = later.vote
        self.number = later.number
        self.commit_index = later.commit_index

    def apply_to(self, state: LogState) -> LogState:
        """What a log in this state is after the batch."""
        entries = state.entries
        if self.cut_from is not None:
            entries = [entry for entry in entries if entry.log_index < self.cut_from]
        entries = [entry for entry in (*entries, *self.entries) if entry.log_index >= (self.first_index or 0)]
        term, voted_for = self.vote if self.vote is not None else (state.term, state.voted_for)
        return LogState(term, voted_for, max(state.commit_index, self.commit_index), entries)

    def append(self, entries: list[LogEntry]) -> None:
        self.entries += entries

    def truncate_from(self, index: int) -> None:
        entries = self.entries
        if entries and index > entries[0].log_index:
            del entries[index - entries[0].log_index :]
            return
        entries.clear()
        self.cut_from = index if self.cut_from is None else min(self.cut_from, index)

    def truncate_before(self, index: int) -> None:
        self.first_index = index if self.first_index is None else max(self.first_index, index)

    def reset(self, entries: list[LogEntry]) -> None:
        self.entries = list(entries)
        self.cut_from = _ALL
        self.first_index = entries[0].log_index if entries else 0

    def set_vote(self, term: int, voted_for: str | None) -> None:
        self.vote = (term, voted_for)


def fold(groups: Iterable[Group]) -> Batch:
    """The one write for `groups`, which follow each other."""
    batch = Batch()
    for group in groups:
        batch.add(group)
    return batch


class GroupedLog:
    """The owner's side of a log: checks each call, collects the open group, numbers it when it is sealed."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._data_bytes = 0
        self._commit_index = 0
        self._first_index = 0
        self._last_index = -1  # below the first: empty
        self.sealed = 0
        self.durable = 0
        self._durable_callback: Callable[[int], None] = _ignore
        self._failure_callback: Callable[[BaseException], None] = _ignore

    def append(self, entries: list[LogEntry]) -> None:
        if not entries:
            return
        if self._last_index < self._first_index:
            self.reset(entries)
            return
        assert entries[0].log_index == self._last_index + 1, "an entry was skipped"
        self._last_index += len(entries)
        assert entries[-1].log_index == self._last_index, "the entries have a hole"
        self._changes.append((Batch.append, (entries,)))
        self._data_bytes += sum([len(entry.data) for entry in entries])

    def truncate_from(self, index: int) -> None:
        if index <= self._last_index:
            self._last_index = index - 1
            self._changes.append((Batch.truncate_from, (index,)))

    def truncate_before(self, index: int) -> None:
        if index > self._first_index:
            self._first_index = index
            self._changes.append((Batch.truncate_before, (index,)))

    def reset(self, entries: list[LogEntry]) -> None:
        self._first_index = entries[0].log_index if entries else 0
        self._last_index = self._first_index + len(entries) - 1
        assert not entries or entries[-1].log_index == self._last_index, "the entries have a hole"
        self._changes.append((Batch.reset, (entries,)))
        self._data_bytes += sum([len(entry.data) for entry in entries])

    def set_vote(self, term: int, voted_for: str | None) -> None:
        self._changes.append((Batch.set_vote, (term, voted_for)))

    def set_commit(self, index: int) -> None:
        self._commit_index = index

    def seal(self) -> int:
        if self._changes:
            self.sealed += 1
            changes, self._changes = self._changes, []
            data_bytes, self._data_bytes = self._data_bytes, 0
            self._hand_over(Group(self.sealed, changes, self._commit_index, data_bytes))
        return self.sealed

    def on_durable(self, callback: Callable[[int], None]) -> None:
        self._durable_callback = callback

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._failure_callback = callback

    @abstractmethod
    def _hand_over(self, group: Group) -> None:
        """Give a sealed group to whoever makes it durable."""

    def _continue_from(self, state: LogState) -> None:
        """Go on after what a restart found."""
        self._commit_index = state.commit_index
        if state.entries:
            self._first_index = state.entries[0].log_index
            self._last_index = state.entries[-1].log_index


def _ignore(_: object) -> None:
    """The callback before one is set."""
