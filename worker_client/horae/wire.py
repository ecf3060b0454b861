"""The contract with the outside, said once: every request and answer as a msgspec Struct, with its limits.

The same definition validates requests, speaks JSON and MessagePack, and yields the schemas of `/openapi.json`
(docs/contract.md). Imports nothing of horae; all may import it. Times in requests are datetimes with an offset, in
answers RFC 3339 strings in UTC with milliseconds. Payloads, results and progress are `Raw`: opaque JSON (or
MessagePack, in a MessagePack body) that no layer below decodes. What a type cannot say (two keys that contradict each
other) a `__post_init__` says, by `Contradiction`. Next to read: `horae_http/codec.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
PROGRESS_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 1024 * 1024
"""A request's body, but for the bulk calls: four times the largest payload, to leave room for escapes and spaces."""
BULK_BODY_BYTES_MAX = 8 * 1024 * 1024
"""The body of a batch, of a bulk ending, of a heartbeat: the node reads it on the loop that leads. An item of it may
have `BODY_BYTES_MAX`, as if it came alone."""
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""What callers made large (payloads, results, progress, errors, tags, links) in a page of jobs or of schedules, and of
jobs that a batch found there: the one that passes it is the last that is shown, or shown whole."""
BATCH_JOBS_MAX = 1000
CLAIM_JOBS_MAX = 1000
LIST_LIMIT_MAX = 1000
WAIT_SECONDS_MAX = 60
TAGS_MAX = 16
TAG_VALUE_CHARS_MAX = 200
JSON_DEPTH_MAX = 100
"""Levels of lists and objects in a payload, result or progress: what every JSON and MessagePack library can read."""
QUEUES_PER_CLAIM_MAX = 1000
AFTER_JOBS_MAX = 100
BATCH_AFTER_MAX = 5000
"""Names in the `after` of all jobs of a batch: each costs two rows."""
THEN_JOBS_MAX = 10
"""How many jobs may follow one another by `then`."""
ERROR_TYPE_CHARS_MAX = 200
ERROR_MESSAGE_CHARS_MAX = 4_000
ERROR_TRACEBACK_CHARS_MAX = 16_000
SPAN_SECONDS_MAX = 10 * 366 * 86400
"""Ten years: the longest delay, back-off, retention or time to live."""

NULL: Final = Raw(b"null")
"""What a `Raw` key holds that was left out: this very object, in either encoding."""


def _null() -> Raw:
    """A factory, because a schema cannot show a `Raw` as default."""
    return NULL


MOMENT_MIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT_MAX: Final = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
"""The last millisecond that can be written: a moment later than that would be kept as one of the year 10000."""

# `$(?!\n)` because Python's `$` alone also matches before a final newline.
QUEUE_PATTERN: Final = r"^[A-Za-z0-9_.-]{1,100}$(?!\n)"
_LINE: Final = r"^[^\u0000-\u001f\u007f]+$(?!\n)"
_LINE_OR_EMPTY: Final = r"^[^\u0000-\u001f\u007f]*$(?!\n)"
_TAG_KEY: Final = r"^[^\u0000-\u001f\u007f:]{1,100}$(?!\n)"
_JOB_ID: Final = r"^(?!\.{1,2}$)[^\u0000-\u001f\u007f]+$(?!\n)"

_OWN_ID: Final = r"^[A-Za-z0-9_.-]{1,60}$(?!\n)"
_TAG: Final = r"^[^\u0000-\u001f\u007f:]{1,100}:[^\u0000-\u001f\u007f]{0,200}$(?!\n)"
_EVENT_ID: Final = r"^[0-9]{1,19}(\.[0-9]{1,9})?$(?!\n)"
_QUEUES: Final = r"^[A-Za-z0-9_.-]{1,100}(,[A-Za-z0-9_.-]{1,100}){0,99}$(?!\n)"
_NODE: Final = r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z"

EventType = Literal[
    "submitted",
    "ready",
    "freed",
    "running",
    "retrying",
    "timed_out",
    "lost",
    "released",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
    "cancel_requested",
    "requeued",
    "removed",
    "queue_changed",
    "members_changed",
]
EVENT_TYPES: Final[tuple[EventType, ...]] = get_args(EventType)
_TYPES: Final = rf"^({'|'.join(EVENT_TYPES)})(,({'|'.join(EVENT_TYPES)})){{0,99}}$(?!\n)"

PATTERN_HINTS: Final[dict[str, str]] = {
    _NODE: "must be 1 to 63 letters, digits, dots, dashes or underscores, and begin with a letter or digit",
    QUEUE_PATTERN: "must be 1 to 100 of the characters A-Z a-z 0-9 _ . -",
    _LINE: "must have at least one character and no control characters (NUL, tab, line break)",
    _LINE_OR_EMPTY: "must have no control characters (NUL, tab, line break)",
    _TAG_KEY: "must be 1 to 100 characters, none of them `:` or a control character",
    _TAG: "must be a tag's key and value with a `:` between, as in `tenant:acme`, without control characters",
    _EVENT_ID: "must be the id of an event, as in `1234.0`, or a log index",
    _QUEUES: "must be at most 100 names of queues with commas between, each of 1 to 100 of A-Z a-z 0-9 _ . -",
    _TYPES: f"must be one or more of these, with commas between: {', '.join(EVENT_TYPES)}",
    _JOB_ID: "must have no control characters, and cannot be `.` or `..`, which no URL can carry",
}
"""What each pattern asks for, in words."""

QueueName = Annotated[str, Meta(pattern=QUEUE_PATTERN, description="A queue's name")]
NodeId = Annotated[str, Meta(pattern=_NODE, description="A node's id")]
Address = Annotated[str, Meta(min_length=1, max_length=255, pattern=_LINE)]
JobId = Annotated[str, Meta(min_length=1, max_length=200, pattern=_JOB_ID)]
TaskName = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
WorkerName = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
Key = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
Tag = Annotated[str, Meta(pattern=_TAG, description="`key:value`")]
Cursor = Annotated[str, Meta(max_length=500)]
EventId = Annotated[str, Meta(pattern=_EVENT_ID, description="An event's id, or a log index: all of that entry")]
QueueNames = Annotated[str, Meta(pattern=_QUEUES, description="Names of queues, with commas between")]
EventTypes = Annotated[str, Meta(pattern=_TYPES, description="Types of events, with commas between")]
Tags = Annotated[
    dict[str, str],
    Meta(
        max_length=TAGS_MAX,
        extra_json_schema={
            "propertyNames": {"pattern": _TAG_KEY},
            "additionalProperties": {"type": "string", "maxLength": TAG_VALUE_CHARS_MAX, "pattern": _LINE_OR_EMPTY},
        },
    ),
]
"""Counted by the type, checked by `_require_tags`: a million of them must not be checked one by one to be too many."""
Queues = Annotated[
    list[str],
    Meta(
        min_length=1,
        max_length=QUEUES_PER_CLAIM_MAX,
        extra_json_schema={"items": {"type": "string", "pattern": QUEUE_PATTERN, "description": "A queue's name"}},
    ),
]
"""Counted first, as `Tags`."""
Moment = Annotated[datetime, Meta(tz=True)]
Span = Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)]
Token = Annotated[int, Meta(ge=1, le=2**53)]

OnFailure = Literal["cancel", "run"]
StateName = Literal["pending", "ready", "running", "succeeded", "dead", "cancelled", "expired"]
DeadReason = Literal["failed", "poison", "no_retry", "timeout"]
CANCELLABLE: Final[tuple[StateName, ...]] = ("pending", "ready", "running")
REQUEUABLE: Final[tuple[StateName, ...]] = ("dead", "cancelled", "expired")


class Contradiction(ValueError):
    """What no type says of a request: keys that are wrong together, or one that is checked after it was counted.

    `field` is the key to mend (`queues/3` for an item of it).
    """

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all request bodies: an unknown key is an error, never ignored."""


class Empty(Request):
    """The body of a call that needs none: absent, or an object without keys."""


class Retry(Request):
    """Back-off between attempts: initial x factor^(failures-1), at most max, spread by +-jitter."""

    initial_seconds: Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)] = 1.0
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    max_seconds: Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)] = 3600.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2


class SubmitRequest(Request):
    """`POST /v1/jobs`, and each job of a batch."""

    task: TaskName
    payload: Raw = msgspec.field(default_factory=_null)
    queue: QueueName = "default"
    id: JobId | None = None
    run_at: Moment | None = None
    delay_seconds: Span | None = None
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    retry: Retry = msgspec.field(default_factory=Retry)
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30
    timeout_seconds: Annotated[float, Meta(ge=1, le=SPAN_SECONDS_MAX)] = 3600
    max_lost: Annotated[int, Meta(ge=0, le=100)] = 3
    expires_at: Moment | None = None
    ttl_seconds: Span | None = None
    unique_key: Key | None = None
    concurrency_key: Key | None = None
    tags: Tags = {}
    retention_seconds: Span = 86400
    after: Annotated[list[JobId], Meta(max_length=AFTER_JOBS_MAX)] = []
    on_failure: OnFailure | None = None
    then: SubmitRequest | None = None

    def __post_init__(self) -> None:
        if self.then is not None or self.after or self.on_failure is not None:
            _require_links(self)
        if self.tags:
            _require_tags(self.tags)
        if self.run_at is not None:
            _require_moment("run_at", self.run_at)
            if self.delay_seconds is not None:
                raise Contradiction("delay_seconds", "cannot be given together with `run_at`: leave one of them out")
        if self.expires_at is not None:
            _require_moment("expires_at", self.expires_at)
            if self.ttl_seconds is not None:
                raise Contradiction("ttl_seconds", "cannot be given together with `expires_at`: leave one of them out")
            if self.run_at is not None and _moment_ms(self.expires_at) <= _moment_ms(self.run_at):
                raise Contradiction("expires_at", "is not after `run_at`: the job would never run")
        if self.delay_seconds is not None and _is_over_by(self.ttl_seconds, self.delay_seconds):
            raise Contradiction(
                "ttl_seconds", "counts from the moment that the delay does, and ends before it: the job would never run"
            )


def _is_over_by(ttl_seconds: float | None, delay_seconds: float) -> bool:
    """In whole milliseconds, as both are kept."""
    return ttl_seconds is not None and round(ttl_seconds * 1000) <= round(delay_seconds * 1000)


def _moment_ms(moment: datetime) -> int:
    """As it is kept: a finer part counts as a whole one more."""
    return -((MOMENT_MIN - moment) // timedelta(milliseconds=1))


def payload_bytes(job: SubmitRequest) -> int:
    """Of a job, and of those that are to follow it."""
    return len(job.payload) + (0 if job.then is None else payload_bytes(job.then))


def _require_links(request: SubmitRequest) -> None:
    if request.on_failure is not None and not request.after:
        raise Contradiction("on_failure", "has no meaning without `after`: leave it out")
    for position, job_id in enumerate(request.after):
        if job_id in request.after[:position]:
            raise Contradiction(f"after/{position}", "is named twice")
        if job_id == request.id:
            raise Contradiction(f"after/{position}", "is the job itself, which would never run")
    if request.then is not None:
        _require_follower(request.then)
        then: SubmitRequest | None = request.then
        while then is not None:
            if request.id and then.id == request.id:
                raise Contradiction("then", f"names two jobs {request.id!r}: one id is one job")
            then = then.then


def _require_follower(then: SubmitRequest) -> None:
    for field, instead in (("run_at", "delay_seconds"), ("expires_at", "ttl_seconds")):
        if getattr(then, field) is not None:
            raise Contradiction(
                f"then/{field}", f"has no meaning here: `{instead}` counts from the success of the job before"
            )
    if then.after:
        raise Contradiction("then/after", "has no meaning here: it comes to be when the job before has succeeded")
    if _is_over_by(then.ttl_seconds, then.delay_seconds or 0):
        raise Contradiction("then/ttl_seconds", "ends before the job is due: it would never run")
    followers, ids = 1, {then.id}
    while (later := then.then) is not None:
        then, followers = later, followers + 1
        if then.id and then.id in ids:
            raise Contradiction("then", f"names two jobs {then.id!r}: one id is one job")
        ids.add(then.id)
        if followers > THEN_JOBS_MAX:
            raise Contradiction("then", f"goes on for more than {THEN_JOBS_MAX} jobs")


SCHEDULE_ID_BYTES_MAX: Final = 120
"""A trigger's job has the schedule's id, an `@` and a moment of 24 characters as its own, and what follows it a `.then`
each: 200 at the most."""
MissedPolicy = Literal["skip", "latest", "all"]
OverlapPolicy = Literal["allow", "skip", "queue", "cancel"]
GapPolicy = Literal["after", "skip"]
RepeatPolicy = Literal["first", "last", "both"]


class ScheduleRule(Request, kw_only=True):
    """When a schedule triggers."""

    cron: Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)] | None = None
    every_seconds: Annotated[float, Meta(ge=1, le=SPAN_SECONDS_MAX)] | None = None
    timezone: Annotated[str, Meta(min_length=1, max_length=100, pattern=_LINE)] = "UTC"
    jitter_seconds: Annotated[float, Meta(ge=0, le=86400)] = 0
    dst_gap: GapPolicy = "after"
    dst_repeat: RepeatPolicy = "first"
    starts_at: Moment | None = None
    ends_at: Moment | None = None

    def __post_init__(self) -> None:
        if (self.cron is None) == (self.every_seconds is None):
            raise Contradiction("cron", "or `every_seconds` is required, and not both of them")
        if self.every_seconds is not None and self.every_seconds * 1000 != round(self.every_seconds * 1000):
            raise Contradiction("every_seconds", "is kept in milliseconds: give no finer part")
        for field in ("starts_at", "ends_at"):
            moment = getattr(self, field)
            if moment is not None:
                _require_moment(field, moment)
        if self.starts_at is not None and self.ends_at is not None and self.ends_at <= self.starts_at:
            raise Contradiction("ends_at", "is not after `starts_at`: it would never trigger")


class ScheduleTerms(ScheduleRule, kw_only=True):
    """And what becomes of its triggers."""

    missed: MissedPolicy = "skip"
    catch_up_seconds: Span = 86400
    max_catch_up: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    grace_seconds: Span = 60
    overlap: OverlapPolicy = "allow"
    paused: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.missed == "all" and self.overlap != "allow":
            raise Contradiction(
                "overlap",
                f"`{self.overlap}` contradicts `missed` `all`: triggers that are made up for come all at once, and "
                "would overlap: use `latest`, or `allow`",
            )


class ScheduleRequest(ScheduleTerms, kw_only=True):
    """`PUT /v1/schedules/{id}`. `job`: the keys of a submit, less those that each trigger has of its own."""

    job: SubmitRequest

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_template(self.job, self.overlap)


class PreviewRequest(ScheduleTerms, kw_only=True):
    """`POST /v1/schedules/preview`: when a schedule would trigger. What else it has may be given, and is checked. `n`
    and `from` may stand in the query instead."""

    id: JobId = "preview"
    n: Annotated[int, Meta(ge=1, le=1000)] | None = None
    from_: Moment | None = msgspec.field(default=None, name="from")
    job: SubmitRequest | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.job is not None:
            _require_template(self.job, self.overlap)


class BackfillRequest(Request):
    """`POST /v1/schedules/{id}/backfill`: the triggers from `from` on, and before `to`."""

    from_: Moment = msgspec.field(name="from")
    to: Moment

    def __post_init__(self) -> None:
        _require_moment("from", self.from_)
        _require_moment("to", self.to)
        if self.to <= self.from_:
            raise Contradiction("to", "is not after `from`")


class TriggerRequest(Request):
    """`POST /v1/schedules/{id}/trigger`; may be left out. The job's id is `{schedule}@manual-{id}`: `id` makes the call
    one that may be repeated."""

    id: Annotated[str, Meta(pattern=_OWN_ID)] | None = None


def _require_template(job: SubmitRequest, overlap: OverlapPolicy) -> None:
    if job.unique_key is not None and overlap in ("queue", "cancel"):
        raise Contradiction(
            "job/unique_key", f"contradicts `overlap` `{overlap}`: the old job has it until it is finished"
        )
    for field, why in (
        ("id", "each trigger's job has the id `schedule@moment`"),
        ("run_at", "a job is due when its schedule triggers"),
        ("delay_seconds", "a job is due when its schedule triggers"),
    ):
        if getattr(job, field) is not None:
            raise Contradiction(f"job/{field}", f"has no meaning in a schedule: {why}")
    if job.after:
        raise Contradiction("job/after", "has no meaning in a schedule: use `overlap` or `then`")
    if _is_over_by(job.ttl_seconds, 0):
        raise Contradiction("job/ttl_seconds", "ends at once: no job would ever run")
    then = job.then
    while then is not None:
        if then.id is not None:
            raise Contradiction("job/then/id", "has no meaning in a schedule: each job has an id of its own")
        then = then.then


QUEUE_JOBS_MAX: Final = 1_000_000_000
Limit = Annotated[int, Meta(ge=1, le=QUEUE_JOBS_MAX)]


class QueuePatch(Request):
    """`PATCH /v1/queues/{name}`. What is not named stays as it is; null is the default."""

    paused: bool | UnsetType | None = UNSET
    max_running: Limit | UnsetType | None = UNSET
    max_running_per_key: Limit | UnsetType | None = UNSET
    rate_per_second: Annotated[float, Meta(ge=0.001, le=1_000_000)] | UnsetType | None = UNSET
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    max_depth: Annotated[int, Meta(ge=0, le=QUEUE_JOBS_MAX)] | UnsetType | None = UNSET


class BatchRequest(Request):
    jobs: Annotated[list[SubmitRequest], Meta(min_length=1, max_length=BATCH_JOBS_MAX)]
    atomic: bool = False

    def __post_init__(self) -> None:
        require_few_parents(self.jobs)


def require_few_parents(jobs: Iterable[SubmitRequest]) -> None:
    """Raises: `Contradiction`, when the jobs of a batch name too many others."""
    if sum([len(job.after) for job in jobs]) > BATCH_AFTER_MAX:
        raise Contradiction("jobs", f"name more than {BATCH_AFTER_MAX} jobs in `after`, all together")


class ClaimRequest(Request):
    """`POST /v1/claims`. Fewer than `max_jobs` are granted when payloads of 8 MiB are: the next claim gets the rest."""

    worker: WorkerName
    queues: Queues
    max_jobs: Annotated[int, Meta(ge=1, le=CLAIM_JOBS_MAX)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] | None = None
    claim_id: Key | None = None

    def __post_init__(self) -> None:
        for position, queue in enumerate(self.queues):
            if _is_queue(queue) is None:
                raise Contradiction(f"queues/{position}", PATTERN_HINTS[QUEUE_PATTERN])


class LeaseBeat(Request):
    job_id: JobId
    lease_token: Token
    progress: Raw | UnsetType = UNSET


class HeartbeatRequest(Request):
    worker: WorkerName
    leases: Annotated[list[LeaseBeat], Meta(max_length=CLAIM_JOBS_MAX)]


class CompleteRequest(Request):
    lease_token: Token
    result: Raw = msgspec.field(default_factory=_null)


class ErrorBody(Request):
    type: Annotated[str, Meta(max_length=ERROR_TYPE_CHARS_MAX)] = "error"
    message: Annotated[str, Meta(max_length=ERROR_MESSAGE_CHARS_MAX)] = ""
    traceback: Annotated[str, Meta(max_length=ERROR_TRACEBACK_CHARS_MAX)] | None = None


class FailRequest(Request):
    lease_token: Token
    error: ErrorBody
    retry: bool = True
    retry_in_seconds: Span | None = None

    def __post_init__(self) -> None:
        if not self.retry and self.retry_in_seconds is not None:
            raise Contradiction("retry_in_seconds", _NO_RETRY)


_NO_RETRY: Final = "has no meaning where `retry` is false: leave it out"


class ReleaseRequest(Request):
    lease_token: Token
    delay_seconds: Span = 0
    progress: Raw | UnsetType = UNSET


class EndingRequest(Request):
    """One item of `POST /v1/leases/complete`: the keys of the single call, by `outcome`."""

    job_id: JobId
    lease_token: Token
    outcome: Literal["complete", "fail", "release"]
    result: Raw | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET
    retry: bool | UnsetType = UNSET
    retry_in_seconds: Span | UnsetType | None = UNSET
    delay_seconds: Span | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.outcome == "fail" and self.error is UNSET:
            raise Contradiction("error", "is required where `outcome` is `fail`")
        if self.retry is False and isinstance(self.retry_in_seconds, float | int):
            raise Contradiction("retry_in_seconds", _NO_RETRY)
        for field in _FOREIGN_KEYS[self.outcome]:
            if getattr(self, field) is not UNSET:
                raise Contradiction(field, f"has no meaning where `outcome` is `{self.outcome}`: leave it out")


_FOREIGN_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "complete": ("error", "retry", "retry_in_seconds", "delay_seconds", "progress"),
    "fail": ("result", "delay_seconds", "progress"),
    "release": ("result", "error", "retry", "retry_in_seconds"),
}


class EndingsRequest(Request):
    worker: WorkerName
    leases: Annotated[list[EndingRequest], Meta(min_length=1, max_length=CLAIM_JOBS_MAX)]


class JobFilter(Request):
    """Which jobs a bulk call means: those that have all that is given."""

    queue: QueueName | None = None
    task: TaskName | None = None
    tag: Tag | None = None


class CancelFilter(JobFilter):
    """Without `state`: all that are not finished."""

    state: Annotated[StateName, Meta(extra_json_schema={"enum": list(CANCELLABLE)})] | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in CANCELLABLE:
            raise Contradiction("state", f"must be one of {', '.join(CANCELLABLE)}: others are finished")


class RequeueFilter(JobFilter):
    state: Annotated[StateName, Meta(extra_json_schema={"enum": list(REQUEUABLE)})] = "dead"

    def __post_init__(self) -> None:
        if self.state not in REQUEUABLE:
            raise Contradiction("state", f"must be one of {', '.join(REQUEUABLE)}: no other jobs can be requeued")


class BulkRequest(Request):
    """Base of the bulk calls: at most `limit` jobs, from where `cursor`, an earlier answer's, left off."""

    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = LIST_LIMIT_MAX
    cursor: Cursor | None = None


class CancelManyRequest(BulkRequest, kw_only=True):
    """`POST /v1/jobs/cancel`."""

    filter: CancelFilter


class RequeueManyRequest(BulkRequest, kw_only=True):
    """`POST /v1/jobs/requeue`."""

    filter: RequeueFilter


_is_queue: Final = re.compile(QUEUE_PATTERN).match
_is_tag_key: Final = re.compile(_TAG_KEY).match
_is_line_or_empty: Final = re.compile(_LINE_OR_EMPTY).match


def _require_tags(tags: dict[str, str]) -> None:
    for key, value in tags.items():
        if _is_tag_key(key) is None:
            raise Contradiction("tags", f"has a key that {PATTERN_HINTS[_TAG_KEY]}")
        if len(value) > TAG_VALUE_CHARS_MAX:
            raise Contradiction("tags", f"has a value that must have at most {TAG_VALUE_CHARS_MAX} characters")
        if _is_line_or_empty(value) is None:
            raise Contradiction("tags", f"has a value that {PATTERN_HINTS[_LINE_OR_EMPTY]}")


def _require_moment(field: str, moment: datetime) -> None:
    if not MOMENT_MIN <= moment <= MOMENT_MAX:
        raise Contradiction(field, "must lie between 1970-01-01T00:00:00Z and the end of 9999, in UTC")


# ---------------------------------------------------------------- queries

Consistency = Literal["linearizable", "local"]


class NoQuery(Request):
    """A call without query parameters: any is an error."""


class ReadQuery(Request):
    consistency: Consistency = "linearizable"


class AddQuery(Request):
    """`POST /v1/cluster/members`: how long the answer may wait for the new node to count."""

    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 30


class BackupQuery(ReadQuery):
    """`GET /v1/backup`: the copy holds at least the log entry `after` (an `applied_index` of `GET /v1/cluster`).

    Without `after` all that was acknowledged before the call; with `consistency` `local` what the node has.
    """

    after: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


class JobQuery(ReadQuery):
    """`GET /v1/jobs/{id}`."""

    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0


class JobsQuery(ReadQuery):
    """`GET /v1/jobs`."""

    queue: QueueName | None = None
    state: StateName | None = None
    task: TaskName | None = None
    tag: Tag | None = None
    schedule_id: JobId | None = None
    created_from: Moment | None = None
    created_before: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = 50
    cursor: Cursor | None = None


class SchedulesQuery(ReadQuery):
    """`GET /v1/schedules`."""

    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = 50
    cursor: Cursor | None = None


class TriggersQuery(ReadQuery):
    """`GET /v1/schedules/{id}/triggers`: from `from` on, and before `to`."""

    from_: Moment | None = msgspec.field(default=None, name="from")
    to: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = 50
    cursor: Cursor | None = None


class NextQuery(ReadQuery):
    """`GET /v1/schedules/{id}/next`."""

    n: Annotated[int, Meta(ge=1, le=1000)] = 10
    from_: Moment | None = msgspec.field(default=None, name="from")


class PreviewQuery(Request):
    """`POST /v1/schedules/preview`."""

    n: Annotated[int, Meta(ge=1, le=1000)] | None = None
    from_: Moment | None = msgspec.field(default=None, name="from")


class ResumeQuery(Request):
    """`POST /v1/schedules/{id}/resume`: with `missed` the triggers of the pause count as missed."""

    missed: bool = False


class WorkersQuery(Request):
    """`GET /v1/workers`."""

    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = 50
    cursor: Cursor | None = None


class QueuesQuery(ReadQuery):
    """`GET /v1/queues`."""

    limit: Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)] = 50
    cursor: Cursor | None = None


class EventsQuery(Request):
    """`GET /v1/events`: of these queues, of these types, and what came after that event. A header `Last-Event-ID` takes
    the place of `after`: a browser that connects again sends it, with the address that it began with.
    """

    queue: QueueNames | None = None
    types: EventTypes | None = None
    after: EventId | None = None


# ---------------------------------------------------------------- answers


class FieldError(Struct):
    pointer: str
    detail: str


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `type` is `urn:horae:problem:<code>`, and as stable."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldError] = []


class AttemptErrorView(Struct):
    attempt: int
    type: str
    message: str
    traceback: str | None
    at: str
    worker: str | None


class RetryView(Struct):
    initial_seconds: float
    factor: float
    max_seconds: float
    jitter: float


class TemplateView(Struct):
    """A job that is to be, as it was said."""

    task: str
    payload: Raw
    queue: str
    priority: int
    max_attempts: int
    retry: RetryView
    lease_seconds: float
    timeout_seconds: float
    max_lost: int
    ttl_seconds: float | None
    unique_key: str | None
    concurrency_key: str | None
    tags: dict[str, str]
    retention_seconds: float
    then: FollowerView | None


class ScheduleJobView(TemplateView):
    """The job that each trigger of a schedule makes."""

    expires_at: str | None


class FollowerView(TemplateView):
    """The job that a success brings forth, as it was submitted with the job before it.

    `id` is left out where the server made it and does not know it any more: the record of the job before it is gone.
    """

    delay_seconds: float
    id: str | UnsetType = UNSET


class JobView(Struct):
    """A job as it reads. `after`, `on_failure` and `then` are there when it was submitted with one of them."""

    id: str
    execution_id: str
    task: str
    payload: Raw
    queue: str
    state: StateName
    attempt: int
    lost: int
    priority: int
    max_attempts: int
    retry: RetryView
    lease_seconds: float
    timeout_seconds: float
    max_lost: int
    created_at: str
    run_at: str
    started_at: str | None
    finished_at: str | None
    expires_at: str | None
    ttl_seconds: float | None
    delay_seconds: None
    unique_key: str | None
    concurrency_key: str | None
    tags: dict[str, str]
    retention_seconds: float
    result: Raw
    progress: Raw
    last_error: AttemptErrorView | None
    errors: list[AttemptErrorView]
    worker: str | None
    lease_expires_at: str | None
    dead_reason: DeadReason | None
    schedule_id: str | None
    nominal_time: str | None
    cancel_requested: bool
    after: list[str] | UnsetType = UNSET
    on_failure: OnFailure | UnsetType = UNSET
    then: FollowerView | UnsetType | None = UNSET


class BatchItem(Struct, omit_defaults=True):
    job: JobView | None = None
    error: Problem | None = None


class BatchAnswer(Struct):
    results: list[BatchItem]


class JobList(Struct):
    jobs: list[JobView]
    next_cursor: str | None


class BulkAnswer(Struct):
    """`count`: jobs that were changed. Call again with `next_cursor` until that is null, also after a count of 0."""

    count: int
    next_cursor: str | None


class DepthView(Struct):
    """How many jobs a queue holds, by state."""

    pending: int
    ready: int
    running: int
    succeeded: int
    dead: int
    cancelled: int
    expired: int


class QueueRates(Struct):
    """Jobs of a queue a second, over the last minute."""

    submitted_per_second: float
    started_per_second: float
    finished_per_second: float


class QueueView(Struct):
    """A queue, its jobs and its settings.

    `oldest_ready_seconds`: how long the ready job that fell due first has been due. null is no limit; `burst` is what
    holds, be it said or reckoned from the rate.
    """

    name: str
    depth: DepthView
    oldest_ready_seconds: float | None
    paused: bool = False
    max_running: int | None = None
    max_running_per_key: int = 1
    rate_per_second: float | None = None
    burst: int | None = None
    max_depth: int | None = None
    rates: QueueRates | None = None


class QueueList(Struct):
    queues: list[QueueView]
    next_cursor: str | None


class ScheduleView(Struct):
    """A schedule as it reads. `version` is what `If-Match` compares. `error`: why the node that answers cannot reckon
    it; its triggers wait for a leader that can."""

    id: str
    version: int
    cron: str | None
    every_seconds: float | None
    timezone: str
    job: ScheduleJobView
    missed: MissedPolicy
    catch_up_seconds: float
    max_catch_up: int
    grace_seconds: float
    overlap: OverlapPolicy
    jitter_seconds: float
    dst_gap: GapPolicy
    dst_repeat: RepeatPolicy
    starts_at: str | None
    ends_at: str | None
    paused: bool
    created_at: str
    updated_at: str
    next_nominal_time: str | None
    next_run_at: str | None
    last_nominal_time: str | None
    error: str | None


class ScheduleList(Struct):
    schedules: list[ScheduleView]
    next_cursor: str | None


TriggerOutcome = Literal["ran", "skipped_overlap", "skipped_missed", "folded", "dropped_limit", "paused", "dst_skipped"]


class TriggerView(Struct, omit_defaults=True):
    """A line of the ledger: what became of a trigger. `state`: the job's now; left out when its record is gone."""

    nominal_time: str
    outcome: TriggerOutcome
    job_id: str | None = None
    state: StateName | None = None
    why: str | None = None


class TriggerList(Struct):
    triggers: list[TriggerView]
    next_cursor: str | None


class NextTime(Struct, omit_defaults=True):
    """`note` says what is odd about it: a local time that comes twice, or not at all."""

    nominal_time: str
    local_time: str
    note: str | None = None


class NextTimes(Struct):
    times: list[NextTime]


class BackfillAnswer(Struct):
    """`count`: jobs that were made; of the `triggers` looked at, those that had run already did not again. `more`: the
    window has more of them than `max_catch_up`: the same call again goes on."""

    count: int
    triggers: int
    more: bool


class WorkerView(Struct):
    """A worker that claimed or sent a heartbeat in the last minutes. `queues` are those of its last claim."""

    worker: str
    queues: list[str]
    running: int
    last_seen_at: str


class WorkerList(Struct):
    workers: list[WorkerView]
    next_cursor: str | None


class ClaimedJob(Struct):
    id: str
    execution_id: str
    task: str
    payload: Raw
    queue: str
    attempt: int
    max_attempts: int
    lease_token: int
    lease_expires_at: str
    lease_seconds: float
    timeout_at: str
    tags: dict[str, str]
    schedule_id: str | None
    nominal_time: str | None
    run_at: str
    last_error: AttemptErrorView | None
    progress: Raw


class ClaimAnswer(Struct):
    jobs: list[ClaimedJob]


class LeaseStatus(Struct):
    job_id: str
    status: Literal["ok", "lost"]
    lease_expires_at: str | None
    cancel_requested: bool


class HeartbeatAnswer(Struct):
    leases: list[LeaseStatus]


class EndingResult(Struct, omit_defaults=True):
    """One result of the bulk ending: `status` is `ok`, or `error` with the problem the single call would have got.

    `state` is the job's now; left out where its record is gone already. A worker that ends a thousand attempts has no
    use for a thousand whole jobs, which cost the leader more than the endings themselves.
    """

    job_id: str
    status: Literal["ok", "error"]
    state: StateName | None = None
    error: Problem | None = None


class EndingsAnswer(Struct):
    leases: list[EndingResult]


class MemberRequest(Request):
    """`POST /v1/cluster/members`: a new node, which catches up and then counts. The same again is a repeat."""

    node: NodeId
    raft_address: Address
    http_url: Address


class MoveRequest(Request):
    """`PATCH /v1/cluster/members/{node}`: the same node, with its data, is reached elsewhere."""

    raft_address: Address
    http_url: Address


class LeaderRequest(Request):
    """`POST /v1/cluster/leader`: that node shall lead."""

    node: NodeId


MemberStandingName = Literal["voter", "learner", "removed"]


class MemberStanding(Struct):
    """What a node is to the cluster now: a `learner` gets everything and counts once it has caught up."""

    node: str
    standing: MemberStandingName
    connected: bool | None = None
    """Of a node that is added: whether the leader reaches it. One that it does not is to be started with `join`."""


class LeaderView(Struct):
    leader: str
    leader_url: str | None


class Event(Struct, omit_defaults=True, gc=False):
    """One change of state, as `GET /v1/events` tells it. Keys that do not apply are left out.

    `at` is cluster time, `index` the log entry's. Of a job, `state` and what follows are as they were right after;
    `run_at` is when one that waits is due. `members_changed` has `node` and its `standing`.
    """

    id: str
    type: EventType
    at: str
    index: int
    job_id: str | None = None
    queue: str | None = None
    task: str | None = None
    state: StateName | None = None
    attempt: int | None = None
    worker: str | None = None
    run_at: str | None = None
    dead_reason: DeadReason | None = None
    node: str | None = None
    standing: MemberStandingName | None = None


class FellBehind(Struct):
    """What came after the event `after`, up to `id`, is not kept by the answering node any more: it goes on from
    `oldest`, the first that is (null: from now on).
    """

    id: str
    type: Literal["fell_behind"]
    after: str
    oldest: str | None


class MemberView(Struct):
    node: str
    url: str
    raft_address: str
    role: str
    connected: bool
    match_index: int | None
    lag: int | None
    last_heard_seconds: float | None
    clock_skew_seconds: float | None
    standing: Literal["voter", "learner"] = "voter"
    incarnation: str | None = None
    """Of the data directory that the answering node believes it with; None when it never met it."""


class Health(Struct):
    """`GET /healthz` and `GET /readyz`: `status` is `ok`, or `unready` with the reason in `why`."""

    status: Literal["ok", "unready"]
    why: str


class SnapshotView(Struct):
    """`POST /v1/cluster/snapshot`: the answering node's state is durable up to `durable_index`, and its log was cut to
    begin at `first_index`."""

    node: str
    durable_index: int
    first_index: int


class ClusterView(Struct):
    """`GET /v1/cluster`: as the answering node sees it (with `?consistency=local`), else as the leader does."""

    cluster: str
    node: str
    leader: str | None
    leader_url: str | None
    term: int
    epoch: int
    role: str
    commit_index: int
    applied_index: int
    durable_index: int
    last_index: int
    first_index: int
    state_digest: str
    version: str
    machine_version: int
    cluster_time: str
    disk: dict[str, Any]
    members: list[MemberView]
    members_index: int = 0
    """Log index of the last change of members; 0: they are as configured."""
    origin: str | None = None
    """Which backup or survivor this cluster began with; None: with an empty log."""
