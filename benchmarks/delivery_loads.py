"""The loads of `delivery.py`: parked workers, queues that are filled and emptied, work among other jobs, an overload.

Each is bounded by a count or a time and ends by itself. Raises: `BenchmarkError` for an answer that is not the
hoped-for one. Not here: which are measured when, and what is shown (`delivery.py`, read first).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter
from typing import Any, Final, Self

import msgspec
from cluster import BenchmarkError, metrics
from http_client import RawConnection
from load import QUEUE, Tally, claim_and_complete_many, decode_claim

CALL_SECONDS_MAX: Final = 90.0
"""Above the longest wait of a claim."""
PARK_SECONDS: Final = 60
OPENED_AT_ONCE: Final = 100
AHEAD_SECONDS: Final = 0.5
SPACING_SECONDS: Final = 0.01
FILL_CONNECTIONS: Final = 4
FILL_JOBS: Final = 1000
"""The largest batch."""
DRAIN_SECONDS_MAX: Final = 600.0
CLAIM_JOBS: Final = 100
PAGES: Final = 100
LATER: Final = "later"
"""The queue that holds most of the other jobs, all due in a month."""
OVERLOAD_CONNECTIONS: Final = 64
IN_HAND: Final = 200
CALM_SECONDS_MAX: Final = 60.0
_MONTH_SECONDS: Final = 30 * 86400


async def call(connection: RawConnection, path: str, body: dict[str, Any], *statuses: int) -> bytes:
    """The answer to a POST. Raises: `BenchmarkError` on any other status."""
    async with asyncio.timeout(CALL_SECONDS_MAX):  # unlike wait_for, it never takes a cancellation for its own
        status, answer = await connection.post(path, json.dumps(body).encode())
    if status not in statuses:
        raise BenchmarkError(f"POST {path}: {status} {answer[:500]!r}")
    return answer


async def read(connection: RawConnection, path: str) -> Any:
    """The decoded answer to a GET."""
    status, answer = await asyncio.wait_for(connection.get(path), CALL_SECONDS_MAX)
    if status != 200:
        raise BenchmarkError(f"GET {path}: {status} {answer[:500]!r}")
    return msgspec.json.decode(answer)


# ---------------------------------------------------------------- parked workers


@dataclass(frozen=True, slots=True)
class Sample:
    """One job: when it was at a worker, from when its submit left, and from when that was answered (may be negative:
    submit and grant share a log entry)."""

    from_submit_ms: float
    from_answer_ms: float


class Workers:
    """So many workers, each with one claim that waits; a job that comes is completed, and its worker waits again."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self._connections: list[RawConnection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._arrivals: dict[str, asyncio.Future[tuple[float, float]]] = {}
        """By job id: when it came, on the monotonic and on the wall clock, in seconds."""
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        for begin in range(0, self._count, OPENED_AT_ONCE):
            some = range(begin, min(self._count, begin + OPENED_AT_ONCE))
            self._connections += await asyncio.gather(*(RawConnection.open(self._port) for _ in some))
        self._tasks = [
            asyncio.create_task(self._work(connection, f"worker-{number}"))
            for number, connection in enumerate(self._connections)
        ]
        await self._wait_parked()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            await connection.close()
        for end in ends:
            if isinstance(end, Exception):
                raise BenchmarkError(f"a worker failed: {end}")

    async def _wait_parked(self) -> None:
        deadline = perf_counter() + CALL_SECONDS_MAX
        while (await metrics(self._port))["horae_waiting_claims"] < self._count:
            if perf_counter() > deadline:
                raise BenchmarkError(f"{self._count} claims were not parked in time")
            await asyncio.sleep(0.1)

    async def _work(self, connection: RawConnection, worker: str) -> None:
        claim = {"worker": worker, "queues": [QUEUE], "max_jobs": 1, "wait_seconds": PARK_SECONDS}
        while True:
            jobs = decode_claim(await call(connection, "/v1/claims", claim, 200)).jobs
            moments = perf_counter(), time.time()
            for job in jobs:
                self._arrivals[job.id].set_result(moments)
                await call(connection, f"/v1/jobs/{job.id}/complete", {"lease_token": job.lease_token}, 200)

    def _expect(self) -> tuple[str, asyncio.Future[tuple[float, float]]]:
        job_id = f"sample-{next(self._numbers)}-of-{self._count}"
        arrival = self._arrivals[job_id] = asyncio.get_running_loop().create_future()
        return job_id, arrival

    async def samples_at_once(self, count: int) -> list[Sample]:
        """Jobs that are due when they are submitted, one after the other."""
        connection = await RawConnection.open(self._port)
        samples = []
        for _ in range(count):
            job_id, arrival = self._expect()
            begin = perf_counter()
            await call(connection, "/v1/jobs", {"task": "t", "queue": QUEUE, "id": job_id}, 201)
            answered = perf_counter()
            came, _ = await asyncio.wait_for(arrival, CALL_SECONDS_MAX)
            samples.append(Sample((came - begin) * 1000, (came - answered) * 1000))
            await asyncio.sleep(SPACING_SECONDS)
        await connection.close()
        return samples

    async def samples_ahead(self, count: int) -> list[float]:
        """Milliseconds from the moment due to the claim's answer, of jobs submitted half a second before."""
        connection = await RawConnection.open(self._port)
        waiting = []
        for _ in range(count):
            job_id, arrival = self._expect()
            body = {"task": "t", "queue": QUEUE, "id": job_id, "delay_seconds": AHEAD_SECONDS}
            job = msgspec.json.decode(await call(connection, "/v1/jobs", body, 201))
            waiting.append((datetime.fromisoformat(job["run_at"]).timestamp(), arrival))
            await asyncio.sleep(SPACING_SECONDS)
        await connection.close()
        return [((await asyncio.wait_for(arrival, CALL_SECONDS_MAX))[1] - due_s) * 1000 for due_s, arrival in waiting]


# ---------------------------------------------------------------- queues filled and emptied


def _ready_job(number: int) -> dict[str, Any]:
    return {"task": "send_mail", "queue": QUEUE, "payload": {"to": "someone@example.com", "n": number}}


def _other_job(number: int) -> dict[str, Any]:
    """Of ten, eight are due in a month in one queue, one in one of a hundred; one is ready in one of a hundred."""
    kind = number % 10
    if kind == 8:
        return {"task": "other", "queue": f"ready-{number // 10 % 100}", "payload": {"n": number}}
    queue = f"later-{number // 10 % 100}" if kind == 9 else LATER
    return {"task": "other", "queue": queue, "delay_seconds": _MONTH_SECONDS, "payload": {"n": number}}


async def fill_ready(port: int, count: int) -> None:
    """So many jobs that are ready, in the queue that is drained."""
    await _fill(port, map(_ready_job, range(count)))


async def fill_others(port: int, have: int, want: int) -> None:
    """More jobs that nobody claims."""
    await _fill(port, map(_other_job, range(have, want)))


async def _fill(port: int, jobs: Iterator[dict[str, Any]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(FILL_CONNECTIONS):
            group.create_task(_fill_from(port, jobs))


async def _fill_from(port: int, jobs: Iterator[dict[str, Any]]) -> None:
    connection = await RawConnection.open(port)
    while batch := list(itertools.islice(jobs, FILL_JOBS)):
        answer = await call(connection, "/v1/jobs/batch", {"jobs": batch}, 200)
        if answer.count(b'"execution_id":') != len(batch):
            raise BenchmarkError(f"of {len(batch)} jobs not all were taken: {answer[:500]!r}")
    await connection.close()


async def take_one(port: int) -> None:
    """Claim and complete the one job that is there."""
    connection = await RawConnection.open(port)
    claim = {"worker": "first", "queues": [QUEUE], "max_jobs": 1, "wait_seconds": 0}
    (job,) = decode_claim(await call(connection, "/v1/claims", claim, 200)).jobs
    await call(connection, f"/v1/jobs/{job.id}/complete", {"lease_token": job.lease_token}, 200)
    await connection.close()


async def drain(port: int, connections: int, jobs: int) -> tuple[float, float]:
    """Seconds until all jobs are completed, and p99 of a claim and its completion together, ms."""
    opened = [await RawConnection.open(port) for _ in range(connections)]
    tally = Tally()
    loop = claim_and_complete_many(CLAIM_JOBS)
    begin = perf_counter()
    async with asyncio.timeout(DRAIN_SECONDS_MAX), asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(loop(connection, tally))
    seconds = perf_counter() - begin
    for connection in opened:
        await connection.close()
    if tally.errors or tally.done != jobs:
        raise BenchmarkError(f"{tally.done} of {jobs} jobs were completed: {tally.first_error}")
    spans_s = sorted(tally.spans_s)
    return seconds, spans_s[int(0.99 * len(spans_s))] * 1000


# ---------------------------------------------------------------- among other jobs


async def work_alone(port: int, jobs: int) -> list[float]:
    """Milliseconds of each job from its submit to the answer to its completion, one after the other."""
    connection = await RawConnection.open(port)
    spans_ms = []
    claim = {"worker": "alone", "queues": ["alone"], "max_jobs": 1, "wait_seconds": 0}
    for _ in range(jobs):
        begin = perf_counter()
        await call(connection, "/v1/jobs", {"task": "t", "queue": "alone"}, 201)
        (job,) = decode_claim(await call(connection, "/v1/claims", claim, 200)).jobs
        await call(connection, f"/v1/jobs/{job.id}/complete", {"lease_token": job.lease_token}, 200)
        spans_ms.append((perf_counter() - begin) * 1000)
    await connection.close()
    return spans_ms


def _page(limit: int, cursor: str | None) -> str:
    return f"/v1/jobs?queue={LATER}&state=pending&limit={limit}" + ("" if cursor is None else f"&cursor={cursor}")


async def place_in_the_middle(port: int, others: int) -> str | None:
    """The cursor past the first half of the pending jobs."""
    connection = await RawConnection.open(port)
    cursor = None
    for _ in range(max(1, others * 8 // 10 // 2 // 1000)):
        cursor = (await read(connection, _page(min(1000, others // 4), cursor)))["next_cursor"]
    await connection.close()
    return cursor


async def page_spans(port: int, cursor: str | None) -> list[float]:
    """Milliseconds of each of some readings of one page of 50."""
    connection = await RawConnection.open(port)
    spans_ms = []
    for _ in range(PAGES):
        begin = perf_counter()
        page = await read(connection, _page(50, cursor))
        spans_ms.append((perf_counter() - begin) * 1000)
        if len(page["jobs"]) != 50:
            raise BenchmarkError(f"a page of {len(page['jobs'])} jobs")
    await connection.close()
    return spans_ms


# ---------------------------------------------------------------- an overload


@dataclass(slots=True)
class Overloaded:
    """What came of it. `queued_most`: the most commands that were seen to wait at the leader."""

    stored: int = 0
    retry_after_s: list[int] = field(default_factory=list)
    endings_ms: list[float] = field(default_factory=list)
    queued_most: int = 0
    drained_s: float = 0.0
    on: bool = True


async def overload(port: int, seconds: float) -> Overloaded:
    """Batches without a pause over many connections, whatever they are told; one worker ends its work meanwhile."""
    found = Overloaded()
    worker = await RawConnection.open(port)
    in_hand = await _take_in_hand(worker)
    async with asyncio.TaskGroup() as group:
        for _ in range(OVERLOAD_CONNECTIONS):
            group.create_task(_submit_until_off(port, found))
        group.create_task(_end_until_off(worker, in_hand, found))
        group.create_task(_watch_until_off(port, found))
        await asyncio.sleep(seconds)
        found.on = False
        begin = perf_counter()
        await _wait_calm(port)
        found.drained_s = perf_counter() - begin
    await worker.close()
    return found


async def _take_in_hand(worker: RawConnection) -> Iterator[dict[str, Any]]:
    jobs = [{"task": "t", "queue": "hand", "lease_seconds": 600} for _ in range(IN_HAND)]
    await call(worker, "/v1/jobs/batch", {"jobs": jobs}, 200)
    claim = {"worker": "w", "queues": ["hand"], "max_jobs": IN_HAND, "wait_seconds": 5}
    claimed = decode_claim(await call(worker, "/v1/claims", claim, 200)).jobs
    return itertools.cycle([{"job_id": job.id, "lease_token": job.lease_token} for job in claimed])


async def _submit_until_off(port: int, found: Overloaded) -> None:
    connection = await RawConnection.open(port)
    body = json.dumps({"jobs": [_ready_job(number) for number in range(FILL_JOBS)]}).encode()
    while found.on:
        status, answer = await asyncio.wait_for(connection.post("/v1/jobs/batch", body), CALL_SECONDS_MAX)
        if status == 429:
            detail = msgspec.json.decode(answer)["detail"]
            found.retry_after_s.append(int(detail.rsplit(" ", 2)[1]))
            await asyncio.sleep(0.05)
        elif status != 200:
            raise BenchmarkError(f"a batch under load: {status} {answer[:500]!r}")
        else:
            found.stored += answer.count(b'"execution_id":')
    await connection.close()


async def _end_until_off(worker: RawConnection, in_hand: Iterator[dict[str, Any]], found: Overloaded) -> None:
    """A heartbeat and the completion of a job, each answered 200: a repeat of a completion is accepted."""
    while found.on:
        lease = next(in_hand)
        begin = perf_counter()
        await call(worker, "/v1/leases/heartbeat", {"worker": "w", "leases": [lease]}, 200)
        between = perf_counter()
        await call(worker, f"/v1/jobs/{lease['job_id']}/complete", {"lease_token": lease["lease_token"]}, 200)
        found.endings_ms += [(between - begin) * 1000, (perf_counter() - between) * 1000]


async def _watch_until_off(port: int, found: Overloaded) -> None:
    while found.on:
        found.queued_most = max(found.queued_most, round((await metrics(port))["horae_proposals_queued"]))
        await asyncio.sleep(0.1)


async def _wait_calm(port: int) -> None:
    deadline = perf_counter() + CALM_SECONDS_MAX
    while (await metrics(port))["horae_proposals_queued"]:
        if perf_counter() > deadline:
            raise BenchmarkError(f"commands wait still, {CALM_SECONDS_MAX:g} s after the load has stopped")
        await asyncio.sleep(0.02)
