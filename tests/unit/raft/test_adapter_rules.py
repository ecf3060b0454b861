"""The rules that the adapter keeps (docs/consensus.md): where the log is cut, how proposals, reads and nodes end.

Over a network in memory. Each test is named by the rule that it breaks without; the rest of the adapter is in
`test_adapter.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pysyncobj import FAIL_REASON
from tests.unit.raft.parts import LARGE_ENTRIES, Cluster, wait_until

from horae_node.errors import NotApplied
from horae_node.raft.port import ENTRY_BYTES_MAX, LogLimits, SnapshotInfo
from horae_node.raft.pysyncobj_adapter import COMPACT_EVERY_S, PySyncObjRaft
from horae_node.raft.pysyncobj_core import NOT_APPLIED
from horae_storage.memory_log import MemoryRaftLog

TAIL = LogLimits(tail_bytes=1 << 20, tail_entries=5)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, limits=TAIL)
    await made.start()
    yield made
    await made.end()


def house(raft: PySyncObjRaft, *, passes: int = 1) -> int:
    """Let the log be cut, were its time come; its first index."""
    for _ in range(passes):
        raft._compact_at = 0.0
        raft._maybe_compact(COMPACT_EVERY_S)
    return raft.status().first_index


# ---------------------------------------------------------------- 9: where the log is cut


async def test_9_the_log_is_not_cut_above_what_the_states_disk_holds(cluster: Cluster) -> None:
    entries = [b"%d" % number for number in range(40)]
    await cluster.propose(*entries)
    await cluster.wait_all_hold(entries)
    for node_id, raft in cluster.nodes.items():
        machine = cluster.machines[node_id]
        assert house(raft) == 1
        assert raft.compact() == 1
        machine.commit()
        machine.durable_index = 10
        assert house(raft) == 10, "what is durable is cut, and no more"
        assert raft.compact() == 10


async def test_9_a_call_to_compact_keeps_what_a_connected_follower_lacks(cluster: Cluster) -> None:
    entries = [b"%d" % number for number in range(40)]
    await cluster.propose(*entries)
    await cluster.wait_all_hold(entries)
    leader_id = await cluster.leader()
    leader = cluster.nodes[leader_id]
    last = leader.status().last_index
    await wait_until(lambda: {peer.match_index for peer in leader.status().peers.values()} == {last})
    cluster.machines[leader_id].commit()
    link = next(iter(leader._guard.links.values()))
    leader._core.match_index[link.peer] = 20
    assert leader.compact() == 20


async def test_9_the_log_is_kept_for_who_receives_a_snapshot(cluster: Cluster) -> None:
    entries = [b"%d" % number for number in range(40)]
    await cluster.propose(*entries)
    leader_id = await cluster.leader()
    leader = cluster.nodes[leader_id]
    cluster.machines[leader_id].commit()
    leader._shelf.holds["n9"] = 12
    assert house(leader) == 12
    leader._shelf.cancel("n9")
    assert house(leader) > 12


async def test_9_a_snapshot_is_on_disk_before_it_replaces_the_state(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader_id = await cluster.leader()
    late = cluster.other_than(leader_id)
    await cluster.stop(late)
    await cluster.propose(*LARGE_ENTRIES)
    cluster.machines[leader_id].commit()
    await wait_until(lambda: house(cluster.nodes[leader_id]) > 100)
    synced: set[int] = set()
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", recorded)
    machine = cluster.machines[late]
    install = machine.install_snapshot
    found: list[tuple[bool, bool]] = []

    def installed(snapshot: SnapshotInfo) -> None:
        noted = (snapshot.path.parent / "installing").exists()
        found.append((snapshot.path.stat().st_ino in synced, noted))
        install(snapshot)

    machine.install_snapshot = installed  # type: ignore[method-assign]
    await cluster.start(late)
    await machine.wait_for(lambda machine: machine.entries == LARGE_ENTRIES)
    assert found == [(True, True)], "and so is the note that a restart needs"


# ---------------------------------------------------------------- 13, 15: proposals


async def test_13_a_follower_takes_no_proposal_and_passes_none_on(cluster: Cluster) -> None:
    leader_id = await cluster.leader()
    follower = cluster.nodes[cluster.other_than(leader_id)]
    with pytest.raises(NotApplied) as refused:
        follower.propose(b"no")
    assert refused.value.code == "no_leader"
    await cluster.propose(b"yes")
    await cluster.wait_all_hold([b"yes"])


def test_13_only_reasons_that_prove_it_say_not_applied() -> None:
    unknown = {FAIL_REASON.SUCCESS, FAIL_REASON.LEADER_CHANGED, FAIL_REASON.UNKNOWN_OUTCOME}
    named = {value for name, value in vars(FAIL_REASON).items() if name.isupper()}
    assert named - unknown == NOT_APPLIED


async def test_15_an_entry_above_the_bound_never_gets_into_the_log(cluster: Cluster) -> None:
    leader = cluster.nodes[await cluster.leader()]
    with pytest.raises(AssertionError):
        leader.propose(bytes(ENTRY_BYTES_MAX + 1))
    largest = bytes(ENTRY_BYTES_MAX)
    await cluster.propose(largest)
    await cluster.wait_all_hold([largest])


# ---------------------------------------------------------------- 18, 19: the end, and reads


async def test_18_a_tick_that_raises_ends_the_node_once_and_loudly(cluster: Cluster) -> None:
    leader_id = await cluster.leader()
    leader = cluster.nodes[leader_id]
    leader._journal._entries.clear()
    leader.on_messages("nobody", [])
    await wait_until(lambda: bool(cluster.errors))
    assert [type(error) for error in cluster.errors] == [IndexError]
    assert not leader.is_leader
    del cluster.nodes[leader_id]
    assert await cluster.leader() != leader_id


async def test_19_a_read_waits_until_the_new_leaders_own_entry_is_applied(tmp_path: Path) -> None:
    """A majority may confirm a new leader while that first entry is not on its own disk, and so not committed yet."""
    cluster = Cluster(tmp_path)
    log = cluster.logs["n1"] = MemoryRaftLog()  # synced by hand
    await cluster.start("n1", "n2")
    leader = cluster.nodes["n1"]
    cluster.nodes["n2"].retire()
    log.sync()
    await wait_until(lambda: leader.status().role == "candidate")
    log.sync()
    await wait_until(lambda: leader.is_leader)
    read = asyncio.ensure_future(leader.read_barrier())
    await wait_until(lambda: any(round_.confirmed for round_, _ in leader._rounds))
    await wait_until(lambda: not leader._woken)
    assert not read.done()
    log.sync()
    assert await asyncio.wait_for(read, 10) == cluster.machines["n1"].applied_index == 2
    await cluster.stop()
