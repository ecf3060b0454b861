"""From a request to an answer: find the route, know the caller, read the body, serve it or pass it on, name any error.

`App.handle` is the handler of a low-level aiohttp server: no router, middleware or response class of aiohttp's is on
the way. It is the root of every request's task. Not here: the handlers (`jobs`, `workers`, `admin`), sockets
(`server.py`). Next to read: `routing.py`, then `forward.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.helpers import rfc822_formatted_time
from msgspec.structs import replace

from horae.wire import Empty, Problem
from horae_http import admin, codec, errors, events, jobs, members, openapi, queues, schedules, workers
from horae_http.answer import PROBLEM, Answer
from horae_http.auth import EVERYBODY, Holder, Tokens
from horae_http.bodies import Bodies, Hold, receive, require_body
from horae_http.errors import Failure
from horae_http.forward import Forwarder, target
from horae_http.routing import Call, Route, Router, read_body, read_query
from horae_http.unsent import Unsent
from horae_node import logs
from horae_node.errors import Fatal, NotApplied, OutcomeUnknown
from horae_node.service import Refused, Service
from horae_node.shedding import Rank, shed
from horae_storage.errors import StorageFailed

CONNECTIONS_RETRY_S: Final = 5
"""How soon a connection is worth a try where too many are open: they are kept for long, but each may end any time."""

log = logs.get_log("http")
_encode = msgspec.json.Encoder().encode


def build_app(
    service: Service,
    *,
    metrics_text: Callable[[], bytes],
    tokens: Tokens | None = None,
    on_fatal: Callable[[BaseException], None] | None = None,
) -> App:
    """The application; call it on the loop that will serve it.

    `tokens`: None lets everybody do everything. `on_fatal` is told of a `Fatal`, or of a failed or corrupt
    storage, that a request ran into: the process must end then.
    """
    return App(service, metrics_text=metrics_text, tokens=tokens, on_fatal=on_fatal)


class App:
    """The whole contract over one service. Owns the connections to other nodes: `close` it on its loop."""

    def __init__(
        self,
        service: Service,
        *,
        metrics_text: Callable[[], bytes],
        tokens: Tokens | None,
        on_fatal: Callable[[BaseException], None] | None,
    ) -> None:
        self._service = service
        self._tokens = tokens
        self._on_fatal = on_fatal
        tables = (*jobs.ROUTES, *workers.ROUTES, *queues.ROUTES, *schedules.ROUTES, *events.ROUTES, *members.ROUTES)
        self.routes: tuple[Route, ...] = (*tables, *admin.routes(metrics_text, self._document))
        self._router = Router(self.routes)
        self.forwarder = Forwarder(service, self._run)
        self._no_query = {route.query: route.query() for route in self.routes}
        self._loop = asyncio.get_running_loop()
        self._contract = b""
        self._lines_for: tuple[str, str | None] = ("", None)
        self._lines = b""
        self.unsent = Unsent()
        """What was answered and is not read yet."""
        self.bodies = Bodies()
        """What was sent and is not answered yet."""
        self.open_requests = 0
        """Requests whose answer is not yet ready."""
        self.stopping = False
        """New requests, but those that watch the node, are turned away with `shutting_down`."""
        self._waits: set[asyncio.Task[Any]] = set()
        """Requests that may wait for long: claims, and readings with `wait_seconds`."""
        self._cut_short: set[asyncio.Task[Any]] = set()
        self.idle = asyncio.Event()
        """Set while no request is open."""
        self.idle.set()

    def close(self) -> None:
        """Free what the application owns. A second call does nothing."""
        self.forwarder.close()

    async def settle(self) -> None:
        """Until what was granted to callers that hung up here has gone back to the leader."""
        await self.forwarder.settle()

    def stop_waiting(self) -> None:
        """The node goes down: new requests are turned away, and those that only wait are told to ask another node.
        Streams of events end.

        What a claim is granted meanwhile goes straight back, as when its caller hangs up.
        """
        self.stopping = True
        self._service.end_events()
        self._cut_short |= self._waits
        for task in self._waits:
            task.cancel()

    async def handle(self, request: web.BaseRequest) -> Answer:
        """The answer to any request. Raises: ConnectionError when the caller is gone; CancelledError."""
        self.open_requests += 1
        self.idle.clear()
        try:
            answer = await self._answer(request)
        finally:
            self.open_requests -= 1
            if not self.open_requests:
                self.idle.set()
        answer.seal(self._common_lines(), close=self.stopping, unsent=self.unsent)
        return answer

    def refuse(self, code: str, detail: str) -> Answer:
        """The answer to what never became a request; the connection ends after it."""
        answer = _problem_answer(errors.problem(code, detail))
        answer.seal(self._common_lines(), close=True, unsent=self.unsent)
        return answer

    def refuse_connection(self, connections: int) -> bytes:
        """The answer, head and body, to a connection past as many as may be; nobody has looked at what it asks."""
        self._service.count_shed(Rank.NEW)
        error = shed(f"{connections} connections are open here already", CONNECTIONS_RETRY_S)
        answer = _problem_answer(errors.problem_of(error), errors.header_lines_of(error))
        return answer.alone(self._common_lines())

    async def _answer(self, request: web.BaseRequest) -> Answer:
        try:
            return await self._serve(request)
        except (Failure, Refused, NotApplied, OutcomeUnknown) as error:
            return _problem_answer(errors.problem_of(error), errors.header_lines_of(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task not in self._cut_short:
                raise  # the caller hung up
            self._cut_short.discard(task)
            task.uncancel()
            return _problem_answer(errors.problem("shutting_down", "this node is going down: ask another one"))
        except ConnectionError:
            raise
        except (Fatal, StorageFailed) as error:
            if self._on_fatal is None:
                log.error("request_fatal", exc=error, method=request.method)
            else:
                self._on_fatal(error)  # which says what it was
        except Exception as error:  # the root of the request's task
            log.error("request_failed", exc=error, method=request.method)
        return _problem_answer(errors.problem("internal", "the node failed at this request; its log says how"))

    async def _serve(self, request: web.BaseRequest) -> Answer:
        path, _, query_text = target(request).partition("?")
        method = request.method
        route, item = self._router.find("GET" if method == "HEAD" else method, path)
        try:
            return await self._serve_route(request, route, item, query_text)
        except (Failure, NotApplied) as error:
            if error.code == "rate_limited":
                self._service.count_shed(route.rank)
            raise

    async def _serve_route(self, request: web.BaseRequest, route: Route, item: str, query_text: str) -> Answer:
        headers = request.headers
        holder = EVERYBODY
        if route.role is not None:
            if self._tokens is not None:
                holder = self._tokens.require(headers.get("Authorization"), route.role)
            if self.stopping:
                raise Failure("shutting_down", "this node is going down: nothing was done, ask another one")
            if self._service.removed:
                raise Failure("removed", "this node was removed from the cluster: ask another one")
        query = read_query(query_text, route.query) if query_text else self._no_query[route.query]
        if not request.body_exists:
            return await self._serve_body(request, route, item, query, holder, b"")
        require_body(request, route.body_bytes_max)
        if request.content.is_eof():
            return await self._serve_body(
                request, route, item, query, holder, await receive(request, route.body_bytes_max)
            )
        with self.bodies.hold(last=route.shed_last) as hold:
            return await self._serve_body(
                request, route, item, query, holder, await receive(request, route.body_bytes_max, hold), hold
            )

    async def _serve_body(
        self,
        request: web.BaseRequest,
        route: Route,
        item: str,
        query: Any,
        holder: Holder,
        raw: bytes,
        hold: Hold | None = None,
    ) -> Answer:
        headers = request.headers
        packed = codec.negotiate(codec.declared_type(headers), headers.get("Accept"), has_body=bool(raw))
        asked_s = self._loop.time()
        call = Call(item, query, raw, holder, packed, headers, stopping=self.stopping, hold=hold, asked_s=asked_s)
        del raw  # this frame lasts as long as the call waits
        task = asyncio.current_task()
        if task is None or not _may_wait(route, call):
            return await self._serve_call(request, route, call)
        self._waits.add(task)
        try:
            return await self._serve_call(request, route, call)
        finally:
            self._waits.discard(task)

    async def _serve_call(self, request: web.BaseRequest, route: Route, call: Call) -> Answer:
        """Serve it here, or pass it on."""
        service, query = self._service, call.query
        if route.from_leaders_index and query.after is None and query.consistency != "local":
            query = call.query = replace(query, after=await self.forwarder.leaders_index(call))
        if service.leading() or not route.leader or getattr(query, "consistency", None) == "local":
            try:
                return await self._run(route, call)
            except NotApplied as error:
                if error.code != "no_leader" or not route.leader or service.leading() or self.stopping:
                    raise
            call.spend(self._loop.time())
        elif _may_wait(route, call):
            await self._settle(route, call)
        return await self.forwarder.pass_on(request, route, call)

    async def _run(self, route: Route, call: Call) -> Answer:
        """Serve the call here. May be called again after it raised."""
        if route.rank is Rank.NEW and self._service.leading():
            self._service.require_room(route.rank)
        if not call.settled and (call.raw or route.request is not Empty):
            call.body = await read_body(route, call.raw, call.packed_in)
        if _may_wait(route, call):
            call.settle()
        return await route.handler(self._service, call)

    @staticmethod
    async def _settle(route: Route, call: Call) -> None:
        """Read what is only passed on, since it may wait there for long. A body that is wrong here is left as it is: a
        leader of a newer build may know better."""
        try:
            if call.raw:
                call.body = await read_body(route, call.raw, call.packed_in)
            call.settle()
        except Failure:
            pass

    def _common_lines(self) -> bytes:
        """The lines that every answer carries, made anew each second and when the leader changes."""
        date, leader = rfc822_formatted_time(), self._service.leader_url()
        if self._lines_for != (date, leader):
            text = f"Date: {date}\r\nHorae-Node: {self._service.node_id}\r\n"
            if leader is not None and leader.isascii():  # an older build took others into the state
                text += f"Horae-Leader: {leader}\r\n"
            self._lines_for, self._lines = (date, leader), text.encode("latin-1")
        return self._lines

    def _document(self) -> bytes:
        """`/openapi.json`, made when it is first asked for."""
        if not self._contract:
            self._contract = openapi.document(self.routes)
        return self._contract


def _may_wait(route: Route, call: Call) -> bool:
    return route.waits or bool(getattr(call.query, "wait_seconds", False))


def _problem_answer(problem: Problem, header_lines: bytes = b"") -> Answer:
    return Answer(problem.status, PROBLEM, _encode(problem), header_lines)
