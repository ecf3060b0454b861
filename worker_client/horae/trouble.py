"""Trouble that lasts, told once it has lasted, now and then while it goes on, and once when it is over.

Pure bookkeeping: no I/O, no clock (the caller passes `now`, monotonic seconds). Who tells whom is its owner's: the
worker logs (`worker.py`), the commands print (`cli.py`). Fed by `transport.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

Kind = Literal["unreachable", "not_serving", "turned_away"]
"""No node answers; one answers that it cannot serve, so that nothing is wrong with the way to it; the cluster serves,
and turns the call away (429): it has too much to do, or a queue is full."""


class Tell(Protocol):
    def __call__(self, why: str | None, seconds: float, kind: Kind) -> None:
        """Calls have failed for so many seconds, last because of `why`; None: they are answered again."""


class Trouble:
    """A call that is answered ends it. Short trouble (a fail-over, one dead node of three) is never told."""

    def __init__(self, tell: Tell, *, first_seconds: float, again_seconds: float) -> None:
        self._tell: Callable[[str | None, float, Kind], None] = tell
        self._first_seconds = first_seconds
        self._again_seconds = again_seconds
        self._since: float | None = None
        self._tell_at = 0.0
        self._told = False

    def failed(self, why: str, *, due: float, now: float, kind: Kind) -> None:
        """A try has failed just now, whose answer was to be had from `due` on (or now, when that is still to come)."""
        if self._since is None:
            self._since = min(due, now)
            self._tell_at = self._since + self._first_seconds
        if now >= self._tell_at:
            self._tell_at = now + self._again_seconds
            self._told = True
            self._tell(why, now - self._since, kind)

    def over(self, now: float) -> None:
        """A call was answered."""
        since, self._since = self._since, None
        if since is not None and self._told:
            self._told = False
            self._tell(None, now - since, "not_serving")
