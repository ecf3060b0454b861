"""The calls on queues. Not here: their jobs (`jobs.py`), who works on them (`workers.py`)."""

from __future__ import annotations

from typing import Final

from horae import wire
from horae_http import codec
from horae_http.answer import Answer
from horae_http.jobs import age_lines
from horae_http.routing import Call, Route
from horae_node.service import Service


async def list_queues(service: Service, call: Call) -> Answer:
    """A token that is held to queues is shown those."""
    query: wire.QueuesQuery = call.query
    local = query.consistency == "local"
    page = await service.queues(limit=query.limit, cursor=query.cursor, only=call.holder.queues, local=local)
    return codec.answer(200, page, call.packed_out, age_lines(service) if local else b"")


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "GET",
        "/v1/queues",
        "listQueues",
        "List the queues that hold jobs, by name: how many in which state, and how long the oldest ready one waits.",
        list_queues,
        {200: wire.QueueList},
        "read",
        query=wire.QueuesQuery,
    ),
)
