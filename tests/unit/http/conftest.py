"""A real server on loopback over a fake service, and a client to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from tests.helpers.fake_service import FakeService
from yarl import URL

from horae_http.app import App, build_app
from horae_http.auth import Tokens
from horae_http.server import Running, start_server


class Got(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def pointers(self) -> list[str]:
        """Where the problem says the errors are."""
        return [error["pointer"] for error in self.json.get("errors", [])]


class Node:
    """One server with its fake service."""

    def __init__(self, service: FakeService, app: App, running: Running, session: aiohttp.ClientSession) -> None:
        self.service = service
        self.app = app
        self.running = running
        self.url = f"http://127.0.0.1:{running.port}"
        self._session = session

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> Got:
        """Send `body` (bytes as they are, else as JSON). Header names have `_` for `-`."""
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            named.setdefault("Content-Type", "application/json")
        async with self._session.request(
            method, URL(self.url + path, encoded=True), data=data, headers=named, allow_redirects=False
        ) as response:
            return Got(response.status, response.headers, await response.read())

    async def open_claim(self, claim: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection of a claim that was sent over it; closing it is hanging up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        body = msgspec.json.encode(claim)
        writer.write(b"POST /v1/claims HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return reader, writer


StartNode = Callable[..., Awaitable[Node]]


@pytest.fixture
async def start_node() -> AsyncIterator[StartNode]:
    """Starts servers; all of them are stopped at the end."""
    nodes: list[Node] = []
    # An idle connection that the server closed must not be taken for a fresh one.
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=200), auto_decompress=False)

    async def start(
        service: FakeService | None = None,
        tokens: Tokens | None = None,
        connections_max: int = 1000,
        **options: Any,
    ) -> Node:
        service = service or FakeService()
        app = build_app(service, metrics_text=lambda: b"horae_up 1\n", tokens=tokens, **options)
        running = await start_server(app, "127.0.0.1", 0, connections_max=connections_max)
        node = Node(service, app, running, session)
        nodes.append(node)
        return node

    yield start
    await session.close()
    for node in nodes:
        await node.running.stop(0)


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    """A leading node without tokens."""
    return await start_node()
