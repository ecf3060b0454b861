"""Claims that wait: first come, first served for each queue, and no work at all while nothing is ready.

Pure bookkeeping on the leader's loop: who waits on which queues, who has been asked for in an entry that is under way.
Not here: proposing, time, the grants. Next to read: `session.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horae_node.core.commands import ClaimJobs

if TYPE_CHECKING:
    from horae_node.leader.claim_book import RepeatableClaim

Grants = tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class Waiter:
    """One claim. `asked`: the queues whose ready jobs an entry under way asks for on its behalf.

    `ticket`: its place while it waits, else 0; `serial`: the same number, kept. `claim`: its calls, if it has an id.
    `in_doubt`: it was told that the outcome is not known, which may yet come.
    """

    command: ClaimJobs
    since_ms: int
    future: asyncio.Future[Grants]
    ticket: int = 0
    serial: int = 0
    asked: tuple[str, ...] = ()
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
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, waiter: Waiter) -> None:
        """Take a place at the end of each of its queues."""
        self._tickets += 1
        waiter.ticket = waiter.serial = self._tickets
        self._parked[waiter.ticket] = waiter
        for queue in waiter.command.queues:
            self._by_queue.setdefault(queue, {})[waiter.ticket] = waiter

    def remove(self, waiter: Waiter) -> None:
        """Leave all queues. A second call does nothing."""
        if waiter.ticket == 0:
            return
        for queue in waiter.command.queues:
            places = self._by_queue.get(queue)
            if places is not None and places.pop(waiter.ticket, None) is not None and not places:
                del self._by_queue[queue]
        del self._parked[waiter.ticket]
        waiter.ticket = 0

    def waits_on(self, queue: str) -> bool:
        return queue in self._by_queue

    def idle(self, queue: str) -> Iterator[Waiter]:
        """Those of a queue that nothing under way serves, first come first. Do not park or remove while iterating."""
        return (waiter for waiter in self._by_queue.get(queue, {}).values() if not waiter.in_flight)

    def all(self) -> list[Waiter]:
        """Every parked claim once, in order of arrival."""
        return list(self._parked.values())
