"""What others may read of the state, without knowing a key: the service, the leader, the metrics.

Every function takes any `View` (the open transaction, or a read transaction off the loop) and does bounded work.
Not here: linearizability (the caller's barrier), rendering (the service).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horae_node.core.decide.members import read_members
from horae_node.core.limits import allowance, ms_to_token, tokens
from horae_node.core.machine import Deadline, next_deadline
from horae_node.core.model import (
    FIRST_META,
    NO_SETTINGS,
    AttemptError,
    JobSpec,
    Meta,
    QueueCounts,
    QueueSettings,
    Run,
)
from horae_node.core.tables import (
    COUNTS,
    DUE,
    ERROR,
    ERRORS_KEPT,
    GROUP_BYTES,
    META,
    NEEDS,
    PROGRESS,
    RESULT,
    RUN,
    SETTINGS,
    SPEC,
    after_queue,
    bucket_key,
    bucket_of,
    claim_key,
    counts_key,
    counts_of,
    error_of,
    group_row_of,
    handle_of,
    has_follower,
    id_key,
    is_tombstone,
    lanes_key,
    lanes_of,
    meta_of,
    queue_keys,
    run_of,
    seq_bytes,
    settings_key,
    settings_of,
    spec_of,
    unique_index_key,
)
from horae_storage.kv import View

__all__ = [
    "Deadline",
    "all_counts",
    "counts",
    "due_queues",
    "errors",
    "has_queue",
    "holder",
    "job_seq",
    "last_error",
    "meta",
    "next_deadline",
    "oldest_ready_ms",
    "progress",
    "queue_names",
    "read_members",
    "result",
    "run",
    "settings",
    "spec",
    "takeable",
]

SEQ_MAX = 2**64 - 1
_PAGE = 1000


def meta(view: View) -> Meta:
    row = view.get(META)
    return FIRST_META if row is None else meta_of(row)


def job_seq(view: View, job_id: str) -> int | None:
    row = view.get(id_key(job_id))
    return None if row is None or is_tombstone(row) else row[0]


def spec_bytes(view: View, job_id: str, *, followed: bool = False) -> int:
    """Bytes of the job's spec, payload and all, as stored; 0 when it is gone, or none is to follow it as it must be."""
    row = view.get(id_key(job_id))
    if row is None or is_tombstone(row) or (followed and not has_follower(handle_of(row))):
        return 0
    return view.row_bytes(SPEC + seq_bytes(row[0]))


def needs_of(view: View, job_id: str) -> int:
    """For how many others the job waits; none when it is gone."""
    row = view.get(id_key(job_id))
    needs = None if row is None or is_tombstone(row) else view.get(NEEDS + seq_bytes(row[0]))
    return 0 if needs is None else len(needs[1])


def spec(view: View, seq: int) -> JobSpec | None:
    """None when the job is gone (purged or deleted)."""
    row = view.get(SPEC + seq_bytes(seq))
    return None if row is None else spec_of(row)


def run(view: View, seq: int) -> Run | None:
    row = view.get(RUN + seq_bytes(seq))
    return None if row is None else run_of(row)


def errors(view: View, seq: int) -> list[AttemptError]:
    """Of the last 20 attempts that failed or were lost, oldest first."""
    prefix = ERROR + seq_bytes(seq)
    return [error_of(row) for _, row in view.scan(prefix, prefix + b"\xff" * 9, limit=ERRORS_KEPT)]


def last_error(view: View, seq: int) -> AttemptError | None:
    prefix = ERROR + seq_bytes(seq)
    rows = view.scan(prefix, prefix + b"\xff" * 9, limit=1, reverse=True)
    return error_of(rows[0][1]) if rows else None


def progress(view: View, seq: int) -> bytes | None:
    row = view.get(PROGRESS + seq_bytes(seq))
    return None if row is None else row[0]


def holder(view: View, queue: str, unique_key: str) -> int | None:
    """The unfinished job that holds the unique key."""
    row = view.get(unique_index_key(queue, unique_key))
    return None if row is None else row[0]


def result(view: View, seq: int) -> bytes | None:
    row = view.get(RESULT + seq_bytes(seq))
    return None if row is None else row[0]


def claim_known(view: View, worker: str, claim_id: str, queues: Sequence[str]) -> bool:
    """Whether this claim was granted jobs before, and one of their leases may still live."""
    keys = claim_key(worker, claim_id, queues), claim_key(worker, claim_id)
    return any(view.get(key) is not None for key in keys)


def counts(view: View, queue: str) -> QueueCounts:
    """Jobs of a queue by state; all zero for a queue without jobs."""
    row = view.get(counts_key(queue))
    return QueueCounts() if row is None else counts_of(row)


def settings(view: View, queue: str) -> QueueSettings:
    row = view.get(settings_key(queue))
    return NO_SETTINGS if row is None else settings_of(row)


class Takeable(NamedTuple):
    """What claims would get of a queue, and when it is worth to look again."""

    jobs: int
    """Of those with concurrency keys, as many as a look at the first groups in line finds."""
    room: int | None
    """What the queue's settings let through, whether or not there are jobs; None for no limit."""
    wait_ms: int | None
    """On the lease clock, until its rate lets a job through; None when it is not the rate that holds it up."""


GROUPS_LOOKED = 100


def takeable(view: View, queue: str, lease_clock: int) -> Takeable:
    """What could be granted of a queue at this moment. A few bounded look-ups."""
    kept_counts, kept = counts(view, queue), settings(view, queue)
    ready = kept_counts.ready
    lanes = view.get(lanes_key(queue)) if ready else None
    if lanes is not None:
        ready += _takeable_by_key(view, queue, kept.max_running_per_key) - lanes_of(lanes).waiting
    if kept is NO_SETTINGS:
        return Takeable(ready, None, None)
    bucket = view.get(bucket_key(queue))
    micro = None if bucket is None else tokens(bucket_of(bucket), kept, lease_clock)
    room = allowance(kept, kept_counts.running, micro)
    if room is None:
        return Takeable(ready, None, None)
    by_rate = ready > 0 and room == 0 and micro is not None and allowance(kept, kept_counts.running, None) != 0
    return Takeable(min(ready, room), room, ms_to_token(micro or 0, kept) if by_rate else None)


def _takeable_by_key(view: View, queue: str, per_key: int) -> int:
    """Jobs with a concurrency key that claims would get, of the first groups in line."""
    keys = queue_keys(queue)
    lanes = view.keys(keys.lane, after_queue(keys.lane), limit=GROUPS_LOOKED)
    if per_key == 1:
        return len(lanes)
    found = 0
    for lane in lanes:
        row = view.get(keys.group + lane[-GROUP_BYTES:])
        assert row is not None, "a group in the lanes has jobs"
        group = group_row_of(row)
        found += max(0, min(group.waiting, per_key - group.running))
    return found


def oldest_ready_ms(view: View, queue: str) -> list[int]:
    """For each priority that ready jobs of a queue have, highest first: when the one that fell due first did so; then
    the same of all that have concurrency keys.

    One look-up each, 202 at the most.
    """
    keys = queue_keys(queue)
    keyed = view.keys(keys.keyed_due, after_queue(keys.keyed_due), limit=1)
    moment = len(keys.ready) + 1
    start, found = keys.ready, []
    while first := view.keys(start, keys.ready_stop, limit=1):
        found.append(int.from_bytes(first[0][moment : moment + 8], "big"))
        start = first[0][:moment] + b"\xff" * 17
    if keyed:
        at = len(keys.keyed_due)
        found.append(int.from_bytes(keyed[0][at : at + 8], "big"))
    return found


def queue_names(view: View, after: str, limit: int) -> list[str]:
    """Queues that hold any job or have settings, by name, those after `after` ("" = from the first)."""
    found: set[str] = set()
    for table in (COUNTS, SETTINGS):
        start = table + after.encode() + b"\0" if after else table
        found.update(key[1:].decode() for key in view.keys(start, table + b"\xff", limit=limit))
    return sorted(found)[:limit]


def has_queue(view: View, name: str) -> bool:
    """Whether it holds any job or has settings."""
    return view.get(counts_key(name)) is not None or view.get(settings_key(name)) is not None


def all_counts(view: View, limit: int | None = None) -> dict[str, QueueCounts]:
    """Every queue that holds any job, by name, or the first `limit`: as much work as there are."""
    found: dict[str, QueueCounts] = {}
    start = COUNTS
    while True:
        most = _PAGE if limit is None else min(_PAGE, limit - len(found))
        rows = view.scan(start, COUNTS + b"\xff", limit=most)
        for key, row in rows:
            found[key[1:].decode()] = counts_of(row)
        if len(rows) < _PAGE:
            return found
        start = rows[-1][0] + b"\0"


def due_queues(view: View, now_ms: int, limit: int) -> dict[str, int]:
    """By queue, how many pending jobs an `AdvanceTime` at `now_ms` would make ready; of the first `limit` due."""
    found: dict[str, int] = {}
    for _, row in view.scan(DUE, DUE + seq_bytes(now_ms + 1), limit=limit):
        queue = row[0]
        found[queue] = found.get(queue, 0) + 1
    return found
