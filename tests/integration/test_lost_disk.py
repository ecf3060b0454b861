"""One disk is lost: the emptied node is not believed under its old id, and nothing acknowledged is lost by it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.helpers.cluster import Cluster, NodeProcess, poll, running_cluster
from tests.helpers.refusal import require_refusal, run_command

from horae.client import AsyncClient

pytestmark = pytest.mark.cluster


async def test_an_emptied_node_helps_nobody_to_power(tmp_path: Path) -> None:
    """Three nodes; one misses twenty jobs; one that has them loses its disk; the third, that has them too, is away."""
    async with running_cluster(tmp_path) as cluster:
        api = cluster.api
        leader = await cluster.leader()
        behind, emptied = (node for node in cluster.nodes if node is not leader)
        await cluster.digests()
        cluster.kill(behind)
        for n in range(20):
            await api.call_until_answered("POST", "/v1/jobs", {"task": "t", "id": f"kept-{n}"})
        cluster.kill(leader)
        cluster.kill(emptied)
        shutil.rmtree(emptied.data_dir)
        cluster.start(behind)
        cluster.start(emptied)

        async def refused() -> bool:
            return "peer_refused" in behind.log_text() and "peer_refused" in emptied.log_text()

        await poll("the emptied node is refused", refused)
        assert not await cluster._is_ready(behind)

        cluster.start(leader)
        await cluster.wait_ready([leader, behind])
        for n in range(20):
            answer = await api.call_until_answered("GET", f"/v1/jobs/kept-{n}")
            assert answer.status == 200

        for node in (leader, behind):  # as docs/operations.md says, with a majority up and whole
            forget = ("node", "forget", emptied.name, "--config", str(node.config_path))
            require_refusal(await asyncio.to_thread(run_command, *forget), "in use by another process")
            await cluster.stop(node)
            assert (await asyncio.to_thread(run_command, *forget)).returncode == 0
            again = await asyncio.to_thread(run_command, *forget)
            require_refusal(again, f"{node.name} does not know {emptied.name}: nothing was changed", code=1)
            cluster.start(node)
        await cluster.wait_ready()
        assert len(set((await cluster.digests()).values())) == 1


async def test_an_emptied_node_is_refused_by_who_joins_after_the_loss(tmp_path: Path) -> None:
    """Nor by who joins a leader that joined after it, and never met the lost directory either."""
    async with Cluster(tmp_path, 3) as cluster:
        emptied = cluster.nodes[1]
        for n in range(20):
            await cluster.api.call_until_answered("POST", "/v1/jobs", {"task": "t", "id": f"kept-{n}"})
        await cluster.digests()
        cluster.kill(emptied)
        shutil.rmtree(emptied.data_dir)
        for name in ("n4", "n5"):
            joined = cluster.new_node(name)
            cluster.start(joined)
            cluster.nodes.append(joined)
            await wait_leading(cluster, joined)
        cluster.start(emptied)
        for node in cluster.nodes:
            if node is not emptied:
                await wait_refused(node, emptied)
        view = await cluster.view(cluster.nodes[4])
        assert view is not None
        assert [it["connected"] for it in view["members"] if it["node"] == emptied.name] == [False]
        assert not await cluster._is_ready(emptied)
        for node in cluster.nodes[3:]:
            assert f" peer_connected node={node.name} room=raft peer={emptied.name}" not in node.log_text()
        for n in range(20):
            assert (await cluster.api.call_until_answered("GET", f"/v1/jobs/kept-{n}")).status == 200
        await cluster.stop_all()
        assert cluster.check_logs() == []


async def wait_leading(cluster: Cluster, node: NodeProcess) -> None:
    """Until it counts, and the lead was handed to it."""

    async def counts() -> bool:
        assert node.alive, node.log_text()[-4000:]
        view = await cluster.view(node)
        return view is not None and any(it["node"] == node.name and it["standing"] == "voter" for it in view["members"])

    await poll(f"{node.name} counts", counts)
    async with AsyncClient([cluster.nodes[0].url]) as client:
        assert (await client.hand_over(node.name)).leader == node.name


async def wait_refused(node: NodeProcess, emptied: NodeProcess) -> None:
    """Until its log says that it refuses the emptied one."""

    async def told() -> bool:
        lines = node.log_text().splitlines()
        words = (" warning peer_refused ", f"peer={emptied.name} ", "another data directory")
        return any(all(word in line for word in words) for line in lines)

    await poll(f"{node.name} refuses {emptied.name}", told)
