"""`GET /v1/events`: what this node applies, as server-sent events: a stream that ends with its reader or the node.

Not here: which events there are, and how long they are kept (`horae_node/events.py`, `horae_node/feed.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from horae import wire
from horae_http import errors
from horae_http.answer import BUFFERED_BYTES_MAX, Answer, start_of_head
from horae_http.jobs import require_filtered
from horae_http.routing import Call, Route
from horae_node.events import Place
from horae_node.feed import Page, Subscription, Wanted, place_of
from horae_node.service import Service

EVENT_STREAM: Final = b"text/event-stream"
RESUME_HEADER: Final = "Last-Event-ID"

_HEAD_LINES: Final = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
"""The second one lets nginx pass each event on as it comes."""
_RETRY: Final = b"retry: 1000\n"
"""How soon a browser connects again: an election takes about a second."""
_VANISHED_MS: Final = 60_000
"""A reader whose machine is gone says no word: its connection ends when it has confirmed nothing for so long, four of
what a stream writes in silence. By itself the system tries for a quarter of an hour."""

_encode = msgspec.json.Encoder().encode


async def stream_events(service: Service, call: Call) -> Answer:
    query: wire.EventsQuery = call.query
    queues = None if query.queue is None else frozenset(query.queue.split(","))
    for queue in sorted(queues) if queues else (None,):
        require_filtered(call, queue, "/queue")
    types = None if query.types is None else frozenset(query.types.split(","))
    return EventsAnswer(service.events(_after(call), Wanted(types, queues)))


def _after(call: Call) -> Place | None:
    """The header wins: the address that a browser connects to again still has the `after` that it began with.

    Raises: `Failure("invalid")`.
    """
    resumed = call.headers.get(RESUME_HEADER)
    if not resumed:
        return None if call.query.after is None else place_of(call.query.after)
    try:
        return place_of(msgspec.convert(resumed, wire.EventId))
    except msgspec.ValidationError as error:
        raise errors.invalid(error, f"/{RESUME_HEADER}") from error


class EventsAnswer(Answer):
    """The stream. It has no length: its end is the connection's. Whatever ends it closes the subscription."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(200, EVENT_STREAM, b"", _HEAD_LINES)
        self._subscription = subscription

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        await super().prepare(request)
        self._last_of_connection = True
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Write as long as the node tells. Raises: ConnectionResetError when the caller is gone, or does not read."""
        request = self._request
        assert request is not None
        try:
            head = start_of_head((200, EVENT_STREAM)) + self.header_lines + b"Connection: close\r\n\r\n"
            if request.method == "HEAD":
                await self._write(head, request)
                return
            _end_if_vanished(request.transport)
            await self._write(head + _RETRY + _mark(self._subscription.resume), request)
            while (page := await self._subscription.page()) is not None:
                await self._write(_text_of(page), request)
        finally:
            self._subscription.close()

    async def _write(self, text: bytes, request: web.BaseRequest) -> None:
        transport: asyncio.Transport | None = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the caller hung up")
        transport.write(text)
        if transport.get_write_buffer_size() > BUFFERED_BYTES_MAX:
            await self._wait_read(transport, request.writer)


def _end_if_vanished(transport: asyncio.Transport | None) -> None:
    if transport is not None and not transport.is_closing() and hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):  # gone already: the next write tells
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_MS)


def _text_of(page: Page) -> bytes:
    parts = [] if page.behind is None else [_event(page.behind)]
    parts += [_event(event) for event in page.events]
    return b"".join(parts) if parts else b": \n" + _mark(page.resume)


def _event(event: wire.Event | wire.FellBehind) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.type.encode(), _encode(event))


def _mark(event_id: str) -> bytes:
    """No event: where the reader is, should it connect again before the next one."""
    return b"id: %s\n\n" % event_id.encode()


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/events",
        "readEvents",
        "Every change of state, in log order, from now on or after an event that was seen; any node goes on with it. "
        "A header `Last-Event-ID` takes the place of `after`.",
        stream_events,
        {200: None},
        "read",
        query=wire.EventsQuery,
        leader=False,
        events=(wire.Event, wire.FellBehind),
    ),
)
