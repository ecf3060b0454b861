"""Whole nodes without a loop: each message, tick and sync is one call, so that a scenario can be told step by step.

A node is the guard, the library, the journal and a log in memory, put together as the adapter does. All share one
manual clock. Links keep order; what a cut link held is lost. Not here: any assertion.
"""

from __future__ import annotations

import random
from collections import deque
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
from tests.unit.raft.parts import ListMachine

from horae_node.clock import ManualClock
from horae_node.raft import boot
from horae_node.raft.guard import Guard
from horae_node.raft.members import seats_of
from horae_node.raft.port import Member, Roster, SnapshotInfo, Timing
from horae_node.raft.pysyncobj_core import CANDIDATE, ENTRY_REGULAR, LEADER, Core, Message
from horae_node.raft.snapshots import InstallNote, Intake, Shelf
from horae_storage.memory_log import MemoryRaftLog

TIMING = Timing(heartbeat_ms=60, election_min_ms=400, election_max_ms=800, fallback_ms=800)


class ScriptNode:
    def __init__(self, script: Script, node_id: str, log: MemoryRaftLog, machine: ListMachine) -> None:
        self.script = script
        self.node_id = node_id
        self.log = log
        self.machine = machine
        self.shelf = Shelf()
        self.wanted = 0
        self.installs: list[SnapshotInfo] = []
        self.reasons: dict[bytes, int] = {}
        """How each proposal ended."""
        self.dropped: list[str] = []
        self.clocks: list[tuple[str, int]] = []
        directory = script.directory / node_id
        directory.mkdir(parents=True, exist_ok=True)
        self.note = InstallNote(directory)
        self.core = Core(
            own_id=node_id,
            peer_ids=[other for other in script.ids if other != node_id],
            timing=TIMING,
            clock=script.clock,
            rng=random.Random(node_id),
            pieces=self.shelf,
            apply=self._apply,
            on_state=lambda old, new: self.guard.on_state(old, new),
        )
        log.on_durable(self._on_durable)
        self.journal, state = boot.open_journal(log, machine, self.note)
        applied = machine.applied_index
        self.core.start(
            self.journal,
            term=max(state.term, self.journal.last.term),
            voted_for=state.voted_for,
            commit=applied,
            applied=applied,
        )
        self.guard = Guard(
            core=self.core,
            journal=self.journal,
            shelf=self.shelf,
            intake=Intake(directory),
            clock=script.clock,
            timing=TIMING,
            known_versions=machine.known_versions,
            commit_known=min(max(state.commit_index, applied), self.journal.last_index),
            send=lambda to, message: script.put(node_id, to, message),
            disconnect=lambda peer, reason: self.dropped.append(reason),
            install=self.installs.append,
            on_peer_clock=lambda peer, wall_ms: self.clocks.append((peer, wall_ms)),
        )
        self.shelf.oldest_index = lambda: self.journal.first_index
        self.shelf.want = self._want
        self.seen: Roster | None = None
        if script.configured is not None:
            self.take_seats()
        self.sync()

    @property
    def leads(self) -> bool:
        return self.core.state == LEADER

    @property
    def terms(self) -> list[int]:
        return [entry.term for entry in self.journal[0:]]

    @property
    def last(self) -> int:
        return self.journal.last_index

    def sync(self) -> None:
        self.journal.seal()
        self.log.sync()

    def propose(self, entry: bytes) -> None:
        self.core.enter()
        self.core.propose(entry, lambda result, reason: self.reasons.__setitem__(entry, reason))
        self.core.append_proposals()

    def write(self, *entries: bytes) -> None:
        """Propose these, and have them on its own disk."""
        for entry in entries:
            self.propose(entry)
        self.sync()

    def rewind(self, peer: str, index: int) -> None:
        """What it sends next to that one begins there, as after a refusal."""
        self.core.next_index[self.core.peers[peer]] = index

    def send(self) -> None:
        self.core.enter()
        self.guard.unmute()
        self.core.send_entries()

    def install(self) -> bool:
        """Play the adapter's part after a snapshot came in whole."""
        self.note.write(self.installs[-1].last_index, self.installs[-1].last_term)
        return self.install_now()

    def install_now(self) -> bool:
        """As `install`, without the note."""
        self.core.enter()
        done = self.guard.finish_install(self.machine.install_snapshot)
        self.maybe_take_seats()
        self.sync()
        return done

    def give_snapshot(self) -> None:
        """Play the adapter's part after a snapshot was wanted."""
        self.machine.commit()
        index = self.machine.applied_index
        path = self.script.directory / self.node_id / f"{index}.snapshot"
        data = msgpack.packb((index, self.machine.applied))
        path.write_bytes(data)
        term = self.journal.term_at(index)
        assert term is not None
        self.shelf.put(SnapshotInfo(path, index, term, term, len(data), sha256(data).digest()))

    @property
    def roster(self) -> Roster:
        """Who counts, as applied here."""
        assert self.script.configured is not None
        return self.machine.roster or self.script.configured

    def take_seats(self) -> None:
        """Play the adapter's part after members changed, here or in what a peer tells."""
        self.seen = self.machine.roster
        if self.seen is not None and self.seen.at_index > self.script.book.at_index:
            self.script.book = self.seen
        before = set(self.guard.links)
        self.guard.adopt(seats_of(self.node_id, self.roster, self.script.book))
        self.script.unmet |= {(self.node_id, other) for other in self.guard.links.keys() - before}

    def _apply(self, index: int, data: bytes) -> object:
        result = self.machine.apply(index, data[1:] if data[:1] == ENTRY_REGULAR else b"")
        self.maybe_take_seats()
        return result

    def maybe_take_seats(self) -> None:
        if self.machine.roster is not self.seen:
            self.take_seats()

    def _want(self) -> None:
        self.wanted += 1

    def _on_durable(self, durable: int) -> None:
        self.journal.on_durable(durable)
        self.core.enter()
        self.guard.on_durable(durable, self.journal.durable_index)


class Script:
    """A cluster under the test's hand. With `auto_sync` each step is followed by a sync of the node that took it."""

    def __init__(self, directory: Path, size: int = 3, *, auto_sync: bool = True, voters: str = "") -> None:
        """With `voters` the others are to be added by entries; without, all count and members never change."""
        self.directory = directory
        self.configured = Roster(0, tuple(Member(name, f"{name}:1", "") for name in voters)) if voters else None
        self.book = self.configured or Roster(0, ())
        """The newest roster that any node has applied: told at each connection."""
        self.unmet: set[tuple[str, str]] = set()
        """New links of a node that are to be connected anew."""
        self.auto_sync = auto_sync
        self.clock = ManualClock()
        self.clock.advance(10_000)
        self.ids = [chr(ord("a") + number) for number in range(size)]
        self.links: dict[tuple[str, str], deque[bytes]] = {}
        self.nodes: dict[str, ScriptNode] = {}
        for node_id in self.ids:
            self.nodes[node_id] = ScriptNode(self, node_id, MemoryRaftLog(), ListMachine())
        for one in self.ids:
            for other in self.ids:
                if one < other:
                    self.connect(one, other)

    def __getitem__(self, node_id: str) -> ScriptNode:
        return self.nodes[node_id]

    # ------------------------------------------------------------------ links

    def connect(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            if (here, there) not in self.links:
                self.links[here, there] = deque()
                self._told(here, there, True)

    def disconnect(self, one: str, other: str) -> None:
        """What is under way both ways is lost."""
        for here, there in ((one, other), (other, one)):
            if self.links.pop((here, there), None) is not None:
                self._told(here, there, False)

    def isolate(self, node_id: str) -> None:
        for other in self.ids:
            if other != node_id:
                self.disconnect(node_id, other)

    def rejoin(self, node_id: str) -> None:
        for other in self.ids:
            if other != node_id and other in self.nodes:
                self.connect(node_id, other)

    def put(self, here: str, there: str, message: Message) -> None:
        link = self.links.get((here, there))
        if link is not None:
            link.append(msgpack.packb(message))

    def under_way(self, here: str, there: str) -> list[Any]:
        return [msgpack.unpackb(body, use_list=False) for body in self.links[here, there]]

    def deliver(self, here: str, there: str, count: int | None = None) -> int:
        """Hand over the first `count` messages (None: all that are there now); how many."""
        link = self.links.get((here, there))
        count = min(len(link), len(link) if count is None else count) if link is not None else 0
        for _ in range(count):
            self.inject(here, there, msgpack.unpackb(self.links[here, there].popleft(), use_list=False))
        return count

    def inject(self, here: str, there: str, message: Message) -> None:
        """Hand over a message that no queue held."""
        node = self.nodes[there]
        node.core.enter()
        node.guard.inp(here, message)
        self._after(node)

    def settle(self, *among: str) -> None:
        """Deliver between these (default: all) until nothing is under way."""
        ids = among or tuple(self.nodes)
        while sum(self.deliver(one, other) for one in ids for other in ids if one != other):
            pass

    # ------------------------------------------------------------------ time

    def tick(self, node_id: str, after_ms: int = 0) -> None:
        self.clock.advance(after_ms)
        node = self.nodes[node_id]
        node.core.enter()
        node.guard.tick(self.clock.monotonic())
        self._after(node)

    def run(self, among: str, ms: int) -> None:
        """Let these tick each 20 ms and all their messages arrive."""
        for _ in range(0, ms, 20):
            self.clock.advance(20)
            for node_id in among:
                self.tick(node_id)
            self.settle(*among)

    def elect(self, node_id: str, *others: str) -> None:
        """Make this one leader with the votes of these: nobody heard a leader for long, and its timer ends first."""
        self.clock.advance(1000)
        for one in (node_id, *others):
            self.nodes[one].core.election_deadline = self.clock.monotonic() + 0.5
            self.tick(one)
        self.nodes[node_id].core.election_deadline = 0.0
        for _ in range(3):
            self.tick(node_id)
            for other in others:
                self.deliver(node_id, other)
                self.deliver(other, node_id)
        assert self.nodes[node_id].leads

    def stand(self, node_id: str, *others: str) -> None:
        """Make this one a candidate, with the pre-votes of these."""
        self.nodes[node_id].core.election_deadline = 0.0
        self.tick(node_id)
        for other in others:
            self.deliver(node_id, other)
            self.deliver(other, node_id)
        self.tick(node_id)
        assert self.nodes[node_id].core.state == CANDIDATE

    # ------------------------------------------------------------------ processes

    def crash(self, node_id: str, keep_groups: int = 0) -> None:
        """Lose what was not durable. Its links are gone."""
        self.isolate(node_id)
        node = self.nodes.pop(node_id)
        self._crashed = (node.log.crash(keep_groups), node.machine.crash())

    def restart(self, node_id: str) -> None:
        log, machine = self._crashed
        self.nodes[node_id] = ScriptNode(self, node_id, log, machine)
        self.rejoin(node_id)

    # ------------------------------------------------------------------ inside

    def meet(self) -> None:
        """Connect the new links of all nodes, as the transport does after members changed."""
        unmet, self.unmet = self.unmet, set()
        for here, there in sorted(unmet):
            if (here, there) in self.links:
                self.disconnect(here, there)
                self.connect(here, there)

    def _told(self, here: str, there: str, up: bool) -> None:
        if here in self.nodes:
            self.nodes[here].core.enter()
            if up and self.configured is not None:
                self.nodes[here].take_seats()
            self.nodes[here].guard.on_connection(there, up)

    def _after(self, node: ScriptNode) -> None:
        if self.auto_sync:
            node.sync()
        else:
            node.journal.seal()
