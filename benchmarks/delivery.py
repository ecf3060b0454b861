"""How jobs get to workers: how soon, how fast, what those cost who only wait, and what other jobs in the cluster cost.

`python benchmarks/delivery.py` measures five parts, each on a cluster of its own, and prints one JSON line a figure on
standard output, a table on standard error: `latency` (from ready to at a worker, beside more and more parked claims),
`parked` (what idle parked claims cost), `drain` (a full queue emptied by more and more workers), `growth` (a job's cost
and a page's among more and more other jobs) and `overload` (what is answered meanwhile, and how long it takes to be
over). Every load ends by itself. Exit code 1 when an answer was not the hoped-for one. What the columns mean:
`README.md`. Not here: the loads (`delivery_loads.py`), the processes (`cluster.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop
from cluster import BenchmarkError, Cluster, Node, machine, metrics
from delivery_loads import (
    Workers,
    drain,
    fill_others,
    fill_ready,
    overload,
    page_spans,
    place_in_the_middle,
    take_one,
    work_alone,
)
from dispatch import percentile
from http_client import RawConnection
from load import run_load, submit_each
from rich.console import Console
from rich.table import Table
from throughput import answer_size_bytes, yardstick

WORKERS: Final = (1, 100, 1000)
IDLE_SECONDS: Final = 5.0
PARK_SECONDS: Final = 1.0
"""Before an idle span is measured: parking a thousand claims is not part of it."""
DRAIN_JOBS: Final = 100_000
DRAIN_CONNECTIONS: Final = (1, 4, 16)
OTHERS_LEAST: Final = 1000
COST_JOBS: Final = 200
COST_ROUNDS: Final = 5
ROUND_PAUSE_SECONDS: Final = 1.0
"""After what was filled in, and between rounds: the state commits, and the system writes back, in bursts."""
OVERLOAD_SECONDS: Final = 10.0
YARDSTICK_SECONDS: Final = 1.5
CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `against`: the value of the yardstick, in the same unit; None where there is none."""

    figure: str
    setting: str
    value: float
    unit: str
    against: float | None
    more: dict[str, float | int] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """What is printed as JSON."""
        ratio = None if self.against is None else round(self.value / self.against, 3)
        named = {"figure": self.figure, "setting": self.setting, "value": round(self.value, 3), "unit": self.unit}
        return {**named, "ratio": ratio, **{name: round(value, 3) for name, value in self.more.items()}}


class Run:
    """One part on one cluster: its nodes, the leader's port, and the yardstick beside it."""

    def __init__(self, nodes: list[Node], leader: Node, yardstick_port: int, options: argparse.Namespace) -> None:
        self.nodes = nodes
        self.leader = leader
        self.port = leader.http_port
        self.options = options
        self._yardstick_port = yardstick_port
        self._rates: list[float] = []
        self._p50s_ms: list[float] = []

    @property
    def yardstick_rate(self) -> float:
        """Requests a second at 64 connections, the median so far."""
        return statistics.median(self._rates)

    @property
    def yardstick_ms(self) -> float:
        """p50 of a request on one connection, the median so far."""
        return statistics.median(self._p50s_ms)

    async def measure_yardstick(self) -> None:
        for connections in (CONNECTIONS, 1):
            outcome = await run_load(
                RawConnection,
                self._yardstick_port,
                connections,
                submit_each,
                seconds=YARDSTICK_SECONDS,
                warm_up_seconds=0.3,
            )
            if connections == 1:
                self._p50s_ms.append(outcome.percentile_ms(0.5))
            else:
                self._rates.append(outcome.rate)


# ---------------------------------------------------------------- the parts


async def measure_latency(run: Run) -> AsyncIterator[Row]:
    """From ready to at a worker."""
    for count in WORKERS:
        async with Workers(run.port, count) as workers:
            await workers.samples_at_once(20)
            at_once = await workers.samples_at_once(run.options.samples)
            ahead = sorted(await workers.samples_ahead(run.options.samples))
        await run.measure_yardstick()
        from_submit = sorted(sample.from_submit_ms for sample in at_once)
        from_answer = sorted(sample.from_answer_ms for sample in at_once)
        for figure, spans_ms in (
            ("submit sent to claim answered", from_submit),
            ("submit answered to claim answered", from_answer),
            ("due to claim answered", ahead),
        ):
            more = {"p99": percentile(spans_ms, 0.99), "most": spans_ms[-1]}
            yield Row(figure, f"{count} parked", percentile(spans_ms, 0.5), "ms p50", run.yardstick_ms, more)


async def measure_parked(run: Run) -> AsyncIterator[Row]:
    """What the leader spends in some seconds without any work, and holds."""
    for count in (0, *WORKERS[1:]):
        async with Workers(run.port, count):
            await asyncio.sleep(PARK_SECONDS)
            before = run.leader.process.cpu_seconds()
            await asyncio.sleep(IDLE_SECONDS)
            spent_s = run.leader.process.cpu_seconds() - before
            anonymous_bytes = run.leader.process.memory_bytes()[1]
        more = {"anonymous_mib": anonymous_bytes / 2**20}
        yield Row(f"leader's processor time in {IDLE_SECONDS:g} s", f"{count} parked", spent_s * 1000, "ms", None, more)


async def measure_drain(run: Run) -> AsyncIterator[Row]:
    """Jobs a second out of a full queue."""
    for connections in DRAIN_CONNECTIONS:
        await fill_ready(run.port, DRAIN_JOBS)
        await run.measure_yardstick()
        seconds, p99_ms = await drain(run.port, connections, DRAIN_JOBS)
        setting = f"{DRAIN_JOBS:,} jobs, {connections} connection{'s' if connections > 1 else ''}"
        yield Row(
            "drained, 100 a claim",
            setting,
            DRAIN_JOBS / seconds,
            "jobs/s",
            run.yardstick_rate,
            {"seconds": seconds, "claim_and_complete_p99_ms": p99_ms},
        )


async def measure_growth(run: Run) -> AsyncIterator[Row]:
    """Submit, claim and complete one job after the other, and read pages, among more and more others."""
    others, first = 0, {}
    while (wanted := max(OTHERS_LEAST, others * 10)) <= run.options.most:
        await fill_others(run.port, others, wanted)
        others = wanted
        for row in await _among(run, others):
            base = first.setdefault(row.figure, row.value)
            yield Row(
                row.figure, row.setting, row.value, row.unit, row.against, {**row.more, "of_first": row.value / base}
            )


async def _among(run: Run, others: int) -> list[Row]:
    setting = f"{others:,} others"
    await run.measure_yardstick()
    rounds = []
    for _ in range(COST_ROUNDS):
        await asyncio.sleep(ROUND_PAUSE_SECONDS)
        before = run.leader.process.cpu_seconds()
        spans_ms = sorted(await work_alone(run.port, COST_JOBS))
        cpu_ms = (run.leader.process.cpu_seconds() - before) * 1000 / COST_JOBS
        rounds.append((percentile(spans_ms, 0.5), percentile(spans_ms, 0.99), cpu_ms))
    p50, p99, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
    more = {"median": p50, "p99": p99}
    rows = [
        Row("a job's submit, claim, complete", setting, min(rounds)[0], "ms p50", run.yardstick_ms, more),
        Row("the same: leader's processor time", setting, cpu, "ms a job", None),
    ]
    cursor = await place_in_the_middle(run.port, others)
    for figure, at in (("first page of 50", None), ("a page of 50 in the middle", cursor)):
        spans_ms = sorted(await page_spans(run.port, at))
        more = {"p99": percentile(spans_ms, 0.99)}
        rows.append(Row(figure, setting, percentile(spans_ms, 0.5), "ms p50", run.yardstick_ms, more))
    return rows


async def measure_overload(run: Run) -> AsyncIterator[Row]:
    """More is submitted than the cluster stores: what became of it, of those who end work meanwhile, and afterwards."""
    await run.measure_yardstick()
    found = await overload(run.port, OVERLOAD_SECONDS)
    setting = f"{OVERLOAD_SECONDS:g} s of batches"
    more: dict[str, float | int] = {
        "retry_after_s_least": min(found.retry_after_s, default=0),
        "retry_after_s_most": max(found.retry_after_s, default=0),
        "queued_most": found.queued_most,
    }
    yield Row("stored meanwhile", setting, found.stored / OVERLOAD_SECONDS, "jobs/s", run.yardstick_rate)
    yield Row("batches turned away", setting, len(found.retry_after_s), "answers", None, more)
    endings_ms = sorted(found.endings_ms)
    more = {"p99": percentile(endings_ms, 0.99), "most": endings_ms[-1], "endings": len(endings_ms)}
    yield Row("heartbeats and completions meanwhile", setting, percentile(endings_ms, 0.5), "ms p50", None, more)
    yield Row("until nothing waits, after its end", setting, found.drained_s * 1000, "ms", None)


PARTS: Final[dict[str, Callable[[Run], AsyncIterator[Row]]]] = {
    "latency": measure_latency,
    "parked": measure_parked,
    "drain": measure_drain,
    "growth": measure_growth,
    "overload": measure_overload,
}


# ---------------------------------------------------------------- the run


async def main(options: argparse.Namespace) -> int:
    """Measure, print; the exit code."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    write_line({"machine": machine(), "nodes": options.nodes, "settings": "the defaults of horae node"})
    for name in options.only or PARTS:
        try:
            rows = await _on_a_cluster(options, lambda run, name=name: _rows(PARTS[name](run)))
        except BenchmarkError as error:
            console.print(f"[bold red]failed:[/] {name}: {error}", highlight=False)
            return 1
        console.print(table(name, rows))
    return 0


async def _rows(part: AsyncIterator[Row]) -> list[Row]:
    """All of a part, each printed as it comes."""
    rows = []
    async for row in part:
        rows.append(row)
        write_line(row.line())
    return rows


async def _on_a_cluster(options: argparse.Namespace, part: Callable[[Run], Awaitable[list[Row]]]) -> list[Row]:
    async with running(options) as run:
        await run.measure_yardstick()
        rows = await part(run)
        stall_s = (await metrics(run.port)).get("horae_loop_stall_max_seconds", float("nan"))
        return [*rows, Row("longest stall of the leader's loop", "in all of it", stall_s * 1000, "ms", None)]


@asynccontextmanager
async def running(options: argparse.Namespace) -> AsyncIterator[Run]:
    """A cluster and its yardstick, gone afterwards. Raises: `BenchmarkError`, also when the leader changed within."""
    root = Path(tempfile.mkdtemp(prefix="horae-bench-", dir=options.dir))
    try:
        async with Cluster(options.nodes, root) as cluster:
            leader = await cluster.leader()
            answer_bytes = await answer_size_bytes(leader.http_port)
            await take_one(leader.http_port)
            async with yardstick(root, answer_bytes) as port:
                yield Run(cluster.nodes, leader, port, options)
            if await cluster.leader() is not leader:
                raise BenchmarkError("the leader changed: no figure counts")
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write_line(line: dict[str, Any]) -> None:
    """JSON on standard output."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def table(title: str, rows: list[Row]) -> Table:
    """What people read."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("")
    for heading in ("value", "÷ yardstick", "also"):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio = "" if row.against is None else f"{row.value / row.against:.2f}"
        also = ", ".join(f"{name} {value:,.2f}" for name, value in row.more.items())
        table.add_row(row.figure, row.setting, f"{row.value:,.2f} {row.unit}", ratio, also)
    return table


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part alone; may be repeated")
    parser.add_argument("--samples", type=int, default=200, help="jobs of each latency (200)")
    parser.add_argument("--most", type=int, default=100_000, help="other jobs that growth goes up to (100000)")
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3, 5), help="nodes of the cluster (3)")
    parser.add_argument("--dir", type=Path, help="where data directories go (the system's temporary directory)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(main(parse())))
