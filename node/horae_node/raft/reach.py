"""Which peers are not connected, since when, and whether that was told: each absence is worth one line, not one a try.

Knows no network and logs nothing: `transport.py` says what it saw, and tells what comes back. Next to read: there.
"""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from horae_node.clock import Clock

UNREACHABLE_S: Final = 5.0
"""Nodes that are started together find each other within a second or two: what lasts longer is no orderly start."""


class _Absence:
    __slots__ = ("answered", "since", "told")

    def __init__(self, since: float) -> None:
        self.since = since
        self.answered = False
        self.told = False


class Reach:
    """The peers that are not connected now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._absent: dict[str, _Absence] = {}

    def expect(self, node_id: str) -> None:
        """It is to be reached, from now on."""
        self._absent[node_id] = _Absence(self._clock.monotonic())

    def drop(self, node_id: str) -> None:
        """It was reached, or need not be any more."""
        self._absent.pop(node_id, None)

    def refused(self, node_id: str) -> None:
        """It is there, and one of us does not want the other: that has a line of its own. Time begins anew."""
        absence = self._absent.get(node_id)
        if absence is not None:
            absence.since = self._clock.monotonic()

    def missed(self, node_id: str) -> float | None:
        """A try was in vain. For how many seconds all were, if that is to be told now: once until it is reached."""
        absence = self._absent.get(node_id)
        if absence is None or absence.told:
            return None
        for_s = self._clock.monotonic() - absence.since
        absence.told = for_s >= UNREACHABLE_S
        return for_s if absence.told else None

    def answered(self, node_id: str) -> float | None:
        """It should call, has not, and answers when asked. As `missed`, from the second time on: a call may be on its
        way at the first."""
        absence = self._absent.get(node_id)
        if absence is None or not absence.answered:
            if absence is not None:
                absence.answered = True
            return None
        return self.missed(node_id)


def reason_of(error: OSError) -> str:
    """Why a connection could not be made, in the system's words: loops phrase it each in their own."""
    if error.errno is None or isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)
