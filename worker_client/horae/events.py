"""What happens in the cluster, as it happens: its events, in log order, told on by another node where one ends.

A stream of any node tells the same events under the same ids (docs/contract.md, "Events"), so whoever reads goes on
with the last id that was seen, wherever. Not here: connections (`transport.py`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from horae import checks, errors, wire
from horae.calls import query
from horae.transport import Stream

NODES_ASKED: Final = 3
"""So many answers that an id is not known any more are believed: each of three nodes may keep other events."""


class Event(Struct, frozen=True, kw_only=True):
    """One change of state. `type` is one of the contract's, or a newer one; keys that do not apply are None.

    `at` is cluster time, `index` the log entry's. Of a job, `state` and what follows are as they were right after.
    """

    id: str
    type: str
    at: datetime
    index: int
    job_id: str | None = None
    queue: str | None = None
    task: str | None = None
    state: str | None = None
    attempt: int | None = None
    worker: str | None = None
    run_at: datetime | None = None
    dead_reason: str | None = None
    node: str | None = None
    standing: str | None = None


class Block(NamedTuple):
    """One block of a stream: `data` is empty where it only says how far the stream has come."""

    id: str
    type: str
    data: str


_event = msgspec.json.Decoder(Event).decode
_behind = msgspec.json.Decoder(wire.FellBehind).decode


class EventCalls:
    """The part of `AsyncClient` that reads events."""

    @abstractmethod
    async def _open(self, path: str) -> Stream: ...

    async def events(
        self,
        *,
        after: str | int | None = None,
        queues: Sequence[str] = (),
        types: Sequence[wire.EventType] = (),
    ) -> AsyncGenerator[Event, None]:
        """Every change of state from now on, or from the one after `after` on (an event's id, or a log index).

        It does not end: a stream that breaks goes on at another node, with nothing told twice or left out. `queues`,
        `types`: only these. Raises: `FellBehind` when no node that was asked knows all that came after the last one
        (begin anew from its `up_to`, and read what you must not miss); what any read raises when no node answers within
        the client's deadline, `Invalid`, `Forbidden`.
        """
        asked = {
            "queue": ",".join(checks.queue_names(queues)) if queues else None,
            "types": ",".join(types) if types else None,
        }
        last = None if after is None else str(after)
        unknown = 0
        while True:
            stream = await self._open(f"/v1/events?{query({**asked, 'after': last})}")
            async with aclosing(stream.lines()) as lines:
                async for block in blocks(lines):
                    if block.type == "fell_behind":
                        unknown += 1
                        if unknown >= NODES_ASKED:
                            raise _fell_behind(block)
                        stream.avoid()  # another node may know them
                        break
                    last = block.id
                    if block.data:
                        unknown = 0
                        yield _event(block.data)


async def blocks(lines: AsyncIterator[str]) -> AsyncIterator[Block]:
    """The blocks of a stream of server-sent events, whole ones only: what is cut off comes again."""
    fields: dict[Literal["id", "event", "data"], str] = {}
    async for line in lines:
        name, _, value = line.partition(":")
        if not line:
            if "id" in fields:
                yield Block(fields["id"], fields.get("event", ""), fields.get("data", ""))
            fields = {}
        elif name in ("id", "event", "data"):
            fields[name] = value.removeprefix(" ")  # type: ignore[index]


def _fell_behind(block: Block) -> errors.FellBehind:
    told = _behind(block.data)
    return errors.FellBehind(after=told.after, up_to=told.id)
