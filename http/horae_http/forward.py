"""Any node answers any request: a node that does not lead passes the whole request on to the leader.

A call that surely was not handed on is sent again while time is left; one that may have been is sent again only when a
second sending is harmless (a read, or a write under an id, a claim id or a token), else the answer is
`outcome_unknown`. A request is passed on once: the next node serves it or says `no_leader`. Not here: which calls need
the leader (`Route.leader`). Next to read: `returns.py`, where the jobs of callers that hung up go back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from aiohttp import web

from horae.wire import WAIT_SECONDS_MAX
from horae_http.admin import READ_CLUSTER
from horae_http.answer import Answer
from horae_http.errors import Failure
from horae_http.line import CONNECTIONS_MAX, Broken, Leaderless, Lines, NotSent
from horae_http.returns import Claim, Returns
from horae_http.routing import PASSED_ON_BY, Call, Route, read_body
from horae_http.workers import END_LEASES, UNLESS_REPEATED
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Service
from horae_node.shedding import Crowd, Rank

LEADER_WAIT_S: Final = 2.0
"""How long a request waits for a leader (docs/contract.md): most elections are over by then."""
LOSSES_MAX: Final = 3
"""Leaders that one call may lose: more of them within its wait is no election."""
PAUSE_S: Final = 0.05
"""Between two tries, where this node still believes in a leader that refused: a heartbeat's time."""
ANSWER_S: Final = WAIT_SECONDS_MAX + 15.0
"""The longest wait of the contract, and time to answer after it."""

PASSED_PERCENT: Final[dict[Rank, int]] = {Rank.NEW: 75, Rank.READ: 90, Rank.ENDING: 100}
"""How much of the way to the leader each rank may take: claims wait long, and endings must find room beside them."""

_PASSED_HEADERS: Final = ("Content-Type", "Accept", "Authorization", "If-Match", "If-None-Match")
_OWN_HEADERS: Final = (*_PASSED_HEADERS, UNLESS_REPEATED)
"""Of a request that this node makes itself: what an outsider says of claims is not passed on."""

_UNDONE: Final = frozenset({429, 503, 507})
"""Answers that mean that nothing was done."""

Serve = Callable[[Route, Call], Awaitable[Answer]]


class _Verdict(msgspec.Struct):
    code: str = ""


class _Place(msgspec.Struct):
    applied_index: int


_place = msgspec.json.Decoder(_Place).decode
_verdict = msgspec.json.Decoder(_Verdict).decode


class _Passed(NamedTuple):
    """A request on its way to the leader."""

    method: str
    target: str
    headers: Mapping[str, str]


class Forwarder:
    """Passes requests on, over connections that it keeps. Close it on the loop that it was used on.

    `serve` answers a request when this node comes to lead meanwhile.
    """

    def __init__(self, service: Service, serve: Serve) -> None:
        self._service = service
        self._serve = serve
        self._lines = Lines()
        self.passing = Crowd("requests to the leader", CONNECTIONS_MAX)
        """What is on its way to the leader, or waits for one."""
        self._leaderless: asyncio.TimerHandle | None = None
        """Since no leader is known: ends what is still on its way to the last one."""
        self._returns = Returns(self._end_leases)
        service.watch_leader(self._on_leader)

    def close(self) -> None:
        """Drop all connections, and whatever was still to go back. A second close does nothing."""
        if self._leaderless is not None:
            self._leaderless.cancel()
        self._returns.close()
        self._lines.close()

    async def settle(self) -> None:
        """Until what was granted to callers that hung up has gone back, or could not."""
        await self._returns.settle()

    def _on_leader(self) -> None:
        """While no leader is known, the last one may still answer, for as long as others wait for a leader; a new one
        means that it will not."""
        url = self._service.leader_url()
        if url is None:
            if self._leaderless is None:
                why = f"no leader was found within {LEADER_WAIT_S:g} s, and the last one did not answer"
                self._leaderless = asyncio.get_running_loop().call_later(LEADER_WAIT_S, self._lines.give_up, why)
            return
        if self._leaderless is not None:
            self._leaderless.cancel()
            self._leaderless = None
        self._lines.turn_to(url)

    async def pass_on(self, request: web.BaseRequest, route: Route, call: Call) -> Answer:
        """The leader's answer, or this node's own when it comes to lead meanwhile.

        Raises: `Failure("no_leader")`, `NotApplied("rate_limited")`, `OutcomeUnknown`, and whatever serving it raises.
        """
        if PASSED_ON_BY in request.headers:
            # At once: to wait here would leave the other node, when it finds the new leader, in doubt of what we did.
            raise Failure("no_leader", "this node does not lead: nothing was done")
        method = "GET" if request.method == "HEAD" else request.method
        return await self._pass(_Passed(method, target(request), request.headers), route, call)

    async def leaders_index(self, call: Call) -> int:
        """How far the leader's state had come at some moment after this call began. Raises: as `pass_on`."""
        token = call.headers.get("Authorization")
        headers = {} if token is None else {"Authorization": token}
        asked = Call("", READ_CLUSTER.query(), b"", call.holder, (False, False), headers, stopping=call.stopping)
        answer = await self._pass(_Passed(READ_CLUSTER.method, READ_CLUSTER.path, headers), READ_CLUSTER, asked)
        try:
            return _place(answer.content).applied_index
        except msgspec.MsgspecError:
            raise _no_leader("the leader does not say how far it has come") from None

    async def _end_leases(self, call: Call) -> Answer:
        """A request of this node's own. Raises: as `pass_on`."""
        return await self._pass(_Passed(END_LEASES.method, END_LEASES.path, call.headers), END_LEASES, call)

    async def _pass(self, passed: _Passed, route: Route, call: Call) -> Answer:
        with self.passing.one(PASSED_PERCENT[route.rank]):
            return await self._pass_until_answered(passed, route, call)

    async def _pass_until_answered(self, passed: _Passed, route: Route, call: Call) -> Answer:
        claim = Claim(self._returns, call) if route.grants else None
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        patience = _Patience(asked_s)
        doubt: OutcomeUnknown | None = None
        """An earlier sending may have taken effect: that a later one was refused says nothing of it."""
        while True:
            try:
                url = await self._wait_for_leader(patience.left_s(loop.time()))
                asked_s = loop.time()
                if self._service.leading():
                    return await self._serve(route, call)
                if url is None:
                    raise NotSent("the leader is gone")
                answer = await self._send(url, passed, call, claim)
                if doubt is not None and answer.status in _UNDONE:
                    raise doubt
                return answer
            except Failure as error:
                raise doubt or error from None
            except NotApplied as error:  # this node led, and no longer does
                if error.code != "no_leader" or patience.is_over(asked_s, loop.time(), error):
                    raise doubt or error from None
            except NotSent as error:
                if patience.is_over(asked_s, loop.time(), error):
                    raise doubt or _no_leader(str(error)) from None
            except Broken as error:
                unknown = OutcomeUnknown(str(error))
                if not await _may_repeat(route, call) or patience.is_over(asked_s, loop.time(), error):
                    raise unknown from error
                doubt = unknown if route.method != "GET" else None
            await asyncio.sleep(PAUSE_S)
            call.spend(loop.time())

    async def _wait_for_leader(self, left_s: float) -> str | None:
        if await self._service.wait_for_leader(max(0, round(left_s * 1000))) is None:
            raise _no_leader(f"no leader was found within {LEADER_WAIT_S:g} s")
        return self._service.leader_url()

    async def _send(self, url: str, passed: _Passed, call: Call, claim: Claim | None) -> Answer:
        on_left = None if claim is None else claim.on_left
        reply = await self._lines.ask(url, self._request_bytes(url, passed, call), ANSWER_S, on_left)
        if reply.status == 503 and _code_of(reply.body) in ("no_leader", "shutting_down", "removed"):
            raise _LeadLost("the node that led leads no more")
        answer = Answer(reply.status, reply.content_type, reply.body, reply.header_lines)
        if claim is not None:
            answer.delivery = claim.delivery(reply)
        return answer

    def _request_bytes(self, url: str, request: _Passed, call: Call) -> bytes:
        """The request as it came, but for the headers that concern its connection, and what of its wait is over."""
        node = urlsplit(url)
        headers, body = request.headers, call.content()
        names = _OWN_HEADERS if PASSED_ON_BY in headers else _PASSED_HEADERS
        passed = "".join(f"{name}: {headers[name]}\r\n" for name in names if name in headers)
        head = (
            f"{request.method} {node.path.rstrip('/')}{_left_target(request.target, call)} HTTP/1.1\r\n"
            f"Host: {node.netloc}\r\n"
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


def _left_target(as_sent: str, call: Call) -> str:
    """With what is left of the wait that the query asks for."""
    path, _, text = as_sent.partition("?")
    left_s = getattr(call.query, "wait_seconds", None)
    if not call.spent or left_s is None:
        return as_sent
    pairs = [pair for pair in parse_qsl(text, keep_blank_values=True) if pair[0] != "wait_seconds"]
    return f"{path}?{urlencode([*pairs, ('wait_seconds', left_s)])}"


class _LeadLost(NotSent):
    """The node that was asked leads no more, and did nothing."""


class _Patience:
    """How long a call still waits for a leader: so long since it came, or since it lost the leader it waited at."""

    def __init__(self, now_s: float) -> None:
        self._until_s = now_s + LEADER_WAIT_S
        self._losses = 0

    def left_s(self, now_s: float) -> float:
        return self._until_s - now_s

    def is_over(self, asked_s: float, now_s: float, error: Exception) -> bool:
        """The leader that was asked then is none any more: whether there is no time for another try.

        The wait begins anew for a call that had waited there; for another one only when its first sending broke: a node
        that refuses or breaks each at once is no leader.
        """
        broken = isinstance(error, Broken)
        had_waited = isinstance(error, (Broken, NotApplied, _LeadLost)) and now_s - asked_s >= PAUSE_S
        if self._losses < LOSSES_MAX and (had_waited or (broken and not self._losses)):
            self._losses += 1
            self._until_s = now_s if isinstance(error, Leaderless) else now_s + LEADER_WAIT_S
            return False
        return now_s + PAUSE_S >= self._until_s


async def _may_repeat(route: Route, call: Call) -> bool:
    """Whether a second sending of this very request is harmless. What is guarded by a version is refused then."""
    if "If-Match" in call.headers or "If-None-Match" in call.headers:
        return False
    if call.settled:
        return route.repeats(call.body)
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


def _no_leader(why: str) -> Failure:
    """A call may have waited at a leader for long before it was left without one."""
    return Failure("no_leader", f"{why}: nothing was done, try again")
