"""The calls of workers: claims that are delivered or given back, heartbeats, endings one by one and in bulk."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
from tests.helpers.fake_service import FakeDelivery, claimed_job, job_view
from tests.unit.http.conftest import Node

from horae import wire
from horae_http.answer import Answer
from horae_node.service import Refused

PACKED = "application/msgpack"
CLAIM = {"worker": "w", "queues": ["default"]}


async def test_a_claim_answers_what_was_granted_in_either_encoding(node: Node) -> None:
    got = await node.send("POST", "/v1/claims", CLAIM | {"wait_seconds": 2.5, "claim_id": "c"})
    assert got.json["jobs"][0]["payload"] == {"n": 1}
    assert got.json["jobs"][0]["progress"] is None
    assert node.service.last().wait_seconds == 2.5
    packed = await node.send("POST", "/v1/claims", msgspec.msgpack.encode(CLAIM), Content_Type=PACKED)
    assert msgspec.msgpack.decode(packed.body)["jobs"] == got.json["jobs"]
    assert not node.service.claimed.given_back.is_set()


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"worker": "w", "queues": []}, "/queues"),
        ({"worker": "w"}, "/queues"),
        ({"worker": "w", "queues": "default"}, "/queues"),
        ({"worker": "w", "queues": ["a/b"]}, "/queues/0"),
        ({"worker": "w", "queues": ["a", ""]}, "/queues/1"),
        ({"queues": ["a"]}, "/worker"),
        ({"worker": "", "queues": ["a"]}, "/worker"),
        ({"worker": "w\u0000", "queues": ["a"]}, "/worker"),
        (CLAIM | {"max_jobs": 0}, "/max_jobs"),
        (CLAIM | {"max_jobs": 1001}, "/max_jobs"),
        (CLAIM | {"max_jobs": True}, "/max_jobs"),
        (CLAIM | {"max_jobs": 10**30}, "/max_jobs"),
        (CLAIM | {"wait_seconds": 61}, "/wait_seconds"),
        (CLAIM | {"wait_seconds": -1}, "/wait_seconds"),
        (CLAIM | {"lease_seconds": 0}, "/lease_seconds"),
        (CLAIM | {"claim_id": ""}, "/claim_id"),
        (CLAIM | {"wait": 1}, "/wait"),
    ],
)
async def test_a_wrong_claim_is_named(node: Node, body: object, pointer: str) -> None:
    got = await node.send("POST", "/v1/claims", body)
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", [pointer])
    assert not node.service.calls


async def test_a_claimer_that_hangs_up_cancels_its_claim(node: Node) -> None:
    node.service.gate = asyncio.Event()
    reader, writer = await node.open_claim(CLAIM)
    await node.service.entered.wait()
    writer.close()
    await asyncio.wait_for(node.service.cancelled.wait(), 10)
    assert await reader.read() == b""


async def require_given_back(request: object) -> None:
    """A grant that is to answer this request cannot be written, and goes back."""
    answer = Answer(200, b"application/json", b"{}")
    delivery = answer.delivery = FakeDelivery(wire.ClaimAnswer([claimed_job()]))
    await answer.prepare(request)  # type: ignore[arg-type]
    with pytest.raises(ConnectionResetError):
        await answer.write_eof()
    assert delivery.given_back.is_set()


class _Gone:
    """A request whose caller hung up after its claim was granted."""

    keep_alive = True
    transport = None


async def test_a_grant_that_cannot_be_written_is_given_back() -> None:
    await require_given_back(_Gone())


async def test_a_grant_is_given_back_when_the_hang_up_is_known_to_the_system_only(node: Node) -> None:
    """The caller's hang-up has come, and the loop has not read it: what is written now would be lost without a word."""
    ours, theirs = socket.socketpair()
    theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours)

    class Going:
        keep_alive = True
        version = (1, 1)
        method = "POST"
        transport = writer.transport

    assert not writer.transport.is_closing()
    await require_given_back(Going())
    writer.close()
    assert await reader.read() == b""


async def test_only_another_node_learns_the_leaders_name_for_a_claim(node: Node) -> None:
    named = CLAIM | {"claim_id": "c"}
    assert "Horae-Claim" not in (await node.send("POST", "/v1/claims", named)).headers
    passed = await node.send("POST", "/v1/claims", named, Horae_Passed_On_By="n2")
    assert passed.headers["Horae-Claim"] == node.service.claimed.mark
    assert "Horae-Claim" not in (await node.send("POST", "/v1/claims", CLAIM, Horae_Passed_On_By="n2")).headers


async def test_leases_of_a_claim_that_was_repeated_are_not_ended_for_the_caller_that_left(node: Node) -> None:
    node.service.stored["a"] = job_view("a")
    body = {"worker": "w", "leases": [{"job_id": "a", "lease_token": 3, "outcome": "release"}]}
    path = "/v1/leases/complete"
    passed = {"Horae_Passed_On_By": "n2"}
    stale = await node.send("POST", path, body, Horae_Unless_Repeated="0.1", **passed)
    assert (stale.status, stale.json) == (200, {"leases": []})
    assert not node.service.calls
    for headers in (
        {"Horae_Unless_Repeated": node.service.claimed.mark, **passed},
        {"Horae_Unless_Repeated": "0.1"},  # an outsider's: it is not for him to say
    ):
        got = await node.send("POST", path, body, **headers)
        assert got.json["leases"][0]["status"] == "ok"


async def test_a_heartbeat_hands_on_progress_and_answers_each_lease(node: Node) -> None:
    leases = [{"job_id": "a", "lease_token": 3, "progress": {"done": 1}}, {"job_id": "b", "lease_token": 4}]
    got = await node.send("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": leases})
    assert [lease["status"] for lease in got.json["leases"]] == ["lost", "lost"]
    first, second = node.service.last().leases
    assert bytes(first.progress) == b'{"done":1}'
    assert second.progress is msgspec.UNSET


@pytest.mark.parametrize("token", [-1, 0, "7", 1.5, True, None, 2**63, 10**40, [], {}])
async def test_a_token_is_a_positive_integer(node: Node, token: object) -> None:
    for path, body, pointer in [
        ("/v1/jobs/j/complete", {"lease_token": token}, "/lease_token"),
        ("/v1/jobs/j/fail", {"lease_token": token, "error": {}}, "/lease_token"),
        ("/v1/jobs/j/release", {"lease_token": token}, "/lease_token"),
        (
            "/v1/leases/heartbeat",
            {"worker": "w", "leases": [{"job_id": "j", "lease_token": token}]},
            "/leases/0/lease_token",
        ),
    ]:
        got = await node.send("POST", path, body)
        assert (got.status, got.pointers) == (422, [pointer]), path
    assert not node.service.calls


async def test_a_stale_token_is_lease_lost(node: Node) -> None:
    node.service.failures = [Refused("lease_lost", "another attempt holds it")]
    got = await node.send("POST", "/v1/jobs/j/complete", {"lease_token": 3, "result": 1})
    assert (got.status, got.json["code"]) == (409, "lease_lost")
    assert got.headers["Content-Type"] == "application/problem+json"


async def test_the_three_endings_reach_the_service(node: Node) -> None:
    node.service.stored["j"] = job_view("j")
    await node.send("POST", "/v1/jobs/j/complete", {"lease_token": 3, "result": {"a": [1]}})
    assert bytes(node.service.last()[1].result) == b'{"a":[1]}'
    await node.send("POST", "/v1/jobs/j/fail", {"lease_token": 3, "error": {"type": "E", "message": "m\nn"}})
    assert node.service.last()[1].error.message == "m\nn"
    await node.send("POST", "/v1/jobs/j/release", {"lease_token": 3, "delay_seconds": 1, "progress": [1, 2]})
    assert bytes(node.service.last()[1].progress) == b"[1,2]"
    assert node.service.names() == ["complete", "fail", "release"]


async def test_bulk_endings_answer_each_and_a_bad_result_spares_the_others(node: Node) -> None:
    node.service.stored["a"] = job_view("a")
    leases = [
        {"job_id": "a", "lease_token": 1, "outcome": "complete", "result": 5},
        {"job_id": "b", "lease_token": 2, "outcome": "complete", "result": "x" * wire.RESULT_BYTES_MAX},
        {"job_id": "c", "lease_token": 3, "outcome": "fail", "error": {"message": "m"}, "retry": False},
    ]
    got = await node.send("POST", "/v1/leases/complete", {"worker": "w", "leases": leases})
    done, big, lost = got.json["leases"]
    assert (done["job_id"], done["status"], done["state"]) == ("a", "ok", node.service.stored["a"].state)
    assert (big["job_id"], big["status"], big["error"]["code"]) == ("b", "error", "too_large")
    assert (lost["job_id"], lost["status"], lost["error"]["code"]) == ("c", "error", "lease_lost")
    assert [item.job_id for item in node.service.last().leases] == ["a", "c"]


async def test_bulk_endings_that_are_all_bad_ask_the_service_nothing(node: Node) -> None:
    body = msgspec.msgpack.encode(
        {"worker": "w", "leases": [{"job_id": "a", "lease_token": 1, "outcome": "complete", "result": b"\xff"}]}
    )
    got = await node.send("POST", "/v1/leases/complete", body, Content_Type=PACKED)
    assert msgspec.msgpack.decode(got.body)["leases"][0]["error"]["errors"][0]["pointer"] == "/result"
    assert not node.service.calls


@pytest.mark.parametrize(
    ("ending", "field"),
    [
        ({"outcome": "fail"}, "error"),
        ({"outcome": "complete", "retry": False}, "retry"),
        ({"outcome": "complete", "error": {}}, "error"),
        ({"outcome": "fail", "error": {}, "result": 1}, "result"),
        ({"outcome": "release", "result": 1}, "result"),
        ({"outcome": "success"}, "outcome"),
    ],
)
async def test_an_ending_holds_only_what_its_outcome_means(node: Node, ending: dict[str, object], field: str) -> None:
    body = {"worker": "w", "leases": [{"job_id": "j", "lease_token": 1} | ending]}
    got = await node.send("POST", "/v1/leases/complete", body)
    assert (got.status, got.pointers) == (422, [f"/leases/0/{field}"])
