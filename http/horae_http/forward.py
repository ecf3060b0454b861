"""Any node answers any request: a node that does not lead passes the whole request on to the leader.

A call that surely was not handed on is sent again while time is left; one that may have been is sent again only when a
second sending is harmless (a read, or a write under an id, a claim id or a token), else the answer is
`outcome_unknown`. A request is passed on once: the next node serves it or says `no_leader`. Not here: which calls need
the leader (`Route.leader`). Next to read: `app.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from horae.wire import BODY_BYTES_MAX, WAIT_SECONDS_MAX
from horae_http.answer import Answer
from horae_http.errors import Failure
from horae_http.routing import Call, Route
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Service

LEADER_WAIT_S: Final = 2.0
"""How long a request waits for a leader (API.md): most elections are over by then."""
PAUSE_S: Final = 0.05
"""Between two tries, where this node still believes in a leader that refused: a heartbeat's time."""
CONNECT_S: Final = 1.0
ANSWER_S: Final = WAIT_SECONDS_MAX + 15.0
"""The longest wait of the contract, and time to answer after it."""
CONNECTIONS_MAX: Final = 1000
KEEPALIVE_S: Final = 30.0
"""Less than the server's own, so that no request meets a connection which the leader is just closing."""

PASSED_ON_BY: Final = "Horae-Passed-On-By"
_REQUEST_HEADERS: Final = ("Content-Type", "Accept", "Authorization", "If-Match")
_ANSWER_HEADERS: Final = ("Location", "Retry-After", "WWW-Authenticate", "Allow", "ETag")

Serve = Callable[[Route, Call], Awaitable[Answer]]


class _NotSent(Exception):
    """Definite: the leader did not take the request."""


class _Broken(Exception):
    """The request was handed on, or may have been; no whole answer came."""


class _Verdict(msgspec.Struct):
    code: str = ""


_verdict = msgspec.json.Decoder(_Verdict).decode


class Forwarder:
    """Passes requests on, over connections that it keeps. Close it on the loop that it was used on."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Drop all connections. A second close does nothing."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def pass_on(self, request: web.BaseRequest, route: Route, call: Call, serve: Serve) -> Answer:
        """The leader's answer, or this node's own (`serve`) when it comes to lead meanwhile.

        Raises: `Failure("no_leader")`, `OutcomeUnknown`, and whatever `serve` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEADER_WAIT_S
        extended = False
        while True:
            url = await self._wait_for_leader(deadline - loop.time())
            try:
                if self._service.leading():
                    return await serve(route, call)
                if url is None or PASSED_ON_BY in request.headers:
                    raise _NotSent
                return await self._send(url, request, call.raw)
            except NotApplied as error:  # this node led, and no longer does
                if error.code != "no_leader" or loop.time() + PAUSE_S >= deadline:
                    raise
            except _NotSent:
                if loop.time() + PAUSE_S >= deadline:
                    raise _no_leader() from None
            except _Broken as error:
                if not _may_repeat(route, call) or (extended and loop.time() + PAUSE_S >= deadline):
                    raise OutcomeUnknown(str(error)) from error
                if not extended:
                    deadline, extended = loop.time() + LEADER_WAIT_S, True
            await asyncio.sleep(PAUSE_S)

    async def _wait_for_leader(self, left_s: float) -> str | None:
        if await self._service.wait_for_leader(max(0, round(left_s * 1000))) is None:
            raise _no_leader()
        return self._service.leader_url()

    async def _send(self, url: str, request: web.BaseRequest, body: bytes) -> Answer:
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers[PASSED_ON_BY] = self._service.node_id
        session = self._session or self._open()
        try:
            async with session.request(
                request.method,
                URL(url.rstrip("/") + request.raw_path, encoded=True),
                data=body or None,
                headers=headers,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as response:
                content = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NotSent(str(error)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _Broken(f"the leader's answer did not come: {error or type(error).__name__}") from error
        if response.status == 503 and _code_of(content) in ("no_leader", "shutting_down"):
            raise _NotSent("the node that led leads no more")
        return _answer_of(response, content)

    def _open(self) -> aiohttp.ClientSession:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=min(BODY_BYTES_MAX, 1 << 20),
        )
        return self._session


def _may_repeat(route: Route, call: Call) -> bool:
    """Whether a second sending of this very request is harmless."""
    if not call.raw:
        return route.repeats(None)
    try:
        return route.repeats(route.read(call.raw, call.packed_in))
    except Failure:
        return True  # it will be refused, each time


def _code_of(content: bytes) -> str:
    try:
        return _verdict(content).code
    except msgspec.MsgspecError:
        return ""


def _answer_of(response: aiohttp.ClientResponse, content: bytes) -> Answer:
    """The leader's answer as it came; `Horae-Node` and `Horae-Leader` are added as to any answer."""
    lines = "".join(f"{name}: {response.headers[name]}\r\n" for name in _ANSWER_HEADERS if name in response.headers)
    kind = response.headers.get("Content-Type", "")
    return Answer(response.status, kind.encode("latin-1"), content, lines.encode("latin-1"))


def _no_leader() -> Failure:
    return Failure("no_leader", f"no leader was found within {LEADER_WAIT_S:g} s: nothing was done, try again")
