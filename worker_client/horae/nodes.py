"""Which node to ask next: the leader if one is known, else the others in turn, none again before its pause is over.

Pure bookkeeping: no I/O, no clock (the caller passes `now`, monotonic seconds). Next to read: `transport.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from horae import backoff


class Node:
    """One base URL and what was seen of it lately."""

    __slots__ = ("failures", "paused_at", "paused_until", "shown", "url")

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown = shown(url)
        self.failures = 0
        self.paused_at = 0.0
        self.paused_until = 0.0


class Nodes:
    """The configured nodes, and the leader that they name (which need not be among them)."""

    def __init__(self, urls: Sequence[str]) -> None:
        """`urls`: base URLs, at least one. Raises: ValueError."""
        self._configured = [Node(url) for url in dict.fromkeys(base_url(text) for text in urls)]
        if not self._configured:
            raise ValueError("at least one base URL is needed, as http://127.0.0.1:7070")
        self._leader: Node | None = None
        self._learned: Node | None = None
        self._turn = 0

    @property
    def configured_urls(self) -> list[str]:
        """Those given, each once."""
        return [node.url for node in self._configured]

    @property
    def leader_url(self) -> str | None:
        """The leader as last heard of."""
        return self._leader.url if self._leader is not None else None

    def pick(self, now: float) -> tuple[Node, float]:
        """The node to ask, and how many seconds to wait before asking it (0 nearly always)."""
        leader = self._leader
        if leader is not None and leader.paused_until <= now:
            return leader, 0.0
        nodes = self._configured
        for step in range(len(nodes)):
            node = nodes[(self._turn + step) % len(nodes)]
            if node.paused_until <= now:
                self._turn = (self._turn + step) % len(nodes)
                return node, 0.0
        soonest = min(nodes, key=_paused_until)
        return soonest, soonest.paused_until - now

    def heard(self, node: Node, leader_url: str | None) -> None:
        """`node` answered, and named this leader (None: it knows of none)."""
        node.failures = 0
        if leader_url:
            if self._leader is None or self._leader.url != leader_url:
                self._leader = self._named(base_url(leader_url))
        elif self._leader is node:
            self._leader = None

    def failed(self, node: Node, *, began: float, now: float) -> None:
        """A try on `node` that began at `began` got no answer: leave it alone for a while, longer each time.

        Many calls that fail together count as one failure: only a try begun after the last pause was set adds to it.
        """
        if self._leader is node:
            self._leader = None
        if began < node.paused_at:
            return
        node.failures += 1
        self._pause(node, now, backoff.delay_seconds(node.failures))

    def refused(self, node: Node, *, seconds: float, now: float) -> None:
        """`node` answered that it cannot serve for about `seconds`."""
        if self._leader is node:
            self._leader = None
        self._pause(node, now, backoff.spread(seconds))

    def _pause(self, node: Node, now: float, seconds: float) -> None:
        node.paused_at = now
        node.paused_until = now + seconds
        if self._configured[self._turn] is node:
            self._turn = (self._turn + 1) % len(self._configured)

    def _named(self, url: str) -> Node:
        """The node of this URL. One not configured is remembered, so that its pause outlives being named again."""
        for node in self._configured:
            if node.url == url:
                return node
        if self._learned is None or self._learned.url != url:
            self._learned = Node(url)
        return self._learned


_paused_until: Callable[[Node], float] = lambda node: node.paused_until  # noqa: E731


def base_url(text: str) -> str:
    """A base URL without the slash, and the `/v1`, at its end. Raises: ValueError (TypeError) with the fix."""
    if not isinstance(text, str):
        raise TypeError(f"a base URL is text such as http://127.0.0.1:7070, not {text!r}")
    url = text.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        fit = False
    if not fit or parts.query or parts.fragment or not _ONE_WORD.fullmatch(url) or not url.isprintable():
        better = f"http://{url}" if _HOST_PORT.fullmatch(url) else "http://127.0.0.1:7070"
        raise ValueError(f"not a base URL: {_BEFORE_AT.sub('...@', text)!r}; write it as {better}")
    return url


def shown(url: str) -> str:
    """The URL as it may be told: with no password, nor the user's name before it."""
    return _USER.sub(r"\1...@", url)


_USER = re.compile(r"(//)[^/?#]*@")
_BEFORE_AT = re.compile(r".*@", re.DOTALL)
"""Where no rule holds, a password may be anything."""
_ONE_WORD = re.compile(r"[^\s\\]+")
_HOST_PORT = re.compile(r"[A-Za-z0-9.-]+(:[0-9]{1,5})?")
