"""Random kills and pauses of nodes, and workers with every bad manner, from one seed: nothing lost, nothing twice.

Slow: a minute and more. `CHAOS_SEED` chooses the faults; the run prints its own. Timing is the machine's, so a
seed gives the same faults, not the same interleaving (that is the simulator's business).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, poll, running_cluster
from tests.helpers.ledger import CALL_SECONDS, Grant, Ledger, check_ledger, claim, complete
from tests.helpers.tasks import background

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

QUEUE = "chaos"
FAULTS = 16
CLIENTS = 4
WORKERS = 12
LEASE_SECONDS = 1.0
DRAIN_SECONDS = 120.0

DELAYS = (0, 0, 0, 0.3, 1.5)


async def test_chaos(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"\nseed {seed}")
    rng = random.Random(seed)
    async with running_cluster(tmp_path) as cluster:
        ledger, due_ms = Ledger(), dict[str, int]()
        stop = asyncio.Event()
        packed = Api(cluster.urls, msgpack=True, connections=200)
        async with packed as api:
            workers = [work_badly(api, ledger, random.Random(rng.random()), f"w{n}") for n in range(WORKERS)]
            clients = [submit(api, ledger, due_ms, random.Random(rng.random()), f"c{n}", stop) for n in range(CLIENTS)]
            async with background(*workers), background(*clients) as submitting:
                for _ in range(FAULTS):
                    await fault(cluster, rng)
                stop.set()
                await asyncio.gather(*submitting)
                await poll("every acknowledged job is completed", lambda: all_completed(ledger), DRAIN_SECONDS)
        assert check_ledger(ledger) == []
        assert check_early(ledger, due_ms) == []
        lost = sum(grant.attempt > 1 for grant in ledger.grants)
        refused = sum(report.status == 409 for report in ledger.reports)
        print(f"{len(ledger.acked)} jobs, {len(ledger.grants)} leases, {lost} after another, {refused} reports fenced")
        assert len(ledger.acked) > 200, "too little was done for the run to say anything"
        assert lost > 10
        assert refused > 0


async def all_completed(ledger: Ledger) -> bool:
    return set(ledger.acked) <= {report.job_id for report in ledger.reports if report.status == 200}


def check_early(ledger: Ledger, due_ms: dict[str, int]) -> list[str]:
    """Jobs that were handed out before their time, by the clock that all processes of the machine share."""
    return [
        f"{grant.job_id}: handed out {due_ms[grant.job_id] - grant.wall_ms} ms early"
        for grant in ledger.grants
        if grant.wall_ms < due_ms[grant.job_id]
    ]


# ---------------------------------------------------------------- faults


Harm = Callable[[Cluster, list[NodeProcess], float], Awaitable[None]]


async def fault(cluster: Cluster, rng: random.Random) -> None:
    """One fault, held for a while, and mended."""
    leader = await cluster.leader()
    followers = [node for node in cluster.nodes if node is not leader]
    rng.shuffle(followers)
    kinds: list[tuple[Harm, list[NodeProcess]]] = [
        (kill, [leader]),
        (kill, followers[:1]),
        (kill, [leader, followers[0]]),
        (kill, [leader, *followers]),
        (pause, [leader]),
        (pause, followers[:1]),
        (stop, [leader]),
        (stop, followers[:1]),
    ]
    harm, nodes = rng.choice(kinds)
    hold_seconds = rng.uniform(0.1, 3.0)
    print(f"{harm.__name__} {' '.join(node.name for node in nodes)} for {hold_seconds:.1f} s")
    await harm(cluster, nodes, hold_seconds)
    await cluster.wait_ready()
    await asyncio.sleep(rng.uniform(0, 1.5))


async def kill(cluster: Cluster, nodes: list[NodeProcess], hold_seconds: float) -> None:
    for node in nodes:
        cluster.kill(node)
    await asyncio.sleep(hold_seconds)
    for node in nodes:
        cluster.start(node)


async def pause(cluster: Cluster, nodes: list[NodeProcess], hold_seconds: float) -> None:
    for node in nodes:
        cluster.pause(node)
    await asyncio.sleep(hold_seconds)
    for node in nodes:
        cluster.resume(node)


async def stop(cluster: Cluster, nodes: list[NodeProcess], hold_seconds: float) -> None:
    for node in nodes:
        assert await cluster.stop(node) == 0
    await asyncio.sleep(hold_seconds)
    for node in nodes:
        cluster.start(node)


# ---------------------------------------------------------------- clients and workers


async def submit(
    api: Api, ledger: Ledger, due_ms: dict[str, int], rng: random.Random, name: str, stop: asyncio.Event
) -> None:
    """One client: single jobs and batches, at once and ahead, each call repeated until it is acknowledged."""
    number = 0
    while not stop.is_set():
        jobs = []
        for _ in range(rng.choice((1, 1, 5))):
            number += 1
            jobs.append(make_job(f"{name}-{number}", rng, due_ms))
        path, body = ("/v1/jobs", jobs[0]) if len(jobs) == 1 else ("/v1/jobs/batch", {"jobs": jobs})
        while True:
            answer = await api.call_until_answered("POST", path, body, deadline_seconds=CALL_SECONDS)
            assert answer.status in (200, 201), answer
            if len(jobs) == 1 or all("job" in item for item in answer.body["results"]):
                break
        ledger.acked += [job["id"] for job in jobs]
        await asyncio.sleep(rng.uniform(0, 0.2))


def make_job(job_id: str, rng: random.Random, due_ms: dict[str, int]) -> dict[str, Any]:
    due_ms[job_id] = round((time.time() + rng.choice(DELAYS)) * 1000)
    return {
        "id": job_id,
        "task": "noop",
        "queue": QUEUE,
        "payload": {"n": rng.random()},
        "priority": rng.randint(-1, 1),
        "run_at": datetime.fromtimestamp(due_ms[job_id] / 1000, UTC).isoformat(timespec="milliseconds"),
        "lease_seconds": LEASE_SECONDS,
        "max_attempts": 100,
        "max_lost": 100,
        "retry": {"initial_seconds": 0},
    }


Manner = Callable[[Api, Ledger, Grant], Awaitable[object]]


async def work_badly(api: Api, ledger: Ledger, rng: random.Random, name: str) -> None:
    """One worker, until it is cancelled: mostly it completes what it got."""
    manners: list[Manner] = [complete, walk_away, complete_late, fail, release, heartbeat_and_complete]
    while True:
        for grant in await claim(api, ledger, name, QUEUE, max_jobs=rng.choice((1, 1, 4))):
            await rng.choices(manners, (12, 1, 1, 1, 1, 1))[0](api, ledger, grant)


async def walk_away(api: Api, ledger: Ledger, grant: Grant) -> None:
    """Says nothing more: the lease runs out."""


async def complete_late(api: Api, ledger: Ledger, grant: Grant) -> None:
    await asyncio.sleep(LEASE_SECONDS * 1.5)
    await complete(api, ledger, grant)


async def fail(api: Api, ledger: Ledger, grant: Grant) -> None:
    await end(api, grant, "fail", {"error": {"type": "E", "message": "no luck"}})


async def release(api: Api, ledger: Ledger, grant: Grant) -> None:
    await end(api, grant, "release", {})


async def heartbeat_and_complete(api: Api, ledger: Ledger, grant: Grant) -> None:
    beat = {"worker": "any", "leases": [{"job_id": grant.job_id, "lease_token": grant.token}]}
    for _ in range(4):
        await asyncio.sleep(LEASE_SECONDS / 3)
        answer = await api.call_until_answered("POST", "/v1/leases/heartbeat", beat, deadline_seconds=CALL_SECONDS)
        answer.expect(200)
    await complete(api, ledger, grant)


async def end(api: Api, grant: Grant, how: str, keys: dict[str, Any]) -> None:
    answer = await api.call_until_answered(
        "POST", f"/v1/jobs/{grant.job_id}/{how}", {"lease_token": grant.token} | keys, deadline_seconds=CALL_SECONDS
    )
    assert answer.status == 200 or answer.code == "lease_lost", answer
