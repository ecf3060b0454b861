"""An overloaded cluster: new work is turned away, work in hand is ended, and once the load stops it drains by itself.

Three real nodes, on disks and sockets, in this process, with bounds that a few callers exceed. Not here: which call is
shed at which level, and when to come back (`tests/unit/node/test_shedding.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import NodeProcess, make_nodes, poll

from horae_http.app import build_app
from horae_http.server import start_server
from horae_node.clock import SystemClock
from horae_node.config import load_config
from horae_node.runtime import Node
from horae_node.shedding import RETRY_AFTER_S_MAX, Bounds

pytestmark = pytest.mark.cluster

BOUNDS = Bounds(commands=200)
BATCH_JOBS = 50
"""Less than half the bound: so that endings are never met by more than they may wait behind."""
CALLERS = 16
IN_HAND = 20
REFUSALS_MIN = 50
DEADLINE_S = 60.0


@contextlib.asynccontextmanager
async def running_node(place: NodeProcess) -> AsyncIterator[Node]:
    node = Node(load_config(place.config_path), clock=SystemClock(), bounds=BOUNDS)
    await node.start()
    try:
        app = build_app(node.service, metrics_text=node.metrics_text)
        server = await start_server(app, "127.0.0.1", place.http_port)
        try:
            yield node
        finally:
            await server.stop(1000)
    finally:
        await node.stop()


class Load:
    """Callers that submit batches without a pause, whatever they are told."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.on = True
        self.acknowledged: set[str] = set()
        self.retry_after_s: list[int] = []
        """What each refusal said."""

    async def run(self, caller: int) -> None:
        number = 0
        while self.on:
            jobs = [{"task": "t", "queue": "load", "id": f"{caller}-{number + i}"} for i in range(BATCH_JOBS)]
            number += BATCH_JOBS
            answer = await self._api.call("POST", "/v1/jobs/batch", {"jobs": jobs})
            if answer.status == 429:
                assert answer.code == "rate_limited"
                self.retry_after_s.append(int(answer.headers["Retry-After"]))
                continue
            assert answer.status == 200, answer.raw
            self.acknowledged |= {item["job"]["id"] for item in answer.body["results"] if "job" in item}


async def claim_in_hand(api: Api) -> list[dict[str, Any]]:
    jobs = [{"task": "t", "queue": "hand", "id": f"hand-{number}"} for number in range(IN_HAND)]
    (await api.call("POST", "/v1/jobs/batch", {"jobs": jobs})).expect(200)
    claim = {"worker": "w", "queues": ["hand"], "max_jobs": IN_HAND, "wait_seconds": 10, "lease_seconds": 600}
    claimed = (await api.call("POST", "/v1/claims", claim)).expect(200)["jobs"]
    assert len(claimed) == IN_HAND
    return claimed


async def end_under_load(api: Api, claimed: list[dict[str, Any]], load: Load) -> None:
    """Renew and complete each, all answered, and go on to look until enough was refused meanwhile."""
    leases = [{"job_id": job["id"], "lease_token": job["lease_token"]} for job in claimed]
    for lease in leases:
        beats = (await api.call("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": [lease]})).expect(200)
        assert [beat["status"] for beat in beats["leases"]] == ["ok"]
        path = f"/v1/jobs/{lease['job_id']}/complete"
        ended = (await api.call("POST", path, {"lease_token": lease["lease_token"]})).expect(200)
        assert ended["state"] == "succeeded"
    async with asyncio.timeout(DEADLINE_S):
        while len(load.retry_after_s) < REFUSALS_MIN:
            (await api.call("GET", f"/v1/jobs/{leases[0]['job_id']}")).expect(200)


def metric(node: Node, name: str) -> float:
    lines = node.metrics_text().decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


async def listed(api: Api, queue: str) -> set[str]:
    found: set[str] = set()
    cursor = ""
    while cursor is not None:
        page = (await api.call("GET", f"/v1/jobs?queue={queue}&limit=1000{cursor and '&cursor=' + cursor}")).expect(200)
        found |= {job["id"] for job in page["jobs"]}
        cursor = page["next_cursor"]
    return found


async def test_an_overloaded_cluster_ends_what_is_in_hand_and_drains_by_itself(tmp_path: Path) -> None:
    places = make_nodes(tmp_path, ["n1", "n2", "n3"])
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(Api(lambda: [place.url for place in places]))
        nodes = list(await asyncio.gather(*(stack.enter_async_context(running_node(place)) for place in places)))
        await poll("all are ready", lambda: all_ready(nodes))
        claimed = await claim_in_hand(api)

        load = Load(api)
        async with asyncio.TaskGroup() as group:
            for caller in range(CALLERS):
                group.create_task(load.run(caller))
            await end_under_load(api, claimed, load)
            load.on = False

        assert set(load.retry_after_s) <= set(range(1, RETRY_AFTER_S_MAX + 1))
        assert sum(metric(node, 'horae_shed_requests_total{rank="new"}') for node in nodes) == len(load.retry_after_s)
        assert sum(metric(node, 'horae_shed_requests_total{rank="ending"}') for node in nodes) == 0
        assert sum(metric(node, "horae_proposals_queued") for node in nodes) == 0, "all were answered: nothing waits"
        (await api.call("POST", "/v1/jobs", {"task": "t", "queue": "load", "id": "after"})).expect(201)
        assert load.acknowledged <= await listed(api, "load")
        assert load.acknowledged


async def all_ready(nodes: list[Node]) -> bool:
    return all(node.service.ready()[0] for node in nodes)
