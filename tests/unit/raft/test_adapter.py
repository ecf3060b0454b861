"""The adapter around the guard: how proposals and reads end, and when the node must end. Over a network in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.raft.parts import Cluster

from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.raft.pysyncobj_journal import TURN_BYTES, TURN_ENTRIES
from horae_storage.errors import StorageFailed, StorageFull


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    await made.start()
    yield made
    await made.end()


async def test_13_proposals_of_a_leader_that_is_cut_off_end_as_unknown(cluster: Cluster) -> None:
    assert cluster.network is not None
    leader = cluster.nodes[await cluster.leader()]
    cluster.network.cut(next(node_id for node_id, raft in cluster.nodes.items() if raft is leader))
    waiting = [leader.propose(b"%d" % number) for number in range(100)]
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert not leader.is_leader
    cluster.network.heal()
    await cluster.propose(b"after")
    assert cluster.errors == []


async def test_19_reads_of_a_leader_that_is_cut_off_are_refused(cluster: Cluster) -> None:
    assert cluster.network is not None
    leader_id = await cluster.leader()
    cluster.network.cut(leader_id)
    with pytest.raises(NotApplied) as refused:
        await asyncio.wait_for(cluster.nodes[leader_id].read_barrier(), 5)
    assert refused.value.code == "no_leader"


async def until_told(cluster: Cluster, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            cluster.role_changed.clear()
            await cluster.role_changed.wait()


def told_of_leading(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    ends = ("leadership_lost", "leadership_handed_on")
    return [(record.levelname, record.msg) for record in caplog.records if record.msg in ends]


@pytest.mark.parametrize("how", ["call", "retire", "removed", "cut"])
async def test_only_a_lead_that_was_lost_is_a_warning(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level("INFO", "horae.raft")
    assert cluster.network is not None
    leader_id = await cluster.leader()
    leader = cluster.nodes[leader_id]
    others = sorted(cluster.nodes.keys() - {leader_id})
    if how == "call":
        assert await leader.hand_over(others[0])
    elif how == "retire":
        leader.retire()
    elif how == "removed":
        await cluster.change(" ".join(others), removed=leader_id)
    else:
        cluster.network.cut(leader_id)
    await until_told(cluster, lambda: not leader.is_leader)
    assert told_of_leading(caplog) == [
        ("WARNING", "leadership_lost") if how == "cut" else ("INFO", "leadership_handed_on")
    ]


async def test_a_leader_that_is_lost_is_not_called_known(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horae.raft")
    assert cluster.network is not None
    leader_id = await cluster.leader()
    cluster.network.cut(leader_id)
    await until_told(cluster, lambda: cluster.nodes[leader_id].leader_id is None)
    await cluster.leader()
    told = [
        (record.msg, record.horae_fields["leader"]) for record in caplog.records if record.msg.startswith("leader_")
    ]  # type: ignore[attr-defined]
    assert ("leader_lost", leader_id) in told
    assert None not in [leader for _, leader in told]


@pytest.mark.parametrize(("count", "entry_bytes", "in_one_turn"), [(500, 1, TURN_ENTRIES), (20, TURN_BYTES - 100, 1)])
async def test_what_is_committed_is_applied_in_turns(
    cluster: Cluster, count: int, entry_bytes: int, in_one_turn: int
) -> None:
    """On the leader as on the others: a load of batches may not stop the loop for long."""
    await cluster.leader()
    taken: list[int] = []

    def watch(raft: PySyncObjRaft) -> None:
        run_once = raft._run_once

        def watched() -> None:
            before = raft.status().applied_index
            run_once()
            taken.append(raft.status().applied_index - before)

        raft._run_once = watched  # type: ignore[method-assign]

    for raft in cluster.nodes.values():
        watch(raft)
    entries = [b"%d " % number + bytes(entry_bytes) for number in range(count)]
    await cluster.propose(*entries)
    await cluster.wait_all_hold(entries)
    assert max(taken) == in_one_turn


async def test_18_an_apply_that_raises_ends_the_node_once_and_loudly(cluster: Cluster) -> None:
    leader_id = await cluster.leader()
    broken = ZeroDivisionError("a broken invariant")

    def explode(index: int, entry: bytes) -> object:
        raise broken

    cluster.machines[leader_id].apply = explode  # type: ignore[method-assign]
    waiting = cluster.nodes[leader_id].propose(b"x")
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(waiting, 5)
    assert cluster.errors == [broken]
    assert not cluster.nodes[leader_id].is_leader
    assert await cluster.leader() != leader_id


async def test_a_failed_disk_ends_the_node(cluster: Cluster) -> None:
    leader_id = await cluster.leader()
    error = StorageFailed("I/O error")
    cluster.logs[leader_id].fail(error)
    assert cluster.errors == [error]
    with pytest.raises(NotApplied):
        cluster.nodes[leader_id].propose(b"x")
    assert await cluster.leader() != leader_id


async def test_a_full_disk_is_waited_out(cluster: Cluster) -> None:
    leader_id = await cluster.leader()
    follower = cluster.other_than(leader_id)
    cluster.nodes[follower]._on_log_failure(StorageFull("no room"))
    assert cluster.errors == []
    await cluster.propose(b"x")
    await cluster.wait_all_hold([b"x"])


async def test_a_caller_that_gave_up_disturbs_nobody(cluster: Cluster) -> None:
    leader = cluster.nodes[await cluster.leader()]
    first, second = leader.propose(b"x"), leader.propose(b"y")
    first.cancel()
    await asyncio.wait_for(second, 5)
    await cluster.wait_all_hold([b"x", b"y"])
    assert cluster.errors == []


async def test_status_tells_where_each_stands(cluster: Cluster) -> None:
    await cluster.propose(b"x", b"y")
    await cluster.wait_all_hold([b"x", b"y"])
    leader_id = await cluster.leader()
    status = cluster.nodes[leader_id].status()
    assert (status.role, status.leader_id, status.first_index) == ("leader", leader_id, 1)
    assert status.last_index == status.commit_index == status.applied_index == status.durable_log_index == 4
    assert {peer: (s.connected, s.match_index) for peer, s in status.peers.items()} == {
        node_id: (True, 4) for node_id in cluster.nodes if node_id != leader_id
    }
    followers = {raft.status().role for node_id, raft in cluster.nodes.items() if node_id != leader_id}
    assert followers == {"follower"}
    assert {raft.leader_id for raft in cluster.nodes.values()} == {leader_id}


async def test_stopping_twice_is_once(cluster: Cluster) -> None:
    raft = cluster.nodes[await cluster.leader()]
    await raft.stop()
    await raft.stop()
    assert raft.leader_id is None
    with pytest.raises(NotApplied):
        raft.propose(b"x")
