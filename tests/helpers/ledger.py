"""What callers and workers saw of a cluster under faults, and whether it may be so.

The callers only write down (`Ledger`); judging (`check_ledger`) is a function of what was written, when all is over.
Real-time order comes from the monotonic clock, common to all processes of a machine.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.helpers.api import Api

CALL_SECONDS = 90.0
"""How long a careful caller goes on: longer than any fault of a test."""

CLAIM_WAIT_SECONDS = 2.0


class Grant(NamedTuple):
    """One lease that one claim was given: asked at, answered at (monotonic ns), for which job, with which token."""

    asked_ns: int
    answered_ns: int
    job_id: str
    token: int
    attempt: int
    claim_id: str
    wall_ms: int = 0
    """The wall clock when it was answered."""


class Report(NamedTuple):
    """A `complete` that was answered."""

    asked_ns: int
    answered_ns: int
    job_id: str
    token: int
    status: int


@dataclass
class Ledger:
    """Everything that was answered, in no order but the clock's."""

    acked: list[str] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    wakers: list[tuple[int, asyncio.Event]] = field(default_factory=list)

    def note_report(self, report: Report) -> None:
        self.reports.append(report)
        while self.wakers and len(self.reports) >= self.wakers[0][0]:
            self.wakers.pop(0)[1].set()

    async def wait_reports(self, count: int) -> None:
        """Until so many completes were answered."""
        if len(self.reports) < count:
            reached = asyncio.Event()
            self.wakers.append((count, reached))
            self.wakers.sort(key=lambda waker: waker[0])
            await asyncio.wait_for(reached.wait(), CALL_SECONDS)


def check_ledger(ledger: Ledger) -> list[str]:
    """What may not be: two accepted endings of a job, or none; a token that did not rise, or was not fenced."""
    found = [
        f"{report.job_id}: complete was answered {report.status}"
        for report in ledger.reports
        if report.status not in (200, 409)
    ]
    grants: dict[str, list[Grant]] = defaultdict(list)
    for grant in ledger.grants:
        grants[grant.job_id].append(grant)
    accepted: dict[str, list[Report]] = defaultdict(list)
    for report in ledger.reports:
        if report.status == 200:
            accepted[report.job_id].append(report)
    for job_id in ledger.acked:
        tokens = {report.token for report in accepted[job_id]}
        if len(tokens) != 1:
            found.append(f"{job_id}: endings accepted with the tokens {sorted(tokens)}")
    for job_id, given in grants.items():
        found += check_tokens(given)
        found += [finding for report in accepted[job_id] for finding in check_fence(report, given)]
    return found


def check_fence(report: Report, grants: Sequence[Grant]) -> list[str]:
    """Of one accepted ending: no newer lease was known before it was asked for, and none was asked for after it."""
    return [
        f"{report.job_id}: the ending with token {report.token} was accepted, though {grant.token} was granted"
        for grant in grants
        if (grant.token > report.token and grant.answered_ns < report.asked_ns) or grant.asked_ns > report.answered_ns
    ]


def check_tokens(grants: Sequence[Grant]) -> list[str]:
    """Of one job: a claim that was asked after another was answered has the higher token; no two claims share one."""
    found = []
    for one, other in itertools.combinations(sorted(grants), 2):
        if one.claim_id == other.claim_id:
            continue
        if one.token == other.token or (one.answered_ns < other.asked_ns and one.token >= other.token):
            found.append(f"{one.job_id}: token {other.token} was granted after {one.token}")
    return found


async def submit_jobs(api: Api, ledger: Ledger, ids: Sequence[str], template: dict[str, Any]) -> None:
    """One client: a job a request, each repeated until it is acknowledged."""
    for job_id in ids:
        answer = await api.call_until_answered(
            "POST", "/v1/jobs", template | {"id": job_id}, deadline_seconds=CALL_SECONDS
        )
        assert answer.status in (200, 201), (job_id, answer)
        ledger.acked.append(job_id)


async def work(api: Api, ledger: Ledger, name: str, queue: str, *, max_jobs: int = 5) -> None:
    """One worker, until it is cancelled: claims, and completes what it got, one call a job."""
    while True:
        for grant in await claim(api, ledger, name, queue, max_jobs=max_jobs):
            await complete(api, ledger, grant)


async def claim(api: Api, ledger: Ledger, worker: str, queue: str, *, max_jobs: int = 1) -> list[Grant]:
    """A claim repeated with its id until it is answered; what it gave, also written down."""
    asked_ns = time.monotonic_ns()
    claim_id = str(uuid.uuid4())
    body = {
        "worker": worker,
        "queues": [queue],
        "max_jobs": max_jobs,
        "wait_seconds": CLAIM_WAIT_SECONDS,
        "claim_id": claim_id,
    }
    answer = await api.call_until_answered(
        "POST", "/v1/claims", body, deadline_seconds=CALL_SECONDS, wait_seconds=CLAIM_WAIT_SECONDS
    )
    answered_ns, wall_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
    grants = [
        Grant(asked_ns, answered_ns, job["id"], job["lease_token"], job["attempt"], claim_id, wall_ms)
        for job in answer.expect(200)["jobs"]
    ]
    ledger.grants += grants
    return grants


async def complete(api: Api, ledger: Ledger, grant: Grant) -> int:
    """Report until answered; the status, also written down."""
    asked_ns = time.monotonic_ns()
    body = {"lease_token": grant.token, "result": {"token": grant.token}}
    answer = await api.call_until_answered(
        "POST", f"/v1/jobs/{grant.job_id}/complete", body, deadline_seconds=CALL_SECONDS
    )
    ledger.note_report(Report(asked_ns, time.monotonic_ns(), grant.job_id, grant.token, answer.status))
    return answer.status
