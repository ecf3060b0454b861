"""A node that was away comes back: by the log when that reaches back far enough, else by a snapshot."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, poll, running_cluster

pytestmark = pytest.mark.cluster

SHORT_LOG = {"log_keep_entries": 1000, "log_keep_bytes": 1 << 20, "state_commit_interval_ms": 100}
"""The least that may be kept."""

JOBS_PER_CALL = 100
PAYLOAD = "x" * 5000
"""With the jobs of a call: half a megabyte an entry, so that a few calls outrun the log that is kept."""


async def fill(api: Api, queue: str, calls: int, payload: str = PAYLOAD) -> None:
    for n in range(calls):
        jobs = [
            {"task": "noop", "queue": queue, "id": f"{queue}-{n}-{m}", "payload": payload} for m in range(JOBS_PER_CALL)
        ]
        answer = await api.call_until_answered("POST", "/v1/jobs/batch", {"jobs": jobs})
        assert all("job" in item for item in answer.expect(200)["results"])


async def live_view(cluster: Cluster, node: NodeProcess) -> dict[str, Any]:
    view = await cluster.view(node)
    assert view is not None
    return view


async def test_by_a_snapshot(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, **SHORT_LOG) as cluster:
        api = cluster.api
        leader, away = await cluster.leader(), await cluster.follower()
        await fill(api, "before", 2)
        await cluster.digests()
        last = (await live_view(cluster, away))["last_index"]
        cluster.kill(away)
        calls = itertools.count()

        async def log_was_cut() -> bool:
            await fill(api, f"meanwhile-{next(calls)}", 4)
            return bool((await live_view(cluster, leader))["first_index"] > last + 1)

        await poll("the leader's log begins after where the other's ends", log_was_cut)
        cluster.start(away)
        await fill(api, "during", 4)
        await cluster.wait_ready()
        assert len(set((await cluster.digests()).values())) == 1
        assert " snapshot_installed " in away.log_text()
        await fill(api, "after", 2)


async def test_by_the_log(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        away = await cluster.follower()
        cluster.kill(away)
        await fill(cluster.api, "meanwhile", 20, payload="x")
        cluster.start(away)
        await cluster.wait_ready()
        assert len(set((await cluster.digests()).values())) == 1
        assert " snapshot_installed " not in away.log_text()
