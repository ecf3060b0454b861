"""What the edge turns away by itself, in which order; that it is counted by rank, and says when to come back."""

from __future__ import annotations

import asyncio
import json
import resource
from contextlib import ExitStack
from math import ceil

import pytest
from tests.helpers.fake_service import FakeService
from tests.unit.http.conftest import Node, StartNode

from horae_http import admin, jobs, members, queues, workers
from horae_http.bodies import BODIES_BYTES_MAX, NEW_BYTES_MAX, Bodies
from horae_http.errors import Failure
from horae_http.forward import PASSED_PERCENT
from horae_http.line import CONNECTIONS_MAX
from horae_http.returns import UNDER_WAY_MAX, Returns
from horae_http.server import raise_connections_max
from horae_node.errors import NotApplied, Refused
from horae_node.shedding import Crowd, Rank

ROUTES = (*jobs.ROUTES, *workers.ROUTES, *queues.ROUTES, *members.ROUTES, *admin.routes(lambda: b"", lambda: b""))
ENDINGS = {
    "heartbeatLeases",
    "endLeases",
    "completeJob",
    "failJob",
    "releaseJob",
}
OPERATORS = {"changeQueue", "addMember", "removeMember", "moveMember", "handOver", "snapshot"}


def test_endings_and_what_operators_help_with_are_shed_last() -> None:
    assert {route.operation for route in ROUTES if route.rank is Rank.ENDING} == ENDINGS | OPERATORS
    assert all(route.rank is Rank.READ for route in ROUTES if route.method == "GET")


@pytest.mark.parametrize(
    ("method", "path", "body", "rank"),
    [
        ("POST", "/v1/jobs", {"task": "t"}, Rank.NEW),
        ("POST", "/v1/claims", {"worker": "w", "queues": ["q"]}, Rank.NEW),
        ("GET", "/v1/jobs", None, Rank.READ),
        ("POST", "/v1/jobs/j/complete", {"lease_token": 1}, Rank.ENDING),
    ],
)
async def test_what_is_shed_is_counted_by_its_rank(
    node: Node, method: str, path: str, body: object, rank: Rank
) -> None:
    node.service.failures = [NotApplied("rate_limited", "too much", retry_after_ms=3000)]
    got = await node.send(method, path, body)
    assert (got.status, got.headers["Retry-After"]) == (429, "3")
    assert node.service.shed == [rank]


async def test_new_work_is_turned_away_before_its_body_is_read(node: Node) -> None:
    """To read a batch costs as much as to store it: to refuse it then would shed nothing."""
    node.service.no_room = NotApplied("rate_limited", "too much", retry_after_ms=3000)
    for path in ("/v1/jobs", "/v1/jobs/batch", "/v1/claims"):
        assert (await node.send("POST", path, b"never read")).status == 429
    assert node.service.shed == [Rank.NEW] * 3
    assert node.service.calls == []
    assert (await node.send("GET", "/v1/jobs")).status == 200
    assert (await node.send("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": []})).status == 200


async def test_a_queue_that_is_as_deep_as_it_may_be_is_no_load_that_is_shed(node: Node) -> None:
    node.service.failures = [Refused("rate_limited", "as deep as it may be", retry_after_ms=10_000)]
    got = await node.send("POST", "/v1/jobs", {"task": "t"})
    assert (got.status, got.headers["Retry-After"]) == (429, "10")
    assert node.service.shed == []


def test_bodies_of_endings_find_room_where_others_find_none() -> None:
    bodies = Bodies()
    with bodies.hold() as new, bodies.hold(last=True) as ending:
        new.take(NEW_BYTES_MAX)
        with pytest.raises(Failure, match="rate_limited"):
            new.take(1)
        ending.take(BODIES_BYTES_MAX - NEW_BYTES_MAX)
        with pytest.raises(Failure, match="rate_limited"):
            ending.take(1)
    assert bodies.held_bytes == 0


async def test_a_follower_keeps_a_way_to_the_leader_for_endings(start_node: StartNode) -> None:
    leader = await start_node(FakeService("leader"))
    follower = await start_node(FakeService("follower", leads=False, leader_url=leader.url))
    passing: Crowd = follower.app.forwarder.passing
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX * PASSED_PERCENT[Rank.NEW] // 100):
            stack.enter_context(passing.one())
        shed = await follower.send("POST", "/v1/jobs", {"task": "t"})
        assert (shed.status, shed.headers["Retry-After"]) == (429, "1")
        assert (await follower.send("GET", "/v1/jobs")).status == 200
        for _ in range(ceil(CONNECTIONS_MAX * PASSED_PERCENT[Rank.READ] / 100) - passing.waiting):
            stack.enter_context(passing.one())
        assert (await follower.send("GET", "/v1/jobs")).status == 429
        beat = {"worker": "w", "leases": []}
        assert (await follower.send("POST", "/v1/leases/heartbeat", beat)).status == 200
    assert follower.service.shed == [Rank.NEW, Rank.READ]
    assert leader.service.shed == []
    assert (await follower.send("POST", "/v1/jobs", {"task": "t"})).status == 201


async def test_grants_on_their_way_back_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    never = asyncio.Event()

    async def wait() -> None:
        await never.wait()

    async def end_leases(call: object) -> None: ...

    returns = Returns(end_leases)  # type: ignore[arg-type]
    for _ in range(UNDER_WAY_MAX + 1):
        returns.begin(wait())
    assert [record.message for record in caplog.records if "grant_not_given_back" in record.message]
    never.set()
    await returns.settle()


async def test_past_the_bound_a_connection_is_told_why_and_closed(start_node: StartNode) -> None:
    node = await start_node(connections_max=1)
    assert (await node.send("GET", "/healthz")).status == 200  # over the one connection, which is kept
    reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b" " * 100_000)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 429 ")
    assert b"\r\nRetry-After: 5\r\n" in head
    assert b"\r\nConnection: close\r\n" in head
    assert json.loads(body)["code"] == "rate_limited"
    writer.close()
    assert (await node.send("GET", "/healthz")).status == 200
    assert node.service.shed == [Rank.NEW]


def test_a_node_takes_the_files_that_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        connections = raise_connections_max()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (2 * connections, hard)
        assert 2 * connections >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
