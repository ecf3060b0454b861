"""Faults end with the heal: what the judge asks of a cluster that is well must not be asked of one that is held up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.cluster import Cluster
from tests.sim.faults import KINDS, Fault
from tests.sim.world import MILLISECOND, SECOND

SPAN_US = 60 * SECOND
HELD_UP_US = 100 * MILLISECOND
"""No wait of a healthy disk holds a process up for so long."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_fault_outlives_the_heal(kind: str, tmp_path: Path) -> None:
    cluster = Cluster(7, tmp_path)
    faults = cluster.begin([Fault(5 * SECOND, kind, SPAN_US, draw) for draw in range(3)])
    cluster.world.run_until(8 * SECOND)
    assert cluster.judge.counts[kind] > 0
    faults.heal()
    cluster.operator.rest()
    for machine in cluster.order:
        machine.start()
        machine.clock.wall_offset_ms = 0  # it may lie on: the judge knows
    cluster.world.run_until(12 * SECOND)  # what was under way comes to its end
    while cluster.world.now_us < SPAN_US:
        cluster.world.run_until(cluster.world.now_us + 50 * MILLISECOND)
        assert cluster.posture() == "all well"
        for machine in cluster.order:
            assert machine.life is not None
            assert machine.life.process.busy_until_us < cluster.world.now_us + HELD_UP_US
    assert cluster.network.spike_chance == 0.0
    assert cluster.judge.findings == []
