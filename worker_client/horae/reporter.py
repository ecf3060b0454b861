"""Outcomes to the cluster, each until it is answered: one request at a time, all that gathered meanwhile in the next.

An outcome is keyed by its token, so it may be repeated; `lease_lost` is final. Next to read: `worker.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

import msgspec

from horae import backoff, errors, logs, wire
from horae.client import AsyncClient
from horae.jobs import Beat, Ending, Failure
from horae.leases import Lease, LeaseKeeper

ENDINGS_MAX = wire.CLAIM_JOBS_MAX
BYTES_MAX = wire.BULK_BODY_BYTES_MAX // 2
"""Results and progress of one request: big enough to batch, small enough to be sent within a try on a slow line."""
CALL_SECONDS = 10.0
"""One call's deadline; after it the batch is put together anew, with what came meanwhile."""
_REFUSED_SECONDS = 5.0
"""Between tries while the cluster refuses us altogether (a token that was withdrawn): somebody has to act."""
_PASSING = (errors.OutcomeUnknown, errors.NoLeader, errors.ShuttingDown, errors.RateLimited, errors.Unreachable)
_PASSING_CODES = frozenset({"outcome_unknown", "no_leader", "shutting_down", "rate_limited", "storage_full"})
_BODY_CODES = frozenset({"invalid", "too_large", "malformed"})
_REFUSALS = {"complete": "ResultRefused", "fail": "FailureRefused", "release": "ReleaseRefused"}
_BODY = (errors.Invalid, errors.TooLarge, errors.Malformed)


class Report(NamedTuple):
    lease: Lease
    ending: Ending


class Reporter:
    """Holds outcomes until they are answered. For the worker's loop only."""

    def __init__(self, client: AsyncClient, keeper: LeaseKeeper, worker: str) -> None:
        self._client = client
        self._keeper = keeper
        self._worker = worker
        self._waiting: deque[Report] = deque()
        self._sending: list[Report] = []
        self._news = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Outcomes without an answer yet."""
        return len(self._waiting) + len(self._sending)

    def put(self, lease: Lease, ending: Ending) -> None:
        """Report this; never waits."""
        self._waiting.append(Report(lease, ending))
        self._news.set()

    async def run(self) -> None:
        """Send for ever; cancel it to end it. Run again, it begins with what had no answer yet."""
        failures = 0
        self._waiting.extendleft(reversed(self._sending))
        self._sending = []
        if self._waiting:
            self._news.set()
        while True:
            await self._news.wait()
            batch = self._take()
            left = await self._send(batch)
            self._sending = []
            self._waiting.extendleft(reversed(left))
            if not self._waiting:
                self._news.clear()
            self._answered.set()
            failures = failures + 1 if left else 0
            if failures:
                await asyncio.sleep(backoff.delay_seconds(failures))

    async def wait_answered(self, backlog_max: int) -> None:
        """Until at most so many are without an answer."""
        while self.backlog > backlog_max:
            self._answered.clear()
            await self._answered.wait()

    def give_up(self) -> None:
        """Nobody answers in time: what was to be reported is told here, its leases run out."""
        logs.event(logging.WARNING, "outcomes_unreported", outcomes=self.backlog)
        for lease, ending in (*self._sending, *self._waiting):
            log_ending(lease, ending, "unknown")

    def _take(self) -> list[Report]:
        batch: list[Report] = []
        total = 0
        while self._waiting and len(batch) < ENDINGS_MAX:
            size = _bytes(self._waiting[0])
            if batch and total + size > BYTES_MAX:
                break
            batch.append(self._waiting.popleft())
            total += size
        self._sending = batch
        return batch

    async def _send(self, batch: list[Report]) -> list[Report]:
        """Report a batch; those that have no answer yet."""
        try:
            await self._flush_progress([report for report in batch if _must_flush(report)])
            endings = [_with_progress(report) for report in batch]
            results = await self._client.end_many(self._worker, endings, deadline_seconds=CALL_SECONDS)
        except _PASSING as error:
            logs.event(logging.WARNING, "report_delayed", outcomes=len(batch), error=error)
            return batch
        except _BODY as error:
            return await self._split(batch, error)
        except errors.RequestError as error:
            logs.event(logging.ERROR, "report_refused", outcomes=len(batch), error=error)
            await asyncio.sleep(_REFUSED_SECONDS)
            return batch
        left = [self._settle(report, done.error, done.state) for report, done in zip(batch, results, strict=True)]
        return [report for report in left if report is not None]

    async def _split(self, batch: list[Report], error: errors.RequestError) -> list[Report]:
        """One outcome that the cluster cannot take spoils the request for all: send them one by one."""
        if len(batch) == 1:
            left = self._settle(batch[0], error.problem)
            return [left] if left is not None else []
        left_over: list[Report] = []
        for report in batch:
            left_over += await self._send([report])
        return left_over

    def _settle(
        self, report: Report, problem: wire.Problem | None, state: wire.StateName | None = None
    ) -> Report | None:
        """The answer to one outcome: None when that was the last word, else what to report instead."""
        lease, ending = report
        if problem is not None and problem.code in _PASSING_CODES:
            return report
        if problem is not None and problem.code in _BODY_CODES and not _is_refusal(ending):
            return Report(lease, _refused(ending, problem))
        if problem is not None:
            logs.event(logging.WARNING, "outcome_refused", job_id=lease.job_id, token=lease.token, code=problem.code)
        log_ending(lease, ending, problem.code if problem is not None else state or "gone")
        self._keeper.drop(lease)
        return None

    async def _flush_progress(self, reports: list[Report]) -> None:
        """A failure carries no progress, and the next attempt wants the last one: a beat takes it there first."""
        if not reports:
            return
        beats = [Beat(lease.job_id, lease.token, lease.progress) for lease, _ in reports]
        try:
            await self._client.heartbeat(self._worker, beats, deadline_seconds=CALL_SECONDS)
        except _BODY as error:
            logs.event(logging.ERROR, "progress_refused", error=error, leases=len(beats))
        for lease, _ in reports:
            lease.progress = None


def log_ending(lease: Lease, ending: Ending, state: str) -> None:
    """What became of an attempt, once it is known: a failure for people to see, the rest for those who look closely.

    `state`: the job's now; `gone` where its record is; where the outcome does not count, or nobody knows, why.
    """
    error = ending.error
    if error is None:
        logs.event(
            logging.DEBUG, "attempt_ended", task=lease.task, job_id=lease.job_id, attempt=lease.attempt,
            outcome=ending.outcome, state=state,
        )  # fmt: skip
    elif state == "cancelled":
        logs.event(
            logging.INFO, "attempt_cancelled", task=lease.task, job_id=lease.job_id, attempt=lease.attempt,
            error=f"{error.type}: {error.message}",
        )  # fmt: skip
    else:
        logs.event_over(
            logging.WARNING, "attempt_failed", error.traceback, task=lease.task, job_id=lease.job_id,
            attempt=lease.attempt, of=lease.attempts_max, state=state, error=f"{error.type}: {error.message}",
        )  # fmt: skip


def _bytes(report: Report) -> int:
    values = (report.ending.result, report.lease.progress)
    total = 500 + sum(len(memoryview(value)) for value in values if value is not None)
    error = report.ending.error
    return total if error is None else total + len(error.message.encode()) + len((error.traceback or "").encode())


def _must_flush(report: Report) -> bool:
    return report.ending.outcome == "fail" and report.lease.progress is not None


def _with_progress(report: Report) -> Ending:
    lease, ending = report
    if ending.outcome != "release" or lease.progress is None:
        return ending
    taken: Ending = msgspec.structs.replace(ending, progress=lease.progress)
    return taken


def _refused(ending: Ending, problem: wire.Problem) -> Ending:
    """The cluster cannot take this outcome. A result would be the same one again; of a failure or a release no more is
    known than that the attempt did not succeed."""
    what = "result" if ending.outcome == "complete" else f"{ending.outcome} of the attempt"
    of = "" if ending.error is None else f" ({ending.error.type}: {ending.error.message})"
    message = f"the cluster refused the {what}{of} ({problem.code}): {problem.detail}"[: wire.ERROR_MESSAGE_CHARS_MAX]
    return Ending(
        job_id=ending.job_id,
        lease_token=ending.lease_token,
        outcome="fail",
        error=Failure(type=_REFUSALS[ending.outcome], message=message),
        retry=ending.retry and ending.outcome != "complete",
    )


def _is_refusal(ending: Ending) -> bool:
    return ending.error is not None and ending.error.type in _REFUSALS.values()
