"""The newest events of this node, and who reads them: a ring, and subscribers that only have a place in it.

All nodes apply the same entries, so an event has the same id on each of them, and after a restart that applies its
entry again. At an apply each event costs one small tuple; what it is about (the job's id and task) is looked up when
somebody reads it. Bounded: the ring, the subscribers, and what one reading looks at. Runs on the loop. Not here: which
changes are events (`events.py`), the stream (`horae_http/events.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from horae import wire
from horae.wire import Event, FellBehind
from horae_node.core import views
from horae_node.core.changes import JobPurged
from horae_node.core.model import FIRST_META
from horae_node.core.results import EntryOutcome
from horae_node.core.tables import spec_bytes
from horae_node.errors import NotApplied
from horae_node.events import TELLERS, Place, Told
from horae_node.reads import moment_text, reason_called, state_called
from horae_storage.kv import View

SUBSCRIBERS_MAX: Final = 200
"""Of a node. Each may hold what a connection does, some 128 KiB unsent."""
SILENCE_S: Final = 15.0
"""After so long without an event a reader is given its place anew: half of what proxies wait."""
PAGE_EVENTS_MAX: Final = 150
"""In one reading: some 50 KiB as text."""
PAGE_LOOKS_MAX: Final = 2_000
"""Events that one reading looks at, wanted or not: under a millisecond."""
PAGE_BYTES_MAX: Final = 1 << 20
"""Payloads that it reads, for ids that lie beside them."""
PAGES_A_PASS: Final = 8
"""Readings in one pass of the loop, a few milliseconds each at worst."""
MARK_LOOKS: Final = 5_000
"""Events that a reader wanted none of, after which it is given its place anew: else it would seem to fall behind."""
PAUSE_S: Final = 0.0002
"""Between two wake-ups, for each subscriber: under load, with all of them, twenty a second."""
SHOWN_MAX: Final = 4_096
"""Events kept as they were shown: who reads along reads what others just did."""

LAST: Final = 2**63
"""A position after all of an entry's."""


class Wanted(NamedTuple):
    """Which events a subscriber is told; None: all. What is of no queue is wanted only where all queues are."""

    types: frozenset[str] | None = None
    queues: frozenset[str] | None = None

    def has(self, told: Told) -> bool:
        return (self.types is None or told[3] in self.types) and (self.queues is None or told[5] in self.queues)


class Page(NamedTuple):
    """What one reading gave. `resume`: the id that the reader may go on from, here or at another node."""

    behind: FellBehind | None
    events: list[Event]
    resume: str


class Ring:
    """The newest events, and how to name the jobs that are gone. Events are numbered from when it was last emptied."""

    def __init__(self, kept: int, applied_index: int) -> None:
        self._kept = kept
        self._events: list[Told] = []
        """The one numbered n lies at n modulo `kept`."""
        self.empty(applied_index)

    def empty(self, applied_index: int) -> None:
        """What came by that index is not kept. Before the first entry of a log there was nothing to keep."""
        self.floor: Place = (applied_index if applied_index > FIRST_META.applied_index else 0, LAST)
        """The place up to which events are not kept any more."""
        self.end = 0
        """The next event's number."""
        self.names: dict[int, tuple[str, str]] = {}
        """Id and task of the jobs whose removal is in the ring: it is the last event of each, so whichever of a job's
        events is here can be named, by this or by the state."""
        self._events.clear()

    def keep(self, told: Told) -> None:
        if self.end < self._kept:
            self._events.append(told)
        else:
            slot = self.end % self._kept
            oldest = self._events[slot]
            self.floor = oldest[:2]
            if oldest[3] == "removed":
                del self.names[oldest[4]]
            self._events[slot] = told
        self.end += 1

    def at(self, number: int) -> Told:
        return self._events[number % self._kept]

    def first_after(self, place: Place) -> int:
        """The number of the first event that is kept and comes after that place."""
        low, high = max(0, self.end - self._kept), self.end
        while low < high:
            middle = (low + high) // 2
            if self.at(middle)[:2] <= place:
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def newest(self) -> Place:
        """The last event's place; where none is kept, the floor."""
        return self.at(self.end - 1)[:2] if self.end else self.floor


class Feed:
    """One for a node."""

    def __init__(
        self, *, view: Callable[[], View], kept: int, applied_index: int, count_behind: Callable[[], None]
    ) -> None:
        """`view`: the state as applied; `kept`: events held at most; `count_behind`: called for each `FellBehind`."""
        self._view = view
        self.count_behind = count_behind
        self.ring = Ring(kept, applied_index)
        self.applied_index = applied_index
        self.closed = False
        self.subscribers = 0
        self.silence_s = SILENCE_S
        self.turns = asyncio.Semaphore(PAGES_A_PASS)
        """To be held over a pass of the loop, and then a reading."""
        self._shown: dict[Place, Event] = {}
        self._news: asyncio.Future[None] | None = None
        """All who wait wait for this; None while nobody does."""

    def on_entry(self, index: int, outcome: EntryOutcome) -> None:
        """Keep the events of an entry that was applied."""
        self.applied_index = index
        ring, now_ms = self.ring, outcome.now_ms
        end = ring.end
        for position, change in enumerate(outcome.changes):
            tell = TELLERS.get(type(change))
            if tell is not None:
                ring.keep(tell(index, position, now_ms, change))
                if type(change) is JobPurged:
                    ring.names[change.seq] = (change.spec.id, change.spec.task)
        if self._news is not None and ring.end != end:
            self._wake_soon(self._news)

    def on_install(self, applied_index: int) -> None:
        """A snapshot took the place of the state: nobody here knows what led to it."""
        self.applied_index = applied_index
        self.ring.empty(applied_index)
        if self._news is not None:
            self._wake_soon(self._news)

    def close(self) -> None:
        """End all readings: the node goes down, or was removed. A second call does nothing."""
        self.closed = True
        if self._news is not None:
            _wake(self._news)

    def subscribe(self, after: Place | None, wanted: Wanted) -> Subscription:
        """Read what comes after that place, be it still to come; None: from now on. To be closed.

        Raises: `NotApplied` (`rate_limited`, `shutting_down`).
        """
        if self.closed:
            raise NotApplied("shutting_down", "this node tells no more events: ask another one")
        if self.subscribers >= SUBSCRIBERS_MAX:
            raise NotApplied("rate_limited", f"{SUBSCRIBERS_MAX} read events here already: ask another node, or later")
        self.subscribers += 1
        return Subscription(self, (self.applied_index, LAST) if after is None else after, wanted)

    def show(self, told: Told) -> tuple[Event, int]:
        """The event, and how many bytes of a payload had to be read for it."""
        place = told[:2]
        event = self._shown.get(place)
        if event is not None:
            return event, 0
        event = Event(id_of(place), told[3], moment_text(told[2]), told[0])
        read_bytes = self._describe_job(event, told) if told[4] else _describe_other(event, told)
        if len(self._shown) >= SHOWN_MAX:
            self._shown.clear()
        self._shown[place] = event
        return event, read_bytes

    def _describe_job(self, event: Event, told: Told) -> int:
        _, _, _, _, seq, event.queue, state, event.attempt, worker, due_ms, dead_reason = told
        event.state = state_called(state)
        event.worker = worker or None
        event.run_at = moment_text(due_ms) if due_ms else None
        event.dead_reason = reason_called(dead_reason)
        name = self.ring.names.get(seq)
        if name is not None:
            event.job_id, event.task = name
            return 0
        spec = views.spec(self._view(), seq)
        assert spec is not None, f"job number {seq} is neither there nor told to be removed"
        event.job_id, event.task = spec.id, spec.task
        return spec_bytes(spec)

    async def wait_news(self, until_s: float) -> None:
        """Until there may be news, or that moment of the loop's clock has come."""
        loop = asyncio.get_running_loop()
        if self._news is None:
            self._news = loop.create_future()
        await asyncio.wait((self._news,), timeout=max(0.0, until_s - loop.time()))

    def _wake_soon(self, news: asyncio.Future[None]) -> None:
        """Once for all entries of a pause: to wake hundreds of readers for each would be all that the loop does."""
        self._news = None
        asyncio.get_running_loop().call_later(PAUSE_S * self.subscribers, _wake, news)


def _wake(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)


def _describe_other(event: Event, told: Told) -> int:
    queue, node_id, standing = told[5], told[8], told[10]
    event.queue = queue or None
    if node_id:
        event.node = node_id
        event.standing = cast(wire.MemberStandingName, standing)
    return 0


class Subscription:
    """A place in a feed, and what is wanted of it. One reader."""

    def __init__(self, feed: Feed, after: Place, wanted: Wanted) -> None:
        self._feed = feed
        self._after = after
        self._wanted = wanted
        self._unmarked = 0
        """Events looked at since the reader was last given its place."""
        self._open = True

    def close(self) -> None:
        """Make room for another. A second call does nothing."""
        if self._open:
            self._open = False
            self._feed.subscribers -= 1

    @property
    def resume(self) -> str:
        """The id after which a reading goes on from here."""
        return id_of(self._after)

    async def page(self) -> Page | None:
        """The next events, as soon as there are some; none when the reader had best be given its place anew.

        None: this node tells no more, ask another one.
        """
        feed, loop = self._feed, asyncio.get_running_loop()
        silent_s = loop.time() + feed.silence_s
        while not feed.closed:
            if self._has_news():
                async with feed.turns:
                    await asyncio.sleep(0)
                    behind, events = self._read()
                if events or behind is not None or self._unmarked >= MARK_LOOKS:
                    return self._page(behind, events)
            else:
                await feed.wait_news(silent_s)
            if loop.time() >= silent_s:
                return self._page(None, [])
        return None

    def _page(self, behind: FellBehind | None, events: list[Event]) -> Page:
        self._unmarked = 0
        return Page(behind, events, self.resume)

    def _has_news(self) -> bool:
        """Wanted or not. Where there are none, all that was applied is seen."""
        ring = self._feed.ring
        if self._after < max(ring.newest, ring.floor):
            return True
        self._after = max(self._after, (self._feed.applied_index, LAST))
        return False

    def _read(self) -> tuple[FellBehind | None, list[Event]]:
        behind = self._maybe_behind()
        feed, ring = self._feed, self._feed.ring
        number = ring.first_after(self._after)
        stop = min(ring.end, number + PAGE_LOOKS_MAX)
        self._unmarked += stop - number
        events: list[Event] = []
        read_bytes = 0
        while number < stop and len(events) < PAGE_EVENTS_MAX and read_bytes < PAGE_BYTES_MAX:
            told = ring.at(number)
            number += 1
            self._after = told[:2]
            if self._wanted.has(told):
                event, event_bytes = feed.show(told)
                events.append(event)
                read_bytes += event_bytes
        return behind, events

    def _maybe_behind(self) -> FellBehind | None:
        """Go on from the oldest that is kept, where what comes next is not."""
        ring = self._feed.ring
        if self._after >= ring.floor:
            return None
        missed_after, self._after = self._after, ring.floor
        first = ring.first_after(self._after)
        oldest = id_of(ring.at(first)[:2]) if first < ring.end else None
        self._feed.count_behind()
        return FellBehind(id_of(self._after), "fell_behind", id_of(missed_after), oldest)


def id_of(place: Place) -> str:
    """As the wire has it: `1234.0`; `1234` for a place after all of an entry's events."""
    index, position = place
    return str(index) if position == LAST else f"{index}.{position}"


def place_of(text: str) -> Place:
    """What `id_of` made, or anything of its form."""
    index, _, position = text.partition(".")
    return int(index), int(position) if position else LAST
