"""PySyncObj, pinned and fenced in: the only file that touches the library and its private names.

`Core` is the library's object as the guard sees it: its fields by plain names, and the few methods that are called. Of
the library's class three methods are replaced (apply, how much of it at once, the election time-out), one is closed
off (loading a dump), and its clock, poller, journal and snapshot object are ours. It may not decide anything: that is
`guard.py`, which is next to read. `tests/unit/raft/test_core.py` names every attribute used here, so that an upgrade
fails loudly.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty
from typing import Any, Final, Protocol
from zlib import crc32

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from horae_node.clock import Clock
from horae_node.errors import ConfigError, Fatal
from horae_node.raft.port import Timing
from horae_node.raft.pysyncobj_journal import ENTRY_REGULAR, Journal

PINNED_SHA256: Final = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"
"""Of the library's `syncobj.py` 0.3.17, the file whose private names are used below."""

BATCH_BYTES: Final = 2 << 20
"""Entries a message: above the largest entry, or the library would cut it, and wrongly (docs/consensus.md, 15)."""

COMMANDS_QUEUED_MAX: Final = 10_000

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

SUCCESS: Final[int] = FAIL_REASON.SUCCESS
NOT_APPLIED: Final = frozenset(
    {
        FAIL_REASON.QUEUE_FULL,
        FAIL_REASON.MISSING_LEADER,
        FAIL_REASON.DISCARDED,
        FAIL_REASON.NOT_LEADER,
        FAIL_REASON.REQUEST_DENIED,
    }
)
"""Reasons that say surely nothing happened; every other one leaves the outcome unknown (28 % of LEADER_CHANGED had
been committed)."""

Message = dict[str, Any]
Done = Callable[[object, int], None]


class Pieces(Protocol):
    """Where the library's send loop gets a snapshot from."""

    def next_piece(self, node_id: str) -> Message | None:
        """The next piece for that follower, or None while no snapshot is ready."""
        ...


def require_pinned(path: Path | None = None) -> None:
    """Raises: `ConfigError` when the installed library is not the one that was examined."""
    source = path or Path(syncobj.__file__)
    found = hashlib.sha256(source.read_bytes()).hexdigest()
    if found != PINNED_SHA256:
        raise ConfigError(f"pysyncobj is not the pinned 0.3.17 (syncobj.py has SHA-256 {found}): reinstall it")


class Peer(int, Node):  # type: ignore[misc]
    """A node by its name. The library walks sets of these: a hash that each process shares makes runs repeat.

    It is a number for its hash alone, which is then reckoned without a call: forty times an entry.
    """

    _id: str

    def __new__(cls, node_id: str) -> Peer:
        return super().__new__(cls, crc32(node_id.encode()) | 1 << 32)

    def __init__(self, node_id: str) -> None:
        Node.__init__(self, node_id)

    __hash__ = int.__hash__
    __repr__ = Node.__repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self._id == other._id

    def __ne__(self, other: object) -> bool:
        return not self == other


class _Border(Transport):  # type: ignore[misc]
    """The library's way out, and nothing else: what comes in goes through the guard."""

    ready = True

    def __init__(self) -> None:
        super().__init__(None, None, None)
        self.out: Callable[[Peer, Message], None] | None = None

    def send(self, node: Peer, message: Message) -> bool:
        assert self.out is not None  # nothing is sent before the constructor has returned
        self.out(node, message)
        return True


class _NoPoller:
    """The loop polls; the library's own would cost a system call a tick."""

    def poll(self, timeout: float) -> None:
        pass


class _Snapshots:
    """The library's snapshot object, sending side only: the guard takes snapshots in and cuts the log by itself."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def checkSerializing(self) -> tuple[int, None]:
        return syncobj.SERIALIZER_STATE.NOT_SERIALIZING, None

    def getTransmissionData(self, node: Peer) -> tuple[Message, bool, bool] | None:
        piece = self._pieces.next_piece(node.id)
        return None if piece is None else (piece, piece["offset"] == 0, piece["last"])

    def cancelTransmisstion(self, node: Peer) -> None:
        """Called for each node that is muted: the guard cancels at connection events, where it matters."""


class _Library(SyncObj):  # type: ignore[misc]
    _SyncObj__raftCommitIndex: int

    def __init__(self, own: Peer, others: list[Peer], conf: SyncObjConf, border: _Border, rng: random.Random) -> None:
        self.horae_rng = rng
        self.horae_apply: Callable[[int, bytes], object] | None = None
        super().__init__(own, others, conf, transport=border)

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:
        # The library counts an entry only after this returns, so it is the next one; its own would unpickle.
        assert self.horae_apply is not None
        return self.horae_apply(self._SyncObj__raftLastApplied + 1, command)

    def _SyncObj__applyLogEntries(self) -> bool:
        # The library's own applies all that is committed, however long that takes.
        commit: int = self._SyncObj__raftCommitIndex
        following = self._SyncObj__raftLastApplied + 1
        if commit > following:
            self._SyncObj__raftCommitIndex = min(commit, self._SyncObj__raftLog.turn_end(following))
        if commit >= following:
            super()._SyncObj__applyLogEntries()
            self._SyncObj__raftCommitIndex = commit
        return False

    def _SyncObj__getCurrentLogIndex(self) -> int:
        return self._SyncObj__raftLog.last_index  # type: ignore[no-any-return]

    def _SyncObj__getEntries(self, start: int, count: int | None = None, bytes_max: int | None = None) -> Any:
        # One at a time it is asked for the term of an entry, several times an entry.
        if count == 1:
            return self._SyncObj__raftLog.one(start)
        return super()._SyncObj__getEntries(start, count, bytes_max)

    def _SyncObj__tryLogCompaction(self) -> None:
        """The adapter decides when to compact, the guard cuts."""

    def _checkCommandsToApply(self) -> None:
        if self._SyncObj__commandsQueue._FastQueue__queue:  # an empty queue tells the library so by an exception
            super()._checkCommandsToApply()

    def _SyncObj__generateRaftTimeout(self) -> float:
        low, high = self._SyncObj__conf.raftMinTimeout, self._SyncObj__conf.raftMaxTimeout
        return float(low + (high - low) * self.horae_rng.random())

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        raise Fatal("the library tried to load a dump: snapshots are installed by the guard only")


class Core:
    """The library's object by plain names. Call `enter` before any method that may read the clock."""

    def __init__(
        self,
        *,
        own_id: str,
        peer_ids: Iterable[str],
        timing: Timing,
        clock: Clock,
        rng: random.Random,
        pieces: Pieces,
        apply: Callable[[int, bytes], object],
        on_state: Callable[[int, int], None],
    ) -> None:
        self.own = Peer(own_id)
        self.peers = {node_id: Peer(node_id) for node_id in peer_ids}
        self._monotonic = clock.monotonic
        self._border = _Border()
        self.enter()
        conf = _conf(timing, on_state)
        self._obj = _Library(self.own, list(self.peers.values()), conf, self._border, rng)
        self._obj.horae_apply = apply
        self._obj._poller = _NoPoller()
        self._obj._SyncObj__serializer = _Snapshots(pieces)
        self._obj._SyncObj__needLoadDumpFile = False
        self.receive = self._border._onMessageReceivedCallback
        """Hand a message to the library: `receive(peer, message)`."""
        self.others: set[Peer] = self._obj._SyncObj__otherNodes
        """The other voters."""
        self.connected: set[Peer] = self._obj._SyncObj__connectedNodes
        """Whom the library sends to. The guard takes a peer out to mute it."""
        self.next_index: dict[Peer, int] = self._obj._SyncObj__raftNextIndex
        self.match_index: dict[Peer, int] = self._obj._SyncObj__raftMatchIndex
        self._learners: set[Peer] = self._obj._SyncObj__readonlyNodes
        self._queued: deque[object] = self._obj._SyncObj__commandsQueue._FastQueue__queue

    def enter(self) -> None:
        """Point the library's clock, a global of its module, at this node's (a process of the simulator has many)."""
        syncobj.monotonicTime = self._monotonic

    def start(self, journal: Journal, *, term: int, voted_for: str | None, commit: int, applied: int) -> None:
        """Put in what a restart found; the library's own start would clear the journal when a dump is newer."""
        obj = self._obj
        obj._SyncObj__raftLog = journal
        obj._SyncObj__raftCurrentTerm = term
        obj._SyncObj__votedForNodeId = voted_for
        obj._SyncObj__raftCommitIndex = commit
        obj._SyncObj__raftLastApplied = applied

    def on_send(self, out: Callable[[Peer, Message], None]) -> None:
        """Everything the library wants to send goes to `out(peer, message)`."""
        self._border.out = out

    # ------------------------------------------------------------------ what it believes

    @property
    def state(self) -> int:
        return self._obj._SyncObj__raftState  # type: ignore[no-any-return]

    @property
    def term(self) -> int:
        return self._obj._SyncObj__raftCurrentTerm  # type: ignore[no-any-return]

    @property
    def voted_for(self) -> str | None:
        return self._obj._SyncObj__votedForNodeId  # type: ignore[no-any-return]

    @property
    def leader_id(self) -> str | None:
        leader = self._obj._SyncObj__raftLeader
        return None if leader is None else leader.id

    @property
    def commit(self) -> int:
        return self._obj._SyncObj__raftCommitIndex

    @commit.setter
    def commit(self, index: int) -> None:
        self._obj._SyncObj__raftCommitIndex = index

    @property
    def applied(self) -> int:
        return self._obj._SyncObj__raftLastApplied  # type: ignore[no-any-return]

    @applied.setter
    def applied(self, index: int) -> None:
        self._obj._SyncObj__raftLastApplied = index

    @property
    def noop_index(self) -> int:
        """Index of the first entry of this node's own term as leader: below it a commit index may be old news."""
        return self._obj._SyncObj__noopIDx or 0

    @property
    def election_deadline(self) -> float:
        return self._obj._SyncObj__raftElectionDeadline  # type: ignore[no-any-return]

    @election_deadline.setter
    def election_deadline(self, moment: float) -> None:
        self._obj._SyncObj__raftElectionDeadline = moment

    def new_timeout(self) -> float:
        """A fresh election time-out, seconds."""
        return self._obj._SyncObj__generateRaftTimeout()

    # ------------------------------------------------------------------ what it is told to do

    def tick(self) -> None:
        self._obj.doTick(0)

    def step_down(self, term: int) -> None:
        """Follow nobody in `term`, a newer one."""
        obj = self._obj
        obj._SyncObj__setCurrentTerm(term, None)
        obj._SyncObj__setState(FOLLOWER)
        obj._SyncObj__raftLeader = None

    def resign(self) -> None:
        """Stop leading, in the same term, as when no majority answers."""
        self._obj._SyncObj__setState(FOLLOWER)
        self._obj._SyncObj__raftLeader = None

    def forget_leader(self) -> None:
        """Know of no leader until one is heard again, in whatever term; state, term and vote stay."""
        self._obj._SyncObj__raftLeader = None

    def propose(self, entry: bytes, done: Done) -> None:
        """Queue an entry; `done(result, reason)` is called at once when the queue is full, and may not raise."""
        self._obj._applyCommand(ENTRY_REGULAR + entry, done, None)

    def append_proposals(self) -> None:
        """Leader: move what is queued into the log."""
        if self._queued:
            self._obj._checkCommandsToApply()

    def send_entries(self) -> None:
        """Leader: send to all who are not muted, at least a heartbeat each."""
        self._obj._SyncObj__sendAppendEntries()

    def drain_proposals(self) -> None:
        """Answer what is queued and not in the log: it never will be."""
        queue = self._obj._SyncObj__commandsQueue
        while True:
            try:
                _, done = queue.get_nowait()
            except Empty:
                return
            done(None, FAIL_REASON.NOT_LEADER)

    def forget_waiting(self, index: int) -> None:
        """Answer the proposals at or below `index` as unknown: an installed snapshot jumped over them."""
        waiting = self._obj._SyncObj__commandsWaitingCommit
        for at in [at for at in waiting if at <= index]:
            for _, done in waiting.pop(at):
                done(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def seat(self, peer: Peer, *, votes: bool) -> None:
        """Send to this peer, when leading; with `votes` it counts for commits, elections and the fall-back."""
        self.others.discard(peer)
        self._learners.discard(peer)
        (self.others if votes else self._learners).add(peer)
        if peer not in self.next_index:
            self.next_index[peer] = self._obj._SyncObj__raftLog[-1][1] + 1
            self.match_index[peer] = 0
        self._obj._SyncObj__lastResponseTime.setdefault(peer, self._monotonic())

    def unseat(self, peer: Peer) -> None:
        """Neither send to it nor count it."""
        self.others.discard(peer)
        self._learners.discard(peer)
        for kept in (self.next_index, self.match_index, self._obj._SyncObj__lastResponseTime):
            kept.pop(peer, None)

    def connect(self, peer: Peer, up: bool) -> None:
        callback = self._border._onNodeConnected if up else self._border._onNodeDisconnected
        callback(peer)


def _conf(timing: Timing, on_state: Callable[[int, int], None]) -> SyncObjConf:
    never = 10**9  # the adapter decides when to compact
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        journalFile=None,
        fullDumpFile=None,
        serializer=None,
        useFork=False,
        password=None,
        connectionTimeout=max(5.0, timing.election_max_ms / 1000),
        commandsQueueSize=COMMANDS_QUEUED_MAX,
        appendEntriesBatchSizeBytes=BATCH_BYTES,
        logCompactionMinEntries=never,
        logCompactionMinTime=never,
        appendEntriesPeriod=timing.heartbeat_ms / 1000,
        raftMinTimeout=timing.election_min_ms / 1000,
        raftMaxTimeout=timing.election_max_ms / 1000,
        leaderFallbackTimeout=timing.fallback_ms / 1000,
        onStateChanged=on_state,
    )
