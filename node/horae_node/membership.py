"""Changes of members, and the lead handed over: what the leader does beyond the machine's rules.

The machine refuses what is wrong in itself (`core/decide/members.py`). Here is what only a leader can know: that the
change before is applied, that a majority of the voters is connected after this one too, that a new node has caught up
and may count. A node is added as a learner and promoted by `promote_when_ready`, whoever leads by then; the call that
added it only waits for that. Runs on the loop. Not here: who is counted how (`raft/members.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from horae_node.core.commands import (
    AddMember,
    Command,
    MemberAddress,
    MoveMember,
    Nothing,
    PromoteMember,
    RemoveMember,
    SetMembers,
)
from horae_node.core.results import Rejected
from horae_node.errors import NotApplied, OutcomeUnknown, Refused
from horae_node.leader.session import LeaderSession
from horae_node.logs import get_log
from horae_node.proposer import Proposer
from horae_node.raft.port import Member, Raft

CAUGHT_UP_ENTRIES: Final = 100
"""A learner so near the end of the log holds up no commit for long once it counts: some entries under way."""
CAUGHT_UP_MS: Final = 300
"""For so long, so that one lucky look does not count: some heartbeats."""
PROMOTE_WAIT_S: Final = 30.0
"""How long the call that adds a node waits for it to count. A node that needs longer is promoted all the same."""
REACH_WAIT_S: Final = 5.0
"""A node that runs is reached well within it, some redials long. One that is not is nothing to wait for."""

WAITS_TOLD_MS: Final = 10_000
"""A learner that does not count for so long is worth a line."""

log = get_log("members")


class Membership:
    """One for a node; of use on the leader."""

    def __init__(
        self,
        *,
        node_id: str,
        raft: Raft,
        proposer: Proposer,
        session: LeaderSession,
        hand_over: Callable[[str], Awaitable[bool]],
    ) -> None:
        """`hand_over(node_id)`: stop commanding, and make that node lead; whether it does."""
        self._node_id = node_id
        self._raft = raft
        self._proposer = proposer
        self._session = session
        self._hand_over = hand_over
        self._changing = False
        self.settling: str | None = None
        """Who counts by the state, and is not told of as counting yet."""
        self._forget_waits()
        self._waiting: list[asyncio.Future[None]] = []

    def _forget_waits(self) -> None:
        self._near_since_ms: int | None = None
        self._waits_since_ms: int | None = None
        self._waits_told = False

    # ------------------------------------------------------------------ what operators ask

    async def add(self, member: Member, wait_s: float = PROMOTE_WAIT_S) -> str:
        """The new node's standing: `voter` once it counts, `learner` when it needs longer than `wait_s`, or is not
        reached in the first seconds of them (`is_connected`).

        The same again is a repeat. Raises: `Refused` (`conflict`), `NotApplied`, `OutcomeUnknown`.
        """
        known = self._find(member.node_id)
        if known is not None and known != member:
            raise Refused(
                "conflict", f"{member.node_id} is a member already, at {known.raft_address} and {known.http_url}"
            )
        if known is None:
            self._require_idle()
        if self.settling != member.node_id:  # else this is a repeat, and what is under way is just this
            await self._change(AddMember(*member))
        await self._wait_until_it_counts(member.node_id, min(wait_s, REACH_WAIT_S))
        if self.is_connected(member.node_id):
            await self._wait_until_it_counts(member.node_id, wait_s - REACH_WAIT_S)
        standing = self._raft.roster.standing(member.node_id)
        if standing == "removed":
            raise Refused("conflict", f"{member.node_id} was removed before it counted")
        return standing or "learner"

    async def remove(self, node_id: str) -> None:
        """It leaves for good. A leader that is to leave hands over first. Raises: as `add`, and `not_found`."""
        roster = self._raft.roster
        standing = self._require_known(node_id)
        if standing != "removed":
            self._require_idle(but=node_id)
        if standing == "voter":
            voters = {member.node_id for member in roster.voters} - {node_id}
            if voters:
                self._require_majority(voters, f"without {node_id}")
        if node_id == self._node_id and len(roster.voters) > 1:
            if not await self.hand_over_to_any():
                raise Refused("conflict", f"nobody took over in time: {node_id} leads on, and stays")
            raise NotApplied("no_leader", "this node handed over, to be removed; ask the new leader")
        await self._change(RemoveMember(node_id))

    async def move(self, member: Member) -> None:
        """The same node at other addresses. Raises: as `remove`."""
        self._require_known(member.node_id)
        if self._find(member.node_id) != member:
            self._require_idle(but=member.node_id)
        await self._change(MoveMember(*member))

    async def hand_over(self, node_id: str) -> None:
        """That voter leads. Raises: `Refused`: `not_found`, `conflict` when it cannot or did not; then we lead on."""
        if node_id == self._node_id:
            return
        standing = self._require_known(node_id)
        if standing == "removed":
            raise Refused("not_found", f"there is no member {node_id}")
        if standing == "learner":
            raise Refused("conflict", f"{node_id} is being added: it cannot lead before it counts")
        if not self.is_connected(node_id):
            raise Refused("conflict", f"{node_id} is not connected: it could not lead")
        if self._raft.status().peers[node_id].disk_low:
            raise Refused("conflict", f"{node_id} is low on disk: it would hand the lead on; make room there first")
        if not await self._hand_over(node_id):
            raise Refused("conflict", f"{node_id} did not take over in time: {self._node_id} leads on")

    async def hand_over_to_any(self) -> bool:
        """Whoever has most of the log leads, of those with room on their disks if there are any; False when nobody
        took over."""
        status, roster = self._raft.status(), self._raft.roster
        able = [
            (not peer.disk_low, peer.match_index, node_id)
            for node_id, peer in status.peers.items()
            if peer.connected and not peer.disk_full and roster.standing(node_id) == "voter"
        ]
        return bool(able) and await self._hand_over(max(able)[-1])

    def is_connected(self, node_id: str) -> bool:
        """This node hears that one now."""
        peer = self._raft.status().peers.get(node_id)
        return node_id == self._node_id or (peer is not None and peer.connected)

    # ------------------------------------------------------------------ what the node tells

    def on_roster(self) -> None:
        """Members changed."""
        self._forget_waits()
        self._tell()

    def on_leadership(self) -> None:
        """Role or session changed."""
        self._forget_waits()
        self._tell()

    def is_promotion_due(self, now_ms: int) -> bool:
        """A learner has caught up for long enough: `promote` it. `now_ms`: monotonic."""
        learners = self._raft.roster.learners
        if not learners or not self._session.open or self._changing:
            return False
        status = self._raft.status()
        peer = status.peers.get(learners[0].node_id)
        lag = status.last_index - (0 if peer is None else peer.match_index)
        if peer is None or not peer.connected or lag > CAUGHT_UP_ENTRIES:
            self._near_since_ms = None
            self._note_waits(now_ms, learners[0].node_id, None if peer is None or not peer.connected else lag)
            return False
        if self._near_since_ms is None:
            self._near_since_ms = now_ms
        return now_ms - self._near_since_ms >= CAUGHT_UP_MS

    def _note_waits(self, now_ms: int, learner: str, lag: int | None) -> None:
        """Say once what keeps a learner from counting, when it takes long: nobody else can be added meanwhile."""
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        elif not self._waits_told and now_ms - self._waits_since_ms >= WAITS_TOLD_MS:
            self._waits_told = True
            reason = "it is not reached" if lag is None else f"it is {lag} entries behind"
            log.event("promotion_put_off", learner=learner, reason=reason)

    async def promote(self) -> None:
        """Let the learner count. Whatever hinders it is tried again at the next look."""
        self._near_since_ms = None
        node_id = self.settling = self._raft.roster.learners[0].node_id
        try:
            voters = {member.node_id for member in self._raft.roster.voters}
            self._require_majority(voters | {node_id}, f"with {node_id}")
            await self._change(PromoteMember(node_id))
        except (Refused, NotApplied, OutcomeUnknown) as error:
            log.event("promotion_put_off", learner=node_id, reason=str(error))
        finally:
            self.settling = None
            self._tell()

    # ------------------------------------------------------------------ inside

    async def _change(self, command: Command) -> None:
        """One at a time, from proposal to apply: the next is proposed by a leader that has applied the one before.

        Its end is told once an entry after it is stored by a majority of the members as they are now: with that entry
        they learn that the change is committed. Else this node might be gone before anybody has heard so, and those
        who are left, a majority, would count as before and find none.
        """
        self._require_turn()
        self._changing = True
        try:
            results = await self._proposer.run([*self._first(), command], ending=True)
            outcome = results[-1]
            if isinstance(outcome, (NotApplied, OutcomeUnknown)):
                raise outcome
            if isinstance(outcome, Rejected):
                raise Refused(outcome.code, outcome.detail)
            await self._proposer.run_one(Nothing(), ending=True)
        finally:
            self._changing = False

    def _first(self) -> Sequence[Command]:
        """Before the first change the configured members are written down, in the same entry. Once they are, it does
        nothing: whether they are, the state alone knows."""
        return (SetMembers(tuple(MemberAddress(*member) for member in self._raft.roster.voters)),)

    def _find(self, node_id: str) -> Member | None:
        return next((member for member in self._raft.roster.members if member.node_id == node_id), None)

    def _require_known(self, node_id: str) -> str:
        """Its standing. Before anything is written: a call that is refused leaves no trace."""
        standing = self._raft.roster.standing(node_id)
        if standing is None:
            raise Refused("not_found", f"there is no member {node_id}")
        return standing

    def _require_turn(self) -> None:
        if self._changing:
            raise Refused("conflict", "another change of members is under way: wait for it")

    def _require_idle(self, but: str = "") -> None:
        """Nobody is being added, `but` that one. The machine refuses it as well, without knowing who is reached."""
        self._require_turn()
        for learner in self._raft.roster.learners:
            if learner.node_id == but:
                continue
            way_out = "wait for it, or remove it"
            if not self.is_connected(learner.node_id):
                way_out = (
                    f"it is not reachable at {learner.raft_address}: start it with `join`, or take it back with "
                    f"`horae cluster remove {learner.node_id}`"
                )
            raise Refused("conflict", f"another change is under way: {learner.node_id} is being added; {way_out}")

    def _require_majority(self, voters: set[str], when: str) -> None:
        """Refuse what would leave the cluster standing still. The nodes that answer are those connected now."""
        live = [voter for voter in voters if self.is_connected(voter)]
        if 2 * len(live) <= len(voters):
            raise Refused(
                "conflict",
                f"a change without quorum: {when}, only {len(live)} of {len(voters)} voters would be connected",
            )

    async def _wait_until_it_counts(self, node_id: str, wait_s: float) -> None:
        """Or is removed, or the time is up. Raises: `NotApplied` when this node leads no more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while self._raft.roster.standing(node_id) == "learner" or self.settling == node_id:
            left_s = deadline - loop.time()
            if left_s <= 0 or not await self._wait_for_news(left_s):
                return
            if not self._session.open:
                raise NotApplied("no_leader", "this node no longer leads; ask the new leader")

    async def _wait_for_news(self, wait_s: float) -> bool:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await asyncio.wait_for(future, wait_s)
        except TimeoutError:
            return False
        return True

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
