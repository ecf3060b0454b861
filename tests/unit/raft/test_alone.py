"""A node on its own: a misfit ends who holds nothing yet, and nobody else; who finds no peer or no leader says so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.raft.parts import Cluster, wait_until

from horae_node.errors import Misfit
from horae_node.raft import pysyncobj_adapter

REASON = "members differ: n2 has n1,n2,n3,n4,n5, here n1,n2,n3: make them alike"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    await made.end()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pysyncobj_adapter, "LEADERLESS_S", 0.1)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [record for record in caplog.records if record.msg == event and record.levelno == logging.WARNING]
    return [record.horae_fields for record in found]  # type: ignore[attr-defined]


async def test_a_new_node_ends_by_a_misfit_in_one_line(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start("n1")
    cluster.nodes["n1"].on_misfit(REASON, None)
    cluster.nodes["n1"].on_misfit(REASON, None)
    assert [(type(error), str(error)) for error in cluster.errors] == [(Misfit, REASON)]
    assert lines(caplog, "raft_failed") == []
    assert cluster.network is not None
    assert cluster.network.nodes == {}, "it has fallen silent"


async def test_a_node_that_follows_only_refuses(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.propose(b"x")
    for raft in cluster.nodes.values():
        raft.on_misfit(REASON, None)
    await cluster.propose(b"y")
    assert cluster.errors == []


@pytest.mark.parametrize("applied", [True, False])
async def test_a_node_that_holds_anything_only_refuses(cluster: Cluster, applied: bool) -> None:
    """After a restart, alone: though the state lags behind, the log may hold what was acknowledged by it."""
    await cluster.start()
    await cluster.propose(b"x")
    await cluster.wait_all_hold([b"x"])
    if applied:
        cluster.machines["n1"].commit()
    await cluster.stop()
    assert (cluster.machines["n1"].applied_index > 1) == applied
    await cluster.start("n1")
    cluster.nodes["n1"].on_misfit(REASON, None)
    assert cluster.errors == []


@pytest.mark.parametrize("beyond", [0, 1])
async def test_a_restored_node_ends_by_a_misfit_while_it_holds_its_backup_only(cluster: Cluster, beyond: int) -> None:
    await cluster.start()
    await cluster.propose(b"x")
    await cluster.wait_all_hold([b"x"])
    cluster.machines["n1"].commit()
    await cluster.stop()
    await cluster.start("n1")
    cluster.nodes["n1"].on_misfit(REASON, cluster.machines["n1"].applied_index - beyond)
    assert [type(error) for error in cluster.errors] == [Misfit] * (1 - beyond)


@pytest.mark.usefixtures("soon")
async def test_a_node_without_a_leader_says_so_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start("n1")
    await wait_until(lambda: lines(caplog, "no_leader") != [])
    assert lines(caplog, "no_leader") == [
        {"room": "raft", "for_seconds": 0, "connected": "", "missing": "n2,n3"},
    ]
    await cluster.start("n2")
    leader = cluster.nodes[await cluster.leader()]
    other = cluster.nodes["n2" if leader is cluster.nodes["n1"] else "n1"]
    await wait_until(lambda: other.leader_id is not None)
    caplog.clear()
    assert cluster.network is not None
    cluster.network.cut("n1", "n2")
    await wait_until(lambda: len(lines(caplog, "no_leader")) == 2)
    assert {line["missing"] for line in lines(caplog, "no_leader")} == {"n2,n3", "n1,n3"}


@pytest.mark.usefixtures("soon")
async def test_a_node_that_is_about_to_end_misses_nobody(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start("n1")
    raft = cluster.nodes["n1"]
    raft.retire()
    raft.on_unreachable("n2", "127.0.0.1:1", "Connection refused", 6.0)
    await wait_until(lambda: raft._leaderless_since is None)  # it has looked
    assert lines(caplog, "no_leader") == lines(caplog, "peer_unreachable") == []


async def test_a_peer_that_is_not_reached_is_a_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.start("n1")
    cluster.nodes["n1"].on_unreachable("n2", "127.0.0.1:1", "Connection refused", 5.2)
    told = {"peer": "n2", "address": "127.0.0.1:1", "reason": "Connection refused", "for_seconds": 5}
    assert lines(caplog, "peer_unreachable") == [{"room": "raft"} | told]
