"""A whole run: a cluster, its callers and its faults, all from one seed; first the faults, then the heal.

`run(seed)` gives a `Report`; the same seed gives the same one, on any machine. Next to read: `faults.py`, `judge.py`.
"""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.sim.calls import Edge
from tests.sim.clients import Workload
from tests.sim.faults import Fault, Faults, draw_schedule
from tests.sim.judge import HONEST_MS, Judge
from tests.sim.machine import Life, Machine
from tests.sim.network import Network
from tests.sim.operator import CHANCE, SPARES_MAX, Operator
from tests.sim.story import Story
from tests.sim.world import SECOND, World

from horae_node import ids
from horae_node.core.views import meta
from horae_node.raft import snapshots
from horae_node.raft.port import Member
from horae_storage.kv import View

FIRST_ANSWER_US: Final = 10 * SECOND
"""After the heal, a write is acknowledged within this."""

DRAIN_US: Final = 90 * SECOND
"""After the heal, everything submitted has finished and all nodes are equal within this."""

WAYS_TO_BREAK: Final = ("gone", "slow", "paused", "flapping", "deaf", "mute")
"""What a minority may suffer for good while the rest must go on."""

PIECE_BYTES: Final = 4096
"""Snapshots here are small: pieces are, too, so that transfers have a middle."""


@dataclass(slots=True)
class Report:
    """What came of a run."""

    seed: int
    nodes: int
    findings: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    digest: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    schedule: list[Fault] = field(default_factory=list)
    events: int = 0
    cpu_s: float = 0.0


class Cluster:
    def __init__(self, seed: int, directory: Path) -> None:
        self.seed = seed
        dice = _Dice(seed)
        rng = dice("shape")
        self.world = World()
        count = rng.choice((3, 3, 5))
        members = tuple(Member(f"n{i}", f"sim:{i}", f"http://n{i}") for i in range(1, count + 1))
        self.ids = [member.node_id for member in members]
        operator_rng = dice("operator")
        extra = operator_rng.randint(1, SPARES_MAX) if operator_rng.random() < CHANCE else 0
        spares = tuple(Member(f"n{i}", f"sim:{i}", f"http://n{i}") for i in range(count + 1, count + extra + 1))
        self.ids += [member.node_id for member in spares]
        self.network = Network(self.world, dice("network"), self.ids)
        knobs = _draw_knobs(rng)

        def machine_of(member: Member, listed: tuple[Member, ...], rng: random.Random) -> Machine:
            return Machine(
                world=self.world,
                network=self.network,
                member=member,
                members=listed,
                knobs=knobs,
                directory=directory / member.node_id,
                rng=dice(member.node_id),
                rate=1.0 + (rng.random() - 0.5) * 0.001,
            )

        self.order = [machine_of(member, members, rng) for member in members]
        """The machines of the members, those that join included and those that left not."""
        self.operator = Operator(self, operator_rng, [machine_of(member, (member,), operator_rng) for member in spares])
        every = [*self.order, *self.operator.spares]
        self.machines = {machine.node_id: machine for machine in every}
        self.liars = rng.sample(self.order, (count - 1) // 2)
        for machine in self.order:
            machine.clock.wall_offset_ms = rng.randint(-HONEST_MS, HONEST_MS)
        for machine in self.operator.spares:
            machine.clock.wall_offset_ms = operator_rng.randint(-HONEST_MS, HONEST_MS)
        self.edge = Edge(self.world, dice("edge"), self.machines)
        self.workload = Workload(self.world, self.edge, dice("callers"), self.ids)
        workload = self.workload
        self.judge = Judge(self.world, workload.book, workload.schedules, workload.triggered, workload.claims)
        self.edge.max_applied = lambda: self.judge.max_applied
        self.edge.on_answer = self.judge.on_answer
        self.tell: Callable[[str], None] = lambda line: None
        self.fault_us = int(rng.choice((40, 100, 200)) * (0.5 + rng.random()) * SECOND)
        for machine in every:
            machine.on_entry = self.judge.on_entry
            machine.on_told = self.judge.on_told
            machine.on_leader = self._on_leader
            machine.on_broken = self._on_broken
            machine.on_ended = self._on_ended
            machine.on_installed = lambda: self.judge.count("snapshots installed")
        self.schedule = draw_schedule(dice("faults"), self.fault_us)
        self.spare_rng = dice("end")
        self.broken: list[Machine] = []
        """Those that stay broken for good after the heal."""

    def leader(self) -> Machine | None:
        """The machine whose node serves as leader, the newest of several that think so."""
        leading = [m for m in self.order if m.running is not None and m.running.node.session.open]
        return max(leading, key=lambda machine: machine.life.node.raft.term, default=None)  # type: ignore[union-attr]

    def stamp(self) -> str:
        """When it is, and whose process runs."""
        running = self.world.running
        return f"{self.world.now_us / SECOND:9.3f} {running.name if running is not None else '--'} "

    def posture(self) -> str:
        """Who is down, paused, cut off, broken: one line for the story."""
        words = []
        for machine in self.order:
            disk, process = machine.disk, machine.life.process if machine.life is not None else None
            marks = {
                "down": process is None,
                "paused": process is not None and process.paused,
                "full": disk.full,
                "broken": disk.broken,
                "slow": disk.slowness > 1,
                f"clock{machine.clock.wall_offset_ms:+d}": abs(machine.clock.wall_offset_ms) > HONEST_MS,
            }
            cuts = [f"!>{other}" for other in self.ids if other != machine.node_id and self._cuts(machine, other)]
            names = [name for name, is_so in marks.items() if is_so] + cuts
            words += [f"{machine.node_id}({' '.join(names)})"] if names else []
        return " ".join(words) or "all well"

    def _cuts(self, machine: Machine, other: str) -> bool:
        return self.network.is_cut(machine.node_id, other)

    def begin(self, schedule: list[Fault]) -> Faults:
        """Start the nodes, the callers and the schedule; time does not pass yet."""
        faults = Faults(self, schedule)
        for machine in self.order:
            machine.start()
        self.workload.start()
        faults.start()
        self.operator.start()
        return faults

    def run(self, schedule: list[Fault]) -> None:
        """Both phases; stops at the first finding."""
        faults = self.begin(schedule)
        if self._pass(self.fault_us, lambda: False):
            faults.heal()
            self._heal()
            self._drain()

    # ------------------------------------------------------------------ phases

    def _pass(self, span_us: int, enough: Callable[[], bool]) -> bool:
        """Let time go by until it is enough; False when something was found."""
        end_us = self.world.now_us + span_us
        while self.world.now_us < end_us and not self.judge.findings and not enough():
            self.world.run_until(min(end_us, self.world.now_us + SECOND))
        return not self.judge.findings

    def _heal(self) -> None:
        """All faults end; at times a minority stays broken for good, and the others must do without it."""
        self.network.spike_chance = 0.0
        self.operator.rest()
        for machine in self.order:
            machine.start()
        if not self.operator.busy and self.spare_rng.random() < 0.4:
            self.broken = self.spare_rng.sample(self.order, (len(self.order) - 1) // 2)
            self._break_for_good(self.spare_rng.choice(WAYS_TO_BREAK))
        self.workload.calm = True
        self.edge.loss = 0.0

    def _break_for_good(self, way: str) -> None:
        self.judge.count(f"for good {way}")
        self.tell(f"for good: {way} {[machine.node_id for machine in self.broken]}")
        for machine in self.broken:
            others = [other.node_id for other in self.order if other is not machine]
            if way == "gone":
                machine.gone = True
                machine.crash(power=True)
            elif way == "slow":
                machine.disk.slowness = 1000.0
            elif way == "paused" and machine.life is not None:
                machine.life.process.pause()
                self.network.quiet(machine.node_id)
            elif way == "flapping":
                self._flap(machine, others)
            else:
                for other in others:
                    self.network.cut(*((other, machine.node_id) if way == "deaf" else (machine.node_id, other)))

    def _flap(self, machine: Machine, others: list[str]) -> None:
        """Its connections break again and again."""
        self.network.lose_connection(machine.node_id, self.spare_rng.choice(others))
        self.world.after(int(self.spare_rng.expovariate(2.0) * SECOND), None, self._flap, machine, others)

    def _drain(self) -> None:
        judge, began_us = self.judge, self.world.now_us
        applied = judge.max_applied
        if not self._pass(FIRST_ANSWER_US, lambda: judge.max_applied > applied and self.leader() is not None):
            return
        if self.leader() is None:
            judge.report("no leader serves though all is healed [L2]")
            return
        self.workload.closing = True
        judge.fates.steady_from_ms = self.world.true_wall_ms()
        if self._pass(DRAIN_US, self._is_done):
            judge.count("drain seconds", (self.world.now_us - began_us) // SECOND)
            judge.check_end(self._states())
            judge.check_events({m.node_id: m.life.node.feed for m in self._well() if m.life is not None})

    def _states(self) -> dict[str, View]:
        return {m.node_id: m.life.node.applier.view for m in self._well() if m.life is not None}

    def _well(self) -> list[Machine]:
        return [machine for machine in self.order if machine not in self.broken]

    def _is_done(self) -> bool:
        """All callers have their answers, all jobs have finished, and all nodes stand where anyone has ever stood."""
        if self.operator.busy or self.workload.open_submits or self.workload.open_plans:
            return False
        if any(machine.running is None for machine in self._well()) or not self.judge.fates.is_over():
            return False
        views_ = list(self._states().values())
        metas = [meta(view) for view in views_]
        return {one.applied_index for one in metas} == {self.judge.max_applied} and self.judge.is_drained(views_[0])

    # ------------------------------------------------------------------ what machines tell

    def _on_leader(self, life: Life, term: int) -> None:
        self.judge.count("leaders")
        self.judge.on_leader(life, term)
        self.tell(f"{life.node_id} leads in term {term}")

    def _on_broken(self, life: Life, error: BaseException) -> None:
        self.judge.report(f"{life.node_id} broke: {type(error).__name__}: {error} [S22]")

    def _on_ended(self, machine: Machine, why: str) -> None:
        self.judge.count(why)
        self.tell(f"{machine.node_id} {why}")


class _Dice:
    """Independent dice by name: what one part draws changes nothing for the others."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, name: str) -> random.Random:
        return random.Random(f"{self._seed}/{name}")


def _draw_knobs(rng: random.Random) -> dict[str, int]:
    """A short tail of the log makes snapshots likely."""
    return {
        "log_keep_entries": rng.choice((20, 20, 100, 50_000)),
        "state_commit_interval_ms": rng.choice((200, 1000, 1000, 5000)),
        "state_commit_commands": rng.choice((20, 5000)),
        "advance_limit": rng.choice((2, 1000)),
    }


def run(seed: int, schedule: list[Fault] | None = None, story: Story | None = None) -> Report:
    """One run from one seed; with `schedule`, these faults in the place of the seed's own; told to `story`."""
    usual_bytes, snapshots.PIECE_BYTES = snapshots.PIECE_BYTES, PIECE_BYTES  # type: ignore[misc]
    usual_digits, ids._next_digits = ids._next_digits, _digits(_Dice(seed)("ids")).__next__
    directory = Path(tempfile.mkdtemp(prefix="horae-sim-", dir=_fast_directory()))
    gc.disable()
    began_s = time.process_time()
    try:
        cluster = Cluster(seed, directory)
        if story is not None:
            story.stamp = cluster.stamp
            cluster.tell = story
        faults = cluster.schedule if schedule is None else schedule
        cluster.run(faults)
        judge, world = cluster.judge, cluster.world
        return Report(
            seed=seed,
            nodes=len(cluster.order),
            findings=judge.findings,
            simulated_s=world.now_us / SECOND,
            digest=judge.digest,
            counts=dict(sorted(judge.counts.items())),
            schedule=faults,
            events=world.events,
            cpu_s=time.process_time() - began_s,
        )
    finally:
        snapshots.PIECE_BYTES = usual_bytes  # type: ignore[misc]
        ids._next_digits = usual_digits
        shutil.rmtree(directory, ignore_errors=True)
        gc.enable()
        gc.collect()


def _digits(rng: random.Random) -> Iterator[str]:
    """What nodes make ids of."""
    while True:
        yield f"{rng.getrandbits(4 * ids._DIGITS):0{ids._DIGITS}x}"


def _fast_directory() -> str | None:
    """Snapshots are files: in memory, where there is such a place."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
