"""The connections between nodes: what is kept, what is definite, what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from horae_http import line as module
from horae_http.line import Broken, Lines, NotSent

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nRetry-After: 1\r\nServer: x\r\n\r\nok"


class Peer:
    """Answers each request with the next of `answers`, in pieces of `piece_bytes`; None: hangs up."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.connections = 0
        self.piece_bytes = 1 << 20
        self.url = ""
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                await reader.readuntil(b"\r\n\r\n")
                self.asked.set()
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for start in range(0, len(answer), self.piece_bytes):
                    writer.write(answer[start : start + self.piece_bytes])
                    await writer.drain()
            else:
                await reader.read()
        finally:
            self.closed.set()
            writer.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield peer
    server.close()


@pytest.fixture
async def lines() -> AsyncIterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()


@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
async def test_answers_come_whole_over_one_connection(peer: Peer, lines: Lines, piece_bytes: int) -> None:
    peer.piece_bytes = piece_bytes
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    peer.answers = [OK, empty, OK]
    first = await lines.ask(peer.url, REQUEST, 10)
    assert first == (200, b"text/plain", b"Retry-After: 1\r\n", b"ok")
    assert await lines.ask(peer.url, REQUEST, 10) == (204, b"", b"", b"")
    assert await lines.ask(peer.url, REQUEST, 10) == first
    assert peer.connections == 1


async def test_a_connection_that_ends_after_its_answer_is_not_kept(peer: Peer, lines: Lines) -> None:
    peer.answers = [OK.replace(b"Server: x", b"Connection: close"), OK]
    for _ in range(2):
        assert (await lines.ask(peer.url, REQUEST, 10)).body == b"ok"
    assert peer.connections == 2


async def test_an_old_idle_connection_is_not_used(peer: Peer, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEPALIVE_S", 0.0)
    peer.answers = [OK, OK]
    for _ in range(2):
        await lines.ask(peer.url, REQUEST, 10)
    assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"SSH-2.0-server\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nok",
        b"x" * (module.HEAD_BYTES_MAX + 1),
    ],
)
async def test_what_is_no_answer_is_broken(peer: Peer, lines: Lines, answer: bytes | None) -> None:
    peer.answers = [answer, OK]
    with pytest.raises(Broken):
        await lines.ask(peer.url, REQUEST, 10)
    assert (await lines.ask(peer.url, REQUEST, 10)).status == 200
    assert peer.connections == 2


async def test_half_an_answer_is_broken(peer: Peer, lines: Lines) -> None:
    peer.answers = [OK[:-1], None]
    waiting = asyncio.create_task(lines.ask(peer.url, REQUEST, 0.05))
    with pytest.raises(Broken):
        await waiting


async def test_nobody_there_is_not_sent(lines: Lines) -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NotSent):
        await lines.ask(f"http://127.0.0.1:{port}", REQUEST, 10)


async def test_more_than_the_most_connections_is_not_sent(
    peer: Peer, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 0)
    with pytest.raises(NotSent):
        await lines.ask(peer.url, REQUEST, 10)
    assert peer.connections == 0


async def test_a_cancelled_caller_closes_the_connection(peer: Peer, lines: Lines) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"]
    waiting = asyncio.create_task(lines.ask(peer.url, REQUEST, 10))
    await peer.asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(peer.closed.wait(), 10)


async def test_another_leader_gets_other_connections(peer: Peer, lines: Lines) -> None:
    other = Peer()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    other.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    peer.answers, other.answers = [OK], [OK.replace(b"ok", b"no")]
    assert (await lines.ask(peer.url, REQUEST, 10)).body == b"ok"
    assert (await lines.ask(other.url, REQUEST, 10)).body == b"no"
    await asyncio.wait_for(peer.closed.wait(), 10)
    server.close()


async def test_what_waits_for_an_old_leader_is_broken_when_there_is_a_new_one(peer: Peer, lines: Lines) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"]
    asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10))
    await asyncio.wait_for(peer.asked.wait(), 10)
    lines.turn_to(peer.url)
    assert not asking.done()
    lines.turn_to("http://127.0.0.1:1")
    with pytest.raises(Broken):
        await asking
    await asyncio.wait_for(peer.closed.wait(), 10)
