"""The user commands: `horae submit`, `job`, `jobs`, `cancel`, `requeue`, `cluster`, `worker`.

Exit codes: 0 done; 1 the job failed or the cluster refused; 2 bad usage; 3 the cluster is not reachable. Errors are one
line with the next step, on stderr. The server's commands are mounted beside these elsewhere. Next to read: `client.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from itertools import islice
from typing import Any, NoReturn, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from horae import errors
from horae.blocking import Client
from horae.client import DEADLINE_SECONDS, DEFAULT_URL, url_list
from horae.jobs import Job, JobOptions
from horae.wire import JSON_DEPTH_MAX, ClusterView
from horae.worker import Worker

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3

Command = TypeVar("Command", bound=Callable[..., Any])

_STATE_STYLES = {
    "succeeded": "green",
    "dead": "red",
    "running": "cyan",
    "ready": "blue",
    "pending": "yellow",
    "cancelled": "magenta",
    "expired": "magenta",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Whom to ask, and how to print."""

    urls: list[str]
    token: str | None
    json: bool
    deadline_seconds: float
    chosen: bool
    """`urls` were named by the caller, by option or environment."""

    def client(self) -> Client:
        return Client(self.urls, token=self.token, deadline_seconds=self.deadline_seconds)


def _target_options(command: Command) -> Command:
    """The options every command has, handed to it as its first argument, a `Target`; and its errors as one line."""

    @click.option("--url", "urls", multiple=True, metavar="URL", help="A node's base URL; repeat it for several.")
    @click.option("--token", envvar="HORAE_TOKEN", help="Bearer token (HORAE_TOKEN).")
    @click.option(
        "--deadline", type=click.FloatRange(min=0), default=DEADLINE_SECONDS, metavar="SECONDS", help="Give up after."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(command)
    def run(urls: tuple[str, ...], token: str | None, deadline: float, as_json: bool, **rest: Any) -> None:
        named = list(urls) or url_list(os.environ.get("HORAE_URL", ""))
        _guarded(command, Target(named or [DEFAULT_URL], token or None, as_json, deadline, bool(named)), rest)

    return run  # type: ignore[return-value]


def _guarded(command: Callable[..., Any], target: Target, rest: dict[str, Any]) -> None:
    try:
        command(target, **rest)
    except (errors.Invalid, errors.Malformed, errors.TooLarge) as error:
        _fail(EXIT_USAGE, f"{error}; correct it and try again")
    except (errors.Unreachable, errors.NoLeader, errors.ShuttingDown) as error:
        _fail(EXIT_UNREACHABLE, f"{error}; is the cluster up at {', '.join(target.urls)}? (--url, HORAE_URL)")
    except errors.OutcomeUnknown as error:
        _fail(EXIT_UNREACHABLE, f"{error}; look with `horae jobs`, or repeat with the same --id")
    except (errors.Unauthenticated, errors.Forbidden) as error:
        _fail(EXIT_REFUSED, f"{error}; give a token that may (--token, HORAE_TOKEN)")
    except errors.HoraeError as error:
        _fail(EXIT_REFUSED, str(error))
    except ValueError as error:  # a base URL that is none
        _fail(EXIT_USAGE, str(error))


@click.group(name="horae", context_settings={"help_option_names": ["-h", "--help"]})
def main_group() -> None:
    """horae: jobs now, later, or on a schedule, on a cluster of its own."""


# ---------------------------------------------------------------- jobs


@main_group.command()
@click.argument("task")
@click.option("--payload", metavar="JSON", help="The payload, a JSON value.")
@click.option("--at", "run_at", metavar="RFC3339", help="When it becomes due, with an offset: 2026-11-29T12:00:00Z.")
@click.option("--delay", "delay_seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Due after so long.")
@click.option("--queue", metavar="Q", help="Default: default.")
@click.option("--id", "job_id", metavar="ID", help="Your own id: submitting it again makes no second job.")
@click.option("--priority", type=int, metavar="N", help="-100 to 100, higher first.")
@click.option("--max-attempts", type=int, metavar="N", help="Default: 5.")
@click.option(
    "--wait",
    "wait_seconds",
    is_flag=False,
    flag_value="inf",
    type=click.FloatRange(min=0),
    metavar="[SECONDS]",
    help="Wait for the result, at most so long; exit 1 unless it succeeded.",
)
@_target_options
def submit(
    target: Target,
    task: str,
    payload: str | None,
    run_at: str | None,
    delay_seconds: float | None,
    queue: str | None,
    job_id: str | None,
    priority: int | None,
    max_attempts: int | None,
    wait_seconds: float | None,
) -> None:
    """Submit a job of TASK."""
    if run_at is not None and delay_seconds is not None:
        _fail(EXIT_USAGE, "--at and --delay exclude each other; give one")
    given: dict[str, Any] = {
        "run_at": _moment(run_at),
        "delay_seconds": delay_seconds,
        "queue": queue,
        "id": job_id,
        "priority": priority,
        "max_attempts": max_attempts,
    }
    options: JobOptions = {key: value for key, value in given.items() if value is not None}  # type: ignore[assignment]
    with target.client() as client:
        job = client.submit(task, _payload(payload), **options)
        if wait_seconds is not None:
            job = _wait(client, job.id, wait_seconds)
    _show_job(target, job)
    if wait_seconds is not None and job.state != "succeeded":
        sys.exit(EXIT_REFUSED)


@main_group.command()
@click.argument("job_id", metavar="ID")
@_target_options
def job(target: Target, job_id: str) -> None:
    """Show a job."""
    with target.client() as client:
        _show_job(target, client.job(job_id))


@main_group.command()
@click.option("--queue", metavar="Q")
@click.option("--state", type=click.Choice(list(_STATE_STYLES)))
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@_target_options
def jobs(target: Target, queue: str | None, state: str | None, limit: int) -> None:
    """List jobs, newest first."""
    with target.client() as client:
        found = list(islice(client.jobs(queue=queue, state=state, page=min(limit, 1000)), limit))
    if target.json:
        _print_json(found)
        return
    rows: list[list[str | Text]] = [
        [j.id, j.task, j.queue, _state(j), f"{j.attempt}/{j.max_attempts}", _time(j.run_at)] for j in found
    ]
    _print_table(["id", "task", "queue", "state", "attempt", "run at"], rows)


@main_group.command()
@click.argument("job_id", metavar="ID")
@_target_options
def cancel(target: Target, job_id: str) -> None:
    """Cancel a job: at once if it is not running, else its worker is asked to stop."""
    with target.client() as client:
        _show_job(target, client.cancel(job_id))


@main_group.command()
@click.argument("job_id", metavar="ID")
@_target_options
def requeue(target: Target, job_id: str) -> None:
    """Run a dead, cancelled or expired job anew."""
    with target.client() as client:
        _show_job(target, client.requeue(job_id))


# ---------------------------------------------------------------- the cluster, a worker


@main_group.command()
@_target_options
def cluster(target: Target) -> None:
    """Show the members: role, lag, match, skew."""
    with target.client() as client:
        view = client.cluster()
    if target.json:
        _print_json(view)
        return
    head = f"cluster {view.cluster}  leader {view.leader or 'none'}  term {view.term}  applied {view.applied_index}"
    _console().print(Text(f"{head}  version {view.version}"))
    _print_table(["node", "role", "url", "connected", "match", "lag", "skew s"], _member_rows(view))


@main_group.command()
@click.argument("where", metavar="MODULE:WORKER")
@_target_options
def worker(target: Target, where: str) -> None:
    """Run a worker: the `Worker` that WORKER names in MODULE. Ctrl-C stops it, a second one at once."""
    found = _load_worker(where)
    if target.chosen:
        found.urls = target.urls
    if target.token is not None:
        found.token = target.token
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    found.run()


def _load_worker(where: str) -> Worker:
    module_name, colon, name = where.partition(":")
    if not colon or not module_name or not name:
        _fail(EXIT_USAGE, f"{where!r} is not MODULE:WORKER; write it as myapp.tasks:worker")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        _fail(EXIT_USAGE, f"no module {error.name!r}; run this where it can be imported, or set PYTHONPATH")
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        _fail(EXIT_USAGE, f"{where} is no horae Worker; name the variable that holds it")
    return found


# ---------------------------------------------------------------- input


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        _fail(EXIT_USAGE, f'--payload is not JSON ({error}); quote it for the shell: --payload \'{{"name": "Ada"}}\'')
    except RecursionError:
        _fail(EXIT_USAGE, f"--payload nests deeper than the {JSON_DEPTH_MAX} levels that are allowed")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        _fail(EXIT_USAGE, f"--at {text!r} is not a time; write it as 2026-11-29T12:00:00Z")
    if moment.tzinfo is None:
        _fail(EXIT_USAGE, f"--at {text!r} has no offset; add Z for UTC, or +01:00")
    return moment


def _wait(client: Client, job_id: str, wait_seconds: float) -> Job:
    try:
        return client.wait(job_id, wait_seconds=None if wait_seconds == float("inf") else wait_seconds)
    except errors.NotFinished as unfinished:
        return unfinished.job


# ---------------------------------------------------------------- output


def _fail(code: int, line: str) -> NoReturn:
    print("horae: " + " ".join(line.split()), file=sys.stderr)
    sys.exit(code)


def _console() -> Console:
    """Colours and the terminal's width on a terminal only: piped output keeps whole lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, no_color=True, width=10_000)


def _print_json(value: Any) -> None:
    """As the contract writes it, times with milliseconds."""
    plain = msgspec.to_builtins(value, builtin_types=(datetime,))
    print(json.dumps(plain, default=_rfc3339, ensure_ascii=False, indent=2))


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print_table(head: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    _console().print(table)


def _show_job(target: Target, job: Job) -> None:
    if target.json:
        _print_json(job)
        return
    lines: dict[str, str | Text] = {
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "state": _state(job),
        "attempt": f"{job.attempt} of {job.max_attempts}" + (f", {job.lost} lost" if job.lost else ""),
        "run at": _time(job.run_at),
        "finished at": _time(job.finished_at),
        "payload": _value(job.payload),
        "progress": _value(job.progress),
        "result": _value(job.result) if job.state == "succeeded" else "",
        "last error": _error(job),
    }
    grid = Table.grid(padding=(0, 2))
    for name, line in lines.items():
        if line:
            grid.add_row(Text(name, style="dim"), line if isinstance(line, Text) else Text(line))
    _console().print(grid)


def _state(job: Job) -> Text:
    text = job.state + (f" ({job.dead_reason})" if job.dead_reason else "")
    if job.cancel_requested and not job.finished:
        text += " (cancel requested)"
    return Text(text, style=_STATE_STYLES.get(job.state, ""))


def _error(job: Job) -> str:
    return f"{job.last_error.type}: {job.last_error.message}" if job.last_error is not None else ""


def _value(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _time(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z" if moment is not None else ""


def _member_rows(view: ClusterView) -> list[list[str]]:
    return [
        [
            member.node,
            member.role,
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
