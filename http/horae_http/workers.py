"""The calls of workers: claim, heartbeat, and the three endings, one by one and in bulk.

Not here: leases and fencing (the machine's). Next to read: `answer.py`, where a claim that nobody waits for any more is
given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from hashlib import blake2b
from itertools import compress
from typing import Final

from msgspec.structs import replace

from horae import wire
from horae_http import codec, errors
from horae_http.answer import Answer
from horae_http.codec import BodyReader, BulkReader, Turn
from horae_http.errors import Failure
from horae_http.jobs import answer_own, no_job, require_own_job, require_own_jobs
from horae_http.line import CLAIM_MARK
from horae_http.routing import PASSED_ON_BY, Call, Handler, Route
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused, Service
from horae_node.turns import let_others


async def claim_jobs(service: Service, call: Call) -> Answer:
    request: wire.ClaimRequest = call.body
    if call.holder.queues is not None:
        for position, queue in enumerate(request.queues):
            call.holder.require_queue(queue, f"/queues/{position}")
        request = replace(request, claim_id=_own_claim_id(request.claim_id, call.holder.queues))  # may be passed on yet
    delivery = await service.claim(request, call.headers.get(PASSED_ON_BY, ""))
    try:
        answer = await codec.answer_in_turns(delivery.answer, "jobs", call.packed_out)
    except asyncio.CancelledError:
        delivery.undeliverable()
        raise
    if delivery.answer.jobs:
        answer.delivery = delivery
        if request.claim_id is not None and PASSED_ON_BY in call.headers:
            answer.header_lines += f"{CLAIM_MARK}: {delivery.mark}\r\n".encode()
    return answer


def _own_claim_id(claim_id: str | None, queues: Collection[str]) -> str | None:
    """Of a token that is held to queues: those held to others do not share its claim ids, which would give them its
    jobs. No claim id holds a line break."""
    if claim_id is None:
        return None
    return f"{claim_id}\n{blake2b(' '.join(sorted(queues)).encode(), digest_size=16).hexdigest()}"


async def heartbeat(service: Service, call: Call) -> Answer:
    request: wire.HeartbeatRequest = call.body
    turn = Turn()
    for position, beat in enumerate(request.leases):
        if turn.is_over(beat.progress):
            await let_others()
        codec.settle(beat, "progress", call.packed_in, wire.PROGRESS_BYTES_MAX, f"/leases/{position}")
    leases = request.leases
    there = await require_own_jobs(service, call, [beat.job_id for beat in leases])
    request.leases = list(compress(leases, there))
    told = iter((await service.heartbeat(request)).leases)
    statuses = [
        next(told) if is_there else wire.LeaseStatus(beat.job_id, "lost", None, False)
        for beat, is_there in zip(leases, there, strict=True)
    ]
    return codec.answer(200, wire.HeartbeatAnswer(statuses), call.packed_out)


async def complete_job(service: Service, call: Call) -> Answer:
    await require_own_job(service, call, call.item)
    codec.settle(call.body, "result", call.packed_in, wire.RESULT_BYTES_MAX)
    return answer_own(call, await service.complete(call.item, call.body))


async def fail_job(service: Service, call: Call) -> Answer:
    await require_own_job(service, call, call.item)
    return answer_own(call, await service.fail(call.item, call.body))


async def list_workers(service: Service, call: Call) -> Answer:
    """A token that is held to queues is shown those who claim from them."""
    query: wire.WorkersQuery = call.query
    page = await service.workers(limit=query.limit, cursor=query.cursor, only=call.holder.queues)
    return await codec.answer_in_turns(page, "workers", call.packed_out)


async def release_job(service: Service, call: Call) -> Answer:
    await require_own_job(service, call, call.item)
    codec.settle(call.body, "progress", call.packed_in, wire.PROGRESS_BYTES_MAX)
    return answer_own(call, await service.release(call.item, call.body))


async def end_leases(service: Service, call: Call) -> Answer:
    """One result an item, in order: an item whose result is too large must not keep the others from being reported."""
    request: wire.EndingsRequest = call.body
    items = request.leases
    there = await require_own_jobs(service, call, [item.job_id for item in items])
    failures: list[Failure | Refused | None] = []
    turn = Turn()
    for item, is_there in zip(items, there, strict=True):
        if turn.is_over(item.result) or turn.is_over(item.progress):
            await let_others()
        failures.append(_settle_ending(item, call.packed_in) if is_there else no_job(item.job_id))
    request.leases = [item for item, failure in zip(items, failures, strict=True) if failure is None]
    claim_mark = call.headers.get(UNLESS_REPEATED) if PASSED_ON_BY in call.headers else None
    if claim_mark is not None and not service.claim_undelivered(claim_mark, request.leases):
        return codec.answer(200, wire.EndingsAnswer([]), call.packed_out)
    ended = iter(await service.end_many(request) if request.leases else ())
    results = [
        _ending_result(item, next(ended) if failure is None else failure)
        for item, failure in zip(items, failures, strict=True)
    ]
    return codec.answer(200, wire.EndingsAnswer(results), call.packed_out)


def _settle_ending(item: wire.EndingRequest, packed: bool) -> Failure | None:
    try:
        codec.settle(item, "result", packed, wire.RESULT_BYTES_MAX)
        codec.settle(item, "progress", packed, wire.PROGRESS_BYTES_MAX)
    except Failure as failure:
        return failure
    return None


def _ending_result(
    item: wire.EndingRequest, result: wire.StateName | Refused | NotApplied | OutcomeUnknown | Failure | None
) -> wire.EndingResult:
    if result is None or isinstance(result, str):
        return wire.EndingResult(job_id=item.job_id, status="ok", state=result)
    return wire.EndingResult(job_id=item.job_id, status="error", error=errors.problem_of(result))


UNLESS_REPEATED: Final = "Horae-Unless-Repeated"
"""From a node whose caller hung up: end these leases, of that call's answer, unless another call of the same claim may
have them, or get them yet. Of no meaning in a request that no node has passed on."""

CLAIMS: Final = BodyReader(wire.ClaimRequest)
_JOB: Final[dict[int, type | None]] = {200: wire.JobView}
_BEATS: Final = BulkReader(wire.HeartbeatRequest, "leases", wire.CLAIM_JOBS_MAX)
_ENDINGS: Final = BulkReader(wire.EndingsRequest, "leases", wire.CLAIM_JOBS_MAX)

END_LEASES: Final = Route(
    "POST",
    "/v1/leases/complete",
    "endLeases",
    "Complete, fail or release many jobs, each with its own result, in order.",
    end_leases,
    {200: wire.EndingsAnswer},
    "work",
    _ENDINGS.read,
    wire.EndingsRequest,
    body_bytes_max=wire.BULK_BODY_BYTES_MAX,
    read_in_turns=_ENDINGS.read_in_turns,
    shed_last=True,
)


def _ending(path: str, operation: str, summary: str, handler: Handler, request: type[wire.Request]) -> Route:
    """The end of one attempt, by the job's id and the lease token in the body."""
    read = BodyReader(request).read
    return Route("POST", path, operation, summary, handler, _JOB, "work", read, request, shed_last=True)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/claims",
        "claimJobs",
        "Claim ready jobs of some queues; waits for one, at most `wait_seconds`.",
        claim_jobs,
        {200: wire.ClaimAnswer},
        "work",
        CLAIMS.read,
        wire.ClaimRequest,
        waits=True,
        grants=True,
        repeats=lambda body: body.claim_id is not None,
    ),
    Route(
        "POST",
        "/v1/leases/heartbeat",
        "heartbeatLeases",
        "Renew leases, and learn which are lost or to be cancelled.",
        heartbeat,
        {200: wire.HeartbeatAnswer},
        "work",
        _BEATS.read,
        wire.HeartbeatRequest,
        body_bytes_max=wire.BULK_BODY_BYTES_MAX,
        read_in_turns=_BEATS.read_in_turns,
        shed_last=True,
    ),
    Route(
        "GET",
        "/v1/workers",
        "listWorkers",
        "List who claimed or sent a heartbeat in the last five minutes, by name: from which queues, with how many jobs "
        "in hand. A new leader has seen nobody yet.",
        list_workers,
        {200: wire.WorkerList},
        "read",
        query=wire.WorkersQuery,
    ),
    END_LEASES,
    _ending("/v1/jobs/{id}/complete", "completeJob", "End an attempt well.", complete_job, wire.CompleteRequest),
    _ending("/v1/jobs/{id}/fail", "failJob", "End an attempt with an error.", fail_job, wire.FailRequest),
    _ending(
        "/v1/jobs/{id}/release",
        "releaseJob",
        "Hand a job back, the attempt not counted.",
        release_job,
        wire.ReleaseRequest,
    ),
)
