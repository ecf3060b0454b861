"""Who works: the workers that claimed or sent a heartbeat lately, as the leader has seen them. Kept in memory alone.

A new leader learns of each by its next claim or heartbeat, seconds later. Not here: who holds which lease (the machine
knows, and what is shown is checked against it). Next to read: `service.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

KEPT_S: Final = 300.0
"""After its last word a worker is told of for so long."""

WORKERS_MAX: Final = 10_000
"""The most that are remembered: past it, those who were silent for longest go."""

NAMES_KEPT_MAX: Final = 200_000
"""Names of queues that are remembered, of all workers together: some 30 MB of long ones. Past it likewise."""

HELD_MAX: Final = 1000
"""Jobs in hand of one worker that are remembered: the most that one heartbeat renews."""

LOOKS_MAX: Final = 4000
"""Of one page."""

NAMES_MAX: Final = 40_000
"""Names of queues that are looked at for one page, shown or not: of a hundred characters each they take 4 MiB."""


class Seen(NamedTuple):
    worker: str
    queues: tuple[str, ...]
    """Named in its last claim, in its order; none when only heartbeats were heard here."""
    running: int
    silent_s: float


class _Entry:
    __slots__ = ("held", "queues", "seen_s")

    def __init__(self) -> None:
        self.queues: tuple[str, ...] = ()
        self.held: dict[int, None] = {}
        self.seen_s = 0.0


class WorkerBook:
    """One for a node. Times are seconds on the caller's monotonic clock."""

    def __init__(self, is_running: Callable[[int, str], bool]) -> None:
        """`is_running(seq, worker)`: that job is in that worker's hands by the state."""
        self._is_running = is_running
        self._entries: dict[str, _Entry] = {}
        self._holder: dict[int, str] = {}
        self._names = 0

    def __len__(self) -> int:
        return len(self._entries)

    def saw(self, worker: str, now_s: float, queues: Iterable[str] | None = None) -> None:
        """It claims, from these queues, or sends a heartbeat."""
        entry = self._entries.pop(worker, None) or _Entry()
        self._entries[worker] = entry  # last among all: the first was silent for longest
        entry.seen_s = now_s
        if queues is not None:
            named = tuple(queues)
            self._names += len(named) - len(entry.queues)
            entry.queues = named
        while len(self._entries) > WORKERS_MAX or self._names > NAMES_KEPT_MAX:
            self._forget(next(iter(self._entries)))

    def holds(self, worker: str, seqs: Iterable[int]) -> None:
        """It was granted these jobs, or renewed their leases."""
        entry = self._entries.get(worker)
        if entry is None:
            return
        for seq in seqs:
            before = self._holder.get(seq)
            if before is not None and before != worker and before in self._entries:
                self._entries[before].held.pop(seq, None)
            self._holder[seq] = worker
            entry.held[seq] = None
        while len(entry.held) > HELD_MAX:
            self.ended(next(iter(entry.held)))

    def ended(self, seq: int) -> None:
        """An attempt at this job was ended."""
        worker = self._holder.pop(seq, None)
        if worker is not None and worker in self._entries:
            self._entries[worker].held.pop(seq, None)

    def page(self, now_s: float, after: str, limit: int, only: Collection[str] | None) -> tuple[list[Seen], str | None]:
        """By name, those after `after`, and the last that was looked at where there may be more; with `only`, who
        claims from one of them.

        At most `limit`, and fewer where they have much in hand, since each job is looked up (`LOOKS_MAX`), or where
        they name many queues (`NAMES_MAX`).
        """
        for worker in [name for name, entry in self._entries.items() if now_s - entry.seen_s > KEPT_S]:
            self._forget(worker)
        names = sorted(self._entries)
        found: list[Seen] = []
        looks = named = 0
        last = ""
        for worker in names[bisect_right(names, after) if after else 0 :]:
            if named >= NAMES_MAX:
                return found, last
            entry = self._entries[worker]
            named += len(entry.queues)
            queues = entry.queues if only is None else tuple(queue for queue in entry.queues if queue in only)
            if only is None or queues:
                if len(found) == limit or looks >= LOOKS_MAX:
                    return found, last
                looks += len(entry.held)
                found.append(Seen(worker, queues, self._running(worker, entry), now_s - entry.seen_s))
            last = worker
        return found, None

    def _running(self, worker: str, entry: _Entry) -> int:
        """What ran out, or was ended elsewhere, is forgotten by the way."""
        for seq in [seq for seq in entry.held if not self._is_running(seq, worker)]:
            self.ended(seq)
        return len(entry.held)

    def _forget(self, worker: str) -> None:
        entry = self._entries.pop(worker)
        self._names -= len(entry.queues)
        for seq in entry.held:
            if self._holder.get(seq) == worker:
                del self._holder[seq]
