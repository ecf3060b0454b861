"""What the moments made due, in bounded steps: leases and time-outs, expiries, due jobs, purges, claim records.

Each phase decides at most `budget` items, and is written before the next one reads. Urgent phases go first and leave
an eighth to housekeeping, so that neither starves the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horae_node.core.changes import (
    Change,
    ClaimForgotten,
    ClaimRecorded,
    JobChanged,
    JobPurged,
    TombstoneSwept,
    WatchMoved,
)
from horae_node.core.context import Context
from horae_node.core.decide.claim import live_grants
from horae_node.core.decide.finish import lapsed, timed_out
from horae_node.core.decide.links import decide_settlements
from horae_node.core.decide.queues import decide_regroups
from horae_node.core.decide.reading import count_rows, has_read_enough, needs_of, read_spec
from horae_node.core.decide.schedules import decide_erasures
from horae_node.core.model import Run
from horae_node.core.runs import finished, made_ready, watched
from horae_node.core.tables import (
    CLAIM_SWEEP,
    DUE,
    EXPIRY,
    RETENTION,
    RUN,
    S_EXPIRED,
    S_PENDING,
    S_RUNNING,
    WATCH,
    ClaimRecord,
    JobHandle,
    claim_of,
    handle_for,
    round_up,
    run_of,
    seq_bytes,
    terms_of,
    terms_of_row,
)

Phase = Callable[[Context, int], Sequence[Change]]
HOUSEKEEPING_SHARE = 8
HOUSEKEEPING_MAX = 100
"""Records that one entry tidies away, from machine version 3 on: a purge takes ten rows, and who waits for the entry
waits for them, too."""


def decide_watches(ctx: Context, budget: int) -> list[Change]:
    """Leases and attempts whose watch has come: over, or renewed meanwhile and looked at again later."""
    clock = ctx.lease_clock
    changes: list[Change] = []
    for key in _due_keys(ctx, WATCH, clock, budget):
        if has_read_enough(ctx):
            break
        seq, run = _seq_and_run(ctx, key)
        assert run.state == S_RUNNING
        lease_end, timeout_end = run.lease_end, run.timeout_end
        if lease_end > clock and timeout_end > clock:
            changes.append(WatchMoved(seq, run, watched(run, min(lease_end, timeout_end))))
        elif timeout_end <= lease_end:
            changes.append(timed_out(ctx, seq, run))
        else:
            changes.append(lapsed(ctx, seq, run))
    return changes


def decide_expiries(ctx: Context, budget: int) -> list[Change]:
    """Jobs that were not started by their time: never run."""
    changes: list[Change] = []
    for key in _due_keys(ctx, EXPIRY, ctx.now_ms, budget):
        if has_read_enough(ctx):
            break
        seq, run = _seq_and_run(ctx, key)
        spec = read_spec(ctx, seq)
        count_rows(ctx, needs_of(ctx, seq))
        after = finished(run, S_EXPIRED, ending=run.ending, now_ms=ctx.now_ms, index=ctx.index)
        changes.append(JobChanged(handle_for(seq, spec), run, after, terms_of(spec)))
    return changes


def decide_due(ctx: Context, budget: int) -> list[Change]:
    """pending -> ready. The index row has all that it takes: the spec is not read."""
    changes: list[Change] = []
    index = ctx.index
    for key, row in ctx.txn.scan(DUE, DUE + seq_bytes(ctx.now_ms + 1), limit=budget):
        seq, run = _seq_and_run(ctx, key)
        assert run.state == S_PENDING
        terms = terms_of_row(row)
        # Retention and unique key matter at an end only.
        handle = JobHandle(seq, terms.queue, 0, None)
        changes.append(JobChanged(handle, run, made_ready(run, index), terms))
    return changes


def decide_purges(ctx: Context, budget: int) -> list[Change]:
    """Finished records past their retention, and what is left of them past its own."""
    changes: list[Change] = []
    for key, row in ctx.txn.scan(RETENTION, RETENTION + seq_bytes(ctx.now_ms + 1), limit=budget):
        if has_read_enough(ctx):
            break
        if row:
            changes.append(TombstoneSwept(key, row[0]))
            continue
        seq, run = _seq_and_run(ctx, key)
        assert run.state > S_RUNNING
        changes.append(JobPurged(seq, read_spec(ctx, seq), run))
    return changes


def decide_claim_sweeps(ctx: Context, budget: int) -> list[Change]:
    """Claim records: forgotten when no lease of theirs lives, else looked at again when the longest may have ended."""
    changes: list[Change] = []
    for sweep_key in _due_keys(ctx, CLAIM_SWEEP, ctx.lease_clock, budget):
        if has_read_enough(ctx):
            break
        key = sweep_key[9:]
        row = ctx.get(key)
        assert row is not None
        record = claim_of(row)
        count_rows(ctx, len(record.grants))
        held = live_grants(ctx, record)
        if held:
            changes.append(ClaimRecorded(key, record, ClaimRecord(_sweep_at(ctx, held), held)))
        else:
            changes.append(ClaimForgotten(key, record))
    return changes


URGENT: tuple[Phase, ...] = (decide_watches, decide_expiries, decide_due, decide_settlements, decide_regroups)
HOUSEKEEPING: tuple[Phase, ...] = (decide_purges, decide_claim_sweeps, decide_erasures)


def _sweep_at(ctx: Context, held: tuple[tuple[int, int], ...]) -> int:
    """Later than now in any case, or one sweep would find the same record for ever."""
    lease_end = ctx.lease_clock + 1
    for seq, _ in held:
        row = ctx.get(RUN + seq_bytes(seq))
        assert row is not None
        lease_end = max(lease_end, run_of(row).lease_end)
    return round_up(lease_end)


def _due_keys(ctx: Context, table: bytes, moment: int, budget: int) -> list[bytes]:
    return ctx.txn.keys(table, table + seq_bytes(moment + 1), limit=budget)


def _seq_and_run(ctx: Context, key: bytes) -> tuple[int, Run]:
    """Of an index key (prefix, moment, seq)."""
    seq_key = key[9:17]
    row = ctx.get(RUN + seq_key)
    assert row is not None
    return int.from_bytes(seq_key, "big"), run_of(row)
