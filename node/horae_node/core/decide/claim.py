"""Handing jobs out: by (priority, due, submitted), queues in the order named, each with a token that only grows.

Not here: queues whose jobs have concurrency keys (`turns.py`).
"""

from __future__ import annotations

from horae_node.core.changes import Change, ClaimRecorded, Decision, JobGranted
from horae_node.core.commands import ClaimJobs
from horae_node.core.context import Context
from horae_node.core.decide import turns
from horae_node.core.decide.grant import grant_of
from horae_node.core.decide.reading import read_spec
from horae_node.core.limits import allowance
from horae_node.core.model import NO_SETTINGS
from horae_node.core.results import Granted
from horae_node.core.tables import (
    RUN,
    S_RUNNING,
    ClaimRecord,
    claim_key,
    claim_of,
    queue_keys,
    round_up,
    run_of,
    seq_bytes,
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

    A claim id whose leases live gets the same jobs, of the same queues: a lost answer loses no job.
    """
    worker, queues, max_jobs, _, claim_id = command
    key, record = b"", None
    if claim_id:
        key = claim_key(worker, claim_id, queues if ctx.schedules else ())
        row = ctx.get(key)
        if row is not None:
            record = claim_of(row)
        held = () if record is None else live_grants(ctx, record)
        if not held and ctx.schedules and (older := ctx.get(claim_key(worker, claim_id))) is not None:
            held = tuple(
                [held for held in live_grants(ctx, claim_of(older)) if read_spec(ctx, held[0]).queue in queues]
            )
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
    if ctx.limits:
        settings = ctx.settings(queue)
        if settings is not NO_SETTINGS:
            most = allowance(settings, ctx.counts(queue)[S_RUNNING], ctx.micro(queue))
            if most is not None:
                max_jobs = min(max_jobs, len(jobs) + most)
        lanes = ctx.lanes(queue)
        if lanes is not None and lanes.waiting:
            return turns.take(ctx, command, queue, lanes, jobs, max_jobs, bytes_left)
        if len(jobs) == max_jobs:
            return bytes_left
    keys = queue_keys(queue)
    start = keys.ready
    limit = max_jobs - len(jobs)
    for _ in range(PAGES_MAX):
        rows = ctx.txn.scan(start, keys.ready_stop, limit=limit)
        for key, row in rows:
            grant = grant_of(ctx, command, key, row)
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


_NONE_READY: Decision = (Granted(()), ())
