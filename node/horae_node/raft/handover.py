"""Handing the lead over: the leader waits until the next one has everything, calls it up, and steps aside.

The call (`lead_now`) lets that node stand at once, without asking first who hears a leader; its vote requests say so,
and are granted by those who do hear one. A call that is not followed in time is called off (`lead_not`). The library's
own `timeout_now` is never let through: it names no term's leader, and its votes would be refused. Not here: who stops
proposing (`pysyncobj_adapter.py`).
"""

from __future__ import annotations

from horae_node.raft.pysyncobj_core import Core, Peer
from horae_node.raft.pysyncobj_journal import Journal


class Handover:
    """One attempt, as the leader sees it."""

    __slots__ = ("_core", "_journal", "called", "deadline", "peer")

    def __init__(self, core: Core, journal: Journal, peer: Peer, deadline: float) -> None:
        self._core = core
        self._journal = journal
        self.peer = peer
        self.deadline = deadline
        """On the monotonic clock, s: then this node leads on."""
        self.called = False

    def is_due(self) -> bool:
        """The other has all that we have, on its disk, and was not called yet."""
        last = self._journal.last_index
        return not self.called and self._core.match_index.get(self.peer, 0) >= last == self._journal.durable_index


class Call:
    """A call to lead, as the one who is called sees it."""

    __slots__ = ("term", "until")

    def __init__(self) -> None:
        self.until = 0.0
        """On the monotonic clock, s: a call that could not be followed by then is forgotten."""
        self.term = 0
        """The term that this node stands in on a call: its vote requests say so."""
