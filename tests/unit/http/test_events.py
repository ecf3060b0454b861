"""The stream of events over a real server and a real service: its form, where it begins, who may read what, its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.helpers.one_node import OneNode
from tests.helpers.sse import Stream, open_stream
from tests.unit.http.conftest import Node, StartNode
from tests.unit.http.test_auth import RULES

from horae import wire
from horae_http.auth import Tokens
from horae_node import feed as feeds

Open = Callable[..., Awaitable[Stream]]


@pytest.fixture
async def one() -> OneNode:
    return await OneNode(events_kept=20).open()


@pytest.fixture
async def node(start_node: StartNode, one: OneNode) -> Node:
    return await start_node(one.service)


@pytest.fixture
async def listen(node: Node) -> AsyncIterator[Open]:
    """Opens streams of the node's events; all are hung up at the end."""
    streams: list[Stream] = []

    async def listen(query: str = "", **keys: Any) -> Stream:
        streams.append(await open_stream(node.running.port, query, **keys))
        return streams[-1]

    yield listen
    for stream in streams:
        stream.hang_up()


async def until(look: Callable[[], bool]) -> None:
    """What a socket's other end does, nobody is told of."""
    async with asyncio.timeout(10):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_stream_tells_what_happens_from_now_on(one: OneNode, listen: Open):
    await one.submit(id="before")
    stream = await listen()
    assert stream.status == 200
    assert b"\r\nContent-Type: text/event-stream\r\n" in stream.head
    assert b"\r\nCache-Control: no-store\r\n" in stream.head
    assert b"\r\nHorae-Node: n1\r\n" in stream.head
    assert b"Content-Length" not in stream.head
    begin = await stream.frame()
    assert begin is not None
    assert (begin.id, begin.type) == (str(one.applier.applied_index), ""), (
        "so that a cut before the first loses nothing"
    )
    await one.submit(id="j", queue="mail")
    (job,) = await one.claim("mail")
    await one.service.complete(job.id, wire.CompleteRequest(lease_token=job.lease_token))
    events = await stream.events(3)
    assert [frame.type for frame in events] == ["submitted", "running", "succeeded"]
    assert all(frame.data["id"] == frame.id and frame.data["type"] == frame.type for frame in events)
    assert all(frame.data["job_id"] == "j" and frame.data["queue"] == "mail" for frame in events)
    assert stream.last_id == f"{one.applier.applied_index}.0"


async def test_it_goes_on_after_what_was_seen(one: OneNode, listen: Open):
    for name in ("a", "b", "c"):
        await one.submit(id=name)
    first = await listen("?after=0")
    seen = await first.events(3)
    for keys in ({"query": f"?after={seen[0].id}"}, {"query": "?after=999", "Last_Event_ID": seen[0].id}):
        again = await listen(**keys)
        assert await again.events(2) == seen[1:]
    index = seen[1].id.partition(".")[0]
    assert await (await listen(f"?after={index}")).events(1) == seen[2:], "all of that entry was seen"
    ahead = await listen(f"?after={one.applier.applied_index + 1}.0")
    await one.submit(id="d")
    await one.submit(id="e")
    assert [frame.data["job_id"] for frame in await ahead.events(1)] == ["e"]


async def test_who_fell_behind_is_told(one: OneNode, listen: Open):
    for n in range(30):
        await one.submit(id=f"j{n}")
    stream = await listen("?after=0")
    behind, *events = await stream.events(21)
    assert behind.type == "fell_behind"
    assert behind.data == {"id": behind.id, "type": "fell_behind", "after": "0", "oldest": events[0].id}
    assert [frame.data["job_id"] for frame in events] == [f"j{n}" for n in range(10, 30)]
    assert await (await listen(f"?after={behind.id}")).events(20) == events, "from there on nothing is missed"
    assert b"horae_events_fell_behind_total 1.0" in one.metrics.text()


async def test_filters(one: OneNode, listen: Open):
    await one.submit(id="a", queue="mail")
    await one.submit(id="b")
    await one.submit(id="c", queue="other")
    for job_id in "abc":
        await one.service.cancel(job_id)
    stream = await listen("?after=0&queue=mail,other&types=cancelled,dead")
    assert [frame.data["job_id"] for frame in await stream.events(2)] == ["a", "c"]


@pytest.mark.parametrize(
    ("query", "pointer", "words"),
    [
        ("?after=x", "/after", "an event"),
        ("?after=1.", "/after", "an event"),
        ("?after=-1", "/after", "an event"),
        ("?after=", "/after", "an event"),
        ("?types=submitted,nonsense", "/types", "submitted, ready, freed, running"),
        ("?types=fell_behind", "/types", "members_changed"),
        ("?types=", "/types", "submitted"),
        ("?queue=a,,b", "/queue", "names of queues"),
        ("?queue=a%20b", "/queue", "names of queues"),
        ("?queues=a", "/queues", "not a known key"),
    ],
)
async def test_bad_input_is_named(listen: Open, query: str, pointer: str, words: str):
    problem = await (await listen(query)).problem()
    assert (problem["status"], problem["errors"][0]["pointer"]) == (422, pointer)
    assert words in problem["detail"]


async def test_a_bad_header_is_named(listen: Open):
    problem = await (await listen("?after=1", Last_Event_ID="no")).problem()
    assert (problem["status"], problem["errors"][0]["pointer"]) == (422, "/Last-Event-ID")


async def test_a_head_is_no_reader(one: OneNode, listen: Open):
    stream = await listen(method="HEAD")
    assert stream.status == 200
    assert await stream.ended()
    assert one.feed.subscribers == 0


async def test_in_silence_it_says_that_it_lives(one: OneNode, listen: Open):
    one.feed.silence_s = 0.01
    stream = await listen()
    begin = await stream.frame()
    assert await stream.frame() == begin
    await one.submit(id="j")
    assert (await stream.events(1))[0].data["job_id"] == "j"


async def test_a_reader_whose_machine_is_gone_does_not_stay(node: Node, listen: Open):
    await (await listen()).frame()
    (connection,) = node.running.connections.connections
    sock = connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_too_many_are_turned_away(one: OneNode, listen: Open):
    one.feed.subscribers = feeds.SUBSCRIBERS_MAX - 1
    first = await listen()
    second = await listen()
    assert (first.status, second.status) == (200, 429)
    assert b"\r\nRetry-After: 1\r\n" in second.head
    first.hang_up()
    await until(lambda: one.feed.subscribers == feeds.SUBSCRIBERS_MAX - 1)
    assert (await listen()).status == 200


async def test_a_node_that_stops_ends_it_at_once(one: OneNode, node: Node, listen: Open):
    """A minute of grace: the test would run into its own time limit if streams were waited for."""
    stream = await listen()
    stopping = asyncio.create_task(node.running.stop(60_000))
    assert await stream.ended()
    assert not stopping.done()
    stream.hang_up()
    await asyncio.wait_for(stopping, 20)
    assert one.feed.subscribers == 0


async def test_a_reader_that_does_not_read_holds_little_and_is_dropped(start_node: StartNode):
    """It is told of nothing that it could still be given: no queue grows with what happens."""
    one = await OneNode(events_kept=1_000_000).open()
    node = await start_node(one.service)
    node.app.unsent.read_wait_s = 0.2
    stream = await open_stream(node.running.port, "?after=0", slow=True)
    name = "x" * 150
    while one.feed.subscribers:
        for n in range(20):
            requests = [{"task": name, "id": f"{name}-{one.applier.applied_index}-{n}-{k}"} for k in range(100)]
            await asyncio.gather(*[one.submit(**keys) for keys in requests])
        assert node.app.unsent.held_bytes < 300_000
    assert node.app.unsent.held_bytes == 0
    stream.abort()


async def test_a_token_that_is_held_to_queues_names_them(start_node: StartNode, one: OneNode):
    node = await start_node(one.service, Tokens(RULES))
    held = {"Authorization": "Bearer mail"}
    await one.submit(id="m", queue="mail")
    for query, status in (("", 403), ("?queue=other", 403), ("?queue=mail,other", 403), ("?queue=mail&after=0", 200)):
        stream = await open_stream(node.running.port, query, **held)
        assert stream.status == status, query
    assert [frame.data["job_id"] for frame in await stream.events(1)] == ["m"]
    stream.hang_up()
    for authorization, status in ((None, 401), ("Bearer submitter", 403), ("Bearer reader", 200)):
        keys = {} if authorization is None else {"Authorization": authorization}
        stream = await open_stream(node.running.port, **keys)
        assert stream.status == status
        stream.hang_up()
