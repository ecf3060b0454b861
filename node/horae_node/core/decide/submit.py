"""Making jobs: one, or many of which all or none come to be.

The id is the idempotency key of the submit; the unique key merges submits while a job lives.
"""

from __future__ import annotations

from horae_node.core.changes import Decision, JobSubmitted, Needs
from horae_node.core.commands import SubmitBatch, SubmitJob
from horae_node.core.context import Context
from horae_node.core.decide.queues import TOO_OLD
from horae_node.core.model import JobSpec, Links, OnFailure, QueueSettings
from horae_node.core.results import BatchSubmitted, Rejected, Submitted
from horae_node.core.runs import submitted
from horae_node.core.tables import (
    RUN,
    S_PENDING,
    S_READY,
    S_RUNNING,
    S_SUCCEEDED,
    id_key,
    is_tombstone,
    links_of,
    run_of,
    seq_bytes,
    tombstone_of,
    unique_index_key,
    with_expiry_at,
)

OTHER_CONTENT = Rejected("conflict", "a job with this id exists and was submitted with other content")
EXPIRED_BEFORE = Rejected("invalid", "expires_at or ttl_seconds is already past")
TOO_OLD_FOR_LINKS = Rejected(
    "conflict",
    "the cluster runs by the rules of an older version, which know neither after nor then: it takes up the new ones by "
    "itself once every member was upgraded and is reachable",
)
BEFORE_EPOCH = Rejected("invalid", "run_at is before 1970")


def decide_submit(ctx: Context, command: SubmitJob) -> Decision:
    """A new job; or the one that has the id (same content only) or holds the unique key."""
    known = known_job(ctx, command)
    if known is not None:
        return known, ()
    decided = make_job(ctx, command, ctx.job_seq + 1)
    if isinstance(decided, Rejected):
        return decided, ()
    return Submitted(decided[0], decided), (decided,)


def decide_submit_batch(ctx: Context, command: SubmitBatch) -> Decision:
    """All or none. Jobs of the batch see each other: a repeated id or unique key means the earlier one of the batch."""
    batch = Batch()
    outcomes: list[Submitted] = []
    changes: list[JobSubmitted] = []
    for position, submit in enumerate(command.jobs):
        # The id counts before the unique key, as for a submit alone, also where an earlier job of the batch has it.
        known = (ctx.schedules and batch.known_id(submit)) or known_job(ctx, submit) or batch.known(submit)
        if known is None:
            decided = make_job(ctx, submit, ctx.job_seq + 1 + len(changes), batch)
            if isinstance(decided, Rejected):
                known = decided
            else:
                changes.append(decided)
                batch.add(submit, decided.seq)
                outcomes.append(Submitted(decided.seq, decided))
                continue
        if isinstance(known, Rejected):
            return known._replace(position=position), ()
        outcomes.append(known)
    return BatchSubmitted(tuple(outcomes)), changes


class Batch:
    """What earlier jobs of a batch will have made."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[int, bytes]] = {}
        self._unique: dict[tuple[str, str], int] = {}
        self._jobs: dict[str, int] = {}

    def pending(self, job_id: str) -> tuple[int, int] | None:
        """The number and state of an earlier job of the batch."""
        twin = self._ids.get(job_id)
        return None if twin is None else (twin[0], S_PENDING)

    def free(self, queue: str) -> None:
        """One that waits there will not any more."""
        self._jobs[queue] = self.jobs_of(queue) - 1

    def jobs_of(self, queue: str) -> int:
        """How many it will have made there."""
        return self._jobs.get(queue, 0)

    def known_id(self, command: SubmitJob) -> Submitted | Rejected | None:
        twin = self._ids.get(command.spec.id)
        return None if twin is None else _same_id(twin[0], twin[1], command.content_hash)

    def known(self, command: SubmitJob) -> Submitted | Rejected | None:
        spec = command.spec
        known = self.known_id(command)
        if known is not None:
            return known
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


def known_job(ctx: Context, command: SubmitJob) -> Submitted | Rejected | None:
    spec = command.spec
    row = ctx.get(id_key(spec.id))
    if row is not None:
        if is_tombstone(row):
            gone = tombstone_of(row)
            known = _same_id(gone.seq, gone.content_hash, command.content_hash)
            return known if isinstance(known, Rejected) else Submitted(gone.seq, None, gone)
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


def make_job(
    ctx: Context, command: SubmitJob, seq: int, batch: Batch | None = None, needs: Needs | None = None
) -> JobSubmitted | Rejected:
    """A job that is not known yet. `batch`: what comes to be before it by the same command; `needs`: what it waits for
    besides the jobs that it names."""
    spec = command.spec
    if ctx.limits:
        settings = ctx.settings(spec.queue)
        if settings.max_depth is not None:
            before_it = 0 if batch is None else batch.jobs_of(spec.queue)
            if _depth(ctx, spec.queue) + before_it >= settings.max_depth:
                return _too_deep(spec.queue, settings)
    elif spec.concurrency_key is not None:
        return TOO_OLD
    links = links_of(spec)
    if links is None or not links.after:
        return new_job(ctx, command, seq, needs) if links is None or ctx.links else TOO_OLD_FOR_LINKS
    if not ctx.links:
        return TOO_OLD_FOR_LINKS
    named = _needs(ctx, links, batch)
    return named if isinstance(named, Rejected) else new_job(ctx, command, seq, named)


def new_job(ctx: Context, command: SubmitJob, seq: int, needs: Needs | None = None) -> JobSubmitted | Rejected:
    """A job that its queue takes. Refused: one that is past already."""
    spec, run_at_ms, delay_ms, content_hash = command
    now_ms = ctx.now_ms
    if spec.expires_at_ms is not None or spec.ttl_ms is not None:
        spec = with_expiry(spec, now_ms)
        assert spec.expires_at_ms is not None
        if spec.expires_at_ms <= now_ms:
            return EXPIRED_BEFORE
    due_ms = now_ms + delay_ms if run_at_ms is None else run_at_ms
    if due_ms < 0:
        return BEFORE_EPOCH
    run = submitted(due_ms=due_ms, now_ms=now_ms, index=ctx.index, content_hash=content_hash, held=needs is not None)
    return JobSubmitted(seq, spec, run, needs)


def _needs(ctx: Context, links: Links, batch: Batch | None) -> Needs | Rejected | None:
    """What a new job waits for; None: nothing. It can name only jobs that exist, so no circle can come to be."""
    waits: dict[int, int] = {}
    failed: dict[int, int] = {}
    for position, job_id in enumerate(links.after):
        found = _seq_and_state(ctx, job_id)
        if found is None and batch is not None:
            found = batch.pending(job_id)
        if found is None:
            return Rejected("invalid", f"names a job that does not exist: {job_id!r}", field=f"after/{position}")
        seq, state = found
        if state == S_SUCCEEDED or (state > S_RUNNING and links.on_failure == OnFailure.RUN):
            continue
        waits[seq] = position
        if state > S_RUNNING:
            failed[seq] = state
    return Needs(links.on_failure, tuple(sorted(waits.items())), tuple(sorted(failed.items()))) if waits else None


def _seq_and_state(ctx: Context, job_id: str) -> tuple[int, int] | None:
    row = ctx.get(id_key(job_id))
    if row is None:
        return None
    if is_tombstone(row):
        gone = tombstone_of(row)
        return gone.seq, gone.state
    run_row = ctx.get(RUN + seq_bytes(row[0]))
    assert run_row is not None
    return row[0], run_of(run_row).state


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
        return with_expiry_at(spec, now_ms + spec.ttl_ms)
    return spec
