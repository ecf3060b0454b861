"""The spine under fire, with real processes: what was acknowledged is kept, runs, and is accepted once.

Faults: the leader killed twice and a follower once under load; all nodes killed at once; a worker killed in mid-job.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import demo_worker
from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, clean_environ, poll, running_cluster
from tests.helpers.ledger import Ledger, check_ledger, claim, complete, submit_jobs, work
from tests.helpers.tasks import background

pytestmark = pytest.mark.cluster

JOBS = 2000
CLIENTS = 8
WORKERS = 4
READY_SECONDS_MAX = 60
"""Generous on a busy machine; the figure itself is printed (the promise is 10 s)."""


async def restart(cluster: Cluster, node: NodeProcess) -> None:
    cluster.start(node)
    await cluster.wait_ready([node])


async def finished_states(api: Api, job_ids: list[str]) -> dict[str, int]:
    """How many of the jobs are in which state, each read until a node answers."""
    counts: dict[str, int] = {}
    reads = asyncio.Semaphore(16)

    async def read(job_id: str) -> str:
        async with reads:
            answer = await api.call_until_answered("GET", f"/v1/jobs/{job_id}")
            return str(answer.expect(200)["state"])

    for state in await asyncio.gather(*map(read, job_ids)):
        counts[state] = counts.get(state, 0) + 1
    return counts


def load(cluster: Cluster, api: Api, ledger: Ledger, jobs: int) -> list[Coroutine[Any, Any, None]]:
    """Clients that submit `jobs` jobs between them."""
    ids = [f"load-{n}" for n in range(jobs)]
    template = {"task": "noop", "queue": "load", "payload": {"text": "x" * 100}, "lease_seconds": 30}
    return [submit_jobs(api, ledger, ids[client::CLIENTS], template) for client in range(CLIENTS)]


async def test_two_leaders_and_a_follower_killed_under_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Api(cluster.urls, msgpack=True) as api:
        ledger = Ledger()
        workers = [work(api, ledger, f"w{n}", "load") for n in range(WORKERS)]
        async with background(*workers), background(*load(cluster, api, ledger, JOBS)) as clients:
            await ledger.wait_reports(JOBS // 8)
            first = await cluster.leader()
            cluster.kill(first)
            await ledger.wait_reports(JOBS * 2 // 8)
            await restart(cluster, first)
            await ledger.wait_reports(JOBS * 3 // 8)
            follower = await cluster.follower()
            cluster.kill(follower)
            await ledger.wait_reports(JOBS * 4 // 8)
            await restart(cluster, follower)
            await ledger.wait_reports(JOBS * 5 // 8)
            second = await cluster.leader()
            cluster.kill(second)
            await ledger.wait_reports(JOBS * 6 // 8)
            await restart(cluster, second)
            await asyncio.gather(*clients)
            await ledger.wait_reports(JOBS)
            await cluster.wait_ready()
            await asyncio.wait_for(drained(ledger), 60)
        assert check_ledger(ledger) == []
        assert len(ledger.acked) == JOBS
        assert await finished_states(api, ledger.acked) == {"succeeded": JOBS}


async def drained(ledger: Ledger) -> None:
    """Until each acknowledged job has an accepted ending."""

    async def look() -> bool:
        return set(ledger.acked) <= {report.job_id for report in ledger.reports if report.status == 200}

    await poll("every acknowledged job is completed", look)


async def test_all_nodes_killed_at_once_under_load(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster, Api(cluster.urls, msgpack=True) as api:
        ledger = Ledger()
        jobs = JOBS // 2
        workers = [work(api, ledger, f"w{n}", "load") for n in range(WORKERS)]
        async with background(*workers), background(*load(cluster, api, ledger, jobs)) as clients:
            await ledger.wait_reports(jobs // 3)
            cluster.kill_all()
            acked_before = list(ledger.acked)
            for node in cluster.nodes:
                cluster.start(node)
            took = await cluster.wait_ready(seconds=READY_SECONDS_MAX)
            print(f"\nready after all nodes were killed: {took:.2f} s (promised: 10 s)")
            for job_id in acked_before:
                (await api.call_until_answered("GET", f"/v1/jobs/{job_id}")).expect(200)
            await asyncio.gather(*clients)
            await drained(ledger)
        assert check_ledger(ledger) == []
        assert await finished_states(api, ledger.acked) == {"succeeded": jobs}


@contextlib.contextmanager
def worker_process(url: str, queue: str, begun: Path) -> Iterator[subprocess.Popen[bytes]]:
    with begun.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, demo_worker.__file__, url, queue, str(begun)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=clean_environ(),
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_worker_killed_in_mid_job(cluster: Cluster, tmp_path: Path) -> None:
    api, ledger = cluster.api, Ledger()
    job = {
        "id": "endless-1",
        "task": "endless",
        "queue": "mid",
        "lease_seconds": 1,
        "retry": {"initial_seconds": 0},
    }
    (await api.call_until_answered("POST", "/v1/jobs", job)).expect(201)
    begun = tmp_path / "begun"
    with worker_process(cluster.nodes[0].url, "mid", begun) as process:

        async def has_begun() -> bool:
            assert process.poll() is None, begun.with_suffix(".log").read_text(encoding="utf-8")
            return begun.exists() and begun.read_text(encoding="utf-8").endswith("\n")

        await poll("the worker has begun the job", has_begun)
    job_id, first_token = begun.read_text(encoding="utf-8").split()
    assert job_id == "endless-1"
    again = await poll("another worker gets the job", lambda: claim(api, ledger, "other", "mid"))
    assert [grant.job_id for grant in again] == ["endless-1"]
    assert again[0].token > int(first_token)
    assert again[0].attempt == 2
    body = {"lease_token": int(first_token), "result": "late"}
    (await api.call_until_answered("POST", f"/v1/jobs/{job_id}/complete", body)).expect(409, "lease_lost")
    assert await complete(api, ledger, again[0]) == 200
    read = (await api.call_until_answered("GET", f"/v1/jobs/{job_id}")).expect(200)
    assert (read["state"], read["lost"], read["result"]) == ("succeeded", 1, {"token": again[0].token})
    assert read["errors"][0]["type"] == "lease_expired"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_job_ahead_starts_at_its_time(cluster: Cluster) -> None:
    api, lags_ms = cluster.api, []
    leader = await cluster.leader()
    for n in range(3):
        due_s = time.time() + 1.5
        run_at = datetime.fromtimestamp(due_s, UTC).isoformat(timespec="milliseconds")
        job = {"id": f"ahead-{n}", "task": "noop", "queue": "ahead", "run_at": run_at}
        body = {"worker": "w", "queues": ["ahead"], "wait_seconds": 30}
        waiting = asyncio.create_task(api.call("POST", "/v1/claims", body, url=leader.url, wait_seconds=30))
        (await api.call_until_answered("POST", "/v1/jobs", job)).expect(201)
        jobs = (await waiting).expect(200)["jobs"]
        started_s = time.time()
        assert [each["id"] for each in jobs] == [job["id"]]
        due_ms = round(datetime.fromisoformat(run_at).timestamp() * 1000)
        assert started_s * 1000 >= due_ms
        lags_ms.append(started_s * 1000 - due_ms)
    print(f"\nstarted after its time, idle: {', '.join(f'{lag:.1f}' for lag in lags_ms)} ms (promised: 50 ms)")
