"""Looks at single jobs, as several decisions need them. Of jobs that are known to be there, but for `find_job`."""

from __future__ import annotations

from horae_node.core.context import Context
from horae_node.core.model import JobSpec, Run
from horae_node.core.tables import (
    NEEDS,
    RUN,
    SPEC,
    JobHandle,
    handle_of,
    id_key,
    is_tombstone,
    run_of,
    seq_bytes,
    spec_bytes,
    spec_of,
)

READ_BYTES_MAX = 4 << 20
"""From machine version 3 on: some ten milliseconds of each node's loop."""

ROW_BYTES = 1000
"""What a row that is looked up or dropped counts of it: the time of so many bytes."""


def find_job(ctx: Context, job_id: str) -> tuple[JobHandle, Run] | None:
    """None: there is no such job, or its record is gone."""
    row = ctx.get(id_key(job_id))
    if row is None or is_tombstone(row):
        return None
    handle = handle_of(row)
    return handle, read_run(ctx, handle.seq)


def read_run(ctx: Context, seq: int) -> Run:
    row = ctx.get(RUN + seq_bytes(seq))
    assert row is not None
    return run_of(row)


def read_spec(ctx: Context, seq: int) -> JobSpec:
    row = ctx.get(SPEC + seq_bytes(seq))
    assert row is not None
    spec = spec_of(row)
    ctx.read_bytes += spec_bytes(spec)
    return spec


def needs_of(ctx: Context, seq: int) -> int:
    """For how many others the job waits still."""
    row = ctx.get(NEEDS + seq_bytes(seq)) if ctx.held else None
    return 0 if row is None else len(row[1])


def count_rows(ctx: Context, rows: int) -> None:
    """Looked up, or to be dropped, one by one."""
    ctx.read_bytes += ROW_BYTES * rows


def has_read_enough(ctx: Context) -> bool:
    """Whether an entry that does what is due has read as much as it should: the next one does the rest."""
    return ctx.links and ctx.read_bytes > READ_BYTES_MAX
