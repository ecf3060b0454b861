"""One job of a claim: whether it may be granted, and what becomes of it. Next to read: `claim.py`, `turns.py`."""

from __future__ import annotations

from horae_node.core.changes import JobGranted
from horae_node.core.commands import ClaimJobs
from horae_node.core.context import Context
from horae_node.core.runs import granted
from horae_node.core.tables import RUN, S_READY, run_of, terms_of_row


def grant_of(ctx: Context, command: ClaimJobs, key: bytes, row: tuple[object, ...]) -> JobGranted | None:
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
