"""The test of the test: one protection of the node taken out, for as long as a `with` lasts. A run must find it.

Each is a small lie about a part that another part relies on. Nothing here is used but to see the judge wake up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from horae_node.clock import ClusterClock
from horae_node.core.context import Context
from horae_node.core.decide import finish
from horae_node.core.tables import RUN, handle_of, id_key, run_of, seq_bytes
from horae_node.raft.guard import Guard, Link
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.raft.pysyncobj_core import LEADER, Message
from horae_node.raft.pysyncobj_journal import Journal

SEEDS_MAX: Final = {"guard": 150, "gate": 100, "token": 20, "clock": 100, "reads": 100}
"""How many seeds a run may need to find it: several times what it took when measured (see the README)."""


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take out the protection of this name."""
    owner, attribute, replacement = _CANARIES[name]()
    with patch.object(owner, attribute, replacement):
        yield


def _guard() -> tuple[object, str, object]:
    """Rule 7: a snapshot's message raises the commit index over a log that was never matched."""
    take_piece = Guard._take_piece

    def unguarded(self: Guard, link: Link, message: Message) -> None:
        last = self._journal.last
        self._core.receive(
            link.peer,
            {
                "type": "append_entries",
                "term": message["term"],
                "commit_index": message["commit_index"],
                "prevLogIdx": last.log_index,
                "prevLogTerm": last.term,
                "entries": (),
            },
        )
        take_piece(self, link, message)

    return Guard, "_take_piece", unguarded


def _gate() -> tuple[object, str, object]:
    """Rule 1: acks and votes leave before what they promise is on disk."""
    return Journal, "durable", property(lambda self: self.mark)


def _token() -> tuple[object, str, object]:
    """Whoever reports is believed, whatever its token."""
    held = finish._held

    def unfenced(ctx: Context, job_id: str, token: int, ending: int) -> Any:
        row = ctx.get(id_key(job_id))
        run_row = None if row is None else ctx.get(RUN + seq_bytes(handle_of(row).seq))
        return held(ctx, job_id, token if run_row is None else run_of(run_row).token, ending)

    return finish, "_held", unfenced


def _clock() -> tuple[object, str, object]:
    """Cluster time is the leader's own wall clock."""
    return ClusterClock, "now_ms", lambda self: self._clock.wall_ms()


def _reads() -> tuple[object, str, object]:
    """A node that believes it leads answers reads without asking anybody."""

    asked = PySyncObjRaft.read_barrier

    async def unasked(self: PySyncObjRaft) -> int:
        core = self._core
        knows_all_before = core.state == LEADER and core.applied >= core.noop_index
        return core.applied if knows_all_before else await asked(self)

    return PySyncObjRaft, "read_barrier", unasked


_CANARIES: Final[dict[str, Callable[[], tuple[object, str, object]]]] = {
    "guard": _guard,
    "gate": _gate,
    "token": _token,
    "clock": _clock,
    "reads": _reads,
}
