"""Who counts: a roster made into seats, and the seats into what guard and library do.

The configuration in force is that of the applied state, as etcd has it. Two rules make that safe: a change is proposed
only by a leader that has applied the change before it (`Raft.propose`'s caller), and no node stands in an election
before it has applied all that it knows to be committed (`guard.py`); a node that has the next change in its log knows
the one before to be committed, since both came in one message and are written in one group. So of two memberships in
use at once one is at most one node away from the other, and their majorities meet.

Voters count. Learners are sent everything, as the library's read-only nodes, and counted nowhere. Everybody else who is
known to be a member by now (a *book* that a peer told us) is an acquaintance: heard when it leads or asks for a vote,
for a node that was away may have to be led by one that its own state has never heard of. Next to read: `guard.py`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from horae_node.raft.port import Member, Roster

PORT_MAX: Final = 65_535


class Seats(NamedTuple):
    """The others by what they are to this node, and whether this node counts itself."""

    own_votes: bool
    voters: frozenset[str]
    learners: frozenset[str]
    acquaintances: frozenset[str]

    @property
    def everybody(self) -> frozenset[str]:
        return self.voters | self.learners | self.acquaintances


def seats_of(own_id: str, roster: Roster, book: Roster) -> Seats:
    """Counted as the applied `roster` says; acquainted with whom the newer `book` names besides."""
    voters = {member.node_id for member in roster.voters}
    learners = {member.node_id for member in roster.learners}
    known = {member.node_id for member in book.members}
    return Seats(
        own_id in voters,
        frozenset(voters - {own_id}),
        frozenset(learners - {own_id}),
        frozenset(known - voters - learners - {own_id}),
    )


def addresses_of(own_id: str, roster: Roster, book: Roster) -> dict[str, str]:
    """Where each of the others listens, by id: as the newest roster says."""
    found = {member.node_id: member.raft_address for member in (*roster.members, *book.members)}
    found.pop(own_id, None)
    return dict(sorted(found.items()))


def book_as_told(book: Roster) -> list[object]:
    """A roster as a hello carries it."""
    return [book.at_index, [list(member) for member in book.voters], [list(member) for member in book.learners]]


def book_of(told: object) -> Roster | None:
    """The roster of a peer's hello; None for one that is none: a peer's word is not believed before it is looked at."""
    if not isinstance(told, (tuple, list)) or len(told) != 3 or type(told[0]) is not int:
        return None
    voters, learners = _members_of(told[1]), _members_of(told[2])
    return None if voters is None or learners is None else Roster(told[0], voters, learners)


def voters_of(told: object) -> tuple[str, ...] | None:
    """The ids of a hello's configured voters, sorted; None for what is none, or would not stand in one line."""
    if not isinstance(told, (tuple, list)) or not all(type(name) is str and name.isprintable() for name in told):
        return None
    return tuple(sorted(set(told)))


def _members_of(told: object) -> tuple[Member, ...] | None:
    if not isinstance(told, (tuple, list)):
        return None
    for entry in told:
        if not isinstance(entry, (tuple, list)) or len(entry) != 3 or not all(type(field) is str for field in entry):
            return None
        port = entry[1].rpartition(":")[2]
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX):
            return None
    return tuple(Member(*entry) for entry in told)
