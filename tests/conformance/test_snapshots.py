"""Followers that the log reaches no more, over memory and over TCP: links break, leaders go, disks fill.

In each test `late` is far behind, and a leader has a snapshot of many pieces for it. Pieces and transfers in their
smallest form are in `tests/unit/raft/test_snapshots.py` and `test_guard.py` (rules 7 to 10).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.raft.parts import LARGE_ENTRIES, SHORT_TAIL, Cluster, wait_until

from horae_node.raft import pysyncobj_adapter, snapshots
from horae_node.raft.port import SnapshotInfo
from horae_node.raft.snapshots import AHEAD_PIECES, Intake, Reception
from horae_storage.errors import StorageFull

PIECE_BYTES = 16 << 10
PIECES = 245
"""At least, of a snapshot of all those entries."""


@pytest.fixture(params=["memory", "tcp"])
async def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(pysyncobj_adapter, "FEED_PAUSE_S", 0.001)
    monkeypatch.setattr(pysyncobj_adapter, "SNAPSHOT_RETRY_S", 0.01)
    made = Cluster(tmp_path, tcp=request.param == "tcp", size=4, spares=1, limits=SHORT_TAIL)
    yield made
    assert await made.end() == []


@pytest.fixture
async def late(cluster: Cluster) -> str:
    """The id of the one that is not running and needs a snapshot, whoever of the others leads."""
    await cluster.start()
    leader = await cluster.leader()
    late = cluster.other_than(leader)
    await cluster.stop(late)
    await cluster.propose(*LARGE_ENTRIES)
    await cluster.wait_all_hold(LARGE_ENTRIES)
    for node_id in cluster.nodes:
        cluster.machines[node_id].commit()
    await wait_until(lambda: all(raft.status().first_index > 100 for raft in cluster.nodes.values()))
    return late


class Pieces:
    """What `late` takes of snapshots: the offsets in order, and a call after some of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[int] = []
        self.after: dict[int, Callable[[], None]] = {}
        take = Intake.take

        def watched(intake: Intake, piece: dict[str, Any]) -> SnapshotInfo | bool:
            self.offsets.append(piece["offset"])
            if (then := self.after.pop(len(self.offsets), None)) is not None:
                asyncio.get_running_loop().call_soon(then)
            return take(intake, piece)

        monkeypatch.setattr(Intake, "take", watched)

    @property
    def beginnings(self) -> int:
        return self.offsets.count(0)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    return Pieces(monkeypatch)


def break_link(cluster: Cluster, one: str, other: str) -> None:
    """Lose the connection between the two, with what is under way; a new one is made at once."""
    if cluster.network is None:
        cluster.nodes[one]._transport.disconnect(other, "broken by the test")
    else:
        cluster.network.cut_one(one, other)
        cluster.network.heal()


async def has_all(cluster: Cluster, late: str) -> None:
    """And goes on from there, now and after a restart."""
    await cluster.machines[late].wait_for(lambda machine: machine.entries == LARGE_ENTRIES)
    assert cluster.nodes[late].status().first_index > 100, "by a snapshot"
    await cluster.propose(b"after")
    await cluster.machines[late].wait_for(lambda machine: machine.entries == [*LARGE_ENTRIES, b"after"])
    await cluster.stop(late)
    await cluster.start(late)
    await cluster.propose(b"again")
    await cluster.machines[late].wait_for(lambda machine: machine.entries == [*LARGE_ENTRIES, b"after", b"again"])
    assert incoming(cluster, late) == []


def incoming(cluster: Cluster, node_id: str) -> list[Path]:
    """What is kept of snapshots that are being received."""
    return list((cluster.directory / node_id).glob("incoming*"))


async def test_a_transfer_whose_link_breaks_goes_on_where_it_was(cluster: Cluster, late: str, pieces: Pieces) -> None:
    leader = await cluster.leader()
    for broken_after in (100, 200):
        pieces.after[broken_after] = lambda: break_link(cluster, leader, late)
    await cluster.start(late)
    await has_all(cluster, late)
    assert pieces.beginnings == 3
    # Before the leader hears what is there, it has sent what it had read; the rest comes once.
    assert PIECES < len(pieces.offsets) < PIECES + 3 * 2 * AHEAD_PIECES


async def test_a_node_that_is_added_gets_it_over_a_link_that_breaks(
    cluster: Cluster, late: str, pieces: Pieces
) -> None:
    leader = await cluster.leader()
    pieces.after[100] = lambda: break_link(cluster, leader, "n4")
    await cluster.start("n4")
    await cluster.change("n1 n2 n3", learners="n4")
    assert cluster.nodes["n4"].status().first_index > 100, "by a snapshot"
    assert pieces.beginnings == 2
    assert PIECES < len(pieces.offsets) < PIECES + 2 * 2 * AHEAD_PIECES
    await cluster.change("n1 n2 n3 n4")
    await cluster.start(late)
    await cluster.stop(leader)
    await cluster.propose(b"after")
    await cluster.wait_all_hold([*LARGE_ENTRIES, b"after"])


async def test_a_broken_link_to_a_third_node_costs_nothing(cluster: Cluster, late: str, pieces: Pieces) -> None:
    third = next(node_id for node_id in cluster.nodes if not cluster.nodes[node_id].is_leader)
    pieces.after[100] = lambda: break_link(cluster, third, late)
    await cluster.start(late)
    await has_all(cluster, late)
    assert pieces.beginnings == 1


async def test_when_the_leader_goes_the_next_one_sends_its_own(cluster: Cluster, late: str, pieces: Pieces) -> None:
    leader, amid = await cluster.leader(), asyncio.Event()
    pieces.after[100] = amid.set
    await cluster.start(late)
    await amid.wait()
    await cluster.stop(leader)
    await has_all(cluster, late)
    assert pieces.beginnings == 2
    await cluster.start(leader)
    await cluster.wait_all_hold([*LARGE_ENTRIES, b"after", b"again"])


@pytest.mark.parametrize("step", ["write", "finish"])
async def test_a_full_disk_amid_a_transfer_is_waited_out(
    cluster: Cluster, late: str, pieces: Pieces, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    done, left = getattr(Reception, step), []

    def full(reception: Reception) -> None:
        if not left and (step == "finish" or reception._written_bytes > 50 * PIECE_BYTES):
            left.append(reception.path)
            raise OSError(errno.ENOSPC, "No space left on device")
        done(reception)

    monkeypatch.setattr(Reception, step, full)
    await cluster.start(late)
    await has_all(cluster, late)
    assert pieces.beginnings == 2, "nothing of it is kept on a full disk"
    assert len(left) == 1


async def test_a_leader_without_room_for_a_copy_waits_for_it(cluster: Cluster, late: str, pieces: Pieces) -> None:
    machine = cluster.machines[await cluster.leader()]
    take, refused = machine.take_snapshot, []

    async def full(path: Path, term_of: Callable[[int], int]) -> SnapshotInfo:
        if not refused:
            refused.append(path)
            path.write_bytes(b"half of it")  # noqa: ASYNC240 (a few bytes)
            raise StorageFull("no room on the disk")
        return await take(path, term_of)

    machine.take_snapshot = full  # type: ignore[method-assign]
    await cluster.start(late)
    await has_all(cluster, late)
    assert not refused[0].exists()
    assert pieces.beginnings == 1


async def test_a_follower_that_is_stopped_amid_a_transfer_begins_anew(
    cluster: Cluster, late: str, pieces: Pieces
) -> None:
    amid = asyncio.Event()
    pieces.after[100] = amid.set
    await cluster.start(late)
    await amid.wait()
    await cluster.stop(late)
    assert incoming(cluster, late) == [], "nothing is trusted that no sync has covered"
    await cluster.start(late)
    await has_all(cluster, late)
