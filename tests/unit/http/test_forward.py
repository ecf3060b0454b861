"""Any node answers any request: what a node does that does not lead, and what it says when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.helpers.fake_service import FakeService, job_view
from tests.helpers.loopback import free_port, listening
from tests.unit.http.conftest import Node, StartNode

from horae_http import forward
from horae_node.errors import NotApplied, OutcomeUnknown

CLAIM = {"worker": "w", "queues": ["default"]}


@pytest.fixture
async def leader(start_node: StartNode) -> Node:
    return await start_node(FakeService("leader"))


@pytest.fixture
async def follower(start_node: StartNode, leader: Node) -> Node:
    return await start_node(FakeService("follower", leads=False, leader_url=leader.url))


class Rude:
    """A leader that reads a request and hangs up, then does so no more: it hands on to `then`, or stays rude."""

    def __init__(self) -> None:
        self.requests = 0
        self.on_request: list[object] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        for act in self.on_request:
            act()  # type: ignore[operator]
        writer.close()


@pytest.fixture
async def rude() -> AsyncIterator[Rude]:
    rude = Rude()
    async with listening(rude.serve) as rude.url:
        yield rude


async def test_a_follower_hands_on_the_whole_request(leader: Node, follower: Node) -> None:
    got = await follower.send("POST", "/v1/jobs", {"task": "t", "id": "a/b", "payload": [1]})
    assert got.status == 201
    assert got.json["payload"] == [1]
    assert got.headers["Location"] == "/v1/jobs/a%2Fb"
    assert got.headers["Horae-Node"] == "follower"
    assert got.headers["Horae-Leader"] == leader.url
    assert got.headers.getall("Horae-Node") == ["follower"]
    read = await follower.send("GET", "/v1/jobs/a%2Fb?wait_seconds=1")
    assert leader.service.last() == ("a/b", 1000, False)
    assert read.json["id"] == "a/b"
    assert not follower.service.calls


async def test_messagepack_and_problems_pass_as_they_are(leader: Node, follower: Node) -> None:
    body = msgspec.msgpack.encode({"task": "t", "payload": [1]})
    got = await follower.send("POST", "/v1/jobs", body, Content_Type="application/msgpack")
    assert got.headers["Content-Type"] == "application/msgpack"
    assert msgspec.msgpack.decode(got.body)["payload"] == [1]
    got = await follower.send("POST", "/v1/jobs", {"tusk": "t"})
    assert (got.status, got.headers["Content-Type"], got.pointers) == (422, "application/problem+json", ["/tusk"])
    leader.service.failures = [NotApplied("rate_limited", "too much", retry_after_ms=2500)]
    got = await follower.send("POST", "/v1/jobs", {"task": "t"})
    assert (got.status, got.headers["Retry-After"]) == (429, "3")
    deleted = await follower.send("DELETE", "/v1/jobs/none")
    assert deleted.json["code"] == "not_found"


async def test_an_outsiders_word_on_claims_is_not_handed_on(leader: Node, follower: Node) -> None:
    """It would have the leader end nothing, and say so with 200."""
    leader.service.stored["a"] = job_view("a")
    body = {"worker": "w", "leases": [{"job_id": "a", "lease_token": 3, "outcome": "release"}]}
    got = await follower.send("POST", "/v1/leases/complete", body, Horae_Unless_Repeated="0.1")
    assert [lease["status"] for lease in got.json["leases"]] == ["ok"]


async def test_a_local_reading_stays_here(follower: Node, leader: Node) -> None:
    follower.service.stored["j"] = job_view("j")
    assert (await follower.send("GET", "/v1/jobs/j?consistency=local")).status == 200
    assert (await follower.send("GET", "/v1/jobs?consistency=local")).status == 200
    assert (await follower.send("GET", "/v1/cluster?consistency=local")).json["node"] == "follower"
    assert (await follower.send("GET", "/v1/cluster")).json["node"] == "leader"
    assert (await follower.send("GET", "/healthz")).status == 200
    assert leader.service.names() == ["cluster"]


async def test_without_a_leader_a_node_waits_and_says_so(start_node: StartNode) -> None:
    node = await start_node(FakeService(leads=False, leader_url=None))
    got = await node.send("POST", "/v1/jobs", {"task": "t"})
    assert (got.status, got.json["code"]) == (503, "no_leader")
    assert got.headers["Retry-After"] == "1"
    assert "Horae-Leader" not in got.headers
    assert node.service.waits == [2000]


async def test_a_request_is_handed_on_once(start_node: StartNode, leader: Node) -> None:
    service = FakeService(leads=False, leader_url=leader.url)
    node = await start_node(service)
    service.waits.clear()
    got = await node.send("POST", "/v1/jobs", {"task": "t"}, Horae_Passed_On_By="other")
    assert (got.status, got.json["code"]) == (503, "no_leader")
    assert not leader.service.calls
    assert not service.waits


async def test_a_leader_that_refuses_the_connection_is_waited_past(start_node: StartNode, leader: Node) -> None:
    class Learns(FakeService):
        async def wait_for_leader(self, timeout_ms: int) -> str | None:
            if self.waits:
                self.url = leader.url
            return await super().wait_for_leader(timeout_ms)

    node = await start_node(Learns(leads=False, leader_url=f"http://127.0.0.1:{free_port()}"))
    got = await node.send("POST", "/v1/jobs", {"task": "t"})
    assert got.status == 201
    assert leader.service.names() == ["submit"]


async def test_a_node_that_comes_to_lead_meanwhile_serves(start_node: StartNode) -> None:
    class Elected(FakeService):
        async def wait_for_leader(self, timeout_ms: int) -> str | None:
            self.leads = True
            return await super().wait_for_leader(timeout_ms)

    node = await start_node(Elected(leads=False, leader_url=None))
    assert (await node.send("POST", "/v1/jobs", {"task": "t"})).status == 201


async def test_a_leader_that_is_deposed_hands_on(start_node: StartNode, leader: Node) -> None:
    class Deposed(FakeService):
        async def _enter(self, name: str, argument: object) -> None:
            self.leads, self.url = False, leader.url
            raise NotApplied("no_leader", "deposed")

    node = await start_node(Deposed())
    assert (await node.send("POST", "/v1/jobs", {"task": "t", "id": "j"})).status == 201
    assert leader.service.names() == ["submit"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {"task": "t"}),
        ("/v1/jobs/batch", {"jobs": [{"task": "t", "id": "a"}, {"task": "t"}]}),
        ("/v1/jobs/j/cancel", None),
        ("/v1/jobs/j/requeue", {}),
        ("/v1/claims", CLAIM),
    ],
)
async def test_a_write_that_broke_is_unknown(start_node: StartNode, rude: Rude, path: str, body: object) -> None:
    node = await start_node(FakeService(leads=False, leader_url=rude.url))
    got = await node.send("POST", path, body)
    assert (got.status, got.json["code"]) == (504, "outcome_unknown")
    assert rude.requests == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"task": "t", "id": "j"}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"task": "t", "id": "j"}]}),
        ("POST", "/v1/claims", CLAIM | {"claim_id": "c"}),
        ("POST", "/v1/jobs/j/complete", {"lease_token": 1}),
        ("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": [{"job_id": "j", "lease_token": 1}]}),
        ("GET", "/v1/jobs/j", None),
        ("POST", "/v1/jobs", {"tusk": "t"}),
    ],
)
async def test_what_may_be_repeated_is(
    start_node: StartNode, leader: Node, rude: Rude, method: str, path: str, body: object
) -> None:
    leader.service.stored["j"] = job_view("j")
    service = FakeService(leads=False, leader_url=rude.url)
    node = await start_node(service)
    rude.on_request = [lambda: setattr(service, "url", leader.url)]
    got = await node.send(method, path, body)
    assert got.status == (422 if body == {"tusk": "t"} else 200)
    assert rude.requests >= 1


async def test_an_unknown_outcome_of_the_leader_is_said(leader: Node, follower: Node) -> None:
    leader.service.failures = [OutcomeUnknown("lost the lead")]
    got = await follower.send("POST", "/v1/jobs", {"task": "t", "id": "j"})
    assert (got.status, got.json["code"]) == (504, "outcome_unknown")


async def test_a_caller_that_hangs_up_on_a_follower_cancels_at_the_leader(leader: Node, follower: Node) -> None:
    leader.service.gate = asyncio.Event()
    _, writer = await follower.open_claim(CLAIM)
    await leader.service.entered.wait()
    writer.close()
    await asyncio.wait_for(leader.service.cancelled.wait(), 10)


async def test_a_backups_own_question_to_the_leader_bears_the_callers_token(start_node: StartNode) -> None:
    """However its header was spelt: without it, a leader with tokens would not say how far it has come."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with listening(serve) as url:
        node = await start_node(FakeService("follower", leads=False, leader_url=url))
        reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
        writer.write(b"GET /v1/backup HTTP/1.1\r\nHost: a\r\nauthorization: Bearer mine\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert b"\r\nAuthorization: Bearer mine\r\n" in asked[0]


@pytest.mark.parametrize("then", ["nobody", "a node without a leader", "a node under load"])
async def test_a_refusal_after_a_broken_sending_leaves_the_outcome_unknown(
    start_node: StartNode, rude: Rude, then: str
) -> None:
    """The first sending took effect; the caller was told that nothing was done."""
    other = await start_node(FakeService("other", leads=then != "a node without a leader", leader_url=None))
    other.service.failures = [NotApplied("rate_limited", "too much", retry_after_ms=2500)]
    service = FakeService("follower", leads=False, leader_url=rude.url)
    node = await start_node(service)
    rude.on_request = [lambda: setattr(service, "url", None if then == "nobody" else other.url)]
    got = await node.send("POST", "/v1/jobs", {"task": "t", "id": "a"})
    assert (rude.requests, got.json["code"]) == (1, "outcome_unknown")


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/v1/claims", CLAIM | {"wait_seconds": 50}, "outcome_unknown"),
        ("POST", "/v1/claims", CLAIM | {"wait_seconds": 50, "claim_id": "c"}, "outcome_unknown"),
        ("GET", "/v1/jobs/j?wait_seconds=50", None, "no_leader"),
    ],
    ids=["claim", "claim with an id", "reading"],
)
async def test_what_waits_at_a_leader_that_nobody_knows_any_more_ends(
    leader: Node,
    follower: Node,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: object,
    code: str,
) -> None:
    """With the leader and another node frozen, it hung until the leader woke; new calls were refused in two seconds."""
    monkeypatch.setattr(forward, "LEADER_WAIT_S", 0.05)
    leader.service.gate = asyncio.Event()
    waiting = asyncio.create_task(follower.send(method, path, body))
    await leader.service.entered.wait()
    follower.service.url = None
    for _ in range(2):
        follower.service.leader_changed()
    async with asyncio.timeout(10):
        assert (await waiting).json["code"] == code


async def test_a_leader_that_is_known_again_in_time_is_waited_for(
    leader: Node, follower: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LEADER_WAIT_S", 0.05)
    leader.service.gate = asyncio.Event()
    waiting = asyncio.create_task(follower.send("POST", "/v1/claims", CLAIM))
    await leader.service.entered.wait()
    for url in (None, leader.url):
        follower.service.url = url
        follower.service.leader_changed()
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(forward.LEADER_WAIT_S, over.set)  # after the grace's timer, if that still ran
    await over.wait()
    assert not waiting.done()
    leader.service.gate.set()
    assert (await waiting).status == 200
