"""Events through the client: in order, each once, on at another node where a stream ends, and no gap untold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from horae import AsyncClient, Client, Event, FellBehind, errors
from horae.events import Block, blocks

Answers = Callable[[web.Request, web.StreamResponse], Any]


def told(number: int, **fields: Any) -> str:
    """An event's block."""
    data = {"id": f"{number}.0", "type": "submitted", "at": "2026-11-30T12:00:00.000Z", "index": number, **fields}
    return f"id: {number}.0\nevent: submitted\ndata: {msgspec.json.encode(data).decode()}\n\n"


def behind(after: int, up_to: int) -> str:
    data = {"id": f"{up_to}.0", "type": "fell_behind", "after": f"{after}.0", "oldest": f"{up_to + 1}.0"}
    return f"id: {up_to}.0\nevent: fell_behind\ndata: {msgspec.json.encode(data).decode()}\n\n"


class Teller:
    """A node whose streams are scripted: each text is one stream, the last one stays open."""

    def __init__(self) -> None:
        self.streams: list[str | web.Response] = []
        self.asked: list[dict[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        said = self.streams.pop(0) if self.streams else None
        if isinstance(said, web.Response):
            return said
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write((said or "").encode())
        if said is None or not self.streams:
            await asyncio.Event().wait()
        return answer


@asynccontextmanager
async def tellers(count: int) -> AsyncIterator[list[Teller]]:
    made = [Teller() for _ in range(count)]
    runners = []
    for teller in made:
        app = web.Application()
        app.router.add_get("/v1/events", teller.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        teller.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    try:
        yield made
    finally:
        for runner in runners:
            await runner.cleanup()


async def first(client: AsyncClient, count: int, **asked: Any) -> list[Event]:
    found: list[Event] = []
    async with asyncio.timeout(20), aclosing(client.events(**asked)) as events:
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_what_ends_goes_on_after_the_last_one_and_what_was_cut_off_comes_again() -> None:
    async with tellers(1) as (node,), AsyncClient(node.url, deadline_seconds=10) as client:
        cut = told(3)[:-20]
        node.streams = ["id: 0.0\n\n" + told(1) + told(2) + cut, told(3) + told(4), ""]
        events = await first(client, 4, queues=["mail", "shop"], types=["submitted", "dead"])
    assert [event.index for event in events] == [1, 2, 3, 4]
    assert node.asked[0] == {"queue": "mail,shop", "types": "submitted,dead"}
    assert node.asked[1]["after"] == "2.0"


async def test_how_far_a_silent_stream_has_come_is_remembered() -> None:
    async with tellers(1) as (node,), AsyncClient(node.url, deadline_seconds=10) as client:
        node.streams = ["id: 7.0\n\n", told(9), ""]
        assert [event.index for event in await first(client, 1, after=5)] == [9]
    assert [asked["after"] for asked in node.asked] == ["5", "7.0"]


async def test_a_type_and_keys_that_are_not_known_yet_are_no_error() -> None:
    async with tellers(1) as (node,), AsyncClient(node.url) as client:
        node.streams = [told(1, type="teleported", where="mars"), ""]
        (event,) = await first(client, 1)
    assert (event.type, event.job_id, event.at.year) == ("teleported", None, 2026)


async def test_another_node_is_asked_for_what_one_does_not_know_any_more() -> None:
    async with tellers(2) as (one, other), AsyncClient([one.url, other.url], deadline_seconds=10) as client:
        one.streams = [behind(1, 50), ""]
        other.streams = [told(2), ""]
        assert [event.index for event in await first(client, 1, after="1.0")] == [2]
    assert other.asked == [{"after": "1.0"}]


async def test_what_nobody_knows_any_more_is_told() -> None:
    async with tellers(1) as (node,), AsyncClient(node.url, deadline_seconds=10) as client:
        node.streams = [behind(1, 50)] * 3 + [told(51), ""]
        with pytest.raises(FellBehind, match=r"events after 1.0 are not kept any more, up to 50.0") as error:
            await first(client, 1, after="1.0")
        assert [event.index for event in await first(client, 1, after=error.value.up_to)] == [51]


async def test_a_node_without_room_is_passed_by_and_a_refusal_is_raised() -> None:
    async with tellers(2) as (full, free), AsyncClient([full.url, free.url], deadline_seconds=10) as client:
        full.streams = [web.Response(status=429, headers={"Retry-After": "60"}), ""]
        free.streams = [told(1), web.Response(status=404), ""]
        assert [event.index for event in await first(client, 1)] == [1]
        with pytest.raises(errors.RequestError):
            await first(client, 1, after="1.0")


async def test_the_blocking_client_tells_the_same() -> None:
    def read(url: str) -> list[int]:
        with Client(url, deadline_seconds=10) as client:
            events = client.events(after=0)
            found = [next(events).index for _ in range(3)]
            events.close()  # type: ignore[attr-defined]
        return found

    async with tellers(1) as (node,):
        node.streams = [told(1) + told(2), told(3), ""]
        assert await asyncio.to_thread(read, node.url) == [1, 2, 3]


async def test_blocks_are_those_with_an_id() -> None:
    async def lines() -> AsyncIterator[str]:
        for line in ("retry: 1000", "", ": comment", "id: 1.0", "", "id:2.0", "event: x", "data: {}", "", "id: 3.0"):
            yield line

    assert [block async for block in blocks(lines())] == [Block("1.0", "", ""), Block("2.0", "x", "{}")]


async def test_who_is_interrupted_anywhere_can_close() -> None:
    """Ctrl-C between a call's beginning and the wait for it left it waiting, and the close waited for it."""

    def read(url: str) -> None:
        with Client(url, deadline_seconds=10) as client:
            events = client.events(after=0)
            assert next(events).index == 1
            told = events.gi_frame.f_locals["told"]  # type: ignore[attr-defined]
            asyncio.run_coroutine_threadsafe(told.next(), client._home.loop)
            events.close()  # type: ignore[attr-defined]

    async with tellers(1) as (node,):
        node.streams = ["id: 0.0\n\n" + told(1)]
        async with asyncio.timeout(20):
            await asyncio.to_thread(read, node.url)
