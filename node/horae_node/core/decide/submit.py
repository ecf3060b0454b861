"""Making jobs: one, or many of which all or none come to be.

The id is the idempotency key of the submit; the unique key merges submits while a job lives.
"""

from __future__ import annotations

from horae_node.core.changes import Decision, JobSubmitted
from horae_node.core.commands import SubmitBatch, SubmitJob
from horae_node.core.context import Context
from horae_node.core.decide.queues import TOO_OLD
from horae_node.core.model import JobSpec, QueueSettings
from horae_node.core.results import BatchSubmitted, Rejected, Submitted
from horae_node.core.runs import submitted
from horae_node.core.tables import RUN, S_PENDING, S_READY, id_key, run_of, seq_bytes, unique_index_key

OTHER_CONTENT = Rejected("conflict", "a job with this id exists and was submitted with other content")
EXPIRED_BEFORE = Rejected("invalid", "expires_at or ttl_seconds is already past")
BEFORE_EPOCH = Rejected("invalid", "run_at is before 1970")


def decide_submit(ctx: Context, command: SubmitJob) -> Decision:
    """A new job; or the one that has the id (same content only) or holds the unique key."""
    known = _known(ctx, command)
    if known is not None:
        return known, ()
    decided = _new(ctx, command, ctx.job_seq + 1, 0)
    if isinstance(decided, Rejected):
        return decided, ()
    return Submitted(decided[0], decided), (decided,)


def decide_submit_batch(ctx: Context, command: SubmitBatch) -> Decision:
    """All or none. Jobs of the batch see each other: a repeated id or unique key means the earlier one of the batch."""
    batch = _Batch()
    outcomes: list[Submitted] = []
    changes: list[JobSubmitted] = []
    for position, submit in enumerate(command.jobs):
        known = _known(ctx, submit) or batch.known(submit)
        if known is None:
            queue = submit.spec.queue
            decided = _new(ctx, submit, ctx.job_seq + 1 + len(changes), batch.jobs_of(queue))
            if isinstance(decided, Rejected):
                known = decided
            else:
                changes.append(decided)
                batch.add(submit, decided.seq)
                outcomes.append(Submitted(decided.seq, decided))
                continue
        if isinstance(known, Rejected):
            return Rejected(known.code, known.detail, position), ()
        outcomes.append(known)
    return BatchSubmitted(tuple(outcomes)), changes


class _Batch:
    """What earlier jobs of a batch will have made."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[int, bytes]] = {}
        self._unique: dict[tuple[str, str], int] = {}
        self._jobs: dict[str, int] = {}

    def jobs_of(self, queue: str) -> int:
        """How many it will have made there."""
        return self._jobs.get(queue, 0)

    def known(self, command: SubmitJob) -> Submitted | Rejected | None:
        spec = command.spec
        twin = self._ids.get(spec.id)
        if twin is not None:
            return _same_id(twin[0], twin[1], command.content_hash)
        if spec.unique_key is not None:
            holder = self._unique.get((spec.queue, spec.unique_key))
            if holder is not None:
                return Submitted(holder, None)
        return None

    def add(self, command: SubmitJob, seq: int) -> None:
        spec = command.spec
        self._ids[spec.id] = (seq, command.content_hash)
        self._jobs[spec.queue] = self.jobs_of(spec.queue) + 1
        if spec.unique_key is not None:
            self._unique[spec.queue, spec.unique_key] = seq


def _known(ctx: Context, command: SubmitJob) -> Submitted | Rejected | None:
    spec = command.spec
    row = ctx.get(id_key(spec.id))
    if row is not None:
        run_row = ctx.get(RUN + seq_bytes(row[0]))
        assert run_row is not None
        return _same_id(row[0], run_of(run_row).content_hash, command.content_hash)
    if spec.unique_key is not None:
        holder = ctx.get(unique_index_key(spec.queue, spec.unique_key))
        if holder is not None:
            return Submitted(holder[0], None)
    return None


def _same_id(seq: int, first_hash: bytes, content_hash: bytes) -> Submitted | Rejected:
    if first_hash and first_hash == content_hash:
        return Submitted(seq, None)
    return OTHER_CONTENT


def _new(ctx: Context, command: SubmitJob, seq: int, before_it: int) -> JobSubmitted | Rejected:
    """`before_it`: jobs of its queue that come to be by the same command."""
    spec, run_at_ms, delay_ms, content_hash = command
    if ctx.limits:
        settings = ctx.settings(spec.queue)
        if settings.max_depth is not None and _depth(ctx, spec.queue) + before_it >= settings.max_depth:
            return _too_deep(spec.queue, settings)
    elif spec.concurrency_key is not None:
        return TOO_OLD
    now_ms = ctx.now_ms
    if spec.expires_at_ms is not None or spec.ttl_ms is not None:
        spec = with_expiry(spec, now_ms)
        assert spec.expires_at_ms is not None
        if spec.expires_at_ms <= now_ms:
            return EXPIRED_BEFORE
    due_ms = now_ms + delay_ms if run_at_ms is None else run_at_ms
    if due_ms < 0:
        return BEFORE_EPOCH
    return JobSubmitted(seq, spec, submitted(due_ms=due_ms, now_ms=now_ms, index=ctx.index, content_hash=content_hash))


def _depth(ctx: Context, queue: str) -> int:
    counts = ctx.counts(queue)
    return counts[S_PENDING] + counts[S_READY]


def _too_deep(queue: str, settings: QueueSettings) -> Rejected:
    return Rejected(
        "rate_limited", f"queue {queue!r} is as deep as its max_depth allows ({settings.max_depth} jobs wait)"
    )


def with_expiry(spec: JobSpec, now_ms: int) -> JobSpec:
    """The spec as stored: a time to live becomes the moment that it means."""
    if spec.expires_at_ms is None and spec.ttl_ms is not None:
        return spec._replace(expires_at_ms=now_ms + spec.ttl_ms)
    return spec
