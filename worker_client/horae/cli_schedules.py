"""The commands below `horae schedule`. Exit codes and errors as of all commands (`cli.py`)."""

from __future__ import annotations

from typing import Any, get_args

import click

from horae import show
from horae.cli import EXIT_USAGE, Command, Seconds, Target, Whole, fail, main_group, moment, payload_of, target_options
from horae.cli import with_options as _with
from horae.jobs import NewJob
from horae.wire import GapPolicy, MissedPolicy, OverlapPolicy, RepeatPolicy

_RULE = (
    click.option("--cron", metavar="EXPR", help="Five fields, six with the seconds first, or @daily and its kin."),
    click.option("--every", "every_seconds", type=Seconds(), metavar="SECONDS", help="Instead of --cron: so often."),
    click.option("--timezone", metavar="ZONE", help="IANA name of the zone that --cron is read in. Default: UTC."),
    click.option("--jitter", "jitter_seconds", type=Seconds(), metavar="SECONDS", help="Each so much later at most."),
    click.option("--dst-gap", type=click.Choice(get_args(GapPolicy)), help="A local time that is jumped over."),
    click.option("--dst-repeat", type=click.Choice(get_args(RepeatPolicy)), help="A local time that comes twice."),
    click.option("--starts", "starts_at", metavar="RFC3339", help="No trigger before."),
    click.option("--ends", "ends_at", metavar="RFC3339", help="No trigger after."),
)
"""When it triggers."""

_TERMS = (
    click.option("--missed", type=click.Choice(get_args(MissedPolicy)), help="After an outage. Default: skip."),
    click.option("--grace", "grace_seconds", type=Seconds(), metavar="SECONDS", help="So late is not missed. (60)"),
    click.option("--catch-up", "catch_up_seconds", type=Seconds(), metavar="SECONDS", help="How far back. (a day)"),
    click.option("--max-catch-up", type=Whole(min=1), metavar="N", help="So many are made up for. (1000)"),
    click.option("--overlap", type=click.Choice(get_args(OverlapPolicy)), help="While an earlier job is not finished."),
    click.option("--paused", is_flag=True, default=None, help="Made, but not running yet."),
)
"""What becomes of its triggers."""

_TEMPLATE = (
    click.option("--payload", metavar="JSON", help="Each job's payload, a JSON value."),
    click.option("--queue", metavar="Q", help="Default: default."),
    click.option("--priority", type=Whole(-100, 100), metavar="N", help="-100 to 100, higher first."),
    click.option("--max-attempts", type=Whole(1, 100), metavar="N", help="1 to 100. Default: 5."),
    click.option("--timeout", "timeout_seconds", type=Seconds(), metavar="SECONDS", help="Of an attempt. (an hour)"),
    click.option("--ttl", "ttl_seconds", type=Seconds(), metavar="SECONDS", help="Not started by then: never run."),
    click.option("--unique-key", metavar="KEY", help="No second job while one with this key is not finished."),
    click.option("--concurrency-key", metavar="KEY", help="Jobs that share it take turns."),
)
_TEMPLATE_KEYS = (
    *("queue", "priority", "max_attempts", "timeout_seconds", "ttl_seconds"),
    *("unique_key", "concurrency_key"),
)


def _rule_options(command: Command) -> Command:
    return _with(command, _RULE)  # type: ignore[return-value]


def _put_options(command: Command) -> Command:
    return _with(command, (*_RULE, *_TERMS, *_TEMPLATE))  # type: ignore[return-value]


_WINDOW = (
    click.option("--from", "from_", metavar="RFC3339", help="From then on."),
    click.option("--to", "to", metavar="RFC3339", help="Before then."),
)


def _window_options(command: Command) -> Command:
    return _with(command, _WINDOW)  # type: ignore[return-value]


def _terms(given: dict[str, Any]) -> dict[str, Any]:
    """What was said, moments as such."""
    if given["cron"] is None and given["every_seconds"] is None:
        fail(EXIT_USAGE, "say when it triggers: --cron '0 3 * * *', or --every 3600")
    if given["cron"] is not None and given["every_seconds"] is not None:
        fail(EXIT_USAGE, "--cron and --every exclude each other; give one")
    bounds = {f"{word}_at": moment(f"--{word}", given.pop(f"{word}_at")) for word in ("starts", "ends")}
    return {key: value for key, value in {**given, **bounds}.items() if value is not None}


@main_group.group()
def schedule() -> None:
    """Schedules: make, show, pause, trigger; what became of each trigger, and which come next."""


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.argument("task")
@_put_options
@click.option("--if-version", type=Whole(min=0), metavar="N", help="Replace this version only; 0: only make it.")
@target_options
def put(target: Target, schedule_id: str, task: str, if_version: int | None, payload: str | None, **given: Any) -> None:
    """Make the schedule ID, or replace it: a job of TASK at each of its triggers."""
    template = {key: value for key in _TEMPLATE_KEYS if (value := given.pop(key)) is not None}
    job = NewJob(task=task, payload=payload_of(payload), **template)
    terms = _terms(given)
    with target.client() as client:
        target.render(client.put_schedule(schedule_id, job, if_version=if_version, **terms), show.show_schedule)


@schedule.command("list")
@target_options
def list_schedules(target: Target) -> None:
    """List the schedules, by id."""
    with target.client() as client:
        target.render(client.schedules(), show.show_schedules)


@schedule.command("show")
@click.argument("schedule_id", metavar="ID")
@target_options
def show_one(target: Target, schedule_id: str) -> None:
    """Show a schedule."""
    with target.client() as client:
        target.render(client.schedule(schedule_id), show.show_schedule)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@target_options
def pause(target: Target, schedule_id: str) -> None:
    """Let its triggers go by from now on; they are noted as `paused`."""
    with target.client() as client:
        target.tell(client.pause_schedule(schedule_id), f"{schedule_id} is paused")


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--missed", is_flag=True, help="The triggers of the pause count as missed ones.")
@target_options
def resume(target: Target, schedule_id: str, missed: bool) -> None:
    """Let its triggers run again."""
    with target.client() as client:
        found = client.resume_schedule(schedule_id, missed=missed)
    target.tell(found, f"{schedule_id} runs again; next: {show.next_of(found)}")


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--id", "own_id", metavar="OWN", help="Your own id for it: triggering it again makes no second job.")
@target_options
def trigger(target: Target, schedule_id: str, own_id: str | None) -> None:
    """Make a job of it now, besides its triggers."""
    if own_id == "":
        fail(EXIT_USAGE, "--id is empty; leave the flag out for a new one")
    with target.client() as client:
        target.show(client.trigger_schedule(schedule_id, own_id=own_id))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@_window_options
@target_options
def backfill(target: Target, schedule_id: str, from_: str | None, to: str | None) -> None:
    """Run those triggers of a past window that have not run."""
    begin, end = moment("--from", from_), moment("--to", to)
    if begin is None or end is None:
        fail(EXIT_USAGE, "say which window: --from and --to")
    with target.client() as client:
        done = client.backfill_schedule(schedule_id, begin, end)
    more = f"; there are more in the window than max_catch_up: the same again goes on after {done.count}"
    words = f"{done.count} of {done.triggers} triggers run now; the others had run"
    target.tell(done, words + (more if done.more else ""))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@_window_options
@click.option("--limit", type=Whole(min=1), default=50, show_default=True, help="At most so many, the newest.")
@target_options
def triggers(target: Target, schedule_id: str, from_: str | None, to: str | None, limit: int) -> None:
    """The ledger: what became of each trigger, oldest first."""
    with target.client() as client:
        found = client.triggers(schedule_id, from_=moment("--from", from_), to=moment("--to", to))
    target.render(found[-limit:], show.show_triggers)
    if len(found) > limit:
        show.say(f"the newest {limit} of {len(found)} are shown: --limit {len(found)}, or --from and --to")


@schedule.command("next")
@click.argument("schedule_id", metavar="ID")
@click.option("-n", "n", type=Whole(1, 1000), default=10, show_default=True, help="So many.")
@click.option("--from", "from_", metavar="RFC3339", help="From then on. Default: from now on.")
@target_options
def next_times(target: Target, schedule_id: str, n: int, from_: str | None) -> None:
    """Show the moments that it names next."""
    with target.client() as client:
        target.render(client.next_times(schedule_id, n, from_=moment("--from", from_)), show.show_times)


@schedule.command()
@_rule_options
@click.option("-n", "n", type=Whole(1, 1000), default=10, show_default=True, help="So many.")
@click.option("--from", "from_", metavar="RFC3339", help="From then on. Default: from now on.")
@click.option("--id", "schedule_id", metavar="ID", help="What it would be called: H is spread by it.")
@target_options
def preview(target: Target, n: int, from_: str | None, schedule_id: str | None, **given: Any) -> None:
    """Show the moments that a schedule would name, or what is wrong with it. Nothing is saved."""
    rule = _terms(given)
    with target.client() as client:
        times = client.preview(n, schedule_id=schedule_id, from_=moment("--from", from_), **rule)
    target.render(times, show.show_times)


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@target_options
def delete(target: Target, schedule_id: str) -> None:
    """Delete a schedule and its ledger. Its jobs live on."""
    with target.client() as client:
        client.delete_schedule(schedule_id)
    target.tell({"deleted": schedule_id}, f"{schedule_id} is deleted; its jobs live on")
