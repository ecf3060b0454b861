"""Handing out jobs that have concurrency keys: the groups of a queue take turns.

Priority comes first. Within one, the group that was served longest ago is next, whichever of its jobs is the oldest;
within a group it is the queue's own order. A group that begins to wait, or may run one more again, stands at the end
of the line. Jobs without a key are one group more, which knows no limit and keeps its turn while it has no job. So a
tenant with a million jobs gets no more turns than one with three.
Nothing is written before all is decided: what the grants of this claim will do to the turns (`evolve.py`) is played
through here. Next to read: `claim.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from horae_node.core.changes import JobGranted
from horae_node.core.commands import ClaimJobs
from horae_node.core.context import Context
from horae_node.core.decide.grant import grant_of
from horae_node.core.model import Lanes
from horae_node.core.tables import (
    GROUP_BYTES,
    PRIORITY_MAX,
    QueueKeys,
    after_queue,
    group_row_of,
    keyed_range,
    queue_keys,
)

SPARE = 32
"""Groups looked at beyond those that are needed: the jobs of some may have expired, and wait for the sweep."""

ROWS_SPARE = SPARE * 8
"""Rows that one claim reads beyond twice those that it needs."""

_KEYLESS = b""

Place = tuple[int, int]
"""(inverted priority of the best job, turn): the least is next. No two groups have the same turn."""


class _Budget:
    """Rows that may still be read by one claim, however many groups it opens."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class _Line:
    """One group. What it may be granted is read when its turn comes: for one job, one group is read, and not all."""

    def __init__(self, group: bytes, place: Place) -> None:
        self.group = group
        self.place = place
        self._room: int | None = None
        self._grants: Iterator[JobGranted] | None = None
        self.next: JobGranted | None = None

    def __lt__(self, other: _Line) -> bool:
        return self.place < other.place

    def open(self, ctx: Context, command: ClaimJobs, keys: QueueKeys, per_key: int, budget: _Budget) -> None:
        """Find its next job; none when it may not run one more: the limit was lowered since it was looked at."""
        if self._grants is not None:
            return
        if self.group == _KEYLESS:
            start, stop = keys.ready, keys.ready_stop
        else:
            self._room = per_key - _running(ctx, keys, self.group)
            start, stop = keyed_range(keys, self.group)
        self._grants = _grants(ctx, command, start, stop, budget)
        self._step(self.place[1])

    def take(self, turn: int) -> None:
        """Its next job was granted: the group stands at the end of the line now."""
        if self._room is not None:
            self._room -= 1
        self._step(turn)

    def _step(self, turn: int) -> None:
        assert self._grants is not None
        self.next = next(self._grants, None) if self._room is None or self._room > 0 else None
        if self.next is not None:
            self.place = PRIORITY_MAX - self.next.terms.priority, turn


def take(
    ctx: Context, command: ClaimJobs, queue: str, lanes: Lanes, jobs: list[JobGranted], jobs_max: int, bytes_left: int
) -> int:
    """Add this queue's grants to `jobs`, up to `jobs_max` in all; the bytes then left, 0 when the next has no room."""
    wanted = jobs_max - len(jobs)
    if wanted <= 0:
        return bytes_left
    keys = queue_keys(queue)
    per_key = ctx.settings(queue).max_running_per_key
    lines = _lines(ctx, keys, lanes, wanted)
    heapify(lines)
    budget = _Budget(2 * wanted + ROWS_SPARE)
    next_turn = lanes.next_turn
    while lines and len(jobs) < jobs_max:
        line = heappop(lines)
        expected = line.place
        line.open(ctx, command, keys, per_key, budget)
        grant = line.next
        if grant is None:
            continue
        if line.place > expected:  # the best of its jobs has expired
            heappush(lines, line)
            continue
        if grant.terms.payload_bytes > bytes_left and jobs:
            return 0
        bytes_left -= grant.terms.payload_bytes
        jobs.append(grant)
        line.take(next_turn)
        next_turn += 1
        if line.next is not None:
            heappush(lines, line)
    return bytes_left


def _lines(ctx: Context, keys: QueueKeys, lanes: Lanes, wanted: int) -> list[_Line]:
    """Those that the next `wanted` jobs can be of."""
    lines = []
    keyless = ctx.txn.keys(keys.ready, keys.ready_stop, limit=1)
    if keyless:
        lines.append(_Line(_KEYLESS, (keyless[0][len(keys.ready)], lanes.keyless_turn)))
    start = len(keys.lane)
    for key in ctx.txn.keys(keys.lane, after_queue(keys.lane), limit=wanted + SPARE):
        turn = int.from_bytes(key[start + 1 : start + 9], "big")
        lines.append(_Line(key[-GROUP_BYTES:], (key[start], turn)))
    return lines


def _running(ctx: Context, keys: QueueKeys, group: bytes) -> int:
    row = ctx.get(keys.group + group)
    assert row is not None, "a group in the lanes has jobs"
    return group_row_of(row).running


def _grants(ctx: Context, command: ClaimJobs, start: bytes, stop: bytes, budget: _Budget) -> Iterator[JobGranted]:
    """What may be granted of a range of ready jobs, in order: one row first, then twice as many each time.

    Most groups give one job a claim. What may not be granted is passed over, while the claim's budget lasts.
    """
    limit = 1
    while budget.rows > 0:
        limit = min(limit, budget.rows)
        rows = ctx.txn.scan(start, stop, limit=limit)
        budget.rows -= len(rows)
        for key, row in rows:
            grant = grant_of(ctx, command, key, row)
            if grant is not None:
                yield grant
        if len(rows) < limit:
            return
        start = rows[-1][0] + b"\0"
        limit *= 2
