"""What a snapshot costs those who submit meanwhile: p99 of durable submits while the leader streams, ÷ p99 without.

`python benchmarks/snapshot.py` starts three nodes, stops a follower, makes a million jobs, and measures single submits
over a few connections to the leader: first alone, then from the follower's return until it has installed the snapshot
(the copy, the stream and the install are all in that time). The other two are restarted before, so that the longest
stall that they tell of is not one of the bulk load. One JSON line on standard output. The goals are a quotient of at
most 3 and no stall over 50 ms. Not here: throughput (`throughput.py`), the processes (`cluster.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop
from cluster import BenchmarkError, Cluster, Node, fetch, machine, metrics, wait_ready
from http_client import RawConnection

BATCH: Final = 1000
FILLERS: Final = 4
CONNECTIONS: Final = 8
ALONE_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 3.0
CATCH_UP_SECONDS_MAX: Final = 300.0
INSTALLED: Final = " snapshot_installed "
STALL: Final = "horae_loop_stall_max_seconds"
GOAL: Final = 3.0
BOUNDS_MS: Final = (50.0, 95.0, 99.0, 99.9)


async def fill(port: int, first: int, jobs: int) -> None:
    """Submit this share of the jobs, all of them due in a day."""
    connection = await RawConnection.open(port)
    for start in range(first, first + jobs, BATCH):
        batch = [
            {"task": "noop", "id": f"j{n}", "delay_seconds": 86_400, "payload": {"n": n}}
            for n in range(start, min(start + BATCH, first + jobs))
        ]
        while True:
            status, body = await connection.post("/v1/jobs/batch", json.dumps({"jobs": batch}).encode())
            if status == 200:
                break
            if status != 429:
                raise BenchmarkError(f"a batch: {status} {body[:300]!r}")
            await asyncio.sleep(0.1)
    await connection.close()


async def submit_until(end: asyncio.Event, port: int, latencies_ms: list[float]) -> None:
    connection = await RawConnection.open(port)
    body = json.dumps({"task": "noop", "queue": "probe", "delay_seconds": 86_400}).encode()
    while not end.is_set():
        began = time.perf_counter()
        status, answer = await connection.post("/v1/jobs", body)
        latencies_ms.append((time.perf_counter() - began) * 1000)
        if status != 201:
            raise BenchmarkError(f"a submit: {status} {answer[:300]!r}")
    await connection.close()


async def measure(port: int, until: Any) -> list[float]:
    """Latencies of single submits, in ms, until the awaitable ends."""
    end, latencies_ms = asyncio.Event(), list[float]()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(submit_until(end, port, latencies_ms))
        await until
        end.set()
    return sorted(latencies_ms)


async def cut_log(node: Node) -> None:
    """Nothing of the jobs shall be left in the log: the follower must come back by a snapshot."""
    connection = await RawConnection.open(node.http_port)
    status, body = await connection.post("/v1/cluster/snapshot", b"")
    await connection.close()
    if status != 200:
        raise BenchmarkError(f"the log was not cut: {status} {body[:300]!r}")


async def installed(node: Node) -> None:
    deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
    while INSTALLED not in node.process.log_path.read_text():
        node.process.require_alive()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{node.node_id} had not installed the snapshot in time")
        await asyncio.sleep(0.05)


def figures(latencies_ms: list[float]) -> dict[str, float]:
    count = len(latencies_ms)
    found = {f"p{bound:g}_ms": latencies_ms[min(count - 1, int(count * bound / 100))] for bound in BOUNDS_MS}
    return {"submits": count, **{name: round(value, 2) for name, value in found.items()}, "max_ms": latencies_ms[-1]}


async def run(jobs: int, root: Path) -> dict[str, Any]:
    async with Cluster(3, root) as cluster:
        leader = await cluster.leader()
        away = next(node for node in cluster.nodes if node is not leader)
        away.process.stop()
        began = time.monotonic()
        share = jobs // FILLERS
        await asyncio.gather(*[fill(leader.http_port, n * share, share) for n in range(FILLERS)])
        print(f"{jobs} jobs in {time.monotonic() - began:.0f} s", file=sys.stderr)
        await cut_log(leader)
        await restart(cluster, [node for node in cluster.nodes if node is not away])
        leader = await cluster.leader(away)
        view = msgspec.json.decode(await fetch(leader.http_port, "/v1/cluster"))
        await cut_log(leader)
        await asyncio.sleep(SETTLE_SECONDS)
        alone = await measure(leader.http_port, asyncio.sleep(ALONE_SECONDS))
        stalls = {"leader_alone": await stall_max_ms(leader)}
        back = cluster.start(away)
        began = time.monotonic()
        streaming = await measure(leader.http_port, installed(back))
        seconds = time.monotonic() - began
        stalls |= {"leader": await stall_max_ms(leader), "follower": await stall_max_ms(back)}
        quotient = figures(streaming)["p99_ms"] / figures(alone)["p99_ms"]
        return {
            "figure": "snapshot",
            "jobs": jobs,
            "state_bytes": view["disk"]["state_bytes"],
            "seconds": round(seconds, 1),
            "alone": figures(alone),
            "streaming": figures(streaming),
            "p99_quotient": round(quotient, 2),
            "goal": GOAL,
            "stall_max_ms": stalls,
            "machine": machine(),
        }


async def restart(cluster: Cluster, nodes: list[Node]) -> None:
    for node in nodes:
        node.process.stop()
    for back in [cluster.start(node) for node in nodes]:
        await wait_ready(back)


async def stall_max_ms(node: Node) -> float:
    """The longest that its loop has stood since it started."""
    return round((await metrics(node.http_port))[STALL] * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="horae-snapshot-"))
    try:
        print(json.dumps(uvloop.run(run(options.jobs, root))))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
