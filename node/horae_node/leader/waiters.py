"""Claims that wait: first come, first served for each queue, and no work at all while nothing is ready.

Pure bookkeeping on the leader's loop: who waits on which queues, who has been asked for in an entry that is under way.
Bounded by the names of queues that are waited on. Not here: proposing, time, the grants. Next to read: `session.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horae_node.core.commands import ClaimJobs
from horae_node.shedding import shed

if TYPE_CHECKING:
    from horae_node.leader.claim_book import RepeatableClaim

Grants = tuple[tuple[int, int], ...]

NAMES_MAX = 200_000
"""Names of queues that all parked claims wait on together: ten each for as many as may park, or 200 claims of the
longest lists. Where all are long and different they take some 100 MB, requests included."""

NAMES_RETRY_S = 1
"""Waits end after a minute at the most: places for thousands of names come free each second."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One claim. `asked`: the queues whose ready jobs an entry under way asks for on its behalf.

    `ticket`: its place while it waits, else 0; `serial`: the same number, kept. `claim`: its calls, if it has an id.
    `via`: the node that passed it on, if one did. `in_doubt`: it was told that the outcome is not known, which may yet
    come.
    """

    command: ClaimJobs
    since_ms: int
    future: asyncio.Future[Grants]
    ticket: int = 0
    serial: int = 0
    asked: tuple[str, ...] = ()
    via: str = ""
    in_flight: bool = False
    in_doubt: bool = False
    claim: RepeatableClaim | None = field(default=None, repr=False)
    expired: bool = False
    abandoned: bool = False
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)


class Waiters:
    """All parked claims, in the order in which they came."""

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[int, Waiter]] = {}
        self._parked: dict[int, Waiter] = {}
        self._kinds: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = {}
        """Lists of queues that are asked for: the one that is kept, and how many claims have it."""
        self._names = 0
        self._left: list[dict[str, dict[int, Waiter]]] = []
        """Lines of queues that everybody has left."""
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._parked)

    def require_room(self, queues: tuple[str, ...]) -> None:
        """Raises: `NotApplied("rate_limited")` when too many names are waited on already."""
        if self._names + len(queues) > NAMES_MAX:
            raise shed(f"claims that wait name {self._names} queues already, of {NAMES_MAX}", NAMES_RETRY_S)

    def park(self, waiter: Waiter) -> None:
        """Take a place at the end of each of its queues. Claims that ask for the same share one list of names."""
        self._tickets += 1
        waiter.ticket = waiter.serial = self._tickets
        self._parked[waiter.ticket] = waiter
        queues, claims = self._kinds.get(waiter.command.queues, (waiter.command.queues, 0))
        self._kinds[queues] = (queues, claims + 1)
        waiter.command = waiter.command._replace(queues=queues)
        self._names += len(queues)
        for queue in queues:
            self._by_queue.setdefault(queue, {})[waiter.ticket] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Leave all queues. A second call does nothing."""
        if waiter.ticket == 0:
            return
        queues = waiter.command.queues
        for queue in queues:
            places = self._by_queue.get(queue)
            if places is not None and places.pop(waiter.ticket, None) is not None and not places:
                del self._by_queue[queue]
        self._names -= len(queues)
        claims = self._kinds.pop(queues)[1] - 1
        if claims:
            self._kinds[queues] = (queues, claims)
        del self._parked[waiter.ticket]
        waiter.ticket = 0

    def remove_all(self) -> list[Waiter]:
        """Everybody leaves, at no cost for each queue; who it was, in order of arrival. Then call `sweep`."""
        gone = list(self._parked.values())
        for waiter in gone:
            waiter.ticket = 0
        self._left.append(self._by_queue)
        self._by_queue, self._parked, self._kinds, self._names = {}, {}, {}, 0
        return gone

    def sweep(self, lines: int) -> bool:
        """Free so many lines of what `remove_all` left. Whether there are more."""
        while self._left and lines > 0:
            line = self._left[-1]
            for _ in range(min(lines, len(line))):
                line.popitem()
            lines -= 1 + min(lines, len(line))
            if not line:
                self._left.pop()
        return bool(self._left)

    def waits_on(self, queue: str) -> bool:
        return queue in self._by_queue

    def idle(self, queue: str) -> Iterator[Waiter]:
        """Those of a queue that nothing under way serves, first come first. Do not park or remove while iterating."""
        return (waiter for waiter in self._by_queue.get(queue, {}).values() if not waiter.in_flight)

    def all(self) -> list[Waiter]:
        """Every parked claim once, in order of arrival."""
        return list(self._parked.values())
