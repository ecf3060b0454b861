"""Kept connections to the leader: bytes of a request there, the parsed head and the body of its answer back.

It speaks to nodes of ours only, one request at a time on a connection, and knows exactly whether a request was handed
on, which a general client hides behind its own repeats (and costs three times as much, on the way of two requests in
three behind a plain balancer). Not here: what may be sent again. Next to read: `forward.py`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

CONNECT_S: Final = 1.0
KEEPALIVE_S: Final = 30.0
"""Less than the server's own, so that no request meets a connection which the leader is just closing."""
CONNECTIONS_MAX: Final = 4096
"""Each waiting claim holds one."""
HEAD_BYTES_MAX: Final = 64 * 1024

CLAIM_MARK: Final = "Horae-Claim"
"""On the answer to a claim that another node passed on: the name by which that node may speak of it."""

_CLAIM_MARK: Final = CLAIM_MARK.lower().encode()
_KEPT_LINES: Final = frozenset({b"location", b"retry-after", b"www-authenticate", b"allow", b"etag"})


class NotSent(Exception):
    """Definite: the other node did not take the request."""


class Broken(Exception):
    """The request was handed on, or may have been; no whole answer came."""


class Leaderless(Broken):
    """Nobody to ask is known any more, and was waited for."""


class Reply(NamedTuple):
    status: int
    content_type: bytes
    header_lines: bytes
    """Those that an answer of the contract may have of its own, each ending in CRLF."""
    body: bytes
    claim_mark: bytes = b""
    """What the leader calls this claim; not for the caller."""


Late = asyncio.Future[Reply]
"""An answer whose caller has left: it comes, or the connection ends (`Broken`). Cancelling it drops the connection."""


class Lines:
    """The connections of one node to others. Use and close it on one loop."""

    def __init__(self) -> None:
        self._idle: list[_Line] = []
        self._busy: set[_Line] = set()
        self._url = ""
        """Whom all of them lead to: there is one leader."""
        self._open = 0

    def close(self) -> None:
        """Drop the idle connections; those in use end with their request. A second call does nothing."""
        for line in self._idle:
            line.abort()
        self._idle.clear()

    def turn_to(self, url: str) -> None:
        """The node at `url` is the one to ask: what is on its way to any other is `Broken`, not waited for.

        A leader that fell silent, paused or cut off, would hold its callers for as long as a call may wait.
        """
        if url == self._url:
            return
        self._url = url
        self.close()
        self._give_up(Broken("another node leads now"))

    def give_up(self, why: str) -> None:
        """What is on its way ends as `Leaderless`; new requests may be made."""
        self._give_up(Leaderless(why))

    def _give_up(self, error: Broken) -> None:
        for line in self._busy:
            line.give_up(error)

    async def ask(
        self, url: str, request: bytes, timeout_s: float, on_left: Callable[[Late], None] | None = None
    ) -> Reply:
        """The answer to `request` (head and body as HTTP/1.1 has them) of the node at `url`.

        A cancelled caller closes the connection, which tells the other node. With `on_left` only our half of it is
        closed, and whenever the caller left without the answer (cancelled, out of time, or because another node leads)
        it is called with the one that may be on its way. Raises: `NotSent`, `Broken`.
        """
        self.turn_to(url)
        if self._open >= CONNECTIONS_MAX:
            raise NotSent(f"{CONNECTIONS_MAX} requests are on their way already")
        self._open += 1
        line: _Line | None = None
        try:
            line = self._take() or await _connect(url)
            if url != self._url:
                raise NotSent("another node leads now")
            self._busy.add(line)
            async with asyncio.timeout(timeout_s):
                sending = line.send(request)
                del request  # an answer may be long in coming
                reply = await sending
        except TimeoutError as error:
            raise Broken(f"no answer came within {timeout_s:g} s") from error
        finally:
            self._open -= 1
            if line is not None:
                self._part(line, url, on_left)
        return reply

    def _take(self) -> _Line | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            line = self._idle.pop()
            if line.usable and now - line.idle_since < KEEPALIVE_S:
                return line
            line.abort()
        return None

    def _part(self, line: _Line, url: str, on_left: Callable[[Late], None] | None) -> None:
        """The request on `line` is over: keep the connection for the next, drop it, or leave it to the late answer."""
        self._busy.discard(line)
        late = line.leave() if on_left is not None else None
        if line.usable and url == self._url:
            line.idle_since = asyncio.get_running_loop().time()
            self._idle.append(line)
        elif late is None or late.done():
            line.abort()
        else:
            self._open += 1
            late.add_done_callback(self._on_late_end)
        if late is not None and on_left is not None:
            on_left(late)

    def _on_late_end(self, late: Late) -> None:
        self._open -= 1


async def _connect(url: str) -> _Line:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(CONNECT_S):
            loop = asyncio.get_running_loop()
            _, line = await loop.create_connection(_Line, parts.hostname or "", port, ssl=secure)
    except (OSError, TimeoutError) as error:
        raise NotSent(f"{url} cannot be reached: {error or 'no connection in time'}") from error
    return line


class _Line(asyncio.Protocol):
    """One connection. `usable` when it is open and no request is on it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self._received = bytearray()
        self._head: Reply | None = None
        self._whole_bytes = 0
        self._last = False
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._answer is None and self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close at once. A second call does nothing."""
        if self._transport is not None:
            self._transport.abort()

    def give_up(self, error: Broken) -> None:
        """Who waits for an answer gets `error`, and then drops or leaves the connection."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def leave(self) -> Late | None:
        """The answer that may still come, or came, to a request whose caller left without it; None when none can.

        Only our half is closed: the other side learns that nobody waits, and what it had written before that is still
        read. So both agree on whether the answer was given, which closing the whole connection would leave open.
        """
        answer = self._answer
        if answer is None:
            return None
        if not _is_whole(answer):
            self._answer = answer = asyncio.get_running_loop().create_future()
            self._read_answer(answer)  # of what came since the caller was told to go
        if _is_whole(answer):
            self._answer = None
            if self._last:
                self.abort()
            return answer
        if answer.done() or self._transport is None or self._transport.is_closing():
            return None
        answer.add_done_callback(self._on_late_end)
        self._close_our_half(self._transport)
        return answer

    def _on_late_end(self, late: Late) -> None:
        self.abort()
        if not late.cancelled():
            late.exception()  # looked at: that none came is no news to whoever does not wait for it

    def _close_our_half(self, transport: asyncio.Transport) -> None:
        if transport.can_write_eof():
            transport.write_eof()
            return
        # TLS knows no half: the end of the stream below it says the same to the server, and it is still read from.
        try:
            with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as raw:
                raw.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._fail(f"the connection ended: {error}")

    async def send(self, request: bytes) -> Reply:
        """The answer. Raises: `Broken`. After that, or when cancelled, the connection is not usable."""
        assert self._transport is not None
        assert self._answer is None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        del request
        reply = await self._answer
        self._answer = None
        if self._last:
            self.abort()
        return reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(f"the connection ended: {exc or 'closed by the other side'}")

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or _is_whole(answer):
            self._fail("bytes came that nobody asked for")
            return
        self._received += data
        if not answer.done():  # else its caller is about to leave, and takes from here
            self._read_answer(answer)

    def _read_answer(self, answer: asyncio.Future[Reply]) -> None:
        """End `answer` with what was received, when that is whole."""
        if (self._head is None and not self._parse_head()) or len(self._received) < self._whole_bytes:
            return
        assert self._head is not None
        if len(self._received) > self._whole_bytes:
            self._fail("more came than was asked for")
            return
        answer.set_result(self._head._replace(body=bytes(self._received)))
        self._received.clear()
        self._head = None

    def _parse_head(self) -> bool:
        """Take a whole head off the bytes received; False when it is not there yet, or is none."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > HEAD_BYTES_MAX:
                self._fail("the head of the answer has no end")
            return False
        try:
            self._read_head(bytes(self._received[:end]).split(b"\r\n"))
        except ValueError:
            self._fail("the head of the answer is none of ours")
            return False
        del self._received[: end + 4]
        return True

    def _read_head(self, lines: list[bytes]) -> None:
        status, content_type, kept, claim_mark, self._whole_bytes = int(lines[0][9:12]), b"", b"", b"", 0
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"content-length":
                self._whole_bytes = int(value)
            elif name == b"content-type":
                content_type = value.strip()
            elif name in _KEPT_LINES:
                kept += line + b"\r\n"
            elif name == b"connection":
                self._last = b"close" in value.lower()
            elif name == _CLAIM_MARK:
                claim_mark = value.strip()
            elif name == b"transfer-encoding":
                raise ValueError
        if not 200 <= status <= 599 or self._whole_bytes < 0:
            raise ValueError
        self._head = Reply(status, content_type, kept, b"", claim_mark)

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Broken(why))
        self.abort()


def _is_whole(answer: asyncio.Future[Reply]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None
