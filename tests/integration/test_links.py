"""Jobs that wait for others, jobs that a success brings forth, and what is left of a job that is gone: from outside, on
three real nodes (docs/contract.md)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.helpers.cluster import Cluster, NodeProcess
from tests.helpers.story import Queue, require_problem

from horae import AsyncClient, NewJob

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def _job(q: Queue, job_id: str, wait_seconds: float = 0) -> dict[str, Any]:
    found: dict[str, Any] = (await q.call("GET", f"/v1/jobs/{job_id}?wait_seconds={wait_seconds}")).expect(200)
    return found


async def test_a_job_runs_when_all_that_it_waits_for_have_succeeded(any_q: Queue) -> None:
    q = any_q
    first, second = [await q.submit(task="t") for _ in range(2)]
    last = await q.submit(task="last", after=[first["id"], second["id"]])
    assert (last["state"], last["after"], last["on_failure"]) == ("pending", [first["id"], second["id"]], "cancel")
    held = await q.claim(max_jobs=10)
    assert [job["id"] for job in held] == [first["id"], second["id"]]
    await q.end("complete", held[0])
    assert await q.claim(wait_seconds=0) == []
    waiting = asyncio.create_task(q.claim())
    await q.end("complete", held[1])
    (job,) = await waiting
    assert job["id"] == last["id"]
    assert (await _job(q, last["id"]))["state"] == "running"


async def test_a_failure_cancels_who_waits_and_says_why(any_q: Queue) -> None:
    q = any_q
    parent = await q.submit(task="t", max_attempts=1)
    child = await q.submit(task="t", after=[parent["id"]])
    grandchild = await q.submit(task="t", after=[child["id"]])
    anyway = await q.submit(task="t", after=[parent["id"]], on_failure="run")
    await q.end("fail", await q.claim_one(), error={"type": "E", "message": "no"})
    found = await _job(q, child["id"], 10)
    assert found["state"] == "cancelled"
    assert found["last_error"]["type"] == "dependency"
    assert repr(parent["id"]) in found["last_error"]["message"]
    assert (await _job(q, grandchild["id"], 10))["state"] == "cancelled"
    assert (await q.claim_one())["id"] == anyway["id"]
    too_late = await q.submit(task="t", after=[parent["id"]])
    assert (await _job(q, too_late["id"], 10))["state"] == "cancelled"
    again = (await q.call("POST", f"/v1/jobs/{child['id']}/requeue")).expect(200)
    assert again["state"] == "ready"


async def test_what_it_waits_for_must_exist_and_a_batch_may_name_its_own(any_q: Queue) -> None:
    q = any_q
    refused = await q.call("POST", "/v1/jobs", {"task": "t", "queue": q.name, "after": [f"{q.name}-nobody"]})
    require_problem(refused, 422, "invalid")
    assert refused.body["errors"][0]["pointer"] == "/after/0"
    names = [f"{q.name}-{n}" for n in range(3)]
    jobs = [{"task": "t", "queue": q.name, "id": name, "after": names[:n]} for n, name in enumerate(names)]
    for atomic in (False, True):
        body = {"jobs": list(reversed(jobs)), "atomic": atomic}
        if atomic:
            backwards = await q.call("POST", "/v1/jobs/batch", body)
            require_problem(backwards, 422, "invalid")
            assert backwards.body["errors"][0]["pointer"] == "/jobs/0/after/1"
        else:
            results = (await q.call("POST", "/v1/jobs/batch", body)).expect(200)["results"]
            assert [result.get("error", {}).get("code") for result in results] == ["invalid", "invalid", None]
            (await q.call("POST", f"/v1/jobs/{names[0]}/cancel")).expect(200)
    results = (await q.call("POST", "/v1/jobs/batch", {"jobs": jobs[1:], "atomic": True})).expect(200)["results"]
    assert [(await _job(q, result["job"]["id"], 10))["state"] for result in results] == ["cancelled", "cancelled"]


async def test_a_success_brings_forth_the_next_job_once(any_q: Queue) -> None:
    q = any_q
    then = {
        "task": "second",
        "queue": q.name,
        "payload": {"n": [1, None]},
        "tags": {"k": "v"},
        "then": {"task": "third", "queue": q.name, "id": f"{q.name}-third"},
    }
    body = {"task": "first", "queue": q.name, "id": f"{q.name}-first", "then": then}
    made = (await q.call("POST", "/v1/jobs", body)).expect(201)
    repeated = (await q.call("POST", "/v1/jobs", body)).expect(200)
    assert repeated["then"] == made["then"]
    other = {**body, "then": {**then, "payload": 2}}
    require_problem(await q.call("POST", "/v1/jobs", other), 409, "conflict")
    assert (made["then"]["task"], made["then"]["payload"], made["then"]["then"]["id"]) == (
        "second",
        {"n": [1, None]},
        f"{q.name}-third",
    )
    for task, job_id in (("first", made["id"]), ("second", made["then"]["id"]), ("third", f"{q.name}-third")):
        job = await q.claim_one()
        assert (job["task"], job["id"]) == (task, job_id)
        await q.end("complete", job)
        await q.end("complete", job)
    assert await q.claim(wait_seconds=0) == []


async def test_the_client_joins_jobs_and_lists_them(any_q: Queue) -> None:
    q = any_q
    async with AsyncClient(q.url) as client:
        parent = await client.submit("a", queue=q.name, then=NewJob(task="b", queue=q.name, payload={"x": 1}))
        child = await client.submit("c", queue=q.name, after=[parent.id], on_failure="run", tags={"tenant": q.name})
        assert (child.state, child.after, child.on_failure) == ("pending", [parent.id], "run")
        assert parent.then is not None
        assert parent.then["payload"] == {"x": 1}
        await q.end("complete", await q.claim_one())
        later = {(await q.claim_one())["id"] for _ in range(2)}
        assert later == {child.id, parent.then["id"]}
        tagged = [job.id async for job in client.jobs(tag=f"tenant:{q.name}")]
        assert tagged == [child.id]
        since = [job.id async for job in client.jobs(queue=q.name, created_from=child.created_at)]
        before = [job.id async for job in client.jobs(queue=q.name, created_before=parent.created_at)]
        assert child.id in since
        assert before == []


async def test_the_id_of_a_job_that_is_gone_makes_no_second_one(any_q: Queue) -> None:
    q = any_q
    body = {"task": "t", "queue": q.name, "id": f"{q.name}-once", "payload": 7}
    (await q.call("POST", "/v1/jobs", body)).expect(201)
    await q.end("complete", await q.claim_one())
    (await q.call("DELETE", f"/v1/jobs/{body['id']}")).expect(204)
    require_problem(await q.call("GET", f"/v1/jobs/{body['id']}"), 404, "not_found")
    again = (await q.call("POST", "/v1/jobs", body)).expect(200)
    assert (again["state"], again["payload"], again["attempt"]) == ("succeeded", 7, 1)
    results = (await q.call("POST", "/v1/jobs/batch", {"jobs": [body]})).expect(200)["results"]
    assert results[0]["job"]["state"] == "succeeded"
    require_problem(await q.call("POST", "/v1/jobs", {**body, "payload": 8}), 409, "conflict")
    assert await q.claim(wait_seconds=0) == []


ROUNDS = 30
"""A claim that came too soon got nothing in every second one."""


async def test_who_does_not_wait_gets_what_the_end_of_a_job_has_freed(cluster: Cluster, follower: NodeProcess) -> None:
    q = Queue(cluster.api, "freed", follower.url)
    for _ in range(ROUNDS):
        parent = await q.submit(task="t")
        child = await q.submit(task="t", after=[parent["id"]])
        (await q.end("complete", await q.claim_one())).expect(200)
        (job,) = await q.claim(wait_seconds=0)
        assert job["id"] == child["id"]
        (await q.end("complete", job)).expect(200)


async def test_who_does_not_wait_gets_what_a_raised_limit_lets_through(cluster: Cluster, follower: NodeProcess) -> None:
    for turn in range(ROUNDS):
        q = Queue(cluster.api, f"raised-{turn}", follower.url)
        for _ in range(2):
            await q.submit(task="t", concurrency_key="k")
        held = await q.claim(max_jobs=2)
        assert len(held) == 1
        (await q.call("PATCH", f"/v1/queues/{q.name}", {"max_running_per_key": 2})).expect(200)
        held += await q.claim(wait_seconds=0)
        assert len(held) == 2
