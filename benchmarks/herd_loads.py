"""The loads of `herd.py`: schedules that all are due at one instant, and what is done and seen around it.

Each is bounded by a count or a time. Raises: `BenchmarkError` for an answer that is not the hoped-for one.
Not here: when each begins, and what is shown (`herd.py`, read first).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final
from zoneinfo import ZoneInfo

from cluster import BenchmarkError, Node
from delivery_loads import CALL_SECONDS_MAX, CLAIM_JOBS, call, read
from http_client import RawConnection
from load import decode_claim

QUEUE: Final = "herd"
HAND: Final = "hand"
"""The queue of the jobs that run all the while."""
HAND_WORKERS: Final = 4
HAND_JOBS: Final = 5
"""Of each worker."""
LEASE_SECONDS: Final = 6.0
BEAT_SECONDS: Final = LEASE_SECONDS / 3
SAMPLE_SECONDS: Final = 0.05
PARK_SECONDS: Final = 5
STUCK_SECONDS: Final = 20.0
"""Without any job's end: what is not made by then is not expected any more."""
LEDGERS: Final = 200
"""Schedules whose ledger is read afterwards."""

_HOURS: Final = ("*", "*/1", "0-23", ",".join(map(str, range(24))))
_DAYS: Final = ("*", "*/1", "1-31", "1-15,16-31", ",".join(map(str, range(1, 32))))
_MONTHS: Final = ("*", "*/1", "1-12", "JAN-DEC", ",".join(map(str, range(1, 13))))
_WEEKDAYS: Final = ("*", "*/1", "0-6")
SHAPES: Final = tuple(" ".join(parts) for parts in itertools.product(_HOURS, _DAYS, _MONTHS, _WEEKDAYS))
"""300 ways to say every hour of every day, less the minute."""

ZONES: Final = (
    *("UTC", "Africa/Cairo", "Africa/Johannesburg", "Africa/Lagos", "Africa/Nairobi", "America/Anchorage"),
    *("America/Argentina/Buenos_Aires", "America/Bogota", "America/Caracas", "America/Chicago", "America/Denver"),
    *("America/Halifax", "America/Havana", "America/Los_Angeles", "America/Mexico_City", "America/New_York"),
    *("America/Phoenix", "America/Santiago", "America/Sao_Paulo", "America/St_Johns", "Asia/Almaty", "Asia/Bangkok"),
    *("Asia/Colombo", "Asia/Dubai", "Asia/Hong_Kong", "Asia/Jakarta", "Asia/Kabul", "Asia/Karachi"),
    *("Asia/Kathmandu", "Asia/Kolkata", "Asia/Manila", "Asia/Seoul", "Asia/Singapore", "Asia/Tehran", "Asia/Tokyo"),
    *("Asia/Yangon", "Australia/Adelaide", "Australia/Brisbane", "Australia/Darwin", "Australia/Eucla"),
    *("Australia/Sydney", "Europe/Berlin", "Europe/Istanbul", "Europe/London", "Europe/Moscow", "Europe/Paris"),
    *("Pacific/Auckland", "Pacific/Chatham", "Pacific/Honolulu", "Pacific/Marquesas"),
)
"""50; of ten the clocks stand a half or a quarter of an hour off, and their schedules name another minute."""


# ---------------------------------------------------------------- the schedules


def schedule_id(number: int) -> str:
    return f"herd-{number:06}"


def rule_of(number: int, instant_s: int) -> tuple[str, str]:
    """Line and zone of an hourly schedule that is due at the instant, a whole minute; every pair comes in turn."""
    zone = ZONES[(number + number // len(SHAPES)) % len(ZONES)]
    minute = datetime.fromtimestamp(instant_s, UTC).astimezone(ZoneInfo(zone)).minute
    return f"{minute} {SHAPES[number % len(SHAPES)]}", zone


def schedule_body(number: int, instant_s: int, starts_at: str | None = None) -> bytes:
    cron, zone = rule_of(number, instant_s)
    job = {"task": "send_mail", "queue": QUEUE, "payload": {"to": "someone@example.com", "n": number}}
    return json.dumps({"cron": cron, "timezone": zone, "job": job, "starts_at": starts_at}).encode()


async def put_schedules(port: int, connections: int, bodies: Iterator[tuple[int, bytes]]) -> None:
    """All of them, one a request."""
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_put_from(port, bodies))


async def _put_from(port: int, bodies: Iterator[tuple[int, bytes]]) -> None:
    connection = await RawConnection.open(port)
    for number, body in bodies:
        async with asyncio.timeout(CALL_SECONDS_MAX):
            status, answer = await connection.put(f"/v1/schedules/{schedule_id(number)}", body)
        if status not in (200, 201):
            raise BenchmarkError(f"PUT of schedule {number}: {status} {answer[:500]!r}")
    await connection.close()


async def check_ledgers(port: int, schedules: int, instant_s: int) -> int:
    """How many were looked at: each says that its one trigger ran. Raises: `BenchmarkError`."""
    connection = await RawConnection.open(port)
    numbers = random.Random(schedules).sample(range(schedules), min(LEDGERS, schedules))
    moment = datetime.fromtimestamp(instant_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for number in numbers:
        lines = (await read(connection, f"/v1/schedules/{schedule_id(number)}/triggers"))["triggers"]
        if [(line["nominal_time"], line["outcome"]) for line in lines] != [(moment, "ran")]:
            raise BenchmarkError(f"the ledger of schedule {number} has not one line that ran at {moment}: {lines}")
    await connection.close()
    return len(numbers)


# ---------------------------------------------------------------- what is seen


@dataclass(frozen=True, slots=True)
class Sample:
    """The queue at a moment: seconds after the instant, and jobs."""

    at_s: float
    made: int
    ready: int
    ended: int


@dataclass(slots=True)
class Seen:
    """Of one herd. Moments are seconds after the instant, by the machine's clock, which is the cluster's."""

    instant_s: int
    schedules: int
    samples: list[Sample] = field(default_factory=list)
    started: list[tuple[float, int]] = field(default_factory=list)
    """When a claim was answered, and how many jobs have been handed out by then."""
    completed: int = 0
    beats_ms: list[float] = field(default_factory=list)
    """From when a heartbeat was to leave to its answer, of those since the instant."""
    lost: int = 0
    """Heartbeats that were told that a lease is lost."""
    longest_read_ms: float = 0.0
    """Of the samples since the instant: who waits for the leader's loop, waits so long."""
    anonymous_most: dict[str, int] = field(default_factory=dict)
    """By node: the most memory not mapped from files that it was seen to hold."""
    on: bool = True
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """All jobs are completed, or no more have come for a while."""

    def now_s(self) -> float:
        return time.time() - self.instant_s

    @property
    def count_started(self) -> int:
        return self.started[-1][1] if self.started else 0

    def start(self, jobs: int) -> None:
        self.started.append((self.now_s(), self.count_started + jobs))

    def complete(self, jobs: int) -> None:
        self.completed += jobs
        if self.completed >= self.schedules:
            self.over.set()

    def look(self, depth: dict[str, int]) -> None:
        """Note the queue's depth by state."""
        at_s, made = self.now_s(), sum(depth.values())
        ended = made - depth["pending"] - depth["ready"] - depth["running"]
        self.samples.append(Sample(at_s, made, depth["ready"], ended))
        changed_s = next((sample.at_s for sample in reversed(self.samples) if sample.ended != ended), 0.0)
        if at_s - changed_s > STUCK_SECONDS:
            self.over.set()


async def watch(port: int, nodes: list[Node], seen: Seen) -> None:
    """Look at the queue every 50 ms, and at the nodes' memory."""
    connection = await RawConnection.open(port)
    while seen.on:
        begin = perf_counter()
        depth = (await read(connection, f"/v1/queues/{QUEUE}?consistency=local"))["depth"]
        span_s = perf_counter() - begin
        if seen.now_s() >= 0:
            seen.look(depth)
            seen.longest_read_ms = max(seen.longest_read_ms, span_s * 1000)
        for node in nodes:
            most = seen.anonymous_most.get(node.node_id, 0)
            seen.anonymous_most[node.node_id] = max(most, node.process.memory_bytes()[1])
        await asyncio.sleep(max(0.0, SAMPLE_SECONDS - span_s))
    await connection.close()


# ---------------------------------------------------------------- workers


async def drain_herd(port: int, number: int, seen: Seen) -> None:
    """Claim by the hundred and complete in bulk, waiting where nothing is ready."""
    connection = await RawConnection.open(port)
    worker = f"drain-{number}"
    claim = {"worker": worker, "queues": [QUEUE], "max_jobs": CLAIM_JOBS, "wait_seconds": PARK_SECONDS}
    while seen.on:
        jobs = decode_claim(await call(connection, "/v1/claims", claim, 200)).jobs
        if not jobs:
            continue
        if seen.now_s() < 0:
            raise BenchmarkError("a job was handed out before it was due")
        seen.start(len(jobs))
        leases = [{"job_id": job.id, "lease_token": job.lease_token, "outcome": "complete"} for job in jobs]
        answer = await call(connection, "/v1/leases/complete", {"worker": worker, "leases": leases}, 200)
        if answer.count(b'"status":"ok"') != len(jobs):
            raise BenchmarkError(f"of {len(jobs)} jobs not all were completed: {answer[:500]!r}")
        seen.complete(len(jobs))
    await connection.close()


async def hold_leases(port: int, number: int, seen: Seen) -> None:
    """A worker with jobs that run all the while: a heartbeat each third of a short lease, for all of them."""
    connection = await RawConnection.open(port)
    worker = f"hand-{number}"
    queue = f"{HAND}-{number}"
    jobs = [{"task": "t", "queue": queue, "lease_seconds": LEASE_SECONDS} for _ in range(HAND_JOBS)]
    await call(connection, "/v1/jobs/batch", {"jobs": jobs}, 200)
    claim = {"worker": worker, "queues": [queue], "max_jobs": HAND_JOBS, "wait_seconds": PARK_SECONDS}
    claimed = decode_claim(await call(connection, "/v1/claims", claim, 200)).jobs
    if len(claimed) != HAND_JOBS:
        raise BenchmarkError(f"{worker} was given {len(claimed)} of {HAND_JOBS} jobs")
    leases = [{"job_id": job.id, "lease_token": job.lease_token} for job in claimed]
    beat_at_s = perf_counter() + BEAT_SECONDS * number / HAND_WORKERS
    while seen.on:
        await asyncio.sleep(max(0.0, beat_at_s - perf_counter()))
        answer = await call(connection, "/v1/leases/heartbeat", {"worker": worker, "leases": leases}, 200)
        if seen.now_s() >= 0:
            seen.beats_ms.append((perf_counter() - beat_at_s) * 1000)
        seen.lost += answer.count(b'"status":"lost"')
        beat_at_s += BEAT_SECONDS
    ends: list[dict[str, Any]] = [{**lease, "outcome": "complete"} for lease in leases]
    await call(connection, "/v1/leases/complete", {"worker": worker, "leases": ends}, 200)
    await connection.close()
