"""Answers that their callers have not read yet: how long one may wait, and how much all of them may take.

A caller that asks for pages and reads none costs the node their bytes. One that makes no room within `READ_WAIT_S` is
dropped; while all together hold more than `UNSENT_BYTES_MAX`, the one that has waited longest is. Not here: what is
written. Next to read: `answer.py`.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp.abc import AbstractStreamWriter

from horae_node import logs

READ_WAIT_S: Final = 30.0
"""As long as a body may take on its way in: the largest answers then need some 150 KB/s."""
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Sixteen of the largest pages."""

log = logs.get_log("http")


class Unsent:
    """One for a server, on its loop."""

    def __init__(self) -> None:
        self.read_wait_s = READ_WAIT_S
        self.bytes_max = UNSENT_BYTES_MAX
        self._waiting: dict[asyncio.Transport, int] = {}
        """In the order of their beginning."""
        self.held_bytes = 0

    async def wait_read(self, transport: asyncio.Transport, writer: AbstractStreamWriter) -> None:
        """Until the caller has read most of what was written.

        Raises: ConnectionResetError when the caller is gone, or was dropped because it did not read.
        """
        self._begin(transport)
        try:
            async with asyncio.timeout(self.read_wait_s):
                await writer.drain()
        except TimeoutError as error:
            self._drop(transport)
            raise ConnectionResetError("the caller does not read its answer") from error
        finally:
            self._end(transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        held = transport.get_write_buffer_size()
        self._waiting[transport] = held
        self.held_bytes += held
        while self.held_bytes > self.bytes_max and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            self._end(oldest)
            self._drop(oldest)

    def _end(self, transport: asyncio.Transport) -> None:
        self.held_bytes -= self._waiting.pop(transport, 0)

    def _drop(self, transport: asyncio.Transport) -> None:
        log.event("reader_dropped", unsent_bytes=transport.get_write_buffer_size())
        transport.abort()
