"""Commands as jobs: what they print is the result, how they end the outcome; nothing of them outlives an attempt."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.fake_server import FakeServer
from tests.unit.client.test_worker import make, serving

from horae import Worker, shell


def commands(server: FakeServer) -> Worker:
    worker = make(server)
    worker.task("command")(shell.run_command.__wrapped__)  # type: ignore[attr-defined]
    return worker


async def ran(server: FakeServer, **payload: Any) -> dict[str, Any]:
    """The job, once an attempt of it has ended."""
    job_id = server.add("command", payload)
    async with serving(commands(server)):
        await server.wait_until(lambda: bool(server.jobs[job_id]["ending"]))
    return server.jobs[job_id]


async def test_what_it_prints_is_the_result(server: FakeServer) -> None:
    job = await ran(
        server,
        command='cat; echo "$GREETING $HORAE_EXECUTION_ID" >&2; pwd',
        stdin="one\ntwo\n",
        env={"GREETING": "hello", "HOME": "/"},
    )
    assert job["result"] == {"stdout": "one\ntwo\n/\n", "stderr": "hello job-1\n"}


@pytest.mark.parametrize("stdin", [None, "a line\n", "x" * 1_000_000])
async def test_one_that_has_ended_before_it_was_given_anything_to_read_is_no_failure(
    server: FakeServer, stdin: str | None
) -> None:
    """On the loop that a worker runs on by itself, whose transports say so by an exception of their own."""
    worker = commands(server)
    jobs = [server.add("command", {"command": "exec true", "stdin": stdin}) for _ in range(20)]
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        await server.wait_until(lambda: all(server.jobs[job_id]["ending"] for job_id in jobs))
    finally:
        worker.stop()
        worker.stop()
        await asyncio.to_thread(thread.join)
    assert [server.jobs[job_id]["errors"] for job_id in jobs] == [[]] * 20


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("echo out; echo oh no >&2; exit 3", "exit code 3\noh no"),
        ("echo only this; exit 1", "exit code 1\nonly this"),
        ("kill -9 $$", "ended by SIGKILL"),
    ],
)
async def test_how_it_ends_is_the_failure(server: FakeServer, command: str, says: str) -> None:
    job = await ran(server, command=command)
    (error,) = job["errors"]
    assert error["type"] == "horae.shell.CommandFailed"
    assert error["message"] == says


async def test_of_a_flood_the_end_is_kept(server: FakeServer) -> None:
    job = await ran(server, command="yes 0123456789 | head -c 3000000; echo the end")
    assert job["result"]["stdout"].endswith("the end\n")
    assert len(job["result"]["stdout"]) == shell.KEPT_CHARS


async def test_a_command_of_another_user_is_not_run(server: FakeServer) -> None:
    job = await ran(server, command="echo no", user="nobody-else")
    assert (job["state"], job["errors"][0]["type"]) == ("dead", "Dead")


async def test_all_that_it_began_ends_with_the_attempt(server: FakeServer, tmp_path: Path) -> None:
    worker = commands(server)
    told = tmp_path / "pids"
    os.mkfifo(told)
    job_id = server.add("command", {"command": f"sleep 1000 & echo $! $$ > {told}; wait"})
    async with asyncio.timeout(20), serving(worker):
        pids = (await asyncio.to_thread(told.read_text)).split()
        worker.stop()
        worker.stop()
        await server.wait_until(lambda: server.jobs[job_id]["ending"] == "release")
    for pid in pids:
        assert not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
