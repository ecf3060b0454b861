"""Who takes part: one change at a time, and never one that leaves nobody to vote.

A node is added as a learner and promoted by the leader once it has caught up; that is one change, under way until
then. These rules know no connections: whether a majority lives is for the leader to look at.
Why one at a time: majorities of two memberships that differ by one node always meet (Raft thesis, 4.1).
"""

from __future__ import annotations

from horae_node.core.changes import Decision, MemberChanged
from horae_node.core.commands import AddMember, MoveMember, PromoteMember, RemoveMember, SetMembers
from horae_node.core.context import Context
from horae_node.core.model import MemberRecord, Standing
from horae_node.core.results import Done, Rejected
from horae_node.core.tables import MEMBER, member_of
from horae_storage.kv import View

VOTER = int(Standing.VOTER)
LEARNER = int(Standing.LEARNER)
REMOVED = int(Standing.REMOVED)

MEMBERS_MAX = 9
"""Each further voter makes every commit wait for more disks; past nine nothing more is survived that matters."""
REMOVED_MAX = 900
"""Ids of nodes that left, kept for good: a bound, so that reading the members stays one short scan."""

NO_MEMBERS = Rejected("conflict", "the members were never written down")
LAST_VOTER = Rejected("conflict", "it is the last voter: a cluster needs one")


def read_members(view: View) -> dict[str, MemberRecord]:
    """Every node that is or was a member, by id; empty before the first change of members."""
    rows = view.scan(MEMBER, MEMBER + b"\xff", limit=MEMBERS_MAX + REMOVED_MAX + 1)
    return {key[1:].decode(): member_of(row) for key, row in rows}


def decide_set_members(ctx: Context, command: SetMembers) -> Decision:
    if read_members(ctx.txn):
        return Done(0, True), ()
    return Done(), [
        MemberChanged(node_id, MemberRecord(raft_address, http_url, VOTER, ctx.index))
        for node_id, raft_address, http_url in command.members
    ]


def decide_add_member(ctx: Context, command: AddMember) -> Decision:
    node_id, raft_address, http_url = command
    members = read_members(ctx.txn)
    if not members:
        return NO_MEMBERS, ()
    known = members.get(node_id)
    if known is not None:
        return _add_known(node_id, known, (raft_address, http_url)), ()
    refusal = (
        _under_way(members) or _address_taken(members, node_id, raft_address, http_url) or _too_many(members) or None
    )
    if refusal is not None:
        return refusal, ()
    return Done(), (MemberChanged(node_id, MemberRecord(raft_address, http_url, LEARNER, ctx.index)),)


def decide_promote_member(ctx: Context, command: PromoteMember) -> Decision:
    known = read_members(ctx.txn).get(command.node_id)
    if known is None or known.standing == REMOVED:
        return _unknown(command.node_id), ()
    if known.standing == VOTER:
        return Done(0, True), ()
    return Done(), (MemberChanged(command.node_id, known._replace(standing=VOTER, version=ctx.index)),)


def decide_remove_member(ctx: Context, command: RemoveMember) -> Decision:
    node_id = command.node_id
    members = read_members(ctx.txn)
    known = members.get(node_id)
    if known is None:
        return _unknown(node_id), ()
    if known.standing == REMOVED:
        return Done(0, True), ()
    if known.standing == VOTER and sum(member.standing == VOTER for member in members.values()) == 1:
        return LAST_VOTER, ()
    refusal = _under_way(members, but=node_id)
    if refusal is not None:
        return refusal, ()
    return Done(), (MemberChanged(node_id, known._replace(standing=REMOVED, version=ctx.index)),)


def decide_move_member(ctx: Context, command: MoveMember) -> Decision:
    node_id, raft_address, http_url = command
    members = read_members(ctx.txn)
    known = members.get(node_id)
    if known is None or known.standing == REMOVED:
        return _unknown(node_id), ()
    if known[:2] == (raft_address, http_url):
        return Done(0, True), ()
    refusal = _under_way(members, but=node_id) or _address_taken(members, node_id, raft_address, http_url)
    if refusal is not None:
        return refusal, ()
    moved = known._replace(raft_address=raft_address, http_url=http_url, version=ctx.index)
    return Done(), (MemberChanged(node_id, moved),)


def _add_known(node_id: str, known: MemberRecord, addresses: tuple[str, str]) -> Done | Rejected:
    if known.standing == REMOVED:
        return Rejected("conflict", f"{node_id} was a member and left: a node that comes back takes a new id")
    if known[:2] == addresses:
        return Done(0, True)
    return Rejected("conflict", f"{node_id} is a member already, at {known.raft_address} and {known.http_url}")


def _under_way(members: dict[str, MemberRecord], but: str = "") -> Rejected | None:
    for node_id, member in members.items():
        if member.standing == LEARNER and node_id != but:
            return Rejected(
                "conflict", f"another change is under way: {node_id} is being added; wait for it, or remove it"
            )
    return None


def _address_taken(members: dict[str, MemberRecord], node_id: str, raft_address: str, http_url: str) -> Rejected | None:
    for other, member in members.items():
        if other != node_id and member.standing != REMOVED:
            if member.raft_address == raft_address:
                return Rejected("conflict", f"{other} has the address {raft_address}: each node needs its own")
            if member.http_url == http_url:
                return Rejected("conflict", f"{other} has the URL {http_url}: each node needs its own")
    return None


def _too_many(members: dict[str, MemberRecord]) -> Rejected | None:
    removed = sum(member.standing == REMOVED for member in members.values())
    if len(members) - removed >= MEMBERS_MAX:
        return Rejected("conflict", f"a cluster has at most {MEMBERS_MAX} members")
    if removed >= REMOVED_MAX:
        return Rejected("conflict", f"{REMOVED_MAX} nodes have left this cluster: restore a backup into a new one")
    return None


def _unknown(node_id: str) -> Rejected:
    return Rejected("not_found", f"there is no member {node_id}")
