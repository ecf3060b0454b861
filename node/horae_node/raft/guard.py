"""The guard: everything between PySyncObj and the world, so that what reaches it is always a sound Raft.

A pure object: messages come in through `inp`, the library's go out through `out`, time through `tick`, the rest is
`on_connection` and `on_durable`. No loop, no socket, no file, no clock but the one it is handed; the simulator and the
product share it. Rule numbers are those of the table in docs/consensus.md:

 1 acks, votes and vote requests wait for the disk        2 the leader's own copy counts once it is on disk
 3 nothing is truncated but a real conflict               4 an ack belongs to one term; one beyond our log is fatal
 5 a success never moves the send position back           6 a stale refusal moves nothing; a fresh one moves it right
 7 snapshot messages move no commit index                 8 snapshots: checked, never backwards, one transfer at a time
 9 the log is cut below what is durable only              10 no snapshot ready: leave the send loop
11 pre-vote, and term hints to those left behind          12 a vote is repeated when asked again, counted once
13 no forwarded commands; waiters fail with leadership    14 strangers are not heard
15 no entry is sent in parts                              16 bytes in flight to a peer are bounded
17 messages are checked before they are believed          18 the log never gets empty
19 reads ask a majority first (`begin_round`)            20 one change of members at a time (`members.py`)

Next to read: `members.py`, `handover.py`, `pysyncobj_core.py` (the library's names), `pysyncobj_adapter.py` (who
drives this).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from horae_node.clock import Clock
from horae_node.errors import Fatal
from horae_node.logs import get_log
from horae_node.raft.handover import Call, Handover
from horae_node.raft.members import Seats
from horae_node.raft.port import SnapshotInfo, Timing
from horae_node.raft.pysyncobj_core import CANDIDATE, FOLLOWER, LEADER, Core, Message, Peer
from horae_node.raft.pysyncobj_journal import Journal
from horae_node.raft.snapshots import Intake, Shelf
from horae_storage.log_port import LogEntry

WINDOW_BYTES: Final = 8 << 20
"""In flight to one peer: four full batches, enough to keep a disk busy, little enough to forget on a break."""

DISK_STALL_S: Final = 2.0
"""A leader whose own disk makes no progress for so long steps down: nothing commits under it (rule 2), while one with
a working disk could go on. Longer than any healthy sync."""

LOW: Final = "low"
"""An acknowledgement's `disk_full` where there is little room, and the log does not wait for it: else it is a bool."""

MESSAGE_FIELDS: Final[dict[str, tuple[tuple[str, type], ...]]] = {
    "append_entries": (("term", int), ("seq", int), ("commit_index", int)),
    "next_node_idx": (("term", int), ("seq", int), ("next_node_idx", int), ("reset", bool), ("success", bool)),
    "request_vote": (("term", int), ("last_log_index", int), ("last_log_term", int)),
    "response_vote": (("term", int),),
    "pre_vote": (("term", int), ("id", int), ("last_log_index", int), ("last_log_term", int)),
    "pre_vote_resp": (("term", int), ("id", int), ("ok", bool)),
    "term_hint": (("term", int),),
    "lead_now": (("term", int),),
    "lead_not": (("term", int),),
}
"""Every message that is understood, and what it must hold. All others are dropped, the library's own
`apply_command`, `apply_command_response` and `timeout_now` among them (rule 13)."""

PIECE_FIELDS: Final[tuple[tuple[str, type], ...]] = (
    ("index", int),
    ("term", int),
    ("previous_term", int),
    ("size", int),
    ("checksum", bytes),
    ("offset", int),
    ("data", bytes),
    ("crc", int),
    ("last", bool),
)

log = get_log("raft")


class Link:
    """What is known of one peer, and what waits for it."""

    __slots__ = (
        "answered_at",
        "awaits_install",
        "awaits_since",
        "beat_at",
        "connected",
        "disk_full",
        "disk_low",
        "fed",
        "flight",
        "flight_bytes",
        "gated",
        "got_seq",
        "heard_at",
        "held",
        "known_versions",
        "muted",
        "peer",
        "seq",
        "stale_seq",
        "votes",
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.votes = True
        """It counts: for commits, elections, read rounds and cluster time."""
        self.fed = True
        """It is sent the log: voters and learners are."""
        self.connected = False
        self.disk_full = False
        """Its last acknowledgement said that its log's disk has no room."""
        self.disk_low = False
        """It said that its disk has little, or none."""
        self.known_versions: tuple[int, int] | None = None
        """The machine versions that it says it knows."""
        self.seq = 0
        """Number of the last append_entries sent to it; its answers say which one they answer."""
        self.got_seq = 0
        """Number of the last append_entries that came from it."""
        self.stale_seq = 0
        """Refusals of sends up to this one were overtaken (rule 6)."""
        self.flight: deque[tuple[int, int]] = deque()
        """(seq, bytes) of what was sent and not answered yet."""
        self.flight_bytes = 0
        self.muted = False
        """Taken out of the library's `connected`, which ends its send loop for this peer (rules 10, 16)."""
        self.awaits_install = 0
        """Index of a snapshot that was sent whole and is not installed there yet; 0 = none."""
        self.awaits_since = 0
        """Number of the append_entries that carried its last piece."""
        self.held = 0
        """Highest index that it acknowledged and our own disk has not (rule 2)."""
        self.gated: deque[tuple[int, Message]] = deque()
        """(group, message) that leave when the group is durable (rule 1)."""
        self.heard_at: float | None = None
        self.answered_at = 0.0
        self.beat_at = 0.0

    def clear_flight(self) -> None:
        self.flight.clear()
        self.flight_bytes = 0

    def clear(self) -> None:
        """Forget all that belonged to a connection."""
        self.clear_flight()
        self.gated.clear()
        self.held = 0
        self.awaits_install = 0
        self.known_versions = None


class Round:
    """One question to all, "am I still your leader?", for all reads that wait (rule 19)."""

    def __init__(self, floors: dict[Peer, int], term: int, read_index: int) -> None:
        self.floors = floors
        self.term = term
        self.read_index = read_index
        """What must be applied before a read that waits for this round may run."""
        self.confirmed_by: set[Peer] = set()
        self.confirmed = False


class Guard:
    def __init__(
        self,
        *,
        core: Core,
        journal: Journal,
        shelf: Shelf,
        intake: Intake,
        clock: Clock,
        timing: Timing,
        known_versions: tuple[int, int],
        commit_known: int,
        send: Callable[[str, Message], None],
        disconnect: Callable[[str, str], None],
        install: Callable[[SnapshotInfo], None],
        on_peer_clock: Callable[[str, int], None],
    ) -> None:
        """`send(node_id, message)`; `disconnect(node_id, reason)`; `install(snapshot)` makes a whole one durable and
        then calls `finish_install` or `abandon_install`."""
        self._core = core
        self._journal = journal
        self._shelf = shelf
        self._intake = intake
        self._clock = clock
        self._send_raw = send
        self._disconnect = disconnect
        self._install = install
        self._on_peer_clock = on_peer_clock
        self._known_versions = known_versions
        self._heartbeat = timing.heartbeat_ms / 1000
        self._election_min = timing.election_min_ms / 1000
        self.links = {node_id: Link(peer) for node_id, peer in core.peers.items()}
        self._by_peer = {link.peer: link for link in self.links.values()}
        self.commit_known = commit_known
        """Highest index known to be committed and the same here: it moves the commit index once it is on our disk."""
        self._leader_told = (0, 0)
        """The last leader's term, and how far all is committed by its word, which our log may be far from."""
        self.installing: SnapshotInfo | None = None
        self._intake_rests = False
        self.rounds: list[Round] = []
        self._leader_heard_at = -1e9
        self._pre_vote_id = 0
        self._pre_votes: set[Peer] = set()
        self._pre_vote_won = False
        self._retired = False
        self._votes = True
        """This node is a voter by its own state: only then does it stand."""
        self._learners = 0
        self._call = Call()
        self._voters: tuple[int, set[Peer]] = (0, set())
        self._sent: list[LogEntry] = []
        self._ticked_at: float | None = None
        self._disk_seen = (0, 0.0)
        self.disk_full = False
        """Our own log waits for room on its disk."""
        self.disk_low = False
        """Our disk has little room: others hear of it."""
        self._handlers: dict[str, Callable[[Link, Message], None]] = {
            "append_entries": self._in_append,
            "next_node_idx": self._in_answer,
            "request_vote": self._in_request_vote,
            "response_vote": self._in_response_vote,
            "pre_vote": self._in_pre_vote,
            "pre_vote_resp": self._in_pre_vote_answer,
            "term_hint": self._in_term_hint,
            "lead_now": self._in_lead_now,
            "lead_not": self._in_lead_not,
        }
        core.on_send(self.out)

    # ================================================================== the doors

    def inp(self, node_id: str, message: Message) -> None:
        """A message of a peer. Raises: `Fatal` when it proves that an invariant is broken."""
        link = self.links.get(node_id)
        if link is None or not link.connected:
            return  # 14: not a member; or of a connection that is gone
        kind = message.get("type")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler is None:
            return  # 13
        if not _is_sound(message, MESSAGE_FIELDS[message["type"]]):
            self._disconnect(node_id, "malformed message")  # 17
            return
        link.heard_at = self._clock.monotonic()
        handler(link, message)

    def out(self, peer: Peer, message: Message) -> None:
        """A message that the library wants to send."""
        link = self._by_peer[peer]
        kind = message["type"]
        if kind == "append_entries":
            self._out_append(link, message)
        elif kind in ("request_vote", "response_vote"):
            if kind == "request_vote" and message["term"] == self._call.term:
                message["called"] = True
            self._send_gated(link, message)  # 1
        # `next_node_idx`: the guard answers each append itself, exactly once. The rest is 13.

    def tick(self, now: float) -> None:
        """Let the library's timers run, and ours before them. `now` in seconds on the monotonic clock."""
        self._excuse_pause(now)
        self._watch_disk(now)
        self.unmute()
        if self._retired:
            self._core.election_deadline = now + 1  # before each tick: the library never holds an election
        elif self._core.state != LEADER:
            self._maybe_follow_call(now)
            self._maybe_pre_vote(now)
        self.raise_commit()
        if self._core.others or self._journal.durable >= self._journal.mark:
            self._core.tick()  # 2: who is the only voter counts nothing but what is on its disk
        if not self._votes and self._core.state == LEADER:
            self._core.resign()  # 20: its own removal is what it has just applied
        self._beat_muted(now)
        if self.rounds and self._core.state != LEADER:
            self.rounds.clear()

    def may_move(self) -> bool:
        """Whether a tick between two looks at the timers has anything to do: commit, apply, or hold an election.

        Most messages and syncs move nothing: an acknowledgement of what is committed already, our own sync before any
        acknowledgement. They would each pay for a whole tick.
        """
        core = self._core
        if core.state != LEADER:
            return self._pre_vote_won or core.state != FOLLOWER or core.commit > core.applied
        return self._majority_has() > core.commit or core.commit > core.applied

    def _majority_has(self) -> int:
        """The index up to which a majority of the voters has our log."""
        core = self._core
        if not core.others:
            return self._journal.durable_index
        match_index = core.match_index
        matched = [match_index[peer] for peer in core.others] if self._learners else list(match_index.values())
        matched.sort(reverse=True)
        return matched[(len(matched) + 1) // 2 - 1]

    def adopt(self, seats: Seats) -> None:
        """Hear, send to and count the others as `seats` says from now on (20)."""
        core = self._core
        for node_id in sorted(seats.everybody - self.links.keys()):
            link = self.links[node_id] = Link(core.peers.setdefault(node_id, Peer(node_id)))
            self._by_peer[link.peer] = link
        for node_id in [node_id for node_id in self.links if node_id not in seats.everybody]:
            self._part(self.links.pop(node_id))
        for node_id, link in self.links.items():
            link.votes = node_id in seats.voters
            link.fed = link.votes or node_id in seats.learners
            if link.fed:
                core.seat(link.peer, votes=link.votes)
            else:
                core.unseat(link.peer)
        self._votes = seats.own_votes
        self._learners = len(seats.learners)

    def _part(self, link: Link) -> None:
        """Forget a peer: nothing is heard of it or sent to it any more."""
        self._shelf.cancel(link.peer.id)
        self._core.unseat(link.peer)
        self._core.connected.discard(link.peer)
        self._core.peers.pop(link.peer.id, None)
        del self._by_peer[link.peer]

    def retire(self) -> None:
        """Lead no more and stand in no election: another shall. This node goes on acknowledging and voting."""
        self._retired = True
        if self._core.state != FOLLOWER:
            self._core.resign()

    @property
    def wants_no_lead(self) -> bool:
        """It retired, or its own removal took its vote: that it leads no more is as it should be."""
        return self._retired or not self._votes

    def _watch_disk(self, now: float) -> None:
        """Step down when our own disk stands still; the vote for itself would not get durable either.

        Not where all disks are full: nobody else could do better, and who leads can say why nothing is taken.
        """
        core, journal = self._core, self._journal
        durable = journal.durable
        if durable >= journal.mark or durable != self._disk_seen[0]:
            self._disk_seen = (durable, now)
        elif core.state == LEADER and now - self._disk_seen[1] > DISK_STALL_S and not self._all_disks_full():
            log.warning("disk_stalled", durable_index=journal.durable_index, last_index=journal.last_index)
            core.resign()

    def _all_disks_full(self) -> bool:
        """Our own, and that of each voter who could lead in our place."""
        others = self._core.others
        return self.disk_full and not any(
            link.connected and not link.disk_full for link in self.links.values() if link.peer in others
        )

    def on_connection(self, node_id: str, up: bool) -> None:
        """A connection came up or was lost: nothing of the older one counts any more (6, 8)."""
        link = self.links.get(node_id)
        if link is None:
            return  # 14: it parted while its connection was still on its way down
        link.connected = up
        link.clear()
        link.muted = False
        link.stale_seq = link.seq
        self._shelf.break_off(node_id, self._clock.monotonic())
        core = self._core
        core.connect(link.peer, up)
        if core.state == LEADER and (matched := core.match_index.get(link.peer, 0)) > 0:
            core.next_index[link.peer] = matched + 1

    def on_durable(self, counter: int, index: int) -> None:
        """All groups up to `counter` are synced, and our log up to `index`."""
        for link in self.links.values():
            gated = link.gated
            while gated and gated[0][0] <= counter:
                self._send(link, gated.popleft()[1])
            if link.held and self._core.state == LEADER:
                self._count_held(link, index)
        self.raise_commit()

    def on_state(self, old: int, new: int) -> None:
        """The library changed between follower, candidate and leader."""
        for link in self.links.values():
            link.held = 0
            link.awaits_install = 0
            link.clear_flight()
            link.stale_seq = link.seq
            self._unmute(link)
            self._shelf.cancel(link.peer.id)
            link.disk_full = link.disk_low = False  # what it said to an earlier reign may be long over
        if new == LEADER:
            self._intake.drop()
        if old == LEADER:
            self.rounds.clear()
            self._core.drain_proposals()  # 13: what waits in the queue must not reach a later reign

    # ================================================================== as a follower

    @property
    def leader_commit(self) -> int | None:
        """How far all is committed, by the word of who leads; None while nobody has said so in this term."""
        core = self._core
        if core.state == LEADER:
            return core.commit
        term, index = self._leader_told
        return index if core.leader_id is not None and term == core.term else None

    def has_all_before_reign(self) -> bool:
        """All is applied here that was ever committed before the present leader led: an entry of its own reign is."""
        core = self._core
        told = self.leader_commit
        return told is not None and told <= core.applied and self._journal.term_at(told) == core.term

    def _in_append(self, link: Link, message: Message) -> None:
        core = self._core
        term = message["term"]
        if term < core.term:
            self._send(link, {"type": "term_hint", "term": core.term})  # 11
            return
        if term == core.term and core.state == LEADER:
            raise Fatal(f"{link.peer.id} leads in term {term}, which is ours")
        self._leader_heard_at = self._clock.monotonic()
        self._pre_vote_id += 1
        self._pre_vote_won = False
        link.got_seq = message["seq"]
        told_term, told = self._leader_told
        self._leader_told = (term, max(told if told_term == term else 0, message["commit_index"]))
        if "prevLogIdx" in message:
            self._take_entries(link, message)
        else:
            self._take_piece(link, message)

    def _take_entries(self, link: Link, message: Message) -> None:
        """Rule 3: find out what of it is new, give the library only that, and answer for what was verified."""
        prev, entries = message["prevLogIdx"], message.get("entries", ())
        if not _is_run(prev, message.get("prevLogTerm"), entries):
            self._disconnect(link.peer.id, "malformed entries")
            return
        journal, safe = self._journal, self._safe
        seq, first = message["seq"], journal.first_index
        if prev is None or prev > journal.last_index:
            self._hear(link, message)
            self._refuse(link, seq, journal.last_index + 1)  # 6: a gap
            return
        prev_term = message["prevLogTerm"]
        if prev < first:
            # Below what we keep all is committed, so the leader has the same: begin where we do.
            prev, prev_term, entries = self._skip_below(first, prev, prev_term, entries)
            if prev < first:
                self._hear(link, message)
                self._accept(link, seq, safe)
                return
        if journal.term_at(prev) != prev_term:
            if prev <= safe:
                raise Fatal(f"{link.peer.id} disagrees with our committed entry {prev}")
            self._hear(link, message)
            self._refuse(link, seq, safe + 1)  # 6: a conflict; what is committed surely matches
            return
        verified = prev + len(entries)
        known = self._count_known(entries)
        if known == len(entries):
            self._hear(link, message)
        else:
            if known:
                prev, prev_term = entries[known - 1][1], entries[known - 1][2]
            if prev < safe:
                raise Fatal(f"{link.peer.id} would truncate our committed entry {prev + 1}")
            self._deliver_append(link, message["term"], prev, prev_term, entries[known:])
        self.commit_known = max(self.commit_known, min(message["commit_index"], verified))
        # 20: in one group with the entries, on the disk before they are acknowledged.
        self._journal.setRaftCommitIndex(max(self._core.commit, self.commit_known))
        self.raise_commit()
        if self._intake.reception is not None:
            self._intake.drop()  # the log has it all: nobody sends the rest
        self._accept(link, seq, verified)

    def _skip_below(self, first: int, prev: int, prev_term: int, entries: tuple) -> tuple:  # type: ignore[type-arg]
        below = first - prev
        if len(entries) < below:
            return prev, prev_term, entries
        root_term = self._journal.term_at(first)
        if entries[below - 1][2] != root_term:
            raise Fatal(f"the leader disagrees with our oldest entry {first}")
        return first, root_term, entries[below:]

    def _count_known(self, entries: tuple) -> int:  # type: ignore[type-arg]
        """How many leading entries we already have, with the same terms."""
        if not entries or entries[0][1] > self._journal.last_index:
            return 0
        known = 0
        for _, index, term in entries:
            if self._journal.term_at(index) != term:
                break
            known += 1
        return known

    def _hear(self, link: Link, message: Message) -> None:
        """Give the library a heartbeat that can neither truncate nor commit: it learns the term and the leader."""
        last = self._journal.last
        self._deliver_append(link, message["term"], last.log_index, last.term, ())

    def _deliver_append(self, link: Link, term: int, prev: int, prev_term: int, entries: Iterable[object]) -> None:
        message = {
            "type": "append_entries",
            "term": term,
            "commit_index": 0,  # 7, 3: the commit index is ours to move, in `raise_commit`
            "prevLogIdx": prev,
            "prevLogTerm": prev_term,
            "entries": entries,
        }
        self._core.receive(link.peer, message)

    def _accept(self, link: Link, seq: int, index: int) -> None:
        """Acknowledge everything up to `index`, once it is on our disk (1)."""
        group = self._journal.mark
        if group <= self._journal.durable:
            self._answer(link, seq, index + 1, success=True)
            return
        answer = self._answer_message(seq, index + 1, success=True)
        link.gated.append((group, answer))
        now = self._clock.monotonic()
        if now - link.answered_at > self._heartbeat / 2:
            self._keep_alive(link, seq, early=True)  # 1: a slow disk is no reason to be taken for dead

    def _refuse(self, link: Link, seq: int, next_index: int) -> None:
        if self.installing is not None or self._intake_rests:
            self._keep_alive(link, seq)  # the snapshot will close the gap
        else:
            self._answer(link, seq, next_index, reset=True)

    def _keep_alive(self, link: Link, seq: int, *, early: bool = False) -> None:
        self._answer(link, seq, 0, early=early or bool(link.gated))

    def _answer(
        self, link: Link, seq: int, next_index: int, *, success: bool = False, reset: bool = False, early: bool = False
    ) -> None:
        self._send(link, self._answer_message(seq, next_index, success=success, reset=reset, early=early))

    def _answer_message(
        self, seq: int, next_index: int, *, success: bool = False, reset: bool = False, early: bool = False
    ) -> Message:
        return {
            "type": "next_node_idx",
            "term": self._core.term,  # 4
            "seq": seq,
            "next_node_idx": next_index,
            "reset": reset,
            "success": success,
            "early": early,
        }

    @property
    def _safe(self) -> int:
        return max(self._core.commit, self._core.applied)

    def raise_commit(self) -> None:
        """Let the commit index follow what is known to be committed, as far as our disk has it.

        Only what is on our own disk: a state that ran ahead of its log could not be matched with it after a crash.
        """
        core = self._core
        goal = min(self.commit_known, self._journal.durable_index)
        if goal > core.commit:
            core.commit = goal
            self._journal.setRaftCommitIndex(max(goal, self.commit_known))

    # ------------------------------------------------------------------ receiving a snapshot (7, 8)

    def _take_piece(self, link: Link, message: Message) -> None:
        self._hear(link, message)
        piece, seq = message.get("serialized"), message["seq"]
        if piece is None or self.installing is not None or self._intake_rests:
            # 8: every one is answered, or the leader thinks us dead
            answer = self._answer_message(seq, 0, early=bool(link.gated))
            answer["installs"] = self.installing is not None or self._intake_rests
            self._send(link, answer)
            return
        if not (isinstance(piece, dict) and _is_sound(piece, PIECE_FIELDS)):
            self._disconnect(link.peer.id, "malformed snapshot piece")
            return
        if piece["index"] <= self._safe:
            self._intake.drop()
            self._accept(link, seq, self._safe)  # 8: never backwards
            return
        taken = self._intake.take(piece)
        if isinstance(taken, SnapshotInfo):
            self.installing = taken
            self._install(taken)
        if taken is False:
            log.warning("snapshot_broken", peer=link.peer.id, index=piece["index"])
            self._answer(link, seq, self._journal.last_index + 1, reset=True)
            return
        # 16: what is not written yet counts as in flight
        answer = self._answer_message(seq, 0, early=self._intake.behind or bool(link.gated))
        if piece["offset"] == 0:
            answer["have"] = self._intake.have  # 8: of the same snapshot, from before a break
        self._send(link, answer)

    def on_pieces_written(self) -> None:
        """The disk has taken pieces: their sender may go on."""
        leader = self._connected_leader()
        if leader is not None and not self._intake.behind:
            self._keep_alive(leader, leader.got_seq)

    def rest_intake(self) -> None:
        """Pieces cannot be written now: drop what there is and all that comes, until `abandon_install`."""
        self._intake_rests = True
        self._intake.drop()

    def finish_install(self, restore: Callable[[SnapshotInfo], None]) -> bool:
        """The received snapshot is durable: `restore` the state from it, and let the log begin there.

        False when it has become useless meanwhile.
        """
        snapshot, self.installing = self.installing, None
        core, journal = self._core, self._journal
        leader = self._connected_leader()
        if snapshot is None or core.state == LEADER:
            return False
        if snapshot.last_index <= self._safe:
            if leader is not None:
                self._accept(leader, leader.got_seq, self._safe)
            return False
        restore(snapshot)
        index = snapshot.last_index
        if journal.term_at(index) == snapshot.last_term:
            journal.cut_below(index)  # what follows extends the snapshot, and may be acknowledged already: kept
        else:
            journal.restart_at(index, snapshot.last_term)
        core.applied = index
        core.commit = max(core.commit, index)
        self.commit_known = max(self.commit_known, index)
        core.forget_waiting(index)
        if leader is not None:
            self._accept(leader, leader.got_seq, index)  # 8: the applied prefix only, not our log's end
        return True

    def abandon_install(self, *, damaged: bool = False) -> None:
        """What was received is of no use: the leader is asked again; for another one, when the whole was `damaged`."""
        self.installing = None
        self._intake_rests = False
        self._intake.drop()
        leader = self._connected_leader()
        if leader is not None:
            answer = self._answer_message(leader.got_seq, self._journal.last_index + 1, reset=True)
            answer["damaged"] = damaged
            self._send(leader, answer)

    def _connected_leader(self) -> Link | None:
        core = self._core
        leader = self.links.get(core.leader_id or "") if core.state != LEADER else None
        return leader if leader is not None and leader.connected else None

    @property
    def holding_index(self) -> int | None:
        """Index that the log may not be cut above while somebody receives or installs; None when nobody does."""
        return self._shelf.holding_index

    # ================================================================== as the leader

    def _out_append(self, link: Link, message: Message) -> None:
        if "transmission" in message:
            raise Fatal("an entry as large as a batch got into the log")  # 15
        message["seq"] = link.seq = link.seq + 1
        if "prevLogIdx" in message:
            message["entries"] = self._shared(message["entries"])
            size = sum([len(entry[0]) for entry in message["entries"]])
        elif message["serialized"] is None:
            size = 0
            self._mute(link)  # 10: the loop would send this again and again for a whole period
        else:
            piece = message["serialized"] = message["serialized"][0]
            size = len(piece["data"])
            if piece["last"]:
                self._mute(link)
                link.awaits_install = piece["index"]
                link.awaits_since = link.seq
                self._core.next_index[link.peer] = piece["index"] + 1
        if size:
            link.flight.append((link.seq, size))
            link.flight_bytes += size
            if link.flight_bytes > WINDOW_BYTES:
                self._mute(link)  # 16
        link.beat_at = self._clock.monotonic() + self._heartbeat
        self._send(link, message)

    def _shared(self, entries: list[LogEntry]) -> list[LogEntry]:
        """One list for all peers that are sent the same entries: the transport packs it once."""
        sent = self._sent
        if entries and sent and len(entries) == len(sent) and entries[0] is sent[0] and entries[-1] is sent[-1]:
            return sent
        self._sent = entries
        return entries

    def _in_answer(self, link: Link, message: Message) -> None:
        core = self._core
        if message["term"] > core.term:
            core.step_down(message["term"])
            return
        if message["term"] < core.term or core.state != LEADER or not link.fed:
            return  # 4: of another reign, or of one who is not led by us
        seq = message["seq"]
        self._land(link, seq, early=bool(message.get("early")))
        said = message.get("disk_full")
        link.disk_full = said is True
        link.disk_low = bool(said)
        versions = message.get("versions")
        if versions != link.known_versions:
            link.known_versions = _versions_of(versions)
        if link.votes:
            self._confirm_rounds(link.peer, seq)
            wall_ms = message.get("wall_ms")
            if isinstance(wall_ms, int):
                self._on_peer_clock(link.peer.id, wall_ms)
        next_index, reset, success = message["next_node_idx"], message["reset"], message["success"]
        if message.get("installs") is False and seq > link.awaits_since:
            link.awaits_install = 0  # 8: its word of how the install ended may not have reached us
        if "have" in message and (offset := self._shelf.skip(link.peer.id, message["have"])) is not None:
            log.event("snapshot_resumed", peer=link.peer.id, offset=offset)
        if reset:
            reset = seq > link.stale_seq  # 6
            if reset:
                link.stale_seq = link.seq
                link.awaits_install = 0
                self._shelf.cancel(link.peer.id)
                if message.get("damaged"):
                    self._shelf.renew()
                next_index = max(1, min(next_index, self._journal.last_index + 1))
        if success:
            index = next_index - 1
            if index > self._journal.last_index:
                raise Fatal(f"{link.peer.id} acknowledges entry {index}, our log ends at {self._journal.last_index}")
            if link.awaits_install and index >= link.awaits_install:
                link.awaits_install = 0
            if self._shelf.holds:
                self._shelf.acknowledged(link.peer.id, index)
            if index > self._journal.durable_index:
                link.held = max(link.held, index)  # 2
                index = self._journal.durable_index
            next_index = index + 1
        self._deliver_answer(link, next_index, reset=reset, success=success)

    def _land(self, link: Link, seq: int, *, early: bool) -> None:
        """What was sent up to `seq` has arrived; an early answer says that it is not on the peer's disk yet."""
        if early:
            return
        flight = link.flight
        while flight and flight[0][0] <= seq:
            link.flight_bytes -= flight.popleft()[1]

    def _count_held(self, link: Link, durable_index: int) -> None:
        """Our own disk has caught up: let the peer's acknowledgement count (2)."""
        index = min(link.held, durable_index)
        if index > self._core.match_index.get(link.peer, 0):
            self._deliver_answer(link, index + 1, reset=False, success=True)
        if link.held <= durable_index:
            link.held = 0

    def _deliver_answer(self, link: Link, next_index: int, *, reset: bool, success: bool) -> None:
        core, peer = self._core, link.peer
        before = core.next_index.get(peer, 0)
        message = {"type": "next_node_idx", "next_node_idx": next_index, "reset": reset, "success": success}
        core.receive(peer, message)
        if not reset and core.next_index.get(peer, before) < before:
            core.next_index[peer] = before  # 5

    # ------------------------------------------------------------------ who may be sent to (10, 16)

    def unmute(self) -> None:
        """Let the library send again to those whose reason to be muted is gone."""
        for link in self.links.values():
            if link.muted and self._may_send(link):
                self._unmute(link)

    def _may_send(self, link: Link) -> bool:
        if link.flight_bytes > WINDOW_BYTES // 2 or link.awaits_install:
            return False
        if self._core.state != LEADER or self._core.next_index.get(link.peer, 0) > self._journal.first_index:
            return True
        return self._shelf.may_send(link.peer.id)

    def _mute(self, link: Link) -> None:
        link.muted = True
        self._core.connected.discard(link.peer)

    def _unmute(self, link: Link) -> None:
        if link.muted:
            link.muted = False
            if link.connected:
                self._core.connected.add(link.peer)

    def _beat_muted(self, now: float) -> None:
        """The library skips the muted: they must hear from us all the same."""
        if self._core.state != LEADER:
            return
        for link in self.links.values():
            if link.muted and link.connected and now >= link.beat_at:
                self._beat(link)

    def _beat(self, link: Link) -> None:
        link.seq += 1
        link.beat_at = self._clock.monotonic() + self._heartbeat
        message = {
            "type": "append_entries",
            "term": self._core.term,
            "seq": link.seq,
            "commit_index": self._core.commit,  # moves nothing there, and says how far behind it is
            "serialized": None,
        }
        self._send(link, message)

    def has_unsent(self) -> bool:
        """True when the leader has entries or pieces that it could send to somebody now."""
        next_index, last = self._core.next_index, self._journal.last_index
        for peer in self._core.connected:  # noqa: SIM110 (a generator costs twice as much, five times an entry)
            if next_index.get(peer, last + 1) <= last:
                return True
        return False

    # ------------------------------------------------------------------ reads (19)

    def begin_round(self) -> Round:
        """Ask all peers whether we still lead. The round is `confirmed` once a majority has answered something that
        was sent after this call, in our term; it is dropped when we stop leading first."""
        core = self._core
        floors = {link.peer: link.seq for link in self.links.values() if link.votes}
        # Before our term's own first entry is committed, our commit index may be old news.
        round_ = Round(floors, core.term, max(core.commit, core.noop_index))
        if not core.others:
            round_.confirmed = True
            return round_
        self.rounds.append(round_)
        for link in self.links.values():
            if link.connected and link.votes:
                self._beat(link)
        return round_

    def _confirm_rounds(self, peer: Peer, seq: int) -> None:
        if not self.rounds:
            return
        others = self._core.others
        for round_ in self.rounds:
            if seq > round_.floors.get(peer, seq):
                round_.confirmed_by.add(peer)
                round_.confirmed = self._is_majority(len(round_.confirmed_by & others) + 1)
        self.rounds = [round_ for round_ in self.rounds if not round_.confirmed]

    # ================================================================== elections (11, 12)

    def _excuse_pause(self, now: float) -> None:
        """After a pause of the process the network is read before any deadline counts: the leader may well live.

        A follower that was stopped for 2 s deposed a healthy leader 60 times of 60 without this.
        """
        paused = self._ticked_at is not None and now - self._ticked_at > self._election_min / 2
        self._ticked_at = now
        if paused:
            self._core.election_deadline = max(self._core.election_deadline, now + self._core.new_timeout())

    def _maybe_pre_vote(self, now: float) -> None:
        core = self._core
        if self._pre_vote_won:
            self._pre_vote_won = False
            return
        if core.others and core.election_deadline >= now:
            return  # who is the only voter has nobody to wait for
        # Or a node that reaches no majority would name, and send its callers to, a leader that is long gone.
        core.forget_leader()
        if not self._may_stand():
            core.election_deadline = now + self._heartbeat
            return
        if (core.others and not core.connected) or now - self._disk_seen[1] > DISK_STALL_S:
            return
        if not core.others:
            self._win_pre_vote()
            return
        core.election_deadline = now + core.new_timeout()
        self._pre_vote_id += 1
        self._pre_votes = set()
        last = self._journal.last
        for link in self.links.values():
            if not link.votes:
                continue
            question = {
                "type": "pre_vote",
                "id": self._pre_vote_id,
                "term": core.term + 1,
                "last_log_index": last.log_index,
                "last_log_term": last.term,
            }
            self._send(link, question)

    def _in_pre_vote(self, link: Link, message: Message) -> None:
        core = self._core
        willing = message["term"] > core.term and core.state != LEADER and not self._hears_leader()
        ok = willing and self._is_up_to_date(message)
        answer = {"type": "pre_vote_resp", "id": message["id"], "ok": ok, "term": core.term}
        self._send(link, answer)

    def _in_pre_vote_answer(self, link: Link, message: Message) -> None:
        core = self._core
        if message["term"] > core.term:
            core.step_down(message["term"])
            return
        if not message["ok"] or message["id"] != self._pre_vote_id or core.state == LEADER or not link.votes:
            return
        self._pre_votes.add(link.peer)
        if self._is_majority(len(self._pre_votes) + 1):
            self._win_pre_vote()

    def _win_pre_vote(self) -> None:
        self._pre_vote_id += 1
        self._pre_vote_won = True
        self._core.election_deadline = 0.0  # the library's next tick holds the election

    def _may_stand(self) -> bool:
        """20: only a voter, and one whose state holds every change of members that it knows to be committed."""
        return self._votes and not self._retired and self._core.applied >= self.commit_known

    def _in_request_vote(self, link: Link, message: Message) -> None:
        core, term = self._core, message["term"]
        if term < core.term:
            self._send(link, {"type": "term_hint", "term": core.term})
            return
        if term > core.term and self._hears_leader() and message.get("called") is not True:
            return
        if term == core.term and core.voted_for == link.peer.id and core.state == FOLLOWER:
            self._send_gated(link, {"type": "response_vote", "term": term})  # 12: the answer may have been lost
            return
        core.receive(link.peer, message)

    def _in_response_vote(self, link: Link, message: Message) -> None:
        core = self._core
        if message["term"] != core.term or core.state != CANDIDATE or not link.votes:
            return
        if self._voters[0] != core.term:
            self._voters = (core.term, set())
        if link.peer not in self._voters[1]:  # 12
            self._voters[1].add(link.peer)
            core.receive(link.peer, message)

    def _in_term_hint(self, link: Link, message: Message) -> None:
        if message["term"] > self._core.term:
            self._core.step_down(message["term"])

    # ------------------------------------------------------------------ handing over

    def begin_handover(self, node_id: str, wait_s: float) -> Handover | None:
        """Prepare to make this voter lead; None when it cannot."""
        link = self.links.get(node_id)
        if link is None or not link.votes or not link.connected or self._core.state != LEADER:
            return None
        return Handover(self._core, self._journal, link.peer, self._clock.monotonic() + wait_s)

    def maybe_call(self, handover: Handover) -> None:
        """Call the next leader up, once, when it has everything."""
        if handover.is_due():
            handover.called = True
            self._send(self._by_peer[handover.peer], {"type": "lead_now", "term": self._core.term})

    def call_off(self, handover: Handover) -> None:
        """It took too long: we lead on. Who was called and has not stood yet must not."""
        if handover.called:
            self._send(self._by_peer[handover.peer], {"type": "lead_not", "term": self._core.term})

    def _in_lead_now(self, link: Link, message: Message) -> None:
        """A call that lay in the network while this process stood still may be long over: it is no call."""
        core, now = self._core, self._clock.monotonic()
        awake = self._ticked_at is None or now - self._ticked_at <= self._election_min / 2
        if awake and message["term"] == core.term and core.leader_id == link.peer.id and core.state == FOLLOWER:
            self._call.until = now + self._election_min

    def _in_lead_not(self, link: Link, message: Message) -> None:
        if message["term"] == self._core.term and self._core.leader_id == link.peer.id:
            self._call.until = 0.0

    def _maybe_follow_call(self, now: float) -> None:
        """Stand as soon as we may: whoever called us leads no more than it must."""
        call = self._call
        if call.until > now and self._may_stand():
            call.until = 0.0
            call.term = self._core.term + 1
            self._win_pre_vote()

    def _hears_leader(self) -> bool:
        fresh = self._clock.monotonic() - self._leader_heard_at < self._election_min
        return fresh and self._core.leader_id is not None

    def _is_up_to_date(self, message: Message) -> bool:
        last = self._journal.last
        return bool((message["last_log_term"], message["last_log_index"]) >= (last.term, last.log_index))

    def _is_majority(self, voters: int) -> bool:
        return 2 * voters > len(self._core.others) + 1

    # ================================================================== sending

    def _send_gated(self, link: Link, message: Message) -> None:
        group = self._journal.mark
        if group <= self._journal.durable:
            self._send(link, message)
        elif link.connected:
            link.gated.append((group, message))

    def _send(self, link: Link, message: Message) -> None:
        if not link.connected:
            return
        if message["type"] == "next_node_idx":
            message["wall_ms"] = self._clock.wall_ms()
            # An older build takes anything but False for a full disk: no new work, and no lead, for either.
            message["disk_full"] = self.disk_full or (self.disk_low and LOW)
            message["versions"] = self._known_versions
            link.answered_at = self._clock.monotonic()
        self._send_raw(link.peer.id, message)


def _is_sound(message: Message, fields: tuple[tuple[str, type], ...]) -> bool:
    for name, kind in fields:  # noqa: SIM110 (a generator costs twice as much, for each message)
        if type(message.get(name)) is not kind:
            return False
    return True


def _versions_of(said: object) -> tuple[int, int] | None:
    match said:
        case (int(oldest), int(newest)):
            return oldest, newest
        case _:
            return None


def _is_run(prev: object, prev_term: object, entries: object) -> bool:
    """True for entries that follow each other right after `prev`."""
    if not isinstance(entries, (tuple, list)):
        return False
    if prev is None:
        return True
    if type(prev) is not int or type(prev_term) is not int:
        return False
    if not entries:
        return True
    ends = (entries[0][1], entries[-1][1])
    return ends == (prev + 1, prev + len(entries))
