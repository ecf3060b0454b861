"""The machine's state as the contract shows it: jobs, pages of jobs, claimed jobs.

Reads a view, changes nothing; every read is bounded. Times become RFC 3339 text here. Next to read: `core/views.py`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, get_args

from msgspec import UNSET, Raw

from horae import wire
from horae_node import cron
from horae_node.core import lists, schedule_views, views
from horae_node.core.decide.submit import with_expiry
from horae_node.core.limits import burst_of
from horae_node.core.model import AttemptError, JobSpec, Run, ScheduleRun, ScheduleSpec, State
from horae_node.core.tables import Tombstone, follower_of, links_of, run_of, seq_bytes, spec_bytes, trait_of
from horae_node.errors import Refused
from horae_node.translate import MISSED, OVERLAP, moment_ms, rule_of
from horae_storage.kv import View

QUEUE_LOOKS_MAX: Final = 4000
"""Look-ups for one page of queues: some milliseconds of the loop. Usual queues take one or two each."""

_NULL: Final = Raw(b"null")
_STATE_NAMES: Final[tuple[wire.StateName, ...]] = (
    "pending",
    "ready",
    "running",
    "succeeded",
    "dead",
    "cancelled",
    "expired",
)
_DEAD_REASONS: Final[Mapping[str, wire.DeadReason]] = {name: name for name in get_args(wire.DeadReason)}
_ON_FAILURE: Final[tuple[wire.OnFailure, ...]] = ("cancel", "run")
_SUCCEEDED: Final = int(State.SUCCEEDED)
_RUNNING: Final = int(State.RUNNING)
STATE_BY_NAME: Final[Mapping[str, State]] = {name: State(i) for i, name in enumerate(_STATE_NAMES)}


class BadCursor(ValueError):
    """The cursor was not made by this list."""


@lru_cache(maxsize=8192)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=8192)
def moment_text(ms: int) -> str:
    """RFC 3339 in UTC with milliseconds."""
    second, rest = divmod(ms, 1000)
    return f"{_second_text(second)}.{rest:03d}Z"


@lru_cache(maxsize=1024)
def _retry_view(initial_ms: int, factor_milli: int, max_ms: int, jitter_milli: int) -> wire.RetryView:
    """Shared by the jobs that have the same: not to be changed."""
    return wire.RetryView(initial_ms / 1000, factor_milli / 1000, max_ms / 1000, jitter_milli / 1000)


def _error_view(error: AttemptError) -> wire.AttemptErrorView:
    return wire.AttemptErrorView(
        attempt=error.attempt,
        type=error.type,
        message=error.message,
        traceback=error.traceback or None,
        at=moment_text(error.at_ms),
        worker=error.worker or None,
    )


class Gone(LookupError):
    """The job's record was purged or deleted between the command and the look at it."""


class Clocks:
    """How a lease's end on the lease clock shows as a time of day: cluster time and lease clock of one moment, ms."""

    __slots__ = ("lease_clock", "now_ms")

    def __init__(self, now_ms: int, lease_clock: int) -> None:
        self.now_ms = now_ms
        self.lease_clock = lease_clock

    def text(self, lease_moment: int) -> str:
        return moment_text(self.now_ms + lease_moment - self.lease_clock)


@lru_cache(maxsize=1024)
def _shell(terms: tuple[Any, ...]) -> wire.JobView:
    """What the jobs submitted with the same terms have in common, as they are before their first attempt.

    To be copied, never changed: the copies share its containers.
    """
    (
        task,
        queue,
        priority,
        max_attempts,
        *retry,
        lease_ms,
        timeout_ms,
        max_lost,
        concurrency_key,
        tags,
        retention_ms,
    ) = terms
    return wire.JobView(
        id="",
        execution_id="",
        task=task,
        payload=_NULL,
        queue=queue,
        state="ready",
        attempt=0,
        lost=0,
        priority=priority,
        max_attempts=max_attempts,
        retry=_retry_view(*retry),
        lease_seconds=lease_ms / 1000,
        timeout_seconds=timeout_ms / 1000,
        max_lost=max_lost,
        created_at="",
        run_at="",
        started_at=None,
        finished_at=None,
        expires_at=None,
        ttl_seconds=None,
        delay_seconds=None,
        unique_key=None,
        concurrency_key=concurrency_key,
        tags=dict(tags),
        retention_seconds=retention_ms / 1000,
        result=_NULL,
        progress=_NULL,
        last_error=None,
        errors=[],
        worker=None,
        lease_expires_at=None,
        dead_reason=None,
        schedule_id=None,
        nominal_time=None,
        cancel_requested=False,
    )


def new_job_view(spec: JobSpec, run: Run) -> wire.JobView:
    """A job without an attempt. Made from a copy: most of it, other jobs of the same submitter have as well."""
    job = copy(_shell(spec[1:3] + spec[4:13] + spec[16:19]))
    job.id = job.execution_id = spec.id
    job.payload = Raw(spec.payload)
    job.state = _STATE_NAMES[run.state]
    job.created_at = moment_text(run.created_ms)
    job.run_at = moment_text(run.due_ms)
    expires_at_ms, ttl_ms, job.unique_key = spec[13:16]
    if expires_at_ms is not None:
        job.expires_at = moment_text(expires_at_ms)
        job.ttl_seconds = None if ttl_ms is None else ttl_ms / 1000
    if spec.schedule_id is not None:
        job.schedule_id = spec.schedule_id
        job.nominal_time = None if spec.nominal_ms is None else moment_text(spec.nominal_ms)
    links = links_of(spec)
    if links is not None:
        job.after = list(links.after)
        job.on_failure = _ON_FAILURE[links.on_failure]
        job.then = _follower_view(spec)
    return job


def _follower_view(spec: JobSpec, *, given_ids: bool = False) -> wire.FollowerView | None:
    """`given_ids`: without those that were made here."""
    follower = follower_of(spec)
    if follower is None:
        return None
    view = wire.FollowerView(**_terms(follower.spec, given_ids=given_ids), delay_seconds=follower.delay_ms / 1000)
    if follower.content_hash or not given_ids:
        view.id = follower.spec.id
    return view


def _terms(job: JobSpec, *, given_ids: bool = False) -> dict[str, Any]:
    """What a job that is to be has of its own."""
    return {
        "task": job.task,
        "payload": Raw(job.payload),
        "queue": job.queue,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "retry": _retry_view(*job[6:10]),
        "lease_seconds": job.lease_ms / 1000,
        "timeout_seconds": job.timeout_ms / 1000,
        "max_lost": job.max_lost,
        "ttl_seconds": None if job.ttl_ms is None else job.ttl_ms / 1000,
        "unique_key": job.unique_key,
        "concurrency_key": job.concurrency_key,
        "tags": dict(job.tags),
        "retention_seconds": job.retention_ms / 1000,
        "then": _follower_view(job, given_ids=given_ids),
    }


def _text_or_none(at_ms: int | None) -> str | None:
    return None if at_ms is None else moment_text(at_ms)


def schedule_view(spec: ScheduleSpec, run: ScheduleRun) -> wire.ScheduleView:
    following = run.next
    return wire.ScheduleView(
        id=spec.id,
        version=run.version,
        cron=spec.cron,
        every_seconds=None if spec.every_ms is None else spec.every_ms / 1000,
        timezone=spec.timezone,
        job=wire.ScheduleJobView(**_terms(spec.job), expires_at=_text_or_none(spec.job.expires_at_ms)),
        missed=MISSED[spec.missed],
        catch_up_seconds=spec.catch_up_ms / 1000,
        max_catch_up=spec.max_catch_up,
        grace_seconds=spec.grace_ms / 1000,
        overlap=OVERLAP[spec.overlap],
        jitter_seconds=spec.jitter_ms / 1000,
        dst_gap=spec.dst_gap,  # type: ignore[arg-type]
        dst_repeat=spec.dst_repeat,  # type: ignore[arg-type]
        starts_at=_text_or_none(spec.starts_ms),
        ends_at=_text_or_none(spec.ends_ms),
        paused=run.paused_ms is not None,
        created_at=moment_text(run.created_ms),
        updated_at=moment_text(run.changed_ms),
        next_nominal_time=None if following is None else moment_text(following.nominal_ms),
        next_run_at=None if following is None else moment_text(following.fire_ms),
        last_nominal_time=_text_or_none(run.last_nominal_ms),
        error=cron.trouble(rule_of(spec)),
    )


def schedule_page(view: View, after: str, limit: int) -> tuple[list[wire.ScheduleView], str | None]:
    """Schedules by id, those after `after`, and the last one's id where there may be more.

    The page ends early with the schedule that takes it past `ANSWER_BYTES_MAX`.
    """
    names = schedule_views.ids(view, after, limit)
    found: list[wire.ScheduleView] = []
    held_bytes = 0
    for name in names:
        found.append(schedule_view(*schedule_views.schedule(view, name)))
        held_bytes += template_bytes(found[-1].job)
        if held_bytes >= wire.ANSWER_BYTES_MAX:
            break
    more = len(found) < len(names) or len(names) == limit
    return found, found[-1].id if more else None


def gone_job_view(spec: JobSpec, gone: Tombstone) -> wire.JobView:
    """A job whose record is gone, as it was submitted (which is what `spec` says) and as its tombstone remembers it.

    Ids that `spec` has for what follows it, and no caller gave, were made for this repeat: they name nothing. Not so
    of a schedule's job, whose own id they are made of.
    """
    state, token = gone.state, 0
    times = gone.created_ms, gone.first_due_ms, gone.started_ms, gone.finished_ms
    run = run_of((state, gone.attempt, 0, 0, token, 0, "", *times, 0, 0, 0, 0, False, "", 0, b"", gone.first_due_ms))
    job = new_job_view(with_expiry(spec, gone.created_ms), run)
    if job.then and spec.schedule_id is None:
        job.then = _follower_view(spec, given_ids=True)
    job.attempt = gone.attempt
    job.started_at = moment_text(gone.started_ms) if gone.started_ms else None
    job.finished_at = moment_text(gone.finished_ms)
    return job


def job_view(view: View, seq: int, clocks: Clocks) -> wire.JobView:
    """The job numbered `seq`. Raises: `Gone`."""
    run, spec = views.run(view, seq), views.spec(view, seq)
    if spec is None or run is None:
        raise Gone(f"job number {seq} is gone")
    job = new_job_view(spec, run)
    (state, job.attempt, failures, job.lost, token, _, worker, _, _, started_ms, finished_ms, _) = run[:12]
    job.started_at = moment_text(started_ms) if started_ms else None
    job.finished_at = moment_text(finished_ms) if finished_ms else None
    job.worker = worker or None
    job.dead_reason = reason_called(run.dead_reason)
    job.cancel_requested = run.cancel_requested
    if token and (progress := views.progress(view, seq)) is not None:
        job.progress = Raw(progress)
    if state == _SUCCEEDED and (result := views.result(view, seq)) is not None:
        job.result = Raw(result)
    if failures or job.lost or _had_another_life(run) or links_of(spec) is not None:
        job.errors = [_error_view(error) for error in views.errors(view, seq)]
        job.last_error = job.errors[-1] if job.errors else None
    if state == _RUNNING:
        job.lease_expires_at = clocks.text(run.lease_end)
    return job


def _had_another_life(run: Run) -> bool:
    """It may have errors that its counters do not tell of: a requeue sets those back, and moves the moment at which it
    is due (but in the very millisecond in which it was due at first). Most jobs have none, which nobody need look for.
    """
    return run.token > 0 and (run.attempt == 0 or run.due_ms != run.first_due_ms)


def claimed_job(view: View, seq: int, token: int, clocks: Clocks) -> wire.ClaimedJob | None:
    """The job numbered `seq` as its claim's answer carries it; None when its record is gone."""
    run, spec = views.run(view, seq), views.spec(view, seq)
    if spec is None or run is None:
        return None
    (_, attempt, failures, lost, _, _, _, _, due_ms, _, _, lease_ms, lease_end, timeout_end) = run[:14]
    progress = views.progress(view, seq)
    error = views.last_error(view, seq) if failures or lost or _had_another_life(run) else None
    nominal_ms = spec.nominal_ms
    return wire.ClaimedJob(
        id=spec.id,
        execution_id=spec.id,
        task=spec.task,
        payload=Raw(spec.payload),
        queue=spec.queue,
        attempt=attempt,
        max_attempts=spec.max_attempts,
        lease_token=token,
        lease_expires_at=clocks.text(lease_end),
        lease_seconds=lease_ms / 1000,
        timeout_at=clocks.text(timeout_end),
        tags=dict(spec.tags),
        schedule_id=spec.schedule_id,
        nominal_time=None if nominal_ms is None else moment_text(nominal_ms),
        run_at=moment_text(due_ms),
        last_error=None if error is None else _error_view(error),
        progress=_NULL if progress is None else Raw(progress),
    )


def reason_called(stored: str) -> wire.DeadReason | None:
    """The contract's word for why a job is dead; None: it is not."""
    return _DEAD_REASONS[stored] if stored else None


def state_name(view: View, seq: int) -> wire.StateName | None:
    """The state of the job numbered `seq`; None when its record is gone."""
    run = views.run(view, seq)
    return None if run is None else _STATE_NAMES[run.state]


def state_called(state: int) -> wire.StateName:
    """The contract's word for a stored state."""
    return _STATE_NAMES[state]


def too_deep(view: View, queue: str) -> str:
    """Why a queue takes no more, as it stands by now."""
    counts, most = views.counts(view, queue), views.settings(view, queue).max_depth
    waiting = counts.pending + counts.ready
    holds = f"holds {waiting} pending and ready job{'' if waiting == 1 else 's'}"
    return f"queue {queue!r} {holds}" + ("" if most is None else f", and its max_depth is {most}")


def unique_key_held(view: View, seq: int) -> str:
    """Why a finished job cannot be requeued: who has its unique key by now."""
    spec = views.spec(view, seq)
    if spec is None or spec.unique_key is None:
        return "an unfinished job has its unique_key, or had it a moment ago"
    why = f"an unfinished job of queue {spec.queue!r} has its unique_key {spec.unique_key!r}"
    holder = views.holder(view, spec.queue, spec.unique_key)
    holding = None if holder is None else views.spec(view, holder)
    if holder is None or holding is None:
        return f"{why}, or had it a moment ago"
    return f"{why}: {holding.id!r}, which is {state_name(view, holder)}; {spec.id!r} is {state_name(view, seq)}"


EXAMINED_MAX: Final = 1000
"""Jobs looked at for one page, whether they match or not."""
EXAMINED_BYTES_MAX: Final = 4 << 20
"""Their payloads: what they are filtered by lies in the same row."""


def job_page(view: View, clocks: Clocks, query: wire.JobsQuery) -> wire.JobList:
    """A page of jobs, newest first. The cursor is the last job's number: stable while jobs come, move and go.

    The page ends early with the job that takes it past `ANSWER_BYTES_MAX`, or where as many were looked at as may be.
    Raises: `BadCursor`.
    """
    before = None if query.cursor is None else int.from_bytes(read_cursor(b"j", query.cursor, 8), "big")
    state = None if query.state is None else STATE_BY_NAME[query.state]
    task, tag, schedule_id = query.task, query.tag, query.schedule_id
    traits = traits_wanted(task, tag, schedule_id)
    wanted = lists.Wanted(query.queue, state, traits, _moment_ms(query.created_from), _moment_ms(query.created_before))
    seqs, next_before = lists.find_jobs(view, wanted, before, EXAMINED_MAX if traits else query.limit)
    jobs: list[wire.JobView] = []
    held_bytes = examined_bytes = 0
    for seq in seqs:
        fits = True
        if traits:
            spec = views.spec(view, seq)
            assert spec is not None, "a listed job has a record"
            fits = matches(spec, task, tag, schedule_id) and is_in(view, seq, spec, query.queue, state)
            examined_bytes += spec_bytes(spec)
        if fits:
            jobs.append(job_view(view, seq, clocks))
            held_bytes += content_bytes(jobs[-1])
        enough = len(jobs) == query.limit or held_bytes >= wire.ANSWER_BYTES_MAX
        if enough or examined_bytes >= EXAMINED_BYTES_MAX:
            next_before = seq if seq != seqs[-1] else next_before
            break
    return wire.JobList(jobs, None if next_before is None else make_cursor(b"j", seq_bytes(next_before)))


def traits_wanted(task: str | None, tag: str | None, schedule_id: str | None = None) -> list[bytes]:
    """The indexes that a filter may walk along."""
    named = (("schedule", schedule_id), ("tag", tag), ("task", task))
    return [trait_of(kind, name) for kind, name in named if name is not None]


def is_in(view: View, seq: int, spec: JobSpec, queue: str | None, state: int | None) -> bool:
    """Whether the job is of that queue and in that state, where one is given."""
    if queue is not None and spec.queue != queue:
        return False
    run = None if state is None else views.run(view, seq)
    return run is None or run.state == state


def _moment_ms(moment: datetime | None) -> int | None:
    return None if moment is None else moment_ms(moment)


def matches(spec: JobSpec, task: str | None, tag: str | None, schedule_id: str | None = None) -> bool:
    """Whether all that is given holds of a job. `tag` is `key:value`."""
    if task is not None and spec.task != task:
        return False
    if schedule_id is not None and spec.schedule_id != schedule_id:
        return False
    return tag is None or tuple(tag.split(":", 1)) in spec.tags


def content_bytes(job: wire.JobView | wire.ClaimedJob) -> int:
    """What of a job's view its callers made large or small: payload, result, progress, errors, tags, links."""
    total = len(memoryview(job.payload)) + len(memoryview(job.progress))
    if job.tags:
        total += _tags_bytes(job.tags)
    if isinstance(job, wire.ClaimedJob):
        return total + (0 if job.last_error is None else _text_bytes(job.last_error))
    total += len(memoryview(job.result))
    if job.after:
        total += sum(len(job_id.encode()) for job_id in job.after)
    if job.then:
        total += template_bytes(job.then)
    return total + sum(map(_text_bytes, job.errors)) if job.errors else total


def template_bytes(job: wire.TemplateView) -> int:
    """The same of a job that is to be, and of those that are to follow it."""
    total = 0
    following: wire.TemplateView | None = job
    while following is not None:
        total += len(memoryview(following.payload)) + _tags_bytes(following.tags)
        following = following.then
    return total


def _tags_bytes(tags: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in tags.items())


def make_brief(job: wire.JobView) -> None:
    """Take away, in place, what `content_bytes` counts."""
    job.payload = job.result = job.progress = _NULL
    job.errors, job.last_error, job.tags = [], None, {}
    job.after = job.on_failure = job.then = UNSET


def _text_bytes(error: wire.AttemptErrorView) -> int:
    return len(error.message.encode()) + len((error.traceback or "").encode())


def queue_page(
    view: View, now_ms: int, *, limit: int, cursor: str | None, only: Collection[str] | None = None
) -> wire.QueueList:
    """A page of queues that hold jobs or have settings, by name; the cursor is the last one's name.

    The page ends early with the queue that takes it past `QUEUE_LOOKS_MAX`. Raises: `BadCursor`.
    """
    after = "" if cursor is None else read_cursor(b"q", cursor).decode(errors="replace")
    if only is None:
        names = views.queue_names(view, after, limit)
    else:
        names = [name for name in sorted(only) if name > after and views.has_queue(view, name)][:limit]
    queues: list[wire.QueueView] = []
    looks = 0
    for name in names:
        queue, priorities = queue_view(view, now_ms, name)
        queues.append(queue)
        looks += priorities
        if looks >= QUEUE_LOOKS_MAX:
            break
    more = len(queues) < len(names) or len(names) == limit
    return wire.QueueList(queues, make_cursor(b"q", queues[-1].name.encode()) if more else None)


def queue_view(view: View, now_ms: int, name: str) -> tuple[wire.QueueView, int]:
    """One queue, and how many look-ups it took to find its oldest ready job."""
    oldest_ms = views.oldest_ready_ms(view, name)
    kept = views.settings(view, name)
    shown = wire.QueueView(
        name,
        wire.DepthView(*views.counts(view, name)),
        max(0, now_ms - min(oldest_ms)) / 1000 if oldest_ms else None,
        kept.paused,
        kept.max_running,
        kept.max_running_per_key,
        None if kept.rate_milli is None else kept.rate_milli / 1000,
        burst_of(kept) if kept.rate_milli is not None else kept.burst,
        kept.max_depth,
    )
    return shown, len(oldest_ms)


@contextmanager
def cursors_named() -> Iterator[None]:
    """Raises: `Refused` by the field's name for a cursor that is none of this list's."""
    try:
        yield
    except BadCursor as error:
        raise Refused("invalid", str(error), "/cursor") from error


def make_cursor(kind: bytes, place: bytes) -> str:
    """A place in a list of this kind (one letter), as text that callers need not understand."""
    return base64.urlsafe_b64encode(kind + place).rstrip(b"=").decode()


def read_cursor(kind: bytes, cursor: str, size: int | None = None) -> bytes:
    """The place that `make_cursor` was given, of `size` bytes. Raises: `BadCursor`."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadCursor("not a cursor of this list; leave it out to begin anew") from error
    if raw[:1] != kind or (size is not None and len(raw) != 1 + size):
        raise BadCursor("not a cursor of this list; leave it out to begin anew")
    return raw[1:]
