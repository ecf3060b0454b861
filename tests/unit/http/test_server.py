"""The socket's life: ports, keep-alive, pipelining, and an end that loses no answer."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import uvloop
from tests.helpers.fake_service import FakeService, job_view
from tests.unit.http.conftest import Node, StartNode

from horae_http.app import build_app
from horae_http.server import start_server
from horae_node.errors import ConfigError, Fatal, NotApplied
from horae_storage.errors import Corrupt, StorageFailed


def test_it_runs_on_uvloop_too() -> None:
    async def session() -> None:
        service = FakeService()
        leader = await start_server(build_app(service, metrics_text=lambda: b""), "127.0.0.1", 0)
        follower = FakeService("n2", leads=False, leader_url=f"http://127.0.0.1:{leader.port}")
        running = await start_server(build_app(follower, metrics_text=lambda: b""), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(b"GET /v1/cluster HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await _read_answer(reader))[0].startswith(b"HTTP/1.1 200 OK")
        service.gate = asyncio.Event()
        body = b'{"worker":"w","queues":["default"]}'
        writer.write(b"POST /v1/claims HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await service.entered.wait()
        writer.close()
        await asyncio.wait_for(service.cancelled.wait(), 10)
        await running.stop(1000)
        await leader.stop(1000)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(session())


async def test_a_port_in_use_is_one_line(node: Node) -> None:
    app = build_app(FakeService(), metrics_text=lambda: b"")
    with pytest.raises(ConfigError, match=rf"port {node.running.port} on 127\.0\.0\.1 is in use") as caught:
        await start_server(app, "127.0.0.1", node.running.port)
    assert "\n" not in str(caught.value)


async def test_an_address_that_is_not_here_is_one_line() -> None:
    app = build_app(FakeService(), metrics_text=lambda: b"")
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        await start_server(app, "192.0.2.1", 0)


async def test_the_open_request_ends_and_the_next_is_told(start_node: StartNode) -> None:
    node = await start_node()
    service = node.service
    service.stored["j"] = job_view("j")
    service.gate = asyncio.Event()
    waiting = asyncio.create_task(node.send("GET", "/v1/jobs/j"))
    await service.entered.wait()
    reader, writer = await _connect(node)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    await _read_answer(reader)
    stopping = asyncio.create_task(node.running.stop(60_000))
    await asyncio.sleep(0)  # lets it begin
    assert node.app.stopping
    writer.write(b"GET /v1/jobs/j HTTP/1.1\r\nHost: a\r\n\r\n")
    head, body = await _read_answer(reader)
    assert b"HTTP/1.1 503 " in head
    assert b"Connection: close" in head
    assert b'"code":"shutting_down"' in body
    with pytest.raises(OSError, match=r"."):
        await _connect(node)
    service.gate.set()
    assert (await waiting).status == 200
    await stopping


@pytest.mark.parametrize("through", ["leader", "follower"])
async def test_who_only_waits_is_told_at_once_when_the_node_stops(start_node: StartNode, through: str) -> None:
    """A minute of grace: the test would run into its own time limit if the waits were not cut short."""
    leader = await start_node()
    leader.service.gate = asyncio.Event()
    node = leader
    if through == "follower":
        node = await start_node(FakeService("n2", leads=False, leader_url=leader.url))
    claim = asyncio.create_task(node.send("POST", "/v1/claims", b'{"worker":"w","queues":["q"],"wait_seconds":60}'))
    await leader.service.entered.wait()
    await asyncio.wait_for(node.running.stop(60_000), 20)
    answer = await claim
    assert (answer.status, answer.json["code"]) == (503, "shutting_down")
    await asyncio.wait_for(leader.service.cancelled.wait(), 10)


async def test_who_closes_its_half_has_hung_up(node: Node) -> None:
    """It cannot be told from a worker that was killed, whose jobs must go back."""
    node.service.gate = asyncio.Event()
    reader, writer = await node.open_claim({"worker": "w", "queues": ["default"]})
    await node.service.entered.wait()
    writer.write_eof()
    await asyncio.wait_for(node.service.cancelled.wait(), 10)
    assert await reader.read() == b""
    writer.close()


async def test_a_stopping_node_still_answers_over_kept_connections(start_node: StartNode) -> None:
    """Closed under a request that is on its way, they would leave its sender in doubt."""
    node = await start_node()
    reader, writer = await _connect(node)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    await _read_answer(reader)
    stopping = asyncio.create_task(node.running.stop(1000))
    for _ in range(10):
        await asyncio.sleep(0)  # lets it come as far as it can
    writer.write(b"GET /v1/jobs/j HTTP/1.1\r\nHost: a\r\n\r\n")
    head, body = await _read_answer(reader)
    assert b"Connection: close" in head
    assert b'"code":"shutting_down"' in body
    writer.close()
    await stopping


async def test_a_request_past_the_grace_is_cancelled(start_node: StartNode) -> None:
    node = await start_node()
    node.service.gate = asyncio.Event()
    waiting = asyncio.create_task(node.send("GET", "/v1/jobs/j"))
    await node.service.entered.wait()
    await node.running.stop(1)
    assert node.service.cancelled.is_set()
    with contextlib.suppress(Exception):
        await waiting


async def test_a_stopping_node_lives_but_is_not_ready(node: Node) -> None:
    node.app.stopping = True
    assert (await node.send("GET", "/healthz")).status == 200
    got = await node.send("GET", "/readyz")
    assert (got.status, got.json["status"]) == (503, "unready")


async def test_readiness_says_why_not(node: Node) -> None:
    assert (await node.send("GET", "/readyz")).json == {"status": "ok", "why": ""}
    node.service.ready_answer = (False, "no leader is known")
    got = await node.send("GET", "/readyz")
    assert (got.status, got.json["why"]) == (503, "no leader is known")


async def test_pipelined_requests_are_answered_in_order(node: Node) -> None:
    reader, writer = await _connect(node)
    for name in ("a", "b", "c"):
        node.service.stored[name] = job_view(name)
        writer.write(b"GET /v1/jobs/%s HTTP/1.1\r\nHost: a\r\n\r\n" % name.encode())
    for name in ("a", "b", "c"):
        assert b'"id":"%s"' % name.encode() in (await _read_answer(reader))[1]
    writer.close()


@pytest.mark.parametrize(
    ("version", "asked", "told", "closes"),
    [
        ("1.1", "", b"", False),
        ("1.1", "Connection: close\r\n", b"Connection: close", True),
        ("1.0", "", b"Connection: close", True),
        ("1.0", "Connection: keep-alive\r\n", b"Connection: keep-alive", False),
    ],
)
async def test_a_connection_lives_as_its_caller_asks(
    node: Node, version: str, asked: str, told: bytes, closes: bool
) -> None:
    reader, writer = await _connect(node)
    request = f"GET /healthz HTTP/{version}\r\nHost: a\r\n{asked}\r\n".encode()
    writer.write(request)
    head, _ = await _read_answer(reader)
    assert told in head
    if closes:
        assert await reader.read() == b""
    else:
        writer.write(request)
        assert (await _read_answer(reader))[0].startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_head_is_get_without_the_body(node: Node) -> None:
    reader, writer = await _connect(node)
    writer.write(b"HEAD /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 24" in answer
    writer.close()


async def test_a_whole_url_as_target_is_understood(node: Node) -> None:
    reader, writer = await _connect(node)
    writer.write(b"GET http://a/v1/jobs?limit=3 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await _read_answer(reader))[0].startswith(b"HTTP/1.1 200 OK")
    assert node.service.last().limit == 3
    writer.close()


async def test_a_large_answer_comes_whole(node: Node) -> None:
    for number in range(2000):
        node.service.stored[str(number)] = job_view(str(number), task="t" * 200)
    got = await node.send("GET", "/v1/jobs?limit=1000")
    assert [job["id"] for job in got.json["jobs"]] == [str(number) for number in range(1000)]


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (NotApplied("storage_full", "no room"), 507, "storage_full", None),
        (NotApplied("rate_limited", "slow down", retry_after_ms=10), 429, "rate_limited", "1"),
        (NotApplied("rate_limited", "slow down", retry_after_ms=4001), 429, "rate_limited", "5"),
        (NotApplied("shutting_down", "going"), 503, "shutting_down", "1"),
    ],
)
async def test_what_was_not_applied_says_when_to_try_again(
    node: Node, error: Exception, status: int, code: str, retry_after: str | None
) -> None:
    node.service.failures = [error]
    got = await node.send("POST", "/v1/jobs", {"task": "t"})
    assert (got.status, got.json["code"], got.headers.get("Retry-After")) == (status, code, retry_after)


async def test_an_error_nobody_foresaw_is_500_and_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.service.failures = [KeyError("secret")]
    got = await node.send("POST", "/v1/jobs", {"task": "t"})
    assert (got.status, got.json["code"]) == (500, "internal")
    assert "secret" not in got.json["detail"]
    assert [record.message for record in caplog.records] == ["request_failed"]


@pytest.mark.parametrize("error", [Fatal("broken"), Corrupt("a page"), StorageFailed("the disk")])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs", {"task": "t"}),
        ("GET", "/v1/jobs", None),
        ("GET", "/v1/jobs/j?consistency=local", None),
        ("POST", "/v1/claims", {"worker": "w", "queues": ["default"]}),
    ],
)
async def test_a_broken_invariant_or_disk_ends_the_node(
    start_node: StartNode, error: Exception, method: str, path: str, body: Any
) -> None:
    told: list[Any] = []
    node = await start_node(on_fatal=told.append)
    node.service.failures = [error]
    assert (await node.send(method, path, body)).status == 500
    assert told == [error]


async def _connect(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", node.running.port)


async def _read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)
