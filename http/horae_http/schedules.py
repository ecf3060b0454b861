"""The calls on schedules. Not here: what their triggers come to, the jobs that they make (`jobs.py`)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from horae import wire
from horae_http import codec
from horae_http.answer import Answer
from horae_http.codec import BodyReader
from horae_http.errors import field_failure
from horae_http.jobs import age_lines, settle_payloads
from horae_http.routing import Call, Route
from horae_node.core.decide.schedules import ANY_VERSION
from horae_node.errors import NotApplied
from horae_node.service import Refused, Service

_IF_MATCH: Final = "If-Match"
_IF_NONE_MATCH: Final = "If-None-Match"
NO_VERSION: Final = -2
"""No schedule has it."""
PUT_TRIES: Final = 5
_VERSION: Final = re.compile(r'(?:W/)?"?([0-9]{1,18})"?').fullmatch
"""As a tag; also as a proxy weakens it, and without its quotes."""


async def put_schedule(service: Service, call: Call) -> Answer:
    request: wire.ScheduleRequest = call.body
    schedule_id = _new_id(call.item)
    _require_own(service, call)
    settle_payloads(call, request.job, "/job")
    if_version = _if_version(service, call)
    put = service.schedules.put if call.holder.queues is None else partial(_put_own, service, call)
    view, created = await put(schedule_id, request, if_version)
    return _answer(call, view, 201 if created else 200)


async def _put_own(
    service: Service, call: Call, schedule_id: str, request: wire.ScheduleRequest, if_version: int | None
) -> tuple[wire.ScheduleView, bool]:
    """For a token that is held to queues: it replaces the very version that was seen to be its own, or makes one where
    there is none. What others make or change meanwhile is looked at anew. Raises: `Failure("forbidden")`."""
    for _ in range(PUT_TRIES):
        _require_own(service, call)
        current = service.schedules.version_of(schedule_id)
        guard = _guard(if_version, current)
        try:
            return await service.schedules.put(schedule_id, request, guard)
        except Refused as error:
            if error.code != "version" or guard in (if_version, NO_VERSION):
                raise
    raise NotApplied("rate_limited", "the schedule is being changed by others: try again in 1 s", retry_after_ms=1000)


def _guard(if_version: int | None, current: int | None) -> int:
    """The version that a replace is for, where the caller wants `if_version` and this one was looked at."""
    if if_version is None:
        return current or 0
    if if_version == ANY_VERSION:
        return current or NO_VERSION
    return if_version if if_version in (0, current) else NO_VERSION


def _answer(call: Call, view: wire.ScheduleView, status: int = 200) -> Answer:
    """The schedule after a change of it. Raises: `Failure("forbidden")` should it be another's by now."""
    call.holder.require_queue(view.job.queue)
    return codec.answer(status, view, call.packed_out, _tag(view))


def _new_id(item: str) -> str:
    if len(item.encode()) > wire.SCHEDULE_ID_BYTES_MAX:
        raise field_failure("invalid", "/id", f"must take at most {wire.SCHEDULE_ID_BYTES_MAX} bytes as UTF-8")
    return item


def _if_version(service: Service, call: Call) -> int | None:
    """What the caller expects to replace. Raises: `Failure("invalid")` for another `If-None-Match` than `*`."""
    if (none := call.headers.get(_IF_NONE_MATCH)) is not None:
        if none.strip() != "*":
            raise field_failure("invalid", f"/{_IF_NONE_MATCH}", "must be `*`: only make it")
        return 0
    wanted = call.headers.get(_IF_MATCH)
    if wanted is None:
        return None
    if wanted.strip() == "*":
        return ANY_VERSION
    named = [int(found[1]) for tag in wanted.split(",") if (found := _VERSION(tag.strip()))]
    current = service.schedules.version_of(call.item)
    return current if current in named else next(filter(None, named), NO_VERSION)


def _tag(view: wire.ScheduleView) -> bytes:
    return b'ETag: "%d"\r\n' % view.version


def _require_own(service: Service, call: Call) -> None:
    """A token that is held to queues changes only schedules whose jobs go there. One that is not there is missed by
    the call itself, before anybody else has a turn. Raises: `Failure("forbidden")`."""
    queue = service.schedules.queue_of(call.item)
    if queue is not None:
        call.holder.require_queue(queue)


async def list_schedules(service: Service, call: Call) -> Answer:
    query: wire.SchedulesQuery = call.query
    local = query.consistency == "local"
    page = await service.schedules.page(limit=query.limit, cursor=query.cursor, only=call.holder.queues, local=local)
    return await codec.answer_in_turns(page, "schedules", call.packed_out, age_lines(service) if local else b"")


async def read_schedule(service: Service, call: Call) -> Answer:
    local = call.query.consistency == "local"
    view = await service.schedules.read(call.item, local=local)
    call.holder.require_queue(view.job.queue)
    return codec.answer(200, view, call.packed_out, _tag(view) + (age_lines(service) if local else b""))


async def delete_schedule(service: Service, call: Call) -> Answer:
    _require_own(service, call)
    await service.schedules.delete(call.item)
    return Answer(204, b"", b"")


async def pause_schedule(service: Service, call: Call) -> Answer:
    return await _change(service, call, service.schedules.pause)


async def resume_schedule(service: Service, call: Call) -> Answer:
    _require_own(service, call)
    own = call.holder.require_queue
    return _answer(call, await service.schedules.resume(call.item, missed=call.query.missed, own=own))


async def _change(service: Service, call: Call, change: Callable[[str], Awaitable[wire.ScheduleView]]) -> Answer:
    _require_own(service, call)
    return _answer(call, await change(call.item))


async def trigger_schedule(service: Service, call: Call) -> Answer:
    _require_own(service, call)
    view, created = await service.schedules.trigger(call.item, call.body.id)
    call.holder.require_queue(view.queue)
    return codec.answer(201 if created else 200, view, call.packed_out)


async def backfill_schedule(service: Service, call: Call) -> Answer:
    _require_own(service, call)
    answer = await service.schedules.backfill(call.item, call.body, own=call.holder.require_queue)
    return codec.answer(200, answer, call.packed_out)


async def list_triggers(service: Service, call: Call) -> Answer:
    query: wire.TriggersQuery = call.query
    page = await service.schedules.triggers(call.item, query, own=call.holder.require_queue)
    lines = age_lines(service) if query.consistency == "local" else b""
    return await codec.answer_in_turns(page, "triggers", call.packed_out, lines)


async def next_times(service: Service, call: Call) -> Answer:
    query: wire.NextQuery = call.query
    times = await service.schedules.next_times(call.item, query, own=call.holder.require_queue)
    return codec.answer(200, times, call.packed_out, age_lines(service) if query.consistency == "local" else b"")


async def preview_schedule(service: Service, call: Call) -> Answer:
    request: wire.PreviewRequest = call.body
    query: wire.PreviewQuery = call.query
    _new_id(request.id)
    if request.job is not None:
        settle_payloads(call, request.job, "/job")
    request.n = request.n or query.n
    request.from_ = request.from_ or query.from_
    return codec.answer(200, await service.schedules.preview(request), call.packed_out)


def _never(body: Any) -> bool:
    return False


_SCHEDULE: Final[dict[int, type | None]] = {200: wire.ScheduleView}
_ONE: Final = "/v1/schedules/{id}"

ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "PUT",
        _ONE,
        "putSchedule",
        "Make a schedule, or replace it. 201 when it is new; with `If-Match` that version is replaced, or none (412).",
        put_schedule,
        {201: wire.ScheduleView, 200: wire.ScheduleView},
        "submit",
        BodyReader(wire.ScheduleRequest).read,
        wire.ScheduleRequest,
    ),
    Route(
        "GET",
        "/v1/schedules",
        "listSchedules",
        "List the schedules, by id.",
        list_schedules,
        {200: wire.ScheduleList},
        "read",
        query=wire.SchedulesQuery,
    ),
    Route(
        "GET",
        _ONE,
        "readSchedule",
        "Read a schedule: when it triggers next, and what it says.",
        read_schedule,
        _SCHEDULE,
        "read",
        query=wire.ReadQuery,
    ),
    Route(
        "DELETE",
        _ONE,
        "deleteSchedule",
        "Delete a schedule and its ledger. Its jobs live on.",
        delete_schedule,
        {204: None},
        "submit",
        repeats=_never,
    ),
    Route(
        "POST",
        f"{_ONE}/pause",
        "pauseSchedule",
        "Let its triggers go by from now on: the ledger says so.",
        pause_schedule,
        _SCHEDULE,
        "submit",
    ),
    Route(
        "POST",
        f"{_ONE}/resume",
        "resumeSchedule",
        "Let its triggers run again; with `missed` those of the pause count as missed.",
        resume_schedule,
        _SCHEDULE,
        "submit",
        query=wire.ResumeQuery,
    ),
    Route(
        "POST",
        f"{_ONE}/trigger",
        "triggerSchedule",
        "Make a job of it now, besides its triggers. 200 with one of this `id`, or of its `unique_key`, that is there.",
        trigger_schedule,
        {201: wire.JobView, 200: wire.JobView},
        "submit",
        BodyReader(wire.TriggerRequest).read,
        wire.TriggerRequest,
        repeats=lambda body: body.id is not None,
        body_required=False,
    ),
    Route(
        "POST",
        f"{_ONE}/backfill",
        "backfillSchedule",
        "Run the triggers of a window that have not run.",
        backfill_schedule,
        {200: wire.BackfillAnswer},
        "submit",
        BodyReader(wire.BackfillRequest).read,
        wire.BackfillRequest,
    ),
    Route(
        "GET",
        f"{_ONE}/triggers",
        "listTriggers",
        "The ledger: what became of each moment that the schedule named, oldest first.",
        list_triggers,
        {200: wire.TriggerList},
        "read",
        query=wire.TriggersQuery,
    ),
    Route(
        "GET",
        f"{_ONE}/next",
        "nextTimes",
        "The next moments that a schedule names, with what is odd about them.",
        next_times,
        {200: wire.NextTimes},
        "read",
        query=wire.NextQuery,
    ),
    Route(
        "POST",
        "/v1/schedules/preview",
        "previewSchedule",
        "The same of a schedule that is not saved, or what is wrong with it.",
        preview_schedule,
        {200: wire.NextTimes},
        "read",
        BodyReader(wire.PreviewRequest).read,
        wire.PreviewRequest,
        query=wire.PreviewQuery,
        leader=False,
    ),
)
