"""Faults told one by one, in whole clusters under load, over many seeds: what docs/consensus.md says of elections.

Times are virtual: they are the protocol's, not this machine's.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.cluster import Cluster
from tests.sim.judge import AHEAD_MS
from tests.sim.machine import Machine
from tests.sim.world import SECOND

SEEDS = range(6)


class Stage:
    """A cluster that has begun and has a leader; time passes when told to."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.cluster = Cluster(seed, directory)
        self.cluster.begin([])
        self.network = self.cluster.network
        self.run(10 * SECOND)

    def run(self, span_us: int) -> None:
        world = self.cluster.world
        world.run_until(world.now_us + span_us)
        assert self.cluster.judge.findings == []

    @property
    def leader(self) -> Machine:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    @property
    def followers(self) -> list[Machine]:
        return [machine for machine in self.cluster.order if machine is not self.leader]

    def isolate(self, machine: Machine) -> None:
        self.cut(machine)
        self.cut(machine, inwards=True)

    def cut(self, machine: Machine, *, inwards: bool = False) -> None:
        for other in self.cluster.ids:
            if other != machine.node_id:
                self.network.cut(*((other, machine.node_id) if inwards else (machine.node_id, other)))


@pytest.fixture(params=SEEDS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


def test_a_leader_cut_off_stops_within_a_second_and_another_serves_within_two(stage: Stage) -> None:
    old = stage.leader
    stage.isolate(old)
    stage.run(SECOND)
    assert old.life is not None
    assert not old.life.node.session.open
    stage.run(SECOND)
    assert stage.leader is not old


def test_a_leader_that_died_is_followed_within_two_seconds(stage: Stage) -> None:
    old = stage.leader
    old.crash(power=True)
    stage.run(2 * SECOND)
    assert stage.leader is not old


def test_who_comes_back_from_a_partition_deposes_nobody(stage: Stage) -> None:
    leader, away = stage.leader, stage.followers[0]
    assert leader.life is not None
    term = leader.life.node.raft.term
    stage.isolate(away)
    stage.run(20 * SECOND)
    stage.network.mend_all()
    stage.run(10 * SECOND)
    assert (stage.leader, leader.life.node.raft.term) == (leader, term)


def test_who_was_paused_deposes_nobody(stage: Stage) -> None:
    leader, slow = stage.leader, stage.followers[0]
    assert leader.life is not None
    assert slow.life is not None
    term = leader.life.node.raft.term
    slow.life.process.pause()
    stage.network.quiet(slow.node_id)
    stage.run(5 * SECOND)
    slow.life.process.resume()
    stage.run(5 * SECOND)
    assert (stage.leader, leader.life.node.raft.term) == (leader, term)


@pytest.mark.parametrize("inwards", [False, True], ids=["mute", "deaf"])
@pytest.mark.parametrize("whom", ["leader", "follower"])
def test_a_one_way_cut_for_good_does_not_stop_the_others(stage: Stage, whom: str, inwards: bool) -> None:
    victim = stage.leader if whom == "leader" else stage.followers[0]
    stage.cut(victim, inwards=inwards)
    stage.run(4 * SECOND)
    for _ in range(5):
        applied = stage.cluster.judge.max_applied
        stage.run(6 * SECOND)
        assert stage.leader is not victim
        assert stage.cluster.judge.max_applied > applied


@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000], ids=["behind", "ahead"])
def test_wrong_clocks_beside_an_absent_node_neither_stop_time_nor_hurry_it(stage: Stage, wrong_ms: int) -> None:
    """Found by seed: the earlier of two clocks was the liar's, cluster time stood still, and delays ended early."""
    liars = stage.cluster.liars
    for liar in liars:
        liar.clock.wall_offset_ms = wrong_ms
    honest = [machine for machine in stage.followers if machine not in liars]
    for away in honest[: len(liars)]:
        stage.isolate(away)
    for _ in range(12):
        stage.run(3 * SECOND)
        life = stage.leader.life
        assert life is not None
        ahead_ms = life.node.session.now_ms() - stage.cluster.world.true_wall_ms()
        assert -200 <= ahead_ms <= AHEAD_MS
    stage.network.mend_all()
    stage.run(30 * SECOND)


def test_who_is_wanted_again_before_it_has_stopped_comes_back(stage: Stage) -> None:
    """A supervisor's start of a process that is about to stop: it was paused when it was told to."""
    slow = stage.followers[0]
    assert slow.life is not None
    before = slow.life
    before.process.pause()
    slow.stop()
    stage.run(SECOND)
    slow.start()
    before.process.resume()
    stage.run(5 * SECOND)
    assert slow.running is not None
    assert slow.running is not before
