"""Real nodes that come, go, move and hand the lead over while clients work: nothing acknowledged is lost.

The load is `horae.AsyncClient`s that only see what they could not mend by retrying: nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.helpers.api import LOST_ANSWER
from tests.helpers.cluster import HOST, Cluster, NodeProcess, clean_environ, command, free_ports, poll
from tests.helpers.sse import open_stream

from horae.client import AsyncClient
from horae_node.core import views
from horae_node.core.invariants import check_invariants
from horae_storage.lmdb_kv import LmdbStore

pytestmark = pytest.mark.cluster


class Load:
    """Clients that submit one job after the other, each on all URLs known; any error is kept."""

    def __init__(self, urls: list[str], clients: int = 4) -> None:
        self.acknowledged: list[str] = []
        self.completed: list[str] = []
        self.errors: list[BaseException] = []
        self._numbers = itertools.count()
        self._stop = False
        self._tasks = [asyncio.create_task(self._run(urls)) for _ in range(clients)]

    async def _run(self, urls: list[str]) -> None:
        async with AsyncClient(urls) as client:
            while not self._stop:
                try:
                    job = await client.submit("t", id=f"job-{next(self._numbers)}")
                    self.acknowledged.append(job.id)
                    await self._work(client, job.id)
                except Exception as error:  # the root of this task: whatever it is, the test fails by it
                    self.errors.append(error)
                    return

    async def _work(self, client: AsyncClient, job_id: str) -> None:
        """Claim one job, whosever it is, and end it."""
        for claim in await client.claim(f"w-{job_id}", ["default"], max_jobs=1, wait_seconds=2, claim_id=f"c-{job_id}"):
            assert (await client.complete(claim.id, claim.lease_token)).state == "succeeded"
            self.completed.append(claim.id)

    async def progress(self, count: int = 20) -> None:
        """Until so many more jobs are acknowledged."""
        goal = len(self.acknowledged) + count

        async def reached() -> bool:
            assert self.errors == []
            return len(self.acknowledged) >= goal

        await poll("jobs are acknowledged", reached, 30)

    async def end(self, cluster: Cluster) -> None:
        """Stop, and look every job up."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        assert self.errors == []
        assert len(set(self.completed)) == len(self.completed) > 0
        done = set(self.completed)
        async with AsyncClient([node.url for node in cluster.living]) as client:
            for job_id in self.acknowledged:
                job = await client.job(job_id)
                assert (job.state == "succeeded") == (job_id in done), job
                assert job.attempt <= 1, job


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, 3) as made:
        yield made
        assert made.check_logs() == []


async def standing(cluster: Cluster, node: NodeProcess) -> str | None:
    """As a living member sees it."""
    for other in cluster.living:
        view = await cluster.view(other)
        if view is not None:
            found = [it["standing"] for it in view["members"] if it["node"] == node.name]
            return found[0] if found else None
    return None


async def join(cluster: Cluster, name: str) -> NodeProcess:
    """Start a new node, and wait until it counts."""
    return await take_in(cluster, cluster.new_node(name))


async def take_in(cluster: Cluster, node: NodeProcess) -> NodeProcess:
    cluster.start(node)
    cluster.nodes.append(node)

    async def counts() -> bool:
        assert node.alive, node.log_text()[-4000:]
        return await standing(cluster, node) == "voter"

    await poll(f"{node.name} counts", counts)
    await cluster.wait_ready([node])
    return node


async def wait_removed(cluster: Cluster, node: NodeProcess) -> None:
    async def says_why() -> bool:
        try:
            answer = await cluster.api.send("GET", node.url + "/readyz", seconds=2)
        except LOST_ANSWER:
            return False
        return answer.status == 503 and "removed" in str(answer.body)

    await poll(f"{node.name} says that it was removed", says_why)
    answer = await cluster.api.send("GET", node.url + "/v1/jobs", seconds=2)
    assert (answer.status, answer.body["code"]) == (503, "removed")


async def wait_refused(node: NodeProcess) -> None:
    """It learns at its start that it was removed: it ends, with the way back in its last line."""

    async def ended() -> bool:
        assert node.process is not None
        return node.process.poll() is not None

    await poll(f"{node.name} ends", ended)
    assert node.process is not None
    last = node.log_text().splitlines()[-1]
    assert (node.process.returncode, last.startswith("horae: "), "new" in last) == (2, True, True), last


async def finish(cluster: Cluster, *gone: NodeProcess) -> None:
    for node in gone:
        if node.alive:
            await cluster.stop(node)
        cluster.nodes.remove(node)
    await cluster.finish()


async def test_three_grow_to_five_and_shrink_back_under_load(cluster: Cluster) -> None:
    load = Load(cluster.urls())
    await load.progress()
    four = await join(cluster, "n4")
    five = await join(cluster, "n5")
    await load.progress()
    leader = await cluster.leader()
    leaving = [leader, next(node for node in cluster.nodes[:3] if node is not leader)]
    async with AsyncClient(cluster.urls()) as client:
        for node in leaving:
            stream = await open_stream(node.http_port)
            assert (await client.remove_member(node.name)).standing == "removed"
            assert (await client.remove_member(node.name)).standing == "removed"
            await wait_removed(cluster, node)
            assert await stream.ended(), "whoever reads events there is to go elsewhere"
    await load.progress()
    for node in leaving:
        await cluster.stop(node)
        assert node.log_text().count("removed_from_cluster") == 1
        assert node.log_text().count("leadership_lost") == 0
        cluster.start(node)
        await wait_refused(node)
    await load.progress()
    await load.end(cluster)
    assert {await standing(cluster, node) for node in (four, five)} == {"voter"}
    await finish(cluster, *leaving)


async def test_one_grows_to_three_under_load_and_loses_its_first(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        first = cluster.nodes[0]
        second, third = cluster.new_node("n2"), cluster.new_node("n3")
        load = Load([node.url for node in (first, second, third)])
        await load.progress()
        await take_in(cluster, second)
        await take_in(cluster, third)
        await load.progress()
        cluster.kill(first)
        await load.progress()
        cluster.start(first)
        await cluster.wait_ready([first])
        await load.end(cluster)
        await cluster.finish()
        assert cluster.check_logs() == []


async def test_a_dead_node_is_replaced_and_learns_of_it_when_it_comes_back(cluster: Cluster) -> None:
    load = Load(cluster.urls())
    await load.progress()
    dead = cluster.nodes[2]
    cluster.kill(dead)
    async with AsyncClient(cluster.urls()) as client:
        await client.remove_member(dead.name)
    four = await join(cluster, "n4")
    await load.progress()
    cluster.start(dead)
    await wait_refused(dead)
    leader = await cluster.leader()
    cluster.kill(leader)
    await load.progress()
    cluster.start(leader)
    await cluster.wait_ready([leader, four])
    await load.end(cluster)
    shutil.rmtree(dead.data_dir)
    dead.write_joining_config(cluster.urls())
    cluster.start(dead)
    await wait_refused(dead)
    assert not dead.data_dir.exists()
    await finish(cluster, dead)


async def test_a_node_gets_in_though_leaders_die_meanwhile(cluster: Cluster) -> None:
    load = Load(cluster.urls())
    await load.progress()
    four = cluster.new_node("n4")
    cluster.start(four)
    cluster.nodes.append(four)
    for _ in range(2):
        leader = await cluster.leader()
        cluster.kill(leader)
        await load.progress()
        cluster.start(leader)
        await cluster.wait_ready([leader])

    async def counts() -> bool:
        return await standing(cluster, four) == "voter"

    await poll("n4 counts", counts)
    cluster.kill(four)
    cluster.start(four)
    await cluster.wait_ready([four])
    await load.end(cluster)
    await cluster.finish()


async def test_a_change_that_would_leave_no_majority_is_refused(cluster: Cluster) -> None:
    leader = await cluster.leader()
    dead, other = [node for node in cluster.nodes if node is not leader]
    cluster.kill(dead)

    async def dead_is_missed() -> bool:
        view = await cluster.view(leader)
        return view is not None and not any(it["connected"] for it in view["members"] if it["node"] == dead.name)

    await poll("the dead one is missed", dead_is_missed)
    answer = await cluster.api.call("DELETE", f"/v1/cluster/members/{other.name}", url=leader.url)
    assert (answer.status, answer.body["code"]) == (409, "conflict")
    assert "without quorum" in answer.body["detail"]
    body = {"node": dead.name, "raft_address": "127.0.0.1:1", "http_url": "http://127.0.0.1:2"}
    answer = await cluster.api.call("POST", "/v1/cluster/members", body, url=leader.url)
    assert (answer.status, "is a member already" in answer.body["detail"]) == (409, True)
    cluster.start(dead)
    await cluster.wait_ready()
    await cluster.finish()


async def test_the_same_node_at_a_new_address(cluster: Cluster) -> None:
    load = Load(cluster.urls())
    await load.progress()
    moved = await cluster.follower()
    await cluster.stop(moved)
    moved.http_port, moved.raft_port = free_ports(2)
    async with AsyncClient(cluster.urls()) as client:
        await client.move_member(moved.name, raft_address=f"{HOST}:{moved.raft_port}", http_url=moved.url)
    moved.write_config(cluster.nodes)
    cluster.start(moved)
    await cluster.wait_ready([moved])
    leader = await cluster.leader()
    other = next(node for node in cluster.nodes if node is not moved and node is not leader)
    await cluster.stop(other)
    await load.progress()
    cluster.start(other)
    await cluster.wait_ready()
    await load.end(cluster)
    await cluster.finish()


async def test_the_lead_is_handed_over_under_load(cluster: Cluster) -> None:
    load = Load(cluster.urls())
    for _ in range(6):
        await load.progress()
        leader = await cluster.leader()
        target = next(node for node in cluster.nodes if node is not leader)
        async with AsyncClient(cluster.urls()) as client:
            assert (await client.hand_over(target.name)).leader == target.name
        assert await cluster.leader() is target
    await load.end(cluster)
    await cluster.finish()


async def test_a_survivor_and_a_backup_begin_anew_whoever_the_members_were(cluster: Cluster, tmp_path: Path) -> None:
    async with AsyncClient(cluster.urls()) as client:
        await client.submit("t", id="kept")
    four = await join(cluster, "n4")
    backup, restored = tmp_path / "file.backup", tmp_path / "restored"
    await do("backup", str(backup), "--url", four.url)
    await cluster.stop_all()
    four.write_config([four])
    await do("node", "recover", "--config", str(four.config_path), "--yes-i-lose")
    await do("restore", str(backup), "--data", str(restored), "--node-id", "m1", "--cluster", "other")
    cluster.start(four)
    await cluster.wait_ready([four])
    view = await cluster.view(four)
    assert view is not None
    assert [(it["node"], it["standing"]) for it in view["members"]] == [("n4", "voter")]
    async with AsyncClient([four.url]) as client:
        assert (await client.job("kept")).id == "kept"
    old = cluster.nodes[0]
    cluster.start(old)  # by mistake: it still counts four, and knows where they are

    async def refused() -> bool:
        return "peer_refused" in four.log_text() and "refused by the peer" in old.log_text()

    await poll("the survivor refuses the old member", refused)
    cluster.kill(old)
    await cluster.stop(four)
    cluster.start(four)
    await cluster.wait_ready([four])
    cluster.nodes[:] = [four]
    shutil.rmtree(four.home.parent / "n2")
    again, second = await join(cluster, "n1-again"), await join(cluster, "n2")
    cluster.kill(four)  # who joined must count as it did, and not by what the log says of members before
    async with AsyncClient([again.url, second.url]) as client:
        assert (await client.submit("t", id="without the survivor")).state == "ready"
    await cluster.stop_all()
    with contextlib.closing(LmdbStore(restored / "state")) as store:
        assert views.read_members(store.txn) == {}
        assert check_invariants(store.txn) == []


async def do(*arguments: str) -> None:
    """`horae ARGUMENTS` as a process, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command(*arguments), env=clean_environ(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()


async def test_a_rolling_restart_costs_no_client_a_request(cluster: Cluster) -> None:
    load = Load(cluster.urls(), clients=8)
    for node in list(cluster.nodes):
        await load.progress()
        await cluster.stop(node)
        cluster.start(node)
        await cluster.wait_ready([node])
    leader = await cluster.leader()
    await cluster.stop(leader)
    cluster.start(leader)
    await cluster.wait_ready([leader])
    await load.progress()
    await load.end(cluster)
    await cluster.finish()
