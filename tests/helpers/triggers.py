"""The words for tests of schedules on clusters that lose nodes and leaders: a call is repeated until it is answered."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, poll

SECOND = timedelta(seconds=1)


class Schedule:
    """One schedule of a cluster."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name

    async def put(self, **keys: Any) -> Any:
        body = {"job": {"task": "t", "queue": self.name}} | keys
        answer = await self.api.call_until_answered("PUT", f"/v1/schedules/{self.name}", body)
        assert answer.status in (200, 201), answer
        return answer.body

    async def read(self) -> Any:
        return (await self.api.call_until_answered("GET", f"/v1/schedules/{self.name}")).expect(200)

    async def post(self, verb: str, body: Any = None) -> Any:
        return (await self.api.call_until_answered("POST", f"/v1/schedules/{self.name}/{verb}", body)).expect(200)

    async def ledger(self) -> list[Any]:
        path = f"/v1/schedules/{self.name}/triggers?limit=1000"
        lines: list[Any] = (await self.api.call_until_answered("GET", path)).expect(200)["triggers"]
        return lines

    async def ledger_of(self, at_least: int) -> list[Any]:
        """Once it has so many lines."""

        async def look() -> list[Any] | None:
            lines = await self.ledger()
            return lines if len(lines) >= at_least else None

        found: list[Any] = await poll(f"{self.name} has {at_least} lines", look)
        return found

    async def jobs(self) -> list[str]:
        """The ids of all jobs that it made, in order."""
        path = f"/v1/jobs?schedule_id={self.name}&limit=1000"
        listed = (await self.api.call_until_answered("GET", path)).expect(200)["jobs"]
        return sorted(job["id"] for job in listed)


def moments(lines: list[Any]) -> list[datetime]:
    return [datetime.fromisoformat(line["nominal_time"]) for line in lines]


def gaps(lines: list[Any]) -> set[timedelta]:
    """Between each line and the next."""
    return {later - earlier for earlier, later in pairwise(moments(lines))}


async def lead(cluster: Cluster, node: NodeProcess) -> None:
    """That node leads."""

    async def look() -> bool:
        if await cluster.leader() is node:
            return True
        await cluster.api.call_until_answered("POST", "/v1/cluster/leader", {"node": node.name})
        return False

    await poll(f"{node.name} leads", look)
