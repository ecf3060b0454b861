"""A herd: hourly schedules of 300 expressions in 50 zones that all are due at one instant, and what comes of it.

`python benchmarks/herd.py --schedules 100000 --plot herd.png` makes them over HTTP, waits for the instant, and measures
from there: until the first job is at a worker, until all are fired and all are started, how long heartbeats take
meanwhile, what the nodes hold in memory, and whether the leader stayed. JSON lines on standard output, tables on
standard error. Exit code 1 when a promise was broken: a lease lost, a heartbeat late by half a lease, another number of
jobs than of schedules, a change of leader. What the columns mean: `README.md`.
Not here: the loads (`herd_loads.py`), the picture (`herd_plot.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import herd_plot
import msgspec
import uvloop
from cluster import BenchmarkError, Node, fetch, machine, metrics
from delivery import CONNECTIONS, Row, Run, running, table, write_line
from delivery_loads import DRAIN_SECONDS_MAX, drain, fill_ready
from dispatch import percentile
from herd_loads import (
    HAND_WORKERS,
    LEASE_SECONDS,
    QUEUE,
    SHAPES,
    ZONES,
    Seen,
    check_ledgers,
    drain_herd,
    hold_leases,
    put_schedules,
    schedule_body,
    watch,
)
from rich.console import Console
from rich.table import Table

DRAIN_CONNECTIONS: Final = 4
TRIED: Final = 1000
"""Schedules that are put first, far from due, to see how long all will take."""
SPARE: Final = 1.3
"""Time for the others, in that which they should need."""
QUIET_SECONDS: Final = 8.0
"""Between the last schedule and the instant, at least: what was put is on disk, and workers are there."""
STRAY_SECONDS: Final = 2.0
"""After the last job: one too many would be seen."""
ALONE_JOBS: Final = 20_000
HOUR_SECONDS: Final = 3600
MOMENTS: Final = 12
"""Rows of the table over time."""
STALL: Final = "horae_loop_stall_max_seconds"


async def measure(run: Run, options: argparse.Namespace) -> tuple[list[Row], Seen]:
    """One herd. Raises: `BenchmarkError`."""
    memory = [_memory(run.nodes)]
    instant_s, put_row = await _fill(run, options)
    seen = Seen(instant_s, options.schedules)
    terms = await _terms(run.nodes)
    memory.append(_memory(run.nodes))
    stall_before_s = (await metrics(run.port))[STALL]
    spent_before_s = _spent_s(run.nodes)
    async with _at_work(run, seen):
        await asyncio.wait_for(seen.over.wait(), max(0.0, -seen.now_s()) + DRAIN_SECONDS_MAX)
        spent_s = _spent_s(run.nodes) - spent_before_s
        await asyncio.sleep(STRAY_SECONDS)
    memory.append(_memory(run.nodes))
    stall_s = (await metrics(run.port))[STALL]
    if await _terms(run.nodes) != terms:
        raise BenchmarkError("there was an election: no figure counts")
    stalls = {"before_the_instant": stall_before_s * 1000, "longest_local_read": seen.longest_read_ms}
    spent_ms = spent_s * 1000 / options.schedules
    rows = [
        put_row,
        *await _firing_rows(run, seen),
        _heartbeat_row(seen),
        Row("longest stall of the leader's loop", "since it started", stall_s * 1000, "ms", None, stalls),
        Row("processor time, its claim and end included", "all nodes", spent_ms, "ms a trigger", None),
        *_memory_rows(run, memory, seen),
    ]
    return rows, seen


async def _fill(run: Run, options: argparse.Namespace) -> tuple[int, Row]:
    """Put the schedules; when all are due, in seconds since the Unix epoch."""
    ahead_s = options.schedules / await _try_rate(run.port, options) * SPARE + QUIET_SECONDS
    if ahead_s > HOUR_SECONDS - 60:
        raise BenchmarkError(f"so many take {ahead_s / 60:.0f} minutes to put, and are due once an hour")
    instant_s = -(-int(time.time() + ahead_s) // 60) * 60
    begin = perf_counter()
    bodies = ((number, schedule_body(number, instant_s)) for number in range(options.schedules))
    await put_schedules(run.port, options.connections, bodies)
    span_s = perf_counter() - begin
    if time.time() > instant_s - QUIET_SECONDS / 2:
        raise BenchmarkError(f"the schedules took {span_s:.0f} s: the instant came before all were there")
    rate, setting = options.schedules / span_s, f"{options.connections} connections"
    return instant_s, Row("schedules put", setting, rate, "PUT/s", run.yardstick_rate)


def _memory(nodes: list[Node]) -> dict[str, int]:
    return {node.node_id: node.process.memory_bytes()[1] for node in nodes}


def _spent_s(nodes: list[Node]) -> float:
    return sum(node.process.cpu_seconds() for node in nodes)


async def _try_rate(port: int, options: argparse.Namespace) -> float:
    """Schedules a second."""
    tried = min(TRIED, options.schedules)
    bodies = ((number, schedule_body(number, 0, "2100-01-01T00:00:00Z")) for number in range(tried))
    begin = perf_counter()
    await put_schedules(port, options.connections, bodies)
    return tried / (perf_counter() - begin)


async def _terms(nodes: list[Node]) -> list[int]:
    views = [msgspec.json.decode(await fetch(node.http_port, "/v1/cluster?consistency=local")) for node in nodes]
    return [view["term"] for view in views]


@asynccontextmanager
async def _at_work(run: Run, seen: Seen) -> Any:
    """Workers that drain, workers that hold leases, and who looks on; all end with the block."""
    async with asyncio.TaskGroup() as group:
        for number in range(DRAIN_CONNECTIONS):
            group.create_task(drain_herd(run.port, number, seen))
        for number in range(HAND_WORKERS):
            group.create_task(hold_leases(run.port, number, seen))
        group.create_task(watch(run.port, run.nodes, seen))
        yield
        seen.on = False


async def _firing_rows(run: Run, seen: Seen) -> list[Row]:
    schedules, setting = seen.schedules, f"{seen.schedules:,} schedules"
    made = seen.samples[-1].made
    if not made == seen.count_started == seen.completed == schedules:
        raise BenchmarkError(f"{made} jobs were made and {seen.count_started} started, of {schedules} schedules")
    ledgers = await check_ledgers(run.port, schedules, seen.instant_s)
    await run.measure_yardstick()
    first_ms = seen.started[0][0] * 1000
    fired_s = next(sample.at_s for sample in seen.samples if sample.made == schedules)
    started_s = seen.started[-1][0]
    await fill_ready(run.port, ALONE_JOBS)
    alone_s, _ = await drain(run.port, DRAIN_CONNECTIONS, ALONE_JOBS)
    alone = ALONE_JOBS / alone_s
    more = {"all_after_s": started_s, "drain_alone": alone, "of_drain_alone": schedules / started_s / alone}
    return [
        Row("from the instant to the first job at a worker", setting, first_ms, "ms", run.yardstick_ms),
        Row("fired", setting, schedules / fired_s, "jobs/s", run.yardstick_rate, {"all_after_s": fired_s}),
        Row("started", setting, schedules / started_s, "jobs/s", run.yardstick_rate, more),
        Row("ledgers that say it ran, once", "a sample", ledgers, "schedules", None),
    ]


def _heartbeat_row(seen: Seen) -> Row:
    beats_ms = sorted(seen.beats_ms)
    if seen.lost or beats_ms[-1] > LEASE_SECONDS * 1000 / 2:
        raise BenchmarkError(f"{seen.lost} leases were lost; the longest heartbeat took {beats_ms[-1]:.0f} ms")
    more = {"most": beats_ms[-1], "beats": len(beats_ms), "lost": seen.lost}
    return Row(
        "heartbeats meanwhile", f"leases of {LEASE_SECONDS:g} s", percentile(beats_ms, 0.5), "ms p50", None, more
    )


def _memory_rows(run: Run, moments: list[dict[str, int]], seen: Seen) -> Iterator[Row]:
    """`moments`: by node, before any schedule, with all of them, and after the last job."""
    for node in run.nodes:
        idle, filled, after = (found[node.node_id] / 2**20 for found in moments)
        role = "leader" if node is run.leader else "follower"
        more = {"before": idle, "with_schedules": filled, "most": seen.anonymous_most[node.node_id] / 2**20}
        yield Row(f"memory of the {role}, less files", f"{node.node_id}, afterwards", after, "MiB", None, more)


# ---------------------------------------------------------------- the run


def over_time(seen: Seen) -> list[dict[str, Any]]:
    """Due, made, ready and started at some moments, evenly spread."""
    found = []
    for step in range(1, MOMENTS + 1):
        at_s = seen.samples[-1].at_s * step / MOMENTS
        sample = next(sample for sample in seen.samples if sample.at_s >= at_s - 1e-9)
        started = max((count for at, count in seen.started if at <= sample.at_s), default=0)
        found.append(
            {
                "at_s": round(sample.at_s, 2),
                "due": seen.schedules,
                "fired": sample.made,
                "ready": sample.ready,
                "started": started,
                "ended": sample.ended,
            }
        )
    return found


def _moments_table(lines: list[dict[str, Any]]) -> Table:
    shown = Table(title="over time: seconds after the instant, and jobs", title_justify="left")
    for heading in lines[0]:
        shown.add_column(heading, justify="right")
    for line in lines:
        shown.add_row(*(f"{value:,}" for value in line.values()))
    return shown


def _said(error: BaseException) -> BaseException:
    """Of a group the first, which the others follow from. Raises: it, unless it is a `BenchmarkError`."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, BenchmarkError):
        raise error
    return error


async def main(options: argparse.Namespace) -> int:
    """Measure, print; the exit code."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    if options.plot is not None and not herd_plot.is_possible():
        console.print(herd_plot.MISSING, highlight=False)
        return 2
    write_line(
        {
            "machine": machine(),
            "nodes": options.nodes,
            "schedules": options.schedules,
            "expressions": len(SHAPES),
            "zones": len(ZONES),
            "queue": QUEUE,
            "settings": "the defaults of horae node",
        }
    )
    try:
        async with running(options) as run:
            await run.measure_yardstick()
            rows, seen = await measure(run, options)
    except (BenchmarkError, BaseExceptionGroup) as error:
        console.print(f"[bold red]failed:[/] {_said(error)}", highlight=False)
        return 1
    lines = over_time(seen)
    for line in [*(row.line() for row in rows), *lines]:
        write_line(line)
    console.print(table("herd", rows), _moments_table(lines), sep="\n")
    if options.plot is not None:
        day = datetime.now(UTC).date()
        herd_plot.draw(seen, f"{options.schedules:,} schedules due at one instant ({day})", options.plot)
    return 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000, help="all due at one instant (10000)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it here; needs the extra `bench`")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help=f"that put schedules ({CONNECTIONS})")
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3, 5), help="nodes of the cluster (3)")
    parser.add_argument("--dir", type=Path, help="where data directories go (the system's temporary directory)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(main(parse())))
