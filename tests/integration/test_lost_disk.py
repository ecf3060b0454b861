"""One disk is lost: the emptied node is not believed under its old id, and nothing acknowledged is lost by it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.helpers.cluster import poll, running_cluster

from horae_storage.peer_book import PeerBook

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
            await cluster.stop(node)
            assert PeerBook(node.data_dir).forget(emptied.name)
            cluster.start(node)
        await cluster.wait_ready()
        assert len(set((await cluster.digests()).values())) == 1
