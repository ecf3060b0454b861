"""Nodes that go away: what a caller of those left is told, and what is there when all are back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from tests.helpers.api import Answer, Api
from tests.helpers.cluster import Cluster, NodeProcess, poll, running_cluster
from tests.helpers.story import (
    DEADLINE_SECONDS,
    LONG_SECONDS,
    Queue,
    require_problem,
    waiting_claims,
)

SILENT_SECONDS = 15
"""To miss a leader, and for as long again as any call waits for one, on a busy machine."""

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


@contextlib.asynccontextmanager
async def killed(cluster: Cluster, *nodes: NodeProcess) -> AsyncIterator[None]:
    """These nodes are dead meanwhile, and back and ready afterwards."""
    for node in nodes:
        cluster.kill(node)
    try:
        yield
    finally:
        for node in nodes:
            cluster.start(node)
        await cluster.wait_ready()


async def test_without_a_majority(cluster: Cluster, leader: NodeProcess, follower: NodeProcess) -> None:
    left = next(node for node in cluster.nodes if node not in (leader, follower))
    async with killed(cluster, leader, follower):
        for method, path, body in [("POST", "/v1/jobs", {"task": "t"}), ("GET", "/v1/jobs/none", None)]:

            async def look(method: str = method, path: str = path, body: Any = body) -> Answer | None:
                answer = await cluster.api.call(method, path, body, url=left.url)
                return answer if answer.code == "no_leader" else None

            answer: Answer = await poll("the node says that no one leads", look)
            require_problem(answer, 503, "no_leader")
            assert int(answer.headers["Retry-After"]) >= 1
            assert "Horae-Leader" not in answer.headers
        (await cluster.api.call("GET", "/healthz", url=left.url)).expect(200)
        assert (await cluster.api.call("GET", "/readyz", url=left.url)).status == 503
        assert (await cluster.api.call("GET", "/v1/jobs?consistency=local", url=left.url)).expect(200)["jobs"]
    (await cluster.api.call_until_answered("POST", "/v1/jobs", {"task": "t", "id": "after"})).expect(201)


async def test_a_leader_alone_acknowledges_nothing(cluster: Cluster, leader: NodeProcess) -> None:
    body = {"task": "t", "id": "alone"}
    async with killed(cluster, *[node for node in cluster.nodes if node is not leader]):
        answer = await cluster.api.call("POST", "/v1/jobs", body, url=leader.url)
        assert (answer.status, answer.code) in {(503, "no_leader"), (504, "outcome_unknown")}
        read = await cluster.api.call("GET", "/v1/jobs/after", url=leader.url)
        assert (read.status, read.code) == (503, "no_leader")
    assert (await cluster.api.call_until_answered("POST", "/v1/jobs", body)).status in (200, 201)


async def test_a_claim_parked_on_a_leader_that_dies(
    cluster: Cluster, leader: NodeProcess, follower: NodeProcess
) -> None:
    """Asked through a follower, it goes on waiting at the new leader, or is told to ask again: never left hanging."""
    q = Queue(cluster.api, "parked", follower.url)
    body = {"worker": "w", "queues": [q.name], "wait_seconds": 20, "claim_id": "parked-1"}
    waiting = asyncio.create_task(cluster.api.call_until_answered("POST", "/v1/claims", body, wait_seconds=20))
    await waiting_claims(cluster, leader, 1)
    async with killed(cluster, leader):
        job = {"task": "t", "queue": q.name, "id": "parked-job"}
        (await cluster.api.call_until_answered("POST", "/v1/jobs", job)).expect(201)
        (claimed,) = (await asyncio.wait_for(waiting, DEADLINE_SECONDS)).expect(200)["jobs"]
        assert claimed["id"] == "parked-job"
        path = "/v1/jobs/parked-job/complete"
        (await q.api.call_until_answered("POST", path, {"lease_token": claimed["lease_token"]})).expect(200)


async def test_a_leader_that_is_stopped_hands_over_first(
    cluster: Cluster, leader: NodeProcess, follower: NodeProcess
) -> None:
    """Claims that wait on it do not hold it up; calls without any key are passed on to the next leader, in no doubt."""
    body = {"worker": "w", "queues": ["none"], "wait_seconds": LONG_SECONDS}
    waiting = asyncio.create_task(cluster.api.call("POST", "/v1/claims", body, url=leader.url))
    await waiting_claims(cluster, leader, 1)
    stopping = asyncio.create_task(cluster.stop(leader))
    try:
        answer = await asyncio.wait_for(waiting, DEADLINE_SECONDS)
        assert (answer.status, answer.code) in {(503, "no_leader"), (503, "shutting_down")}
        while not stopping.done():
            made = await cluster.api.call("POST", "/v1/jobs", {"task": "t", "queue": "handed"}, url=follower.url)
            made.expect(201)
        assert await stopping == 0
    finally:
        await stopping
        cluster.start(leader)
        await cluster.wait_ready()


async def test_a_leader_that_was_paused_does_no_harm(cluster: Cluster, leader: NodeProcess) -> None:
    """It wakes in the belief that it leads; the others have gone on without it."""
    others = [node for node in cluster.nodes if node is not leader]
    job = {"task": "t", "queue": "paused", "id": "held", "lease_seconds": 600}
    (await cluster.api.call_until_answered("POST", "/v1/jobs", job)).expect(201)
    body = {"worker": "w", "queues": ["paused"], "claim_id": "held-1"}
    (held,) = (await cluster.api.call_until_answered("POST", "/v1/claims", body)).expect(200)["jobs"]
    cluster.pause(leader)
    try:

        async def another_leads() -> bool:
            views = [await cluster.view(node) for node in others]
            return any(view is not None and view["role"] == "leader" for view in views)

        await poll("another leads", another_leads)
        path, end = "/v1/jobs/held/complete", {"lease_token": held["lease_token"]}
        async with Api(lambda: [node.url for node in others]) as api:
            (await api.call_until_answered("POST", path, end)).expect(200)
    finally:
        cluster.resume(leader)
    read = (await cluster.api.call("GET", "/v1/jobs/held", url=leader.url)).expect(200)
    assert read["state"] == "succeeded"
    assert (await cluster.api.call("POST", "/v1/claims", body, url=leader.url)).expect(200)["jobs"] == []


async def test_what_is_on_its_way_to_a_leader_that_falls_silent(
    cluster: Cluster, leader: NodeProcess, follower: NodeProcess
) -> None:
    """A follower that passed a call on does not wait for the old leader when there is a new one."""
    cluster.pause(leader)
    try:
        job = {"task": "t", "queue": "silent", "id": "silent-1"}
        submitting = cluster.api.call("POST", "/v1/jobs", job, url=follower.url, wait_seconds=LONG_SECONDS)
        reading = cluster.api.call("GET", "/v1/jobs/none", url=follower.url, wait_seconds=LONG_SECONDS)
        async with asyncio.timeout(DEADLINE_SECONDS):
            made, read = await asyncio.gather(submitting, reading)
        made.expect(201)
        read.expect(404, "not_found")
    finally:
        cluster.resume(leader)


async def test_what_waits_at_a_leader_that_falls_silent_with_another_node(
    cluster: Cluster, leader: NodeProcess, follower: NodeProcess
) -> None:
    """No third one can lead: what a follower had passed on ends as a new call would, not when the leader wakes."""
    other = next(node for node in cluster.nodes if node not in (leader, follower))
    job = {"task": "t", "queue": "nobody", "id": "unheard"}
    (await cluster.api.call_until_answered("POST", "/v1/jobs", job)).expect(201)
    body = {"worker": "w", "queues": ["none"], "wait_seconds": LONG_SECONDS}
    calls = (
        ("POST", "/v1/claims", body),
        ("POST", "/v1/claims", body | {"claim_id": "unheard"}),
        ("GET", f"/v1/jobs/unheard?wait_seconds={LONG_SECONDS}", None),
    )
    waiting = [
        asyncio.create_task(cluster.api.call(method, path, sent, url=follower.url, wait_seconds=LONG_SECONDS))
        for method, path, sent in calls
    ]
    await waiting_claims(cluster, leader, 2)
    for node in (leader, other):
        cluster.pause(node)
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            ends = await asyncio.gather(*waiting)
    finally:
        for node in (leader, other):
            cluster.resume(node)
        await cluster.wait_ready()
    assert [end.code for end in ends] == ["outcome_unknown", "outcome_unknown", "no_leader"]


async def test_workers_behind_a_follower_that_hangs_take_no_jobs(cluster: Cluster, q: Queue) -> None:
    """Each of four jobs' leases ran out there, and the job was dead as a poison pill, though it never ran."""
    leader, hung = await cluster.leader(), await cluster.follower()
    at_leader = replace(q, url=leader.url)
    behind = [
        asyncio.create_task(replace(q, url=hung.url).claim(worker=f"behind-{n}", wait_seconds=30)) for n in range(4)
    ]
    await waiting_claims(cluster, leader, 4)
    cluster.pause(hung)
    try:

        async def silent() -> bool:
            view = (await cluster.api.call("GET", "/v1/cluster", url=leader.url)).expect(200)
            (member,) = [member for member in view["members"] if member["node"] == hung.name]
            return bool(member["last_heard_seconds"] > 1.2)

        await poll(f"nothing is heard of {hung.name}", silent)
        beside = asyncio.create_task(at_leader.claim_one(worker="beside"))
        await waiting_claims(cluster, leader, 5)
        job = await at_leader.submit(lease_seconds=1, max_lost=1)
        held = await beside
        assert (held["id"], held["attempt"]) == (job["id"], 1)
        assert (await at_leader.end("complete", held)).expect(200)["lost"] == 0
    finally:
        cluster.resume(hung)
    later = await at_leader.submit()
    (taken,) = [job for jobs in await _first_done(behind) for job in jobs]
    assert taken["id"] == later["id"], "heard again, it is served"


async def _first_done(claims: list[asyncio.Task[list[Any]]]) -> list[list[Any]]:
    """What those have that were answered first; the others hang up."""
    done, rest = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_SECONDS)
    for claim in rest:
        claim.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    return [claim.result() for claim in done]
