"""What others may read of schedules, without knowing a key. Bounded, as `views.py`."""

from __future__ import annotations

from typing import NamedTuple

from horae_node.core.model import ScheduleRun, ScheduleSpec, Trigger
from horae_node.core.tables import (
    FIRE,
    LEDGER,
    RUN,
    SCHEDULE,
    after_queue,
    fire_key,
    id_key,
    is_tombstone,
    live_prefix,
    pair_bytes,
    run_of,
    schedule_key,
    schedule_run_key,
    schedule_run_of,
    schedule_spec_of,
    seq_bytes,
    tombstone_of,
    trigger_of,
)
from horae_storage.kv import View


class Schedule(NamedTuple):
    spec: ScheduleSpec
    run: ScheduleRun


class Turn(NamedTuple):
    """A schedule is to be looked at, when its trigger comes; in the order of moments, then of ids."""

    look_ms: int
    schedule_id: str


def find(view: View, schedule_id: str) -> Schedule | None:
    row = view.get(schedule_key(schedule_id))
    run_row = view.get(schedule_run_key(schedule_id))
    if row is None or run_row is None:
        return None
    return Schedule(schedule_spec_of(row), schedule_run_of(run_row))


def schedule(view: View, schedule_id: str) -> Schedule:
    """One that is there."""
    found = find(view, schedule_id)
    assert found is not None, f"schedule {schedule_id!r} is gone"
    return found


def turns(view: View, after: Turn | None, until_ms: int | None, limit: int) -> list[Turn]:
    """When schedules that have a next trigger are to be looked at, the first first: after that turn, and by then."""
    start = FIRE if after is None else fire_key(*after) + b"\0"
    stop = FIRE + b"\xff" * 9 if until_ms is None else FIRE + seq_bytes(until_ms + 1)
    if start >= stop:
        return []
    return [Turn(int.from_bytes(key[1:9], "big"), key[9:].decode()) for key in view.keys(start, stop, limit=limit)]


def live(view: View, schedule_id: str, limit: int) -> list[int]:
    """The numbers of its unfinished jobs, oldest first, at most `limit`."""
    prefix = live_prefix(schedule_id)
    return [int.from_bytes(key[-8:], "big") for key in view.keys(prefix, after_queue(prefix), limit=limit)]


def ids(view: View, after: str, limit: int) -> list[str]:
    """The ids of schedules, in order, those after `after` ("" = from the first)."""
    start = schedule_key(after) + b"\0" if after else SCHEDULE
    return [key[1:].decode() for key in view.keys(start, SCHEDULE + b"\xff", limit=limit)]


def ledger(view: View, run: ScheduleRun, from_ms: int, to_ms: int, limit: int) -> list[tuple[int, Trigger]]:
    """The lines from `from_ms` on, and before `to_ms`, oldest first: (nominal moment, what became of it)."""
    start, stop = LEDGER + pair_bytes(run.number, max(from_ms, 0)), LEDGER + pair_bytes(run.number, max(to_ms, 0))
    if start >= stop:
        return []
    return [(int.from_bytes(key[-8:], "big"), trigger_of(row)) for key, row in view.scan(start, stop, limit=limit)]


def job_state(view: View, job_id: str) -> int | None:
    """The state of a job, be its record gone lately; None: nothing is known of it."""
    row = view.get(id_key(job_id))
    if row is None:
        return None
    if is_tombstone(row):
        return tombstone_of(row).state
    run_row = view.get(RUN + seq_bytes(row[0]))
    return None if run_row is None else run_of(run_row).state
