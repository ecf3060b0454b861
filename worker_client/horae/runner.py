"""One attempt: from the handler's call to the outcome that is to be reported. No I/O with the cluster.

Next to read: `reporter.py`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from horae import codec, errors, wire
from horae.jobs import Claim, Ending, Failure
from horae.leases import CANCEL_REQUESTED
from horae.registry import Context, Registry, Task
from horae.threads import ThreadPool

STOPPING = "stopping"
UNKNOWN_TASK_RETRY_SECONDS = 30.0
"""A rolling deploy takes minutes: by the job's own back-off all attempts could be gone before the new code is here."""


async def run_attempt(
    claim: Claim, context: Context, registry: Registry, pool: ThreadPool, interrupted: Callable[[], bool]
) -> Ending | None:
    """Run the handler; its outcome, or None when it stopped for a reason that leaves nothing to report.

    `interrupted`: the worker has cancelled it, not another.
    """
    task = registry.get(claim.task)
    if task is None:
        return unknown_task(claim, registry.names())
    hooks = registry.hooks
    try:
        await hooks.before(context)
        result = await _call(task, context, claim.payload, pool)
        await hooks.after(context, result)
        return completed(claim, result)
    except errors.Snooze as verdict:
        return released(claim, verdict.seconds)
    except errors.Dead as verdict:
        await hooks.on_error(context, verdict)
        return failed(claim, verdict, retry=False)
    except errors.Retry as verdict:
        await hooks.on_error(context, verdict)
        return failed(claim, verdict, retry_in_seconds=verdict.in_seconds)
    except (asyncio.CancelledError, errors.JobCancelled) as error:
        if not context.cancelled:
            # Who ends a whole loop cancels all its tasks in one pass, in no order: the worker's own may come next.
            await asyncio.sleep(0)
        if context.cancel_reason == STOPPING and task.is_async and not interrupted():
            return loop_ended(claim, error)
        return stopped(claim, context.cancel_reason, error)
    except BaseException as error:
        # The root of the handler: whatever it raises is its outcome, `KeyboardInterrupt` too. A signal stops the worker
        # by another way (`Worker.serve`, or the loop's own runner), never by what a handler raises.
        await hooks.on_error(context, error)
        return failed(claim, error)


async def _call(task: Task, context: Context, payload: Any, pool: ThreadPool) -> Any:
    call = task.bind(context, payload)
    if task.is_async:
        return await call()
    value, error = await pool.run(call)
    try:
        if error is not None:
            raise error
        return value
    finally:
        del value, error  # else the exception and this frame would hold each other, and all that the handler's held


def completed(claim: Claim, result: Any) -> Ending:
    """Success, or a failure for good when the result cannot be kept: the next attempt would return the same."""
    if result is None:
        return Ending(job_id=claim.id, lease_token=claim.lease_token, outcome="complete")
    try:
        raw = codec.encode_value(result, bytes_max=wire.RESULT_BYTES_MAX, what="result")
    except (TypeError, errors.Invalid) as error:
        return _refused_result(claim, "ResultInvalid", f"the result has no JSON form: {error}")
    except errors.TooLarge as error:
        return _refused_result(claim, "ResultTooLarge", error.detail)
    return Ending(job_id=claim.id, lease_token=claim.lease_token, outcome="complete", result=raw)


def released(claim: Claim, delay_seconds: float = 0) -> Ending:
    """Hand it back, the attempt not counted."""
    return Ending(job_id=claim.id, lease_token=claim.lease_token, outcome="release", delay_seconds=delay_seconds)


def loop_ended(claim: Claim, error: BaseException) -> Ending | None:
    """The loop was ended under the handler, perhaps by its own `sys.exit`: a release would do that again for ever, and
    what may be innocent shall not die of it. On the last attempt nothing is told: the lease runs out, which is counted.
    """
    return failed(claim, error) if claim.attempt < claim.max_attempts else None


def stopped(claim: Claim, reason: str, error: BaseException) -> Ending | None:
    """The handler was stopped, or stopped itself, because of `reason`."""
    if reason == STOPPING:
        return released(claim)
    if reason == CANCEL_REQUESTED:
        # A failure that could be retried, of a job that is to be cancelled, ends as `cancelled`, and says why.
        failure = Failure(type="Cancelled", message="cancelled on request")
        return Ending(job_id=claim.id, lease_token=claim.lease_token, outcome="fail", error=failure)
    if reason:
        return None  # the lease is gone: the next attempt is another worker's
    return failed(claim, error)


def failed(claim: Claim, error: BaseException, *, retry: bool = True, retry_in_seconds: float | None = None) -> Ending:
    """The attempt failed with `error`."""
    return Ending(
        job_id=claim.id,
        lease_token=claim.lease_token,
        outcome="fail",
        error=describe(error),
        retry=retry,
        retry_in_seconds=retry_in_seconds,
    )


def unknown_task(claim: Claim, known: list[str]) -> Ending:
    """No handler here. A failure, so that it shows and ends (a release could go round for ever), but with time between
    the attempts: other workers of the queue, or the next deploy, may know the task.
    """
    message = f"no handler for task {claim.task!r} on this worker; it knows: {', '.join(sorted(known)) or 'none'}"
    failure = Failure(type="UnknownTask", message=_cut(message, wire.ERROR_MESSAGE_CHARS_MAX))
    return Ending(
        job_id=claim.id,
        lease_token=claim.lease_token,
        outcome="fail",
        error=failure,
        retry_in_seconds=UNKNOWN_TASK_RETRY_SECONDS,
    )


def describe(error: BaseException) -> Failure:
    """Type, message and traceback, within the contract's limits. A verdict needs no traceback."""
    kind = type(error)
    bare = kind.__module__ in ("builtins", "horae.errors")
    name = kind.__qualname__ if bare else f"{kind.__module__}.{kind.__qualname__}"
    text = None if isinstance(error, errors.Verdict) else _traceback(error)
    return Failure(
        type=_cut(name, wire.ERROR_TYPE_CHARS_MAX),
        message=_cut(_message(error), wire.ERROR_MESSAGE_CHARS_MAX),
        traceback=text,
    )


def _refused_result(claim: Claim, kind: str, message: str) -> Ending:
    failure = Failure(type=kind, message=_cut(message, wire.ERROR_MESSAGE_CHARS_MAX))
    return Ending(job_id=claim.id, lease_token=claim.lease_token, outcome="fail", error=failure, retry=False)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # a handler's own exception class may be broken; its outcome must still be told
        return f"(its text cannot be made: {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    """The end of the traceback, which tells the most, without our own frames at its start."""
    try:
        text = "".join(traceback.format_exception(type(error), error, _past_our_frames(error.__traceback__)))
    except BaseException as second:  # as above
        text = f"(its traceback cannot be made: {type(second).__name__})"
    limit = wire.ERROR_TRACEBACK_CHARS_MAX
    return _clean(text if len(text) <= limit else "…" + text[1 - limit :])


def _past_our_frames(frames: TracebackType | None) -> TracebackType | None:
    start = frames
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("horae."):
        frames = frames.tb_next
    return frames or start


def _cut(text: str, chars_max: int) -> str:
    return _clean(text if len(text) <= chars_max else text[: chars_max - 1] + "…")


def _clean(text: str) -> str:
    """Text that every encoding can carry: no lone surrogates, no NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
