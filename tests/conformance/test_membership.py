"""Members that come and go, and the lead handed over: over memory and over TCP, the same.

What an entry makes the members is a small state machine's (`parts.py`); the rules of who may change what are the
machine's (`tests/unit/core/test_members.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.unit.raft.parts import LARGE_ENTRIES, SHORT_TAIL, Cluster, wait_until

from horae_node.errors import NotApplied, OutcomeUnknown

MakeCluster = Callable[..., Cluster]


@pytest.fixture(params=["memory", "tcp"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeCluster]:
    made: list[Cluster] = []

    def build(size: int, spares: int) -> Cluster:
        made.append(Cluster(tmp_path, tcp=request.param == "tcp", size=size, spares=spares))
        return made[-1]

    yield build
    for cluster in made:
        assert await cluster.end() == []


class Load:
    """Entries proposed one after the other while a test does something else; those acknowledged must stay."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.acknowledged: list[bytes] = []
        self.more = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while True:
            entry = b"load %d" % number
            number += 1
            try:
                await self.cluster.nodes[await self.cluster.leader()].propose(entry)
            except (NotApplied, OutcomeUnknown):
                await asyncio.sleep(0)
                continue
            self.acknowledged.append(entry)
            self.more.set()

    async def progress(self) -> None:
        """Until one more was acknowledged."""
        self.more.clear()
        await asyncio.wait_for(self.more.wait(), 10)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        for node_id in self.cluster.nodes:
            await self.cluster.machines[node_id].wait_for(lambda machine: self._is_in(machine.entries))

    def _is_in(self, entries: list[bytes]) -> bool:
        held = set(entries)
        return all(entry in held for entry in self.acknowledged)


async def add(cluster: Cluster, voters: str, new: str) -> None:
    """As the leader does it: first a learner, then a voter."""
    await cluster.start(new)
    await cluster.change(voters, learners=new)
    await cluster.change(f"{voters} {new}")


async def two_join_and_lead(cluster: Cluster, leader: str, away: str) -> None:
    """While one of the three is away; the second of the new ones leads in the end."""
    await cluster.stop(away)
    await add(cluster, "n1 n2 n3", "n4")
    await add(cluster, "n1 n2 n3 n4", "n5")
    assert await cluster.nodes[leader].hand_over("n5")
    assert await cluster.leader() == "n5"


async def test_a_learner_gets_everything_and_counts_for_nothing(make: MakeCluster) -> None:
    cluster = make(4, 1)
    await cluster.start()
    await cluster.propose(b"before")
    await cluster.start("n4")
    await cluster.change("n1 n2 n3", learners="n4")
    await cluster.propose(b"one")
    await cluster.wait_all_hold([b"before", b"one"])
    leader = await cluster.leader()
    assert cluster.nodes[leader].status().peers["n4"].connected
    assert "n4" not in cluster.clocks[leader]
    for node_id in {"n1", "n2", "n3"} - {leader}:
        await cluster.stop(node_id)
    lost = cluster.nodes[leader].propose(b"two")
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(lost, 10)
    assert cluster.machines["n4"].entries == [b"before", b"one"]


async def test_a_new_node_that_is_behind_the_log_gets_a_snapshot_with_the_members_in_it(make: MakeCluster) -> None:
    cluster = make(4, 1)
    cluster.limits = SHORT_TAIL
    await cluster.start()
    await cluster.propose(*LARGE_ENTRIES)
    leader = await cluster.leader()
    cluster.machines[leader].commit()
    await wait_until(lambda: cluster.nodes[leader].status().first_index > 100)
    await add(cluster, "n1 n2 n3", "n4")
    assert cluster.nodes["n4"].status().first_index > 100
    assert cluster.nodes["n4"].roster.standing("n4") == "voter"
    await cluster.stop(leader)
    await cluster.propose(b"three of four")
    assert cluster.machines["n4"].entries[:200] == LARGE_ENTRIES


async def test_a_promoted_node_counts(make: MakeCluster) -> None:
    cluster = make(4, 1)
    await cluster.start()
    await add(cluster, "n1 n2 n3", "n4")
    leader = await cluster.leader()
    other = next(node_id for node_id in ("n1", "n2", "n3") if node_id != leader)
    await cluster.stop(other)
    await cluster.propose(b"three of four")
    await cluster.stop(leader)
    assert not any(raft.is_leader for raft in cluster.nodes.values())
    await cluster.start(other)
    await cluster.leader()
    await cluster.propose(b"again three of four")
    await cluster.wait_all_hold([b"three of four", b"again three of four"])


async def test_three_grow_to_five_and_back_under_load(make: MakeCluster) -> None:
    cluster = make(5, 2)
    await cluster.start()
    load = Load(cluster)
    await load.progress()
    await add(cluster, "n1 n2 n3", "n4")
    await add(cluster, "n1 n2 n3 n4", "n5")
    await load.progress()
    leader = await cluster.leader()
    leave = [node_id for node_id in cluster.nodes if node_id != leader][:2]
    kept = [node_id for node_id in cluster.nodes if node_id not in leave]
    await cluster.change(" ".join([*kept, leave[1]]), removed=leave[0])
    await cluster.change(" ".join(kept), removed=" ".join(leave))
    await load.progress()
    await wait_until(lambda: sorted(cluster.sent_away) == sorted(leave))
    for node_id in leave:
        await cluster.nodes.pop(node_id).stop()
    await load.end()
    one = next(node_id for node_id in kept if node_id != leader)
    await cluster.stop(one)
    await cluster.propose(b"two of three")


async def test_a_dead_node_of_three_is_replaced(make: MakeCluster) -> None:
    cluster = make(4, 1)
    await cluster.start()
    load = Load(cluster)
    await load.progress()
    leader = await cluster.leader()
    dead = cluster.other_than(leader)
    await cluster.stop(dead)
    kept = " ".join(node_id for node_id in ("n1", "n2", "n3") if node_id != dead)
    await cluster.change(kept, removed=dead)
    await cluster.start("n4")
    await cluster.change(kept, learners="n4", removed=dead)
    await cluster.change(f"{kept} n4", removed=dead)
    await load.progress()
    await cluster.stop(leader)
    await load.progress()
    await cluster.start(leader)
    await load.end()
    await cluster.start(dead)
    await wait_until(lambda: cluster.sent_away == [dead], 20)


async def test_a_leader_that_is_removed_steps_down(make: MakeCluster) -> None:
    cluster = make(3, 0)
    await cluster.start()
    leader = await cluster.leader()
    kept = [node_id for node_id in cluster.nodes if node_id != leader]
    await cluster.change(" ".join(kept), removed=leader)
    await wait_until(lambda: cluster.sent_away == [leader] and not cluster.nodes[leader].is_leader)
    await cluster.nodes.pop(leader).stop()
    assert await cluster.leader() in kept
    await cluster.propose(b"two of two")


async def test_members_survive_a_restart_of_all(make: MakeCluster) -> None:
    cluster = make(4, 1)
    await cluster.start()
    await add(cluster, "n1 n2 n3", "n4")
    await cluster.change("n1 n2 n4", removed="n3")
    await cluster.nodes.pop("n3").stop()
    await cluster.propose(b"one")
    await cluster.machines["n1"].wait_for(lambda machine: machine.entries == [b"one"])
    cluster.machines["n1"].commit()
    await cluster.stop()
    await cluster.start("n1", "n2", "n4")
    await cluster.propose(b"two")
    await cluster.wait_all_hold([b"one", b"two"])
    assert {raft.roster.standing("n4") for raft in cluster.nodes.values()} == {"voter"}
    assert {raft.roster.standing("n3") for raft in cluster.nodes.values()} == {"removed"}


async def test_a_node_that_was_away_is_led_by_one_that_it_never_met(make: MakeCluster) -> None:
    cluster = make(5, 2)
    await cluster.start()
    leader = await cluster.leader()
    away, other = [node_id for node_id in ("n1", "n2", "n3") if node_id != leader]
    await two_join_and_lead(cluster, leader, away)
    await cluster.change(f"{away} {other} n4 n5", removed=leader)
    await cluster.nodes.pop(leader).stop()
    await cluster.propose(b"one")
    await cluster.stop("n4")
    await cluster.start(away)
    await cluster.propose(b"three of four")
    await cluster.wait_all_hold([b"one", b"three of four"])


async def test_a_node_all_of_whose_peers_left_while_it_was_away_is_found_by_the_others(make: MakeCluster) -> None:
    cluster = make(5, 2)
    await cluster.start()
    leader = await cluster.leader()
    away, other = [node_id for node_id in ("n1", "n2", "n3") if node_id != leader]
    await two_join_and_lead(cluster, leader, away)
    for gone, left in ((leader, f"{away} {other} n4 n5"), (other, f"{away} n4 n5")):
        removed = leader if gone == leader else f"{leader} {other}"
        await cluster.change(left, removed=removed)
        await cluster.nodes.pop(gone).stop()
    await cluster.start(away)
    await cluster.machines[away].wait_for(lambda machine: machine.roster is not None, 30)
    await cluster.stop("n4")
    await cluster.propose(b"two of three")
    await cluster.wait_all_hold([b"two of three"])


async def test_two_shrink_to_one_and_grow_again(make: MakeCluster) -> None:
    cluster = make(3, 1)
    await cluster.start()
    leader = await cluster.leader()
    other = cluster.other_than(leader)
    await cluster.change(leader, removed=other)
    await cluster.nodes.pop(other).stop()
    await cluster.propose(b"alone")
    assert await cluster.nodes[leader].read_barrier() >= 4
    cluster.machines[leader].commit()
    await cluster.stop(leader)
    await cluster.start(leader)
    await cluster.propose(b"alone again")
    await add(cluster, leader, "n3")
    await cluster.propose(b"two")
    await cluster.wait_all_hold([b"alone", b"alone again", b"two"])


# ---------------------------------------------------------------- handing over


async def test_the_lead_is_handed_over_without_an_election_time_out(make: MakeCluster) -> None:
    cluster = make(3, 0)
    await cluster.start()
    leader = await cluster.leader()
    await cluster.propose(b"one")
    for target in [node_id for node_id in cluster.nodes if node_id != leader]:
        term = cluster.nodes[leader].term
        assert await cluster.nodes[leader].hand_over(target)
        assert await cluster.leader() == target
        assert cluster.nodes[target].term == term + 1
        leader = target
    await cluster.propose(b"two")
    await cluster.wait_all_hold([b"one", b"two"])


async def test_nothing_is_proposed_while_the_lead_is_handed_over(make: MakeCluster) -> None:
    cluster = make(3, 0)
    await cluster.start()
    leader = await cluster.leader()
    target = cluster.other_than(leader)
    under_way = cluster.nodes[leader].propose(b"one")
    handed = asyncio.ensure_future(cluster.nodes[leader].hand_over(target))
    await asyncio.sleep(0)
    with pytest.raises(NotApplied):
        cluster.nodes[leader].propose(b"two")
    assert await handed
    assert under_way.done()
    await cluster.leader()
    await cluster.propose(b"three")
    await cluster.wait_all_hold([b"one", b"three"])


async def test_a_leader_leads_on_when_the_other_cannot(make: MakeCluster) -> None:
    cluster = make(4, 1)
    await cluster.start()
    leader = await cluster.leader()
    raft = cluster.nodes[leader]
    assert not await raft.hand_over(leader)
    assert not await raft.hand_over("n9")
    await cluster.start("n4")
    await cluster.change("n1 n2 n3", learners="n4")
    assert not await raft.hand_over("n4")
    target = next(node_id for node_id in ("n1", "n2", "n3") if node_id != leader)
    cluster.nodes[target].retire()
    assert not await raft.hand_over(target)
    await cluster.propose(b"on")
    assert await cluster.leader() == leader
