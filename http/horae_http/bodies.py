"""Bodies on their way in: how large one may be, how long it may take, and how much all of them may hold.

Not here: what a body says (`codec.py`). Next to read: `app.py`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from horae_http.errors import Failure

BODY_WAIT_S: Final = 30.0
"""How long a caller may take for its body once its head has come: a silent sender must not hold a connection."""
BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""All bodies that came in pieces and are being read or worked on: eight of the largest, whatever callers send. A call
that only waits has let its own go."""
NEW_BYTES_MAX: Final = 48 * 1024 * 1024
"""What of it calls may take that are shed first: the rest is for two of the largest that end work."""


class Bodies:
    """How much of the memory the bodies of all requests take that did not come at once."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, *, last: bool = False) -> Hold:
        """What one request takes, while it is entered and not released. `last`: it is shed after the others."""
        return Hold(self, BODIES_BYTES_MAX if last else NEW_BYTES_MAX)


class Hold:
    __slots__ = ("_bodies", "_bytes", "_bytes_max")

    def __init__(self, bodies: Bodies, bytes_max: int) -> None:
        self._bodies = bodies
        self._bytes_max = bytes_max
        self._bytes = 0

    def take(self, more_bytes: int) -> None:
        """Raises: `Failure("rate_limited")` when all bodies together would have too much."""
        if self._bodies.held_bytes + more_bytes > self._bytes_max:
            raise Failure("rate_limited", "too many large bodies are on their way at once: nothing was done")
        self._bodies.held_bytes += more_bytes
        self._bytes += more_bytes

    def release(self) -> None:
        """What was taken is free for others. A second call does nothing."""
        self._bodies.held_bytes -= self._bytes
        self._bytes = 0

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def require_body(request: web.BaseRequest, bytes_max: int) -> None:
    """The head promises a body that may be read. Raises: `Failure` (`too_large`, `unsupported_media_type`)."""
    encoding = request.headers.get("Content-Encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise Failure("unsupported_media_type", f"a body in the encoding {encoding[:100]!r} is not read: send it plain")
    if (request.content_length or 0) > bytes_max:
        raise _body_too_large(bytes_max)


async def receive(request: web.BaseRequest, bytes_max: int, hold: Hold | None = None) -> bytes:
    """The whole body: `hold` takes what does not come at once; without it, it must be there.

    Raises: `Failure` (`too_large`, `malformed`, `rate_limited`); ConnectionError when the caller is gone.
    """
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        if hold is None:
            raw = request.content.read_nowait()
            if len(raw) > bytes_max:
                raise _body_too_large(bytes_max)
            return raw
        async with asyncio.timeout(BODY_WAIT_S):
            return await _gather(request.content, bytes_max, hold)
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise Failure("malformed", "the body does not follow its own framing") from error
    except TimeoutError as error:
        raise Failure("malformed", f"the body did not come within {BODY_WAIT_S:g} s") from error


async def _gather(content: StreamReader, bytes_max: int, hold: Hold) -> bytes:
    body = bytearray()
    while chunk := await content.readany():
        hold.take(len(chunk))
        body += chunk
        if len(body) > bytes_max:
            raise _body_too_large(bytes_max)
    return bytes(body)


def _body_too_large(bytes_max: int) -> Failure:
    return Failure("too_large", f"the body has more than {bytes_max} bytes, the most of this call: send less at once")
