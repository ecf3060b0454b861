"""The commands below `horae import`: what other schedulers have as data, as schedules. Errors as of all (`cli.py`)."""

from __future__ import annotations

import sys
from typing import TextIO

import click
from msgspec import Struct

from horae import errors, shell, show
from horae.blocking import Client
from horae.cli import EXIT_REFUSED, EXIT_USAGE, Target, fail, main_group, target_options
from horae.crontab import Entry, Left, read_crontab
from horae.jobs import NewJob

NO_ZONE = "say which zone its times are in: --timezone Europe/Berlin (cron reads them in the host's own; `timedatectl`)"


@main_group.group("import")
def import_group() -> None:
    """Make schedules of what other schedulers have; without --apply only say what would be made, and what cannot be."""


@import_group.command()
@click.argument("file", type=click.File())
@click.option("--timezone", metavar="ZONE", help="IANA name of the host's zone; a CRON_TZ in the file goes before it.")
@click.option("--task", default=shell.TASK, show_default=True, metavar="TASK", help="What runs the commands.")
@click.option("--queue", default="cron", show_default=True, metavar="Q", help="Where that worker looks.")
@click.option("--prefix", default="cron", show_default=True, metavar="WORD", help="Of the schedules' ids.")
@click.option("--system", is_flag=True, help="As /etc/crontab: a user stands before each command.")
@click.option("--apply", "applies", is_flag=True, help="Make them. The same file again changes nothing.")
@target_options
def crontab(
    target: Target, file: TextIO, timezone: str | None, task: str, queue: str, prefix: str, system: bool, applies: bool
) -> None:
    """The lines of a crontab (FILE, or - for what `crontab -l` pipes in) as schedules.

    Their jobs are run by `HORAE_QUEUE=cron horae worker horae.shell:worker`, or by a task of your own.
    """
    entries, left = read_crontab(file.read(), system=system)
    if timezone is None and any(entry.zone is None for entry in entries):
        fail(EXIT_USAGE, NO_ZONE)
    planned: dict[str, Planned] = {}
    with target.client() as client:
        for entry in entries:
            one = _planned(client, entry, entry.schedule_id(prefix), entry.zone or timezone or "UTC")
            if isinstance(one, Left):
                left.append(one)
            elif (twin := planned.setdefault(one.id, one)) is not one:
                left.append(Left(entry.line, entry.text, f"it is line {twin.line} once more: one schedule", taken=True))
        if applies:
            for one in planned.values():
                job = NewJob(task=task, queue=queue, payload=one.payload)
                client.put_schedule(one.id, job, cron=one.cron, timezone=one.timezone)
    left.sort(key=lambda one: one.line)
    target.render(Import(list(planned.values()), left, applies), _show)
    if not all(one.taken for one in left):
        sys.exit(EXIT_REFUSED)


class Planned(Struct):
    """A schedule to be. `next`: its first trigger, by its zone's clocks."""

    line: int
    id: str
    cron: str
    timezone: str
    next: str | None
    payload: dict[str, object]


class Import(Struct):
    """`left`: what is not taken, or means something else here."""

    schedules: list[Planned]
    left: list[Left]
    applied: bool


def _planned(client: Client, entry: Entry, schedule_id: str, zone: str) -> Planned | Left:
    """As the cluster takes it, or why it does not."""
    try:
        times = client.preview(1, schedule_id=schedule_id, cron=entry.cron, timezone=zone)
    except errors.Invalid as error:
        return Left(entry.line, entry.text, error.detail)
    first = times[0].local_time if times else None
    return Planned(entry.line, schedule_id, entry.cron, zone, first, entry.payload())


def _show(found: Import) -> None:
    if found.schedules:
        rows = [(str(one.line), one.id, one.cron, one.timezone, one.next or "never") for one in found.schedules]
        show.print_table(("line", "id", "cron", "timezone", "next"), rows)
    for one in found.left:
        show.print_line(f"line {one.line} {'taken, but' if one.taken else 'is left out'}: {one.why}  ({one.text})")
    if found.schedules and not found.applied:
        show.say("nothing was made yet: --apply makes them")
