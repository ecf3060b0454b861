"""Calls that only wait: they hold no bodies, and wait no longer for having been asked of more than one leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.helpers.fake_service import FakeService, job_view
from tests.helpers.loopback import listening
from tests.unit.http.conftest import Node, StartNode

from horae import wire
from horae_http import codec, forward
from horae_http.auth import EVERYBODY
from horae_http.routing import Call
from horae_node.errors import NotApplied

CLAIM: dict[str, Any] = {"worker": "w", "queues": ["default"], "wait_seconds": 50}
PADDED = msgspec.json.encode(CLAIM) + b" " * 500_000


class Leader:
    """Keeps what it is asked, and answers as told to, once it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        """Heads and bodies."""
        self.asked_once = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.answer: bytes | None = None
        """None: it hangs up."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        self.asked.append((head, await reader.readexactly(int(length.split(b":")[1]))))
        self.asked_once.set()
        await self.may_answer.wait()
        if self.answer is not None:
            writer.write(self.answer)
        writer.close()


@pytest.fixture
async def last_leader() -> AsyncIterator[Leader]:
    leader = Leader()
    async with listening(leader.serve) as leader.url:
        yield leader
        leader.may_answer.set()


def no_leader() -> bytes:
    body = msgspec.json.encode({"code": "no_leader"})
    return b"HTTP/1.1 503 Down\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def send_in_pieces(node: Node, head: str, body: bytes, kind: str = "application/json") -> asyncio.StreamWriter:
    """The head first, so that the body is gathered."""
    _, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
    writer.write(f"{head} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
    while not node.app.open_requests:  # noqa: ASYNC110 (the server tells of no head)
        await asyncio.sleep(0)
    writer.write(body)
    return writer


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("POST /v1/claims", PADDED),
        ("GET /v1/jobs/j?wait_seconds=50", b"{}" + b" " * 500_000),
    ],
)
async def test_who_only_waits_holds_no_body(node: Node, head: str, body: bytes) -> None:
    """Forty-eight claims with a megabyte of blanks each shut the node for new work until they ended."""
    node.service.stored["j"] = job_view("j")
    node.service.gate = asyncio.Event()
    writer = await send_in_pieces(node, head, body)
    await node.service.entered.wait()
    assert node.app.bodies.held_bytes == 0
    node.service.gate.set()
    writer.close()


@pytest.mark.parametrize("kind", ["application/json", "application/msgpack"])
async def test_at_another_node_it_holds_none_and_the_leader_gets_what_it_means(
    start_node: StartNode, last_leader: Leader, kind: str
) -> None:
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    packed = kind.endswith("msgpack")
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    many = CLAIM | {"queues": ["default", "x" * 100], "max_jobs": 1, "lease_seconds": None, "claim_id": "c"}
    body = msgspec.msgpack.encode(many) if packed else msgspec.json.encode(many) + b" " * 500_000
    writer = await send_in_pieces(node, "POST /v1/claims", body, kind)
    await last_leader.asked_once.wait()
    assert node.app.bodies.held_bytes == 0
    passed = last_leader.asked[0][1]
    assert decode(passed) == CLAIM | {"queues": ["default", "x" * 100], "claim_id": "c"}
    writer.close()


async def test_a_body_that_a_newer_leader_may_know_is_passed_on_as_it_is(
    start_node: StartNode, last_leader: Leader
) -> None:
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    body = msgspec.json.encode(CLAIM | {"newer": 1}) + b"  "
    writer = await send_in_pieces(node, "POST /v1/claims", body)
    await last_leader.asked_once.wait()
    assert last_leader.asked[0][1] == body
    writer.close()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("claim", [CLAIM, CLAIM | {"max_jobs": 3, "lease_seconds": 7.5, "claim_id": "ü"}])
def test_what_is_said_shortly_reads_as_the_same(claim: dict[str, Any], packed: bool) -> None:
    reader = codec.BodyReader(wire.ClaimRequest)
    body = reader.read(msgspec.json.encode(claim), False)
    assert reader.read(codec.compact(body, packed), packed) == body


# ---------------------------------------------------------------- how long


def waiting_call(query: wire.Request, body: wire.Request) -> Call:
    call = Call("", query, b"{}", EVERYBODY, (False, False), {}, stopping=False, asked_s=100.0)
    call.body = body
    call.settle()
    return call


def test_of_a_wait_only_what_is_left_is_asked_for_again() -> None:
    claim = waiting_call(wire.NoQuery(), msgspec.convert(CLAIM, wire.ClaimRequest))
    for now_s, left_s in ((102.5, 47.5), (149.9996, 0.0), (200.0, 0.0)):
        claim.spend(now_s)
        assert msgspec.json.decode(claim.content()).get("wait_seconds", 0) == left_s
    reading = waiting_call(wire.JobQuery(wait_seconds=50), wire.Empty())
    reading.spend(110.0)
    assert (reading.query.wait_seconds, reading.content()) == (40, b"{}")


@pytest.mark.parametrize(("how", "claim_id"), [("hands over", None), ("hands over", "c"), ("breaks", "c")])
async def test_a_claim_that_loses_its_leader_waits_on_at_the_next(
    start_node: StartNode, last_leader: Leader, how: str, claim_id: str | None
) -> None:
    """It waited once more as long. (Of one without a claim id whose leader breaks off the outcome is not known.)"""
    new = await start_node(FakeService("leader"))
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    last_leader.answer = None if how == "breaks" else no_leader()
    claim = asyncio.create_task(node.send("POST", "/v1/claims", CLAIM | {"claim_id": claim_id}))
    await last_leader.asked_once.wait()
    node.service.url = new.url
    last_leader.may_answer.set()
    assert (await claim).status == 200
    assert msgspec.json.decode(last_leader.asked[0][1])["wait_seconds"] == 50
    assert 0 < new.service.last().wait_seconds <= 50 - forward.PAUSE_S


async def test_a_reading_that_loses_its_leader_waits_on_at_the_next(start_node: StartNode, last_leader: Leader) -> None:
    new = await start_node(FakeService("leader"))
    new.service.stored["ü/1"] = job_view("ü/1")
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    reading = asyncio.create_task(node.send("GET", "/v1/jobs/%C3%BC%2F1?wait%5Fseconds=50&consistency=linearizable"))
    await last_leader.asked_once.wait()
    node.service.url = new.url
    last_leader.may_answer.set()
    assert (await reading).status == 200
    job_id, wait_ms, _ = new.service.last()
    assert job_id == "ü/1"
    assert 0 < wait_ms <= 50_000 - 1000 * forward.PAUSE_S


async def test_the_wait_for_a_leader_begins_when_the_last_one_is_lost(
    start_node: StartNode, last_leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orderly hand-over was answered `no_leader` at once to whoever had waited for longer than that before."""
    monkeypatch.setattr(forward, "LEADER_WAIT_S", 0.05)
    new = await start_node(FakeService("leader"))
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    last_leader.answer = no_leader()
    claim = asyncio.create_task(node.send("POST", "/v1/claims", CLAIM))
    await last_leader.asked_once.wait()
    node.service.url = new.url
    asyncio.get_running_loop().call_later(4 * forward.LEADER_WAIT_S, last_leader.may_answer.set)
    assert (await claim).status == 200


async def test_who_waits_at_a_leader_that_hands_over_is_passed_on(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horae_http.app.LEADER_WAIT_S", 0, raising=False)  # longer than the wait for a leader
    new = await start_node(FakeService("leader"))
    service = FakeService("old", leader_url=new.url)
    node = await start_node(service)
    service.gate = asyncio.Event()
    service.failures = [NotApplied("no_leader", "deposed")]
    claim = asyncio.create_task(send_in_pieces(node, "POST /v1/claims", PADDED))
    await service.entered.wait()
    service.leads = False
    service.gate.set()
    await new.service.entered.wait()
    (await claim).close()
    assert new.service.last().queues == ["default"]


async def test_a_node_that_refuses_each_is_not_asked_for_ever(
    start_node: StartNode, last_leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LEADER_WAIT_S", 0.2)
    node = await start_node(FakeService("follower", leads=False, leader_url=last_leader.url))
    last_leader.answer = no_leader()
    last_leader.may_answer.set()
    assert (await node.send("POST", "/v1/claims", CLAIM)).json["code"] == "no_leader"
