"""A quiet cluster of three whose leader's wall clock is wrong, or steps: nothing starts early, nothing waits for long.

The clocks are manual and time is virtual. Nobody works here but one patient worker: no traffic wakes a leader that has
slept too long. Wrong clocks under load and faults, one of several, are drawn by the simulator itself (`faults.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.sim.calls import OK, PATIENCE_US, Call
from tests.sim.cluster import Cluster
from tests.sim.judge import AHEAD_MS
from tests.sim.machine import Machine
from tests.sim.world import SECOND

from horae import wire

SEEDS = range(4)
"""All of them draw three nodes."""

HOUR_MS = 3_600_000

LATE_MS = 1000
"""How late a job may start while a worker waits for it (L1)."""

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)


class Quiet:
    """Three nodes with a leader, no callers but one worker that always waits, and what it was given when."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.cluster = Cluster(seed, directory)
        self.world = self.cluster.world
        assert len(self.cluster.order) == 3
        self.due_ms: dict[str, int] = {}
        self.started_ms: dict[str, int] = {}
        for machine in self.cluster.order:
            machine.start()
        self.run(5 * SECOND)
        self._claim()

    @property
    def leader(self) -> Machine:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    def run(self, span_us: int) -> None:
        self.world.run_until(self.world.now_us + span_us)
        assert self.cluster.judge.findings == []

    def submit(self, job_id: str, in_ms: int, *, delayed: bool = False) -> None:
        """A job that is due so long from now by true time: by its moment, or by a delay."""
        self.due_ms[job_id] = self.world.true_wall_ms() + in_ms
        keys: dict[str, Any] = {"delay_seconds": in_ms / 1000}
        if not delayed:
            keys = {"run_at": _UNIX + timedelta(milliseconds=self.due_ms[job_id])}
        request = wire.SubmitRequest(task="t", id=job_id, lease_seconds=3600.0, **keys)

        def answered(call: Call) -> None:
            if call.how != OK:
                self._ask("submitter", "submit", lambda service: service.submit(request), answered)

        self._ask("submitter", "submit", lambda service: service.submit(request), answered)

    def _claim(self, call: Call | None = None) -> None:
        if call is not None and call.how == OK:
            for job in call.value.jobs:
                self.started_ms.setdefault(job.id, self.world.true_wall_ms())
        request = wire.ClaimRequest(worker="w", queues=["default"], max_jobs=100, wait_seconds=5.0)
        self._ask("worker", "claim", lambda service: service.claim(request), self._claim)

    def _ask(self, caller: str, kind: str, ask: Any, done: Any) -> None:
        node_id = self.cluster.ids[0]
        leader = self.cluster.leader()
        self.cluster.edge.call(
            caller, leader.node_id if leader else node_id, kind, ask, patience_us=PATIENCE_US, done=done
        )

    def require_on_time(self) -> None:
        """All of them have started, none before its time or long after it."""
        off_ms = {job_id: self.started_ms[job_id] - due_ms for job_id, due_ms in self.due_ms.items()}
        assert {job_id: off for job_id, off in off_ms.items() if not -AHEAD_MS <= off <= LATE_MS} == {}


@pytest.fixture(params=SEEDS)
def quiet(request: pytest.FixtureRequest, tmp_path: Path) -> Quiet:
    made = Quiet(request.param, tmp_path)
    made.cluster.edge.loss = 0.0
    return made


def members(quiet: Quiet) -> set[str]:
    """Those that count: a cluster may have spares besides, which nobody added."""
    return {machine.node_id for machine in quiet.cluster.order}


def submit_some(quiet: Quiet, name: str) -> None:
    quiet.submit(f"{name}-moment", 4000)
    quiet.submit(f"{name}-delay", 3000, delayed=True)
    quiet.submit(f"{name}-later", 40_000)
    quiet.submit(f"{name}-later-delay", 30_000, delayed=True)


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS], ids=["fast", "slow"])
def test_a_leader_an_hour_off_starts_nothing_early_and_nothing_late(quiet: Quiet, wrong_ms: int) -> None:
    submit_some(quiet, "before")
    quiet.run(SECOND)
    quiet.leader.clock.wall_offset_ms = wrong_ms
    submit_some(quiet, "while")
    quiet.run(60 * SECOND)
    quiet.require_on_time()


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS], ids=["fast", "slow"])
def test_a_node_that_begins_to_lead_with_a_wrong_clock_changes_nothing(quiet: Quiet, wrong_ms: int) -> None:
    old = quiet.leader
    submit_some(quiet, "before")
    quiet.run(SECOND)
    for machine in quiet.cluster.order:
        if machine is not old:
            machine.clock.wall_offset_ms = wrong_ms
            break
    old.crash(power=True)
    quiet.run(4 * SECOND)
    old.start()
    quiet.run(2 * SECOND)
    submit_some(quiet, "after")
    quiet.run(60 * SECOND)
    late = {"before-moment", "before-delay"}  # due while nobody led: those may be late, as all others may not
    for job_id in late:
        assert quiet.started_ms[job_id] >= quiet.due_ms.pop(job_id) - AHEAD_MS
    quiet.require_on_time()


def test_a_leader_whose_clock_steps_to_and_fro_starts_nothing_early_and_nothing_late(quiet: Quiet) -> None:
    leader = quiet.leader
    for turn, offset_ms in enumerate([HOUR_MS, -HOUR_MS, 900, -90_000, 0, 86_400_000, -5000, 0]):
        leader.clock.wall_offset_ms = offset_ms
        quiet.submit(f"{turn}-moment", 5000)
        quiet.submit(f"{turn}-delay", 2500, delayed=True)
        quiet.run(3 * SECOND)
    quiet.run(10 * SECOND)
    assert quiet.leader is leader, "a wall clock deposes nobody"
    quiet.require_on_time()


def test_when_the_right_time_comes_late_nothing_waits_for_the_old_one(quiet: Quiet) -> None:
    """All hosts began with a slow clock, which is set while the leader sleeps until a job's moment by the old time."""
    for machine in quiet.cluster.order:
        machine.clock.wall_offset_ms = -HOUR_MS
    quiet.run(SECOND)
    quiet.submit("soon", 2000)
    quiet.run(10 * SECOND)
    assert "soon" not in quiet.started_ms, "by all the clocks there are it is an hour away"
    for machine in quiet.cluster.order:
        machine.clock.wall_offset_ms = 0
    set_ms = quiet.world.true_wall_ms()
    quiet.run(3 * SECOND)
    assert 0 <= quiet.started_ms["soon"] - set_ms <= LATE_MS


def skews(machine: Machine) -> dict[str, float]:
    """The metric, by node."""
    assert machine.life is not None
    families = text_string_to_metric_families(machine.life.node.metrics_text().decode())
    (family,) = [family for family in families if family.name == "horae_clock_skew_seconds"]
    return {sample.labels["node"]: sample.value for sample in family.samples}


@pytest.mark.parametrize("whose", ["leader", "follower"])
@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS], ids=["fast", "slow"])
def test_the_leader_tells_each_members_skew(quiet: Quiet, whose: str, wrong_ms: int) -> None:
    leader = quiet.leader
    follower = next(machine for machine in quiet.cluster.order if machine is not leader)
    wrong = leader if whose == "leader" else follower
    wrong.clock.wall_offset_ms = wrong_ms
    quiet.run(SECOND)
    told = skews(leader)
    assert told.keys() == members(quiet)
    for node_id, skew_s in told.items():
        assert skew_s == pytest.approx(wrong_ms / 1000 if node_id == wrong.node_id else 0, abs=0.2)
    assert skews(follower) == {}, "who does not lead hears no clocks"
    view = leader.life.node._cluster_view()  # type: ignore[union-attr]
    assert {member.node: member.clock_skew_seconds for member in view.members} == pytest.approx(told, abs=0.01)


def test_a_member_that_is_away_has_no_skew(quiet: Quiet) -> None:
    leader = quiet.leader
    away = next(machine for machine in quiet.cluster.order if machine is not leader)
    away.crash(power=True)
    quiet.run(15 * SECOND)
    assert skews(leader).keys() == members(quiet) - {away.node_id}


def test_a_follower_claims_to_know_nobodys_skew(quiet: Quiet) -> None:
    """It was asked for its own view: its own clock is the last thing to compare its own clock with."""
    leader = quiet.leader
    follower = next(machine for machine in quiet.cluster.order if machine is not leader)
    follower.clock.wall_offset_ms = HOUR_MS
    quiet.submit("a", 0)
    quiet.run(SECOND)
    assert follower.life is not None
    view = follower.life.node._cluster_view()
    assert {member.clock_skew_seconds for member in view.members} == {None}
    told_ms = datetime.fromisoformat(view.cluster_time).timestamp() * 1000
    assert abs(told_ms - quiet.world.true_wall_ms()) < 10_000
