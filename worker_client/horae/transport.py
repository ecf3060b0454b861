"""One call to the cluster, however many tries it takes: leader following, fail-over, back-off, one deadline.

The only home of aiohttp in `horae`. It repeats every call whose outcome is not known, so a caller must make calls that
may be repeated (an id, a claim id, a lease token, a read). Bodies are MessagePack. Next to read: `client.py`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec
from yarl import URL

from horae import backoff, checks, clock, errors
from horae.nodes import Node, Nodes
from horae.trouble import Kind, Trouble
from horae.wire import Problem

T = TypeVar("T")

TRY_SECONDS = 5.0
"""How long one node may be silent before another is asked: above `LEADER_SECONDS`."""
LEADER_SECONDS = 2.0
"""A node without a leader waits so long for one before it says so."""
LEAST_TRY_SECONDS = 0.02
"""No try after a failed one is begun with less than this left: not even a refused connection tells in less."""
CONNECT_SECONDS = 2.0
"""A host that drops packets must not eat the deadline."""
BODY_BYTES_PER_SECOND = 4 * 1024 * 1024
"""A big body may take its time: a try gets a second more for so many bytes."""
STREAM_SILENCE_SECONDS = 40.0
"""A stream says each 15 s that it lives."""
RETRY_AFTER_SECONDS = 0.5
"""When a node that cannot serve names no `Retry-After`."""
MSGPACK = "application/msgpack"

_ON_THE_WAY_SECONDS = 0.5
"""For that answer to get here."""
_LOCAL = "consistency=local"
"""A read that waits for no leader."""
_TRANSIENT = frozenset({"no_leader", "shutting_down", "outcome_unknown"})
"""Problems of one node or one moment: another node, or a later try, may serve."""


class Answer(NamedTuple):
    """A 2xx. `repeated`: an earlier try of the same call may have taken effect before this one."""

    status: int
    body: bytes
    json: bool
    repeated: bool
    url: str
    stream: Stream | None = None
    """In the place of a body, where one was asked for."""

    def decode(self, shape: type[T]) -> T:
        """The body as `shape`. Raises: `RequestError` (`bad_answer`) when it is not: it came from something else."""
        try:
            return _decode(self.body, self.json, shape)
        except msgspec.MsgspecError as error:
            detail = f"{self.url} is no horae node, or one of another version: its answer is not understood"
            raise errors.made_here("bad_answer", self.status, "Bad answer", detail) from error


class Stream:
    """A body that comes bit by bit, for as long as its node lives."""

    def __init__(self, node: Node, nodes: Nodes, response: aiohttp.ClientResponse, now: Callable[[], float]) -> None:
        self._node = node
        self._nodes = nodes
        self._response = response
        self._now = now
        self._began = now()

    async def lines(self) -> AsyncGenerator[str, None]:
        """Until it ends, for whatever reason; then another node is asked before this one. Close it when done."""
        try:
            while line := await self._response.content.readline():
                yield line.decode(errors="replace").rstrip("\r\n")
            self.avoid()
        except (aiohttp.ClientError, OSError, ValueError):
            self._nodes.failed(self._node, began=self._began, now=self._now())
        finally:
            self._response.close()

    def avoid(self) -> None:
        """Ask others first for a while."""
        self._nodes.refused(self._node, seconds=RETRY_AFTER_SECONDS, now=self._now())


class Again(NamedTuple):
    """What a call sends from its second try on, and how long the server is asked to hold its answer back then."""

    body: bytes
    wait_seconds: float


class Refusal(Exception):
    """A definite problem, and whether an earlier try may have taken effect. `client` turns it into the public error."""

    def __init__(self, error: errors.RequestError, repeated: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.repeated = repeated


class _NoAnswer(Exception):
    """A try that failed below HTTP. `handed_on`: the request may have reached the node. `str` of it is for people.

    `cut_short`: it ended before a node without a leader would have said so.
    """

    def __init__(self, why: str, handed_on: bool, *, cut_short: bool = False) -> None:
        super().__init__(why)
        self.handed_on = handed_on
        self.cut_short = cut_short


class _Try(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    stream: aiohttp.ClientResponse | None = None


class Transport:
    """Connections to one cluster, for one event loop. Close it on that loop."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
        trouble: Trouble | None = None,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.nodes = Nodes(urls)
        checks.credentials(self.nodes.configured_urls, token)
        self._trouble = trouble
        self._heard = False
        self._headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._connections = connections
        self._tls = tls
        self._now = now
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Of the session."""
        self._forgotten: weakref.finalize[..., Transport] | None = None
        self._disowned = False

    async def close(self) -> None:
        """Drop all connections. A second close does nothing."""
        session, self._session = self._session, None
        if self._forgotten is not None:
            self._forgotten.detach()
        if session is not None:
            await session.close()

    def disown(self) -> None:
        """Somebody else sees to it that this is closed, whatever happens to this object."""
        self._disowned = True

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        deadline: float,
        wait_seconds: float = 0.0,
        try_seconds: float = TRY_SECONDS,
        again: Again | None = None,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> Answer:
        """The answer of the first node that serves the call; with `stream` as soon as its body begins.

        `path` is encoded, with its query; `headers` are more.

        `deadline` is on the monotonic clock; `wait_seconds` is how long the server was asked to hold the answer back;
        `again`: what to send instead once a try has failed.
        Raises: `Refusal` (definite), `OutcomeUnknown` (not for a GET), `NoLeader`, `RateLimited`, `ShuttingDown`,
        `Unreachable`.
        """
        past = _Past(reads=method == "GET")
        try_seconds += len(body) / BODY_BYTES_PER_SECOND if body else 0.0
        while True:
            if again is not None and past.failed:
                body, wait_seconds = again
            began = self._now()
            node, pause = self.nodes.pick(began)
            if began + pause >= deadline or past.in_vain(node, deadline - began):
                raise past.error(self._heard)
            if pause > 0:
                await asyncio.sleep(pause)
                continue
            try:
                left = min(try_seconds + wait_seconds, deadline - began)
                got = await self._try(node, method, path, body, left, headers, stream)
            except _NoAnswer as error:
                now = self._now()
                self.nodes.failed(node, began=began, now=now)
                past.no_answer(error)
                self._tell(str(error), began + wait_seconds, now, "unreachable")
                continue
            self._heard = True
            self.nodes.heard(node, _leader_url(got))
            if got.status < 300:
                if self._trouble is not None:
                    self._trouble.over(self._now())
                body_of = None if got.stream is None else Stream(node, self.nodes, got.stream, self._now)
                return Answer(got.status, got.body, _is_json(got), past.perhaps_done, node.shown, body_of)
            problem = errors.error_of(_problem(got, node.shown))
            pause = self._settle(node, got, problem, past.perhaps_done, elsewhere=stream)
            now = self._now()
            past.refused(node, problem, now - began)
            kind: Kind = "turned_away" if got.status == 429 else "not_serving"
            self._tell(f"{node.shown}: {problem}", began + wait_seconds, now, kind)
            if pause > 0:
                if now + pause >= deadline:
                    raise past.error(self._heard)
                await asyncio.sleep(pause)

    def _tell(self, why: str, due: float, now: float, kind: Kind) -> None:
        if self._trouble is not None:
            self._trouble.failed(why, due=due, now=now, kind=kind)

    def _settle(self, node: Node, got: _Try, error: errors.RequestError, repeated: bool, *, elsewhere: bool) -> float:
        """After a problem: raise it if it is final, else how long to wait before the next try.

        `elsewhere`: another node may have room where this one has none.
        """
        asked = _retry_after(got)
        if got.status == 429 and not elsewhere:
            # The leader sheds for all: another node would only hand the call on to it.
            return backoff.spread(asked or RETRY_AFTER_SECONDS)
        if error.code not in _TRANSIENT and got.status not in (429, 500, 502, 503, 504):
            raise Refusal(error, repeated)
        # A leader that it named is not paused, and is asked at once; two that name each other are both paused.
        self.nodes.refused(node, seconds=asked or RETRY_AFTER_SECONDS, now=self._now())
        return 0.0

    async def _try(
        self,
        node: Node,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        headers: Mapping[str, str] | None,
        stream: bool,
    ) -> _Try:
        session = self._session_here()
        total, silence = (None, STREAM_SILENCE_SECONDS) if stream else (seconds, None)
        limits = aiohttp.ClientTimeout(total=total, sock_read=silence, sock_connect=min(CONNECT_SECONDS, seconds))
        try:
            async with asyncio.timeout(seconds):
                response = await session.request(
                    method,
                    URL(node.url + path, encoded=True),
                    data=body,
                    headers=self._headers if headers is None else {**self._headers, **headers},
                    timeout=limits,
                    allow_redirects=False,
                )
                if stream and response.status == 200:
                    return _Try(response.status, response.headers, b"", response)
                async with response:
                    return _Try(response.status, response.headers, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _NoAnswer(f"{node.shown}: {_in_words(error)}", False) from error
        except TimeoutError as error:
            cut_short = seconds < LEADER_SECONDS + _ON_THE_WAY_SECONDS and not path.endswith(_LOCAL)
            raise _NoAnswer(f"{node.shown}: no answer in {seconds:.1f} s", True, cut_short=cut_short) from error
        except aiohttp.ClientResponseError as error:
            raise Refusal(_foreign(f"{node.shown} is no horae node: it does not speak HTTP"), False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _NoAnswer(f"{node.shown}: {_in_words(error)}", True) from error

    def _session_here(self) -> aiohttp.ClientSession:
        if self._session is None:
            return self._open()
        if self._loop is not asyncio.get_running_loop():
            raise RuntimeError("this client has connections of another event loop: make one for each loop")
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        self._loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(
            limit=self._connections, ssl=self._tls if self._tls is not None else True, keepalive_timeout=30
        )
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=False
        )
        if not self._disowned:
            self._forgotten = weakref.finalize(self, _drop, self._session, connector, self._loop)
        return self._session


def _drop(session: aiohttp.ClientSession, connector: aiohttp.TCPConnector, loop: asyncio.AbstractEventLoop) -> None:
    """The owner of this session is gone, and did not close it: do it for it, and say so in one line of our own."""
    session.detach()
    if loop.is_closed() or _runs_here(loop):
        _close_now(connector)
    else:  # another thread's, or one that may run again
        loop.call_soon_threadsafe(_close_now, connector)
    words = "an AsyncClient was not closed: use it as `async with AsyncClient(...)`, or call `await client.close()`"
    warnings.warn(words, ResourceWarning, stacklevel=3)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _close_now(connector: aiohttp.TCPConnector) -> None:
    """Its first step drops the connections; what it then waits for needs nobody. On its loop's thread only."""
    closing = connector.close()
    with suppress(StopIteration):
        closing.send(None)
    closing.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest loop at hand: uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Past:
    """What one call has met so far: whether it may have taken effect, and what to raise at its deadline."""

    __slots__ = ("_definite", "_last", "_reads", "_slow", "failed", "perhaps_done")

    def __init__(self, *, reads: bool) -> None:
        self._reads = reads
        self._last: Exception = _NoAnswer("no time was left for a try", False)
        self._definite: errors.RequestError | None = None
        self._slow: dict[Node, float] = {}
        self.perhaps_done = False
        self.failed = False

    def no_answer(self, error: _NoAnswer) -> None:
        self.failed = True
        self.perhaps_done |= error.handed_on
        self._last = error

    def refused(self, node: Node, error: errors.RequestError, took: float) -> None:
        self.failed = True
        self._last = error
        if _perhaps_done(error):
            self.perhaps_done = True
        else:
            self._definite = error
            self._slow[node] = took

    def in_vain(self, node: Node, seconds: float) -> bool:
        """So many seconds would not do: the node took longer to say that it cannot, or even a connection takes as long.
        A try that is cut short would turn "nothing was done" into "nobody knows".
        """
        least = LEAST_TRY_SECONDS if self.failed else 0.0
        return not self.perhaps_done and seconds < self._slow.get(node, least)

    def error(self, heard: bool) -> errors.HoraeError:
        """`heard`: something has answered by HTTP once."""
        if self.perhaps_done and not self._reads:
            before = "" if self._definite is None else f"; before that {self._definite}"
            why = f"{self._last}{self._hint(heard=True)}{before}"
            told = "no answer before the deadline, it may or may not take effect: repeat it, with the same id if any"
            detail = f"{told} ({why})"
            return errors.made_here("outcome_unknown", 504, "Outcome unknown", detail)
        if self._definite is not None:
            return self._definite
        why = f"{self._last}{self._hint(heard)}"
        return errors.Unreachable(f"no node answered before the deadline: {why}", why)

    def _hint(self, heard: bool) -> str:
        """What the silence may mean, as far as it is known."""
        hints = []
        if isinstance(self._last, _NoAnswer) and self._last.cut_short:
            hints.append(f"a node without a leader takes {LEADER_SECONDS:g} s to say so: give it longer")
        if self.perhaps_done and not heard:
            hints.append("is that a node's HTTP port?")
        return f" ({'; or '.join(hints)})" if hints else ""


def _perhaps_done(error: errors.RequestError) -> bool:
    """A 5xx without a code of ours (a proxy's) tells nothing about what the node behind it did."""
    if isinstance(error, errors.NoLeader | errors.ShuttingDown | errors.RateLimited):
        return False
    return isinstance(error, errors.OutcomeUnknown) or error.status >= 500


def _in_words(error: Exception) -> str:
    """Why there was no answer, for people: the library's own texts are for its authors."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({error.certificate_error})"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "no TLS there (is it http://?)"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, TimeoutError):
        return f"no connection in {CONNECT_SECONDS:g} s"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno).lower()
    return "the connection was closed without an answer"


def _foreign(detail: str, status: int = 0) -> errors.RequestError:
    return errors.made_here("not_horae", status, "Foreign answer", detail)


def _leader_url(got: _Try) -> str | None:
    """The leader that the answer names; a header that is no URL (a proxy's doing) counts as none."""
    url = got.headers.get("Horae-Leader")
    return url if url and url.startswith(("http://", "https://")) else None


def _retry_after(got: _Try) -> float:
    """Seconds; 0 when the header is missing, or a date (which would need the server's clock)."""
    try:
        return max(0.0, float(got.headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0


def _is_json(got: _Try) -> bool:
    return "json" in got.headers.get("Content-Type", "")


def _problem(got: _Try, url: str) -> Problem:
    """The answer's problem; one made from the status when a proxy, not a node of ours, wrote the answer."""
    try:
        return _decode(got.body, _is_json(got), Problem)
    except msgspec.MsgspecError:
        kind = got.headers.get("Content-Type", "nothing").partition(";")[0]
        detail = f"{url} answered {got.status} with {kind[:50]}: no horae node, or a proxy that has none behind it"
        return _foreign(detail, got.status).problem


_decoders: dict[tuple[Any, bool], Callable[[bytes], Any]] = {}


def _decode(body: bytes, json: bool, shape: type[T]) -> T:
    decode = _decoders.get((shape, json))
    if decode is None:
        decoder: Any = msgspec.json.Decoder(shape) if json else msgspec.msgpack.Decoder(shape)
        decode = _decoders[shape, json] = decoder.decode
    value: T = decode(body)
    return value
