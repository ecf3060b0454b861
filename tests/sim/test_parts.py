"""What the simulated parts promise: order on a wire, silence noticed, a disk that keeps what it synced, a loop that the
world alone runs. The stores beneath are those of `tests/conformance`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.disk import Disk, SimLog
from tests.sim.network import Network, SimTransport
from tests.sim.world import MILLISECOND, SECOND, WALL_START_MS, Clock, Handle, Process, World

from horae_node.raft.port import Roster
from horae_node.raft.transport import Message
from horae_storage.errors import StorageFailed, StorageFull
from horae_storage.log_port import LogEntry


def process_of(world: World, name: str = "n1", rate: float = 1.0) -> Process:
    return Process(world, name, Clock(world, rate))


def run_in(process: Process, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    """Begin a coroutine in a process."""
    tasks: list[asyncio.Task[Any]] = []
    process.step(Handle(lambda: tasks.append(process.loop.create_task(work())), ()))
    return tasks[0]


class Told:
    """A receiver that writes down what it is told."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def on_messages(self, node_id: str, messages: list[Message]) -> None:
        self.log += [message["number"] for message in messages]

    def on_book(self, book: Roster) -> None:
        raise AssertionError("nobody changes members here")

    def lacks_leader(self) -> bool:
        raise AssertionError("no stranger calls here")

    def on_sent_away(self) -> None:
        raise AssertionError("nobody changes members here")

    def on_connection(self, node_id: str, up: bool) -> None:
        self.log.append(up)


class Wire:
    """Two processes and what is between them."""

    def __init__(self) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(1), ["n1", "n2"])
        self.processes: dict[str, Process] = {}
        self.ends: dict[str, SimTransport] = {}
        self.told: dict[str, Told] = {}
        self.sent = 0
        for node_id in ("n1", "n2"):
            self.start(node_id)
        self.world.run_until(SECOND)

    def start(self, node_id: str) -> None:
        process = self.processes[node_id] = process_of(self.world, node_id)
        end = self.ends[node_id] = SimTransport(self.network, process, node_id)
        told = self.told[node_id] = Told()
        run_in(process, lambda: end.start(told))

    def send(self, here: str, there: str, count: int = 1) -> None:
        for _ in range(count):
            self.sent += 1
            self.ends[here].send(there, {"type": "t", "number": self.sent})
            self.ends[here].flush()

    def run(self, span_us: int) -> None:
        self.world.run_until(self.world.now_us + span_us)


# ---------------------------------------------------------------------- the loop


def test_time_passes_at_the_clocks_own_rate_and_never_early() -> None:
    world = World()
    process = process_of(world, rate=1.001)
    woken: list[tuple[int, float]] = []

    async def sleeper() -> None:
        before = process.loop.time()
        await asyncio.sleep(10)
        woken.append((world.now_us, process.loop.time() - before))

    run_in(process, sleeper)
    world.run_until(9_980_000)
    assert woken == []
    world.run_until(10 * SECOND)
    assert len(woken) == 1
    assert woken[0][0] < 9_991_000
    assert 10 <= woken[0][1] < 10.001


def test_a_paused_process_finds_the_network_before_its_timers() -> None:
    world = World()
    process = process_of(world)
    order: list[str] = []
    process.loop.call_later(1.0, order.append, "timer")
    world.after(2 * SECOND, process, order.append, "network")
    process.pause()
    world.run_until(3 * SECOND)
    assert order == []
    process.resume()
    assert order == ["network", "timer"]


def test_nothing_of_an_ended_process_runs() -> None:
    world = World()
    process = process_of(world)
    ran: list[str] = []

    async def worker() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ran.append("cleaned up")

    task = run_in(process, worker)
    process.end()
    world.run_until(5 * SECOND)
    assert ran == []
    assert not task.done()


def test_a_process_that_is_held_up_keeps_the_order() -> None:
    world = World()
    process = process_of(world)
    ran: list[tuple[int, int]] = []
    for number in range(3):
        world.after(number * MILLISECOND, process, lambda number=number: ran.append((number, world.now_us)))
    process.busy_until_us = SECOND
    world.run_until(2 * SECOND)
    assert ran == [(0, SECOND), (1, SECOND), (2, SECOND)]


def test_the_wall_clock_may_lie_and_the_monotonic_does_not() -> None:
    world = World()
    clock = Clock(world, 1.0)
    clock.wall_offset_ms = -3_600_000
    world.run_until(SECOND)
    clock.look()
    assert clock.wall_ms() == WALL_START_MS + 1000 - 3_600_000
    assert clock.monotonic_ms() == 1_001_000


# ---------------------------------------------------------------------- the wire


def test_messages_keep_their_order() -> None:
    wire = Wire()
    wire.network.jitter = 50.0
    wire.send("n1", "n2", 20)
    wire.run(SECOND)
    assert wire.told["n2"].log == [True, *range(1, 21)]


def test_what_a_short_cut_held_arrives_late_and_in_order() -> None:
    wire = Wire()
    wire.network.cut("n1", "n2")
    wire.send("n1", "n2", 3)
    wire.run(SECOND)
    assert wire.told["n2"].log == [True]
    wire.network.mend("n1", "n2")
    wire.send("n1", "n2")
    wire.run(SECOND)
    assert wire.told["n2"].log == [True, 1, 2, 3, 4]


def test_a_long_cut_one_way_ends_the_connection_on_both_sides() -> None:
    wire = Wire()
    wire.network.cut("n1", "n2")
    wire.send("n1", "n2")
    wire.run(4 * SECOND)
    assert (wire.told["n1"].log, wire.told["n2"].log) == ([True, False], [True, False])
    wire.network.mend("n1", "n2")
    wire.run(3 * SECOND)
    assert wire.told["n2"].log == [True, False, True], "what the lost connection held is lost"


def test_cuts_count() -> None:
    wire = Wire()
    wire.network.cut("n1", "n2")
    wire.network.cut("n1", "n2")
    wire.network.mend("n1", "n2")
    assert wire.network.is_cut("n1", "n2")
    wire.network.mend("n1", "n2")
    assert not wire.network.is_cut("n1", "n2")


def test_a_killed_peer_is_missed_at_once_and_one_without_power_in_time() -> None:
    for silently, soon in ((False, [True, False]), (True, [True])):
        wire = Wire()
        wire.processes["n2"].end()
        wire.network.closed(wire.ends["n2"], silently=silently)
        wire.run(SECOND)
        assert wire.told["n1"].log == soon
        wire.run(2 * SECOND)
        assert wire.told["n1"].log == [True, False]
        wire.start("n2")
        wire.run(3 * SECOND)
        assert wire.told["n1"].log == [True, False, True]
        assert wire.told["n2"].log == [True]


def test_a_restart_faster_than_silence_is_noticed_too() -> None:
    for node_id, other in (("n1", "n2"), ("n2", "n1")):
        wire = Wire()
        wire.processes[node_id].end()
        wire.network.closed(wire.ends[node_id], silently=True)
        wire.run(200 * MILLISECOND)
        wire.start(node_id)
        wire.run(3 * SECOND)
        assert wire.told[other].log == [True, False, True]
        wire.send(other, node_id)
        wire.run(SECOND)
        assert wire.told[node_id].log == [True, 1]


def test_a_paused_peer_is_given_up() -> None:
    wire = Wire()
    wire.processes["n2"].pause()
    wire.network.quiet("n2")
    wire.send("n1", "n2")
    wire.run(3 * SECOND)
    assert wire.told["n1"].log == [True, False]
    wire.processes["n2"].resume()
    wire.run(3 * SECOND)
    assert wire.told["n2"].log == [True, 1, False, True], "what was in its buffers first"


def test_an_end_may_give_a_connection_up_and_gets_a_new_one() -> None:
    wire = Wire()
    run_in(wire.processes["n2"], lambda: _disconnect(wire.ends["n2"]))
    wire.run(3 * SECOND)
    assert wire.told["n1"].log == [True, False, True]
    assert wire.told["n2"].log == [True, False, True]


async def _disconnect(end: SimTransport) -> None:
    end.disconnect("n1", "test")


def test_who_falls_silent_while_it_is_dialled_takes_no_connection() -> None:
    """Found by seed: its transport was silenced by a failed disk, its process not ended yet, and the hello arrived."""
    wire = Wire()
    first = wire.network._connections["n1", "n2"]
    run_in(wire.processes["n2"], lambda: _disconnect(wire.ends["n2"]))
    errors: list[BaseException] = []
    wire.processes["n2"].on_error = errors.append
    while wire.network._connections["n1", "n2"] is first:
        wire.run(MILLISECOND // 10)  # until it is dialled anew
    wire.ends["n2"].silence()
    wire.run(5 * SECOND)
    assert errors == []
    assert wire.told["n2"].log == [True, False]


# ---------------------------------------------------------------------- the disk


class Bench:
    """A disk and a process that writes its log."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World()
        self.process = process_of(self.world)
        self.disk = Disk(self.world, random.Random(seed))
        self.log: SimLog
        self.durable: list[int] = []
        self.failures: list[BaseException] = []
        self.open()

    def open(self) -> list[LogEntry]:
        self.log = self.disk.log
        self.log.attach(self.process)
        entries = self.log.load().entries
        self.log.on_durable(self.durable.append)
        self.log.on_failure(self.failures.append)
        return entries

    def write(self, index: int) -> None:
        self.log.append([LogEntry(b"x", index, 1)])
        self.log.seal()

    def run(self, span_us: int) -> None:
        self.world.run_until(self.world.now_us + span_us)


def test_groups_that_waited_become_durable_together() -> None:
    bench = Bench()
    for index in range(1, 4):
        bench.write(index)
    assert bench.durable == []
    bench.run(SECOND)
    assert bench.durable == [1, 3], "the first alone, then all that came while it was written"


def test_a_crash_keeps_all_or_nothing_of_what_was_being_written() -> None:
    found = set()
    for seed in range(20):
        bench = Bench(seed)
        bench.write(1)
        bench.run(SECOND)
        bench.write(2)
        bench.write(3)
        bench.disk.crash()
        found.add(tuple(entry.log_index for entry in bench.open()))
    assert found == {(1,), (1, 2)}, "the third was in memory only"


def test_a_full_disk_is_told_once_and_loses_nothing() -> None:
    bench = Bench()
    bench.disk.full = True
    bench.write(1)
    bench.run(SECOND)
    assert [type(error) for error in bench.failures] == [StorageFull]
    assert bench.durable == []
    bench.disk.full = False
    bench.run(SECOND)
    assert bench.durable == [1]


def test_a_broken_disk_makes_nothing_durable_any_more() -> None:
    bench = Bench()
    bench.disk.broken = True
    bench.write(1)
    bench.run(SECOND)
    assert [type(error) for error in bench.failures] == [StorageFailed]
    bench.disk.broken = False
    bench.write(2)
    bench.run(SECOND)
    assert bench.durable == []


def test_the_state_comes_back_as_it_was_committed() -> None:
    bench = Bench()
    store = bench.disk.store
    store.txn.put(b"a", (1,))
    store.commit()
    store.txn.put(b"b", (2,))
    bench.disk.crash()
    assert (store.txn.get(b"a"), store.txn.get(b"b")) == ((1,), None)
