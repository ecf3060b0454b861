"""What the load client sends, how it is kept going, and what is counted.

A load is a number of connections, each of which runs one loop (submit, or claim and complete) without pause. Counting
starts after a warm-up and ends at one moment for all connections; what is under way then is awaited, not counted.
Not here: processes (`cluster.py`), how figures are set in relation (`throughput.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

import msgspec
from http_client import Answer, Connection, UnexpectedAnswer

QUEUE: Final = "bench"
ERRORS_MAX: Final = 100
"""A load with so many errors is ended: its figure is invalid already, and refusals come fast."""


class Claimed(msgspec.Struct):
    """What the client needs of a claimed job."""

    id: str
    lease_token: int


class Claim(msgspec.Struct):
    jobs: list[Claimed]


decode_claim = msgspec.json.Decoder(Claim).decode


@dataclass(slots=True)
class Tally:
    """What a load has done so far. `acknowledged` counts all of it, `done` and `spans_s` since the warm-up."""

    done: int = 0
    acknowledged: int = 0
    spans_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    running: bool = True
    dry: bool = False
    """The claims found no more jobs: the load ended before its time."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, units: int, span_s: float) -> None:
        self.done += units
        self.acknowledged += units
        self.spans_s.append(span_s)

    def refuse(self, kind: str, detail: str) -> None:
        """Note an answer that is not the hoped-for one."""
        self.errors[kind] += 1
        self.first_error = self.first_error or f"{kind}: {detail[:500]}"
        if self.errors.total() >= ERRORS_MAX:
            self.end()

    def end(self) -> None:
        self.running = False
        self.ended.set()

    def restart(self) -> None:
        """Forget what the warm-up did, but for its errors."""
        self.done = 0
        self.spans_s.clear()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measured load. `done` are jobs or requests, as the figure says; `spans_s` one entry a request, sorted."""

    done: int
    acknowledged: int
    seconds: float
    spans_s: list[float]
    errors: Counter[str]
    first_error: str
    dry: bool

    @property
    def rate(self) -> float:
        return self.done / self.seconds

    def percentile_ms(self, share: float) -> float:
        """The latency that `share` (0 to 1) of the requests kept; NaN without any."""
        if not self.spans_s:
            return float("nan")
        return self.spans_s[min(len(self.spans_s) - 1, int(share * len(self.spans_s)))] * 1000


Loop = Callable[[Connection, Tally], Awaitable[None]]


async def run_load(
    client: type[Connection], port: int, connections: int, loop: Loop, *, seconds: float, warm_up_seconds: float
) -> Outcome:
    """Keep `loop` going on so many connections; what was counted between the warm-up and the end."""
    opened = [await client.open(port) for _ in range(connections)]
    tally = Tally()
    try:
        async with asyncio.TaskGroup() as group:
            for connection in opened:
                group.create_task(_drive(loop, connection, tally))
            await _pause(tally, warm_up_seconds)
            tally.restart()
            begin = perf_counter()
            await _pause(tally, seconds)
            elapsed_s = perf_counter() - begin
            done, spans_s = tally.done, sorted(tally.spans_s)
            tally.end()
    finally:
        for connection in opened:
            await connection.close()
    return Outcome(done, tally.acknowledged, elapsed_s, spans_s, tally.errors, tally.first_error, tally.dry)


async def _pause(tally: Tally, seconds: float) -> None:
    try:
        await asyncio.wait_for(tally.ended.wait(), seconds)
    except TimeoutError:
        pass


async def _drive(loop: Loop, connection: Connection, tally: Tally) -> None:
    try:
        await loop(connection, tally)
    except (OSError, UnexpectedAnswer) as error:
        tally.refuse("connection", str(error))
        tally.end()


# ---------------------------------------------------------------- the loops

_numbers: Final[Iterator[int]] = itertools.count()


def job_body(number: int) -> bytes:
    """One job as a caller would send it; the server makes the id."""
    return b'{"task":"send_mail","queue":"%b","payload":{"to":"someone@example.com","n":%d}}' % (QUEUE.encode(), number)


async def submit_each(connection: Connection, tally: Tally) -> None:
    """One job a request; counts jobs."""
    while tally.running:
        body = job_body(next(_numbers))
        begin = perf_counter()
        answer = await connection.post("/v1/jobs", body)
        span_s = perf_counter() - begin
        if answer[0] == 201:
            tally.count(1, span_s)
        else:
            _refuse(tally, answer)


def submit_many(jobs: int) -> Loop:
    """So many jobs a request; counts jobs."""

    async def loop(connection: Connection, tally: Tally) -> None:
        while tally.running:
            body = b'{"jobs":[%b]}' % b",".join(job_body(next(_numbers)) for _ in range(jobs))
            begin = perf_counter()
            answer = await connection.post("/v1/jobs/batch", body)
            span_s = perf_counter() - begin
            if answer[0] == 200 and answer[1].count(b'"execution_id":') == jobs:
                tally.count(jobs, span_s)
            else:
                _refuse(tally, answer)

    return loop


async def claim_and_complete_each(connection: Connection, tally: Tally) -> None:
    """One job a claim, then its completion; counts requests, two a job."""
    body = _claim_body(1)
    while tally.running:
        begin = perf_counter()
        answer = await connection.post("/v1/claims", body)
        span_s = perf_counter() - begin
        if answer[0] != 200:
            _refuse(tally, answer)
            continue
        jobs = decode_claim(answer[1]).jobs
        if not jobs:
            _run_dry(tally)
            return
        tally.count(1, span_s)
        ending = b'{"lease_token":%d}' % jobs[0].lease_token
        begin = perf_counter()
        answer = await connection.post(f"/v1/jobs/{jobs[0].id}/complete", ending)
        span_s = perf_counter() - begin
        if answer[0] == 200:
            tally.count(1, span_s)
        else:
            _refuse(tally, answer)


def claim_and_complete_many(jobs_max: int) -> Loop:
    """Up to so many jobs a claim, then all in one completion; counts completed jobs."""
    body = _claim_body(jobs_max)

    async def loop(connection: Connection, tally: Tally) -> None:
        while tally.running:
            begin = perf_counter()
            answer = await connection.post("/v1/claims", body)
            if answer[0] != 200:
                _refuse(tally, answer)
                continue
            jobs = decode_claim(answer[1]).jobs
            if not jobs:
                _run_dry(tally)
                return
            answer = await connection.post("/v1/leases/complete", _complete_body(jobs))
            if answer[0] == 200 and answer[1].count(b'"status":"ok"') == len(jobs):
                tally.count(len(jobs), perf_counter() - begin)
            else:
                _refuse(tally, answer)

    return loop


def _claim_body(jobs_max: int) -> bytes:
    body = {"worker": "bench-1", "queues": [QUEUE], "max_jobs": jobs_max, "wait_seconds": 0}
    return json.dumps(body).encode()


def _complete_body(jobs: list[Claimed]) -> bytes:
    item = b'{"job_id":"%b","lease_token":%d,"outcome":"complete"}'
    leases = b",".join(item % (job.id.encode(), job.lease_token) for job in jobs)
    return b'{"worker":"bench-1","leases":[%b]}' % leases


def _run_dry(tally: Tally) -> None:
    tally.dry = True
    tally.end()


def _refuse(tally: Tally, answer: Answer) -> None:
    status, body = answer
    tally.refuse(f"status {status}", body.decode(errors="replace"))
