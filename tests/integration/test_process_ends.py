"""The end of `horae node` and `horae dev`, whatever becomes of their terminal, their output and their signals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.helpers.api import LOST_ANSWER, Api
from tests.helpers.cluster import HOST, clean_environ, command, free_ports, make_nodes, poll

pytestmark = pytest.mark.cluster

LIMIT_S = 90
"""A bound against hanging, never a measure."""
UP = "Ctrl-C stops everything"


def hear_hang_ups() -> None:
    """In the child: the tests themselves may run under `nohup`, which is handed down."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def started(args: list[str], redirect: str = "", **given: object) -> Iterator[subprocess.Popen[str]]:
    """A process with its streams redirected as by a shell; killed if the block leaves it running."""
    shell = ["sh", "-c", f'exec "$0" "$@" {redirect}', *args]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    usual = {"env": clean_environ(), "preexec_fn": hear_hang_ups}
    process = subprocess.Popen(shell, text=True, **(usual | streams | given))  # type: ignore[call-overload]
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def dev_args(tmp_path: Path, *flags: str, port: int | None = None) -> list[str]:
    first = min(free_ports(1)) if port is None else port
    return command("dev", f"--port={first}", f"--data={tmp_path / 'data'}", "--no-worker", *flags)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    text = ""
    assert process.stdout is not None
    while words not in text:
        line = process.stdout.readline()
        assert line, f"ended before it said {words!r}:\n{text}{process.communicate()[1]}"
        text += line
    return text


async def wait_ready(url: str) -> None:
    async with Api(lambda: [url]) as api:

        async def ready() -> bool:
            try:
                return (await api.send("GET", f"{url}/readyz", seconds=2)).status == 200
            except LOST_ANSWER:
                return False

        await poll(f"{url} is ready", ready)


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize("redirect", ["2>&-", ">&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
async def test_a_node_without_a_place_to_write_serves_and_ends_in_order(tmp_path: Path, redirect: str) -> None:
    (node,) = make_nodes(tmp_path, ["n1"])
    with started(command("node", "--config", str(node.config_path)), redirect) as process:
        await wait_ready(node.url)
        process.terminate()
        assert process.wait(LIMIT_S) == 0


@pytest.mark.parametrize("redirect", [">&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
async def test_dev_without_a_place_to_write_runs_and_ends_in_order(tmp_path: Path, redirect: str) -> None:
    (port,) = free_ports(1)
    with started(dev_args(tmp_path, "--nodes=1", port=port), redirect) as process:
        await wait_ready(f"http://{HOST}:{port}")
        process.terminate()
        _, error = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, error) == (0, "")


def test_what_the_output_cannot_show_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "ä").mkdir()
    environ = clean_environ() | {"PYTHONIOENCODING": "ascii"}
    with started(dev_args(tmp_path / "ä", "--nodes=1"), env=environ) as process:
        assert re.search(r"starting 1 node, data in .*/\\xe4/data", read_until(process, UP))
        process.terminate()
        _, error = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, error) == (0, "")


# ---------------------------------------------------------------- signals


async def test_a_node_stops_in_order_when_its_terminal_closes_even_if_it_is_told_twice(tmp_path: Path) -> None:
    (node,) = make_nodes(tmp_path, ["n1"])
    with started(command("node", "--config", str(node.config_path))) as process:
        await wait_ready(node.url)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        _, log = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
        assert " info process_ends " in log


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a pidfd")
def test_dev_stops_its_nodes_in_order_when_its_terminal_closes(tmp_path: Path) -> None:
    """What it prints afterwards fails: the terminal is gone."""
    ours, theirs = pty.openpty()
    own_terminal = partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0)
    streams = {"stdin": theirs, "stdout": theirs, "start_new_session": True, "preexec_fn": own_terminal}
    with started(dev_args(tmp_path, "--nodes=1"), **streams) as process:
        os.close(theirs)
        said = b""
        while UP.encode() not in said:
            said += os.read(ours, 65536)
        pid = re.search(rb"  pid (\d+)", said)
        assert pid is not None
        watch = os.pidfd_open(int(pid[1]))
        os.close(ours)
        _, error = process.communicate(timeout=LIMIT_S)
        gone, _, _ = select.select([watch], [], [], LIMIT_S)
        os.close(watch)
        assert (process.returncode, error, gone) == (0, "", [watch])
        assert not (tmp_path / "data" / "n1" / "running").exists()


def test_signals_that_do_not_stop_change_nothing_about_the_exit_code(tmp_path: Path) -> None:
    """One of them comes after the last handler has gone."""
    with started(dev_args(tmp_path, "--nodes=1"), "2>&1") as process:
        read_until(process, UP)
        code = None
        while code is None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(0.001)
        assert (code, "Traceback" in process.communicate()[0]) == (0, False)


IMPORTING = """
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv[1:] = {args!r}
import runpy
runpy.run_module("horae_http", run_name="__main__", alter_sys=True)
"""


OF_DEV = ("click", "aiohttp", "horae_http.dev", "horae_http.dev_place")
OF_NODE = ("horae_node.config", "uvloop")


@pytest.mark.parametrize(("what", "name"), [*(("dev", name) for name in OF_DEV), *(("node", name) for name in OF_NODE)])
def test_ctrl_c_during_the_imports_says_nothing(tmp_path: Path, what: str, name: str) -> None:
    (node,) = make_nodes(tmp_path, ["n1"])
    args = dev_args(tmp_path) if what == "dev" else command("node", "--config", str(node.config_path))
    source = IMPORTING.format(name=name, args=args[args.index(what) :])
    with started([sys.executable, "-c", source]) as process:
        text, error = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, text, error) == (-signal.SIGINT, "", "")


# ---------------------------------------------------------------- a start of dev


def test_a_refused_start_of_dev_leaves_the_number_of_nodes_open(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        with started(dev_args(tmp_path, "--nodes=1", port=taken.getsockname()[1])) as process:
            _, error = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, error.count("\n")) == (2, 1)
    with started(dev_args(tmp_path, "--nodes=3", port=min(free_ports(3)))) as refused_before:
        assert "starting 3 nodes" in read_until(refused_before, "starting")
        refused_before.terminate()
        refused_before.communicate(timeout=LIMIT_S)
        assert refused_before.returncode == 0


def test_dev_runs_beside_a_file_that_is_called_as_a_module_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("JOBS = []\n", encoding="utf-8")
    args = dev_args(tmp_path, "--nodes=1")
    with started([args[0], "-P", *args[1:]], "2>&1", cwd=tmp_path) as process:
        assert "Traceback" not in read_until(process, UP)
        process.terminate()
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
