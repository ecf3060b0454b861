"""A cluster that is upgraded node by node, under load: its machine's version rises when the last one can follow."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.sim.calls import Call
from tests.sim.cluster import Cluster
from tests.sim.machine import Machine
from tests.sim.test_scenarios import Stage
from tests.sim.world import SECOND

from horae import wire
from horae_node.core.model import KNOWN_VERSIONS, Versions
from horae_node.errors import Outdated
from horae_node.service import Service

NEWER = Versions(KNOWN_VERSIONS.oldest, KNOWN_VERSIONS.newest + 1)
"""Of the build that follows today's: there is no such one yet, and nothing but its number."""

SEEDS = range(3)


@pytest.fixture(params=SEEDS)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return Stage(request.param, tmp_path)


def upgrade(stage: Stage, machine: Machine, known: Versions = NEWER) -> None:
    """Another build takes over on this machine: its process ends, and begins anew from the disk."""
    machine.known = known
    machine.crash(power=False)
    stage.run(SECOND)
    machine.start()
    stage.run(5 * SECOND)


def versions(stage: Stage) -> set[int]:
    """What the machine is, on every node."""
    return {machine.life.node.applier.meta().machine_version for machine in stage.cluster.order if machine.life}


def gauges(machine: Machine) -> tuple[float, float]:
    """The metrics: what the machine is, and the newest that this build knows."""
    assert machine.life is not None
    families = text_string_to_metric_families(machine.life.node.metrics_text().decode())
    told = {family.name: family.samples[0].value for family in families if family.samples}
    return told["horae_machine_version"], told["horae_machine_version_known"]


def test_it_rises_when_the_last_one_is_upgraded_and_not_before(stage: Stage) -> None:
    *first, last = stage.cluster.order
    for machine in first:
        upgrade(stage, machine)
    stage.run(30 * SECOND)
    assert versions(stage) == {KNOWN_VERSIONS.newest}
    now, newer = KNOWN_VERSIONS.newest, NEWER.newest
    assert [gauges(machine) for machine in stage.cluster.order] == [(now, newer)] * len(first) + [(now, now)]
    upgrade(stage, last)
    stage.run(5 * SECOND)
    assert versions(stage) == {NEWER.newest}
    assert {gauges(machine) for machine in stage.cluster.order} == {(newer, newer)}
    applied = stage.cluster.judge.max_applied
    stage.run(20 * SECOND)
    assert stage.cluster.judge.max_applied > applied


def test_a_member_that_is_away_holds_it_up(stage: Stage) -> None:
    *others, away = stage.cluster.order
    for machine in others:
        upgrade(stage, machine)
    away.crash(power=True)
    away.known = NEWER
    stage.run(30 * SECOND)
    held = {machine.life.node.applier.meta().machine_version for machine in others if machine.life}
    assert held == {KNOWN_VERSIONS.newest}
    away.start()
    stage.run(10 * SECOND)
    assert versions(stage) == {NEWER.newest}


def test_a_leader_that_dies_with_the_raise_under_way_leaves_it_to_the_next(stage: Stage) -> None:
    *first, last = stage.cluster.order
    for machine in first:
        upgrade(stage, machine)
    last.known = NEWER
    last.crash(power=False)
    stage.run(SECOND)
    last.start()
    stage.run(SECOND)
    stage.leader.crash(power=True)
    stage.run(10 * SECOND)
    for machine in stage.cluster.order:
        machine.start()
    stage.run(20 * SECOND)
    assert versions(stage) == {NEWER.newest}


def test_who_comes_back_with_an_older_build_ends_and_disturbs_nobody(stage: Stage) -> None:
    for machine in stage.cluster.order:
        upgrade(stage, machine)
    stage.run(10 * SECOND)
    assert versions(stage) == {NEWER.newest}
    old = stage.followers[0]
    ended: list[BaseException] = []
    old.on_broken = lambda life, error: ended.append(error)
    upgrade(stage, old, KNOWN_VERSIONS)
    assert ended
    assert {type(error) for error in ended} == {Outdated}
    assert all("upgrade this node" in str(error) for error in ended)
    applied = stage.cluster.judge.max_applied
    stage.run(10 * SECOND)
    assert stage.cluster.judge.max_applied > applied
    upgrade(stage, old)
    stage.run(10 * SECOND)
    assert versions(stage) == {NEWER.newest}


class Mixed(Stage):
    """One member is of a build that knows no newer rules than these."""

    def __init__(self, newest: int, directory: Path) -> None:
        self.cluster = Cluster(newest, directory)
        self.cluster.order[-1].known = Versions(1, newest)
        self.cluster.begin([])
        self.cluster.operator.rest()  # it might remove that very one
        self.network = self.cluster.network
        self.run(10 * SECOND)

    def put(self) -> str:
        """How a schedule fares that is made now, at any node."""
        answered: list[Call] = []
        body = {"every_seconds": 1, "job": {"task": "t", "queue": "of-its-own"}}
        request = msgspec.convert(body, wire.ScheduleRequest)

        def ask(service: Service) -> Awaitable[Any]:
            return service.schedules.put("of-its-own", request, None)

        edge = self.cluster.edge
        edge.call("operator", self.leader.node_id, "put", ask, patience_us=8 * SECOND, done=answered.append)
        self.run(10 * SECOND)
        (call,) = answered
        return call.how if call.how == "ok" else f"{call.how} {call.value}"


@pytest.mark.parametrize("newest", range(1, KNOWN_VERSIONS.newest))
def test_members_of_an_older_build_are_given_nothing_that_they_do_not_know(newest: int, tmp_path: Path) -> None:
    """Under the whole workload, which asks for all that there is; the older member leads at times as well."""
    stage = Mixed(newest, tmp_path)
    assert versions(stage) == {newest}
    assert stage.put() == "refused conflict"
    stage.leader.crash(power=False)
    stage.run(5 * SECOND)
    for machine in stage.cluster.order:
        machine.start()
    stage.run(5 * SECOND)
    assert stage.put() == "refused conflict"
    assert versions(stage) == {newest}
    upgrade(stage, stage.cluster.order[-1], KNOWN_VERSIONS)
    stage.run(5 * SECOND)
    assert versions(stage) == {KNOWN_VERSIONS.newest}
    assert stage.put() == "ok"
