"""Many jobs by a filter: a page of them is found in the lists, and each is changed by a command of its own.

So a bulk call is as bounded as any other, others have their turn between two pages, and a job that has changed
meanwhile is refused by the machine as it would be for a single call.
Not here: what may be done to a job (`core/decide/operate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from horae import wire
from horae_node.core import lists, views
from horae_node.core.model import State
from horae_node.core.results import Done, Outcome
from horae_node.core.tables import seq_bytes, spec_bytes
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.reads import (
    EXAMINED_BYTES_MAX,
    EXAMINED_MAX,
    STATE_BY_NAME,
    BadCursor,
    is_in,
    make_cursor,
    matches,
    read_cursor,
    traits_wanted,
)
from horae_storage.kv import View

_KIND: Final = b"b"
_PLACE_BYTES: Final = 13


class Page(NamedTuple):
    """The ids of some jobs that match, and where the next page begins; None: there are no more."""

    ids: list[str]
    next_cursor: str | None


def page(view: View, request: wire.CancelManyRequest | wire.RequeueManyRequest) -> Page:
    """The next jobs that a request means, newest first within each state. Raises: `BadCursor`."""
    wanted = request.filter
    # In the order in which jobs go: one that moves on while a caller goes from page to page is met again.
    names = wire.CANCELLABLE if wanted.state is None else (wanted.state,)
    states = [STATE_BY_NAME[name] for name in names]
    states, before = _place(states, wanted, request.cursor)
    traits = traits_wanted(wanted.task, wanted.tag)
    ids: list[str] = []
    examined = examined_bytes = 0
    for state in states:
        listed = lists.find_jobs(view, lists.Wanted(wanted.queue, state, traits), before, EXAMINED_MAX - examined)
        for seq in listed.seqs:
            spec = views.spec(view, seq)
            assert spec is not None, "a listed job has a record"
            if not traits or (matches(spec, wanted.task, wanted.tag) and is_in(view, seq, spec, wanted.queue, state)):
                ids.append(spec.id)
            examined += 1
            examined_bytes += spec_bytes(spec)
            if len(ids) == request.limit or examined == EXAMINED_MAX or examined_bytes >= EXAMINED_BYTES_MAX:
                return Page(ids, _cursor(state, seq, wanted))
        if listed.next_before is not None:
            return Page(ids, _cursor(state, listed.next_before, wanted))
        before = None
    return Page(ids, None)


def count_changed(results: Sequence[Outcome | NotApplied | OutcomeUnknown]) -> int:
    """How many of a page's jobs were changed; those that had changed by themselves meanwhile were not.

    Raises: `NotApplied` when nothing was done, `OutcomeUnknown` when that is not known, or only some of it was.
    """
    failed = [result for result in results if isinstance(result, (NotApplied, OutcomeUnknown))]
    if not failed:
        return sum(isinstance(result, Done) and not result.repeated for result in results)
    if all(isinstance(result, NotApplied) for result in results):
        raise failed[0]
    raise OutcomeUnknown(f"some of {len(results)} jobs may be changed: {failed[0]}")


def _cursor(state: State, before: int, wanted: wire.JobFilter) -> str:
    return make_cursor(_KIND, bytes((state,)) + seq_bytes(before) + _mark(wanted))


def _place(states: list[State], wanted: wire.JobFilter, cursor: str | None) -> tuple[list[State], int | None]:
    """Which states are left, and below which number the first of them goes on. Raises: `BadCursor`."""
    if cursor is None:
        return states, None
    place = read_cursor(_KIND, cursor, _PLACE_BYTES)
    if place[0] not in states or place[9:] != _mark(wanted):
        raise BadCursor("is the cursor of a call with another filter; leave it out to begin anew")
    return states[states.index(State(place[0])) :], int.from_bytes(place[1:9], "big")


def _mark(wanted: wire.JobFilter) -> bytes:
    return crc32(msgspec.json.encode(wanted)).to_bytes(4)
