"""Tokens: who is let in, by role and by queue."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.helpers.fake_service import job_view
from tests.unit.http.conftest import Node, StartNode

from horae_http.auth import Tokens
from horae_node.config import TokenRule


def _rule(token: str, roles: tuple[str, ...], queues: tuple[str, ...] | None = None) -> TokenRule:
    return TokenRule(sha256(token.encode()).hexdigest(), roles, queues)


RULES = (
    _rule("reader", ("read",)),
    _rule("submitter", ("submit",)),
    _rule("worker", ("work",)),
    _rule("boss", ("admin",)),
    _rule("mail", ("read", "submit", "work"), ("mail",)),
    _rule("schlüssel", ("read",)),
)

CALLS = [
    ("POST", "/v1/jobs", {"task": "t", "queue": "mail"}, "submitter"),
    ("POST", "/v1/jobs/batch", {"jobs": [{"task": "t", "queue": "mail"}]}, "submitter"),
    ("GET", "/v1/jobs?queue=mail", None, "reader"),
    ("GET", "/v1/jobs/m", None, "reader"),
    ("POST", "/v1/jobs/m/cancel", None, "submitter"),
    ("POST", "/v1/jobs/m/requeue", None, "submitter"),
    ("POST", "/v1/jobs/cancel", {"filter": {"queue": "mail"}}, "submitter"),
    ("POST", "/v1/jobs/requeue", {"filter": {"queue": "mail"}}, "submitter"),
    ("GET", "/v1/queues", None, "reader"),
    ("POST", "/v1/jobs/m/run_now", None, "submitter"),
    ("POST", "/v1/claims", {"worker": "w", "queues": ["mail"]}, "worker"),
    ("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": [{"job_id": "m", "lease_token": 1}]}, "worker"),
    (
        "POST",
        "/v1/leases/complete",
        {"worker": "w", "leases": [{"job_id": "m", "lease_token": 1, "outcome": "complete"}]},
        "worker",
    ),
    ("POST", "/v1/jobs/m/complete", {"lease_token": 1}, "worker"),
    ("POST", "/v1/jobs/m/fail", {"lease_token": 1, "error": {}}, "worker"),
    ("POST", "/v1/jobs/m/release", {"lease_token": 1}, "worker"),
    ("DELETE", "/v1/jobs/m", None, "submitter"),
    ("GET", "/v1/cluster", None, "reader"),
    ("GET", "/metrics", None, "reader"),
]


@pytest.fixture
async def guarded(start_node: StartNode) -> Node:
    node = await start_node(tokens=Tokens(RULES))
    node.service.stored["m"] = job_view("m", queue="mail")
    node.service.stored["d"] = job_view("d")
    return node


@pytest.mark.parametrize(("method", "path", "body", "allowed"), CALLS)
async def test_each_call_wants_its_role(guarded: Node, method: str, path: str, body: object, allowed: str) -> None:
    got = await guarded.send(method, path, body)
    assert (got.status, got.json["code"]) == (401, "unauthenticated")
    assert got.headers["WWW-Authenticate"].startswith("Bearer")
    for token in {"reader", "submitter", "worker"} - {allowed}:
        got = await guarded.send(method, path, body, Authorization=f"Bearer {token}")
        assert (got.status, got.json["code"]) == (403, "forbidden")
    assert not guarded.service.calls
    assert (await guarded.send(method, path, body, Authorization=f"Bearer {allowed}")).status < 300
    guarded.service.stored["m"] = job_view("m", queue="mail")
    assert (await guarded.send(method, path, body, Authorization="bearer boss")).status < 300
    if path != "/metrics" and path != "/v1/cluster":
        guarded.service.stored["m"] = job_view("m", queue="mail")
        assert (await guarded.send(method, path, body, Authorization="Bearer mail")).status < 300


@pytest.mark.parametrize(
    "header", ["Bearer nobody", "Bearer ", "Bearer", "reader", "Basic reader", "Bearer READER", "Bearer reader x"]
)
async def test_an_unknown_token_is_401(guarded: Node, header: str) -> None:
    assert (await guarded.send("GET", "/v1/jobs/m", Authorization=header)).status == 401


async def test_a_token_of_any_letters_is_known_by_its_utf8(guarded: Node) -> None:
    assert (await guarded.send("GET", "/v1/jobs/m", Authorization="Bearer schlüssel")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "pointers"),
    [
        ("POST", "/v1/jobs", {"task": "t"}, ["/queue"]),
        ("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"}], "atomic": True}, ["/jobs/0/queue"]),
        ("POST", "/v1/jobs", {"task": "t", "queue": "mail", "then": {"task": "t"}}, ["/then/queue"]),
        ("POST", "/v1/jobs", {"task": "t", "queue": "mail", "after": ["d"]}, ["/after/0"]),
        ("GET", "/v1/jobs", None, ["/queue"]),
        ("GET", "/v1/jobs?queue=default", None, ["/queue"]),
        ("GET", "/v1/jobs/d", None, []),
        ("POST", "/v1/jobs/d/cancel", None, []),
        ("DELETE", "/v1/jobs/d", None, []),
        ("POST", "/v1/jobs/cancel", {"filter": {}}, ["/filter/queue"]),
        ("POST", "/v1/jobs/requeue", {"filter": {"queue": "default"}}, ["/filter/queue"]),
        ("POST", "/v1/claims", {"worker": "w", "queues": ["mail", "default"]}, ["/queues/1"]),
        ("POST", "/v1/jobs/d/complete", {"lease_token": 1}, []),
        ("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": [{"job_id": "d", "lease_token": 1}]}, []),
        (
            "POST",
            "/v1/leases/complete",
            {"worker": "w", "leases": [{"job_id": "d", "lease_token": 1, "outcome": "complete"}]},
            [],
        ),
        ("GET", "/metrics", None, []),
    ],
)
async def test_a_held_token_stays_in_its_queues(
    guarded: Node, method: str, path: str, body: object, pointers: list[str]
) -> None:
    got = await guarded.send(method, path, body, Authorization="Bearer mail")
    if path == "/metrics":
        assert got.status == 403
        return
    assert (got.status, got.json["code"]) == (403, "forbidden")
    assert [pointer for pointer in got.pointers if pointer] == pointers
    assert set(guarded.service.names()) <= {"job", "queues_of"}


async def test_health_and_the_contract_are_for_everybody(guarded: Node) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert (await guarded.send("GET", path)).status == 200


async def test_without_tokens_nothing_is_asked(node: Node) -> None:
    assert (await node.send("POST", "/v1/jobs", {"task": "t"}, Authorization="Bearer nobody")).status == 201
    got = await node.send("GET", "/metrics")
    assert got.body == b"horae_up 1\n"
    assert got.headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_a_job_of_a_batch_for_another_queue_is_refused_by_itself(guarded: Node) -> None:
    body = {"jobs": [{"task": "t", "queue": "mail"}, {"task": "t"}, {"task": "t", "queue": "mail", "after": ["d"]}]}
    results = (await guarded.send("POST", "/v1/jobs/batch", body, Authorization="Bearer mail")).json["results"]
    assert [result.get("error", {}).get("code") for result in results] == [None, "forbidden", "forbidden"]
