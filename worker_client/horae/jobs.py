"""The shapes that users hold: jobs as they read, claims, and what to submit. Payloads and results are plain values.

The keys are those of `wire` (a test compares them); times are `datetime` with an offset. Nothing here talks to
anybody. Next to read: `client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from msgspec import Raw, Struct

from horae.wire import OnFailure, Problem, Retry, StateName

RetryPolicy = Retry
"""Back-off between attempts. (`Retry` alone is what a handler raises.)"""

FINISHED = frozenset({"succeeded", "dead", "cancelled", "expired"})


class AttemptError(Struct, frozen=True):
    """One failed attempt."""

    attempt: int
    type: str
    message: str
    traceback: str | None
    at: datetime
    worker: str | None


class Job(Struct, frozen=True, kw_only=True):
    """A job as it was read (docs/contract.md, "Jobs")."""

    id: str
    execution_id: str
    task: str
    payload: Any = None
    queue: str
    state: StateName
    attempt: int
    lost: int
    priority: int
    max_attempts: int
    retry: RetryPolicy
    lease_seconds: float
    timeout_seconds: float
    max_lost: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    expires_at: datetime | None = None
    ttl_seconds: float | None = None
    delay_seconds: float | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    tags: dict[str, str] = {}
    retention_seconds: float
    result: Any = None
    progress: Any = None
    last_error: AttemptError | None = None
    errors: list[AttemptError] = []
    worker: str | None = None
    lease_expires_at: datetime | None = None
    dead_reason: str | None = None
    schedule_id: str | None = None
    nominal_time: datetime | None = None
    cancel_requested: bool = False
    after: list[str] = []
    on_failure: OnFailure = "cancel"
    then: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        """It will not run again, unless somebody requeues it."""
        return self.state in FINISHED


class JobPage(Struct, frozen=True):
    jobs: list[Job]
    next_cursor: str | None


class Claim(Struct, frozen=True, kw_only=True):
    """A job in hand. `lease_token` fences: send it with every effect that must happen once."""

    id: str
    execution_id: str
    task: str
    payload: Any = None
    queue: str
    attempt: int
    max_attempts: int
    lease_token: int
    lease_expires_at: datetime
    lease_seconds: float
    timeout_at: datetime
    tags: dict[str, str] = {}
    schedule_id: str | None = None
    nominal_time: datetime | None = None
    run_at: datetime
    last_error: AttemptError | None = None
    progress: Any = None


class Beat(Struct, frozen=True, omit_defaults=True):
    """One lease to renew. `progress` is MessagePack or absent."""

    job_id: str
    lease_token: int
    progress: Raw | None = None


class Renewal(Struct, frozen=True):
    """What became of one lease at a heartbeat."""

    job_id: str
    status: Literal["ok", "lost"]
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False


class Failure(Struct, frozen=True, omit_defaults=True):
    """How an attempt failed, as it is reported."""

    type: str
    message: str
    traceback: str | None = None


class Ending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt's outcome. `result` is MessagePack or absent (null)."""

    job_id: str
    lease_token: int
    outcome: Literal["complete", "fail", "release"]
    result: Raw | None = None
    error: Failure | None = None
    retry: bool = True
    retry_in_seconds: float | None = None
    delay_seconds: float = 0
    progress: Raw | None = None


class Ended(Struct, frozen=True):
    """What the cluster said to one `Ending`: `error` is None when it was accepted, now or by an earlier call.

    `state`: the job's now; None where it was not accepted, or its record is gone already.
    """

    job_id: str
    error: Problem | None = None
    state: StateName | None = None


class JobOptions(TypedDict, total=False):
    """The optional keys of a submit. `run_at` and `expires_at` must have an offset (or be RFC 3339 text)."""

    id: str | None
    queue: str
    run_at: datetime | str | None
    delay_seconds: float | None
    priority: int
    max_attempts: int
    retry: RetryPolicy | None
    lease_seconds: float
    timeout_seconds: float
    max_lost: int
    expires_at: datetime | str | None
    ttl_seconds: float | None
    unique_key: str | None
    concurrency_key: str | None
    tags: dict[str, str]
    retention_seconds: float
    after: Sequence[str]
    on_failure: OnFailure | None
    then: NewJob | None


class JobsWanted(TypedDict, total=False):
    """Which jobs a list has: those to which all applies that is given. `tag` is `"key:value"`.

    Made at `created_from` or later, and before `created_before`: moments with an offset, or RFC 3339 text.
    """

    queue: str | None
    state: str | None
    task: str | None
    schedule_id: str | None
    tag: str | None
    created_from: datetime | str | None
    created_before: datetime | str | None


class JobFilter(TypedDict, total=False):
    """Which jobs a bulk call means: those that have all that is given. `tag` is `"key:value"`."""

    queue: str | None
    state: str | None
    task: str | None
    tag: str | None


class QueueSettings(TypedDict, total=False):
    """What `set_queue` changes of a queue. None is the default: no limit; one running job for each concurrency key."""

    paused: bool | None
    max_running: int | None
    max_running_per_key: int | None
    rate_per_second: float | None
    burst: int | None
    max_depth: int | None


class NewJob(Struct, kw_only=True, omit_defaults=True):
    """A job to submit. A key that is left out gets the cluster's default; `id` one that the client makes.

    `after`: ids of jobs that must be finished before; `then`: the job that the success of this one brings forth.
    """

    task: str
    payload: Any = None
    id: str | None = None
    queue: str = "default"
    run_at: datetime | str | None = None
    delay_seconds: float | None = None
    priority: int = 0
    max_attempts: int | None = None
    retry: RetryPolicy | None = None
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    max_lost: int | None = None
    expires_at: datetime | str | None = None
    ttl_seconds: float | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    tags: dict[str, str] = {}
    retention_seconds: float | None = None
    after: Sequence[str] = ()
    on_failure: OnFailure | None = None
    then: NewJob | None = None
