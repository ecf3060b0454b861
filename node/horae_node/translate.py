"""Requests of the contract into commands of the machine: spans to milliseconds, fractions to thousandths.

Nothing is clamped: what cannot be kept exactly as meant was refused by the wire's limits, or is refused here, by name.
Not here: HTTP, answers (`reads.py`). Next to read: `core/commands.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from horae import wire
from horae_node import codec, ids
from horae_node.core.commands import ClaimJobs, CompleteJob, FailJob, HeartbeatLease, ReleaseJob, SetQueue, SubmitJob
from horae_node.core.model import NO_SETTINGS, Follower, JobSpec, Links, OnFailure, ScheduleSpec
from horae_node.core.tables import linked, spec_of
from horae_node.cron import Rule
from horae_node.garbage import uncollected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NULL = b"null"
_decode_json = msgspec.json.Decoder().decode
_encode_canonical = msgspec.json.Encoder(order="deterministic").encode


@lru_cache(maxsize=4096)
def span_ms(seconds: float) -> int:
    """A span in whole milliseconds, to the nearest."""
    return round(seconds * 1000)


def moment_ms(moment: datetime) -> int:
    """A moment as ms since the Unix epoch; a finer part counts as a whole one more, so that nothing runs before it."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 - (-since.microseconds // 1000)


@lru_cache(maxsize=4096)
def _spans_ms(*seconds: float) -> tuple[int, ...]:
    """As `span_ms`, for all spans of a job at once: most jobs have those of the one before."""
    return tuple(map(span_ms, seconds))


def submit_command(request: wire.SubmitRequest, now_ms: int) -> SubmitJob:
    """The command of a submit; an id is made from `now_ms` when the caller gave none."""
    retry = request.retry
    own_id = request.id
    payload = bytes(request.payload)
    initial_ms, factor_milli, max_ms, jitter_milli, lease_ms, timeout_ms, retention_ms = _spans_ms(
        retry.initial_seconds,
        retry.factor,
        retry.max_seconds,
        retry.jitter,
        request.lease_seconds,
        request.timeout_seconds,
        request.retention_seconds,
    )
    spec = spec_of(
        (
            own_id if own_id is not None else ids.uuid7(now_ms),
            request.task,
            request.queue,
            payload,
            request.priority,
            request.max_attempts,
            initial_ms,
            factor_milli,
            max_ms,
            jitter_milli,
            lease_ms,
            timeout_ms,
            request.max_lost,
            None if request.expires_at is None else moment_ms(request.expires_at),
            None if request.ttl_seconds is None else span_ms(request.ttl_seconds),
            request.unique_key,
            request.concurrency_key,
            tuple(sorted(request.tags.items())) if request.tags else (),
            retention_ms,
            None,
            None,
        )
    )
    run_at_ms = None if request.run_at is None else moment_ms(request.run_at)
    delay_ms = 0 if request.delay_seconds is None else span_ms(request.delay_seconds)
    if request.then is not None or request.after:
        return _linked_command(request, SubmitJob(spec, run_at_ms, delay_ms, b""), now_ms)
    content = b"" if own_id is None else _content_hash(spec, payload, run_at_ms, delay_ms)
    return SubmitJob(spec, run_at_ms, delay_ms, content)


def _linked_command(request: wire.SubmitRequest, bare: SubmitJob, now_ms: int) -> SubmitJob:
    """The same with its links, and what of them counts as its content: an id that was made here does not."""
    then, then_content = None, b""
    if request.then is not None:
        then, then_content = _follower(request.then, now_ms)
    on_failure = OnFailure.RUN if request.on_failure == "run" else OnFailure.CANCEL
    links = Links(tuple(request.after), int(on_failure), then)
    content = b"" if request.id is None else _linked_content(request, bare, then_content)
    return bare._replace(spec=linked(bare.spec, links), content_hash=content)


def _follower(request: wire.SubmitRequest, now_ms: int) -> tuple[Follower, bytes]:
    """A job that is to follow, and its content: each of a chain is looked at once, the last one first."""
    bare = submit_command(replace(request, then=None), now_ms)
    later, content = None, b""
    if request.then is not None:
        later, content = _follower(request.then, now_ms)
    spec = bare.spec if later is None else linked(bare.spec, Links((), int(OnFailure.CANCEL), later))
    named = bare if request.id is not None else bare._replace(spec=bare.spec._replace(id=""))
    content = _linked_content(request, named, content)
    return Follower(spec, bare.delay_ms, b"" if request.id is None else content), content


def _linked_content(request: wire.SubmitRequest, bare: SubmitJob, then: bytes) -> bytes:
    spec, run_at_ms, delay_ms, _ = bare
    if not then and not request.after:
        return _content_hash(spec, spec.payload, run_at_ms, delay_ms)
    links = tuple(request.after), request.on_failure == "run", then
    return _content_hash(spec, spec.payload, run_at_ms, delay_ms, *links)


def _content_hash(spec: JobSpec, payload: bytes, run_at_ms: int | None, delay_ms: int, *links: object) -> bytes:
    """16 bytes that say what was submitted: white space and the order of keys in the payload do not count."""
    with uncollected(len(payload)):
        canonical = payload if len(payload) <= 4 else _encode_canonical(_decode_json(payload))
    content = canonical, *spec[:3], *spec[4:], run_at_ms, delay_ms, *links
    return blake2b(codec.pack_value(content), digest_size=16).digest()


def schedule_rule(schedule_id: str, request: wire.ScheduleRule) -> Rule:
    """When it triggers, as `cron` reads it."""
    return Rule(
        cron=request.cron,
        every_ms=None if request.every_seconds is None else span_ms(request.every_seconds),
        timezone=request.timezone,
        dst_gap=request.dst_gap,
        dst_repeat=request.dst_repeat,
        starts_ms=None if request.starts_at is None else moment_ms(request.starts_at),
        ends_ms=None if request.ends_at is None else moment_ms(request.ends_at),
        seed=schedule_id,
    )


def schedule_spec(schedule_id: str, request: wire.ScheduleRequest) -> ScheduleSpec:
    """The template has no id, and neither has what follows it: each trigger's job has one of its own."""
    rule = schedule_rule(schedule_id, request)
    return ScheduleSpec(
        id=schedule_id,
        cron=rule.cron,
        every_ms=rule.every_ms,
        timezone=rule.timezone,
        dst_gap=rule.dst_gap,
        dst_repeat=rule.dst_repeat,
        starts_ms=rule.starts_ms,
        ends_ms=rule.ends_ms,
        jitter_ms=span_ms(request.jitter_seconds),
        missed=MISSED.index(request.missed),
        catch_up_ms=span_ms(request.catch_up_seconds),
        max_catch_up=request.max_catch_up,
        grace_ms=span_ms(request.grace_seconds),
        overlap=OVERLAP.index(request.overlap),
        job=submit_command(_nameless(request.job), 0).spec,
    )


def rule_of(spec: ScheduleSpec) -> Rule:
    """When a stored schedule triggers."""
    return Rule(*spec[1:8], seed=spec.id)


def times_of(spec: ScheduleSpec) -> tuple[object, ...]:
    """All that its moments depend on."""
    return spec[: ScheduleSpec._fields.index("missed")]


def _nameless(job: wire.SubmitRequest) -> wire.SubmitRequest:
    return replace(job, id="", then=None if job.then is None else _nameless(job.then))


MISSED: Final[tuple[wire.MissedPolicy, ...]] = ("skip", "latest", "all")
OVERLAP: Final[tuple[wire.OverlapPolicy, ...]] = ("allow", "skip", "queue", "cancel")


def queue_command(name: str, patch: wire.QueuePatch) -> SetQueue:
    """The command of a change of settings. A rate is kept in thousandths of a job a second, the nearest."""
    named: dict[str, bool | int | None] = {}
    for field in ("paused", "max_running", "max_running_per_key", "burst", "max_depth"):
        value = getattr(patch, field)
        if value is not UNSET:
            named[field] = getattr(NO_SETTINGS, field) if value is None else value
    rate = patch.rate_per_second
    if not isinstance(rate, UnsetType):
        named["rate_milli"] = None if rate is None else round(rate * 1000)
    return SetQueue(name, tuple(named.items()))


def claim_command(request: wire.ClaimRequest) -> ClaimJobs:
    queues = tuple(dict.fromkeys(request.queues))
    lease_ms = None if request.lease_seconds is None else span_ms(request.lease_seconds)
    return ClaimJobs(request.worker, queues, request.max_jobs, lease_ms, request.claim_id or "")


def heartbeat_command(beat: wire.LeaseBeat) -> HeartbeatLease:
    return HeartbeatLease(beat.job_id, beat.lease_token, _optional_bytes(beat.progress))


def complete_command(job_id: str, token: int, result: Raw | UnsetType) -> CompleteJob:
    text = _optional_bytes(result)
    return CompleteJob(job_id, token, None if text == _NULL else text)


def fail_command(
    job_id: str, token: int, error: wire.ErrorBody, *, retry: bool, retry_in_seconds: float | None
) -> FailJob:
    retry_in_ms = None if retry_in_seconds is None else span_ms(retry_in_seconds)
    return FailJob(job_id, token, error.type, error.message, error.traceback or "", retry, retry_in_ms)


def release_command(job_id: str, token: int, delay_seconds: float, progress: Raw | UnsetType) -> ReleaseJob:
    return ReleaseJob(job_id, token, span_ms(delay_seconds), _optional_bytes(progress))


def ending_command(item: wire.EndingRequest) -> CompleteJob | FailJob | ReleaseJob:
    """The command of one item of a bulk ending."""
    if item.outcome == "complete":
        return complete_command(item.job_id, item.lease_token, item.result)
    if item.outcome == "release":
        delay = 0.0 if isinstance(item.delay_seconds, UnsetType) else item.delay_seconds
        return release_command(item.job_id, item.lease_token, delay, item.progress)
    error = wire.ErrorBody() if isinstance(item.error, UnsetType) else item.error
    retry = True if isinstance(item.retry, UnsetType) else item.retry
    retry_in = None if isinstance(item.retry_in_seconds, UnsetType) else item.retry_in_seconds
    return fail_command(item.job_id, item.lease_token, error, retry=retry, retry_in_seconds=retry_in)


def _optional_bytes(value: Raw | UnsetType) -> bytes | None:
    return None if value is UNSET else bytes(value)
