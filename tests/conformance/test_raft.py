"""The `Raft` port: one node, and three over memory and over TCP, must all keep the same contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.test_snapshots import has_all
from tests.unit.raft.parts import LARGE_ENTRIES, SHORT_TAIL, Cluster, wait_until

from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.raft.port import LogLimits, Timing
from horae_storage.memory_log import MemoryRaftLog


@pytest.fixture(params=["memory", "tcp"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, tcp=request.param == "tcp")
    yield made
    assert await made.end() == []


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"entry %d" % number for number in range(start, start + count)]


async def test_every_node_applies_what_was_proposed_in_order(cluster: Cluster) -> None:
    await cluster.start()
    results = await cluster.propose(*numbered(100))
    leader = await cluster.leader()
    assert results == cluster.machines[leader].applied
    await cluster.wait_all_hold(numbered(100))
    assert cluster.clocks[leader] == set(cluster.nodes) - {leader}


async def test_all_restart_from_disk_without_applying_twice(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.propose(*numbered(20))
    await cluster.wait_all_hold(numbered(20))
    for machine in cluster.machines.values():
        machine.commit()
    await cluster.propose(*numbered(5, 20))
    await cluster.stop()
    await cluster.start()
    await cluster.propose(b"after")
    await cluster.wait_all_hold([*numbered(25), b"after"])


async def test_another_leads_when_the_leader_stops(cluster: Cluster) -> None:
    await cluster.start()
    first = await cluster.leader()
    term = cluster.nodes[first].term
    await cluster.propose(b"one")
    await cluster.stop(first)
    second = await cluster.leader()
    assert second != first
    assert cluster.nodes[second].term > term
    await cluster.propose(b"two")
    await cluster.start(first)
    await cluster.wait_all_hold([b"one", b"two"])


async def test_a_lagging_follower_catches_up_from_the_log(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    late = cluster.other_than(leader)
    await cluster.stop(late)
    await cluster.propose(*numbered(200))
    await cluster.start(late)
    await cluster.wait_all_hold(numbered(200))
    assert cluster.nodes[late].status().first_index == 1


async def test_a_follower_behind_the_log_catches_up_by_snapshot(cluster: Cluster) -> None:
    cluster.limits = SHORT_TAIL
    await cluster.start()
    leader = await cluster.leader()
    late = cluster.other_than(leader)
    await cluster.stop(late)
    await cluster.propose(*LARGE_ENTRIES)
    cluster.machines[leader].commit()
    await wait_until(lambda: cluster.nodes[leader].status().first_index > 100)
    await cluster.start(late)
    await has_all(cluster, late)


async def test_a_follower_takes_no_proposal(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    follower = cluster.nodes[cluster.other_than(leader)]
    with pytest.raises(NotApplied) as refused:
        follower.propose(b"no")
    assert refused.value.code == "no_leader"
    with pytest.raises(NotApplied):
        await follower.read_barrier()


async def test_a_read_barrier_sees_all_that_was_acknowledged(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    index, _ = (await cluster.propose(b"one"))[0]  # type: ignore[misc]
    barriers = await asyncio.gather(*[cluster.nodes[leader].read_barrier() for _ in range(10)])
    assert set(barriers) == {index}


async def test_a_proposal_that_waits_at_stop_is_unknown(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    waiting = cluster.nodes[leader].propose(b"perhaps")
    await cluster.nodes[leader].stop()
    with pytest.raises(OutcomeUnknown):
        await waiting


# ---------------------------------------------------------------- one node


@pytest.fixture(params=["memory", "tcp"])
async def lone(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, tcp=request.param == "tcp", size=1)
    yield made
    assert await made.end() == []


async def test_one_node_applies_in_order_once_it_is_durable(lone: Cluster) -> None:
    lone.logs["n1"] = log = MemoryRaftLog()
    await lone.start()
    raft, machine = lone.nodes["n1"], lone.machines["n1"]

    def applied_its_first() -> bool:
        log.sync()
        return raft.is_leader and machine.applied_index == raft.status().last_index

    await wait_until(applied_its_first)
    futures = [raft.propose(entry) for entry in numbered(3)]
    await wait_until(lambda: log.sealed > log.durable)
    assert machine.entries == []
    log.sync()
    assert await asyncio.gather(*futures) == machine.applied
    assert machine.entries == numbered(3)
    assert await raft.read_barrier() == machine.applied_index


async def test_one_node_leads_at_once_and_has_nobody_to_hand_over_to(lone: Cluster) -> None:
    lone.timing = Timing(election_min_ms=3_600_000, election_max_ms=3_600_001)
    await lone.start()
    raft = lone.nodes[await lone.leader()]
    assert not await raft.hand_over("n2")
    assert raft.roster.at_index == 0
    assert raft.is_leader


async def test_one_node_restarts_from_disk(lone: Cluster) -> None:
    await lone.start()
    await lone.propose(*numbered(10))
    term = lone.nodes["n1"].term
    await lone.stop()
    await lone.start()
    await lone.propose(b"after")
    assert lone.machines["n1"].entries == [*numbered(10), b"after"]
    assert lone.nodes["n1"].term > term


async def test_one_node_cuts_its_log_below_the_durable_state(lone: Cluster) -> None:
    lone.limits = LogLimits(tail_entries=10)
    await lone.start()
    await lone.propose(*numbered(50))
    raft = lone.nodes["n1"]
    assert raft.status().first_index == 1
    lone.machines["n1"].commit()
    await lone.propose(b"after")
    await wait_until(lambda: raft.status().first_index > 30)
