"""A cluster of real node processes on loopback, to be killed, paused and restarted by a test.

Owns processes, ports, data directories and log files; `close()` ends every process, whatever the test did. All waits
poll with a deadline. Not here: what is asked of the nodes (`api.py`), what is judged (`ledger.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.helpers.api import LOST_ANSWER, Api

from horae_node.core.invariants import check_invariants
from horae_storage.directory import open_directory
from horae_storage.lmdb_kv import LmdbStore

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the range from which the system takes ports of outgoing connections: a killed node finds its own free again."""

START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
CLUSTER_NAME = "test"

BAD_LOG = re.compile(r"Traceback|AssertionError|\bassert\b|[Cc]orrupt| error [a-z]")
"""A broken promise as a log shows it: a traceback, an assertion, or a line of level error."""


_unused = random.sample(PORTS, len(PORTS))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and none that was given before: a node may listen on its own much later."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while _unused:
            port = _unused.pop()
            sock = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                sock.bind((HOST, port))
                ports.append(port)
            if len(ports) == count:
                return ports
    raise AssertionError("no free ports")


def clean_environ() -> dict[str, str]:
    """The environment without a key of the node's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HORAE_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


def command(*args: str) -> list[str]:
    """`horae ARGS` as a process of this interpreter."""
    return [sys.executable, "-m", "horae_http", *args]


async def poll(what: str, look: Callable[[], Awaitable[Any]], seconds: float = START_SECONDS) -> Any:
    """The first true answer of `look`. Raises: AssertionError naming `what` at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        found = await look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(POLL_SECONDS)


@dataclass
class NodeProcess:
    """One node: its files, its addresses, and its process while it lives."""

    name: str
    home: Path
    http_port: int
    raft_port: int
    process: subprocess.Popen[bytes] | None = None
    starts: int = field(default=0)
    environ: dict[str, str] = field(default_factory=dict)
    """What its process has in its environment besides."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    @property
    def config_path(self) -> Path:
        return self.home / "node.toml"

    @property
    def log_path(self) -> Path:
        return self.home / "node.log"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log_text(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def write_config(self, members: list[NodeProcess], **keys: object) -> None:
        """The file that the node starts with; further `keys` as they stand in it."""
        self.home.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {
            "node_id": self.name,
            "data_dir": str(self.data_dir),
            "cluster": CLUSTER_NAME,
            "http_listen": f"{HOST}:{self.http_port}",
        }
        lines = [f"{key} = {_toml(value)}" for key, value in (values | keys).items()]
        self._write(lines, members)

    def write_joining_config(self, urls: list[str]) -> None:
        """The file of a node that becomes a member of the cluster at `urls`."""
        self.home.mkdir(parents=True, exist_ok=True)
        named = ", ".join(f'"{url}"' for url in urls)
        lines = [f'node_id = "{self.name}"', f'data_dir = "{self.data_dir}"', f'cluster = "{CLUSTER_NAME}"']
        lines += [f'http_listen = "{HOST}:{self.http_port}"', f'raft_listen = "{HOST}:{self.raft_port}"']
        self.config_path.write_text("\n".join([*lines, f"join = [{named}]"]) + "\n", encoding="utf-8")

    def _write(self, lines: list[str], members: list[NodeProcess]) -> None:
        lines.append("[members]")
        lines += [f'{m.name} = {{ raft = "{HOST}:{m.raft_port}", http = "{m.url}" }}' for m in members]
        self.config_path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def make_nodes(home: Path, names: list[str], **keys: object) -> list[NodeProcess]:
    """Nodes with ports of their own and a configuration each, with further `keys`; nothing runs yet."""
    ports = free_ports(2 * len(names))
    nodes = [NodeProcess(name, home / name, ports[2 * i], ports[2 * i + 1]) for i, name in enumerate(names)]
    for node in nodes:
        node.write_config(nodes, **keys)
    return nodes


class Cluster:
    """Nodes n1…; use as `async with Cluster(path) as cluster:`, which starts all and waits until all are ready."""

    def __init__(self, home: Path, nodes: int = 3, **keys: object) -> None:
        """`keys` go into the configuration of each node."""
        self.nodes = make_nodes(home, [f"n{i + 1}" for i in range(nodes)], **keys)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Cluster:
        self.api = await self._stack.enter_async_context(Api(self.urls))
        try:
            for node in self.nodes:
                self.start(node)
            await self.wait_ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill_all()
        await self._stack.aclose()

    # ------------------------------------------------------------------ processes

    def urls(self) -> list[str]:
        """Of all nodes, dead ones too: a caller does not know."""
        return [node.url for node in self.nodes]

    def new_node(self, name: str) -> NodeProcess:
        """A node with addresses of its own that joins the others when it is started."""
        http_port, raft_port = free_ports(2)
        node = NodeProcess(name, self.nodes[0].home.parent / name, http_port, raft_port)
        node.write_joining_config(self.urls())
        return node

    @property
    def living(self) -> list[NodeProcess]:
        return [node for node in self.nodes if node.alive]

    def start(self, node: NodeProcess) -> None:
        """Start its process, which dies with this one; returns at once."""
        assert not node.alive
        node.starts += 1
        module = ["horae_http.children", str(os.getpid()), "horae_http", "node", "--config", str(node.config_path)]
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=clean_environ() | node.environ,
            )

    def kill(self, node: NodeProcess) -> None:
        """SIGKILL: gone when this returns."""
        process = node.process
        if process is None:
            return
        process.kill()
        process.wait(STOP_SECONDS)
        if process.stdin is not None:
            process.stdin.close()
        node.process = None

    def kill_all(self) -> None:
        for node in self.nodes:  # all at once: none may see another's end and act on it
            if node.alive and node.process is not None:
                node.process.kill()
        for node in self.nodes:
            self.kill(node)

    async def stop(self, node: NodeProcess) -> int:
        """SIGTERM; the exit code."""
        process = node.process
        assert process is not None
        process.send_signal(signal.SIGTERM)

        async def ended() -> bool:
            return process.poll() is not None

        await poll(f"{node.name} ends after SIGTERM", ended, STOP_SECONDS)
        self.kill(node)
        return process.returncode

    async def stop_all(self) -> None:
        """SIGTERM to all; each must end with exit code 0."""
        codes = await asyncio.gather(*[self.stop(node) for node in self.living])
        assert not any(codes), codes

    def pause(self, node: NodeProcess) -> None:
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)

    def resume(self, node: NodeProcess) -> None:
        assert node.process is not None
        node.process.send_signal(signal.SIGCONT)

    # ------------------------------------------------------------------ what the nodes say

    async def wait_ready(self, nodes: list[NodeProcess] | None = None, seconds: float = START_SECONDS) -> float:
        """Until each says that it can serve; how long it took, in seconds."""
        began = time.monotonic()
        for node in nodes or self.nodes:
            await poll(f"{node.name} is ready", partial(self._is_ready, node), seconds)
        return time.monotonic() - began

    async def _is_ready(self, node: NodeProcess) -> bool:
        assert node.alive, f"{node.name} ended by itself:\n{node.log_text()[-4000:]}"
        try:
            return (await self.api.send("GET", node.url + "/readyz", seconds=2)).status == 200
        except LOST_ANSWER:
            return False

    async def view(self, node: NodeProcess) -> dict[str, Any] | None:
        """The cluster as this node sees it; None when it does not answer."""
        try:
            answer = await self.api.send("GET", node.url + "/v1/cluster?consistency=local", seconds=2)
        except LOST_ANSWER:
            return None
        return answer.body if answer.status == 200 else None

    async def leader(self) -> NodeProcess:
        """The living node that leads and has opened its epoch."""

        async def look() -> NodeProcess | None:
            views = [(node, view) for node in self.living if (view := await self.view(node))]
            leading = [(view["term"], node.name, node) for node, view in views if view["role"] == "leader"]
            if not leading:
                return None
            node: NodeProcess = max(leading)[2]
            return node if await self._is_ready(node) else None

        found: NodeProcess = await poll("a node leads", look)
        return found

    async def follower(self) -> NodeProcess:
        leader = await self.leader()
        return next(node for node in self.living if node is not leader)

    async def digests(self, seconds: float = START_SECONDS) -> dict[str, str]:
        """Digest of the state by living node, once all have applied the same index."""

        async def look() -> dict[str, str] | None:
            views = {node.name: await self.view(node) for node in self.living}
            indexes = {view["applied_index"] if view else None for view in views.values()}
            if len(indexes) > 1 or None in indexes:
                return None
            return {name: view["state_digest"] for name, view in views.items() if view}

        found: dict[str, str] = await poll("all have applied the same index", look, seconds)
        return found

    # ------------------------------------------------------------------ judgement at the end

    def check_logs(self) -> list[str]:
        """Lines of any node's log that tell of a broken promise."""
        return [
            f"{node.name}: {line}"
            for node in self.nodes
            for line in node.log_text().splitlines()
            if BAD_LOG.search(line)
        ]

    def check_states(self) -> list[str]:
        """What is wrong in the states of the nodes, all stopped."""
        assert not self.living
        found = []
        for node in self.nodes:
            with _state_of(node) as store:
                found += [f"{node.name}: {finding}" for finding in check_invariants(store.txn)]
        return found

    async def finish(self) -> None:
        """The end of every test: equal digests, an orderly stop, clean logs, sound states."""
        digests = await self.digests()
        assert len(digests) == len(self.nodes)
        assert len(set(digests.values())) == 1, digests
        await self.stop_all()
        assert self.check_logs() == []
        assert self.check_states() == []


@contextlib.contextmanager
def _state_of(node: NodeProcess) -> Iterator[LmdbStore]:
    directory = open_directory(node.data_dir, CLUSTER_NAME, node.name)
    try:
        store = LmdbStore(directory.state)
        try:
            yield store
        finally:
            store.close()
    finally:
        directory.close()


@contextlib.asynccontextmanager
async def running_cluster(home: Path, nodes: int = 3, **keys: object) -> AsyncIterator[Cluster]:
    """A cluster that is judged at the end (`finish`), unless the test has failed already."""
    async with Cluster(home, nodes, **keys) as cluster:
        yield cluster
        await cluster.finish()
