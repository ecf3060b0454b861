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
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from horae.wire import WAIT_SECONDS_MAX
from horae_http.answer import Answer
from horae_http.errors import Failure
from horae_http.line import Broken, Lines, NotSent
from horae_http.routing import Call, Route, read_body
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Service

LEADER_WAIT_S: Final = 2.0
"""How long a request waits for a leader (docs/contract.md): most elections are over by then."""
PAUSE_S: Final = 0.05
"""Between two tries, where this node still believes in a leader that refused: a heartbeat's time."""
ANSWER_S: Final = WAIT_SECONDS_MAX + 15.0
"""The longest wait of the contract, and time to answer after it."""

PASSED_ON_BY: Final = "Horae-Passed-On-By"
_PASSED_HEADERS: Final = ("Content-Type", "Accept", "Authorization", "If-Match")

Serve = Callable[[Route, Call], Awaitable[Answer]]


class _Verdict(msgspec.Struct):
    code: str = ""


_verdict = msgspec.json.Decoder(_Verdict).decode


class Forwarder:
    """Passes requests on, over connections that it keeps. Close it on the loop that it was used on."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lines = Lines()
        service.watch_leader(self._on_leader)

    def close(self) -> None:
        """Drop all connections. A second close does nothing."""
        self._lines.close()

    def _on_leader(self) -> None:
        """While no leader is known, the last one may still answer; a new one means that it will not."""
        url = self._service.leader_url()
        if url is not None:
            self._lines.turn_to(url)

    async def pass_on(self, request: web.BaseRequest, route: Route, call: Call, serve: Serve) -> Answer:
        """The leader's answer, or this node's own (`serve`) when it comes to lead meanwhile.

        Raises: `Failure("no_leader")`, `OutcomeUnknown`, and whatever `serve` raises.
        """
        if PASSED_ON_BY in request.headers:
            # At once: to wait here would leave the other node, when it finds the new leader, in doubt of what we did.
            raise Failure("no_leader", "this node does not lead: nothing was done")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEADER_WAIT_S
        extended = False
        while True:
            url = await self._wait_for_leader(deadline - loop.time())
            try:
                if self._service.leading():
                    return await serve(route, call)
                if url is None:
                    raise NotSent
                return await self._send(url, request, call.raw)
            except NotApplied as error:  # this node led, and no longer does
                if error.code != "no_leader" or loop.time() + PAUSE_S >= deadline:
                    raise
            except NotSent:
                if loop.time() + PAUSE_S >= deadline:
                    raise _no_leader() from None
            except Broken as error:
                if not await _may_repeat(route, call) or (extended and loop.time() + PAUSE_S >= deadline):
                    raise OutcomeUnknown(str(error)) from error
                if not extended:
                    deadline, extended = loop.time() + LEADER_WAIT_S, True
            await asyncio.sleep(PAUSE_S)

    async def _wait_for_leader(self, left_s: float) -> str | None:
        if await self._service.wait_for_leader(max(0, round(left_s * 1000))) is None:
            raise _no_leader()
        return self._service.leader_url()

    async def _send(self, url: str, request: web.BaseRequest, body: bytes) -> Answer:
        reply = await self._lines.ask(url, self._request_bytes(url, request, body), ANSWER_S)
        if reply.status == 503 and _code_of(reply.body) in ("no_leader", "shutting_down"):
            raise NotSent("the node that led leads no more")
        return Answer(reply.status, reply.content_type, reply.body, reply.header_lines)

    def _request_bytes(self, url: str, request: web.BaseRequest, body: bytes) -> bytes:
        """The request as it came, but for the headers that concern its connection."""
        node = urlsplit(url)
        method = "GET" if request.method == "HEAD" else request.method
        headers = request.headers
        passed = "".join(f"{name}: {headers[name]}\r\n" for name in _PASSED_HEADERS if name in headers)
        head = (
            f"{method} {node.path.rstrip('/')}{target(request)} HTTP/1.1\r\nHost: {node.netloc}\r\n"
            f"{passed}{PASSED_ON_BY}: {self._service.node_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        # The server's parser lets no line break into a header; should it ever, nothing is passed on.
        if head.count("\n") != passed.count("\r\n") + 5:
            raise Failure("malformed", "a header holds a line break")
        return head.encode("utf-8", "surrogateescape") + body


def target(request: web.BaseRequest) -> str:
    """Path and query as they were sent; a proxy may have sent the whole URL."""
    raw = request.raw_path
    return raw if raw.startswith("/") else str(request.rel_url)


async def _may_repeat(route: Route, call: Call) -> bool:
    """Whether a second sending of this very request is harmless."""
    if not call.raw:
        return route.repeats(None)
    try:
        return route.repeats(await read_body(route, call.raw, call.packed_in))
    except Failure:
        return True  # it will be refused, each time


def _code_of(content: bytes) -> str:
    try:
        return _verdict(content).code
    except msgspec.MsgspecError:
        return ""


def _no_leader() -> Failure:
    return Failure("no_leader", f"no leader was found within {LEADER_WAIT_S:g} s: nothing was done, try again")
