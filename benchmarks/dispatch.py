"""How soon a job is at a worker: from the moment it is due to the claim's answer at an idle, parked worker.

`python benchmarks/dispatch.py` starts three nodes and prints one JSON line a figure on standard output, tables on
standard error. Two figures: a job due at once, from the submit's leaving (its durable commit included, and the
grant's); and a job due half a second ahead, from its `run_at` (the grant alone; both clocks are this machine's, and
`run_at` is in whole milliseconds). Not here: throughput (`throughput.py`), the processes (`cluster.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from cluster import BenchmarkError, Cluster, machine, metrics
from http_client import RawConnection
from rich.console import Console
from rich.table import Table

QUEUE: Final = "dispatch"
SETTLE_SECONDS: Final = 0.01
"""Between a claim's leaving and the submit: long enough for the claim to be parked."""
AHEAD_SECONDS: Final = 0.5
AHEAD_SPACING_SECONDS: Final = 0.025
AHEAD_WORKERS: Final = 4
"""So many claims are parked that a job never falls due with none: one is back within a few milliseconds."""
WAIT_SECONDS: Final = 30
BOUNDS_MS: Final = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 1000)


class Granted(msgspec.Struct):
    """What is read of a claimed job."""

    id: str
    lease_token: int
    run_at: str


class Grant(msgspec.Struct):
    jobs: list[Granted]


decode_grant = msgspec.json.Decoder(Grant).decode


async def call(connection: RawConnection, path: str, body: dict[str, Any], status: int) -> bytes:
    """Raises: `BenchmarkError` on any other status."""
    found, answer = await asyncio.wait_for(connection.post(path, json.dumps(body).encode()), WAIT_SECONDS + 10)
    if found != status:
        raise BenchmarkError(f"POST {path}: {found} {answer[:500]!r}")
    return answer


async def submit(connection: RawConnection, delay_seconds: float) -> None:
    body = {
        "task": "send_mail",
        "queue": QUEUE,
        "payload": {"to": "someone@example.com"},
        "delay_seconds": delay_seconds,
    }
    await call(connection, "/v1/jobs", body, 201)


async def claim(connection: RawConnection, worker: str) -> Granted:
    """Park until a job comes. Raises: `BenchmarkError` when none does."""
    body = {"worker": worker, "queues": [QUEUE], "max_jobs": 1, "wait_seconds": WAIT_SECONDS}
    jobs = decode_grant(await call(connection, "/v1/claims", body, 200)).jobs
    if not jobs:
        raise BenchmarkError(f"no job came within {WAIT_SECONDS} s")
    return jobs[0]


async def complete(connection: RawConnection, job: Granted) -> None:
    await call(connection, f"/v1/jobs/{job.id}/complete", {"lease_token": job.lease_token}, 200)


async def measure_at_once(port: int, samples: int) -> list[float]:
    """Milliseconds from the submit's leaving to the grant's arrival, one job at a time."""
    submitter, worker = await RawConnection.open(port), await RawConnection.open(port)
    spans_ms: list[float] = []
    try:
        for _ in range(samples):
            async with asyncio.TaskGroup() as group:
                granted = group.create_task(_claim_timed(worker))
                await asyncio.sleep(SETTLE_SECONDS)
                begin = time.perf_counter()
                await submit(submitter, 0)
            job, end = granted.result()
            spans_ms.append((end - begin) * 1000)
            await complete(worker, job)
    finally:
        await submitter.close()
        await worker.close()
    return spans_ms


async def _claim_timed(connection: RawConnection) -> tuple[Granted, float]:
    job = await claim(connection, "worker-1")
    return job, time.perf_counter()


async def measure_ahead(port: int, samples: int) -> list[float]:
    """Milliseconds from `run_at` to the grant's arrival; jobs fall due one after the other."""
    submitter = await RawConnection.open(port)
    workers = [await RawConnection.open(port) for _ in range(AHEAD_WORKERS)]
    spans_ms: list[float] = []
    all_came = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_work(connection, f"worker-{number}", spans_ms, samples, all_came))
                for number, connection in enumerate(workers)
            ]
            for _ in range(samples):
                await submit(submitter, AHEAD_SECONDS)
                await asyncio.sleep(AHEAD_SPACING_SECONDS)
            await asyncio.wait_for(all_came.wait(), WAIT_SECONDS)
            for task in tasks:
                task.cancel()
    finally:
        for connection in (submitter, *workers):
            await connection.close()
    return spans_ms


async def _work(
    connection: RawConnection, worker: str, spans_ms: list[float], samples: int, all_came: asyncio.Event
) -> None:
    while not all_came.is_set():
        job = await claim(connection, worker)
        now_s = time.time()
        spans_ms.append((now_s - datetime.fromisoformat(job.run_at).timestamp()) * 1000)
        if len(spans_ms) >= samples:
            all_came.set()
        await complete(connection, job)


# ---------------------------------------------------------------- what is shown


def percentile(spans_ms: list[float], share: float) -> float:
    """Of sorted spans."""
    return spans_ms[min(len(spans_ms) - 1, int(share * len(spans_ms)))]


def line(figure: str, spans_ms: list[float]) -> dict[str, Any]:
    """What is printed as JSON, of sorted spans."""
    shown = {name: round(percentile(spans_ms, share), 2) for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99))}
    extremes = {"least_ms": round(spans_ms[0], 2), "most_ms": round(spans_ms[-1], 2)}
    return {"figure": figure, "samples": len(spans_ms), **shown, **extremes, "early": sum(ms < 0 for ms in spans_ms)}


def histogram(title: str, spans_ms: list[float]) -> Table:
    """Counts by upper bound; a job that came before its time stands in a row of its own."""
    table = Table(title=title, title_justify="left")
    table.add_column("up to", justify="right")
    table.add_column("jobs", justify="right")
    table.add_column("")
    lower = float("-inf")
    for upper in (0, *BOUNDS_MS, float("inf")):
        count = sum(lower <= ms < upper for ms in spans_ms)
        if count:
            label = "early" if upper == 0 else f"{upper:g} ms"
            table.add_row(label, str(count), "█" * max(1, round(50 * count / len(spans_ms))))
        lower = upper
    return table


async def main(options: argparse.Namespace) -> int:
    """Measure, print; the exit code."""
    console = Console(stderr=True)
    root = Path(tempfile.mkdtemp(prefix="horae-bench-", dir=options.dir))
    try:
        async with Cluster(options.nodes, root) as cluster:
            port = (await cluster.leader()).http_port
            await measure_at_once(port, 20)
            at_once = sorted(await measure_at_once(port, options.samples))
            ahead = sorted(await measure_ahead(port, options.samples))
            stall_s = (await metrics(port)).get("horae_loop_stall_max_seconds", float("nan"))
    except BenchmarkError as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    lines = [{"machine": machine(), "nodes": options.nodes}, line("due_at_once", at_once), line("due_ahead", ahead)]
    sys.stdout.write("".join(json.dumps(entry) + "\n" for entry in lines))
    sys.stdout.flush()
    for name, spans_ms in (("submit sent → claim answered, due at once", at_once), ("due → claim answered", ahead)):
        shown = f"{name}: p50 {percentile(spans_ms, 0.5):.2f} ms, p99 {percentile(spans_ms, 0.99):.2f} ms"
        console.print(histogram(shown, spans_ms))
    console.print(f"longest stall of the leader's loop: {stall_s * 1000:.0f} ms")
    early = sum(ms < 0 for ms in ahead)
    if early:
        console.print(f"[bold red]invalid:[/] {early} jobs were handed out before they were due")
    return 1 if early else 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200, help="jobs of each figure (200)")
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3, 5), help="nodes of the cluster (3)")
    parser.add_argument("--dir", type=Path, help="where data directories go (the system's temporary directory)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raise SystemExit(runner.run(main(parse())))
