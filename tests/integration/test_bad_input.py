"""What a caller may get wrong, and the status, code and pointer it is told: at the leader and through a follower."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest
from tests.helpers.api import JSON, MSGPACK
from tests.helpers.cluster import Cluster
from tests.helpers.story import (
    DEADLINE_SECONDS,
    Queue,
    require_problem,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


JOBS, CLAIMS = "/v1/jobs", "/v1/claims"


def bad(name: str, path: str, body: Any, status: int, code: str, pointer: str | None = None) -> Any:
    """One row: a body that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return pytest.param(path, data, status, code, pointer, id=name)


def job(**keys: Any) -> dict[str, Any]:
    return {"task": "t", "queue": "bad"} | keys


def claim(**keys: Any) -> dict[str, Any]:
    return {"worker": "w", "queues": ["bad"]} | keys


BAD_BODIES = [
    bad("malformed", JOBS, b'{"task": "t"', 400, "malformed"),
    bad("empty", JOBS, b"", 400, "malformed"),
    bad("trailing", JOBS, b'{"task":"t"} x', 400, "malformed"),
    bad("not-utf8", JOBS, b'{"task":"\xff"}', 400, "malformed"),
    bad("nan", JOBS, b'{"task":"t","delay_seconds":NaN}', 400, "malformed"),
    bad("lone-surrogate", JOBS, b'{"task":"\\ud800"}', 400, "malformed"),
    bad("lone-surrogate-payload", JOBS, b'{"task":"t","payload":{"a":["\\udc00"]}}', 400, "malformed"),
    bad("list", JOBS, [], 422, "invalid"),
    bad("no-task", JOBS, {"queue": "bad"}, 422, "invalid", "/task"),
    bad("task-number", JOBS, job(task=5), 422, "invalid", "/task"),
    bad("task-empty", JOBS, job(task=""), 422, "invalid", "/task"),
    bad("task-nul", JOBS, job(task="a\0b"), 422, "invalid", "/task"),
    bad("task-long", JOBS, job(task="x" * 201), 422, "invalid", "/task"),
    bad("unknown-key", JOBS, job(prioritty=1), 422, "invalid", "/prioritty"),
    bad("unknown-key-deep", JOBS, job(retry={"initial": 1}), 422, "invalid", "/retry/initial"),
    bad("queue-slash", JOBS, job(queue="a/b"), 422, "invalid", "/queue"),
    bad("queue-nul", JOBS, job(queue="a\0"), 422, "invalid", "/queue"),
    bad("queue-newline", JOBS, job(queue="a\n"), 422, "invalid", "/queue"),
    bad("queue-long", JOBS, job(queue="q" * 101), 422, "invalid", "/queue"),
    bad("queue-empty", JOBS, job(queue=""), 422, "invalid", "/queue"),
    bad("id-empty", JOBS, job(id=""), 422, "invalid", "/id"),
    bad("id-long", JOBS, job(id="i" * 201), 422, "invalid", "/id"),
    bad("id-nul", JOBS, job(id="a\0"), 422, "invalid", "/id"),
    bad("id-dots", JOBS, job(id=".."), 422, "invalid", "/id"),
    bad("run-at-no-offset", JOBS, job(run_at="2030-01-01T00:00:00"), 422, "invalid", "/run_at"),
    bad("run-at-number", JOBS, job(run_at=1893456000), 422, "invalid", "/run_at"),
    bad("run-at-nonsense", JOBS, job(run_at="tomorrow"), 422, "invalid", "/run_at"),
    bad("run-at-before-1970", JOBS, job(run_at="1969-12-31T23:59:59Z"), 422, "invalid", "/run_at"),
    bad(
        "run-at-and-delay", JOBS, job(run_at="2030-01-01T00:00:00Z", delay_seconds=1), 422, "invalid", "/delay_seconds"
    ),
    bad("delay-negative", JOBS, job(delay_seconds=-1), 422, "invalid", "/delay_seconds"),
    bad("delay-huge", JOBS, job(delay_seconds=1e300), 422, "invalid", "/delay_seconds"),
    bad("delay-text", JOBS, job(delay_seconds="5"), 422, "invalid", "/delay_seconds"),
    bad("priority-high", JOBS, job(priority=101), 422, "invalid", "/priority"),
    bad("priority-fraction", JOBS, job(priority=1.5), 422, "invalid", "/priority"),
    bad("priority-huge", JOBS, b'{"task":"t","priority":1' + b"0" * 400 + b"}", 422, "invalid", "/priority"),
    bad("attempts-none", JOBS, job(max_attempts=0), 422, "invalid", "/max_attempts"),
    bad("attempts-bool", JOBS, job(max_attempts=True), 422, "invalid", "/max_attempts"),
    bad("lease-short", JOBS, job(lease_seconds=0.5), 422, "invalid", "/lease_seconds"),
    bad("lease-long", JOBS, job(lease_seconds=3601), 422, "invalid", "/lease_seconds"),
    bad("ttl-none", JOBS, job(ttl_seconds=0), 422, "invalid"),
    bad("expired-already", JOBS, job(expires_at="2001-01-01T00:00:00Z"), 422, "invalid"),
    bad("ttl-and-expiry", JOBS, job(ttl_seconds=1, expires_at="2030-01-01T00:00:00Z"), 422, "invalid", "/ttl_seconds"),
    bad("tags-many", JOBS, job(tags={str(n): "" for n in range(17)}), 422, "invalid", "/tags"),
    bad("tags-number", JOBS, job(tags={"a": 1}), 422, "invalid", "/tags"),
    bad("payload-large", JOBS, job(payload="x" * (256 * 1024)), 413, "too_large", "/payload"),
    bad("payload-deep", JOBS, b'{"task":"t","payload":' + b"[" * 101 + b"]" * 101 + b"}", 422, "invalid", "/payload"),
    bad(
        "payload-very-deep", JOBS, b'{"task":"t","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed"
    ),
    bad("payload-big-int", JOBS, b'{"task":"t","payload":1' + b"0" * 30 + b"}", 422, "invalid", "/payload"),
    bad("batch-empty", JOBS + "/batch", {"jobs": []}, 422, "invalid", "/jobs"),
    bad("batch-large", JOBS + "/batch", {"jobs": [job()] * 1001}, 422, "invalid", "/jobs"),
    bad("batch-atomic-bad", JOBS + "/batch", {"jobs": [job(), job(priority=999)], "atomic": True}, 422, "invalid"),
    bad("claim-no-queue", CLAIMS, claim(queues=[]), 422, "invalid", "/queues"),
    bad("claim-queues-missing", CLAIMS, {"worker": "w"}, 422, "invalid", "/queues"),
    bad("claim-queue-slash", CLAIMS, claim(queues=["ok", "a/b"]), 422, "invalid", "/queues/1"),
    bad("claim-no-worker", CLAIMS, {"queues": ["bad"]}, 422, "invalid", "/worker"),
    bad("claim-none", CLAIMS, claim(max_jobs=0), 422, "invalid", "/max_jobs"),
    bad("claim-many", CLAIMS, claim(max_jobs=1001), 422, "invalid", "/max_jobs"),
    bad("claim-waits-long", CLAIMS, claim(wait_seconds=61), 422, "invalid", "/wait_seconds"),
    bad("token-negative", JOBS + "/x/complete", {"lease_token": -1}, 422, "invalid", "/lease_token"),
    bad("token-zero", JOBS + "/x/complete", {"lease_token": 0}, 422, "invalid", "/lease_token"),
    bad("token-text", JOBS + "/x/complete", {"lease_token": "7"}, 422, "invalid", "/lease_token"),
    bad("token-missing", JOBS + "/x/complete", {}, 422, "invalid", "/lease_token"),
    bad("token-huge", JOBS + "/x/complete", {"lease_token": 2**64}, 422, "invalid", "/lease_token"),
    bad("result-large", JOBS + "/x/complete", {"lease_token": 1, "result": "x" * 262_144}, 413, "too_large", "/result"),
    bad("fail-no-error", JOBS + "/x/fail", {"lease_token": 1}, 422, "invalid", "/error"),
    bad("ending-unknown", "/v1/leases/complete", {"worker": "w", "leases": [{"job_id": "x"}]}, 422, "invalid"),
    bad("cancel-with-key", JOBS + "/x/cancel", {"why": 1}, 422, "invalid", "/why"),
]


@pytest.mark.parametrize(("path", "data", "status", "code", "pointer"), BAD_BODIES)
async def test_bad_bodies(
    cluster: Cluster, path: str, data: bytes, status: int, code: str, pointer: str | None
) -> None:
    for node in (await cluster.leader(), await cluster.follower()):
        answer = await cluster.api.send("POST", node.url + path, data, {"Content-Type": JSON})
        require_problem(answer, status, code)
        if pointer is not None:
            assert [error["pointer"] for error in answer.body["errors"]] == [pointer]
            assert answer.body["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/jobs?limit=0", 422, "invalid"),
        ("GET", "/v1/jobs?limit=1001", 422, "invalid"),
        ("GET", "/v1/jobs?limit=many", 422, "invalid"),
        ("GET", "/v1/jobs?state=asleep", 422, "invalid"),
        ("GET", "/v1/jobs?queue=a%2Fb", 422, "invalid"),
        ("GET", "/v1/jobs?stat=ready", 422, "invalid"),
        ("GET", "/v1/jobs?cursor=nonsense", 422, "invalid"),
        ("GET", "/v1/jobs?cursor=%00", 422, "invalid"),
        ("GET", "/v1/jobs?consistency=perhaps", 422, "invalid"),
        ("GET", "/v1/jobs/x?wait_seconds=-1", 422, "invalid"),
        ("GET", "/v1/jobs/x?wait_seconds=61", 422, "invalid"),
        ("GET", "/v1/jobs/none", 404, "not_found"),
        ("GET", "/v1/jobs/%00", 404, "not_found"),
        ("GET", "/v1/jobs/%ff", 400, "malformed"),
        ("GET", "/v1/jobs/" + "i" * 201, 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/jobs/none/cancel", 404, "not_found"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("DELETE", "/v1/claims", 405, "method_not_allowed"),
    ],
)
async def test_bad_addresses(cluster: Cluster, method: str, path: str, status: int, code: str) -> None:
    for node in (await cluster.leader(), await cluster.follower()):
        require_problem(await cluster.api.send(method, node.url + path), status, code)


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"\xc1", 400, "malformed"),
        (msgspec.msgpack.encode(job(priority=101)), 422, "invalid"),
        (msgspec.msgpack.encode(job(payload=b"binary")), 422, "invalid"),
        (msgspec.msgpack.encode(job(payload={"a": float("nan")})), 422, "invalid"),
        (msgspec.msgpack.encode(job(payload="x" * (256 * 1024))), 413, "too_large"),
        (msgspec.msgpack.encode(job(payload=msgspec.msgpack.Ext(1, b"x"))), 422, "invalid"),
    ],
)
async def test_bad_messagepack(cluster: Cluster, data: bytes, status: int, code: str) -> None:
    url = (await cluster.leader()).url + "/v1/jobs"
    require_problem(await cluster.api.send("POST", url, data, {"Content-Type": MSGPACK}), status, code)


async def test_other_kinds_of_body(cluster: Cluster) -> None:
    url = (await cluster.leader()).url + "/v1/jobs"
    answer = await cluster.api.send("POST", url, b"task: t", {"Content-Type": "application/yaml"})
    require_problem(answer, 415, "unsupported_media_type")


async def test_a_body_over_the_limit(cluster: Cluster) -> None:
    """Said to be too large in its head: refused without being read."""
    node = await cluster.leader()
    reader, writer = await asyncio.open_connection("127.0.0.1", node.http_port)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {1 << 40}\r\n\r\n"
    writer.write(head.encode())
    status_line = await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS)
    assert b" 413 " in status_line
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_the_largest_payload_comes_back_whole(any_q: Queue) -> None:
    payload = "ä" * ((256 * 1024 - 2) // 2)
    made = await any_q.submit(payload=payload)
    claimed = await any_q.claim_one()
    assert claimed["payload"] == payload
    (await any_q.end("complete", claimed, result=payload)).expect(200)
    assert (await any_q.read(made["id"]))["result"] == payload
