"""Jobs granted to a caller that hung up on a node which does not lead: they go back, unless they may be somebody's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.helpers.fake_service import FakeService, claimed_job, job_view
from tests.helpers.loopback import listening
from tests.unit.http.conftest import Node, StartNode

from horae import wire
from horae_http import returns, server
from horae_http.answer import JSON, MSGPACK, PROBLEM, Answer
from horae_http.auth import EVERYBODY
from horae_http.errors import Failure, problem
from horae_http.line import Broken, Reply
from horae_http.returns import Claim, Returns
from horae_http.routing import Call
from horae_http.workers import UNLESS_REPEATED
from horae_node.errors import NotApplied, OutcomeUnknown

CLAIM = {"worker": "w", "queues": ["default"]}
GRANTED = wire.ClaimAnswer([claimed_job(id="a", lease_token=7), claimed_job(id="b", lease_token=8)])
DONE = wire.EndingsAnswer([wire.EndingResult("a", "ok"), wire.EndingResult("b", "ok")])


class Ends:
    """Takes the calls that end leases; each gets the next of `answers`, an exception is raised, and then `DONE`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: list[wire.EndingsAnswer | Answer | BaseException] = []

    async def end_leases(self, call: Call) -> Answer:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else DONE
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, Answer) else Answer(200, JSON, msgspec.json.encode(answer))

    @property
    def body(self) -> Any:
        (call,) = self.calls
        return msgspec.json.decode(call.raw)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    monkeypatch.setattr(returns, "PAUSE_S", 0.0)
    return Ends()


def call_of(claim: dict[str, object], *, packed: bool = False, **headers: str) -> Call:
    raw = (msgspec.msgpack if packed else msgspec.json).encode(claim)
    return Call("", wire.NoQuery(), raw, EVERYBODY, (packed, packed), headers, stopping=False)


def reply_of(granted: wire.ClaimAnswer, mark: bytes = b"") -> Reply:
    return Reply(200, JSON, b"", msgspec.json.encode(granted), mark)


def refused(code: str) -> wire.EndingResult:
    return wire.EndingResult("a", "error", error=problem(code, "as it is"))


async def give_back(ends: Ends, call: Call, reply: Reply) -> None:
    """As where the caller is gone when its answer is to be written."""
    all_returns = Returns(ends.end_leases)
    delivery = Claim(all_returns, call).delivery(reply)
    assert delivery is not None
    delivery.undeliverable()
    await all_returns.settle()


@pytest.mark.parametrize("packed", [False, True])
async def test_every_granted_job_is_released_by_its_token(ends: Ends, packed: bool) -> None:
    text = msgspec.json.encode(GRANTED)
    body = msgspec.msgpack.encode(msgspec.json.decode(text)) if packed else text
    call = call_of(CLAIM, packed=packed, Authorization="Bearer t")
    await give_back(ends, call, Reply(200, MSGPACK if packed else JSON, b"", body))
    assert ends.body == {
        "worker": "w",
        "leases": [
            {"job_id": "a", "lease_token": 7, "outcome": "release"},
            {"job_id": "b", "lease_token": 8, "outcome": "release"},
        ],
    }
    assert ends.calls[0].headers == {"Content-Type": "application/json", "Authorization": "Bearer t"}


@pytest.mark.parametrize(
    "first",
    [
        Failure("no_leader", "none"),
        NotApplied("no_leader", "deposed"),
        OutcomeUnknown("broke"),
        Answer(503, PROBLEM, b"{}"),
        wire.EndingsAnswer(
            [wire.EndingResult("a", "error", error=wire.Problem("t", "t", 504, "outcome_unknown", "d"))]
        ),
    ],
    ids=["no_leader", "not_applied", "unknown", "status", "item"],
)
async def test_it_is_tried_again_until_each_lease_is_surely_over(
    ends: Ends, first: wire.EndingsAnswer | Answer | BaseException
) -> None:
    ends.answers = [first]
    await give_back(ends, call_of(CLAIM), reply_of(GRANTED))
    assert len(ends.calls) == 2
    assert ends.calls[0].raw == ends.calls[1].raw


@pytest.mark.parametrize("first", [NotApplied("rate_limited", "stuck"), Answer(429, PROBLEM, b"{}")])
async def test_a_leader_that_stores_nothing_is_given_time(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, first: Answer | BaseException
) -> None:
    """Four tries in two seconds met the same refusal, and the jobs waited for their leases."""
    monkeypatch.setattr(returns, "SHED_PAUSE_S", 0.05)
    ends.answers = [first, first]
    began_s = asyncio.get_running_loop().time()
    await give_back(ends, call_of(CLAIM), reply_of(GRANTED))
    assert len(ends.calls) == 3
    assert asyncio.get_running_loop().time() - began_s >= 0.1


async def test_a_lease_that_another_holds_by_now_is_over(ends: Ends) -> None:
    ends.answers = [wire.EndingsAnswer([refused("lease_lost"), refused("not_found")])]
    await give_back(ends, call_of(CLAIM), reply_of(GRANTED))
    assert len(ends.calls) == 1


async def test_it_is_given_up_in_the_end(ends: Ends) -> None:
    ends.answers = [OutcomeUnknown("broke")] * 100
    await give_back(ends, call_of(CLAIM), reply_of(GRANTED))
    assert len(ends.calls) == returns.TRIES_MAX


async def test_nothing_granted_is_nothing_to_give_back(ends: Ends) -> None:
    await give_back(ends, call_of(CLAIM), reply_of(wire.ClaimAnswer([])))
    assert Claim(Returns(ends.end_leases), call_of(CLAIM)).delivery(Reply(504, PROBLEM, b"", b"{}")) is None
    assert not ends.calls


async def test_under_a_claim_id_the_leader_must_know_that_it_was_not_repeated(ends: Ends) -> None:
    call = call_of(CLAIM | {"claim_id": "c"})
    await give_back(ends, call, reply_of(GRANTED))
    assert not ends.calls, "the caller may have asked again, and a leader that gives no mark cannot tell"
    await give_back(ends, call, reply_of(GRANTED, b"3.14"))
    assert ends.calls[0].headers[UNLESS_REPEATED] == "3.14"


async def test_a_late_answer_is_given_back_and_one_that_never_comes_is_not(ends: Ends) -> None:
    all_returns = Returns(ends.end_leases)
    came, broke = (asyncio.get_running_loop().create_future() for _ in range(2))
    for late in (came, broke):
        Claim(all_returns, call_of(CLAIM)).on_left(late)
    broke.set_exception(Broken("closed"))
    came.set_result(reply_of(GRANTED))
    await all_returns.settle()
    assert len(ends.calls) == 1


async def test_a_stop_ends_what_is_on_its_way_back(ends: Ends) -> None:
    all_returns = Returns(ends.end_leases)
    late: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    Claim(all_returns, call_of(CLAIM)).on_left(late)
    await asyncio.sleep(0)
    all_returns.close()
    await all_returns.settle()
    assert late.cancelled()
    all_returns.close()


# ---------------------------------------------------------------- with sockets


class Crossing:
    """A leader whose answer to a claim crosses the hang-up; whatever comes on further connections is kept."""

    def __init__(self) -> None:
        self.url = ""
        self.claimed = asyncio.Event()
        self.released: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.mark = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST /v1/claims"):
            self.claimed.set()
            await reader.read()
            answer: object = GRANTED
        else:
            self.released.set_result(head + await reader.readexactly(_length_of(head)))
            answer = DONE
        body = msgspec.json.encode(answer)
        writer.write(f"HTTP/1.1 200 OK\r\n{self.mark}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()


def _length_of(head: bytes) -> int:
    return int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])


@pytest.fixture
async def crossing() -> AsyncIterator[Crossing]:
    leader = Crossing()
    async with listening(leader.serve) as leader.url:
        yield leader


async def claim_and_hang_up(node: Node, leader: Crossing, claim: dict[str, object]) -> None:
    _, writer = await node.open_claim(claim)
    await asyncio.wait_for(leader.claimed.wait(), 10)
    writer.close()


async def test_a_grant_that_crosses_a_hang_up_at_a_follower_goes_back(
    start_node: StartNode, crossing: Crossing
) -> None:
    node = await start_node(FakeService("f", leads=False, leader_url=crossing.url))
    await claim_and_hang_up(node, crossing, CLAIM)
    head, _, body = (await asyncio.wait_for(crossing.released, 10)).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/leases/complete HTTP/1.1\r\n")
    assert b"Horae-Passed-On-By: f" in head
    assert UNLESS_REPEATED.encode() not in head
    assert [item["lease_token"] for item in msgspec.json.decode(body)["leases"]] == [7, 8]


async def test_the_leaders_name_for_a_claim_goes_back_with_it(start_node: StartNode, crossing: Crossing) -> None:
    crossing.mark = "Horae-Claim: 3.14\r\n"
    node = await start_node(FakeService("f", leads=False, leader_url=crossing.url))
    await claim_and_hang_up(node, crossing, CLAIM | {"claim_id": "c"})
    assert b"\r\nHorae-Unless-Repeated: 3.14\r\n" in await asyncio.wait_for(crossing.released, 10)


async def test_a_node_that_leads_by_then_takes_them_back_itself(start_node: StartNode, crossing: Crossing) -> None:
    service = FakeService("f", leads=False, leader_url=crossing.url)
    service.stored = {"a": job_view("a"), "b": job_view("b")}
    node = await start_node(service)
    _, writer = await node.open_claim(CLAIM)
    await asyncio.wait_for(crossing.claimed.wait(), 10)
    service.leads = True
    writer.close()
    await asyncio.wait_for(service.entered.wait(), 10)
    assert [item.job_id for item in service.last().leases] == ["a", "b"]


async def test_an_orderly_stop_gives_back_first(
    start_node: StartNode, crossing: Crossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node itself leaves the leader's answer to a claim, and takes the time to give the jobs back."""
    monkeypatch.setattr(server, "LINGER_S", 0.0)
    node = await start_node(FakeService("f", leads=False, leader_url=crossing.url))
    asking = asyncio.create_task(node.send("POST", "/v1/claims", CLAIM))
    await asyncio.wait_for(crossing.claimed.wait(), 10)
    await node.running.stop(10_000)
    assert (await asking).status == 503
    assert crossing.released.done()


async def test_a_delivered_answer_is_nobodys_to_give_back(start_node: StartNode) -> None:
    leader = await start_node(FakeService("leader"))
    node = await start_node(FakeService("f", leads=False, leader_url=leader.url))
    got = await node.send("POST", "/v1/claims", CLAIM | {"claim_id": "c"})
    assert got.json["jobs"]
    assert "Horae-Claim" not in got.headers
    await node.app.settle()
    assert leader.service.names() == ["claim"]
    assert not leader.service.claimed.given_back.is_set()
