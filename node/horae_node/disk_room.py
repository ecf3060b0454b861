"""Little room on a disk: noticed, told to the others, and answered by another leader, or a refusal that says where.

A node whose disk is low still keeps what it is sent and finishes what is in hand; it should not lead, for who leads
takes new work. So it hands the lead to a voter that has room. Where there is none, or where no majority has room, new
work is turned away until somebody makes some. May not touch a file: free bytes are asked for. Not here: what a log or
a state does when a write finds no room (`applier.py`, `raft/pysyncobj_adapter.py`). Next to read: `runtime.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from horae_node.logs import get_log
from horae_node.membership import CAUGHT_UP_ENTRIES
from horae_node.proposer import Proposer
from horae_node.raft.port import Raft, RaftStatus

ROOM_BYTES_MIN: Final = 64 << 20
"""Free disk below which new work is turned away, so that what is in hand can still be finished and logged."""

ROOM_BYTES_AGAIN: Final = 72 << 20
"""Free disk from which a low disk is low no more: a state's commit makes and frees some, and is not worth two lines."""

_WANTED: Final = f" ({ROOM_BYTES_AGAIN >> 20} MiB free at least)"

HAND_ON_MS: Final = 10_000
"""Between two attempts to hand over: each holds writes up for a second when it is in vain."""

log = get_log("node")


class DiskRoom:
    """One for a node."""

    def __init__(
        self,
        *,
        node_id: str,
        raft: Raft,
        proposer: Proposer,
        free_bytes: Callable[[], int],
        is_state_full: Callable[[], bool],
        begin_handover: Callable[[str], asyncio.Future[None]],
    ) -> None:
        """`is_state_full()`: the last commit of the state found no room. `begin_handover(node_id)`: let that node lead;
        what it returns is done when that has come to an end, either way."""
        self._node_id = node_id
        self._raft = raft
        self._proposer = proposer
        self._free_bytes = free_bytes
        self._is_state_full = is_state_full
        self._begin_handover = begin_handover
        self._low = False
        self._attempt: asyncio.Future[None] | None = None
        self._tried_at_ms: int | None = None
        self._tried = ""

    def run_once(self, now_ms: int, *, commands: bool) -> None:
        """Look at the disk, and do what follows. `now_ms`: monotonic. `commands`: this node leads, its epoch is open,
        and it is not about to stop: only then it hears of others, may hand over, and has anything to refuse."""
        status = self._raft.status()
        self._look(status)
        if not self._raft.is_leader:
            self._tried_at_ms, self._tried = None, ""  # whoever leads anew has not tried in vain
        if not commands:
            self._proposer.no_room = None
            return
        low = self._low_voters(status)
        if self._low:
            self._maybe_hand_over(now_ms, status, low)
        self._refuse(low)

    def _look(self, status: RaftStatus) -> None:
        free_bytes = self._free_bytes()
        room_bytes = ROOM_BYTES_AGAIN if self._low else ROOM_BYTES_MIN
        low = free_bytes < room_bytes or status.disk_full or self._is_state_full()
        if low and not self._low:
            log.warning(
                "disk_low",
                free_bytes=free_bytes,
                wanted_bytes=ROOM_BYTES_AGAIN,
                refused="new work, where this node leads",
            )
        elif self._low and not low:
            log.event("disk_low_ended", free_bytes=free_bytes)
        self._low = low
        self._raft.set_disk_low(low)

    def _low_voters(self, status: RaftStatus) -> list[str]:
        """Who counts and has little room, by id."""
        voters = [voter.node_id for voter in self._raft.roster.voters]
        return [name for name in voters if (self._low if name == self._node_id else _is_low(status, name))]

    def _is_majority(self, low: list[str]) -> bool:
        """So many that no majority has room."""
        voters = len(self._raft.roster.voters)
        return 2 * (voters - len(low)) <= voters

    def _maybe_hand_over(self, now_ms: int, status: RaftStatus, low: list[str]) -> None:
        """To whoever has room and, nearly, all of the log. Never to one that is low as well: it would hand on again.

        Where the log itself waits for room nobody can be given all of it: then `raft/guard.py` steps down.
        """
        if self._is_under_way or self._is_majority(low) or status.disk_full:
            return
        if self._tried_at_ms is not None and now_ms - self._tried_at_ms < HAND_ON_MS:
            return
        able = self._able(status)
        if able:
            self._tried_at_ms, self._tried = now_ms, able[0]
            self._attempt = self._begin_handover(able[0])

    @property
    def _is_under_way(self) -> bool:
        return self._attempt is not None and not self._attempt.done()

    def _able(self, status: RaftStatus) -> list[str]:
        """Who could lead in our place, the best first; who did not take over the last time comes last.

        A voter's match is known from its answers to this reign, and so is its word of its disk.
        """
        near = max(1, status.last_index - CAUGHT_UP_ENTRIES)
        voters = {voter.node_id for voter in self._raft.roster.voters}
        able = [
            (node_id == self._tried, -peer.match_index, node_id)
            for node_id, peer in status.peers.items()
            if node_id in voters and peer.connected and not peer.disk_low and peer.match_index >= near
        ]
        return [node_id for *_, node_id in sorted(able)]

    def _refuse(self, low: list[str]) -> None:
        """Turn new work away, or take it; each is said once. While another is about to take over nothing is refused:
        who calls is told to ask that one."""
        names, before = ", ".join(low), self._proposer.no_room
        if self._is_majority(low):
            no_room = f"too little room on the disks of too many nodes: make room on {names}{_WANTED}"
        elif self._low and not self._is_under_way:
            no_room = (
                f"too little room on the disk of {self._node_id}, which leads, and nobody who has room can take over "
                f"now: make room on {names}{_WANTED}"
            )
        else:
            no_room = None
        self._proposer.no_room = no_room
        if no_room is not None and before is None:
            log.warning("new_work_refused", low=names, reason=no_room)
        elif no_room is None and before is not None:
            log.event("new_work_taken")


def _is_low(status: RaftStatus, node_id: str) -> bool:
    peer = status.peers.get(node_id)
    return peer is not None and peer.disk_low
