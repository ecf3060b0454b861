"""Nodes and other processes of a benchmark: started on free ports of the loopback, watched, always stopped.

Nodes run with the defaults of `horae node`, each its own process with its data under one directory. What the operating
system and the node say of a process (memory, processor time, loop stall) and of the disk is read here.
Not here: any load (`load.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from http_client import HOST, RawConnection

READY_SECONDS_MAX: Final = 30.0
STOP_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.05
SECTOR_BYTES: Final = 512
"""What the kernel counts in, whatever the disk's own sectors are."""
_METRIC: Final = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


class BenchmarkError(Exception):
    """The run cannot go on; the text says why."""


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((HOST, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


class Process:
    """A child whose output goes to a file. It ends with its parent, however that ends."""

    def __init__(self, name: str, module: str, args: list[str], log_path: Path, cwd: Path | None = None) -> None:
        self.name = name
        self.log_path = log_path
        env = {key: value for key, value in os.environ.items() if not key.startswith("HORAE_")}
        command = [sys.executable, "-m", "horae_http.children", str(os.getpid()), module, *args]
        with log_path.open("ab") as log:
            self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, cwd=cwd)
        self.pid = self._popen.pid

    def require_alive(self) -> None:
        """Raises: `BenchmarkError` with its last words."""
        if self._popen.poll() is not None:
            words = self.log_path.read_text(errors="replace")[-2000:]
            raise BenchmarkError(f"{self.name} ended with exit code {self._popen.returncode}:\n{words}")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not heed it."""
        self._popen.terminate()
        try:
            self._popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def memory_bytes(self) -> tuple[int, int]:
        """Resident memory, and what of it is not mapped from files."""
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{self.pid}/status").read_text().splitlines())
        return _kib(fields["VmRSS"]), _kib(fields["RssAnon"])

    def cpu_seconds(self) -> float:
        """Processor time of all its threads."""
        user, system = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Node:
    node_id: str
    http_port: int
    process: Process


class Cluster:
    """So many nodes. As a context: started and ready within, stopped after."""

    def __init__(self, nodes: int, root: Path) -> None:
        ports = free_ports(2 * nodes)
        names = [f"n{number + 1}" for number in range(nodes)]
        self._http = dict(zip(names, ports[:nodes], strict=True))
        self._raft = dict(zip(names, ports[nodes:], strict=True))
        self._root = root
        self.nodes: list[Node] = []

    async def __aenter__(self) -> Self:
        try:
            for name in self._http:
                self.nodes.append(self._start(name))
            for node in self.nodes:
                await wait_ready(node)
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()

    async def leader(self, *away: Node) -> Node:
        """The node that leads now, asked of those that are not `away`. Raises: `BenchmarkError` when none does."""
        here = [node for node in self.nodes if node not in away]
        for node in here:
            node.process.require_alive()
        view = msgspec.json.decode(await fetch(here[0].http_port, "/v1/cluster"))
        for node in self.nodes:
            if node.node_id == view["leader"]:
                return node
        raise BenchmarkError(f"no node leads: {view}")

    def start(self, stopped: Node) -> Node:
        """Start a node again that was stopped, in its place."""
        self.nodes[self.nodes.index(stopped)] = back = self._start(stopped.node_id)
        return back

    def _start(self, name: str) -> Node:
        config = self._root / f"{name}.toml"
        lines = [f'node_id = "{name}"', f'data_dir = "{self._root / name}"', 'cluster = "bench"']
        lines += [f'http_listen = "{HOST}:{self._http[name]}"', "[members]"]
        for other, port in self._http.items():
            lines.append(f'{other} = {{ raft = "{HOST}:{self._raft[other]}", http = "http://{HOST}:{port}" }}')
        config.write_text("\n".join(lines) + "\n")
        args = ["node", "--config", str(config)]
        return Node(name, self._http[name], Process(name, "horae_http", args, self._root / f"{name}.log"))

    def _stop(self) -> None:
        for node in self.nodes:
            node.process.stop()


async def wait_ready(node: Node) -> None:
    """Raises: `BenchmarkError` when the node has ended, or is not ready in time."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS_MAX
    while asyncio.get_running_loop().time() < deadline:
        node.process.require_alive()
        with contextlib.suppress(OSError, BenchmarkError):
            await fetch(node.http_port, "/readyz")
            return
        await asyncio.sleep(POLL_SECONDS)
    raise BenchmarkError(f"{node.node_id} was not ready within {READY_SECONDS_MAX:g} s: see {node.process.log_path}")


async def wait_listening(process: Process, port: int) -> None:
    """Raises: `BenchmarkError` as `wait_ready`."""
    deadline = asyncio.get_running_loop().time() + READY_SECONDS_MAX
    while asyncio.get_running_loop().time() < deadline:
        process.require_alive()
        with contextlib.suppress(OSError):
            await (await RawConnection.open(port)).close()
            return
        await asyncio.sleep(POLL_SECONDS)
    raise BenchmarkError(f"{process.name} did not listen within {READY_SECONDS_MAX:g} s")


async def fetch(port: int, path: str) -> bytes:
    """The body of a GET on a connection of its own. Raises: `OSError`; `BenchmarkError` unless 200."""
    connection = await RawConnection.open(port)
    try:
        status, body = await asyncio.wait_for(connection.get(path), READY_SECONDS_MAX)
    finally:
        await connection.close()
    if status != 200:
        raise BenchmarkError(f"GET {path}: {status} {body[:500]!r}")
    return body


async def metrics(port: int) -> dict[str, float]:
    """All samples of `/metrics`, keyed as they are written there, labels included."""
    text = (await fetch(port, "/metrics")).decode()
    return {name + (labels or ""): float(value) for name, labels, value in _METRIC.findall(text)}


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1] if model else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
    }


class Profiler:
    """py-spy on some processes, one file of collapsed stacks a process and figure."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        found = Path(sys.executable).parent / "py-spy"
        self._command = str(found) if found.exists() else shutil.which("py-spy")
        if self._command is None:
            raise BenchmarkError("py-spy was not found: install it, or leave --profile out")

    def start(self, process: Process, figure: str, seconds: float) -> subprocess.Popen[bytes]:
        """Record for so long from now on; the caller waits for the end."""
        assert self._command is not None
        path = self._directory / f"profile-{figure}-{process.name}.txt"
        options = ["--format", "raw", "--rate", "200", "--duration", str(max(1, round(seconds)))]
        command = [self._command, "record", "--pid", str(process.pid), "--output", str(path), *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024


def disk_written_bytes(path: Path) -> int | None:
    """What the disk that holds `path` has had written since the system's start, by whomever; None for no disk.

    The kernel's count a process is of no use: it takes a page that is touched for all of the large folio around it.
    """
    device = path.stat().st_dev
    stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(stat.read_text().split()[6]) * SECTOR_BYTES if stat.exists() else None
