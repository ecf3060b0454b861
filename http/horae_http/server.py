"""The socket that the contract is served on, and its orderly end.

Not here: what is answered (`app.py`). Next to read: `answer.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import ssl
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from horae_http.app import App
from horae_node import logs
from horae_node.errors import ConfigError

KEEPALIVE_S: Final = 75.0
"""Longer than any caller of ours keeps an idle connection, so that it is the caller who closes."""
BACKLOG: Final = 1024
LINGER_S: Final = 1.0
"""How long kept connections are still answered (`shutting_down`) at a stop: a request that is on its way over one when
it is closed would be in doubt. Longer than an election, after which nobody asks this node any more."""
LINGER_LOOK_S: Final = 0.05
HEAD_LINE_BYTES_MAX: Final = 8190
"""The parser's own bound, said where it refuses."""
FILES_MAX: Final = 131_072
"""Files of a node: as many as parked claims, waiting readings and all other connections can ever need."""
REFUSED_S: Final = 1.0
"""How long a connection past the bound may take to read why it is refused."""
REFUSED_MAX: Final = 200
"""So many may be reading that at once; past it they are just closed."""
CLOSE_S: Final = 0.1
"""For the connections that are left after that."""

log = logs.get_log("http")


class Running:
    """A server that listens. `stop` it once, on its loop."""

    def __init__(self, app: App, listener: asyncio.Server, connections: web.Server) -> None:
        self._app = app
        self._listener = listener
        self.connections = connections
        self.port: int = listener.sockets[0].getsockname()[1]
        """The port listened on; what the system chose when 0 was asked for."""

    async def stop(self, grace_ms: int) -> None:
        """Stop accepting; end those who only wait; let other requests end within the grace; then drop every connection.

        A request that comes meanwhile over an open connection is told `shutting_down`. The application is closed too.
        """
        self._app.stop_waiting()
        self._listener.close()
        try:
            async with asyncio.timeout(grace_ms / 1000):
                await self._app.idle.wait()
                await self._app.settle()
        except TimeoutError:
            pass
        await self._linger()
        await self.connections.shutdown(CLOSE_S)
        self._app.close()

    async def _linger(self) -> None:
        """Until the other sides have closed their connections: each answer now asks them to."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LINGER_S
        while self.connections.connections and loop.time() < end:  # noqa: ASYNC110 (aiohttp tells of no closing)
            await asyncio.sleep(LINGER_LOOK_S)


def raise_connections_max() -> int:
    """Let this process have as many files as it may; how many connections can be served then.

    Half of the files: a connection whose requests are passed on to the leader may need a second one, and what is left
    is for the log, the state and the peers, which must never find none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = max(soft, FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files // 2


async def start_server(
    app: App,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    connections_max: int = FILES_MAX // 2,
) -> Running:
    """Listen and serve; past `connections_max` a connection is refused with 429 and closed.

    Raises: `ConfigError`, in one line, when the address cannot be listened on.
    """
    loop = asyncio.get_running_loop()

    connections = _Connections(app, connections_max)
    try:
        listener = await loop.create_server(connections, host, port, backlog=BACKLOG, ssl=tls)
    except OSError as error:
        raise ConfigError(_why_not(host, port, error)) from error
    return Running(app, listener, connections)


class _Connections(web.Server):
    """Makes the protocol of each connection."""

    def __init__(self, app: App, connections_max: int) -> None:
        super().__init__(app.handle, handler_cancellation=True)
        self._app = app
        self._log = _protocol_log()
        self._connections_max = connections_max
        self.open = 0
        """Connections that are served."""
        self.refused = 0
        """Connections that read why they are not."""

    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]  # who is refused gets none of aiohttp's
        if self.open >= self._connections_max:
            return _Refusal(self, self._app)
        return _Connection(self, self._app, self._loop, self._log)


class _Connection(RequestHandler):
    """Its refusals are problems, too."""

    __slots__ = ("_app", "_owner")

    def __init__(self, owner: _Connections, app: App, loop: asyncio.AbstractEventLoop, logger: logging.Logger) -> None:
        super().__init__(
            owner,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # the declared type forgets that it turns the log off
            keepalive_timeout=KEEPALIVE_S,
            logger=logger,
            auto_decompress=False,
        )
        self._app = app
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.open += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._owner.open -= 1
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer where no handler could give one: the parser refused, whatever its status, is `malformed`."""
        if isinstance(exc, HttpProcessingError):
            return self._app.refuse("malformed", _why_malformed(exc))
        log.error("request_failed", exc=exc)
        return self._app.refuse("internal", "the node failed at this request; its log says how")


class _Refusal(asyncio.Protocol):
    """Says that there are too many connections, whatever is asked: what comes is read, so that the answer is, too."""

    def __init__(self, owner: _Connections, app: App) -> None:
        self._owner = owner
        self._app = app
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.refused += 1
        transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        if self._owner.refused > REFUSED_MAX:
            transport.abort()
            return
        transport.write(self._app.refuse_connection(self._owner.open))
        if transport.can_write_eof():
            transport.write_eof()
        self._timer = asyncio.get_running_loop().call_later(REFUSED_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.refused -= 1
        if self._timer is not None:
            self._timer.cancel()


def _why_malformed(error: HttpProcessingError) -> str:
    if isinstance(error, LineTooLong):
        return f"the request's target, or a header of it, has more than {HEAD_LINE_BYTES_MAX} bytes"
    reason = error.message.partition("\n")[0].rstrip(":")[:200]
    return "this is no request that HTTP/1.1 allows: " + reason.encode("ascii", "backslashreplace").decode()


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"http_listen: port {port} on {host} is in use: stop what listens there, or choose another port"
    return f"http_listen: cannot listen on {host} port {port}: {error.strerror or error}"


class _NoGarbage(logging.Filter):
    """Bytes that are no HTTP are the sender's trouble: answered with 400, no line and no traceback in our log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))


def _protocol_log() -> logging.Logger:
    logger = logging.getLogger("horae.http.protocol")
    if not logger.filters:
        logger.addFilter(_NoGarbage())
    return logger
