"""What both Raft logs share: how the owner's calls become groups, and how many groups become one write.

Not here: any disk, any thread. Next to read: `raft_log.py`, `memory_log.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

from horae_storage.log_port import LogEntry, LogState

Post = Callable[..., object]
"""`loop.call_soon_threadsafe`, or what does its work: run the function with the arguments on the owner's loop."""


Change = tuple[Callable[..., None], tuple[object, ...]]
"""A method of `Batch` and what to call it with."""


class Group(NamedTuple):
    """What became durable together or not at all."""

    number: int
    changes: list[Change]
    commit_index: int


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
        self.cut_from = 0
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
        self._commit_index = 0
        self._first_index = 0
        self._last_index = -1  # below the first: empty
        self._sealed = 0
        self._durable = 0
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

    def set_vote(self, term: int, voted_for: str | None) -> None:
        self._changes.append((Batch.set_vote, (term, voted_for)))

    def set_commit(self, index: int) -> None:
        self._commit_index = index

    def seal(self) -> int:
        if self._changes:
            self._sealed += 1
            changes, self._changes = self._changes, []
            self._hand_over(Group(self._sealed, changes, self._commit_index))
        return self._sealed

    @property
    def sealed(self) -> int:
        return self._sealed

    @property
    def durable(self) -> int:
        return self._durable

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
