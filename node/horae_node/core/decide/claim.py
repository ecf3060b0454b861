"""Handing jobs out: by (priority, due, submitted), queues in the order named, each with a token that only grows."""

from __future__ import annotations

from horae_node.core.changes import Change, ClaimRecorded, Decision, JobGranted
from horae_node.core.commands import ClaimJobs
from horae_node.core.context import Context
from horae_node.core.results import Granted
from horae_node.core.runs import granted
from horae_node.core.tables import (
    RUN,
    S_READY,
    S_RUNNING,
    ClaimRecord,
    claim_key,
    claim_of,
    queue_keys,
    round_up,
    run_of,
    seq_bytes,
    terms_of_row,
)

PAGES_MAX = 8
"""How many pages of a queue one claim reads: expired jobs, which wait for the sweep, may lie at its head."""
PAGE_MIN = 32
CLAIM_BYTES_MAX = 8 << 20
"""Payloads of one claim, as JSON: the answer is made on the leader's loop and carried by every hop, whole. The next
claim gets the rest.
"""


def decide_claim(ctx: Context, command: ClaimJobs) -> Decision:
    """Up to `max_jobs` grants, with payloads of 8 MiB together at most, but at least one.

    A claim id whose leases live gets the same jobs: a lost answer loses no job.
    """
    worker, queues, max_jobs, _, claim_id = command
    key, record = b"", None
    if claim_id:
        key = claim_key(worker, claim_id)
        row = ctx.get(key)
        if row is not None:
            record = claim_of(row)
            held = live_grants(ctx, record)
            if held:
                return Granted(held, True), ()
    jobs: list[JobGranted] = []
    bytes_left = CLAIM_BYTES_MAX
    # A queue named twice must not be read twice: nothing is written before all is decided.
    for queue in queues if len(queues) == 1 else dict.fromkeys(queues):
        if len(jobs) >= max_jobs or bytes_left <= 0:
            break
        bytes_left = _take(ctx, command, queue, jobs, bytes_left)
    if not jobs:
        return _NONE_READY
    index = ctx.index
    grants = tuple([(job[0], index) for job in jobs])
    if not claim_id:
        return Granted(grants), jobs
    sweep_at = round_up(max([job.after.lease_end for job in jobs]))
    changes: list[Change] = [*jobs, ClaimRecorded(key, record, ClaimRecord(sweep_at, grants))]
    return Granted(grants), changes


def live_grants(ctx: Context, record: ClaimRecord) -> tuple[tuple[int, int], ...]:
    """Those grants whose job is still running with that very token."""
    held = []
    for seq, token in record.grants:
        row = ctx.get(RUN + seq_bytes(seq))
        if row is not None:
            run = run_of(row)
            if run.token == token and run.state == S_RUNNING:
                held.append((seq, token))
    return tuple(held)


def _take(ctx: Context, command: ClaimJobs, queue: str, jobs: list[JobGranted], bytes_left: int) -> int:
    """Add this queue's grants to `jobs`; the bytes then left, 0 when the next job has no room.

    A smaller one behind it is not taken instead: the order is the queue's.
    """
    max_jobs = command.max_jobs
    keys = queue_keys(queue)
    start = keys.ready
    limit = max_jobs - len(jobs)
    for _ in range(PAGES_MAX):
        rows = ctx.txn.scan(start, keys.ready_stop, limit=limit)
        for key, row in rows:
            grant = _grant(ctx, command, key, row)
            if grant is not None:
                payload_bytes = grant.terms.payload_bytes
                if payload_bytes > bytes_left and jobs:
                    return 0
                bytes_left -= payload_bytes
                jobs.append(grant)
                if len(jobs) == max_jobs:
                    return bytes_left
        if len(rows) < limit:
            return bytes_left
        start = rows[-1][0] + b"\0"
        limit = max(PAGE_MIN, max_jobs - len(jobs))
    return bytes_left


def _grant(ctx: Context, command: ClaimJobs, key: bytes, row: tuple[object, ...]) -> JobGranted | None:
    """One job, or None when it has expired, or was granted in this very entry (its token could not grow)."""
    terms = terms_of_row(row)
    seq_key = key[-8:]
    run_row = ctx.get(RUN + seq_key)
    assert run_row is not None
    before = run_of(run_row)
    assert before.state == S_READY
    if before.token >= ctx.index:
        return None
    expires_at_ms = terms.expires_at_ms
    if expires_at_ms is not None and expires_at_ms <= ctx.now_ms and before.attempt == 0:
        return None
    lease_ms = terms.lease_ms if command.lease_ms is None else command.lease_ms
    after = granted(
        before,
        worker=command.worker,
        index=ctx.index,
        now_ms=ctx.now_ms,
        lease_ms=lease_ms,
        lease_end=ctx.lease_clock + lease_ms,
        timeout_end=ctx.lease_clock + terms.timeout_ms,
    )
    return JobGranted(int.from_bytes(seq_key, "big"), key, terms, before, after)


_NONE_READY: Decision = (Granted(()), ())
