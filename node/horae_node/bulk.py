"""Many jobs by a filter: a page of them is found in the lists, and each is changed by a command of its own.

So a bulk call is as bounded as any other, others have their turn between two pages, and a job that has changed
meanwhile is refused by the machine as it would be for a single call.
Not here: what may be done to a job (`core/decide/operate.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from horae import wire
from horae_node.core import views
from horae_node.core.model import JobSpec, State
from horae_node.core.results import Done, Outcome
from horae_node.core.tables import seq_bytes
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.reads import STATE_BY_NAME, BadCursor, make_cursor, read_cursor
from horae_storage.kv import View

EXAMINED_MAX: Final = 1000
"""Jobs looked at for one page, whether they match or not."""
EXAMINED_BYTES_MAX: Final = 4 << 20
"""Their payloads: what they are filtered by lies in the same row."""
_KIND: Final = b"b"
_PLACE_BYTES: Final = 9


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
    ids: list[str] = []
    examined_bytes = 0
    for examined, (state, seq) in enumerate(_listed(view, wanted.queue, states, request.cursor), 1):
        spec = views.spec(view, seq)
        assert spec is not None, "a listed job has a record"
        if _matches(spec, wanted):
            ids.append(spec.id)
        examined_bytes += len(spec.payload)
        if len(ids) == request.limit or examined == EXAMINED_MAX or examined_bytes >= EXAMINED_BYTES_MAX:
            return Page(ids, make_cursor(_KIND, bytes((state,)) + seq_bytes(seq)))
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


def _listed(view: View, queue: str | None, states: Sequence[State], cursor: str | None) -> Iterator[tuple[State, int]]:
    """State and number of each listed job from the cursor on; as many a state as one page examines at the most."""
    place = None if cursor is None else read_cursor(_KIND, cursor, _PLACE_BYTES)
    if place is not None:
        if place[0] not in states:
            raise BadCursor("is the cursor of a call with another filter; leave it out to begin anew")
        states = states[states.index(State(place[0])) :]
    for state in states:
        before = None if place is None else int.from_bytes(place[1:], "big")
        place = None
        for seq in views.list_jobs(view, queue, state, before, EXAMINED_MAX):
            yield state, seq


def _matches(spec: JobSpec, wanted: wire.JobFilter) -> bool:
    if wanted.task is not None and spec.task != wanted.task:
        return False
    return wanted.tag is None or tuple(wanted.tag.split(":", 1)) in spec.tags
