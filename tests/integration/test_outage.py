"""Nodes that go away: what a caller of those left is told, and what is there when all are back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.helpers.api import Answer
from tests.helpers.cluster import Cluster, NodeProcess, poll, running_cluster
from tests.helpers.story import (
    DEADLINE_SECONDS,
    Queue,
    require_problem,
    waiting_claims,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """In place of the one that other files share: these tests kill its nodes, and bring them back."""
    async with running_cluster(tmp_path_factory.mktemp("outage")) as cluster:
        yield cluster


async def test_a_restart_of_all_keeps_everything(cluster: Cluster, q: Queue) -> None:
    held = await one_of_each(q)
    before = await listed(q)
    assert {job["state"] for job in before} == {
        "pending",
        "ready",
        "running",
        "succeeded",
        "dead",
        "cancelled",
        "expired",
    }
    await cluster.stop_all()
    for node in cluster.nodes:
        cluster.start(node)
    await cluster.wait_ready()
    assert [without_lease(job) for job in await listed(q)] == [without_lease(job) for job in before]
    again = await q.claim(claim_id="kept")
    assert [(job["id"], job["lease_token"]) for job in again] == [(held["id"], held["lease_token"])]
    assert (await q.end("complete", held)).expect(200)["state"] == "succeeded"


async def one_of_each(q: Queue) -> Any:
    """A job in each state; the claim of the running one, whose claim id is `kept`."""
    await q.submit(ttl_seconds=1, id=f"{q.name}-expires")
    await q.finished(f"{q.name}-expires")
    for how in ("complete", "fail"):
        await q.submit(payload={"how": how}, tags={"how": how})
        keys = {"result": [how]} if how == "complete" else {"error": {"message": how}, "retry": False}
        (await q.end(how, await q.claim_one(), **keys)).expect(200)
    cancelled = await q.submit()
    (await q.call("POST", f"/v1/jobs/{cancelled['id']}/cancel")).expect(200)
    await q.submit(lease_seconds=600)
    held = await q.claim_one(claim_id="kept")
    await q.submit(delay_seconds=600)
    await q.submit(unique_key="u", priority=-3)
    return held


async def listed(q: Queue) -> list[Any]:
    answer = await q.api.call_until_answered("GET", f"/v1/jobs?queue={q.name}")
    jobs: list[Any] = answer.expect(200)["jobs"]
    return jobs


def without_lease(job: Any) -> Any:
    """The lease's end is told in wall time, which goes on while the lease clock stands still."""
    return job | {"lease_expires_at": None}


async def test_without_a_majority(cluster: Cluster, leader: NodeProcess) -> None:
    dead = [await cluster.follower(), leader]
    left = next(node for node in cluster.nodes if node not in dead)
    for node in dead:
        cluster.kill(node)
    for method, path, body in [("POST", "/v1/jobs", {"task": "t"}), ("GET", "/v1/jobs/none", None)]:

        async def look(method: str = method, path: str = path, body: Any = body) -> Answer | None:
            answer = await cluster.api.call(method, path, body, url=left.url)
            return answer if answer.code == "no_leader" else None

        answer: Answer = await poll("the node knows that no one leads", look)
        require_problem(answer, 503, "no_leader")
        assert int(answer.headers["Retry-After"]) >= 1
        assert "Horae-Leader" not in answer.headers
    (await cluster.api.call("GET", "/healthz", url=left.url)).expect(200)
    assert (await cluster.api.call("GET", "/readyz", url=left.url)).status == 503
    assert (await cluster.api.call("GET", "/v1/jobs?consistency=local", url=left.url)).expect(200)["jobs"]
    for node in dead:
        cluster.start(node)
    await cluster.wait_ready()
    (await cluster.api.call_until_answered("POST", "/v1/jobs", {"task": "t", "id": "after"})).expect(201)


async def test_a_leader_alone_serves_no_one(cluster: Cluster, leader: NodeProcess) -> None:
    """Its followers gone, it may believe that it leads, but acknowledges nothing."""
    for node in cluster.nodes:
        if node is not leader:
            cluster.kill(node)
    body = {"task": "t", "id": "alone"}
    answer = await cluster.api.call("POST", "/v1/jobs", body, url=leader.url)
    assert (answer.status, answer.code) in {(503, "no_leader"), (504, "outcome_unknown")}
    for node in cluster.nodes:
        if node is not leader:
            cluster.start(node)
    await cluster.wait_ready()
    assert (await cluster.api.call_until_answered("POST", "/v1/jobs", body)).status in (200, 201)


async def test_a_claim_parked_on_a_leader_that_dies(
    cluster: Cluster, leader: NodeProcess, follower: NodeProcess
) -> None:
    """Asked through a follower, it goes on waiting at the new leader, or is told to ask again: never left hanging."""
    q = Queue(cluster.api, "parked", follower.url)
    claim_body = {"worker": "w", "queues": ["parked"], "wait_seconds": 20, "claim_id": "parked-1"}
    waiting = asyncio.create_task(cluster.api.call_until_answered("POST", "/v1/claims", claim_body, wait_seconds=20))
    await waiting_claims(cluster, leader, 1)
    cluster.kill(leader)
    made = (
        await cluster.api.call_until_answered("POST", "/v1/jobs", {"task": "t", "queue": "parked", "id": "parked-job"})
    ).expect(201)
    (claimed,) = (await asyncio.wait_for(waiting, DEADLINE_SECONDS)).expect(200)["jobs"]
    assert claimed["id"] == made["id"]
    (await q.end("complete", claimed)).expect(200)
    cluster.start(leader)
    await cluster.wait_ready()
