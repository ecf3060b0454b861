"""What the tests of consensus are built of: a small state machine, a network in memory, clusters of both kinds.

The network keeps order on each link, packs and unpacks as the wire does, and delivers when the loop comes round.
Not here: any assertion.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgpack
from tests.helpers.loopback import free_ports

from horae_node.clock import SystemClock
from horae_node.raft.port import LogLimits, Member, Roster, SnapshotInfo, Timing
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.raft.transport import Message, Receiver, TcpTransport, TransportPort
from horae_storage.memory_log import MemoryRaftLog

ROSTER = b"roster "

LARGE_ENTRIES = [bytes([number]) * 20_000 for number in range(200)]
SHORT_TAIL = LogLimits(tail_bytes=1 << 20, tail_entries=20)
"""Of a log that keeps the last of those entries only, once they are durable."""


def roster_entry(roster: Roster) -> bytes:
    """An entry that makes these the members; its index is that of the log."""
    return ROSTER + bytes(msgpack.packb((roster.voters, roster.learners, sorted(roster.removed))))


def roster_at(index: int, entry: bytes) -> Roster:
    voters, learners, removed = msgpack.unpackb(entry[len(ROSTER) :], use_list=False)
    return Roster(
        index, tuple(Member(*one) for one in voters), tuple(Member(*one) for one in learners), frozenset(removed)
    )


class ListMachine:
    """A state machine whose state is the list of what was applied; it can lose what was not made durable."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, bytes]] = []
        self.applied_index = 1
        self.durable_index = 1
        self.known_versions = (1, 1)
        self.roster: Roster | None = None
        self.waiters: list[tuple[Callable[[ListMachine], bool], asyncio.Future[None]]] = []

    def apply(self, index: int, entry: bytes) -> object:
        assert index == self.applied_index + 1
        self.applied_index = index
        if entry:
            self.applied.append((index, entry))
            if entry.startswith(ROSTER):
                self.roster = roster_at(index, entry)
        self._tell()
        return (index, entry)

    def commit(self) -> None:
        self.durable_index = self.applied_index

    def crash(self) -> ListMachine:
        """The machine that a restart finds."""
        found = ListMachine()
        found.applied_index = found.durable_index = self.durable_index
        found._hold([(index, entry) for index, entry in self.applied if index <= self.durable_index])
        return found

    def _hold(self, applied: list[tuple[int, bytes]]) -> None:
        self.applied = applied
        rosters = [roster_at(index, entry) for index, entry in applied if entry.startswith(ROSTER)]
        self.roster = rosters[-1] if rosters else None

    async def take_snapshot(self, path: Path, term_of: Callable[[int], int]) -> SnapshotInfo:
        self.commit()
        index = self.applied_index
        data = msgpack.packb((index, self.applied))
        path.write_bytes(data)  # noqa: ASYNC240 (a few bytes)
        return SnapshotInfo(path, index, term_of(index), term_of(index - 1), len(data), sha256(data).digest())

    async def check_snapshot(self, snapshot: SnapshotInfo) -> None:
        msgpack.unpackb(snapshot.path.read_bytes(), use_list=False)

    def install_snapshot(self, snapshot: SnapshotInfo) -> None:
        index, applied = msgpack.unpackb(snapshot.path.read_bytes(), use_list=False)
        assert index == snapshot.last_index
        self._hold(list(applied))
        self.applied_index = self.durable_index = index
        self._tell()

    @property
    def entries(self) -> list[bytes]:
        """Of the test's own."""
        return [entry for _, entry in self.applied if not entry.startswith(ROSTER)]

    async def wait_for(self, condition: Callable[[ListMachine], bool], deadline_s: float = 10) -> None:
        """Until the condition holds after some apply."""
        if not condition(self):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append((condition, future))
            await asyncio.wait_for(future, deadline_s)

    def _tell(self) -> None:
        for condition, future in self.waiters:
            if not future.done() and condition(self):
                future.set_result(None)


class MemoryNetwork:
    """Links between `MemoryTransport`s. A cut loses what is under way, and both ends hear of it."""

    def __init__(self) -> None:
        self.nodes: dict[str, MemoryTransport] = {}
        self.cuts: set[frozenset[str]] = set()

    def transport(self, node_id: str) -> MemoryTransport:
        return MemoryTransport(self, node_id)

    def cut(self, *node_ids: str) -> None:
        """Take these nodes away from all others (and from each other)."""
        for node_id in node_ids:
            for other in list(self.nodes):
                if other != node_id and frozenset((node_id, other)) not in self.cuts:
                    self.cuts.add(frozenset((node_id, other)))
                    self._link(node_id, other, False)

    def cut_one(self, one: str, other: str) -> None:
        """Only the link between the two."""
        self.cuts.add(frozenset((one, other)))
        self._link(one, other, False)

    def heal(self) -> None:
        cuts, self.cuts = self.cuts, set()
        for pair in cuts:
            one, other = sorted(pair)
            self.meet(one, other)

    def joined(self, node_id: str) -> None:
        for other in list(self.nodes):
            if other != node_id:
                self.meet(node_id, other)

    def left(self, node_id: str) -> None:
        for other in list(self.nodes):
            if other != node_id:
                self._link(node_id, other, False)
        del self.nodes[node_id]

    def meet(self, one: str, other: str) -> None:
        """Link two that both know each other; one that is no member any more is told."""
        here, there = self.nodes.get(one), self.nodes.get(other)
        if here is None or there is None or frozenset((one, other)) in self.cuts:
            return
        for mine, yours in ((here, there), (there, here)):
            known_index = 0 if mine.book is None else mine.book.at_index
            if yours.book is not None and yours.book.introduces(yours.node_id, mine.node_id, known_index):
                assert mine.receiver is not None
                if mine.receiver.lacks_leader():
                    mine.receiver.on_book(yours.book)
            if mine.node_id in yours.removed:
                assert mine.receiver is not None
                mine.receiver.on_sent_away()
        self._link(one, other, one in there.known and other in here.known)

    def _link(self, one: str, other: str, up: bool) -> None:
        for here, there in ((one, other), (other, one)):
            if here in self.nodes and there in self.nodes:
                self.nodes[here].set_link(there, up)


class MemoryTransport:
    def __init__(self, network: MemoryNetwork, node_id: str) -> None:
        self.network = network
        self.node_id = node_id
        self.up: dict[str, int] = {}
        self.receiver: Receiver | None = None
        self.generation = 0
        self.known: frozenset[str] = frozenset()
        self.removed: frozenset[str] = frozenset()
        self.book: Roster | None = None

    async def start(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.network.nodes[self.node_id] = self
        self.network.joined(self.node_id)

    async def stop(self) -> None:
        self.silence()

    def silence(self) -> None:
        if self.network.nodes.get(self.node_id) is self:
            self.network.left(self.node_id)

    def flush(self, peers_max: int | None = None) -> bool:
        """Messages leave at once."""
        return False

    def set_peers(self, addresses: Mapping[str, str], removed: frozenset[str], book: Roster) -> None:
        changed = self.known ^ addresses.keys()
        self.known, self.removed, self.book = frozenset(addresses), removed, book
        if self.receiver is not None:
            for other in sorted(changed):
                asyncio.get_running_loop().call_soon(self.network.meet, self.node_id, other)

    def disconnect(self, node_id: str, reason: str) -> None:
        raise AssertionError(f"{self.node_id} dropped {node_id}: {reason}")

    def send(self, node_id: str, message: Message) -> None:
        if node_id in self.up:
            body, link = msgpack.packb(message), self.up[node_id]
            asyncio.get_running_loop().call_soon(self._arrive, node_id, link, body)

    def set_link(self, other: str, up: bool) -> None:
        if up == (other in self.up):
            return
        self.generation += 1
        if up:
            self.up[other] = self.generation
        else:
            del self.up[other]
        assert self.receiver is not None
        self.receiver.on_connection(other, up)
        book = self.network.nodes[other].book if up else None
        if book is not None and book.at_index:
            self.receiver.on_book(book)

    def _arrive(self, node_id: str, link: int, body: bytes) -> None:
        there = self.network.nodes.get(node_id)
        if self.up.get(node_id) == link and there is not None and there.receiver is not None:
            there.receiver.on_messages(self.node_id, [msgpack.unpackb(body, use_list=False)])


class Cluster:
    """Nodes of one test, each with its log, machine and directory, to stop, crash and start again."""

    def __init__(
        self,
        directory: Path,
        *,
        tcp: bool = False,
        size: int = 3,
        spares: int = 0,
        limits: LogLimits | None = None,
        timing: Timing | None = None,
    ) -> None:
        self.directory = directory
        self.network = None if tcp else MemoryNetwork()
        self.limits = limits
        self.timing = timing
        ports = free_ports(size) if tcp else [0] * size
        ids = [f"n{number}" for number in range(1, size + 1)]
        self.members = tuple(Member(node_id, f"127.0.0.1:{port}", "") for node_id, port in zip(ids, ports, strict=True))
        self.voters = self.members[: size - spares]
        """As configured; the others are to be added."""
        self.logs = {node_id: MemoryRaftLog(post) for node_id in ids}
        self.machines = {node_id: ListMachine() for node_id in ids}
        self.nodes: dict[str, PySyncObjRaft] = {}
        self.errors: list[BaseException] = []
        self.sent_away: list[str] = []
        self.role_changed = asyncio.Event()
        self.clocks: dict[str, set[str]] = {node_id: set() for node_id in ids}

    def make_log(self, node_id: str) -> Any:
        return self.logs[node_id]

    async def start(self, *node_ids: str) -> None:
        for number, member in enumerate(self.members):
            if member.node_id in node_ids or (not node_ids and member in self.voters):
                await self._start(member, random.Random(number))

    async def _start(self, member: Member, rng: random.Random) -> None:
        node_id = member.node_id
        host, _, port = member.raft_address.rpartition(":")
        transport: TransportPort
        if self.network is not None:
            transport = self.network.transport(node_id)
        else:
            transport = TcpTransport(
                own_id=node_id, members=self.members, cluster="test", listen=(host, int(port)), clock=SystemClock()
            )
        raft = PySyncObjRaft(
            own_id=node_id,
            book=Roster(0, self.voters, () if member in self.voters else (member,)),
            cluster="test",
            log=self.make_log(node_id),
            machine=self.machines[node_id],
            snapshot_dir=self.directory / node_id,
            transport=transport,
            clock=SystemClock(),
            timing=self.timing,
            limits=self.limits,
            rng=rng,
        )
        raft.on_role(self.role_changed.set)
        raft.on_fatal(self.errors.append)
        raft.on_removed(lambda: self.sent_away.append(node_id))
        raft.on_peer_clock(lambda peer, wall_ms: self.clocks[node_id].add(peer))
        self.nodes[node_id] = raft
        await raft.start()

    async def stop(self, *node_ids: str) -> None:
        """Stop cleanly, and make ready to start again from the disks."""
        for node_id in node_ids or list(self.nodes):
            await self.nodes.pop(node_id).stop()
            self.logs[node_id] = self.logs[node_id].crash()
            self.machines[node_id] = self.machines[node_id].crash()
        self.role_changed.set()

    async def end(self) -> list[BaseException]:
        """Stop what runs. What was fatal to any node meanwhile."""
        for raft in list(self.nodes.values()):
            await raft.stop()
        return self.errors

    async def leader(self, deadline_s: float = 10) -> str:
        """The one that leads, once its term's first entry is applied."""
        async with asyncio.timeout(deadline_s):
            while True:
                for node_id, raft in self.nodes.items():
                    if raft.is_leader:
                        await raft.read_barrier()
                        if raft.is_leader:
                            return node_id
                self.role_changed.clear()
                await self.role_changed.wait()

    def other_than(self, node_id: str) -> str:
        """Another one that runs."""
        return next(other for other in self.nodes if other != node_id)

    async def propose(self, *entries: bytes) -> list[object]:
        leader = self.nodes[await self.leader()]
        return await asyncio.wait_for(asyncio.gather(*[leader.propose(entry) for entry in entries]), 10)

    async def change(self, voters: str, learners: str = "", removed: str = "") -> None:
        """Make these the members ("n1 n2"), and wait until every running one has applied it."""
        by_id = {member.node_id: member for member in self.members}
        roster = Roster(
            0,
            tuple(by_id[node_id] for node_id in voters.split()),
            tuple(by_id[node_id] for node_id in learners.split()),
            frozenset(removed.split()),
        )
        index, _ = (await self.propose(roster_entry(roster)))[0]  # type: ignore[misc]
        for node_id in {*voters.split(), *learners.split()} & self.nodes.keys():
            await self.machines[node_id].wait_for(lambda machine: machine.applied_index >= index)

    async def wait_all_hold(self, entries: list[bytes]) -> None:
        for node_id in self.nodes:
            await self.machines[node_id].wait_for(lambda machine: machine.entries == entries)


async def wait_until(condition: Callable[[], bool], deadline_s: float = 10) -> None:
    """Until a condition holds that no signal tells of: looked at in each pass of the loop."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 (one pass, no time)
            await asyncio.sleep(0)


def post(callback: Callable[[], None]) -> None:
    """The loop's next pass: how a log that syncs by itself reaches its owner."""
    asyncio.get_running_loop().call_soon(callback)
