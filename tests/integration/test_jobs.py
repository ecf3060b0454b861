"""The contract of jobs (docs/contract.md), from outside, on three real nodes: submit, read, list, cancel, requeue.

Each test has a queue of its own; those with `any_q` run at the leader and at a follower, in JSON and in MessagePack.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.helpers.api import JSON, MSGPACK, Answer
from tests.helpers.cluster import Cluster, NodeProcess, poll
from tests.helpers.story import (
    Queue,
    metric,
    moment,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def test_a_life(any_q: Queue, cluster: Cluster) -> None:
    q = any_q
    payload = {"to": "ann", "n": [1, 2.5, None, True, "ä\U0001f600"], "deep": {"a": {"b": {}}}}
    made = await q.submit(payload=payload, tags={"team": "mail"}, priority=7)
    job_id = made["id"]
    assert made["execution_id"] == job_id
    assert (made["state"], made["attempt"], made["lost"], made["worker"]) == ("ready", 0, 0, None)
    assert (made["payload"], made["tags"], made["priority"]) == (payload, {"team": "mail"}, 7)
    assert (made["max_attempts"], made["max_lost"], made["lease_seconds"], made["timeout_seconds"]) == (5, 3, 30, 3600)
    assert made["retry"] == {"initial_seconds": 1, "factor": 2, "max_seconds": 3600, "jitter": 0.2}
    assert moment(made["run_at"]) <= moment(made["created_at"])
    claimed = await q.claim_one()
    assert claimed["id"] == claimed["execution_id"] == job_id
    assert (claimed["payload"], claimed["tags"], claimed["attempt"]) == (payload, {"team": "mail"}, 1)
    assert moment(claimed["lease_expires_at"]) < moment(claimed["timeout_at"])
    running = await q.read(job_id)
    assert (running["state"], running["worker"], running["attempt"]) == ("running", "w1", 1)
    assert running["lease_expires_at"] is not None
    beat = {"job_id": job_id, "lease_token": claimed["lease_token"], "progress": {"done": 0.5}}
    answer = await q.call("POST", "/v1/leases/heartbeat", {"worker": "w1", "leases": [beat]})
    (status,) = answer.expect(200)["leases"]
    assert (status["job_id"], status["status"], status["cancel_requested"]) == (job_id, "ok", False)
    assert moment(status["lease_expires_at"]) >= moment(claimed["lease_expires_at"])
    assert (await q.read(job_id))["progress"] == {"done": 0.5}
    ended = (await q.end("complete", claimed, result=[1, "two"])).expect(200)
    assert (ended["state"], ended["result"], ended["dead_reason"]) == ("succeeded", [1, "two"], None)
    again = (await q.end("complete", claimed, result=[1, "two"])).expect(200)
    assert again == ended
    assert await q.read(job_id) == ended
    listed = (await q.call("GET", f"/v1/jobs?queue={q.name}&state=succeeded")).expect(200)
    assert listed == {"jobs": [ended], "next_cursor": None}
    removed = await q.call("DELETE", f"/v1/jobs/{job_id}")
    assert removed.status in (200, 204)
    (await q.call("GET", f"/v1/jobs/{job_id}")).expect(404, "not_found")
    (await q.call("DELETE", f"/v1/jobs/{job_id}")).expect(404, "not_found")


async def test_answers_say_who_answered(cluster: Cluster, leader: NodeProcess) -> None:
    for node in cluster.nodes:
        for path in ("/healthz", "/readyz", "/v1/cluster", "/v1/jobs?limit=1", "/v1/jobs/none"):
            answer = await cluster.api.call("GET", path, url=node.url)
            assert answer.headers["Horae-Node"] == node.name, path
            assert answer.headers["Horae-Leader"] == leader.url, path


async def test_encodings_follow_accept(cluster: Cluster, leader: NodeProcess) -> None:
    body = msgspec.msgpack.encode({"task": "noop", "queue": "enc", "payload": {"k": 1}})
    answer = await cluster.api.send("POST", leader.url + "/v1/jobs", body, {"Content-Type": MSGPACK, "Accept": JSON})
    assert answer.content_type == JSON
    job = answer.expect(201)
    assert job["payload"] == {"k": 1}
    answer = await cluster.api.send("GET", f"{leader.url}/v1/jobs/{job['id']}", headers={"Accept": MSGPACK})
    assert answer.content_type == MSGPACK
    assert answer.expect(200) == job


async def test_submit_is_idempotent_by_id(any_q: Queue) -> None:
    q = any_q
    job = {"id": f"{q.name}/ä 1", "task": "t", "queue": q.name, "payload": {"a": 1, "b": 2}}
    first = (await q.call("POST", "/v1/jobs", job)).expect(201)
    same = job | {"payload": {"b": 2, "a": 1}}
    assert (await q.call("POST", "/v1/jobs", same)).expect(200) == first
    for change in ({"payload": {"a": 2}}, {"task": "u"}, {"priority": 1}, {"delay_seconds": 5}, {"tags": {"a": "b"}}):
        (await q.call("POST", "/v1/jobs", job | change)).expect(409, "conflict")
    claimed = await q.claim_one()
    assert claimed["id"] == job["id"]
    path = "/v1/jobs/" + q.name + "%2F%C3%A4%201"
    (await q.call("POST", path + "/complete", {"lease_token": claimed["lease_token"]})).expect(200)
    assert (await q.call("POST", "/v1/jobs", job)).expect(200)["state"] == "succeeded"


async def test_submits_of_one_id_at_once_make_one_job(cluster: Cluster) -> None:
    job = {"id": f"race-{uuid.uuid4().hex}", "task": "t", "queue": "race"}
    answers = await asyncio.gather(*[cluster.api.call("POST", "/v1/jobs", job) for _ in range(24)])
    assert sorted(answer.status for answer in answers) == [200] * 23 + [201]


async def test_batch_gives_each_job_its_own_result(any_q: Queue) -> None:
    q = any_q
    jobs = [
        {"task": "t", "queue": q.name, "id": f"{q.name}-1"},
        {"task": "t", "queue": q.name, "id": f"{q.name}-1", "payload": "other"},
        {"task": "t", "queue": "a/b"},
        {"task": "t", "queue": q.name, "tsak": 1},
        {"task": "t", "queue": q.name, "id": f"{q.name}-2"},
    ]
    results = (await q.call("POST", "/v1/jobs/batch", {"jobs": jobs})).expect(200)["results"]
    assert [item["error"]["code"] if "error" in item else item["job"]["id"] for item in results] == [
        f"{q.name}-1",
        "conflict",
        "invalid",
        "invalid",
        f"{q.name}-2",
    ]
    assert results[3]["error"]["errors"][0]["pointer"].endswith("/tsak")
    listed = (await q.call("GET", f"/v1/jobs?queue={q.name}")).expect(200)["jobs"]
    assert [job["id"] for job in listed] == [f"{q.name}-2", f"{q.name}-1"]


async def test_atomic_batch_is_all_or_none(any_q: Queue) -> None:
    q = any_q
    await q.submit(id=f"{q.name}-taken", payload=1)
    jobs: list[dict[str, Any]] = [{"task": "t", "queue": q.name, "id": f"{q.name}-{n}"} for n in range(3)]
    broken = [*jobs, {"task": "t", "queue": q.name, "id": f"{q.name}-taken", "payload": 2}]
    refused = (await q.call("POST", "/v1/jobs/batch", {"jobs": broken, "atomic": True})).expect(409, "conflict")
    assert refused["errors"][0]["pointer"].startswith("/jobs/3")
    assert len((await q.call("GET", f"/v1/jobs?queue={q.name}")).expect(200)["jobs"]) == 1
    results = (await q.call("POST", "/v1/jobs/batch", {"jobs": jobs, "atomic": True})).expect(200)["results"]
    assert [item["job"]["id"] for item in results] == [job["id"] for job in jobs]


async def test_unique_key_merges_while_the_job_lives(q: Queue) -> None:
    first = await q.submit(unique_key="only", payload=1)
    other = {"task": "noop", "queue": q.name, "unique_key": "only", "payload": 2}
    assert (await q.call("POST", "/v1/jobs", other)).expect(200)["id"] == first["id"]
    claimed = await q.claim_one()
    assert (await q.call("POST", "/v1/jobs", other)).expect(200)["id"] == first["id"]
    (await q.end("complete", claimed)).expect(200)
    assert (await q.call("POST", "/v1/jobs", other)).expect(201)["id"] != first["id"]


async def test_time_to_live_expires_what_never_started(q: Queue) -> None:
    job = await q.submit(ttl_seconds=1)
    expired = await q.finished(job["id"])
    assert (expired["state"], expired["attempt"], expired["started_at"]) == ("expired", 0, None)
    assert moment(expired["finished_at"]) >= moment(expired["expires_at"])
    assert await q.claim(wait_seconds=0) == []


async def test_a_last_moment_expires_what_never_started(q: Queue) -> None:
    last = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=3)
    job = await q.submit(expires_at=last.isoformat())
    assert moment(job["expires_at"]) == last
    expired = await q.finished(job["id"])
    assert (expired["state"], expired["attempt"]) == ("expired", 0)
    assert moment(expired["finished_at"]) >= last


async def test_delay_and_run_at(q: Queue) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    offset = ahead.astimezone(datetime.strptime("+0530", "%z").tzinfo).isoformat(timespec="milliseconds")
    job = await q.submit(run_at=offset)
    assert job["state"] == "pending"
    assert moment(job["run_at"]) == ahead.replace(microsecond=ahead.microsecond // 1000 * 1000)
    delayed = await q.submit(delay_seconds=600)
    assert delayed["state"] == "pending"
    assert moment(delayed["run_at"]) - moment(delayed["created_at"]) == timedelta(seconds=600)
    past = await q.submit(run_at="2001-01-01T00:00:00Z")
    assert past["state"] == "ready"
    assert (await q.claim_one())["id"] == past["id"]
    assert await q.claim(wait_seconds=0) == []


async def test_cancel_what_waits(any_q: Queue) -> None:
    q = any_q
    for keys in ({"delay_seconds": 600}, {}):
        job = await q.submit(**keys)
        cancelled = (await q.call("POST", f"/v1/jobs/{job['id']}/cancel")).expect(200)
        assert (cancelled["state"], cancelled["attempt"]) == ("cancelled", 0)
        (await q.call("POST", f"/v1/jobs/{job['id']}/cancel")).expect(409, "conflict")
        assert await q.claim(wait_seconds=0) == []
    requeued = (await q.call("POST", f"/v1/jobs/{job['id']}/requeue")).expect(200)
    assert requeued["state"] == "ready"
    assert (await q.claim_one())["id"] == job["id"]


async def test_cancel_what_runs(any_q: Queue) -> None:
    q = any_q
    job = await q.submit()
    claimed = await q.claim_one()
    asked = (await q.call("POST", f"/v1/jobs/{job['id']}/cancel")).expect(200)
    assert (asked["state"], asked["cancel_requested"]) == ("running", True)
    beat = {"worker": "w1", "leases": [{"job_id": job["id"], "lease_token": claimed["lease_token"]}]}
    (status,) = (await q.call("POST", "/v1/leases/heartbeat", beat)).expect(200)["leases"]
    assert (status["status"], status["cancel_requested"]) == ("ok", True)
    assert (await q.fail(claimed))["state"] == "cancelled"


async def test_what_the_state_does_not_allow(q: Queue) -> None:
    job = await q.submit()
    path = f"/v1/jobs/{job['id']}"
    (await q.call("DELETE", path)).expect(409, "conflict")
    (await q.call("POST", path + "/requeue")).expect(409, "conflict")
    claimed = await q.claim_one()
    (await q.call("DELETE", path)).expect(409, "conflict")
    (await q.call("POST", path + "/run_now")).expect(409, "conflict")
    (await q.end("complete", claimed)).expect(200)
    for verb in ("cancel", "requeue", "run_now"):
        told = (await q.call("POST", f"{path}/{verb}")).expect(409, "conflict")
        assert "is succeeded" in told["detail"]
        (await q.call("POST", f"/v1/jobs/none/{verb}")).expect(404, "not_found")


async def test_run_now(any_q: Queue) -> None:
    job = await any_q.submit(delay_seconds=600)
    assert (await any_q.call("POST", f"/v1/jobs/{job['id']}/run_now")).expect(200)["state"] == "ready"
    assert (await any_q.claim_one())["id"] == job["id"]


async def test_lists_are_paged_newest_first(any_q: Queue) -> None:
    q = any_q
    made = [(await q.submit(delay_seconds=600 * (n % 2)))["id"] for n in range(7)]
    seen: list[str] = []
    path = f"/v1/jobs?queue={q.name}&limit=3"
    cursor, pages = "", 0
    while True:
        page = (await q.call("GET", path + cursor)).expect(200)
        seen += [job["id"] for job in page["jobs"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert seen == made[::-1]
    assert pages == 3
    ready = (await q.call("GET", f"/v1/jobs?queue={q.name}&state=ready")).expect(200)["jobs"]
    assert [job["id"] for job in ready] == made[::2][::-1]
    newest = (await q.call("GET", "/v1/jobs?limit=1")).expect(200)["jobs"]
    assert [job["id"] for job in newest] == [made[-1]]


async def test_a_read_waits_for_the_end(any_q: Queue) -> None:
    q = any_q
    job = await q.submit()
    waiting = asyncio.create_task(q.finished(job["id"]))
    (await q.end("complete", await q.claim_one(), result="done")).expect(200)
    assert (await waiting)["result"] == "done"
    assert (await q.finished(job["id"]))["result"] == "done"
    other = await q.submit()
    path = f"/v1/jobs/{other['id']}?wait_seconds=0.1"
    assert (await q.call("GET", path)).expect(200)["state"] == "ready"


async def test_reads_of_any_node_see_what_was_acknowledged(cluster: Cluster) -> None:
    for n in range(30):
        made = (await cluster.api.call("POST", "/v1/jobs", {"task": "t", "queue": "lin", "payload": n})).expect(201)
        answers = [cluster.api.call("GET", f"/v1/jobs/{made['id']}", url=node.url) for node in cluster.nodes]
        for answer in await asyncio.gather(*answers):
            assert answer.expect(200)["payload"] == n


async def test_local_reads_say_how_old_they_are(cluster: Cluster, q: Queue) -> None:
    job = await q.submit()
    for node in cluster.nodes:
        path = f"/v1/jobs/{job['id']}?consistency=local"

        async def look(node: NodeProcess = node, path: str = path) -> Answer | None:
            answer = await cluster.api.call("GET", path, url=node.url)
            return answer if answer.status == 200 else None

        answer: Answer = await poll(f"{node.name} has applied the submit", look)
        assert int(answer.headers["Horae-Applied-Index"]) > 0
        assert float(answer.headers["Horae-Staleness-Seconds"]) >= 0


async def test_cluster_view(cluster: Cluster, leader: NodeProcess) -> None:
    for node in cluster.nodes:
        view = (await cluster.api.call("GET", "/v1/cluster", url=node.url)).expect(200)
        assert (view["cluster"], view["leader"], view["leader_url"]) == ("test", leader.name, leader.url)
        assert (view["node"], view["role"]) == (leader.name, "leader")
        assert [(member["node"], member["url"]) for member in view["members"]] == [
            (each.name, each.url) for each in cluster.nodes
        ]
        assert all(member["connected"] for member in view["members"])
        assert view["applied_index"] <= view["commit_index"] <= view["last_index"]
        local = (await cluster.api.call("GET", "/v1/cluster?consistency=local", url=node.url)).expect(200)
        assert (local["node"], local["leader"]) == (node.name, leader.name)
        assert local["role"] == ("leader" if node is leader else "follower")


async def test_metrics(cluster: Cluster, q: Queue, leader: NodeProcess) -> None:
    await q.submit()
    await q.claim_one()
    for node in cluster.nodes:
        answer = await cluster.api.send("GET", node.url + "/metrics")
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        text = answer.raw.decode()
        for name in (
            "horae_raft_term",
            "horae_raft_commit_index",
            "horae_raft_applied_index",
            "horae_raft_lag_entries",
        ):
            assert f"\n{name} " in text, name
        for name in ("horae_commit_seconds", "horae_claim_seconds"):
            assert f'\n{name}_bucket{{le="' in text, name
        role = "leader" if node is leader else "follower"
        assert f'horae_raft_role{{role="{role}"}} 1.0' in text
    assert f'horae_queue_jobs{{queue="{q.name}",state="running"}} 1.0' in (
        (await cluster.api.send("GET", leader.url + "/metrics")).raw.decode()
    )
    assert await metric(cluster, leader, "horae_claim_seconds_count") > 0
    assert await metric(cluster, leader, "horae_commit_seconds_count") > 0


async def test_the_contract_is_published(cluster: Cluster) -> None:
    document = (await cluster.api.send("GET", cluster.nodes[0].url + "/openapi.json")).expect(200)
    assert document["openapi"].startswith("3.1")
    for path, method in [
        ("/v1/jobs", "post"),
        ("/v1/jobs", "get"),
        ("/v1/jobs/batch", "post"),
        ("/v1/jobs/{id}", "get"),
        ("/v1/jobs/{id}", "delete"),
        ("/v1/jobs/{id}/cancel", "post"),
        ("/v1/jobs/{id}/complete", "post"),
        ("/v1/claims", "post"),
        ("/v1/leases/heartbeat", "post"),
        ("/v1/leases/complete", "post"),
        ("/v1/cluster", "get"),
    ]:
        assert method in document["paths"][path], path
