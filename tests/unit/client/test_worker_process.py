"""A worker's process: no handler ends it, and the signals that stop it end it once, with the exit code 0."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers.fake_server import FakeServer

LIMIT_S = 60
"""A bound against hanging, never a measure."""

HANDLERS = """
import asyncio, os, sys, threading
from horae import Worker

worker = Worker({url!r}, concurrency=8, grace_seconds=0)

async def leave():
    sys.exit(3)

async def interrupt():
    raise KeyboardInterrupt

@worker.task
async def awaited():
    await asyncio.create_task(leave())

@worker.task
async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(interrupt())
        group.create_task(asyncio.Event().wait())

@worker.task
async def forgotten():
    kept = asyncio.create_task(leave())
    await asyncio.wait([kept])
    return "went on"

@worker.task
async def stops():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "went on"

@worker.task
async def bystander():
    await asyncio.Event().wait()

@worker.task
def in_a_thread():
    threading.Event().wait()
"""


def start(server: FakeServer, place: Path, *, script: str = "") -> subprocess.Popen[bytes]:
    """By the command `horae worker`, or as a script of its own. What it says is in the file `told`."""
    source = HANDLERS.format(url=server.url)
    (place / "handlers.py").write_text(f"{source}\n{script}\n")
    program = "import handlers" if script else "import horae.cli; horae.cli.main_group(prog_name='horae')"
    words = [] if script else ["worker", "handlers:worker"]
    environ = {**os.environ, "PYTHONPATH": str(place), "HORAE_URL": "", "HORAE_TOKEN": ""}
    with (place / "told").open("wb") as told:
        return subprocess.Popen(
            [sys.executable, "-c", program, *words], stdout=told, stderr=told, env=environ, cwd=place
        )


async def test_no_handler_ends_the_worker(server: FakeServer, tmp_path: Path) -> None:
    process = start(server, tmp_path, script="worker.run()")
    try:
        names = ("awaited", "grouped", "forgotten", "stops")
        jobs = [server.jobs[server.add(name)] for name in ("bystander", *names)]
        for job in jobs[1:]:
            await server.wait_until(lambda job=job: bool(job["ending"]))
        process.send_signal(signal.SIGTERM)
        ended = await asyncio.to_thread(process.wait, LIMIT_S)
    finally:
        process.kill()
    told = (tmp_path / "told").read_text()
    assert ended == 0, told
    assert [job["errors"][0]["type"] for job in jobs[1:3]] == ["SystemExit", "KeyboardInterrupt"]
    assert [job["result"] for job in jobs[3:]] == ["went on", "went on"]
    assert jobs[0]["ending"] == "release"
    assert "exit_ignored" in told


async def test_on_a_loop_of_its_program_an_exit_leaves_no_job_behind(server: FakeServer, tmp_path: Path) -> None:
    """There the program ends, as it was asked to, with every task cancelled in one pass. Which handler on the loop was
    the cause nobody knows: their attempts count, or they would end one worker after the other.
    """
    process = start(server, tmp_path, script="asyncio.run(worker.serve())")
    try:
        jobs = [server.jobs[server.add(name)] for name in ("bystander", "in_a_thread", "bystander", "in_a_thread")]
        await server.wait_until(lambda: all(job["state"] == "running" for job in jobs))
        cause = server.jobs[server.add("awaited")]
        ended = await asyncio.to_thread(process.wait, LIMIT_S)
    finally:
        process.kill()
    told = (tmp_path / "told").read_text()
    assert ended == 3, told
    assert [job["ending"] for job in (*jobs, cause)] == ["fail", "release", "fail", "release", "fail"]
    assert "loop_ends" in told
    assert "never" not in told
    assert "is pending" not in told


async def test_a_terminal_that_closes_is_a_stop_in_order_however_often_it_says_so(
    server: FakeServer, tmp_path: Path
) -> None:
    """With time for what runs: only a signal of another kind makes haste. Under `nohup` nobody stops for it."""
    job_id = server.add("bystander")
    process = start(server, tmp_path, script="worker.grace_seconds = 3600\nworker.run()")
    try:
        await server.wait_until(lambda: server.jobs[job_id]["state"] == "running")
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(wait_said, tmp_path, "worker_stopping")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        ended = await asyncio.to_thread(process.wait, LIMIT_S)
    finally:
        process.kill()
    assert ended == 0
    assert server.jobs[job_id]["ending"] == "release"


async def test_under_nohup_a_hang_up_is_nothing(server: FakeServer, tmp_path: Path) -> None:
    job_id = server.add("bystander")
    script = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nworker.run()"
    process = start(server, tmp_path, script=script)
    try:
        await server.wait_until(lambda: server.jobs[job_id]["state"] == "running")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        ended = await asyncio.to_thread(process.wait, LIMIT_S)
    finally:
        process.kill()
    told = (tmp_path / "told").read_text()
    assert (ended, told.count("worker_stopping")) == (0, 1)
    assert "grace_seconds=0" in told


def wait_said(place: Path, words: str) -> None:
    """Until the process has said so."""
    until = time.monotonic() + LIMIT_S
    while words not in (place / "told").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("task", ["bystander", "in_a_thread"])
async def test_signals_that_come_while_it_ends_change_nothing(
    server: FakeServer, tmp_path: Path, task: str, number: signal.Signals
) -> None:
    """They come until it is gone, so that no moment of its end is without one."""
    job_id = server.add(task)
    process = start(server, tmp_path)
    try:
        await server.wait_until(lambda: server.jobs[job_id]["state"] == "running")
        async with asyncio.timeout(LIMIT_S):
            while process.poll() is None:
                process.send_signal(number)
                await asyncio.sleep(0)
    finally:
        process.kill()
    told = (tmp_path / "told").read_text()
    assert process.returncode == 0, told
    assert server.jobs[job_id]["ending"] == "release"
    assert told.count("worker_stopped") == 1
    assert "Traceback" not in told
