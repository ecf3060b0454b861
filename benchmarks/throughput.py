"""How many jobs a second: three real nodes and the client on one machine, set in relation to a bare aiohttp server.

`python benchmarks/throughput.py` measures all figures in several rounds, each on a cluster of its own, and prints one
JSON line a round and figure, and one a figure with the median of its rounds, on standard output; tables on standard
error. Exit code 1 when an answer was not the hoped-for one, or the leader changed: then no figure counts. What is
measured how, and what the columns mean: `README.md`. Not here: the load itself (`load.py`), the processes
(`cluster.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from cluster import (
    BenchmarkError,
    Cluster,
    Node,
    Process,
    Profiler,
    disk_written_bytes,
    free_ports,
    machine,
    metrics,
    wait_listening,
)
from http_client import CLIENTS, RawConnection
from load import (
    Loop,
    Outcome,
    claim_and_complete_each,
    claim_and_complete_many,
    job_body,
    run_load,
    submit_each,
    submit_many,
)
from rich.console import Console
from rich.table import Table

CONNECTIONS: Final = 64
BATCH_CONNECTIONS: Final = 8
BATCH_JOBS: Final = 100
STOCK_SHARE: Final = 0.75
"""For so much of a figure's time jobs are made, in batches, before they are claimed: beside what submits left."""
HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `floor` and `prototype` are of the quotient; `at_most` turns the floor into a ceiling."""

    name: str
    title: str
    unit: str
    connections: int
    loop: Loop
    floor: float
    prototype: float
    at_most: bool = False
    takes_jobs: bool = False
    """Jobs are made beforehand: more than the claims of the counted time are likely to take."""

    def holds(self, ratio: float) -> bool:
        return ratio <= self.floor if self.at_most else ratio >= self.floor


FIGURES: Final = (
    Figure("submit_1", "submit, 1 a request, 64 connections", "jobs/s", CONNECTIONS, submit_each, 0.25, 0.39),
    Figure(
        "claim_complete_1",
        "claim + complete, 1 a request, 64 connections",
        "requests/s",
        CONNECTIONS,
        claim_and_complete_each,
        0.25,
        0.42,
        takes_jobs=True,
    ),
    Figure(
        "submit_100",
        "submit, 100 a request, 8 connections",
        "jobs/s",
        BATCH_CONNECTIONS,
        submit_many(BATCH_JOBS),
        2.0,
        5.3,
    ),
    Figure(
        "claim_complete_100",
        "claim + complete, 100 a request, 8 connections",
        "jobs/s",
        BATCH_CONNECTIONS,
        claim_and_complete_many(BATCH_JOBS),
        1.0,
        2.8,
        takes_jobs=True,
    ),
    Figure("submit_p50", "one durable submit, 1 connection", "ms (p50)", 1, submit_each, 6.0, 3.7, at_most=True),
)


@dataclass(slots=True)
class Result:
    """A figure measured in one round: the load, and what the nodes spent on it."""

    figure: Figure
    outcome: Outcome
    value: float
    disk_bytes_per_unit: float | None
    """Written to the disk by all nodes together; None where the data lies on no disk of its own."""
    cpu_us_per_unit: dict[str, float]
    loop_stall_max_s: float
    entries: int
    """Log entries that carried it: what it shares of each entry's fixed cost."""

    def line(self, round_: int, yardstick: float) -> dict[str, Any]:
        """What is printed as JSON."""
        return {
            "round": round_,
            "figure": self.figure.name,
            "title": self.figure.title,
            "value": round(self.value, 3),
            "unit": self.figure.unit,
            "yardstick": round(yardstick, 3),
            "ratio": round(self.value / yardstick, 3),
            "floor": self.figure.floor,
            "prototype": self.figure.prototype,
            "holds": self.figure.holds(self.value / yardstick),
            "seconds": round(self.outcome.seconds, 2),
            "requests": len(self.outcome.spans_s),
            "p50_ms": round(self.outcome.percentile_ms(0.5), 2),
            "p99_ms": round(self.outcome.percentile_ms(0.99), 2),
            "disk_bytes_per_unit": None if self.disk_bytes_per_unit is None else round(self.disk_bytes_per_unit),
            "cpu_us_per_unit": {name: round(us, 1) for name, us in self.cpu_us_per_unit.items()},
            "units_per_entry": round(self.outcome.acknowledged / max(1, self.entries), 1),
            "loop_stall_max_ms": round(self.loop_stall_max_s * 1000, 1),
            "ran_dry": self.outcome.dry,
            "errors": dict(self.outcome.errors),
            "first_error": self.outcome.first_error,
        }


class Round:
    """One round: owns what was measured so far."""

    def __init__(
        self, options: argparse.Namespace, root: Path, cluster: Cluster, leader: Node, yardstick_port: int
    ) -> None:
        self._options = options
        self._root = root
        self._cluster = cluster
        self._leader = leader
        self._yardstick_port = yardstick_port
        self._profiler = Profiler(options.profile_dir) if options.profile else None
        self.memory_bytes: dict[str, tuple[int, int]] = {}
        """Of each node at the end: resident, and what of it is not mapped from files."""
        self.results: list[Result] = []
        self.yardstick_rates: list[float] = []
        self.yardstick_p50s_ms: list[float] = []
        self.problems: list[str] = []

    async def measure(self, figures: list[Figure]) -> None:
        """All figures in order, the yardstick before, between and after them."""
        await self._measure_yardstick()
        for figure in figures:
            self.results.append(await self._measure(figure))
            await self._measure_yardstick()
        self.memory_bytes = {node.node_id: node.process.memory_bytes() for node in self._cluster.nodes}

    @property
    def leader_id(self) -> str:
        return self._leader.node_id

    def ratio(self, result: Result) -> float:
        return result.value / self.yardstick_of(result.figure)

    def yardstick_of(self, figure: Figure) -> float:
        """The median of the yardstick's runs: requests a second, or the p50 in ms for the figure that is a latency."""
        return statistics.median(self.yardstick_p50s_ms if figure.at_most else self.yardstick_rates)

    async def _measure_yardstick(self) -> None:
        seconds = self._options.yardstick_seconds
        wide = await self._yardstick_load(CONNECTIONS, seconds)
        self.yardstick_rates.append(wide.rate)
        narrow = await self._yardstick_load(1, seconds / 2)
        self.yardstick_p50s_ms.append(narrow.percentile_ms(0.5))

    async def _yardstick_load(self, connections: int, seconds: float) -> Outcome:
        outcome = await self._load(self._yardstick_port, connections, submit_each, seconds)
        if outcome.errors:
            self.problems.append(f"yardstick: {outcome.first_error}")
        return outcome

    async def _load(self, port: int, connections: int, loop: Loop, seconds: float) -> Outcome:
        client, warm_up_seconds = CLIENTS[self._options.client], max(0.2, seconds / 8)
        return await run_load(client, port, connections, loop, seconds=seconds, warm_up_seconds=warm_up_seconds)

    async def _measure(self, figure: Figure) -> Result:
        seconds = self._options.seconds
        if figure.takes_jobs:
            await self._make_jobs(seconds * STOCK_SHARE)
        profiles = self._start_profiles(figure)
        before = await metrics(self._leader.http_port)
        written, cpu = disk_written_bytes(self._root), self._cpu()
        outcome = await self._load(self._leader.http_port, figure.connections, figure.loop, seconds)
        units = max(1, outcome.acknowledged)
        written_after = disk_written_bytes(self._root)
        disk = None if written is None or written_after is None else (written_after - written) / units
        cpu = {name: (after - cpu[name]) * 1e6 / units for name, after in self._cpu().items()}
        for profile in profiles:
            await asyncio.to_thread(profile.wait)
        after = await metrics(self._leader.http_port)
        entries = round(after["horae_raft_applied_index"] - before["horae_raft_applied_index"])
        await self._note_problems(figure, outcome)
        value = outcome.percentile_ms(0.5) if figure.at_most else outcome.rate
        return Result(figure, outcome, value, disk, cpu, after["horae_loop_stall_max_seconds"], entries)

    async def _make_jobs(self, seconds: float) -> None:
        made = await self._load(self._leader.http_port, BATCH_CONNECTIONS, submit_many(BATCH_JOBS), seconds)
        if made.errors:
            self.problems.append(f"making jobs: {dict(made.errors)}, first {made.first_error}")

    async def _note_problems(self, figure: Figure, outcome: Outcome) -> None:
        if outcome.errors:
            self.problems.append(f"{figure.name}: {dict(outcome.errors)}, first {outcome.first_error}")
        if not outcome.done:
            self.problems.append(f"{figure.name}: nothing was done{' (no jobs to claim)' if outcome.dry else ''}")
        leader = await self._cluster.leader()
        if leader is not self._leader:
            self.problems.append(f"{figure.name}: the leader changed from {self._leader.node_id} to {leader.node_id}")

    def _start_profiles(self, figure: Figure) -> list[Any]:
        if self._profiler is None:
            return []
        followers = [node for node in self._cluster.nodes if node is not self._leader]
        chosen = {"leader": [self._leader], "follower": followers[:1], "both": [self._leader, *followers[:1]]}
        nodes = chosen.get(self._options.profile) or [
            n for n in self._cluster.nodes if n.node_id == self._options.profile
        ]
        if not nodes:
            raise BenchmarkError(f"--profile {self._options.profile}: no such node")
        return [self._profiler.start(node.process, figure.name, self._options.seconds) for node in nodes]

    def _cpu(self) -> dict[str, float]:
        return {node.node_id: node.process.cpu_seconds() for node in self._cluster.nodes}


async def answer_size_bytes(port: int) -> int:
    """How long the answer to one submit is: the yardstick's will be as long."""
    connection = await RawConnection.open(port)
    try:
        status, body = await connection.post("/v1/jobs", job_body(0))
    finally:
        await connection.close()
    if status != 201:
        raise BenchmarkError(f"the first submit got {status}: {body[:500]!r}")
    return len(body)


@contextlib.asynccontextmanager
async def yardstick(root: Path, answer_bytes: int) -> AsyncIterator[int]:
    """The port of a running yardstick."""
    (port,) = free_ports(1)
    process = Process("yardstick", "yardstick", [str(port), str(answer_bytes)], root / "yardstick.log", cwd=HERE)
    try:
        await wait_listening(process, port)
        yield port
    finally:
        process.stop()


# ---------------------------------------------------------------- what comes of the rounds


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all rounds; what is judged is the median of its quotients."""

    figure: Figure
    measured: list[tuple[float, Round, Result]]
    """(quotient, its round, the result), in the order of the quotients."""

    @classmethod
    def of(cls, rounds: list[Round], place: int) -> Summary:
        """That of the figure measured at this place in each round."""
        measured = [(round_.ratio(round_.results[place]), round_, round_.results[place]) for round_ in rounds]
        return cls(measured[0][2].figure, sorted(measured, key=lambda found: found[0]))

    @property
    def ratio(self) -> float:
        return statistics.median(ratio for ratio, _, _ in self.measured)

    @property
    def holds(self) -> bool:
        return self.figure.holds(self.ratio)

    @property
    def middle(self) -> tuple[Round, Result]:
        """The round that had the median quotient, or the one just below it, and what it measured."""
        _, round_, result = self.measured[(len(self.measured) - 1) // 2]
        return round_, result

    def line(self) -> dict[str, Any]:
        """What is printed as JSON."""
        return {
            "median_of": self.figure.name,
            "ratio": round(self.ratio, 3),
            "ratios": [round(ratio, 3) for ratio, _, _ in self.measured],
            "value": round(statistics.median(result.value for _, _, result in self.measured), 3),
            "unit": self.figure.unit,
            "floor": self.figure.floor,
            "holds": self.holds,
        }


def show(console: Console, rounds: list[Round], summaries: list[Summary]) -> None:
    """The tables: figures, nodes, yardstick."""
    console.print(_figures_table(summaries), _nodes_table(summaries), sep="\n")
    for number, round_ in enumerate(rounds, 1):
        rates = ", ".join(f"{rate:,.0f}" for rate in round_.yardstick_rates)
        p50s = ", ".join(f"{p50:.3f}" for p50 in round_.yardstick_p50s_ms)
        console.print(f"yardstick {number}, 64 connections: {rates} requests/s; 1 connection: p50 {p50s} ms")
        for problem in round_.problems:
            console.print(f"[bold red]invalid:[/] {problem}", highlight=False)


def _figures_table(summaries: list[Summary]) -> Table:
    table = Table(title=f"throughput: the median of {len(summaries[0].measured)} rounds", title_justify="left")
    table.add_column("figure")
    for heading in ("value", "÷ yardstick", "of", "floor", "prototype", "p50 ms", "p99 ms", "an entry", "stall ms"):
        table.add_column(heading, justify="right")
    table.add_column("disk B", justify="right")
    table.add_column("errors", justify="right")
    for summary in summaries:
        figure = summary.figure
        _, result = summary.middle
        outcome = result.outcome
        value = f"{result.value:.2f}" if figure.at_most else f"{result.value:,.0f}"
        errors = sum(found.outcome.errors.total() for _, _, found in summary.measured)
        table.add_row(
            figure.title + (" (ran dry)" if outcome.dry else ""),
            f"{value} {figure.unit}",
            f"[{'green' if summary.holds else 'red'}]{summary.ratio:.2f}[/]",
            f"{summary.measured[0][0]:.2f}–{summary.measured[-1][0]:.2f}",
            f"{'≤' if figure.at_most else '≥'} {figure.floor:g}",
            f"{figure.prototype:g}",
            f"{outcome.percentile_ms(0.5):.2f}",
            f"{outcome.percentile_ms(0.99):.2f}",
            f"{outcome.acknowledged / max(1, result.entries):.1f}",
            f"{max(found.loop_stall_max_s for _, _, found in summary.measured) * 1000:.0f}",
            "" if result.disk_bytes_per_unit is None else f"{result.disk_bytes_per_unit:,.0f}",
            str(errors),
        )
    return table


def _nodes_table(summaries: list[Summary]) -> Table:
    table = Table(
        title="nodes: processor time a unit (job; request for claim_complete_1), and memory after all figures",
        title_justify="left",
    )
    table.add_column("node")
    for summary in summaries:
        table.add_column(summary.figure.name, justify="right")
    table.add_column("memory MiB", justify="right")
    table.add_column("less files", justify="right")
    last = summaries[-1].middle[0]
    for leads in (True, False):
        cells = []
        for summary in summaries:
            round_, result = summary.middle
            spent = [us for name, us in result.cpu_us_per_unit.items() if (name == round_.leader_id) is leads]
            cells.append(f"{statistics.fmean(spent):,.0f} µs" if spent else "")
        memory = [bytes_ for name, bytes_ in last.memory_bytes.items() if (name == last.leader_id) is leads]
        sizes = [f"{max(column) >> 20}" for column in zip(*memory, strict=True)] if memory else ["", ""]
        table.add_row("leader" if leads else "each follower", *cells, *sizes)
    return table


# ---------------------------------------------------------------- the run


async def main(options: argparse.Namespace) -> int:
    """Measure, print; the exit code."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
    rounds: list[Round] = []
    lines: list[dict[str, Any]] = []
    try:
        for number in range(1, options.rounds + 1):
            round_, answer_bytes = await _measure_round(options, console)
            if not lines:
                lines.append(_settings(options, answer_bytes))
            rounds.append(round_)
            lines += [result.line(number, round_.yardstick_of(result.figure)) for result in round_.results]
            lines.append(_closing(number, round_))
    except BenchmarkError as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    summaries = [Summary.of(rounds, place) for place in range(len(rounds[0].results))]
    _write_lines([*lines, *(summary.line() for summary in summaries)], options.json)
    show(console, rounds, summaries)
    return 1 if any(round_.problems for round_ in rounds) else 0


async def _measure_round(options: argparse.Namespace, console: Console) -> tuple[Round, int]:
    """A round on a new cluster, and how many bytes the answer to a submit has. Raises: `BenchmarkError`."""
    root = Path(tempfile.mkdtemp(prefix="horae-bench-", dir=options.dir))
    try:
        async with Cluster(options.nodes, root) as cluster:
            leader = await cluster.leader()
            size = await answer_size_bytes(leader.http_port)
            async with yardstick(root, size) as port:
                round_ = Round(options, root, cluster, leader, port)
                await round_.measure([f for f in FIGURES if not options.only or f.name in options.only])
                return round_, size
    finally:
        if options.keep:
            console.print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)


def _settings(options: argparse.Namespace, answer_bytes: int) -> dict[str, Any]:
    return {
        "machine": machine(),
        "nodes": options.nodes,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "client": options.client,
        "request_bytes": len(job_body(1000)),
        "answer_bytes": answer_bytes,
        "profiled": options.profile,
        "settings": "the defaults of horae node",
    }


def _closing(number: int, round_: Round) -> dict[str, Any]:
    return {
        "round": number,
        "yardstick_requests_per_s": [round(rate) for rate in round_.yardstick_rates],
        "yardstick_p50_ms": [round(p50, 3) for p50 in round_.yardstick_p50s_ms],
        "memory_bytes": {node_id: resident for node_id, (resident, _) in round_.memory_bytes.items()},
        "valid": not round_.problems,
        "problems": round_.problems,
    }


def _write_lines(lines: list[dict[str, Any]], path: Path | None) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    sys.stdout.write(text)
    sys.stdout.flush()
    if path is not None:
        path.write_text(text)


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return number


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [figure.name for figure in FIGURES]
    parser.add_argument(
        "--rounds", type=_at_least_one, default=3, help="how often all is measured; the medians count (3)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="counted time of each figure (5)")
    parser.add_argument("--yardstick-seconds", type=float, default=2.0, help="counted time of each yardstick run (2)")
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3, 5), help="nodes of the cluster (3)")
    parser.add_argument(
        "--client", default="aiohttp", choices=tuple(CLIENTS), help="what loads nodes and yardstick (aiohttp)"
    )
    parser.add_argument("--only", action="append", choices=names, help="this figure alone; may be repeated")
    parser.add_argument("--dir", type=Path, help="where data directories go (the system's temporary directory)")
    parser.add_argument("--keep", action="store_true", help="leave data, logs and profiles behind")
    parser.add_argument("--json", type=Path, help="write the JSON lines to this file as well")
    parser.add_argument("--profile", metavar="NODE", help="py-spy on leader, follower, both, or a node's id")
    parser.add_argument("--profile-dir", type=Path, default=Path(), help="where profiles are written (here)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(main(parse())))
