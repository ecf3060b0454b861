"""What can go wrong, one class per code of the contract, and what a handler may raise to steer its job.

`OutcomeUnknown` is the only error after which a call may have taken effect: repeat it with the same id. All others
are definite. Codes are matched by value, never by text. Next to read: `transport.py`, which raises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import structs

from horae.wire import SPAN_SECONDS_MAX, FieldError, Problem

if TYPE_CHECKING:
    from horae.jobs import Job


class HoraeError(Exception):
    """Base of all that this library raises."""


class Unreachable(HoraeError):
    """Definite: no node took the call before its deadline, or it was a read. `why`: what the last try met."""

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why or text


class NothingToDo(HoraeError):
    """A worker without tasks, or without queues, was to serve."""


class RequestError(HoraeError):
    """The cluster answered with a problem (RFC 9457). `code` is stable; `detail` is for people."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(_text(problem))
        self.problem = problem
        self.code = problem.code
        self.status = problem.status
        self.detail = problem.detail


class Invalid(RequestError):
    """422: a field is wrong; `problem.errors` names it."""


class Malformed(RequestError):
    """400: the body could not be parsed."""


class Unauthenticated(RequestError):
    """401: no token, or one the cluster does not know."""


class Forbidden(RequestError):
    """403: the token's role or queues do not allow this."""


class NotFound(RequestError):
    """404: no such job."""


class Conflict(RequestError):
    """409: the job's state does not allow it, or the id belongs to another job."""


class LeaseLost(RequestError):
    """409: another attempt holds or ended the job. Final: drop the outcome."""


class PreconditionFailed(RequestError):
    """412: the version that the call was made for is not the current one."""


class TooLarge(RequestError):
    """413: payload, result, progress or body over its limit."""


class RateLimited(RequestError):
    """429: the cluster sheds load, and did until the call's deadline. Nothing was done."""


class NoLeader(RequestError):
    """503: no leader until the call's deadline. Nothing was done."""


class ShuttingDown(RequestError):
    """503: the only nodes that answered are stopping. Nothing was done."""


class OutcomeUnknown(RequestError):
    """504, or no answer came before the deadline: it may or may not take effect. Repeat with the same id only.

    `job_id` is that of a submit, also when the client made it; None for other calls.
    """

    def __init__(self, problem: Problem, job_id: str | None = None) -> None:
        super().__init__(problem)
        self.job_id = job_id


class StorageFull(RequestError):
    """507: the cluster's disks are full; it recovers by itself once there is room."""


class PartlyRefused(HoraeError):
    """Some jobs of a `submit_many` were refused. `results` has, in order, a `Job` or the error of each."""

    def __init__(self, results: Sequence[Job | RequestError]) -> None:
        refused = [(at, result) for at, result in enumerate(results) if isinstance(result, RequestError)]
        first_at, first = refused[0]
        super().__init__(
            f"{len(refused)} of {len(results)} jobs were refused, the first at position {first_at}: {first}"
        )
        self.results = results


class JobFailed(HoraeError):
    """`result()` of a job that finished otherwise than `succeeded`. `job` tells how."""

    def __init__(self, job: Job) -> None:
        why = f": {job.last_error.type}: {job.last_error.message}" if job.last_error is not None else ""
        super().__init__(f"job {job.id} is {job.state}{why}")
        self.job = job


class NotFinished(HoraeError):
    """The job was still on its way at the end of the wait. `job` is its last state."""

    def __init__(self, job: Job) -> None:
        super().__init__(f"job {job.id} is still {job.state}")
        self.job = job


class FellBehind(HoraeError):
    """No node that was asked knows all events after `after` any more; from `up_to` on they do: go on from there."""

    def __init__(self, after: str, up_to: str) -> None:
        super().__init__(f"events after {after} are not kept any more, up to {up_to}: list what you must know")
        self.after = after
        self.up_to = up_to


# ---------------------------------------------------------------- raised by handlers


class Verdict(Exception):
    """Base of what a handler raises to say how its attempt ends."""


class Retry(Verdict):
    """This attempt failed; try again. `in_seconds` overrides the job's back-off: a number or a timedelta, at once where
    that moment has just passed. Raises: TypeError, ValueError (which then are how the attempt failed).
    """

    def __init__(self, message: str = "", *, in_seconds: float | timedelta | None = None) -> None:
        super().__init__(message)
        self.in_seconds = None if in_seconds is None else _later_seconds("Retry: in_seconds", in_seconds)


class Dead(Verdict):
    """This attempt failed and no other can succeed: the job becomes `dead` at once."""


class Snooze(Verdict):
    """Not yet: hand the job back for `seconds`, the attempt not counted. Progress is kept for the next attempt.
    Takes and raises what `Retry` does.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        self.seconds = _later_seconds("Snooze: seconds", seconds)
        super().__init__(self.seconds)  # what it is made of, for copies that go to another process and back

    def __str__(self) -> str:
        return f"not for {self.seconds:g} s"


class JobCancelled(Verdict):
    """The handler saw that it was to stop (`Context.raise_if_cancelled`) and did."""


def _later_seconds(argument: str, given: float | timedelta) -> float:
    """Checked where it is said: what the cluster refuses in the end would leave the job to its lease."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{argument} is a number of seconds or a timedelta, not {given!r}")
    if not seconds <= SPAN_SECONDS_MAX:  # nan neither
        raise ValueError(f"{argument} is at most {SPAN_SECONDS_MAX} (ten years), not {given!r}")
    return float(max(0, seconds))


# ---------------------------------------------------------------- problem → class

BY_CODE: dict[str, type[RequestError]] = {
    "invalid": Invalid,
    "malformed": Malformed,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "conflict": Conflict,
    "lease_lost": LeaseLost,
    "version": PreconditionFailed,
    "too_large": TooLarge,
    "rate_limited": RateLimited,
    "no_leader": NoLeader,
    "shutting_down": ShuttingDown,
    "removed": ShuttingDown,
    "outcome_unknown": OutcomeUnknown,
    "storage_full": StorageFull,
}


def error_of(problem: Problem) -> RequestError:
    """The exception of a problem; a code that this version does not know gives a plain `RequestError`."""
    return BY_CODE.get(problem.code, RequestError)(problem)


def unknown_submit(error: OutcomeUnknown, job_id: str) -> OutcomeUnknown:
    """The same error, with the id to look for and to repeat with."""
    problem = Problem(**(structs.asdict(error.problem) | {"detail": f"submit of job {job_id}: {error.detail}"}))
    return OutcomeUnknown(problem, job_id)


def made_here(code: str, status: int, title: str, detail: str) -> RequestError:
    """An error of the contract that this side found by itself (no answer came)."""
    return error_of(Problem(type="about:blank#" + code, title=title, status=status, detail=detail, code=code))


def invalid_here(pointer: str, detail: str) -> RequestError:
    """The same of one field: what the cluster would say, or could not even be asked."""
    field = FieldError(pointer=pointer, detail=detail)
    problem = made_here("invalid", 422, "Invalid", f"{pointer}: {detail}").problem
    return error_of(structs.replace(problem, errors=[field]))


def _text(problem: Problem) -> str:
    """Each thing once: a detail mostly says what its fields say."""
    detail = problem.detail or problem.title
    fields = [f"{field.pointer}: {field.detail}" for field in problem.errors if field.detail not in detail]
    text = f"{problem.code}: {detail}"
    return f"{text} ({'; '.join(fields)})" if fields else text
