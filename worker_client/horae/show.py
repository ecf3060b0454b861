"""What the commands print: tables on a terminal or in a pipe, and JSON as the contract writes it.

In what is for people, control characters are shown (`visible.py`); JSON is for programs.
Not here: whom to ask, exit codes, refusals (`cli.py`).
"""

from __future__ import annotations

import errno
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from horae import streams, visible
from horae.events import Event
from horae.jobs import AttemptError, Job
from horae.schedules import NextTime, Schedule, Trigger
from horae.wire import EVENT_TYPES, ClusterView, DepthView, QueueView, WorkerView

STATE_STYLES = {
    "succeeded": "green",
    "dead": "red",
    "running": "cyan",
    "ready": "blue",
    "pending": "yellow",
    "cancelled": "magenta",
    "expired": "magenta",
}


class Unshown(Exception):
    """The output cannot be written. `quiet`: its reader has gone, as `head` does, and wants no word about it."""

    def __init__(self, error: OSError) -> None:
        super().__init__((error.strerror or str(error)).lower())
        self.quiet = isinstance(error, BrokenPipeError)


_BLANKS_AT_END = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
"""A table pads its last column with blanks, which a copy carries along."""


def _print(what: RenderableType) -> None:
    text = io.StringIO()
    _console(text).print(what)
    _write(_BLANKS_AT_END.sub(r"\1", text.getvalue()))


def _write(text: str) -> None:
    """At once: what waits in a buffer fails when nobody can tell any more. Raises: `Unshown`."""
    if streams.is_missing(1):
        raise Unshown(OSError(errno.EBADF, "there is no standard output"))
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise Unshown(error) from error


def _console(text: io.StringIO) -> Console:
    """One that writes into `text`, never to the output, which may be full. Colours and the terminal's width on a
    terminal only: piped output keeps whole lines."""
    output = Console(highlight=False)
    if not output.is_terminal:
        return Console(file=text, highlight=False, no_color=True, width=10_000)
    return Console(file=text, highlight=False, force_terminal=True, no_color=output.no_color, width=output.width)


def say(line: str) -> None:
    """One line on stderr; left out when that is full or gone: the exit code tells, too."""
    with suppress(OSError):
        print("horae: " + visible.line(" ".join(line.split())), file=sys.stderr, flush=True)


def print_line(line: str) -> None:
    """One line on stdout. Raises: `Unshown`, as all that print there."""
    _write(visible.line(line) + "\n")


def print_json(value: Any) -> None:
    """As the contract writes it, times with milliseconds. What the output's encoding may lack stays JSON."""
    _write(_json(value, indent=2))


def print_json_line(value: Any) -> None:
    """The same on one line, without what is None: for one of many."""
    told = msgspec.to_builtins(value, builtin_types=(datetime,))
    _write(_json({key: its for key, its in told.items() if its is not None}, indent=None))


def _json(value: Any, *, indent: int | None) -> str:
    plain = msgspec.to_builtins(value, builtin_types=(datetime,))
    any_text = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(plain, default=_rfc3339, ensure_ascii=not any_text, indent=indent) + "\n"


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_table(head: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else _text(cell) for cell in row))
    _print(table)


def _text(words: str, style: str = "") -> Text:
    """Of one line."""
    return Text(visible.line(words), style=style)


def show_job(job: Job) -> None:
    """One job, line by line, what is empty left out."""
    error = job.last_error
    lines: dict[str, str | Text] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": _state(job),
        "attempt": f"{job.attempt} of {job.max_attempts}" + (f", {job.lost} lost" if job.lost else ""),
        "tags": ", ".join(f"{key}={value}" for key, value in job.tags.items()),
        "run at": _time(job.run_at),
        "started at": _time(job.started_at),
        "worker": job.worker or "",
        "lease ends": _time(job.lease_expires_at) if job.state == "running" else "",
        "finished at": _time(job.finished_at),
        "payload": _value(job.payload),
        "progress": _value(job.progress),
        "result": _value(job.result) if job.state == "succeeded" else "",
        "earlier": Text("\n".join(visible.line(_error(it)) for it in job.errors if it != error)),
        "last error": _error(error) if error is not None else "",
        "traceback": Text(visible.lines((error.traceback or "").rstrip())) if error is not None else "",
    }
    _print_lines(lines)


def _print_lines(lines: Mapping[str, str | Text]) -> None:
    """Names and what they are, what is empty left out."""
    grid = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        if line:
            grid.add_row(Text(name, style="dim"), line if isinstance(line, Text) else _text(line))
    _print(grid)


def what_holds_up(was: Job, job: Job) -> str | None:
    """Why a job is not done yet, if there is something to say since it `was` seen last."""
    error = job.last_error
    if error is not None and error != was.last_error:
        then = f"; next try at {_time(job.run_at)}" if job.state == "pending" else ""
        return f"attempt {error.attempt} of {job.max_attempts} failed: {error.type}: {error.message}{then}"
    if job.state == was.state == "pending" and job.after:
        return f"it waits for {len(job.after)} other {'job' if len(job.after) == 1 else 'jobs'}"
    if job.state == was.state == "ready":
        return f"no worker has taken it yet: does one serve the queue {job.queue}?"
    return None


def _state(job: Job) -> Text:
    text = job.state + (f" ({job.dead_reason})" if job.dead_reason else "")
    if job.cancel_requested and not job.finished:
        text += " (cancel requested)"
    return _text(text, STATE_STYLES.get(job.state, ""))


def _error(error: AttemptError) -> str:
    by = f" by {error.worker}" if error.worker else ""
    return f"{error.type}: {error.message} (attempt {error.attempt}{by}, {_time(error.at)})"


def _value(value: Any) -> str:
    return "" if value is None else visible.json_line(msgspec.json.encode(value).decode())


def _time(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z" if moment is not None else ""


def show_jobs(found: Sequence[Job]) -> None:
    """A line a job."""
    rows: list[list[str | Text]] = [
        [j.id, j.task, j.queue, _state(j), f"{j.attempt}/{j.max_attempts}", _time(j.run_at)] for j in found
    ]
    print_table(["id", "task", "queue", "state", "attempt", "run at"], rows)


_EVENT_WIDTH = max(map(len, EVENT_TYPES))


def show_event(event: Event) -> None:
    """One line: when, what, of which job or queue or member, and what else is told."""
    words = [_rfc3339(event.at), event.type.ljust(_EVENT_WIDTH)]
    words += [part for part in (event.job_id, event.task, event.queue, event.node) if part]
    if event.attempt:
        words.append(f"attempt {event.attempt}")
    if event.worker and event.type in ("running", "released"):
        words.append(f"at {event.worker}")
    if event.run_at and event.run_at > event.at:
        words.append(f"due {_time(event.run_at)}")
    words += [part for part in (event.dead_reason, event.standing) if part]
    print_line(visible.line("  ".join([*words, event.id])))


def show_queues(queues: Sequence[QueueView]) -> None:
    """Many queues, a line each."""
    states = DepthView.__struct_fields__
    rows = []
    for queue in queues:
        depths = [getattr(queue.depth, state) for state in states]
        cells = [
            _text(str(depth), STATE_STYLES[state]) if depth else "" for state, depth in zip(states, depths, strict=True)
        ]
        waited = queue.oldest_ready_seconds
        rows.append([queue.name, *cells, "" if waited is None else f"{waited:.1f} s", "paused" if queue.paused else ""])
    print_table(["queue", *states, "oldest ready", ""], rows)


def show_workers(workers: Sequence[WorkerView]) -> None:
    """A line a worker."""
    rows: list[list[str | Text]] = [
        [worker.worker, ", ".join(worker.queues), str(worker.running), worker.last_seen_at] for worker in workers
    ]
    print_table(["worker", "queues", "running", "last seen"], rows)


def show_queue(queue: QueueView) -> None:
    """One queue, with its settings."""
    show_queues([queue])
    limits = {
        "max running": queue.max_running,
        "max running per key": queue.max_running_per_key,
        "rate per second": queue.rate_per_second,
        "burst": queue.burst,
        "max depth": queue.max_depth,
    }
    said = [f"{name} {value:g}" for name, value in limits.items() if value is not None]
    print_line(("paused  " if queue.paused else "") + "  ".join(said))


def show_schedules(schedules: Sequence[Schedule]) -> None:
    """A line a schedule."""
    rows: list[list[str | Text]] = [
        [it.id, _rule(it), it.timezone, str(it.job.get("task", "")), str(it.job.get("queue", "")), next_of(it)]
        for it in schedules
    ]
    print_table(["schedule", "triggers", "zone", "task", "queue", "next"], rows)


def show_schedule(schedule: Schedule) -> None:
    """One schedule, line by line, what is empty left out."""
    job = dict(schedule.job)
    catches_up = schedule.missed != "skip"
    lines = {
        "id": f"{schedule.id} (version {schedule.version})",
        "triggers": _rule(schedule),
        "zone": schedule.timezone,
        "jitter": f"{schedule.jitter_seconds:g} s" if schedule.jitter_seconds else "",
        "from": _time(schedule.starts_at),
        "until": _time(schedule.ends_at),
        "missed": f"{schedule.missed} what is more than {schedule.grace_seconds:g} s late",
        "catch up": f"{schedule.max_catch_up} of {schedule.catch_up_seconds:g} s at most" if catches_up else "",
        "overlap": schedule.overlap,
        "task": str(job.get("task", "")),
        "queue": str(job.get("queue", "")),
        "payload": _value(job.get("payload")),
        "last": _time(schedule.last_nominal_time),
        "next": next_of(schedule),
        "error": schedule.error or "",
    }
    _print_lines(lines)


def _rule(schedule: Schedule) -> str:
    return schedule.cron if schedule.cron is not None else f"every {schedule.every_seconds:g} s"


def next_of(schedule: Schedule) -> str:
    """When it triggers next, in words."""
    if schedule.paused:
        return "paused"
    return _time(schedule.next_run_at) or "never"


def show_triggers(triggers: Sequence[Trigger]) -> None:
    """A line a trigger."""
    rows: list[list[str | Text]] = [
        [
            _time(it.nominal_time),
            it.outcome,
            it.job_id or "",
            _text(it.state, STATE_STYLES.get(it.state, "")) if it.state else "",
            it.why or "",
        ]
        for it in triggers
    ]
    print_table(["nominal time", "outcome", "job", "state", "why"], rows)


def show_times(times: Sequence[NextTime]) -> None:
    """A line a moment."""
    print_table(
        ["nominal time", "local time", ""], [[_time(it.nominal_time), it.local_time, it.note or ""] for it in times]
    )


def show_cluster(view: ClusterView) -> None:
    """The members as the leader sees them."""
    head = f"cluster {view.cluster}  leader {view.leader or 'none'}  term {view.term}  applied {view.applied_index}"
    _print(_text(f"{head}  version {view.version}"))
    print_table(["node", "role", "standing", "url", "connected", "match", "lag", "skew s"], _member_rows(view))


def show_local_views(views: Mapping[str, ClusterView | str]) -> None:
    """What each node says of itself, by its URL; text: why it says nothing."""
    rows: list[list[str | Text]] = [
        ["?" if isinstance(view, str) else view.node, url, _local_view(view)] for url, view in views.items()
    ]
    print_table(["node", "url", "its own view"], rows)


def _local_view(view: ClusterView | str) -> str:
    if isinstance(view, str):
        return view
    others = [member.node for member in view.members if member.connected and member.node != view.node]
    sees = f"sees {', '.join(others)}" if others else "sees no other node"
    leader = f"leader {view.leader}" if view.leader else "no leader"
    return f"{leader}; {view.node} {sees}; {view.role}, term {view.term}, applied {view.applied_index}"


def _member_rows(view: ClusterView) -> list[list[str]]:
    return [
        [
            member.node,
            member.role,
            member.standing,
            member.url,
            "yes" if member.connected else "no",
            _number(member.match_index),
            _number(member.lag),
            "-" if member.clock_skew_seconds is None else f"{member.clock_skew_seconds:.3f}",
        ]
        for member in view.members
    ]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
