"""How attempts end: completed, failed, handed back, out of lease, out of time. The token decides who may say so.

A report counts once, and its repeat gets the same answer. A lost lease closes nothing: until another claim is granted,
a late report with the last token is still taken. Such an attempt was not lost after all: `lost` goes back by one, and
its `lease_expired` makes way for what the report says (a failure), or goes (a success, a release). So an attempt is
counted once, as what it ended in, and what `max_lost` bounds are attempts that nobody answered for. A reaped attempt
(time-out) is closed. Where a cancel was asked for, whatever is no success ends as cancelled.
"""

from __future__ import annotations

from typing import NamedTuple

from horae_node.core.changes import Change, Decision, ErrorNoted, JobChanged, JobSubmitted, LossWithdrawn
from horae_node.core.commands import CompleteJob, FailJob, ReleaseJob
from horae_node.core.context import Context
from horae_node.core.decide.links import FOLLOWER, follow
from horae_node.core.decide.reading import find_job, read_spec
from horae_node.core.model import AttemptError, JobSpec, Run
from horae_node.core.results import Done, Outcome, Rejected
from horae_node.core.retry import backoff_ms
from horae_node.core.runs import COMPLETE, FAIL, NONE, RELEASE, TIMEOUT, died, finished, waiting
from horae_node.core.tables import (
    S_CANCELLED,
    S_DEAD,
    S_RUNNING,
    S_SUCCEEDED,
    JobHandle,
    handle_for,
    has_follower,
    terms_of,
)

NOT_FOUND = Rejected("not_found", "no job with this id")
LEASE_LOST = Rejected("lease_lost", "another attempt holds the job, or this one was ended otherwise")


def decide_complete(ctx: Context, command: CompleteJob) -> Decision:
    job_id, token, result = command
    held = _held(ctx, job_id, token, COMPLETE)
    if not isinstance(held, Held):
        return held, ()
    handle, run = held
    if run.state == S_RUNNING and not has_follower(handle):
        after = finished(run, S_SUCCEEDED, ending=COMPLETE, now_ms=ctx.now_ms, index=ctx.index)
        # The running state has no rows that the terms would be needed for: the spec is not read.
        return Done(handle.seq), (JobChanged(handle, run, after, None, None, None, result),)
    spec = read_spec(ctx, handle.seq)
    after = finished(_not_lost(run), S_SUCCEEDED, ending=COMPLETE, now_ms=ctx.now_ms, index=ctx.index)
    changes: list[Change] = [JobChanged(handle, run, after, terms_of(spec), None, None, result)]
    if run.state != S_RUNNING:
        changes.append(LossWithdrawn(handle.seq, run.token))
    follower = follow(ctx, handle.seq, spec)
    if isinstance(follower, JobSubmitted):
        changes.append(follower)
    elif follower is not None:
        error = AttemptError(run.attempt, FOLLOWER, follower.detail, "", ctx.now_ms, run.worker)
        changes.append(ErrorNoted(handle.seq, run.token, error))
    return Done(handle.seq), changes


def decide_fail(ctx: Context, command: FailJob) -> Decision:
    held = _held(ctx, command.job_id, command.token, FAIL)
    if not isinstance(held, Held):
        return held, ()
    handle, run = held
    error = AttemptError(run.attempt, command.error_type, command.message, command.traceback, ctx.now_ms, run.worker)
    spec = read_spec(ctx, handle.seq)
    after = _after_failure(ctx, spec, _not_lost(run), FAIL, retry=command.retry, retry_in_ms=command.retry_in_ms)
    return Done(handle.seq), (JobChanged(handle, run, after, terms_of(spec), error),)


def decide_release(ctx: Context, command: ReleaseJob) -> Decision:
    held = _held(ctx, command.job_id, command.token, RELEASE)
    if not isinstance(held, Held):
        return held, ()
    handle, run = held
    spec = read_spec(ctx, handle.seq)
    if run.cancel_requested:
        after = finished(run, S_CANCELLED, ending=RELEASE, now_ms=ctx.now_ms, index=ctx.index)
    else:
        after = waiting(
            run,
            # Handed back at once, it keeps its place in the line: nothing has happened.
            due_ms=ctx.now_ms + command.delay_ms if command.delay_ms else run.due_ms,
            now_ms=ctx.now_ms,
            attempt=run.attempt - 1,
            failures=run.failures,
            lost=_not_lost(run).lost,
            ending=RELEASE,
            index=ctx.index,
        )
    changed = JobChanged(handle, run, after, terms_of(spec), None, command.progress)
    if run.state == S_RUNNING:
        return Done(handle.seq), (changed,)
    return Done(handle.seq), (changed, LossWithdrawn(handle.seq, run.token))


def lapsed(ctx: Context, seq: int, run: Run) -> JobChanged:
    """The lease ran out: the worker is taken for dead. Ready at once, counted apart from failures."""
    spec = read_spec(ctx, seq)
    lost = run.lost + 1
    message = f"no heartbeat from {run.worker} for {run.lease_ms} ms"
    error = AttemptError(run.attempt, "lease_expired", message, "", ctx.now_ms, run.worker)
    if run.cancel_requested or lost > spec.max_lost:
        state, reason = (S_CANCELLED, "") if run.cancel_requested else (S_DEAD, "poison")
        after = died(
            run, reason, failures=run.failures, lost=lost, ending=NONE, now_ms=ctx.now_ms, index=ctx.index, state=state
        )
    else:
        after = waiting(
            run,
            due_ms=ctx.now_ms,
            now_ms=ctx.now_ms,
            attempt=run.attempt,
            failures=run.failures,
            lost=lost,
            ending=NONE,
            index=ctx.index,
        )
    return JobChanged(handle_for(seq, spec), run, after, terms_of(spec), error)


def timed_out(ctx: Context, seq: int, run: Run) -> JobChanged:
    """The attempt ran for as long as one may: a failure, and closed: its late report is refused."""
    spec = read_spec(ctx, seq)
    message = f"the attempt ran for {spec.timeout_ms} ms"
    error = AttemptError(run.attempt, "timeout", message, "", ctx.now_ms, run.worker)
    after = _after_failure(ctx, spec, run, TIMEOUT, retry=True, retry_in_ms=None)
    return JobChanged(handle_for(seq, spec), run, after, terms_of(spec), error)


class Held(NamedTuple):
    handle: JobHandle
    run: Run


def _held(ctx: Context, job_id: str, token: int, ending: int) -> Held | Outcome:
    """The job whose last attempt may be ended so by `token`, or the answer to give."""
    found = find_job(ctx, job_id)
    if found is None:
        return NOT_FOUND
    handle, run = found
    if token != run.token or token == 0:
        return LEASE_LOST
    if run.ending != NONE:
        return Done(handle.seq, True) if run.ending == ending else LEASE_LOST
    # Finished without a report: lost too often, or cancelled while its lease was lost.
    return LEASE_LOST if run.state > S_RUNNING else Held(handle, run)


def _not_lost(run: Run) -> Run:
    """The run that a report ends: one that waits again was counted as lost, and is answered for after all."""
    return run if run.state == S_RUNNING else run._replace(lost=run.lost - 1)


def _after_failure(
    ctx: Context, spec: JobSpec, run: Run, ending: int, *, retry: bool, retry_in_ms: int | None
) -> Run:  # fmt: skip
    failures = run.failures + 1
    now_ms, index = ctx.now_ms, ctx.index
    state, reason = S_DEAD, ""
    if run.cancel_requested:  # before all else: whoever asked for it does not care whether it could have been retried
        state = S_CANCELLED
    elif not retry:
        reason = "no_retry"
    elif failures >= spec.max_attempts:
        reason = "timeout" if ending == TIMEOUT else "failed"
    else:
        if retry_in_ms is None:
            retry_in_ms = backoff_ms(spec, failures=failures, attempt=run.attempt)
        return waiting(
            run,
            due_ms=now_ms + retry_in_ms,
            now_ms=now_ms,
            attempt=run.attempt,
            failures=failures,
            lost=run.lost,
            ending=ending,
            index=index,
        )
    return died(run, reason, failures=failures, lost=run.lost, ending=ending, now_ms=now_ms, index=index, state=state)
