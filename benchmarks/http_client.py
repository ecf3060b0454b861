"""The load client's two kinds of connection: HTTP/1.1 with keep-alive, one request at a time.

`RawConnection` is as cheap as Python allows, a bare asyncio protocol: it leaves the most of a shared machine to the
servers, so that the yardstick is at its fastest and the quotients at their most severe. `AiohttpConnection` costs what
a usual client costs. Either loads nodes and yardstick alike. Not here: what is sent and counted (`load.py`, next to
read).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, Protocol, Self, cast

import aiohttp

HOST: Final = "127.0.0.1"
_HEAD_END: Final = b"\r\n\r\n"
_JSON: Final = {"Content-Type": "application/json"}

Answer = tuple[int, bytes]
"""Status and body."""


class Connection(Protocol):
    """What a load needs. A call fails with `OSError` or `UnexpectedAnswer` when no answer can come."""

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect to a port of the loopback. Raises: `OSError`."""
        ...

    def post(self, path: str, body: bytes) -> Awaitable[Answer]:
        """POST a JSON body."""
        ...

    async def close(self) -> None: ...


class UnexpectedAnswer(Exception):
    """An answer that this client does not read; the connection is closed."""


class RawConnection(asyncio.Protocol):
    """A bare protocol. It reads a status line, `Content-Length` and a body, and refuses anything else."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._parts = bytearray()
        self._need_bytes = 0

    @classmethod
    async def open(cls, port: int) -> Self:
        return (await asyncio.get_running_loop().create_connection(cls, HOST, port))[1]

    def post(self, path: str, body: bytes) -> asyncio.Future[Answer]:
        return self._send("POST", path, body)

    def put(self, path: str, body: bytes) -> asyncio.Future[Answer]:
        return self._send("PUT", path, body)

    def get(self, path: str) -> asyncio.Future[Answer]:
        return self._call(f"GET {path} HTTP/1.1\r\nHost: {HOST}".encode() + _HEAD_END)

    async def close(self) -> None:
        self._close()

    def _send(self, method: str, path: str, body: bytes) -> asyncio.Future[Answer]:
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        return self._call(f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\n{length}".encode() + _HEAD_END + body)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _call(self, request: bytes) -> asyncio.Future[Answer]:
        assert self._answer is None, "one request at a time"
        answer = self._answer = self._loop.create_future()
        if self._transport is None:
            self._fail(ConnectionResetError("the connection is closed"))
        else:
            self._transport.write(request)
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(exc or ConnectionResetError("closed by the server"))

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts += data
            if len(self._parts) < self._need_bytes:
                return
            data = bytes(self._parts)
            self._parts.clear()
        head_end = data.find(_HEAD_END)
        if head_end < 0:
            self._keep(data, len(data) + 1)
            return
        try:
            body_at = head_end + len(_HEAD_END)
            need_bytes = body_at + _content_length(data[:head_end])
            status = int(data[9:12])
        except (UnexpectedAnswer, ValueError) as error:
            self._fail(UnexpectedAnswer(f"{error}: {data[:200]!r}"))
            self._close()
            return
        if len(data) < need_bytes:
            self._keep(data, need_bytes)
            return
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result((status, data[body_at:]))

    def _keep(self, data: bytes, need_bytes: int) -> None:
        self._parts += data
        self._need_bytes = need_bytes

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)


def _content_length(head: bytes) -> int:
    head = head.lower()
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        raise UnexpectedAnswer("no Content-Length")
    end = head.find(b"\r\n", at + 2)
    return int(head[at + 17 : end if end >= 0 else None])


class AiohttpConnection:
    """One connection of aiohttp's client."""

    def __init__(self, port: int) -> None:
        self._root = f"http://{HOST}:{port}"
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1), headers=_JSON)

    @classmethod
    async def open(cls, port: int) -> Self:
        return cls(port)

    async def post(self, path: str, body: bytes) -> Answer:
        try:
            async with self._session.post(self._root + path, data=body) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientPayloadError as error:
            raise UnexpectedAnswer(str(error)) from error
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from error

    async def close(self) -> None:
        await self._session.close()


CLIENTS: Final[dict[str, type[Connection]]] = {"raw": RawConnection, "aiohttp": AiohttpConnection}
