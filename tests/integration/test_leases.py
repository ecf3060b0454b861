"""The contract of workers (docs/contract.md), from outside, on three real nodes: claims, endings, leases that run out.

Each test has a queue of its own; those with `any_q` run at the leader and at a follower, in JSON and in MessagePack.
"""

from __future__ import annotations

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.helpers.api import JSON, MSGPACK
from tests.helpers.cluster import Cluster, NodeProcess
from tests.helpers.story import (
    DEADLINE_SECONDS,
    LONG_SECONDS,
    NOW,
    Queue,
    moment,
    waiting_claims,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


async def test_order_is_priority_then_due_then_submitted(q: Queue) -> None:
    early = "2001-01-01T00:00:00Z"
    plan = [("c", 0, None), ("d", 0, None), ("a", 9, None), ("e", -5, None), ("b", 0, early)]
    for name, priority, run_at in plan:
        await q.submit(task=name, priority=priority, **({"run_at": run_at} if run_at else {}))
    order = [job["task"] for _ in range(2) for job in await q.claim(max_jobs=3, wait_seconds=0)]
    assert order == ["a", "b", "c", "d", "e"]


async def test_queues_are_served_in_the_order_named(q: Queue) -> None:
    second = f"{q.name}-second"
    await q.submit(queue=second, priority=100)
    first = await q.submit()
    jobs = await q.claim(queues=[q.name, second], max_jobs=2)
    assert [job["queue"] for job in jobs] == [q.name, second]
    assert jobs[0]["id"] == first["id"]


async def test_a_waiting_claim_is_woken(any_q: Queue, cluster: Cluster, leader: NodeProcess) -> None:
    waiting = asyncio.create_task(any_q.claim_one())
    await waiting_claims(cluster, leader, 1)
    job = await any_q.submit()
    assert (await waiting)["id"] == job["id"]


async def test_waiting_claims_are_served_first_come_first_served(
    q: Queue, cluster: Cluster, leader: NodeProcess
) -> None:
    waiting = []
    for n in range(4):
        waiting.append(asyncio.create_task(q.claim_one(worker=f"w{n}")))
        await waiting_claims(cluster, leader, n + 1)
    jobs = [await q.submit() for _ in range(4)]
    assert [(await claim)["id"] for claim in waiting] == [job["id"] for job in jobs]


async def test_claim_that_finds_nothing(any_q: Queue) -> None:
    assert await any_q.claim(wait_seconds=0) == []
    assert await any_q.claim(wait_seconds=0.2) == []


async def test_claim_id_repeated_gets_the_same_jobs(any_q: Queue) -> None:
    q = any_q
    for _ in range(3):
        await q.submit()
    first = await q.claim(max_jobs=2, claim_id="c-1")
    assert len(first) == 2
    again = await q.claim(max_jobs=2, claim_id="c-1")
    assert [(job["id"], job["lease_token"], job["attempt"]) for job in again] == [
        (job["id"], job["lease_token"], 1) for job in first
    ]
    other = await q.claim(max_jobs=2, claim_id="c-1", worker="w2")
    assert len(other) == 1
    assert other[0]["id"] not in {job["id"] for job in first}


async def ask_and_hang_up(cluster: Cluster, leader: NodeProcess, node: NodeProcess, queue: str) -> asyncio.StreamWriter:
    """The connection of a claim that waits, without a claim id; closing it is hanging up."""
    body = json.dumps({"worker": "gone", "queues": [queue], "wait_seconds": LONG_SECONDS}).encode()
    head = f"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", node.http_port)
    writer.write(head.encode() + body)
    await waiting_claims(cluster, leader, 1)
    return writer


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_who_hung_up_takes_no_job(
    cluster: Cluster, q: Queue, leader: NodeProcess, follower: NodeProcess, role: str
) -> None:
    node = {"leader": leader, "follower": follower}[role]
    writer = await ask_and_hang_up(cluster, leader, node, q.name)
    writer.close()
    await waiting_claims(cluster, leader, 0)
    job = await q.submit()
    claimed = await q.claim_one(wait_seconds=10)
    assert (claimed["id"], claimed["attempt"]) == (job["id"], 1)


@pytest.mark.parametrize("role", ["leader", "follower"])
async def test_who_hangs_up_while_jobs_come_takes_none(
    cluster: Cluster, q: Queue, leader: NodeProcess, follower: NodeProcess, role: str
) -> None:
    """The hang-up is on its way while the job is granted: it comes back at once, and no attempt is counted."""
    node = {"leader": leader, "follower": follower}[role]
    for turn in range(60):
        writer = await ask_and_hang_up(cluster, leader, node, q.name)
        writer.close()
        job = await q.submit()
        read = await q.read(job["id"])
        claimed = await q.claim_one(wait_seconds=10)
        assert (claimed["id"], claimed["attempt"]) == (job["id"], 1), (turn, read)
        (await q.end("complete", claimed)).expect(200)


HANG_UPS = 60
LOOP_PASSES = 2000
"""As many as the answer to a submit takes, and some more."""


class Claimer:
    """A claim over a bare connection; `hang_up` closes the caller's half, and tells exactly what had been answered."""

    def __init__(self, node: NodeProcess, claim: dict[str, Any], packed: bool) -> None:
        body, kind = (msgspec.msgpack.encode(claim), MSGPACK) if packed else (json.dumps(claim).encode(), JSON)
        self._head = (
            f"POST /v1/claims HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._body = body
        self._port = node.http_port
        self._decode = msgspec.msgpack.decode if packed else msgspec.json.decode

    async def ask(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._head.encode() + self._body)

    async def hang_up(self) -> list[Any]:
        """The jobs that were delivered before."""
        self._writer.write_eof()
        answer = await asyncio.wait_for(self._reader.read(), DEADLINE_SECONDS)
        self._writer.close()
        if not answer:
            return []
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        jobs: list[Any] = self._decode(answer.partition(b"\r\n\r\n")[2])["jobs"]
        return jobs


@pytest.mark.parametrize(
    ("role", "packed", "named"),
    [("leader", False, False), ("follower", False, False), ("follower", True, False), ("follower", True, True)],
    ids=["leader", "follower", "follower-msgpack", "follower-claim_id"],
)
async def test_a_hang_up_at_any_moment_of_a_grant_leaves_nothing_behind(
    cluster: Cluster, q: Queue, leader: NodeProcess, follower: NodeProcess, role: str, packed: bool, named: bool
) -> None:
    """The caller goes some passes of the loop after the jobs are submitted: what it did not get is there at once."""
    node = {"leader": leader, "follower": follower}[role]
    seed = 20261129
    chance = random.Random(seed)
    for turn in range(HANG_UPS):
        claim = {"worker": "gone", "queues": [q.name], "wait_seconds": LONG_SECONDS, "max_jobs": 3}
        claimer = Claimer(node, claim | ({"claim_id": f"c{turn}"} if named else {}), packed)
        await claimer.ask()
        await waiting_claims(cluster, leader, 1)
        body = {"jobs": [{"task": "noop", "queue": q.name} for _ in range(3)]}
        submitting = asyncio.create_task(q.call("POST", "/v1/jobs/batch", body))
        for _ in range(chance.randrange(LOOP_PASSES)):
            await asyncio.sleep(0)
        delivered = await claimer.hang_up()
        (await submitting).expect(200)
        for job in delivered:
            (await q.end("release", job)).expect(200)
        left = 3
        while left:
            back = await q.claim(max_jobs=left, wait_seconds=10)
            assert [job["attempt"] for job in back] == [1] * len(back) != [], (seed, turn, left)
            for job in back:
                (await q.end("complete", job)).expect(200)
            left -= len(back)


async def test_failures_are_retried_until_the_job_is_dead(any_q: Queue) -> None:
    q = any_q
    job = await q.submit(max_attempts=2, retry=NOW)
    first = await q.claim_one()
    failed = await q.fail(first)
    assert (failed["state"], failed["attempt"]) == ("ready", 1)
    assert failed["last_error"]["type"] == "ValueError"
    second = await q.claim_one()
    assert (second["attempt"], second["last_error"]["message"]) == (2, "no luck")
    assert second["lease_token"] > first["lease_token"]
    dead = await q.fail(second)
    assert (dead["state"], dead["dead_reason"]) == ("dead", "failed")
    assert [error["attempt"] for error in dead["errors"]] == [1, 2]
    assert dead["last_error"] == dead["errors"][-1]
    assert await q.fail(second) == dead
    (await q.end("complete", first)).expect(409, "lease_lost")
    (await q.end("complete", second)).expect(409, "lease_lost")
    requeued = (await q.call("POST", f"/v1/jobs/{job['id']}/requeue")).expect(200)
    assert (requeued["state"], requeued["attempt"], requeued["dead_reason"]) == ("ready", 0, None)
    third = await q.claim_one()
    assert third["attempt"] == 1
    assert third["lease_token"] > second["lease_token"]
    assert (await q.end("complete", third)).expect(200)["state"] == "succeeded"


async def test_back_off_waits_and_grows(q: Queue) -> None:
    job = await q.submit(retry={"initial_seconds": 100, "factor": 3, "jitter": 0.1, "max_seconds": 250})
    waits = []
    for _ in range(3):
        failed = await q.fail(await q.claim_one())
        assert failed["state"] == "pending"
        waits.append((moment(failed["run_at"]) - moment(failed["last_error"]["at"])).total_seconds())
        assert await q.claim(wait_seconds=0) == []
        assert (await q.call("POST", f"/v1/jobs/{job['id']}/run_now")).expect(200)["state"] == "ready"
    for wait, base in zip(waits, (100, 250, 250), strict=True):
        assert base * 0.9 <= wait <= base * 1.1, waits


async def test_fail_without_retry_and_with_its_own_delay(q: Queue) -> None:
    await q.submit()
    dead = await q.fail(await q.claim_one(), retry=False)
    assert (dead["state"], dead["dead_reason"], dead["attempt"]) == ("dead", "no_retry", 1)
    await q.submit()
    waits = await q.fail(await q.claim_one(), retry_in_seconds=300)
    assert waits["state"] == "pending"
    assert moment(waits["run_at"]) - moment(waits["last_error"]["at"]) == timedelta(seconds=300)


async def test_release_counts_no_attempt(any_q: Queue) -> None:
    q = any_q
    await q.submit(max_attempts=1)
    for n in range(3):
        claimed = await q.claim_one()
        assert (claimed["attempt"], claimed["progress"]) == (1, None if n == 0 else {"n": n - 1})
        back = (await q.end("release", claimed, progress={"n": n})).expect(200)
        assert (back["state"], back["attempt"], back["lost"], back["errors"]) == ("ready", 0, 0, [])
    back = (await q.end("release", await q.claim_one(), delay_seconds=300)).expect(200)
    assert back["state"] == "pending"
    assert await q.claim(wait_seconds=0) == []


async def test_many_endings_in_one_call(any_q: Queue) -> None:
    q = any_q
    for _ in range(4):
        await q.submit(retry=NOW)
    jobs = await q.claim(max_jobs=4)
    assert len(jobs) == 4
    held = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in jobs]
    leases = [
        held[0] | {"outcome": "complete", "result": {"ok": 1}},
        held[1] | {"outcome": "fail", "error": {"type": "E", "message": "m"}, "retry": False},
        held[2] | {"outcome": "release"},
        held[3] | {"outcome": "complete", "lease_token": held[3]["lease_token"] + 1000},
        {"job_id": "none", "lease_token": 1, "outcome": "complete"},
    ]
    results = (await q.call("POST", "/v1/leases/complete", {"worker": "w1", "leases": leases})).expect(200)["leases"]
    assert [result["job_id"] for result in results] == [lease["job_id"] for lease in leases]
    assert [result["status"] for result in results] == ["ok", "ok", "ok", "error", "error"]
    assert [result["state"] for result in results[:3]] == ["succeeded", "dead", "ready"]
    assert [result["error"]["code"] for result in results[3:]] == ["lease_lost", "not_found"]
    assert (await q.read(jobs[3]["id"]))["state"] == "running"


async def test_endings_in_one_call_say_all_that_single_ones_do(any_q: Queue) -> None:
    q = any_q
    for _ in range(2):
        await q.submit()
    held = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in await q.claim(max_jobs=2)]
    error = {"type": "E", "message": "m", "traceback": "t"}
    leases = [
        held[0] | {"outcome": "fail", "error": error, "retry": True, "retry_in_seconds": 300},
        held[1] | {"outcome": "release", "delay_seconds": 300, "progress": {"n": 1}},
    ]
    (await q.call("POST", "/v1/leases/complete", {"worker": "w1", "leases": leases})).expect(200)
    failed, released = [await q.read(lease["job_id"]) for lease in held]
    for job in (failed, released):
        assert job["state"] == "pending"
        assert moment(job["run_at"]) > datetime.now(UTC) + timedelta(minutes=4)
    assert {key: failed["last_error"][key] for key in error} == error
    assert (released["attempt"], released["progress"]) == (0, {"n": 1})


async def test_tokens_that_do_not_hold(any_q: Queue) -> None:
    q = any_q
    await q.submit(retry=NOW)
    await q.submit()
    stale, other = await q.claim(max_jobs=2)
    await q.fail(stale)
    current = await q.claim_one()
    for token in (stale["lease_token"], current["lease_token"] + 1, 2**53):
        body = {"lease_token": token}
        for how in ("complete", "release"):
            (await q.call("POST", f"/v1/jobs/{current['id']}/{how}", body)).expect(409, "lease_lost")
        (await q.call("POST", f"/v1/jobs/{current['id']}/fail", body | {"error": {}})).expect(409, "lease_lost")
        beat = {"worker": "w", "leases": [{"job_id": current["id"], "lease_token": token}]}
        (status,) = (await q.call("POST", "/v1/leases/heartbeat", beat)).expect(200)["leases"]
        assert (status["status"], status["lease_expires_at"]) == ("lost", None)
    (await q.call("POST", "/v1/jobs/none/complete", {"lease_token": 1})).expect(404, "not_found")
    assert (await q.end("complete", current)).expect(200)["state"] == "succeeded"
    assert (await q.end("complete", other)).expect(200)["state"] == "succeeded"


async def test_a_late_complete_counts_until_the_next_claim(q: Queue) -> None:
    job = await q.submit(lease_seconds=1, retry=NOW)
    claimed = await q.claim_one()
    lost = await q.wait_state(job["id"], "ready", "pending")
    assert (lost["lost"], lost["last_error"]["type"], lost["worker"]) == (1, "lease_expired", "w1")
    beat = {"worker": "w1", "leases": [{"job_id": job["id"], "lease_token": claimed["lease_token"]}]}
    (status,) = (await q.call("POST", "/v1/leases/heartbeat", beat)).expect(200)["leases"]
    assert status["status"] == "lost"
    assert (await q.end("complete", claimed, result="late")).expect(200)["state"] == "succeeded"
    assert await q.claim(wait_seconds=0) == []
    assert (await q.read(job["id"]))["result"] == "late"


async def test_a_late_complete_is_fenced_by_the_next_claim(q: Queue) -> None:
    await q.submit(lease_seconds=1, retry=NOW)
    first = await q.claim_one()
    second = await q.claim_one(worker="w2", lease_seconds=30)
    assert (second["id"], second["attempt"]) == (first["id"], 2)
    assert second["lease_token"] > first["lease_token"]
    (await q.end("complete", first)).expect(409, "lease_lost")
    assert (await q.end("complete", second)).expect(200)["worker"] == "w2"


async def test_a_heartbeat_keeps_the_lease(q: Queue) -> None:
    job = await q.submit(lease_seconds=1)
    claimed = await q.claim_one()
    waiting = asyncio.create_task(q.claim(wait_seconds=3, worker="w2"))
    beat = {"worker": "w1", "leases": [{"job_id": job["id"], "lease_token": claimed["lease_token"]}]}
    while not waiting.done():
        (status,) = (await q.call("POST", "/v1/leases/heartbeat", beat)).expect(200)["leases"]
        assert status["status"] == "ok"
        await asyncio.wait([waiting], timeout=0.2)
    assert await waiting == []
    assert (await q.end("complete", claimed)).expect(200)["lost"] == 0


async def test_lost_too_often_is_poison(q: Queue) -> None:
    job = await q.submit(lease_seconds=1, max_lost=1, retry=NOW)
    await q.claim_one()
    second = await q.claim_one()
    dead = await q.finished(job["id"])
    assert (dead["state"], dead["dead_reason"], dead["lost"]) == ("dead", "poison", 2)
    assert [error["type"] for error in dead["errors"]] == ["lease_expired"] * 2
    (await q.end("complete", second)).expect(409, "lease_lost")


async def test_an_attempt_that_runs_too_long_is_reaped(q: Queue) -> None:
    job = await q.submit(timeout_seconds=1, max_attempts=1)
    claimed = await q.claim_one()
    dead = await q.finished(job["id"])
    assert (dead["state"], dead["dead_reason"], dead["lost"]) == ("dead", "timeout", 0)
    (await q.end("complete", claimed)).expect(409, "lease_lost")
    beat = {"worker": "w1", "leases": [{"job_id": job["id"], "lease_token": claimed["lease_token"]}]}
    assert (await q.call("POST", "/v1/leases/heartbeat", beat)).expect(200)["leases"][0]["status"] == "lost"
