"""The consensus port: what the rest of the node knows of Raft.

`pysyncobj_adapter.PySyncObjRaft` implements it; `tests/conformance/test_raft.py` holds it to the contract, with one
node and with three. It runs on the owner's asyncio loop and calls back on it only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

ENTRY_BYTES_MAX = 1 << 20
"""Largest entry that may be proposed. Below its batch of 4 MiB the library never splits one (docs/consensus.md, 15)."""


class Timing(NamedTuple):
    """How fast a death is noticed. All members should have the same."""

    heartbeat_ms: int = 60
    """Six beats within the shortest election time-out; costs 17 small frames a second and peer."""
    election_min_ms: int = 400
    """Above a pause of the process or a slow sync: neither may depose a healthy leader."""
    election_max_ms: int = 800
    """Twice the least, so that few votes split, and the cluster serves again within 2 s."""
    fallback_ms: int = 800
    """A leader that no majority has answered for so long steps down (the library's own default is 30 s)."""


class LogLimits(NamedTuple):
    """How much log is kept in memory and on disk behind what the state's disk already holds."""

    tail_bytes: int = 48 << 20
    """Kept for followers that were away: some minutes of a busy cluster, without a snapshot."""
    tail_entries: int = 50_000
    """The same for tiny entries, whose bookkeeping outweighs their bytes."""


class Member(NamedTuple):
    """One node. `node_id` is a name and outlives addresses; `raft_address` is `host:port`; `http_url` is shown."""

    node_id: str
    raft_address: str
    http_url: str


class Roster(NamedTuple):
    """Who is a member, as of one log index."""

    at_index: int
    """Log index of its last change; 0: as configured."""
    voters: tuple[Member, ...]
    learners: tuple[Member, ...] = ()
    """They get everything and count for nothing."""
    removed: frozenset[str] = frozenset()
    """Ids that left for good."""

    @property
    def members(self) -> tuple[Member, ...]:
        """Voters and learners, by id."""
        return tuple(sorted(self.voters + self.learners))

    def standing(self, node_id: str) -> str | None:
        """`voter`, `learner`, `removed`, or None for an id that this roster does not know."""
        if any(member.node_id == node_id for member in self.voters):
            return "voter"
        if any(member.node_id == node_id for member in self.learners):
            return "learner"
        return "removed" if node_id in self.removed else None

    def introduces(self, node_id: str, to: str, than: int) -> bool:
        """Whether `to` may believe this roster of a stranger, `node_id`: it is newer than what is known there (`than`,
        the index of that), and both are members by it. A node that was away may know none but nodes that left."""
        members = {member.node_id for member in self.members}
        return self.at_index > than and {node_id, to} <= members


class SnapshotInfo(NamedTuple):
    """A snapshot file that is complete, synced and checked."""

    path: Path
    last_index: int
    """Log index of the last entry applied in it."""
    last_term: int
    """Term of that entry."""
    previous_term: int
    """Term of the entry at `last_index - 1`."""
    size_bytes: int
    checksum: bytes
    """SHA-256 of what is in it: two snapshots with the same one are the same bytes."""


class StateMachine(Protocol):
    """What consensus drives. All calls come on the loop; `apply` is called once for each index, ascending, no gaps."""

    @property
    def applied_index(self) -> int:
        """Index of the last entry applied (in the open transaction). A new state machine says 1 (the log's root)."""
        ...

    @property
    def durable_index(self) -> int:
        """Index of the last entry whose effect is synced to the state's disk: the log may be cut below it."""
        ...

    @property
    def known_versions(self) -> tuple[int, int]:
        """The oldest and the newest machine version that this build knows: what it says of itself to the leader."""
        ...

    @property
    def roster(self) -> Roster | None:
        """The members that the state holds: one object until they change. None: none were ever written down."""
        ...

    def apply(self, index: int, entry: bytes) -> object:
        """Apply one committed entry; the value goes to whoever proposed it. Raises: anything = the process ends.

        An empty entry is consensus' own (a new leader's first): only the index moves on.
        """
        ...

    async def take_snapshot(self, path: Path, term_of: Callable[[int], int]) -> SnapshotInfo:
        """Commit, and write the state to the new file `path` off the loop. `term_of(i)`: the term of log entry i."""
        ...

    async def check_snapshot(self, snapshot: SnapshotInfo) -> None:
        """Check a received file as a whole, off the loop, and make it ready for `install_snapshot`.

        Raises: `Corrupt` (it is to be thrown away, and asked for again), `StorageFull`; `Fatal` for a state that this
        build does not know.
        """
        ...

    def install_snapshot(self, snapshot: SnapshotInfo) -> None:
        """Replace the whole state by a checked snapshot, atomically; then `applied_index == snapshot.last_index`.

        Takes the file. On the loop: it is over at once.
        """
        ...


class RaftStatus(NamedTuple):
    role: str
    """`leader` | `follower` | `candidate`."""
    term: int
    leader_id: str | None
    last_index: int
    commit_index: int
    applied_index: int
    first_index: int
    durable_log_index: int
    peers: dict[str, PeerStatus]
    disk_full: bool = False
    """This node's log waits for room on its disk."""
    leader_commit: int | None = None
    """How far all is committed, by the leader's word of this term; None while it has said nothing."""
    installs: bool = False
    """A snapshot is on its way, or takes the place of the state."""


class PeerStatus(NamedTuple):
    connected: bool
    match_index: int
    """Highest index known to be on that peer's disk (leader only, else 0)."""
    last_heard_ms: int | None
    """Milliseconds since something was received from it; None when never."""
    disk_full: bool = False
    """Its log waits for room on its disk (leader only)."""
    known_versions: tuple[int, int] | None = None
    """The machine versions that it says it knows (leader only); None: it has not said, on the connection that is up."""
    disk_low: bool = False
    """It says that its disk has little room, or none (leader only): it should not lead."""


class Raft(Protocol):
    async def start(self) -> None:
        """Open the log, take part. Raises: `ConfigError`, `Fatal`. Callbacks may come from the moment it returns."""
        ...

    async def stop(self) -> None:
        """Stop taking part: every waiting proposal ends as `OutcomeUnknown`; the log is synced and closed."""
        ...

    def retire(self) -> None:
        """Before an orderly `stop`: lead no more and stand in no election, but go on acknowledging and voting.

        What is waiting ends as after any loss of leadership. A node that is alone leads on.
        """
        ...

    async def hand_over(self, node_id: str) -> bool:
        """Make this voter lead in our place; nothing is proposed here meanwhile. False: it did not come to that.

        What waits for its outcome ends as after any loss of leadership: let it end first. Of two calls the second
        waits for the first. A node that does not lead has nothing to hand over: True.
        """
        ...

    @property
    def roster(self) -> Roster:
        """Who is a member, as applied here."""
        ...

    @property
    def is_leader(self) -> bool:
        """True while this node believes it leads. May be stale: never enough for a grant or a linearizable read."""
        ...

    @property
    def leader_id(self) -> str | None:
        """The node believed to lead, or None."""
        ...

    @property
    def term(self) -> int: ...

    def propose(self, entry: bytes) -> asyncio.Future[object]:
        """Hand one entry to the log, leader only; it leaves for the followers before the loop's next pass.

        The future ends with what `StateMachine.apply` returned for it here, once it is committed, or raises
        `OutcomeUnknown` when this node stops leading first.
        `entry` holds 1 to ENTRY_BYTES_MAX bytes (asserted: the proposer cuts its batches).
        Raises: `NotApplied("no_leader", …)` at once when this node does not lead; the future raises the same when the
        leadership ended before the entry got into the log.
        """
        ...

    async def read_barrier(self) -> int:
        """Wait until this node has surely led after the call began, and has applied all that was committed then.

        The applied index. Costs one round of heartbeats, shared by all who wait (Raft thesis, 6.4); no log entry.
        Raises: `NotApplied("no_leader", …)` when leadership is not confirmed.
        """
        ...

    def term_of(self, index: int) -> int:
        """Term of the log entry `index`, which must be applied; of an index below the log: that of the oldest kept."""
        ...

    def compact(self) -> int:
        """Cut this node's log below what its state's disk does not hold, and connected followers need. The first
        index that is kept."""
        ...

    def on_role(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever role, term or known leader changed. One callback."""
        ...

    def on_roster(self, callback: Callable[[Roster], None]) -> None:
        """Call `callback(book)` when members changed, or a peer told of a newer roster than is applied here.

        `book` is the newest known, for addresses only; `roster` is what counts. One callback.
        """
        ...

    def on_removed(self, callback: Callable[[], None]) -> None:
        """Call once when this node learns that it is a member no more. It stands in no election from then on."""
        ...

    def on_fatal(self, callback: Callable[[BaseException], None]) -> None:
        """Call once when the node must end (failed sync, failed apply, broken invariant). Nothing is sent any more.

        With `Misfit` when a peer was configured with other members or restored from another backup, and this node has
        nothing of the cluster yet.
        """
        ...

    def on_peer_clock(self, callback: Callable[[str, int], None]) -> None:
        """Call `callback(node_id, wall_ms)` for each answer that carries its sender's wall clock (leader only).

        Of voters only: a learner's clock does not count.
        """
        ...

    def set_disk_low(self, low: bool) -> None:
        """This node's disk has little room: its answers to the leader say so from now on. After `start`."""
        ...

    def status(self) -> RaftStatus: ...
