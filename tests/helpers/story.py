"""The words that the contract's tests are told in: one test's queue, its calls, and what an answer must look like.

Not here: a single expectation about a route. Next to read: `tests/integration/test_jobs.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.helpers.api import PROBLEM, Answer, Api
from tests.helpers.cluster import Cluster, NodeProcess, poll

LONG_SECONDS = 50
"""A wait that no test sits out: what ends it is what is tested."""

DEADLINE_SECONDS = 40

NOW = {"initial_seconds": 0}
"""Retry at once."""


@dataclass
class Queue:
    """One test's corner of the cluster: a queue name, and the calls that its story is made of."""

    api: Api
    name: str
    url: str
    """The node that is asked."""

    async def call(self, method: str, path: str, body: Any = None, wait_seconds: float = 0) -> Answer:
        return await self.api.call(method, path, body, url=self.url, wait_seconds=wait_seconds)

    async def submit(self, **keys: Any) -> Any:
        """A new job of this queue, as answered."""
        job = {"task": "noop", "queue": self.name} | keys
        return (await self.call("POST", "/v1/jobs", job)).expect(201)

    async def claim(self, *, wait_seconds: float = LONG_SECONDS, **keys: Any) -> list[Any]:
        body = {"worker": "w1", "queues": [self.name], "wait_seconds": wait_seconds} | keys
        asked = self.call("POST", "/v1/claims", body, wait_seconds)
        answer = await asyncio.wait_for(asked, max(DEADLINE_SECONDS, wait_seconds + 5))
        jobs: list[Any] = answer.expect(200)["jobs"]
        return jobs

    async def claim_one(self, **keys: Any) -> Any:
        """The one job that is ready."""
        (job,) = await self.claim(**keys)
        return job

    async def end(self, how: str, job: Any, **keys: Any) -> Answer:
        return await self.call("POST", f"/v1/jobs/{job['id']}/{how}", {"lease_token": job["lease_token"]} | keys)

    async def fail(self, job: Any, **keys: Any) -> Any:
        error = {"type": "ValueError", "message": "no luck"}
        return (await self.end("fail", job, error=error, **keys)).expect(200)

    async def read(self, job_id: str) -> Any:
        return (await self.call("GET", f"/v1/jobs/{job_id}")).expect(200)

    async def finished(self, job_id: str) -> Any:
        """The job once it is finished."""
        path = f"/v1/jobs/{job_id}?wait_seconds={LONG_SECONDS}"
        return (await asyncio.wait_for(self.call("GET", path, None, LONG_SECONDS), DEADLINE_SECONDS)).expect(200)

    async def wait_state(self, job_id: str, *states: str) -> Any:
        """The job once it is in one of these states."""

        async def look() -> Any:
            job = await self.read(job_id)
            return job if job["state"] in states else None

        return await poll(f"{job_id} is one of {states}", look)


def moment(text: str) -> datetime:
    """A time of an answer, which must be written as the contract says."""
    assert len(text) == len("2026-11-29T12:00:00.000Z"), text
    assert text.endswith("Z"), text
    return datetime.fromisoformat(text)


async def waiting_claims(cluster: Cluster, leader: NodeProcess, count: int) -> None:
    """Until exactly so many claims are parked on the leader."""

    async def look() -> bool:
        return await metric(cluster, leader, "horae_waiting_claims") == count

    await poll(f"{count} claims wait", look)


async def metric(cluster: Cluster, node: NodeProcess, name: str) -> float:
    text = (await cluster.api.send("GET", node.url + "/metrics")).raw.decode()
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.rpartition(" ")[0] == name]
    assert len(values) == 1, (name, text)
    return float(values[0])


def require_problem(answer: Answer, status: int, code: str) -> None:
    problem = answer.expect(status, code)
    assert answer.content_type == PROBLEM
    assert problem["status"] == status
    assert problem["type"]
    assert problem["title"]
    assert problem["detail"]
