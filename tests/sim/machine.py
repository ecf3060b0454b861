"""One machine of the cluster: its clocks, its disk, and the lives of the real node that runs on it.

The node is `horae_node.runtime.Node`, wired by itself; `SimHost` hands it the simulated parts. A life ends by a crash
(nothing is cleaned up, the disk keeps what was synced), by a stop (as told by a signal), or by the node's own decision
to end, which is right after an injected disk error only. Next to read: `cluster.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.sim.disk import ROOM_BYTES, Disk
from tests.sim.network import Network, SimTransport
from tests.sim.world import MILLISECOND, SECOND, Clock, Handle, Process, World

from horae_node.codec import split_entry
from horae_node.config import Address, NodeConfig
from horae_node.core.commands import Command, Header
from horae_node.core.model import KNOWN_VERSIONS
from horae_node.core.results import EntryOutcome
from horae_node.raft.port import Member, Roster
from horae_node.raft.transport import TransportPort
from horae_node.runtime import Node
from horae_storage.errors import StorageFailed
from horae_storage.kv import Store
from horae_storage.log_port import RaftLog

REVIVE_US: Final = SECOND
"""How soon a supervisor starts a node again that ended by itself."""


class SimHost:
    """The machine as the node sees it (port `Host`)."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine = machine
        self._process = process

    def open(self) -> None:
        self._machine.disk.store.process = self._process
        self._machine.disk.log.attach(self._process)

    def close(self) -> None:
        """Nothing is held."""

    def mark_initialised(self) -> None:
        """The disk is never lost here."""

    def store(self) -> Store:
        self._machine.disk.store.on_install = self._machine.on_installed
        return self._machine.disk.store

    def raft_log(self) -> RaftLog:
        return self._machine.disk.log

    def transport(self) -> TransportPort:
        return SimTransport(self._machine.network, self._process, self._machine.node_id)

    def dice(self) -> random.Random:
        return random.Random(self._machine.rng.getrandbits(64))

    def known_members(self) -> Roster | None:
        return self._machine.book

    def remember_members(self, book: Roster) -> None:
        self._machine.book = book

    def forget_members(self) -> None:
        self._machine.book = None

    @property
    def origin(self) -> str | None:
        """Nothing is restored or recovered here."""
        return None

    def incarnation_of(self, node_id: str) -> str | None:
        """No disk is ever lost here: there is nothing to tell apart."""
        return None

    @property
    def snapshot_dir(self) -> Path:
        return self._machine.directory / "snapshots"

    def free_bytes(self) -> int:
        return 0 if self._machine.disk.full else ROOM_BYTES


class WatchedNode(Node):
    """The real node; what it does is also told to the judge."""

    machine: Machine
    life: Life

    def _on_entry(self, index: int, outcome: EntryOutcome) -> None:
        self.machine.on_entry(self.life, index, outcome)
        super()._on_entry(index, outcome)
        self.machine.on_told(self.life, index)

    def _on_role(self) -> None:
        super()._on_role()
        if self.raft.is_leader:
            self.machine.on_leader(self.life, self.raft.term)

    def _on_fatal(self, error: BaseException) -> None:
        super()._on_fatal(error)
        self.machine.on_fatal(self.life, error)

    def entry(self, index: int) -> tuple[Header, tuple[Command, ...]]:
        """What was just applied, as its leader stamped it."""
        (entry,) = self._raft._journal.entries(index, index)
        return split_entry(entry.data[1:])

    @property
    def raft(self) -> Any:
        return self._raft

    @property
    def applier(self) -> Any:
        return self._applier

    @property
    def session(self) -> Any:
        return self._session

    @property
    def feed(self) -> Any:
        return self._feed


class Life:
    """One life of a machine's node."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.process = Process(machine.world, machine.node_id, machine.clock)
        self.process.on_error = self._on_error
        self.process.loop.executor_us = lambda: machine.disk.latency_us() + MILLISECOND
        self.host = SimHost(machine, self.process)
        self.node = WatchedNode(machine.config, clock=machine.clock, host=self.host, known=machine.known)
        self.node.machine, self.node.life = machine, self
        self.number = number
        self.started = False
        self.calls: dict[object, Callable[[], None]] = {}
        """What outside waits for an answer: told when the life ends."""

    @property
    def node_id(self) -> str:
        return self.machine.node_id

    def begin(self) -> None:
        self.process.step(Handle(self._start, ()))

    def _start(self) -> None:
        task = self.process.loop.create_task(self.node.start())
        task.add_done_callback(self._on_started)

    def _on_started(self, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is not None:
            self.machine.on_fatal(self, error)
        else:
            self.started = True

    def _on_error(self, error: BaseException) -> None:
        self.machine.on_broken(self, error)


class Machine:
    """What outlives its node's processes."""

    def __init__(
        self,
        *,
        world: World,
        network: Network,
        member: Member,
        members: tuple[Member, ...],
        knobs: dict[str, int],
        directory: Path,
        rng: random.Random,
        rate: float,
    ) -> None:
        self.world = world
        self.network = network
        self.node_id = member.node_id
        self.directory = directory
        self.rng = rng
        self.clock = Clock(world, rate)
        self.disk = Disk(world, random.Random(rng.getrandbits(64)))
        self.config = _config(member, members, knobs, directory)
        self.known = KNOWN_VERSIONS
        """The machine versions of the build that its next life runs."""
        self.life: Life | None = None
        self.lives = 0
        self.book: Roster | None = None
        """The members as its node last wrote them down."""
        self.gone = False
        """Broken for good: nobody starts it again."""
        self._again = False
        """Somebody wants it to run, though it is about to stop."""
        self.on_entry: Callable[[Life, int, EntryOutcome], None]
        self.on_told: Callable[[Life, int], None]
        self.on_leader: Callable[[Life, int], None]
        self.on_broken: Callable[[Life, BaseException], None]
        self.on_ended: Callable[[Machine, str], None]
        self.on_installed: Callable[[], None]

    @property
    def running(self) -> Life | None:
        """The life whose node has started and is not paused; None when there is none."""
        life = self.life
        return life if life is not None and life.started and not life.process.paused else None

    def start(self) -> None:
        """Begin a life, unless there is one; after one that was told to stop, as soon as that has ended."""
        self._again = self._again or self.life is not None
        if self.life is None and not self.gone:
            self._again = False
            self.lives += 1
            self.life = Life(self, self.lives)
            self.life.begin()

    def crash(self, *, power: bool) -> None:
        """The process is gone at once; with `power` so is the machine, and nobody is told."""
        life = self.life
        if life is None:
            return
        self.life = None
        life.process.end()
        end = self.network.ends.get(self.node_id)
        if end is not None:
            self.network.closed(end, silently=power)
        self.disk.crash()
        for lost in list(life.calls.values()):
            lost()

    def stop(self) -> None:
        """As a supervisor stops it: the node is asked, and ends in its own time."""
        life = self.life
        if life is not None and life.started:
            self._again = False
            self.world.after(0, life.process, self._stop, life)

    def _stop(self, life: Life) -> None:
        task = life.process.loop.create_task(life.node.stop())
        task.add_done_callback(lambda done: self._on_stopped(life, done))

    def _on_stopped(self, life: Life, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is not None:
            self.on_fatal(life, error)
        else:
            self.world.after(0, None, self._stopped, life)

    def _stopped(self, life: Life) -> None:
        if self.life is life:
            self.crash(power=False)
            self.on_ended(self, "stopped")
            if self._again:
                self.start()

    def on_fatal(self, life: Life, error: BaseException) -> None:
        """The node ends by itself: right after an injected disk error, else a broken promise."""
        if not (isinstance(error, StorageFailed) and self.disk.broken):
            self.on_broken(life, error)
        self.world.after(0, None, self._ended, life)

    def _ended(self, life: Life) -> None:
        if self.life is life:
            self.crash(power=False)
            self.on_ended(self, "ended by itself")
            self.world.after(REVIVE_US, None, self.start)


def _config(member: Member, members: tuple[Member, ...], knobs: dict[str, int], directory: Path) -> NodeConfig:
    values = {
        "heartbeat_ms": 60,
        "election_min_ms": 400,
        "election_max_ms": 800,
        "fallback_ms": 800,
        "state_commit_interval_ms": 1000,
        "state_commit_commands": 5000,
        "advance_limit": 1000,
        "log_keep_entries": 50_000,
        "log_keep_bytes": 64 << 20,
        "stop_grace_ms": 5000,
    }
    return NodeConfig(
        node_id=member.node_id,
        data_dir=directory,
        members=members,
        join=("http://sim",) if members == (member,) else (),
        cluster="sim",
        http_listen=Address("127.0.0.1", 1),
        http_advertise=member.http_url,
        raft_listen=Address("127.0.0.1", 2),
        tokens=(),
        log_level="info",
        **(values | knobs),
    )
