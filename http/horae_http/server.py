"""The socket that the contract is served on, and its orderly end.

Not here: what is answered (`app.py`). Next to read: `answer.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from typing import Final

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


async def start_server(app: App, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> Running:
    """Listen and serve. Raises: `ConfigError`, in one line, when the address cannot be listened on."""
    loop = asyncio.get_running_loop()

    connections = _Connections(app)
    try:
        listener = await loop.create_server(connections, host, port, backlog=BACKLOG, ssl=tls)
    except OSError as error:
        raise ConfigError(_why_not(host, port, error)) from error
    return Running(app, listener, connections)


class _Connections(web.Server):
    """Makes the protocol of each connection."""

    def __init__(self, app: App) -> None:
        super().__init__(app.handle, handler_cancellation=True)
        self._app = app
        self._log = _protocol_log()

    def __call__(self) -> RequestHandler:
        return _Connection(self, self._app, self._loop, self._log)


class _Connection(RequestHandler):
    """Its refusals are problems, too."""

    __slots__ = ("_app",)

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
