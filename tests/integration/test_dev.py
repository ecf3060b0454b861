"""`horae dev` as its user meets it: one job run through, the data there again, an end without orphans."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.cluster import clean_environ, command, free_ports

pytestmark = pytest.mark.cluster

LIMIT_S = 90
UP = "Ctrl-C stops everything"


class DevRun:
    """A running `horae dev`; what it printed up to its welcome."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.text = ""

    def read_until(self, words: str) -> str:
        assert self.process.stdout is not None
        while words not in self.text:
            line = self.process.stdout.readline()
            assert line, f"ended before it said {words!r}:\n{self.text}"
            self.text += line
        return self.text

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=LIMIT_S)
        self.text += rest
        return self.process.returncode

    def node_pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"  pid (\d+)", self.text)]


@contextlib.contextmanager
def dev(tmp_path: Path, *flags: str) -> Iterator[DevRun]:
    port = min(free_ports(1))
    args = command("dev", f"--port={port}", f"--data={tmp_path / 'data'}", "--nodes=1", *flags)
    process = subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean_environ(), cwd=tmp_path
    )
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        yield DevRun(process)
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def test_it_runs_a_job_ends_in_order_and_finds_its_jobs_again(tmp_path: Path) -> None:
    with dev(tmp_path) as run:
        assert 'the demo job succeeded, attempt 1: "Hello, world!"' in run.read_until(UP)
        assert re.search(r"^worker +\| \d{4}-\d\d-\d\dT[0-9:.]+Z info worker_started ", run.text, re.MULTILINE)
        assert run.end(signal.SIGINT) == 0
        after = run.text.partition("| stopping")[2]
        assert after.index("worker has stopped") < after.index("n1 has stopped")
        assert " info " not in after
        assert "starting 1 node," in run.text
    with dev(tmp_path, "--no-worker") as again:
        assert "its jobs are here again" in again.read_until(UP)
        assert again.end(signal.SIGTERM) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a pidfd")
def test_no_node_is_left_when_it_is_killed(tmp_path: Path) -> None:
    with dev(tmp_path, "--no-worker") as run:
        run.read_until(UP)
        pids = run.node_pids()
        assert len(pids) == 1
        watch = os.pidfd_open(pids[0])
        run.end(signal.SIGKILL)
        gone, _, _ = select.select([watch], [], [], LIMIT_S)
        os.close(watch)
        assert gone


def test_a_node_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with dev(tmp_path, "--no-worker") as run:
        run.read_until(UP)
        os.kill(run.node_pids()[0], signal.SIGKILL)
        run.read_until("n1 ended by itself (killed by SIGKILL); it starts again in 1 s")
        run.text = ""
        run.read_until("n1 is started again, pid ")
        pid = re.search(r"n1 is started again, pid (\d+)", run.text)
        assert pid is not None
        run.read_until(f"n1 leads now, pid {pid[1]}\n")
        run.process.send_signal(signal.SIGINT)  # as by a wrapper that passes on what the terminal told all
        assert run.end(signal.SIGINT) == 0
        assert "killed by" not in run.text.partition("| stopping")[2]


def test_another_number_of_nodes_is_refused(tmp_path: Path) -> None:
    with dev(tmp_path, "--no-worker") as run:
        run.read_until(UP)
        run.end(signal.SIGINT)
    with dev(tmp_path, "--nodes=3") as other:
        text, _ = other.process.communicate(timeout=LIMIT_S)
        assert other.process.returncode == 2
        assert text.count("\n") == 1
        assert "holds a cluster of 1 node, not 3: start it with --nodes 1" in text
