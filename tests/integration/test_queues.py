"""The contract of queues and of bulk changes (docs/contract.md), from outside, on three real nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.helpers.cluster import Cluster
from tests.helpers.story import Queue, require_problem

from horae import AsyncClient

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def test_dead_letters_are_seen_counted_and_requeued_in_bulk(any_q: Queue, cluster: Cluster) -> None:
    q = any_q
    for number in range(3):
        await q.submit(task="charge" if number else "ship", tags={"n": str(number)})
        await q.end("fail", await q.claim_one(), error={"type": "E", "message": "no"}, retry=False)
    assert (await _queue(q))["depth"]["dead"] == 3
    assert await _dead_total(cluster, q.name) == {("charge", "no_retry"): 2.0, ("ship", "no_retry"): 1.0}
    wanted = {"queue": q.name, "task": "charge"}
    first = (await q.call("POST", "/v1/jobs/requeue", {"filter": wanted, "limit": 1})).expect(200)
    assert first["count"] == 1
    rest = (await q.call("POST", "/v1/jobs/requeue", {"filter": wanted, "cursor": first["next_cursor"]})).expect(200)
    assert rest == {"count": 1, "next_cursor": None}
    found = await _queue(q)
    assert (found["depth"]["ready"], found["depth"]["dead"]) == (2, 1)
    assert found["oldest_ready_seconds"] >= 0
    async with AsyncClient(q.url) as client:
        assert await client.cancel_many(queue=q.name, tag="n:2") == 1
        assert await client.cancel_many(queue=q.name) == 1
        assert await client.requeue_many(queue=q.name, state="cancelled", task="charge") == 2
        (shown,) = [queue async for queue in client.queues(page=1) if queue.name == q.name]
    assert (shown.depth.ready, shown.depth.dead, shown.depth.cancelled) == (2, 1, 0)


async def _queue(q: Queue) -> dict[str, Any]:
    listed = (await q.call("GET", "/v1/queues?limit=1000")).expect(200)["queues"]
    (found,) = [queue for queue in listed if queue["name"] == q.name]
    return dict(found)


async def _dead_total(cluster: Cluster, queue: str) -> dict[tuple[str, str], float]:
    """Dead jobs by task and reason, summed over the nodes."""
    total: dict[tuple[str, str], float] = {}
    for node in cluster.nodes:
        text = (await cluster.api.send("GET", node.url + "/metrics")).raw.decode()
        for line in text.splitlines():
            if line.startswith("horae_dead_jobs_total{") and f'queue="{queue}"' in line:
                labels = dict(part.split("=") for part in line.partition("{")[2].partition("}")[0].split(","))
                kind = labels["task"].strip('"'), labels["reason"].strip('"')
                total[kind] = total.get(kind, 0) + float(line.rpartition(" ")[2])
    return total


async def test_a_paused_queue_waits_and_a_resume_wakes_who_waits(any_q: Queue) -> None:
    q = any_q
    await _set(q, paused=True)
    await q.submit(task="t", id=q.name + "-a")
    waiting = asyncio.create_task(q.claim())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    shown = await _set(q, paused=False)
    assert shown["paused"] is False
    assert [job["id"] for job in await waiting] == [q.name + "-a"]


async def test_jobs_of_one_key_run_one_at_a_time_whoever_claims(any_q: Queue) -> None:
    q = any_q
    for key in ("k", "k", "m"):
        await q.submit(task="t", concurrency_key=key)
    first = await q.claim(max_jobs=10)
    assert len(first) == 2
    waiting = asyncio.create_task(q.claim())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    for job in first:
        await q.end("complete", job)
    assert len(await waiting) == 1


async def test_what_a_rate_holds_up_comes_by_itself(any_q: Queue) -> None:
    q = any_q
    await _set(q, rate_per_second=2, burst=1)
    for _ in range(3):
        await q.submit(task="t")
    assert len(await q.claim(max_jobs=3)) == 1
    for _ in range(2):
        await q.claim_one()


async def test_past_its_depth_a_submit_is_rate_limited(any_q: Queue) -> None:
    q = any_q
    await _set(q, max_depth=1)
    await q.submit(task="t")
    refused = await q.call("POST", "/v1/jobs", {"task": "t", "queue": q.name})
    require_problem(refused, 429, "rate_limited")
    assert int(refused.headers["Retry-After"]) >= 1
    results = (await q.call("POST", "/v1/jobs/batch", {"jobs": [{"task": "t", "queue": q.name}]})).expect(200)[
        "results"
    ]
    assert results[0]["error"]["code"] == "rate_limited"


async def test_settings_outlive_a_change_of_leader_and_are_listed_without_a_job(any_q: Queue, cluster: Cluster) -> None:
    q = any_q
    said = await _set(q, max_running=3, max_running_per_key=2, rate_per_second=0.5, burst=4, max_depth=9, paused=True)
    leader = await cluster.leader()
    other = next(node for node in cluster.nodes if node is not leader)
    (await q.call("POST", "/v1/cluster/leader", {"node": other.name})).expect(200)
    assert await _queue(q) == said
    assert (await q.call("GET", f"/v1/queues/{q.name}")).expect(200) == said
    async with AsyncClient(q.url) as client:
        nothing = {"max_running": None, "max_running_per_key": None, "rate_per_second": None, "burst": None}
        shown = await client.set_queue(q.name, paused=False, max_depth=None, **nothing)
    assert (shown.paused, shown.max_running, shown.max_running_per_key, shown.burst) == (False, None, 1, None)
    listed = (await q.call("GET", "/v1/queues?limit=1000")).expect(200)["queues"]
    assert q.name not in [queue["name"] for queue in listed]


async def test_who_works_is_told_by_any_node(any_q: Queue) -> None:
    q = any_q
    await q.submit(task="t")
    job = await q.claim_one(worker=f"w-{q.name}")
    async with AsyncClient(q.url) as client:
        (shown,) = [it async for it in client.workers(page=1) if it.worker == f"w-{q.name}"]
        assert (shown.queues, shown.running) == ([q.name], 1)
        await q.end("complete", job)
        (shown,) = [it async for it in client.workers() if it.worker == f"w-{q.name}"]
        assert shown.running == 0


async def _set(q: Queue, **settings: Any) -> dict[str, Any]:
    return dict((await q.call("PATCH", f"/v1/queues/{q.name}", settings)).expect(200))
