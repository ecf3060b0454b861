"""The calls on jobs: submit (one, many), read, list, cancel, requeue, run now, delete.

A handler checks what no type can say, calls the service, and renders. Not here: what the machine decides, dispatch.
Next to read: `workers.py`, the other half of a job's life.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from msgspec import Raw

from horae import wire
from horae_http import codec, errors
from horae_http.answer import Answer
from horae_http.codec import BodyReader
from horae_http.errors import Failure
from horae_http.routing import Call, Route
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused, Service
from horae_node.turns import let_others

_SAFE_IN_PATH = "@:!$&'()*+,;=-._~"


async def submit_job(service: Service, call: Call) -> Answer:
    request: wire.SubmitRequest = call.body
    settle_payloads(call, request)
    await _require_own_parents(service, call, request)
    view, created = await service.submit(request)
    call.holder.require_queue(view.queue)
    if not created:
        return codec.answer(200, view, call.packed_out)
    location = b"Location: /v1/jobs/%s\r\n" % quote(view.id, safe=_SAFE_IN_PATH).encode()
    return codec.answer(201, view, call.packed_out, location)


async def _require_own_parents(
    service: Service, call: Call, job: wire.SubmitRequest, prefix: str = "", earlier: Collection[str] = ()
) -> None:
    """A token that is held to queues cannot ask after jobs of others, and not after those that are not known, or not
    any more: another's may come to be under that id meanwhile. `earlier`: what the same batch will have made.

    Of a job that surely is there already the parents do not count: to repeat its submit is no question. Raises:
    `Failure` (`forbidden`, `invalid`).
    """
    if not job.after or call.holder.queues is None or (job.id is not None and service.is_taken(job.id)):
        return
    for position, queue in enumerate(await service.queues_of(job.after)):
        job_id, pointer = job.after[position], f"{prefix}/after/{position}"
        if queue is not None:
            call.holder.require_queue(queue, pointer)
        elif job_id not in earlier or service.is_gone(job_id):
            raise errors.field_failure("invalid", pointer, f"names a job that does not exist: {job_id!r}")


def settle_payloads(call: Call, job: wire.SubmitRequest, prefix: str = "") -> None:
    """Of a job and of those that are to follow it, once their queues are the caller's. Raises: `Failure`."""
    call.holder.require_queue(job.queue, f"{prefix}/queue")
    codec.settle(job, "payload", call.packed_in, wire.PAYLOAD_BYTES_MAX, prefix)
    if job.then is not None:
        _settle_followers(call, job, prefix)


def _settle_followers(call: Call, job: wire.SubmitRequest, prefix: str = "") -> None:
    """The jobs that are to follow it: their queues, and their payloads, which are kept with it and may have together
    what one may. Raises: `Failure`."""
    left = wire.PAYLOAD_BYTES_MAX - len(job.payload)
    while (then := job.then) is not None:
        job, prefix = then, f"{prefix}/then"
        call.holder.require_queue(job.queue, f"{prefix}/queue")
        codec.settle(job, "payload", call.packed_in, wire.PAYLOAD_BYTES_MAX, prefix)
        left -= len(job.payload)
        if left < 0:
            detail = f"has with those before it more than {wire.PAYLOAD_BYTES_MAX} bytes: they are kept together"
            raise errors.field_failure("too_large", f"{prefix}/payload", detail)


class Batch(NamedTuple):
    """A batch as it was read: the jobs that have the right shape, and what is wrong with the others."""

    jobs: dict[int, wire.SubmitRequest]
    failures: dict[int, Failure]
    atomic: bool


class _LooseBatch(wire.Request):
    jobs: list[Raw]
    atomic: bool = False


_ManyJobs: Final = codec.loosened(wire.BatchRequest, "jobs", wire.BATCH_JOBS_MAX)


class BatchReader(BodyReader[wire.BatchRequest]):
    """Reads a batch whole; when that fails, job by job, so that one bad job does not take the others with it."""

    def __init__(self) -> None:
        super().__init__(wire.BatchRequest)
        self._loose = BodyReader(_LooseBatch)
        self._many: BodyReader[Any] = BodyReader(_ManyJobs, "/jobs")
        self._one = BodyReader(wire.SubmitRequest)

    def read_jobs(self, body: bytes, packed: bool) -> Batch:
        """Raises: `Failure` when the batch itself is wrong, or it is atomic and one job of it is."""
        try:
            whole = self.read(body, packed)
        except Failure as failure:
            if failure.code != "invalid":
                raise
            return self._read_each(body, packed, failure)
        return Batch(dict(enumerate(whole.jobs)), {}, whole.atomic)

    @staticmethod
    def _checked(batch: Batch) -> Batch:
        """What was read job by job, as a whole. Raises: `Failure`."""
        try:
            wire.require_few_parents(batch.jobs.values())
        except wire.Contradiction as wrong:
            raise errors.field_failure("invalid", f"/{wrong.field}", str(wrong)) from wrong
        return batch

    async def read_in_turns(self, body: bytes, packed: bool) -> Batch:
        """As `read_jobs`, job by job. A job that could not come alone is `too_large`."""
        many = self._many.read(body, packed)
        raws = codec.items_of(many.jobs)
        if not raws:
            return self.read_jobs(body, packed)
        await let_others()
        batch = Batch({}, {}, many.atomic)
        turn = codec.Turn()
        for position, raw in enumerate(raws):
            pointer = f"/jobs/{position}" if batch.atomic else ""
            try:
                codec.require_bytes(raw, wire.BODY_BYTES_MAX, pointer)
                batch.jobs[position] = self._one.read(raw, packed, pointer)
            except Failure as of_job:
                if batch.atomic:
                    raise
                batch.failures[position] = of_job
            if turn.is_over(raw):
                await let_others()
        return self._checked(batch)

    def _read_each(self, body: bytes, packed: bool, failure: Failure) -> Batch:
        loose = self._loose.read(body, packed)
        if loose.atomic or not 1 <= len(loose.jobs) <= wire.BATCH_JOBS_MAX:
            raise failure
        batch = Batch({}, {}, False)
        for position, raw in enumerate(loose.jobs):
            try:
                batch.jobs[position] = self._one.read(raw, packed)
            except Failure as of_job:
                batch.failures[position] = of_job
        return self._checked(batch)


async def submit_batch(service: Service, call: Call) -> Answer:
    batch: Batch = call.body
    turn = codec.Turn()
    earlier: set[str] = set()
    for position, job in list(batch.jobs.items()):
        prefix = f"/jobs/{position}" if batch.atomic else ""
        if turn.took(wire.payload_bytes(job)):
            await let_others()
        try:
            settle_payloads(call, job, prefix)
            await _require_own_parents(service, call, job, prefix, earlier)
            if job.id is not None:
                earlier.add(job.id)
        except Failure as failure:
            if batch.atomic:
                raise
            batch.failures[position] = failure
            del batch.jobs[position]
    items = {position: wire.BatchItem(error=errors.problem_of(why)) for position, why in batch.failures.items()}
    if batch.jobs:
        results = await service.submit_batch(list(batch.jobs.values()), atomic=batch.atomic)
        for result in results:
            if isinstance(result, tuple):
                call.holder.require_queue(result[0].queue)
        items.update(zip(batch.jobs, map(_batch_item, results), strict=True))
    ordered = [items[position] for position in sorted(items)]
    return await codec.answer_in_turns(wire.BatchAnswer(ordered), "results", call.packed_out)


def _batch_item(result: tuple[wire.JobView, bool] | Refused | NotApplied | OutcomeUnknown) -> wire.BatchItem:
    if isinstance(result, tuple):
        return wire.BatchItem(job=result[0])
    return wire.BatchItem(error=errors.problem_of(result))


async def list_jobs(service: Service, call: Call) -> Answer:
    query: wire.JobsQuery = call.query
    require_filtered(call, query.queue, "/queue")
    local = query.consistency == "local"
    page = await service.jobs(query)
    return await codec.answer_in_turns(page, "jobs", call.packed_out, age_lines(service) if local else b"")


def require_filtered(call: Call, queue: str | None, pointer: str) -> None:
    """A token that is held to queues names one. Raises: `Failure("forbidden")`."""
    if queue is not None:
        call.holder.require_queue(queue, pointer)
    elif call.holder.queues is not None:
        raise errors.field_failure("forbidden", pointer, "is required: the token is held to some queues")


async def read_job(service: Service, call: Call) -> Answer:
    query: wire.JobQuery = call.query
    local = query.consistency == "local"
    view = await service.job(call.item, wait_ms=round(query.wait_seconds * 1000), local=local)
    call.holder.require_queue(view.queue)
    return codec.answer(200, view, call.packed_out, age_lines(service) if local else b"")


def age_lines(service: Service) -> bytes:
    """How old a local reading is."""
    index, age_ms = service.applied()
    return b"Horae-Applied-Index: %d\r\nHorae-Staleness-Seconds: %.3f\r\n" % (index, age_ms / 1000)


async def require_own_job(service: Service, call: Call, job_id: str) -> None:
    """For a token that is held to queues: the job is there, and in one of them.

    One that is not there is missed here: were it left to the command, that could meet what another caller has made
    under that id meanwhile. Raises: `Failure("forbidden")`, `Refused("not_found")`.
    """
    await require_own_jobs(service, call, [job_id], missing=False)


async def require_own_jobs(service: Service, call: Call, job_ids: Sequence[str], *, missing: bool = True) -> list[bool]:
    """The same of many: whether each is there; any other token may ask for whatever it likes.

    Raises: `Failure("forbidden")`; without `missing` also `Refused("not_found")`.
    """
    if call.holder.queues is None:
        return [True] * len(job_ids)
    queues = await service.queues_of(job_ids)
    for job_id, queue in zip(job_ids, queues, strict=True):
        if queue is not None:
            call.holder.require_queue(queue)
        elif not missing:
            raise no_job(job_id)
    return [queue is not None for queue in queues]


def no_job(job_id: str) -> Refused:
    return Refused("not_found", f"there is no job {job_id!r}")


def answer_own(call: Call, view: wire.JobView) -> Answer:
    """The job after a change of it. Raises: `Failure("forbidden")` should it be another's after all."""
    call.holder.require_queue(view.queue)
    return codec.answer(200, view, call.packed_out)


async def cancel_job(service: Service, call: Call) -> Answer:
    return await _change(service, call, service.cancel)


async def requeue_job(service: Service, call: Call) -> Answer:
    return await _change(service, call, service.requeue)


async def run_job_now(service: Service, call: Call) -> Answer:
    return await _change(service, call, service.run_now)


async def _change(service: Service, call: Call, change: Callable[[str], Awaitable[wire.JobView]]) -> Answer:
    await require_own_job(service, call, call.item)
    return answer_own(call, await change(call.item))


async def cancel_jobs(service: Service, call: Call) -> Answer:
    return await _change_many(call, service.cancel_many)


async def requeue_jobs(service: Service, call: Call) -> Answer:
    return await _change_many(call, service.requeue_many)


async def _change_many(call: Call, change: Callable[[Any], Awaitable[wire.BulkAnswer]]) -> Answer:
    require_filtered(call, call.body.filter.queue, "/filter/queue")
    return codec.answer(200, await change(call.body), call.packed_out)


async def delete_job(service: Service, call: Call) -> Answer:
    await require_own_job(service, call, call.item)
    await service.delete(call.item)
    return Answer(204, b"", b"")


def _never(body: Any) -> bool:
    return False


_JOB: Final[dict[int, type | None]] = {200: wire.JobView}
_BATCHES: Final = BatchReader()


def _by_id(method: str, path: str, operation: str, summary: str, handler: Any, role: str) -> Route:
    """A change of one job by its id alone: a repeat may get another answer, so it is left to the caller."""
    return Route(method, path, operation, summary, handler, _JOB, role, repeats=_never)


def _by_filter(path: str, operation: str, verb: str, handler: Any, request: type[wire.BulkRequest]) -> Route:
    """The same of many."""
    summary = f"{verb} all jobs that match a filter, a page at a time."
    answers: dict[int, type | None] = {200: wire.BulkAnswer}
    read = BodyReader(request).read
    return Route("POST", path, operation, summary, handler, answers, "submit", read, request, repeats=_never)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/jobs",
        "submitJob",
        "Submit a job. 201 when it is new, 200 when the same id was submitted before with the same content.",
        submit_job,
        {201: wire.JobView, 200: wire.JobView},
        "submit",
        BodyReader(wire.SubmitRequest).read,
        wire.SubmitRequest,
        repeats=lambda body: body.id is not None,
    ),
    Route(
        "POST",
        "/v1/jobs/batch",
        "submitJobs",
        "Submit many jobs, each with its own result, in order; with `atomic` all or none.",
        submit_batch,
        {200: wire.BatchAnswer},
        "submit",
        _BATCHES.read_jobs,
        wire.BatchRequest,
        body_bytes_max=wire.BULK_BODY_BYTES_MAX,
        read_in_turns=_BATCHES.read_in_turns,
        repeats=lambda body: all(job.id is not None for job in body.jobs.values()),
    ),
    Route(
        "GET",
        "/v1/jobs",
        "listJobs",
        "List jobs, newest first. A page may end before its limit: `next_cursor` goes on.",
        list_jobs,
        {200: wire.JobList},
        "read",
        query=wire.JobsQuery,
    ),
    Route(
        "GET",
        "/v1/jobs/{id}",
        "readJob",
        "Read a job; with `wait_seconds`, as soon as it is finished or at the end of the wait.",
        read_job,
        _JOB,
        "read",
        query=wire.JobQuery,
    ),
    _by_id(
        "POST",
        "/v1/jobs/{id}/cancel",
        "cancelJob",
        "Cancel a job that waits, or ask the worker of a running one to stop.",
        cancel_job,
        "submit",
    ),
    _by_id(
        "POST",
        "/v1/jobs/{id}/requeue",
        "requeueJob",
        "Make a dead, cancelled or expired job ready anew.",
        requeue_job,
        "submit",
    ),
    _by_filter("/v1/jobs/cancel", "cancelJobs", "Cancel", cancel_jobs, wire.CancelManyRequest),
    _by_filter("/v1/jobs/requeue", "requeueJobs", "Make ready anew", requeue_jobs, wire.RequeueManyRequest),
    _by_id("POST", "/v1/jobs/{id}/run_now", "runJobNow", "Make a pending job ready.", run_job_now, "submit"),
    Route(
        "DELETE",
        "/v1/jobs/{id}",
        "deleteJob",
        "Delete a finished job's record.",
        delete_job,
        {204: None},
        "submit",
        repeats=_never,
    ),
)
