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
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from horae.wire import BODY_BYTES_MAX
from horae_http.app import App
from horae_node.errors import ConfigError

KEEPALIVE_S: Final = 75.0
"""Longer than any caller of ours keeps an idle connection, so that it is the caller who closes."""
BACKLOG: Final = 1024
LINGER_S: Final = 1.0
"""How long kept connections are still answered (`shutting_down`) at a stop: a request that is on its way over one when
it is closed would be in doubt. Longer than an election, after which nobody asks this node any more."""
LINGER_LOOK_S: Final = 0.05
CLOSE_S: Final = 0.1
"""For the connections that are left after that."""


class Running:
    """A server that listens. `stop` it once, on its loop."""

    def __init__(self, app: App, listener: asyncio.Server, connections: web.Server) -> None:
        self._app = app
        self._listener = listener
        self._connections = connections
        self.port: int = listener.sockets[0].getsockname()[1]
        """The port listened on; what the system chose when 0 was asked for."""

    async def stop(self, grace_ms: int) -> None:
        """Stop accepting; let open requests end within the grace; then drop every connection.

        A request that comes meanwhile over an open connection is told `shutting_down`. The application is closed too.
        """
        self._app.stopping = True
        self._listener.close()
        try:
            async with asyncio.timeout(grace_ms / 1000):
                await self._app.idle.wait()
        except TimeoutError:
            pass
        await self._linger()
        await self._connections.shutdown(CLOSE_S)
        self._app.close()

    async def _linger(self) -> None:
        """Until the other sides have closed their connections: each answer now asks them to."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LINGER_S
        while self._connections.connections and loop.time() < end:  # noqa: ASYNC110 (aiohttp tells of no closing)
            await asyncio.sleep(LINGER_LOOK_S)


async def start_server(app: App, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> Running:
    """Listen and serve. Raises: `ConfigError`, in one line, when the address cannot be listened on."""
    loop = asyncio.get_running_loop()

    def make_request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES_MAX)

    connections = web.Server(
        app.handle,
        request_factory=make_request,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=KEEPALIVE_S,
        logger=_protocol_log(),
    )
    try:
        listener = await loop.create_server(connections, host, port, backlog=BACKLOG, ssl=tls)
    except OSError as error:
        raise ConfigError(_why_not(host, port, error)) from error
    return Running(app, listener, connections)


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
