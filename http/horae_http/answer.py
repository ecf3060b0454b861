"""An answer on its way out: its head made of ready pieces, head and body written to the socket at once.

aiohttp's own `Response` builds a header mapping an answer and serialises it; a third of a small request's time went
there. The server calls `prepare`, `write_eof` and `keep_alive` of whatever a handler returns; these three are replaced.
Not here: what an answer says. Next to read: `app.py`.
"""

from __future__ import annotations

import asyncio
import select
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from horae_http.unsent import Unsent

JSON: Final = b"application/json"
MSGPACK: Final = b"application/msgpack"
PROBLEM: Final = b"application/problem+json"
BUFFERED_BYTES_MAX = 64 * 1024
"""Unsent bytes of one connection past which the next answer waits for the reader."""

_HANGS_UP: Final = getattr(select, "POLLRDHUP", 0)
"""The end of the stream; that of a reset connection is always told. Linux knows both."""

_heads: dict[tuple[int, bytes], bytes] = {}


class Handed(Protocol):
    """What an answer hands over to its caller, who must not be gone."""

    def undeliverable(self) -> None:
        """The caller was gone before the answer was written: take it back."""


class Answer(web.StreamResponse):
    """Status, kind of content, body, and further header lines (each ending in CRLF), written as one piece."""

    # The base's __init__ would build the mappings that this class does without; its class-level defaults suffice.
    def __init__(
        self,
        status: int,
        content_type: bytes,
        body: bytes,
        header_lines: bytes = b"",
    ) -> None:
        self._status = status
        self._kind = content_type
        self.content = body
        self.header_lines = header_lines
        self.delivery: Handed | None = None
        self._last_of_connection = False
        self._unsent: Unsent | None = None
        self._request: web.BaseRequest | None = None

    def seal(self, common_lines: bytes, *, close: bool, unsent: Unsent) -> None:
        """Add the lines that every answer carries; with `close` the connection ends after this answer."""
        self._unsent = unsent
        self.header_lines += common_lines
        self._last_of_connection = close

    @property
    def body_bytes(self) -> int:
        return len(self.content)

    @property
    def keep_alive(self) -> bool:
        return not self._last_of_connection

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        self._request = request
        self._last_of_connection = self._last_of_connection or not request.keep_alive
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Write it all. Raises: ConnectionResetError when the caller is gone; a claim's jobs then go straight back."""
        request = self._request
        assert request is not None
        assert not data
        transport = request.transport
        if self.delivery is not None and _has_hung_up(transport):
            self.delivery.undeliverable()
            raise ConnectionResetError("the caller hung up before its answer")
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the caller hung up before its answer")
        transport.write(self._head(request) if request.method == "HEAD" else self._head(request) + self.content)
        if transport.get_write_buffer_size() > BUFFERED_BYTES_MAX:
            await self._wait_read(transport, request.writer)

    def alone(self, common_lines: bytes) -> bytes:
        """Head and body of the only answer of a connection whose request nobody reads."""
        lines = b"%s%sContent-Length: %d\r\n" % (self.header_lines, common_lines, self.body_bytes)
        return start_of_head((self._status, self._kind)) + b"Connection: close\r\n" + lines + b"\r\n" + self.content

    async def _wait_read(self, transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
        assert self._unsent is not None
        try:
            await self._unsent.wait_read(transport, writer)
        except BaseException:  # whatever ended the wait: a part of the answer was surely not read
            if self.delivery is not None:
                self.delivery.undeliverable()
            raise

    def _head(self, request: web.BaseRequest) -> bytes:
        key = (self._status, self._kind)
        start = _heads.get(key) or start_of_head(key)
        if self._status == 204:
            end = self.header_lines + b"\r\n"
        else:
            end = b"%sContent-Length: %d\r\n\r\n" % (self.header_lines, self.body_bytes)
        if self._last_of_connection:
            return start + b"Connection: close\r\n" + end
        if request.version[1] == 0:
            return start + b"Connection: keep-alive\r\n" + end
        return start + end


def _has_hung_up(transport: asyncio.Transport | None) -> bool:
    """Whether the caller is known to be gone, also where the loop has not come to read it yet.

    What is written to such a caller is lost without a word; a hang-up that is still on the wire nobody can know of.
    """
    if transport is None or transport.is_closing():
        return True
    look = select.poll()
    look.register(transport.get_extra_info("socket").fileno(), _HANGS_UP)
    return bool(look.poll(0))


def start_of_head(key: tuple[int, bytes]) -> bytes:
    """Kept for the next answer of its kind: as many as there are statuses and content types in the contract."""
    status, content_type = key
    start = b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
    if content_type:
        start += b"Content-Type: %s\r\n" % content_type
    if len(_heads) < 100:
        _heads[key] = start
    return start
