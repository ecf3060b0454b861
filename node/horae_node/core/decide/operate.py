"""What an operator or submitter may do to a job that exists: cancel, requeue, run now, delete."""

from __future__ import annotations

from horae_node.core.changes import Change, Decision, JobChanged, JobPurged, SpecAmended
from horae_node.core.commands import CancelJob, CancelJobIn, DeleteJob, RequeueJob, RequeueJobIn, RunJobNow
from horae_node.core.context import Context
from horae_node.core.decide.finish import NOT_FOUND
from horae_node.core.decide.reading import find_job, read_spec
from horae_node.core.decide.submit import with_expiry
from horae_node.core.model import JobSpec
from horae_node.core.results import Done, Rejected
from horae_node.core.runs import finished, requeued
from horae_node.core.tables import (
    S_CANCELLED,
    S_PENDING,
    S_READY,
    S_RUNNING,
    S_SUCCEEDED,
    terms_of,
    unique_index_key,
    with_expiry_at,
)

FINISHED_ALREADY = Rejected("conflict", "the job is finished")
NOT_FINISHED = Rejected("conflict", "the job is not finished")
SUCCEEDED_ALREADY = Rejected("conflict", "the job succeeded: only dead, cancelled and expired jobs can be requeued")
NOT_PENDING = Rejected("conflict", "the job is not pending")
IN_ANOTHER_STATE = Rejected("conflict", "the job is in another state by now")
UNIQUE_KEY_HELD = Rejected("conflict", "another job holds the unique key")


def decide_cancel(ctx: Context, command: CancelJob) -> Decision:
    """Waiting: cancelled at once, never run. Running: asked for, and told to the worker by its next heartbeat."""
    found = find_job(ctx, command.job_id)
    if found is None:
        return NOT_FOUND, ()
    handle, run = found
    if run.state > S_RUNNING:
        return FINISHED_ALREADY, ()
    if run.state == S_RUNNING:
        if run.cancel_requested:
            return Done(handle.seq, True), ()
        asked = run._replace(cancel_requested=True, version=ctx.index)
        return Done(handle.seq), (JobChanged(handle, run, asked, None),)
    after = finished(run, S_CANCELLED, ending=run.ending, now_ms=ctx.now_ms, index=ctx.index)
    return Done(handle.seq), (JobChanged(handle, run, after, terms_of(read_spec(ctx, handle.seq))),)


def decide_requeue(ctx: Context, command: RequeueJob) -> Decision:
    """Attempts start anew. A time to live counts anew too; a fixed expiry that is past no longer holds."""
    found = find_job(ctx, command.job_id)
    if found is None:
        return NOT_FOUND, ()
    handle, run = found
    if run.state <= S_RUNNING:
        return NOT_FINISHED, ()
    if run.state == S_SUCCEEDED:
        return SUCCEEDED_ALREADY, ()
    if handle.unique_key is not None and ctx.get(unique_index_key(handle.queue, handle.unique_key)) is not None:
        return UNIQUE_KEY_HELD, ()
    spec = read_spec(ctx, handle.seq)
    amended = _expiry_anew(spec, ctx.now_ms)
    after = requeued(run, now_ms=ctx.now_ms, index=ctx.index)
    changes: list[Change] = [JobChanged(handle, run, after, terms_of(amended))]
    if amended != spec:
        changes.append(SpecAmended(handle.seq, amended))
    return Done(handle.seq), changes


def decide_cancel_in(ctx: Context, command: CancelJobIn) -> Decision:
    if _is_elsewhere(ctx, command):
        return IN_ANOTHER_STATE, ()
    return decide_cancel(ctx, CancelJob(command.job_id))


def decide_requeue_in(ctx: Context, command: RequeueJobIn) -> Decision:
    if _is_elsewhere(ctx, command):
        return IN_ANOTHER_STATE, ()
    return decide_requeue(ctx, RequeueJob(command.job_id))


def _is_elsewhere(ctx: Context, command: CancelJobIn | RequeueJobIn) -> bool:
    found = find_job(ctx, command.job_id)
    return found is not None and found[1].state != command.state


def decide_run_now(ctx: Context, command: RunJobNow) -> Decision:
    found = find_job(ctx, command.job_id)
    if found is None:
        return NOT_FOUND, ()
    handle, run = found
    if run.state == S_READY:
        return Done(handle.seq, True), ()
    if run.state != S_PENDING:
        return NOT_PENDING, ()
    after = run._replace(state=S_READY, due_ms=ctx.now_ms, version=ctx.index)
    return Done(handle.seq), (JobChanged(handle, run, after, terms_of(read_spec(ctx, handle.seq))),)


def decide_delete(ctx: Context, command: DeleteJob) -> Decision:
    found = find_job(ctx, command.job_id)
    if found is None:
        return NOT_FOUND, ()
    handle, run = found
    if run.state <= S_RUNNING:
        return NOT_FINISHED, ()
    return Done(handle.seq), (JobPurged(handle.seq, read_spec(ctx, handle.seq), run),)


def _expiry_anew(spec: JobSpec, now_ms: int) -> JobSpec:
    if spec.expires_at_ms is None:
        return spec
    if spec.ttl_ms is None:
        return spec if spec.expires_at_ms > now_ms else with_expiry_at(spec, None)
    anew = with_expiry(with_expiry_at(spec, None), now_ms)
    return anew if anew.expires_at_ms != now_ms else with_expiry_at(anew, None)
