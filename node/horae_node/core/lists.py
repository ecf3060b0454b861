"""Lists of jobs, newest first: by queue and state, by what jobs have in common, by when they were made.

A list is a walk along one index, downwards from a job's number, so that a page costs the same however many jobs there
are, and the next one goes on where it ended while jobs come, move and go. Jobs are numbered in the order of their
making, so a span of time is a span of numbers. Not here: what a page shows (`horae_node/reads.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace, nlargest
from typing import NamedTuple

from horae_node.core.model import LINKS_VERSION, STATE_COUNT
from horae_node.core.tables import RUN, TRAITS_FROM, queue_keys, run_of, seq_bytes
from horae_node.core.views import all_counts, counts, meta
from horae_storage.kv import View

SEQ_MAX = 2**64 - 1


class Wanted(NamedTuple):
    """Which jobs. What is None, or empty, does not matter."""

    queue: str | None = None
    state: int | None = None
    traits: Sequence[bytes] = ()
    """See `trait_of`: they must have all of them."""
    created_from_ms: int | None = None
    created_before_ms: int | None = None


def find_jobs(view: View, wanted: Wanted, before_seq: int | None, limit: int) -> Listed:
    """At most `limit` jobs among which are all of the next that are wanted, below `before_seq`.

    Others may be there as well: the caller looks at each. `limit` bounds the work, as of `list_jobs`.
    """
    before = SEQ_MAX if before_seq is None else before_seq
    if wanted.created_before_ms is not None:
        before = min(before, first_created(view, wanted.created_before_ms))
    found = _walked(view, wanted, before, limit)
    if wanted.created_from_ms is None:
        return found
    since = first_created(view, wanted.created_from_ms)
    kept = [seq for seq in found.seqs if seq >= since]
    ended = len(kept) < len(found.seqs) or (found.next_before is not None and found.next_before <= since)
    return Listed(kept, None if ended else found.next_before)


def first_created(view: View, moment_ms: int) -> int:
    """The least number that a job made at that moment or later can have. Some 40 look-ups."""
    low, high = 1, meta(view).job_seq + 1
    while low < high:
        middle = (low + high) // 2
        rows = view.scan(RUN + seq_bytes(middle), RUN + seq_bytes(high), limit=1)
        if not rows or run_of(rows[0][1]).created_ms >= moment_ms:
            high = middle
        else:
            low = int.from_bytes(rows[0][0][1:], "big") + 1
    return low


def _walked(view: View, wanted: Wanted, before: int, limit: int) -> Listed:
    """Along a list of queue and state when it is short, else along that of the rarest trait."""
    floor = _traits_from(view)
    if not wanted.traits or before <= floor + 1 or _is_short(view, wanted, limit):
        return list_jobs(view, wanted.queue, wanted.state, before, limit)
    pages = [_newest(view, trait, before, limit) for trait in wanted.traits]
    if wanted.queue is not None or wanted.state is not None:
        plain = list_jobs(view, wanted.queue, wanted.state, before, limit)
        if plain.next_before is None or all(len(page) == limit and page[-1] > plain.next_before for page in pages):
            return plain
    seqs = min(pages, key=len) if min(map(len, pages)) < limit else max(pages, key=_depth)
    if len(seqs) == limit:
        return Listed(seqs, seqs[-1])
    return Listed(seqs, floor + 1 if floor else None)


def _depth(page: list[int]) -> int:
    """How far a page reaches down: among full ones, that of the rarest trait reaches furthest."""
    return -page[-1]


def _is_short(view: View, wanted: Wanted, limit: int) -> bool:
    if wanted.queue is None:
        return False
    kept = counts(view, wanted.queue)
    return (sum(kept) if wanted.state is None else kept[wanted.state]) <= limit


def _traits_from(view: View) -> int:
    """Jobs after this one have rows for their traits."""
    if meta(view).machine_version < LINKS_VERSION:
        return SEQ_MAX
    row = view.get(TRAITS_FROM)
    return 0 if row is None else row[0]


class Listed(NamedTuple):
    """Job numbers, newest first; and where to go on, below that number: None when there are no more."""

    seqs: list[int]
    next_before: int | None


QUEUES_MERGED = 2000
QUEUES_LOOKED = 5000
LOOKED_MAX = 1000


def list_jobs(view: View, queue: str | None, state: int | None, before_seq: int | None, limit: int) -> Listed:
    """Jobs below `before_seq` (None = from the newest), at most `limit` (>= 1), however few there are of them.

    Work: `limit` rows; with `queue` alone times the states; with `state` alone plus the depths of all queues and one
    look-up for each that has any such job. Of more than `QUEUES_LOOKED` queues, or `QUEUES_MERGED` such, as many of the
    newest jobs are looked at as a page takes, of whatever state.
    """
    before = SEQ_MAX if before_seq is None else max(before_seq, 0)
    if queue is not None:
        listed = queue_keys(queue).listed
        states = range(STATE_COUNT) if state is None else (state,)
        pages = [_newest(view, listed[each], before, limit) for each in states]
        return _listed(pages[0] if len(pages) == 1 else nlargest(limit, [seq for page in pages for seq in page]), limit)
    if state is None:
        return _listed(_newest(view, RUN, before, limit), limit)
    having = all_counts(view, QUEUES_LOOKED + 1)
    lists = [queue_keys(name).listed[state] for name, kept in having.items() if kept[state]]
    if len(having) > QUEUES_LOOKED or len(lists) > QUEUES_MERGED:
        return _walk(view, state, before, limit)
    return _listed(_merge_newest(view, lists, before, limit), limit)


def _listed(seqs: list[int], limit: int) -> Listed:
    return Listed(seqs, seqs[-1] if len(seqs) == limit else None)


def _walk(view: View, state: int, before: int, limit: int) -> Listed:
    rows = view.scan(RUN, RUN + seq_bytes(before), limit=LOOKED_MAX, reverse=True)
    found: list[int] = []
    for key, row in rows:
        if row[0] == state:
            found.append(int.from_bytes(key[1:], "big"))
            if len(found) == limit:
                return Listed(found, found[-1])
    return Listed(found, int.from_bytes(rows[-1][0][1:], "big") if len(rows) == LOOKED_MAX else None)


def _newest(view: View, prefix: bytes, before: int, limit: int) -> list[int]:
    keys = view.keys(prefix, prefix + seq_bytes(before), limit=limit, reverse=True)
    return [int.from_bytes(key[-8:], "big") for key in keys]


def _merge_newest(view: View, prefixes: list[bytes], before: int, limit: int) -> list[int]:
    """Newest first over many lists, one look-up a list and one a job taken."""
    heads: list[tuple[int, bytes]] = []
    for prefix in prefixes:
        heads.extend((-seq, prefix) for seq in _newest(view, prefix, before, 1))
    heapify(heads)
    taken: list[int] = []
    while heads and len(taken) < limit:
        seq, prefix = -heads[0][0], heads[0][1]
        taken.append(seq)
        following = _newest(view, prefix, seq, 1)
        if following:
            heapreplace(heads, (-following[0], prefix))
        else:
            heappop(heads)
    return taken
