"""A reader of server-sent events that reads when it is told to, over a connection of its own."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, NamedTuple

READ_SECONDS = 30.0
"""Longer than an election, and than the silence after which a node says that it lives."""


class Frame(NamedTuple):
    """A block of the stream. `type` is "" for one that only says where the reader is."""

    id: str
    type: str
    data: Any


class Stream:
    """`GET path`, sent and answered. `last_id` is what a browser would go on from."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self.head = head
        self.last_id = ""

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    async def frame(self) -> Frame | None:
        """The next block that says anything; None where the stream ends."""
        async with asyncio.timeout(READ_SECONDS):
            fields: dict[str, str] = {}
            while "id" not in fields or fields[""]:
                line = await self._reader.readline()
                if not line:
                    return None
                name, _, value = line.decode().rstrip("\n").partition(": ")
                fields[name] = value
                fields[""] = line.decode().rstrip("\n")  # an empty one ends the block
        self.last_id = fields["id"]
        return Frame(fields["id"], fields.get("event", ""), json.loads(fields.get("data", "null")))

    async def events(self, count: int) -> list[Frame]:
        """The next so many events."""
        found: list[Frame] = []
        while len(found) < count:
            frame = await self.frame()
            assert frame is not None, f"the stream ended after {found}"
            found += [frame] if frame.type else []
        return found

    async def problem(self) -> Any:
        """Of an answer that is no stream."""
        length = int(self.head.lower().partition(b"content-length: ")[2].split()[0])
        async with asyncio.timeout(READ_SECONDS):
            return json.loads(await self._reader.readexactly(length))

    async def ended(self) -> bool:
        """Reads what is left."""
        while await self.frame() is not None:
            pass
        return True

    def hang_up(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


async def open_stream(port: int, query: str = "", *, method: str = "GET", slow: bool = False, **headers: str) -> Stream:
    """Ask, and read the head. Header names have `_` for `-`; with `slow` little is taken in before it is read."""
    sock = socket.socket()
    if slow:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096 if slow else 2**16)
    lines = [f"{method} /v1/events{query} HTTP/1.1", "Host: a"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(READ_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
    return Stream(reader, writer, head)
