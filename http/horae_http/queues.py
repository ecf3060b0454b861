"""The calls on queues. Not here: their jobs (`jobs.py`), who works on them (`workers.py`)."""

from __future__ import annotations

from typing import Final

import msgspec

from horae import wire
from horae_http import codec
from horae_http.answer import Answer
from horae_http.codec import BodyReader
from horae_http.errors import field_failure
from horae_http.jobs import age_lines
from horae_http.routing import Call, Route
from horae_node.service import Service


async def list_queues(service: Service, call: Call) -> Answer:
    """A token that is held to queues is shown those."""
    query: wire.QueuesQuery = call.query
    local = query.consistency == "local"
    page = await service.queues(limit=query.limit, cursor=query.cursor, only=call.holder.queues, local=local)
    return await codec.answer_in_turns(page, "queues", call.packed_out, age_lines(service) if local else b"")


async def read_queue(service: Service, call: Call) -> Answer:
    local = call.query.consistency == "local"
    queue = await service.queue(_name(call), local=local)
    return codec.answer(200, queue, call.packed_out, age_lines(service) if local else b"")


async def change_queue(service: Service, call: Call) -> Answer:
    return codec.answer(200, await service.set_queue(_name(call), call.body), call.packed_out)


def _name(call: Call) -> str:
    """Raises: `Failure`: `invalid` for what no queue can be called, `forbidden`."""
    try:
        name = msgspec.convert(call.item, wire.QueueName)
    except msgspec.ValidationError as error:
        raise field_failure("invalid", "/id", wire.PATTERN_HINTS[wire.QUEUE_PATTERN]) from error
    call.holder.require_queue(name)
    return name


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/queues",
        "listQueues",
        "List the queues that hold jobs or have settings, by name: how many jobs in which state, how long the oldest "
        "ready one waits, the settings.",
        list_queues,
        {200: wire.QueueList},
        "read",
        query=wire.QueuesQuery,
    ),
    Route(
        "GET",
        "/v1/queues/{id}",
        "readQueue",
        "Read one queue.",
        read_queue,
        {200: wire.QueueView},
        "read",
        query=wire.ReadQuery,
    ),
    Route(
        "PATCH",
        "/v1/queues/{id}",
        "changeQueue",
        "Change a queue's settings: what is not named stays as it is, null is the default. They hold at once.",
        change_queue,
        {200: wire.QueueView},
        "admin",
        BodyReader(wire.QueuePatch).read,
        wire.QueuePatch,
        shed_last=True,
    ),
)
