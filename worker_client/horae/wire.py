"""The contract with the outside, said once: every request and answer as a msgspec Struct, with its limits.

The same definition validates requests, speaks JSON and MessagePack, and yields the schemas of `/openapi.json`
(API.md). Imports nothing of horae; all may import it. Times in requests are datetimes with an offset; times in
answers are RFC 3339 strings in UTC with milliseconds. Payloads, results and progress are `Raw`: opaque JSON (or
MessagePack, in a MessagePack body) that no layer below decodes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

PAYLOAD_BYTES_MAX = 256 * 1024
RESULT_BYTES_MAX = 256 * 1024
PROGRESS_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
BATCH_JOBS_MAX = 1000
CLAIM_JOBS_MAX = 1000
LIST_LIMIT_MAX = 1000
WAIT_SECONDS_MAX = 60
TAGS_MAX = 16
QUEUES_PER_CLAIM_MAX = 1000
ERROR_TYPE_CHARS_MAX = 200
ERROR_MESSAGE_CHARS_MAX = 4_000
ERROR_TRACEBACK_CHARS_MAX = 16_000
SPAN_SECONDS_MAX = 10 * 366 * 86400
"""Ten years: the longest delay, back-off, retention or time to live."""

# No control characters; `$(?!\n)` because Python's `$` alone also matches before a final newline.
_LINE = r"^[^\u0000-\u001f\u007f]+$(?!\n)"
QueueName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,100}$(?!\n)")]
JobId = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
TaskName = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
WorkerName = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
Key = Annotated[str, Meta(min_length=1, max_length=200, pattern=_LINE)]
Moment = Annotated[datetime, Meta(tz=True)]
Span = Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)]
Token = Annotated[int, Meta(ge=1, le=2**53)]

StateName = Literal["pending", "ready", "running", "succeeded", "dead", "cancelled", "expired"]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of all request bodies: an unknown key is an error, never ignored."""


class Retry(Request):
    """Back-off between attempts: initial x factor^(failures-1), at most max, spread by +-jitter."""

    initial_seconds: Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)] = 1.0
    factor: Annotated[float, Meta(ge=1, le=1000)] = 2.0
    max_seconds: Annotated[float, Meta(ge=0, le=SPAN_SECONDS_MAX)] = 3600.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2


class SubmitRequest(Request):
    """`POST /v1/jobs`, and each job of a batch."""

    task: TaskName
    payload: Raw = Raw(b"null")
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
    tags: dict[str, str] = {}
    retention_seconds: Span = 86400


class BatchRequest(Request):
    jobs: Annotated[list[SubmitRequest], Meta(min_length=1, max_length=BATCH_JOBS_MAX)]
    atomic: bool = False


class ClaimRequest(Request):
    worker: WorkerName
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=QUEUES_PER_CLAIM_MAX)]
    max_jobs: Annotated[int, Meta(ge=1, le=CLAIM_JOBS_MAX)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] | None = None
    claim_id: Key | None = None


class LeaseBeat(Request):
    job_id: JobId
    lease_token: Token
    progress: Raw | UnsetType = UNSET


class HeartbeatRequest(Request):
    worker: WorkerName
    leases: Annotated[list[LeaseBeat], Meta(max_length=CLAIM_JOBS_MAX)]


class CompleteRequest(Request):
    lease_token: Token
    result: Raw = Raw(b"null")


class ErrorBody(Request):
    type: Annotated[str, Meta(max_length=ERROR_TYPE_CHARS_MAX)] = "error"
    message: Annotated[str, Meta(max_length=ERROR_MESSAGE_CHARS_MAX)] = ""
    traceback: Annotated[str, Meta(max_length=ERROR_TRACEBACK_CHARS_MAX)] | None = None


class FailRequest(Request):
    lease_token: Token
    error: ErrorBody
    retry: bool = True
    retry_in_seconds: Span | None = None


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
    retry_in_seconds: Span | None | UnsetType = UNSET
    delay_seconds: Span | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET


class EndingsRequest(Request):
    worker: WorkerName
    leases: Annotated[list[EndingRequest], Meta(min_length=1, max_length=CLAIM_JOBS_MAX)]


# ---------------------------------------------------------------- answers


class FieldError(Struct):
    pointer: str
    detail: str


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `type` is `about:blank#<code>`-like and stable too."""

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


class JobView(Struct):
    """A job as it reads."""

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
    dead_reason: str | None
    schedule_id: str | None
    nominal_time: str | None
    cancel_requested: bool


class BatchItem(Struct, omit_defaults=True):
    job: JobView | None = None
    error: Problem | None = None


class BatchAnswer(Struct):
    results: list[BatchItem]


class JobList(Struct):
    jobs: list[JobView]
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
    """One result of the bulk ending: `status` is `ok`, or `error` with the problem the single call would have got."""

    job_id: str
    status: Literal["ok", "error"]
    job: JobView | None = None
    error: Problem | None = None


class EndingsAnswer(Struct):
    leases: list[EndingResult]


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
