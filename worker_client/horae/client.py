"""The client: every call of the contract for jobs, each safe to repeat and repeated by itself until its deadline.

Not here: connections and fail-over (`transport.py`), the blocking form (`blocking.py`), running jobs (`worker.py`).
Next to read: `jobs.py` for the shapes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Self, Unpack

import msgspec
from msgspec import Raw

from horae import clock, codec, errors, wire
from horae.calls import filled, moment, part, query, require_known, wanted_jobs
from horae.checks import require_no_nan
from horae.events import EventCalls
from horae.ids import new_id
from horae.jobs import (
    Beat,
    Claim,
    Ended,
    Ending,
    Failure,
    Job,
    JobFilter,
    JobOptions,
    JobPage,
    JobsWanted,
    NewJob,
    QueueSettings,
    Renewal,
)
from horae.schedule_calls import ScheduleCalls
from horae.transport import Again, Answer, Refusal, Stream, Transport
from horae.trouble import Trouble

DEFAULT_URL = "http://127.0.0.1:7070"
DEADLINE_SECONDS = 30.0
"""Long enough to outlast any fail-over many times, short enough that a person still waits for it."""
_POLL_SECONDS = 20.0
"""One long poll: proxies on the way commonly cut silence at 30 s or 60 s."""
_MEMBER_SECONDS = 30.0
"""How long the cluster holds its answer back until a new node has caught up."""
_BATCH_BYTES_MAX = wire.BULK_BODY_BYTES_MAX // 2
"""Batches are cut well below the limit of a body: what they hold is measured, what surrounds it is not."""
_AGAIN = frozenset({"rate_limited", "no_leader", "outcome_unknown", "shutting_down"})
"""Item errors of a batch that a repeat with the same ids may mend."""
_AGAIN_SECONDS = 0.2
"""A leader that sheds single items of a batch is given this long before they are sent again."""


class _Jobs(msgspec.Struct):
    jobs: list[NewJob]


class _Claims(msgspec.Struct):
    jobs: list[Claim]


class _BatchItem(msgspec.Struct):
    job: Job | None = None
    error: wire.Problem | None = None


class _BatchAnswer(msgspec.Struct):
    results: list[_BatchItem]


class _Renewals(msgspec.Struct):
    leases: list[Renewal]


class _EndedList(msgspec.Struct):
    leases: list[Ended]


class Submitted(NamedTuple):
    """What `submit_job` found. `created` False: a job of this id, or of this unique key, was already there."""

    job: Job
    created: bool


class AsyncClient(ScheduleCalls, EventCalls):
    """A client of one cluster, for one event loop. Use as `async with`, or `close()` it.

    `urls`: base URLs of any of its nodes (one, several, or text with commas). `deadline_seconds`: how long a call may
    take in all, over every retry, unless the call says otherwise. `trouble` is told of calls that are tried again and
    again. All methods raise `errors.RequestError` by code; at the deadline `Unreachable`, `NoLeader`, `RateLimited` or
    `ShuttingDown` when surely nothing was done, else `OutcomeUnknown`.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        self._transport = Transport(url_list(urls), token=token, connections=connections, tls=tls, trouble=trouble)
        self._deadline_seconds = deadline_seconds

    async def close(self) -> None:
        """Drop the connections. A call after it opens new ones."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # ------------------------------------------------------------ submitting

    async def submit(
        self,
        task: str,
        payload: Any = None,
        *,
        deadline_seconds: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit one job; it is durable when this returns. Without an `id` one is made, once for all retries.

        `payload`: any JSON value. Raises: `Conflict` when the `id` belongs to a job with another content; TypeError
        when the payload has no JSON form.
        """
        _require_options(options)
        job = NewJob(task=task, payload=payload, **options)  # type: ignore[typeddict-item, unused-ignore]
        return (await self.submit_job(job, deadline_seconds=deadline_seconds)).job

    async def submit_job(self, job: NewJob, *, deadline_seconds: float | None = None) -> Submitted:
        """As `submit`, and tells whether the job is new."""
        ready = filled(job)
        try:
            answer = await self._call("POST", "/v1/jobs", codec.encode(ready), deadline_seconds)
        except errors.OutcomeUnknown as error:
            raise errors.unknown_submit(error, str(ready.id)) from None
        return Submitted(answer.decode(Job), answer.status == 201 or answer.repeated)

    async def submit_many(self, jobs: Iterable[NewJob], *, deadline_seconds: float | None = None) -> list[Job]:
        """Submit many, at most 1000 a request, each with its own outcome; the jobs in the order given.

        Of jobs that were there already, those past 4 MiB of a request's answer come without payload, result, progress,
        errors, tags and links. The deadline is that of each request. Raises: `PartlyRefused` at the end when some were
        refused (the others are submitted).
        """
        results: list[Job | errors.RequestError] = []
        pending = iter(jobs)
        while chunk := [filled(job) for job in islice(pending, wire.BATCH_JOBS_MAX)]:
            for run in _parts(chunk):
                results += await self._submit_batch(run, deadline_seconds)
        done = [result for result in results if isinstance(result, Job)]
        if len(done) != len(results):
            raise errors.PartlyRefused(results)
        return done

    async def _submit_batch(
        self, jobs: list[NewJob], deadline_seconds: float | None
    ) -> list[Job | errors.RequestError]:
        """One result a job. Items that met a passing trouble are sent again, with their ids, until the deadline."""
        until = self._until(deadline_seconds)
        results: list[Job | errors.RequestError | None] = [None] * len(jobs)
        places = list(range(len(jobs)))
        while True:
            body = codec.encode(_Jobs([jobs[place] for place in places]))
            answer = await self._call("POST", "/v1/jobs/batch", body, until=until)
            for place, item in zip(places, answer.decode(_BatchAnswer).results, strict=True):
                results[place] = item.job if item.job is not None else errors.error_of(_required(item.error))
            places = [place for place in places if getattr(results[place], "code", "") in _AGAIN]
            if not places or clock.monotonic() + _AGAIN_SECONDS >= until:
                return [result for result in results if result is not None]
            await asyncio.sleep(_AGAIN_SECONDS)

    # ------------------------------------------------------------ reading

    async def job(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        """Read one job. Raises: `NotFound`."""
        return (await self._call("GET", _job_path(job_id), None, deadline_seconds)).decode(Job)

    async def jobs_page(
        self,
        *,
        limit: int = 50,
        cursor: str | None = None,
        deadline_seconds: float | None = None,
        **wanted: Unpack[JobsWanted],
    ) -> JobPage:
        """One page of jobs, newest first; hand its `next_cursor` back for the next."""
        require_known("jobs", wanted, JobsWanted.__optional_keys__)
        moments = {key: moment(wanted.get(key)) for key in ("created_from", "created_before")}
        named: dict[str, Any] = {**wanted, **moments, "cursor": cursor, "limit": str(limit)}
        return (await self._call("GET", f"/v1/jobs?{query(named)}", None, deadline_seconds)).decode(JobPage)

    async def jobs(self, *, page: int = 200, **wanted: Unpack[JobsWanted]) -> AsyncIterator[Job]:
        """All jobs that match, newest first, read a page at a time."""
        cursor: str | None = None
        while True:
            got = await self.jobs_page(limit=page, cursor=cursor, **wanted)
            for job in got.jobs:
                yield job
            cursor = got.next_cursor
            if cursor is None:
                return

    async def wait(self, job_id: str, *, wait_seconds: float | None = None) -> Job:
        """The job as soon as it is finished. `wait_seconds` None: however long it takes (each poll has the deadline).

        Raises: `NotFound`, `NotFinished` at the end of the wait.
        """
        until = None if wait_seconds is None else clock.monotonic() + require_no_nan("wait_seconds", wait_seconds)
        while True:
            poll = _POLL_SECONDS if until is None else min(_POLL_SECONDS, max(0.0, until - clock.monotonic()))
            path = f"{_job_path(job_id)}?wait_seconds={poll:.3f}"
            job = (await self._call("GET", path, None, wait_seconds=poll)).decode(Job)
            if job.finished:
                return job
            if until is not None and clock.monotonic() >= until:
                raise errors.NotFinished(job)

    async def result(self, job_id: str, *, wait_seconds: float | None = None) -> Any:
        """What the job's handler returned, once it has. Raises: as `wait`, and `JobFailed` when it did not succeed."""
        job = await self.wait(job_id, wait_seconds=wait_seconds)
        if job.state != "succeeded":
            raise errors.JobFailed(job)
        return job.result

    async def cluster(self, *, local: bool = False, deadline_seconds: float | None = None) -> wire.ClusterView:
        """The members and how far each is; `local`: as the asked node itself sees them."""
        path = "/v1/cluster?consistency=local" if local else "/v1/cluster"
        return (await self._call("GET", path, None, deadline_seconds)).decode(wire.ClusterView)

    async def add_member(
        self, node: str, *, raft_address: str, http_url: str, deadline_seconds: float | None = None
    ) -> wire.MemberStanding:
        """Take a node in: `voter` once it counts, `learner` while it still catches up (it counts by itself then), or,
        with `connected` False, while nothing answers at its address: start it with `join`.

        The answer waits for that for half of the deadline. The same again is a repeat. Raises: `Conflict`, with the
        reason.
        """
        body = codec.encode({"node": node, "raft_address": raft_address, "http_url": http_url})
        until = self._until(deadline_seconds)
        wait_seconds = round(max(0.0, min((until - clock.monotonic()) / 2, _MEMBER_SECONDS)), 1)
        path = f"/v1/cluster/members?wait_seconds={wait_seconds:g}"
        answer = await self._call("POST", path, body, until=until, wait_seconds=wait_seconds)
        return answer.decode(wire.MemberStanding)

    async def remove_member(self, node: str, *, deadline_seconds: float | None = None) -> wire.MemberStanding:
        """Remove a node for good. A second call is a repeat. Raises: `NotFound`, `Conflict`, with the reason."""
        answer = await self._call("DELETE", _member_path(node), None, deadline_seconds)
        return answer.decode(wire.MemberStanding)

    async def move_member(
        self, node: str, *, raft_address: str, http_url: str, deadline_seconds: float | None = None
    ) -> wire.MemberStanding:
        """The same node is reached elsewhere. Raises: `NotFound`, `Conflict`, with the reason."""
        body = codec.encode({"raft_address": raft_address, "http_url": http_url})
        answer = await self._call("PATCH", _member_path(node), body, deadline_seconds)
        return answer.decode(wire.MemberStanding)

    async def hand_over(self, node: str, *, deadline_seconds: float | None = None) -> wire.LeaderView:
        """Make this node the leader. Raises: `NotFound`, `Conflict` when it did not take over."""
        body = codec.encode({"node": node})
        return (await self._call("POST", "/v1/cluster/leader", body, deadline_seconds)).decode(wire.LeaderView)

    # ------------------------------------------------------------ changing

    async def cancel(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        """Cancel: at once if it is not running, else its worker is asked to. Raises: `Conflict` when finished."""
        return await self._change(job_id, "cancel", frozenset({"cancelled"}), deadline_seconds)

    async def requeue(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        """Run a `dead`, `cancelled` or `expired` job anew. Raises: `Conflict` in any other state."""
        return await self._change(job_id, "requeue", frozenset({"pending", "ready", "running"}), deadline_seconds)

    async def cancel_many(
        self, *, every: bool = False, deadline_seconds: float | None = None, **which: Unpack[JobFilter]
    ) -> int:
        """Cancel all jobs that match: how many. Without `state` those pending, ready and running; `tag` is
        `"key:value"`. One that changes meanwhile may be missed.

        `every`: all jobs of the cluster; without it at least one filter is required that is not None.
        Each page has the deadline. Raises: TypeError, with nothing done; `OutcomeUnknown`: some may be cancelled; the
        same call again takes the rest.
        """
        return await self._change_many("cancel", which, every, deadline_seconds)

    async def requeue_many(
        self, *, every: bool = False, deadline_seconds: float | None = None, **which: Unpack[JobFilter]
    ) -> int:
        """Run all jobs that match anew: how many. Without `state` the `dead` ones. Else as `cancel_many`."""
        return await self._change_many("requeue", which, every, deadline_seconds)

    async def _change_many(self, verb: str, which: JobFilter, every: bool, deadline_seconds: float | None) -> int:
        wanted = wanted_jobs(f"{verb}_many", which, every)
        count, cursor = 0, None
        while True:
            body = codec.encode({"filter": wanted, "cursor": cursor})
            page = (await self._call("POST", f"/v1/jobs/{verb}", body, deadline_seconds)).decode(wire.BulkAnswer)
            count, cursor = count + page.count, page.next_cursor
            if cursor is None:
                return count

    async def queues(self, *, page: int = 200) -> AsyncIterator[wire.QueueView]:
        """All queues that hold jobs or have settings, by name, read a page at a time."""
        async for got in self._pages("/v1/queues", {}, wire.QueueList, page):
            for queue in got.queues:
                yield queue

    async def workers(self, *, page: int = 200) -> AsyncIterator[wire.WorkerView]:
        """Who claimed or sent a heartbeat in the last five minutes, by name, read a page at a time."""
        async for got in self._pages("/v1/workers", {}, wire.WorkerList, page):
            for worker in got.workers:
                yield worker

    async def queue(self, name: str, *, deadline_seconds: float | None = None) -> wire.QueueView:
        """One queue: its depths and settings."""
        return (await self._call("GET", _queue_path(name), None, deadline_seconds)).decode(wire.QueueView)

    async def set_queue(
        self, name: str, *, deadline_seconds: float | None = None, **settings: Unpack[QueueSettings]
    ) -> wire.QueueView:
        """Change settings of a queue, which hold at once; the queue as it is then. None is the default.

        Raises: `Invalid` for a value that cannot be, `Conflict` while members run an older version.
        """
        body = codec.encode(settings)
        return (await self._call("PATCH", _queue_path(name), body, deadline_seconds)).decode(wire.QueueView)

    async def run_now(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        """Make a pending job ready. Raises: `Conflict` in any other state."""
        return await self._change(job_id, "run_now", frozenset({"ready", "running"}), deadline_seconds)

    async def delete(self, job_id: str, *, deadline_seconds: float | None = None) -> None:
        """Forget a finished job. Raises: `Conflict` when it is not finished, `NotFound`.

        It is read first: a `not_found` of the delete itself may be that of our own success, repeated (aiohttp sends a
        DELETE again by itself when a kept connection breaks, and does not tell).
        """
        until = self._until(deadline_seconds)
        await self._call("GET", _job_path(job_id), until=until)
        try:
            await self._call("DELETE", _job_path(job_id), until=until)
        except errors.NotFound:
            return

    async def _change(self, job_id: str, verb: str, wanted: frozenset[str], deadline_seconds: float | None) -> Job:
        """These calls carry no key: a conflict after a lost answer may be that of our own success, so look."""
        until = self._until(deadline_seconds)
        try:
            answer = await self._refusable("POST", f"{_job_path(job_id)}/{verb}", None, until)
            return answer.decode(Job)
        except Refusal as refusal:
            if refusal.repeated and isinstance(refusal.error, errors.Conflict):
                job = (await self._call("GET", _job_path(job_id), until=until)).decode(Job)
                if job.state in wanted:
                    return job
            raise refusal.error from None

    # ------------------------------------------------------------ working

    async def claim(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        max_jobs: int = 1,
        wait_seconds: float = 0,
        lease_seconds: float | None = None,
        claim_id: str | None = None,
        deadline_seconds: float | None = None,
        again_wait_seconds: float | None = None,
    ) -> list[Claim]:
        """Take up to `max_jobs`; empty at the end of the wait. Without a `claim_id` one is made, once for all retries.

        The deadline counts on top of the wait. `again_wait_seconds`: the wait of the tries after one that failed: a
        short one tells soon that the cluster is there again.
        """
        request = wire.ClaimRequest(
            worker=worker,
            queues=list(queues),
            max_jobs=max_jobs,
            wait_seconds=wait_seconds,
            lease_seconds=lease_seconds,
            claim_id=claim_id or new_id(),
        )
        body, again = codec.encode(request), None
        if again_wait_seconds is not None and again_wait_seconds < wait_seconds:
            request.wait_seconds = again_wait_seconds
            again = Again(codec.encode(request), again_wait_seconds)
        answer = await self._call("POST", "/v1/claims", body, deadline_seconds, wait_seconds=wait_seconds, again=again)
        return answer.decode(_Claims).jobs

    async def heartbeat(
        self,
        worker: str,
        leases: Sequence[Beat],
        *,
        deadline_seconds: float | None = None,
        try_seconds: float | None = None,
    ) -> list[Renewal]:
        """Renew leases: one result each, in order. `try_seconds`: how long one node may be silent."""
        body = codec.encode({"worker": worker, "leases": leases})
        until = self._until(deadline_seconds)
        answer = await self._call("POST", "/v1/leases/heartbeat", body, until=until, try_seconds=try_seconds)
        return answer.decode(_Renewals).leases

    async def complete(
        self, job_id: str, lease_token: int, result: Any = None, *, deadline_seconds: float | None = None
    ) -> Job:
        """The attempt succeeded. A repeat of an accepted call is accepted again. Raises: `LeaseLost`, `TooLarge`."""
        raw = codec.encode_value(result, bytes_max=wire.RESULT_BYTES_MAX, what="result")
        return await self._end(job_id, "complete", {"lease_token": lease_token, "result": raw}, deadline_seconds)

    async def fail(
        self,
        job_id: str,
        lease_token: int,
        error: Failure,
        *,
        retry: bool = True,
        retry_in_seconds: float | None = None,
        deadline_seconds: float | None = None,
    ) -> Job:
        """The attempt failed; `retry` False: for good. Raises: `LeaseLost`."""
        body = {"lease_token": lease_token, "error": error, "retry": retry, "retry_in_seconds": retry_in_seconds}
        return await self._end(job_id, "fail", body, deadline_seconds)

    async def release(
        self,
        job_id: str,
        lease_token: int,
        *,
        delay_seconds: float = 0,
        progress: Raw | None = None,
        deadline_seconds: float | None = None,
    ) -> Job:
        """Hand the job back, not counted. `progress`: MessagePack, for the next attempt. Raises: `LeaseLost`."""
        body: dict[str, Any] = {"lease_token": lease_token, "delay_seconds": delay_seconds}
        if progress is not None:
            body["progress"] = progress
        return await self._end(job_id, "release", body, deadline_seconds)

    async def _end(self, job_id: str, verb: str, body: dict[str, Any], deadline_seconds: float | None) -> Job:
        answer = await self._call("POST", f"{_job_path(job_id)}/{verb}", codec.encode(body), deadline_seconds)
        return answer.decode(Job)

    async def end_many(
        self, worker: str, endings: Sequence[Ending], *, deadline_seconds: float | None = None
    ) -> list[Ended]:
        """Report the outcomes of many attempts (at most 1000) in one request: one result each, in order."""
        body = codec.encode({"worker": worker, "leases": endings})
        return (await self._call("POST", "/v1/leases/complete", body, deadline_seconds)).decode(_EndedList).leases

    # ------------------------------------------------------------ one call

    def _until(self, deadline_seconds: float | None) -> float:
        seconds = self._deadline_seconds if deadline_seconds is None else deadline_seconds
        return clock.monotonic() + require_no_nan("deadline_seconds", seconds)

    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        deadline_seconds: float | None = None,
        *,
        until: float | None = None,
        wait_seconds: float = 0.0,
        try_seconds: float | None = None,
        again: Again | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        if until is None:
            until = self._until(deadline_seconds) + wait_seconds
        try:
            return await self._refusable(method, path, body, until, wait_seconds, try_seconds, again, headers)
        except Refusal as refusal:
            raise refusal.error from None

    async def _open(self, path: str) -> Stream:
        """A read whose body does not end. Raises: as any read."""
        try:
            answer = await self._transport.call("GET", path, deadline=self._until(None), stream=True)
        except Refusal as refusal:
            raise refusal.error from None
        assert answer.stream is not None
        return answer.stream

    async def _refusable(
        self,
        method: str,
        path: str,
        body: bytes | None,
        until: float,
        wait_seconds: float = 0.0,
        try_seconds: float | None = None,
        again: Again | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        if try_seconds is None:
            return await self._transport.call(
                method, path, body, deadline=until, wait_seconds=wait_seconds, again=again, headers=headers
            )
        return await self._transport.call(method, path, body, deadline=until, try_seconds=try_seconds)


def disown(client: AsyncClient) -> None:
    """Whoever calls this will close it: one that is forgotten warns otherwise, as a file does."""
    client._transport.disown()


def url_list(urls: str | Sequence[str]) -> list[str]:
    """Base URLs from a list, or from text with commas or spaces between them. Raises: TypeError for anything else."""
    if isinstance(urls, str):
        return urls.replace(",", " ").split()
    if isinstance(urls, bytes) or not isinstance(urls, Iterable):
        raise TypeError(f"urls is a base URL such as {DEFAULT_URL}, or a list of them, not {urls!r}")
    return list(urls)


def _queue_path(name: str) -> str:
    return f"/v1/queues/{part(name, '/id')}"


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{part(job_id, '/id')}"


def _member_path(node: str) -> str:
    return f"/v1/cluster/members/{part(node, '/id')}"


def _require_options(options: JobOptions) -> None:
    require_known("submit", options, JobOptions.__optional_keys__)


def _parts(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """The jobs in runs whose payloads fit one body."""
    part: list[NewJob] = []
    total = 0
    for job in jobs:
        size = _payload_bytes(job)
        if part and total + size > _BATCH_BYTES_MAX:
            yield part
            part, total = [], 0
        part.append(job)
        total += size
    yield part


def _payload_bytes(job: NewJob) -> int:
    """With the payloads of those that follow it."""
    return len(memoryview(job.payload)) + (0 if job.then is None else _payload_bytes(job.then))


def _required(problem: wire.Problem | None) -> wire.Problem:
    assert problem is not None, "a batch item has a job or an error"
    return problem
