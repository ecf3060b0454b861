"""What goes through each queue: jobs submitted, started and finished a second, over the last minute of this node.

Counted from what is applied, so every node has them; kept in memory, in spans of ten seconds, and bounded: of more
queues than a span may hold the rest is not counted. Runs on the loop. Not here: depths, which the machine keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from horae_node.clock import Clock
from horae_node.core.changes import Change, JobChanged, JobGranted, JobSubmitted
from horae_node.core.tables import S_RUNNING

SPAN_MS: Final = 10_000
SPANS: Final = 6
QUEUES_MAX: Final = 20_000
"""In one span."""


class Rates(NamedTuple):
    """Jobs a second."""

    submitted: float
    started: float
    finished: float


def _submitted(change: JobSubmitted) -> tuple[str, int] | None:
    return change.spec.queue, 0


def _started(change: JobGranted) -> tuple[str, int] | None:
    return change.terms.queue, 1


def _finished(change: JobChanged) -> tuple[str, int] | None:
    return (change.handle.queue, 2) if change.after.state > S_RUNNING else None


_COUNTED: Final[Mapping[type, Callable[[Any], tuple[str, int] | None]]] = {
    JobSubmitted: _submitted,
    JobGranted: _started,
    JobChanged: _finished,
}


class QueueRates:
    """One for a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._span_from_ms = clock.monotonic_ms()
        self._span: dict[str, list[int]] = {}
        self._past: deque[dict[str, list[int]]] = deque(maxlen=SPANS - 1)

    def on_entry(self, changes: Sequence[Change]) -> None:
        self._turn()
        for change in changes:
            count = _COUNTED.get(type(change))
            counted = None if count is None else count(change)
            if counted is not None:
                self._count(*counted)

    def of(self, queue: str) -> Rates:
        """Of the last minute, or of what there was of it."""
        self._turn()
        spans = [span[queue] for span in (*self._past, self._span) if queue in span]
        covered_ms = len(self._past) * SPAN_MS + self._clock.monotonic_ms() - self._span_from_ms
        seconds = max(covered_ms, 1000) / 1000
        return Rates(*[round(sum(span[kind] for span in spans) / seconds, 3) for kind in range(3)])

    def _count(self, queue: str, kind: int) -> None:
        counts = self._span.get(queue)
        if counts is None:
            if len(self._span) >= QUEUES_MAX:
                return
            counts = self._span[queue] = [0, 0, 0]
        counts[kind] += 1

    def _turn(self) -> None:
        """Begin new spans as time goes by; after a pause no more than there are kept."""
        gone = (self._clock.monotonic_ms() - self._span_from_ms) // SPAN_MS
        for _ in range(min(gone, SPANS)):
            self._past.append(self._span)
            self._span = {}
        self._span_from_ms += gone * SPAN_MS
