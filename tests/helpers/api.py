"""A plain HTTP caller for the tests: one request as asked, or one repeated by its key until a node answers it.

Knows the contract's encodings and nothing of the server or of the SDK: what it sends is what any language would. Not
here: processes (`cluster.py`), judgement (`ledger.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from yarl import URL

JSON = "application/json"
MSGPACK = "application/msgpack"
PROBLEM = "application/problem+json"

ASK_AGAIN_STATUS = frozenset({429, 503, 504})
"""Shed, no leader, outcome unknown: the contract says to repeat the call with the same key."""

REQUEST_SECONDS = 10.0
"""A node that was killed or paused answers nothing; the caller then turns to another."""

PAUSE_SECONDS = 0.05

LOST_ANSWER = (aiohttp.ClientError, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: `body` decoded (None when empty), header names in any case by `header()`."""

    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0]

    @property
    def body(self) -> Any:
        if not self.raw:
            return None
        return msgspec.msgpack.decode(self.raw) if self.content_type == MSGPACK else json.loads(self.raw)

    @property
    def code(self) -> str | None:
        """The problem's code; None for an answer that is no problem."""
        return self.body.get("code") if self.status >= 400 else None

    def expect(self, status: int, code: str | None = None) -> Any:
        """The body, of an answer that must have this status (and code)."""
        assert (self.status, self.code) == (status, code), (self.status, self.raw[:2000])
        return self.body


class Unanswered(AssertionError):
    """No node answered before the deadline: the cluster was gone for longer than any fault of the test allows."""


class Api:
    """One caller with one pool of connections. `urls` is asked anew for each call: nodes come and go."""

    def __init__(self, urls: Callable[[], list[str]], *, msgpack: bool = False, connections: int = 64) -> None:
        self._urls = urls
        self._msgpack = msgpack
        self._turn = itertools.count()
        connector = aiohttp.TCPConnector(limit=connections)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    async def send(
        self,
        method: str,
        url: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = REQUEST_SECONDS,
    ) -> Answer:
        """One request, byte for byte. Raises: one of `LOST_ANSWER`."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=2)
        async with self._session.request(
            method, URL(url, encoded=True), data=data, headers=headers, timeout=timeout
        ) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def call(
        self, method: str, path: str, body: Any = None, *, url: str | None = None, wait_seconds: float = 0
    ) -> Answer:
        """One request in this encoding, to `url` or the next node. `wait_seconds` is what the call may wait."""
        headers = {"Accept": MSGPACK if self._msgpack else JSON}
        data = None
        if body is not None:
            headers["Content-Type"] = headers["Accept"]
            data = msgspec.msgpack.encode(body) if self._msgpack else json.dumps(body).encode()
        return await self.send(method, (url or self._next_url()) + path, data, headers, REQUEST_SECONDS + wait_seconds)

    async def call_until_answered(
        self, method: str, path: str, body: Any = None, *, deadline_seconds: float = 60, wait_seconds: float = 0
    ) -> Answer:
        """As a careful caller: the same call again, at another node, until the cluster says yes or no.

        The body must carry its key (id, claim id or token). Raises: `Unanswered`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_seconds
        last: object = None
        while loop.time() < deadline:
            try:
                answer = await self.call(method, path, body, wait_seconds=wait_seconds)
                if answer.status not in ASK_AGAIN_STATUS:
                    return answer
                last = answer
            except LOST_ANSWER as error:
                last = error
            await asyncio.sleep(PAUSE_SECONDS)
        raise Unanswered(f"{method} {path}: {last!r}")

    def _next_url(self) -> str:
        urls = self._urls()
        return urls[next(self._turn) % len(urls)]
