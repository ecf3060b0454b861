"""The contract of queues and of bulk changes (docs/contract.md), from outside, on three real nodes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.cluster import Cluster
from tests.helpers.story import Queue

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
