"""The faults of a run: a schedule drawn from the seed before it begins, and what each one does.

The schedule is plain data, so that a run may be repeated with some of it left out (`shrink`). Whom a fault hits may
depend on the moment (the leader of then). Every fault ends by itself; `heal` ends all at once. The right clocks stay
within `judge.HONEST_MS`; only a minority ever lies. Next to read: `cluster.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.sim.world import MILLISECOND, SECOND

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.machine import Machine

KINDS: Final = (
    "kill",
    "power",
    "power_all",
    "amnesia",
    "left_behind",
    "restart",
    "pause",
    "stutter",
    "isolate",
    "split",
    "one_way",
    "ring",
    "bridge",
    "reset",
    "spikes",
    "slow_disk",
    "broken_disk",
    "full_disk",
    "clock",
)

LEFT_BEHIND_US: Final = 8 * SECOND
"""Enough for a busy cluster to outrun a short log."""

WEIGHTS: Final = {"power_all": 0.3, "broken_disk": 0.5, "restart": 0.5}


class Fault(NamedTuple):
    """One fault: when it begins, for how long, and a number from which its kind draws what else it needs."""

    at_us: int
    kind: str
    span_us: int
    draw: int


def draw_schedule(rng: random.Random, until_us: int) -> list[Fault]:
    """Some kinds of faults, at some pace: no run has everything, or no cause would ever stand out."""
    kinds = rng.sample(KINDS, rng.randint(2, 8))
    weights = [WEIGHTS.get(kind, 1.0) for kind in kinds]
    pace_us = rng.choice((3, 6, 12)) * SECOND
    schedule = []
    at_us = 3 * SECOND
    while (at_us := at_us + int(pace_us * rng.expovariate(1.0))) < until_us:
        kind = rng.choices(kinds, weights)[0]
        schedule.append(Fault(at_us, kind, _span_us(rng), rng.getrandbits(32)))
    return schedule


def _span_us(rng: random.Random) -> int:
    """Mostly about as long as an election takes, at times much longer."""
    return int(rng.choice((0.3, 1.0, 3.0, 12.0)) * (0.5 + rng.random()) * SECOND)


class Faults:
    """Carries out a schedule on a cluster."""

    def __init__(self, cluster: Cluster, schedule: list[Fault]) -> None:
        self._cluster = cluster
        self._schedule = schedule
        self._ends: list[Callable[[], None]] = []
        """What takes back the faults that are under way, in the order in which they began."""
        self._over = False

    def start(self) -> None:
        for fault in self._schedule:
            self._cluster.world.after(fault.at_us, None, self._begin, fault)

    def heal(self) -> None:
        """Take back all that is under way, and let nothing more begin."""
        self._over = True
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def _begin(self, fault: Fault) -> None:
        if self._over:
            return
        deed: Callable[[random.Random, int], Callable[[], None] | None] = getattr(self, f"_{fault.kind}")
        end = deed(random.Random(fault.draw), fault.span_us)
        self._cluster.judge.count(fault.kind)
        self._cluster.tell(f"fault {fault.kind} for {fault.span_us / SECOND:.2f} s: {self._cluster.posture()}")
        if end is not None:
            self._ends.append(end)
            self._cluster.world.after(fault.span_us, None, self._end, end)

    def _end(self, end: Callable[[], None]) -> None:
        if end in self._ends:
            self._ends.remove(end)
            end()

    # ------------------------------------------------------------------ whom

    def _victim(self, rng: random.Random) -> Machine:
        """Half the time the leader of now."""
        leader = self._cluster.leader()
        return leader if leader is not None and rng.random() < 0.5 else rng.choice(self._cluster.order)

    def _minority(self, rng: random.Random) -> list[Machine]:
        """One or more, the rest being a majority; the leader is often among them."""
        order = self._cluster.order
        size = rng.randint(1, (len(order) - 1) // 2)
        first = self._victim(rng)
        return [first, *rng.sample([machine for machine in order if machine is not first], size - 1)]

    # ------------------------------------------------------------------ processes

    def _kill(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        victim = self._victim(rng)
        victim.crash(power=False)
        return victim.start

    def _power(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        victims = self._minority(rng)
        for victim in victims:
            victim.crash(power=True)
        return lambda: _start_all(victims)

    def _power_all(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        """All at once; they come back one after another."""
        victims = self._cluster.order
        for victim in victims:
            victim.crash(power=True)
            self._cluster.world.after(int(rng.random() * span_us), None, self._start_unless_over, victim)
        return lambda: _start_all(victims)

    def _start_unless_over(self, machine: Machine) -> None:
        if not self._over:
            machine.start()

    def _amnesia(self, rng: random.Random, span_us: int) -> Callable[[], None] | None:
        """The power story of docs/consensus.md: what a majority acknowledged must not be forgotten by another majority.

        Some followers hear nothing, one more has a disk that hangs; then its power is cut, and it comes back among
        those who heard nothing, while all who surely remember are cut off.
        """
        leader = self._cluster.leader()
        if leader is None:
            return None
        others = [machine for machine in self._cluster.order if machine is not leader]
        deaf = rng.sample(others, (len(others)) // 2)
        forgetful = rng.choice([machine for machine in others if machine not in deaf])
        rest = [machine for machine in self._cluster.order if machine not in deaf and machine is not forgetful]
        mend_deaf = self._cut([(one, other) for one in deaf for other in [*rest, forgetful]], both=True)
        forgetful.disk.slowness = 10_000.0

        def turn() -> None:
            forgetful.crash(power=rng.random() < 0.5)
            forgetful.disk.slowness = 1.0
            mend_rest = self._cut([(one, other) for one in rest for other in [*deaf, forgetful]], both=True)
            mend_deaf()
            forgetful.start()
            if self._over:
                mend_rest()
            else:
                self._ends.append(mend_rest)
                self._cluster.world.after(3 * SECOND, None, self._end, mend_rest)

        return turn

    def _restart(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        victim = self._victim(rng)
        victim.stop()
        return victim.start

    def _pause(self, rng: random.Random, span_us: int) -> Callable[[], None] | None:
        victim = self._victim(rng)
        life = victim.life
        if life is None or life.process.paused:
            return None
        life.process.pause()
        victim.network.quiet(victim.node_id)
        return life.process.resume

    def _stutter(self, rng: random.Random, span_us: int) -> None:
        """A slow node: held up again and again."""
        victim = self._victim(rng)
        at_us = 0
        while at_us < span_us:
            held_us = int(rng.expovariate(1.0) * 150 * MILLISECOND)
            self._cluster.world.after(at_us, None, self._hold_up, victim, held_us)
            at_us += held_us + int(rng.expovariate(1.0) * 100 * MILLISECOND)

    def _hold_up(self, machine: Machine, span_us: int) -> None:
        if machine.life is not None and not self._over:
            machine.life.process.busy_until_us = machine.world.now_us + span_us

    # ------------------------------------------------------------------ wires

    def _isolate(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        victim = self._victim(rng)
        others = [machine for machine in self._cluster.order if machine is not victim]
        return self._cut([(victim, other) for other in others], both=True)

    def _split(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        one_side = self._minority(rng)
        other_side = [machine for machine in self._cluster.order if machine not in one_side]
        return self._cut([(one, other) for one in one_side for other in other_side], both=True)

    def _left_behind(self, rng: random.Random, span_us: int) -> Callable[[], None] | None:
        """Rule 7 of docs/consensus.md: a leader is cut off, proposals under way, until the others outran its log."""
        leader = self._cluster.leader()
        if leader is None:
            return None
        others = [machine for machine in self._cluster.order if machine is not leader]
        mend = self._cut([(leader, other) for other in others], both=True)
        self._ends.append(mend)
        self._cluster.world.after(LEFT_BEHIND_US, None, self._end, mend)
        return None

    def _one_way(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        """The victim is not heard, or hears nothing, by some or by all."""
        victim = self._victim(rng)
        others = [machine for machine in self._cluster.order if machine is not victim]
        hit = rng.sample(others, rng.randint(1, len(others)))
        deaf = rng.random() < 0.5
        return self._cut([(other, victim) if deaf else (victim, other) for other in hit], both=False)

    def _ring(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        """Each reaches its two neighbours only (with three nodes: one link is gone)."""
        order = rng.sample(self._cluster.order, len(self._cluster.order))
        count = len(order)
        pairs = [
            (order[i], order[j])
            for i in range(count)
            for j in range(i + 1, count)
            if (j - i not in (1, count - 1)) or (count == 3 and (i, j) == (0, 2))
        ]
        return self._cut(pairs, both=True)

    def _bridge(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        """Two sides that meet in one node only."""
        order = rng.sample(self._cluster.order, len(self._cluster.order))
        half = len(order) // 2
        return self._cut([(one, other) for one in order[:half] for other in order[half + 1 :]], both=True)

    def _reset(self, rng: random.Random, span_us: int) -> None:
        one, other = rng.sample(self._cluster.order, 2)
        one.network.lose_connection(one.node_id, other.node_id)

    def _spikes(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        network = self._cluster.network
        network.spike_chance = rng.choice((0.02, 0.1, 0.2))
        network.spike_us = rng.choice((300, 1500)) * MILLISECOND

        def end() -> None:
            network.spike_chance = 0.0

        return end

    def _cut(self, pairs: list[tuple[Machine, Machine]], *, both: bool) -> Callable[[], None]:
        network = self._cluster.network
        directions = [(one.node_id, other.node_id) for one, other in pairs]
        if both:
            directions += [(other, one) for one, other in directions]
        for source, target in directions:
            network.cut(source, target)

        def mend() -> None:
            for source, target in directions:
                network.mend(source, target)

        return mend

    # ------------------------------------------------------------------ disks and clocks

    def _slow_disk(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        disk = self._victim(rng).disk
        disk.slowness = rng.choice((10.0, 100.0, 1000.0))

        def end() -> None:
            disk.slowness = 1.0

        return end

    def _broken_disk(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        """Syncs fail: the node must end. Once it is over, the machine comes back with what was synced."""
        machine = self._victim(rng)
        machine.disk.broken = True

        def end() -> None:
            # A node that had nothing to sync meanwhile has not noticed: then its machine is switched off and on.
            machine.crash(power=False)
            machine.disk.broken = False
            machine.start()

        return end

    def _full_disk(self, rng: random.Random, span_us: int) -> Callable[[], None]:
        disk = self._victim(rng).disk
        disk.full = True

        def end() -> None:
            disk.full = False

        return end

    def _clock(self, rng: random.Random, span_us: int) -> Callable[[], None] | None:
        """One of the machines that may lie steps its wall clock."""
        liar = rng.choice(self._cluster.liars)
        steps_ms = (1_000, 60_000, 3_600_000, -1_000, -60_000, -3_600_000)
        liar.clock.wall_offset_ms = rng.choice(steps_ms)
        return None


def _start_all(machines: list[Machine]) -> None:
    for machine in machines:
        machine.start()
