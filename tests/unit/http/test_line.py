"""The connections between nodes: what is kept, what is definite, what is not, and what comes when nobody waits."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.helpers.loopback import free_port, listening

from horae_http import line as module
from horae_http.line import Broken, Late, Lines, NotSent

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
    async with listening(peer.serve) as peer.url:
        yield peer


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
    assert first == (200, b"text/plain", b"Retry-After: 1\r\n", b"ok", b"")
    assert await lines.ask(peer.url, REQUEST, 10) == (204, b"", b"", b"", b"")
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
    with pytest.raises(NotSent):
        await lines.ask(f"http://127.0.0.1:{free_port()}", REQUEST, 10)


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
    peer.answers, other.answers = [OK], [OK.replace(b"ok", b"no")]
    async with listening(other.serve) as other.url:
        assert (await lines.ask(peer.url, REQUEST, 10)).body == b"ok"
        assert (await lines.ask(other.url, REQUEST, 10)).body == b"no"
        await asyncio.wait_for(peer.closed.wait(), 10)


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


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server's side of TLS that clients of this process trust, by the name of localhost."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *curve, *name, *files], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


class Parting:
    """A leader that answers a request only when its caller has left, or not at all; the other half stays open."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self.url = ""

    async def start(self, context: ssl.SSLContext | None = None) -> asyncio.Server:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=context)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"
        return server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.writer = writer
        self.asked.set()
        await reader.read()
        writer.write(self.answer)
        writer.close()
        self.closed.set()


async def left_behind(lines: Lines, peer: Parting) -> Late:
    """The answer to a request whose caller was cancelled."""
    left: list[Late] = []
    asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10, left.append))
    await asyncio.wait_for(peer.asked.wait(), 10)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    (late,) = left
    return late


async def test_an_answer_that_crosses_the_hang_up_is_read(lines: Lines) -> None:
    peer = Parting(OK)
    async with await peer.start():
        late = await left_behind(lines, peer)
        assert not late.done()
        assert (await asyncio.wait_for(late, 10)).body == b"ok"


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("answer", [b"", OK[:-1]], ids=["none", "part"])
async def test_who_learns_of_the_hang_up_ends_the_wait_for_a_late_answer(
    lines: Lines, certified: ssl.SSLContext, answer: bytes, secure: bool
) -> None:
    peer = Parting(answer)
    async with await peer.start(certified if secure else None):
        late = await left_behind(lines, peer)
        with pytest.raises(Broken):
            await asyncio.wait_for(late, 10)


async def test_a_late_answer_that_nobody_waits_for_any_more_ends_its_connection(peer: Peer, lines: Lines) -> None:
    peer.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", None]
    left: list[Late] = []
    asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10, left.append))
    await asyncio.wait_for(peer.asked.wait(), 10)
    asking.cancel()
    await asyncio.wait([asking])
    left[0].cancel()
    await asyncio.wait_for(peer.closed.wait(), 10)


@pytest.mark.parametrize("order", ["answer, cancel", "cancel, answer", "cancel, answer, lost"])
async def test_an_answer_that_came_in_the_pass_of_the_hang_up_is_not_lost(lines: Lines, order: str) -> None:
    """The caller is cancelled, and its answer is there before its turn comes."""
    peer = Parting(b"")
    async with await peer.start():
        left: list[Late] = []
        asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10, left.append))
        await asyncio.wait_for(peer.asked.wait(), 10)
        (line,) = lines._busy
        acts = {
            "answer": lambda: line.data_received(OK),
            "cancel": asking.cancel,
            "lost": lambda: line.connection_lost(None),
        }
        for act in order.split(", "):
            acts[act]()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert left[0].result().body == b"ok"
        assert line.usable == ("lost" not in order), "a connection whose answer came whole is kept"


async def test_what_an_old_leader_still_answers_is_read(lines: Lines) -> None:
    peer = Parting(OK)
    async with await peer.start():
        left: list[Late] = []
        asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10, left.append))
        await asyncio.wait_for(peer.asked.wait(), 10)
        lines.turn_to("http://127.0.0.1:1")
        with pytest.raises(Broken):
            await asking
        assert (await asyncio.wait_for(left[0], 10)).body == b"ok"


async def test_late_answers_take_places_of_their_own(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    peer = Parting(OK)
    async with await peer.start():
        late = await left_behind(lines, peer)
        with pytest.raises(NotSent):
            await lines.ask(peer.url, REQUEST, 10)
        await asyncio.wait_for(late, 10)
        peer.asked.clear()
        assert await left_behind(lines, peer)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_what_was_written_before_the_hang_up_was_told_is_read(
    lines: Lines, certified: ssl.SSLContext, secure: bool
) -> None:
    peer = Parting(b"")
    done_when_left: list[bool] = []
    left: list[Late] = []

    def on_left(late: Late) -> None:
        done_when_left.append(late.done())
        left.append(late)

    async with await peer.start(certified if secure else None):
        asking = asyncio.create_task(lines.ask(peer.url, REQUEST, 10, on_left))
        await asyncio.wait_for(peer.asked.wait(), 10)
        peer.writer.write(OK)  # on its way, and not read yet
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert done_when_left == [False]
        assert (await asyncio.wait_for(left[0], 10)).body == b"ok"
        await asyncio.wait_for(peer.closed.wait(), 10)
