"""The user commands: `horae submit`, `job`, `jobs`, `cancel`, `requeue`, `queue(s)`, `workers`, `cluster`, `worker`.

Exit codes: 0 done; 1 the job failed or the cluster refused; 2 bad usage; 3 the cluster is not reachable, has no leader,
or did not answer; 4 the job was not finished at the end of `--wait`, or an added node does not count yet; 5 the call
succeeded, but its answer cannot be printed; 130 interrupted. Errors are one line with the next step, on stderr. The
server's commands are mounted beside these elsewhere. Next to read: `show.py`, `client.py`.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import wraps
from itertools import islice
from math import inf, isnan
from typing import Any, Final, NoReturn, TypeVar, Unpack, cast

import click
import msgspec

from horae import checks, clock, errors, logs, show, signals, streams
from horae.blocking import Client
from horae.client import DEADLINE_SECONDS, DEFAULT_URL, url_list
from horae.ids import new_id
from horae.jobs import Job, JobFilter, JobsWanted, NewJob, QueueSettings
from horae.leases import BEATS_PER_LEASE
from horae.nodes import base_url, shown
from horae.trouble import Kind, Trouble
from horae.wire import EVENT_TYPES, JSON_DEPTH_MAX, ClusterView, EventType, MemberStanding, Problem
from horae.worker import Worker

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_UNFINISHED = 4
EXIT_UNSHOWN = 5
EXIT_INTERRUPTED = 130
"""As shells tell of a process that Ctrl-C ended."""

_TELL_SECONDS = 2.0
"""A call that fails for so long is told of, once: a person begins to wonder."""
_LEADER_SECONDS = 5.0
"""`horae cluster` looks for the leader this long: a node itself waits 2 s for one."""
_LOOK_SECONDS = 5.0
"""How often `--wait` looks what became of the job meanwhile: an idle worker takes one within milliseconds."""
_LOCAL_SECONDS = 2.0
"""A node tells its own view at once, or not at all."""

Command = TypeVar("Command", bound=Callable[..., Any])
Shown = TypeVar("Shown")

_TROUBLE: dict[Kind, str] = {
    "unreachable": "cannot reach the cluster",
    "not_serving": "the cluster does not serve now",
    "turned_away": "the cluster turns the call away",
}

_FLAGS = {
    "/task": "TASK",
    "/payload": "--payload",
    "/run_at": "--at",
    "/delay_seconds": "--delay",
    "/queue": "--queue",
    "/id": "--id",
    "/priority": "--priority",
    "/max_attempts": "--max-attempts",
    "/after": "--after",
    "/on_failure": "--on-failure",
    "/state": "--state",
    "/filter/queue": "--queue",
    "/filter/state": "--state",
    "/filter/task": "--task",
    "/filter/tag": "--tag",
    "/limit": "--limit",
    "/cron": "--cron",
    "/every_seconds": "--every",
    "/timezone": "--timezone",
    "/missed": "--missed",
    "/overlap": "--overlap",
    "/grace_seconds": "--grace",
    "/catch_up_seconds": "--catch-up",
    "/max_catch_up": "--max-catch-up",
    "/jitter_seconds": "--jitter",
    "/dst_gap": "--dst-gap",
    "/dst_repeat": "--dst-repeat",
    "/starts_at": "--starts",
    "/ends_at": "--ends",
    "/unique_key": "--unique-key",
    "/concurrency_key": "--concurrency-key",
    "/ttl_seconds": "--ttl",
    "/from": "--from",
    "/to": "--to",
    "/n": "-n",
    "/node": "NODE",
    "/raft_address": "--raft",
    "/http_url": "--http",
}
"""The contract's keys as this command line names them."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Whom to ask, and how to print."""

    urls: list[str]
    token: str | None
    json: bool
    deadline_seconds: float
    chosen: bool
    """`urls` were named by the caller, by option or environment."""

    @property
    def shown_urls(self) -> str:
        return ", ".join(map(shown, self.urls))

    def client(self) -> Client:
        """A client that tells on stderr of calls that it has to try again for long."""
        trouble = Trouble(self._tell, first_seconds=_TELL_SECONDS, again_seconds=inf)
        return Client(self.urls, token=self.token, deadline_seconds=self.deadline_seconds, trouble=trouble)

    def _tell(self, why: str | None, seconds: float, kind: Kind) -> None:
        if why is None:
            show.say("answered again")
        else:
            show.say(f"{_TROUBLE[kind]}: {why}; retrying, each call for {self.deadline_seconds:g} s at most")

    def show(self, job: Job) -> None:
        """Whatever happens to the output, nobody may be left without the job's id."""
        try:
            self.render(job, show.show_job)
        except show.Unshown as error:
            _end_unshown(error, f" (job {job.id}, {job.state})")

    def tell(self, found: Any, words: str) -> None:
        """Print it as JSON where that was asked for, else these words, a line."""
        self.render(found, lambda _found: show.print_line(words))

    def refuse(self, problem: Problem) -> NoReturn:
        """For a command that asks the cluster without a client: end as after a client's call with this answer."""
        raise errors.error_of(problem)

    def not_reached(self, why: str) -> NoReturn:
        """The same, without an answer."""
        raise errors.Unreachable(why)

    def render(self, found: Shown, as_text: Callable[[Shown], None]) -> None:
        """Print it as JSON where that was asked for, else as text."""
        if self.json:
            show.print_json(found)
        else:
            as_text(found)


def deadline_option(default_seconds: float, words: str) -> Callable[[Command], Command]:
    """`--deadline`, at most so long."""
    return click.option("--deadline", type=Seconds(), default=default_seconds, metavar="SECONDS", help=words)


class Whole(click.IntRange):
    name = "whole number"


class Seconds(click.FloatRange):
    """How long. `math.nan` passes every comparison of a range, and no wait for it ends."""

    name = "number of seconds"

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if isnan(seconds):
            self.fail(f"takes seconds, not {value!r}", param, ctx)
        return seconds


WHOM = (
    click.option(
        "--url",
        "urls",
        multiple=True,
        metavar="URL",
        help=f"A node's base URL; several with commas, or repeat it. Default: HORAE_URL, else {DEFAULT_URL}.",
    ),
    click.option("--token", envvar="HORAE_TOKEN", help="Bearer token. Default: HORAE_TOKEN."),
)
"""Whom to ask."""
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_DEADLINE = deadline_option(DEADLINE_SECONDS, f"How long to try, over every retry. Default: {DEADLINE_SECONDS:g}.")
_EVERY = (*WHOM, _DEADLINE, AS_JSON)


def with_target(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Give a command these options, as its first argument, a `Target`; and its errors as one line.

    The flags of a command above it hold where it was given none.
    """

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(
            urls: tuple[str, ...],
            token: str | None,
            deadline: float = DEADLINE_SECONDS,
            as_json: bool = False,
            **rest: Any,
        ) -> None:
            _require_text()
            _guarded(command, _target(urls, token, as_json, deadline), rest)

        return with_options(run, options)  # type: ignore[return-value]

    return decorate


target_options = with_target(*_EVERY)


def _group_options(command: Command) -> Command:
    """The same for a command with others below it, which gets its context first and sees to its own errors."""

    @wraps(command)
    def run(ctx: click.Context, urls: tuple[str, ...], token: str | None, deadline: float, as_json: bool) -> None:
        _require_text()
        command(ctx, _target(urls, token, as_json, deadline))

    return with_options(run, _EVERY)  # type: ignore[return-value]


def _require_text() -> None:
    """Refuse by name what came as bytes that are no UTF-8, and an argument that is empty."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        given = ctx.params.get(param.name or "")
        for text in given if isinstance(given, tuple) else (given,):
            if not isinstance(text, str):
                continue
            name = param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name
            if not text and isinstance(param, click.Argument):
                fail(EXIT_USAGE, f"{name} is empty")
            if not _is_utf8(text):
                fail(EXIT_USAGE, f"{name} is not UTF-8 text")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """With these options, listed in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def _target(urls: tuple[str, ...], token: str | None, as_json: bool, deadline: float) -> Target:
    named = _urls("--url", ",".join(urls)) or _urls("HORAE_URL", os.environ.get("HORAE_URL", ""))
    target = Target(named or [DEFAULT_URL], token or None, as_json, deadline, bool(named))
    above = click.get_current_context().find_object(Target)
    if above is not None:
        target = dataclasses.replace(
            target,
            urls=target.urls if urls else above.urls,
            token=target.token or above.token,
            json=as_json or above.json,
            deadline_seconds=deadline if deadline != DEADLINE_SECONDS else above.deadline_seconds,
            chosen=target.chosen or above.chosen,
        )
    try:
        checks.credentials(target.urls, target.token)
    except ValueError as error:
        fail(EXIT_USAGE, f"{error} (--token, HORAE_TOKEN)")
    return target


def _urls(source: str, text: str) -> list[str]:
    try:
        return [base_url(url) for url in url_list(text)]
    except ValueError as error:
        fail(EXIT_USAGE, f"{source}: {error}")


def _guarded(command: Callable[..., Any], target: Target, rest: dict[str, Any]) -> None:
    try:
        command(target, **rest)
    except (errors.Invalid, errors.Malformed, errors.TooLarge) as error:
        fail(EXIT_USAGE, f"{_in_flags(error)}; correct it and try again")
    except errors.NothingToDo as error:
        fail(EXIT_USAGE, str(error))
    except errors.NoLeader as error:
        fail(EXIT_UNREACHABLE, f"{error}; `horae cluster` shows what each node sees")
    except (errors.Unreachable, errors.ShuttingDown) as error:
        fail(EXIT_UNREACHABLE, f"{error}; is the cluster up at {target.shown_urls}? (--url, HORAE_URL)")
    except errors.OutcomeUnknown as error:
        look = "`horae cluster`" if _is_of_cluster() else "`horae jobs`"
        if error.job_id:
            look = f"`horae job {error.job_id}`, or repeat with --id {error.job_id}"
        fail(EXIT_UNREACHABLE, f"{error}; look with {look}")
    except (errors.Unauthenticated, errors.Forbidden) as error:
        fail(EXIT_REFUSED, f"{error}; give a token that may (--token, HORAE_TOKEN)")
    except errors.HoraeError as error:
        fail(EXIT_REFUSED, str(error))
    except show.Unshown as error:
        _end_unshown(error)


def _is_of_cluster() -> bool:
    """The command is one of those below `cluster`."""
    above = click.get_current_context().parent
    return above is not None and above.command is cluster


def _end_unshown(error: show.Unshown, what: str = "") -> NoReturn:
    if not error.quiet:
        show.say(f"the call succeeded{what}, but its answer cannot be printed: {error}")
    sys.exit(EXIT_UNSHOWN)


def _in_flags(error: errors.RequestError) -> str:
    """What is wrong, by the flags and arguments of this command line."""
    params = click.get_current_context().command.params
    ours = {name for param in params for name in param.opts}
    items = [param.metavar or (param.name or "").upper() for param in params if isinstance(param, click.Argument)]
    item = items[0].strip("[]") if items else "ID"
    fields = []
    for field in error.problem.errors:
        pointer = field.pointer.removeprefix("/job")  # of a schedule's template
        flag = _FLAGS.get(pointer, pointer)
        fields.append(f"{flag if flag != '--id' or flag in ours else item} {field.detail}")
    return "; ".join(fields) or str(error)


_OUTPUT_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


class _Commands(click.Group):
    """The whole command line: its streams are made fit at its start, and hold up nothing at its end."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        streams.prepare()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # a help text that cannot be written: whatever else fails has its own words
            if error.errno not in _OUTPUT_FAILURES:
                raise
            show.say(f"the output cannot be written: {(error.strerror or str(error)).lower()}")
            sys.exit(EXIT_UNSHOWN)
        finally:
            streams.drop_unwritten()

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail(EXIT_INTERRUPTED, "interrupted")


@click.group(name="horae", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="horae", prog_name="horae", message="%(prog)s %(version)s")
def main_group() -> None:
    """horae: jobs now or later, on a cluster of its own.

    HORAE_URL names the cluster's nodes, HORAE_TOKEN the token; each command has flags for both.
    """


class _WaitSeconds(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """How long to wait. A word here is the TASK that was meant to stand elsewhere."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"takes seconds or nothing, not {value!r}: put TASK before it, as in `submit {value} --wait`")
        if not seconds >= 0:
            self.fail(f"takes seconds, not {value!r}")
        return seconds


# ---------------------------------------------------------------- jobs


@main_group.command()
@click.argument("task")
@click.option("--payload", metavar="JSON", help="The payload, a JSON value.")
@click.option("--at", "run_at", metavar="RFC3339", help="When it becomes due, with an offset: 2026-11-29T12:00:00Z.")
@click.option("--delay", "delay_seconds", type=Seconds(), metavar="SECONDS", help="Due after so long.")
@click.option("--queue", metavar="Q", help="Default: default.")
@click.option("--id", "job_id", metavar="ID", help="Your own id: submitting it again makes no second job.")
@click.option("--priority", type=Whole(-100, 100), metavar="N", help="-100 to 100, higher first.")
@click.option("--max-attempts", type=Whole(1, 100), metavar="N", help="1 to 100. Default: 5.")
@click.option("--after", multiple=True, metavar="ID", help="Run it when this job is finished; may be given again.")
@click.option("--on-failure", type=click.Choice(["cancel", "run"]), help="When one of those fails. Default: cancel.")
@click.option(
    "--wait",
    "wait_seconds",
    is_flag=False,
    flag_value="inf",
    type=_WaitSeconds(),
    metavar="[SECONDS]",
    help="Wait for the result, at most so long; exit 0 if it succeeded, 1 if it did not, 4 if it is not finished yet.",
)
@target_options
def submit(target: Target, task: str, wait_seconds: float | None, **given: Any) -> None:
    """Submit a job of TASK."""
    job = _new_job(task, **given)
    with target.client() as client:
        try:
            submitted = client.submit_job(job)
        except KeyboardInterrupt:
            fail(EXIT_INTERRUPTED, f"job {job.id} may have been submitted; look with `horae job {job.id}`")
        found = submitted.job
        if not submitted.created:
            show.say(f"job {found.id} was already there; no second one was made")
        if wait_seconds is not None:
            show.say(f"job {found.id} is submitted; waiting for it")
            found = _wait(client, found, wait_seconds, _LOOK_SECONDS)
    target.show(found)
    if wait_seconds is not None:
        _exit_by_state(found)


def _new_job(
    task: str,
    payload: str | None,
    run_at: str | None,
    delay_seconds: float | None,
    job_id: str | None,
    **options: Any,
) -> NewJob:
    """With an id from here on, so that it can be told whatever happens."""
    if run_at is not None and delay_seconds is not None:
        fail(EXIT_USAGE, "--at and --delay exclude each other; give one")
    if job_id == "":
        fail(EXIT_USAGE, "--id is empty; leave the flag out for a new one")
    named = {
        "run_at": moment("--at", run_at),
        "delay_seconds": delay_seconds,
        "id": new_id() if job_id is None else job_id,
        **options,
    }
    return NewJob(task=task, payload=payload_of(payload), **{key: it for key, it in named.items() if it is not None})


def _wait(client: Client, job: Job, wait_seconds: float, look_seconds: float) -> Job:
    """The job once it is finished, or as it is at the end of the wait; now and then a line about what holds it up."""
    until = clock.monotonic() + wait_seconds
    told = None
    try:
        while True:
            try:
                return client.wait(job.id, wait_seconds=max(0.0, min(until - clock.monotonic(), look_seconds)))
            except errors.NotFinished as unfinished:
                was, job = job, unfinished.job
            if clock.monotonic() >= until:
                return job
            news = show.what_holds_up(was, job)
            if news is not None and news != told:
                told = news
                show.say(f"job {job.id}: {news}")
    except KeyboardInterrupt:
        fail(EXIT_INTERRUPTED, f"job {job.id} goes on without you (it was {job.state}); look with `horae job {job.id}`")


def _exit_by_state(job: Job) -> None:
    if not job.finished:
        fail(EXIT_UNFINISHED, f"job {job.id} is still {job.state}; look with `horae job {job.id}`")
    if job.state != "succeeded":
        sys.exit(EXIT_REFUSED)


@main_group.command()
@click.argument("job_id", metavar="ID")
@target_options
def job(target: Target, job_id: str) -> None:
    """Show a job."""
    with target.client() as client:
        target.show(client.job(job_id))


@main_group.command()
@click.option("--queue", metavar="Q", help="Of this queue only.")
@click.option("--state", type=click.Choice(list(show.STATE_STYLES)), help="In this state only.")
@click.option("--task", metavar="TASK", help="Of this task only.")
@click.option("--tag", metavar="KEY:VALUE", help="With this tag only.")
@click.option("--schedule", "schedule_id", metavar="ID", help="Of this schedule only.")
@click.option("--since", "created_from", metavar="RFC3339", help="Made at this moment or later.")
@click.option("--before", "created_before", metavar="RFC3339", help="Made before this moment.")
@click.option("--limit", type=Whole(min=1), default=50, show_default=True, help="At most so many.")
@target_options
def jobs(target: Target, limit: int, **wanted: Unpack[JobsWanted]) -> None:
    """List jobs, newest first."""
    most = min(limit, sys.maxsize - 1)
    with target.client() as client:
        found = list(islice(client.jobs(page=min(most + 1, 1000), **wanted), most + 1))
    target.render(found[:most], show.show_jobs)
    if len(found) > most:
        show.say(f"the newest {most} are shown, there are more: --limit {10 * most}")


@main_group.command()
@click.argument("job_id", metavar="ID")
@click.option("--for", "wait_seconds", type=Seconds(), metavar="SECONDS", help="At most so long.")
@target_options
def wait(target: Target, job_id: str, wait_seconds: float | None) -> None:
    """Wait until a job is finished, however long, and show it."""
    with target.client() as client:
        found = client.job(job_id)
        if not found.finished:
            found = _wait(client, found, inf if wait_seconds is None else wait_seconds, _LOOK_SECONDS)
        target.show(found)
    _exit_by_state(found)


@main_group.command()
@click.option("--queue", "queues", multiple=True, metavar="Q", help="Of this queue only; may be given again.")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(EVENT_TYPES),
    metavar="TYPE",
    help="Events of this type only (submitted, running, succeeded, dead, ...); may be given again.",
)
@click.option("--after", metavar="ID", help="Go on after this event, or log index. Default: from now on.")
@target_options
def tail(target: Target, queues: tuple[str, ...], types: tuple[EventType, ...], after: str | None) -> None:
    """Show what happens, as it happens, until Ctrl-C: every change of state, in order, from whichever node lives."""
    with target.client() as client, suppress(KeyboardInterrupt):
        for event in client.events(after=after, queues=queues, types=types):
            if target.json:
                show.print_json_line(event)
            else:
                show.show_event(event)


_WHICH = (
    click.option(
        "--queue",
        metavar="Q",
        help="All that match, instead of one: of this queue.",
    ),
    click.option("--state", metavar="STATE", help="Likewise: in this state."),
    click.option("--task", metavar="TASK", help="Likewise: of this task."),
    click.option("--tag", metavar="KEY:VALUE", help="Likewise: with this tag."),
    click.option("--all", "every", is_flag=True, help="All jobs there are, where nothing else is said of them."),
)
"""One job by its id, or all that match."""


def _which_options(command: Command) -> Command:
    return with_options(command, _WHICH)  # type: ignore[return-value]


def _require_which(job_id: str | None, which: JobFilter, every: bool) -> bool:
    """An id, or some of the filters, or the word that none is meant: whether all jobs are."""
    named = [f"--{name}" for name, value in which.items() if value is not None]
    if job_id is not None and (named or every):
        fail(EXIT_USAGE, f"give an ID or {', '.join(named) or '--all'}, not both")
    if job_id is None and not named and not every:
        fail(EXIT_USAGE, "give an ID, or say which jobs: --queue, --state, --task, --tag, or --all")
    return not named


@main_group.command()
@click.argument("job_id", metavar="[ID]", required=False)
@_which_options
@target_options
def cancel(target: Target, job_id: str | None, every: bool, **which: Unpack[JobFilter]) -> None:
    """Cancel a job, or many: at once if it is not running, else its worker is told at its next heartbeat."""
    every = _require_which(job_id, which, every)
    with target.client() as client:
        if job_id is None:
            count = client.cancel_many(every=every, **which)
            target.tell({"count": count}, f"{_jobs(count)} cancelled, or asked to stop where running")
            return
        found = client.cancel(job_id)
    if not found.finished:
        within = found.lease_seconds / BEATS_PER_LEASE
        show.say(
            f"job {found.id} is {found.state}: its worker is told at its next heartbeat, within about {within:g} s"
        )
    target.show(found)


@main_group.command()
@click.argument("job_id", metavar="[ID]", required=False)
@_which_options
@target_options
def requeue(target: Target, job_id: str | None, every: bool, **which: Unpack[JobFilter]) -> None:
    """Run a dead, cancelled or expired job anew, or many: without --state the dead ones."""
    every = _require_which(job_id, which, every)
    with target.client() as client:
        if job_id is None:
            count = client.requeue_many(every=every, **which)
            target.tell({"count": count}, f"{_jobs(count)} requeued")
        else:
            target.show(client.requeue(job_id))


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


@main_group.command()
@target_options
def queues(target: Target) -> None:
    """List the queues that hold jobs or have settings: how many in which state, how long the oldest ready one waits."""
    with target.client() as client:
        target.render(client.queues(), show.show_queues)


@main_group.command()
@target_options
def workers(target: Target) -> None:
    """List who claimed or sent a heartbeat in the last five minutes: from which queues, with how many jobs in hand."""
    with target.client() as client:
        target.render(client.workers(), show.show_workers)


class _Limit(click.ParamType[Any]):
    """A number, or `none`."""

    name = "limit"

    def __init__(self, kind: type[int] | type[float]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == NO_LIMIT:
            return value
        try:
            return self._kind(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a {'whole ' if self._kind is int else ''}number nor `{NO_LIMIT}`", param, ctx
            )


NO_LIMIT: Final = "none"
_QUEUE_OPTIONS: Final = (
    click.option("--pause/--resume", "paused", default=None, help="Hand out none of its jobs, or all again."),
    click.option("--max-running", type=_Limit(int), metavar="N", help="Jobs that may run at once."),
    click.option(
        "--per-key", "max_running_per_key", type=_Limit(int), metavar="N", help="Of each concurrency key (1)."
    ),
    click.option("--rate", "rate_per_second", type=_Limit(float), metavar="N", help="Jobs handed out a second."),
    click.option("--burst", type=_Limit(int), metavar="N", help="At once after a pause (what a second brings)."),
    click.option("--max-depth", type=_Limit(int), metavar="N", help="Waiting jobs, past which submits are refused."),
)


def _queue_options(command: Command) -> Command:
    return with_options(command, _QUEUE_OPTIONS)  # type: ignore[return-value]


@main_group.command()
@click.argument("name")
@_queue_options
@target_options
def queue(target: Target, name: str, **given: Any) -> None:
    """Show a queue, or change its settings, which hold at once. `none` takes a limit away."""
    named = {key: None if value == NO_LIMIT else value for key, value in given.items() if value is not None}
    settings = cast(QueueSettings, named)
    with target.client() as client:
        found = client.set_queue(name, **settings) if settings else client.queue(name)
    target.render(found, show.show_queue)


# ---------------------------------------------------------------- the cluster, a worker


@main_group.group(
    invoke_without_command=True, short_help="Show the members; add, move, remove one, hand over the lead."
)
@click.pass_context
@_group_options
def cluster(ctx: click.Context, target: Target) -> None:
    """Show the members: role, lag, match, skew. Without a leader: what each node sees.

    Below it: who is a member, and who leads.
    """
    if ctx.invoked_subcommand is None:
        _guarded(_show_cluster, target, {})
    else:
        ctx.obj = target


def _show_cluster(target: Target) -> None:
    asked = dataclasses.replace(target, deadline_seconds=min(target.deadline_seconds, _LEADER_SECONDS))
    try:
        with asked.client() as client:
            view = client.cluster()
    except (errors.Unreachable, errors.NoLeader, errors.ShuttingDown):
        _show_without_leader(target)
    target.render(view, show.show_cluster)


@cluster.command("add")
@click.argument("node")
@click.option("--raft", "raft_address", required=True, metavar="HOST:PORT", help="Where the other nodes reach it.")
@click.option("--http", "http_url", required=True, metavar="URL", help="Where everybody reaches it.")
@target_options
def add_member(target: Target, node: str, raft_address: str, http_url: str) -> None:
    """Take NODE in, which runs with `join` (and then asks by itself). It counts once it has caught up.

    Exit code 4 while it does not count.
    """
    with target.client() as client:
        found = client.add_member(node, raft_address=raft_address, http_url=http_url)
    if found.connected is False and not target.json:
        show.print_line(
            f"{node} is added, but not reachable at {raft_address}: start it with `join`; until it counts no other "
            f"member can change (`horae cluster remove {node}` takes it back)"
        )
    else:
        _show_standing(target, found)
    if found.standing != "voter":
        sys.exit(EXIT_UNFINISHED)


@cluster.command("move")
@click.argument("node")
@click.option("--raft", "raft_address", required=True, metavar="HOST:PORT", help="Where the other nodes reach it now.")
@click.option("--http", "http_url", required=True, metavar="URL", help="Where everybody reaches it now.")
@target_options
def move_member(target: Target, node: str, raft_address: str, http_url: str) -> None:
    """NODE, with its data, is at other addresses."""
    with target.client() as client:
        found = client.move_member(node, raft_address=raft_address, http_url=http_url)
    target.tell(found, f"{node} is reached at {raft_address} and {http_url} now")


@cluster.command("remove")
@click.argument("node")
@target_options
def remove_member(target: Target, node: str) -> None:
    """Remove NODE for good: its id never comes back."""
    with target.client() as client:
        _show_standing(target, client.remove_member(node))


@cluster.command("lead")
@click.argument("node")
@target_options
def lead(target: Target, node: str) -> None:
    """Hand the lead over to NODE."""
    with target.client() as client:
        view = client.hand_over(node)
    target.tell(view, f"{view.leader} leads")


_STANDINGS = {
    "voter": "counts",
    "learner": "is in, and still catches up: it counts as soon as it has",
    "removed": "is a member no more",
}


def _show_standing(target: Target, found: MemberStanding) -> None:
    target.tell(found, f"{found.node} {_STANDINGS[found.standing]}")


def _show_without_leader(target: Target) -> NoReturn:
    views = _local_views(target)
    with suppress(show.Unshown):  # the last line tells what is the matter
        if target.json:
            show.print_json({shown(url): {"error": it} if isinstance(it, str) else it for url, it in views.items()})
        else:
            show.show_local_views({shown(url): view for url, view in views.items()})
    fail(EXIT_UNREACHABLE, _why_no_leader(target, views))


def _why_no_leader(target: Target, views: dict[str, ClusterView | str]) -> str:
    """By what each node says of itself. Of several that say that they lead, the one of the last term does."""
    answered = {url: view for url, view in views.items() if not isinstance(view, str)}
    if not answered:
        return f"no node answers at {', '.join(map(shown, views))}; is the cluster up? (--url, HORAE_URL)"
    leading = {url: view for url, view in answered.items() if view.role == "leader"}
    if not leading:
        return "no leader: a majority of the nodes must be up and reach each other"
    url, leader = max(leading.items(), key=lambda it: it[1].term)
    asked = [base_url(url) for url in target.urls]
    if any(answered[url].node == leader.node for url in asked if url in answered):
        return f"{leader.node} leads, by its own view, but did not serve: it must reach a majority; try again"
    reach = "the node asked does" if len(asked) == 1 else "the nodes asked do"
    return f"{reach} not reach the leader: {leader.node} leads, by its own view; ask it with --url {shown(url)}"


def _local_views(target: Target) -> dict[str, ClusterView | str]:
    """What each node says of itself, by its URL: those named, and those that they name. Text: why it says nothing."""
    views: dict[str, ClusterView | str] = {}
    to_ask = [base_url(url) for url in target.urls]
    while to_ask:
        url = to_ask.pop(0)
        try:
            with Client([url], token=target.token, deadline_seconds=_LOCAL_SECONDS) as client:
                view = views[url] = client.cluster(local=True)
        except (errors.Unauthenticated, errors.Forbidden):
            raise
        except errors.HoraeError as error:
            views[url] = str(getattr(error, "why", error)).removeprefix(f"{shown(url)}: ")
        else:
            to_ask += [it.url for it in view.members if it.url not in views and it.url not in to_ask]
    return views


@main_group.command()
@click.argument("where", metavar="MODULE:WORKER")
@with_target(*WHOM)
def worker(target: Target, where: str) -> None:
    """Run a worker: the `Worker` that WORKER names in MODULE. Ctrl-C stops it, a second one at once.

    It asks the nodes named here, else by HORAE_URL, else those that it was made with; likewise its token.
    """
    found = _load_worker(where)
    if target.chosen:
        found.urls = target.urls
    if target.token is not None:
        found.token = target.token
    logs.show("")
    with signals.heard_to_the_end(found.stop):
        found.run()


def _load_worker(where: str) -> Worker:
    module_name, colon, name = where.partition(":")
    if not colon or not name or not all(module_name.split(".")):
        fail(EXIT_USAGE, f"{where!r} is not MODULE:WORKER; write it as myapp.tasks:worker")
    try:
        sys.path.insert(0, os.getcwd())
    except OSError as error:
        fail(
            EXIT_USAGE, f"the current directory cannot be read: {(error.strerror or str(error)).lower()}; change to it"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        fail(EXIT_USAGE, f"no module {error.name!r}; run this where it can be imported, or set PYTHONPATH")
    found = getattr(module, name, None)
    if not isinstance(found, Worker):
        fail(EXIT_USAGE, f"{where} is no horae Worker; name the variable that holds it")
    return found


# ---------------------------------------------------------------- input


def payload_of(text: str | None) -> Any:
    """The value that `--payload` is."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        fail(EXIT_USAGE, f"--payload nests deeper than the {JSON_DEPTH_MAX} levels that are allowed")
    except UnicodeEncodeError:
        fail(EXIT_USAGE, "--payload is not UTF-8 text")
    except msgspec.DecodeError as error:
        fail(EXIT_USAGE, f"--payload is not JSON: {_why_no_json(text, error)}")


def _why_no_json(text: str, error: msgspec.DecodeError) -> str:
    """Python's own reader takes a little more than JSON is: what it takes tells what was meant."""
    if not text.strip():
        return "it is empty; leave the flag out for null"
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return f'{error}; quote it for the shell: --payload \'{{"name": "Ada"}}\''
    if "\\ud" in text.lower():
        return "a \\ud800-like escape is half a character; write both halves, or the character itself"
    if "NaN" in text or "Infinity" in text:
        return "it has no NaN and no Infinity; use null or a string"
    return f"{error}"


def moment(flag: str, text: str | None) -> datetime | None:
    """The moment that a flag names."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        fail(EXIT_USAGE, f"{flag} {text!r} is not a time; write it as 2026-11-29T12:00:00Z")
    if found.tzinfo is None:
        fail(EXIT_USAGE, f"{flag} {text!r} has no offset; add Z for UTC, or +01:00")
    return found


# ---------------------------------------------------------------- the end


def fail(code: int, line: str) -> NoReturn:
    """End with this exit code, after one line on stderr with the next step."""
    show.say(line)
    sys.exit(code)
