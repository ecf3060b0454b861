"""Where `horae dev` runs: its data directory, its ports, the flags of its nodes; refused with the fix when unfit.

Not here: any process (`children.py`), the run itself (`dev.py`, next to read).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from horae_http.paths import require_utf8
from horae_node.errors import ConfigError
from horae_storage.directory import is_new
from horae_storage.files import temporary_of, write_atomically
from horae_storage.vacancy import content_of

LOOPBACK: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7070
RAFT_PORT_OFFSET: Final = 1000
"""Raft ports are looked for from here on: below the range from which the system takes ports of outgoing connections."""
PORTS_TRIED_MAX: Final = 500
SIZES: Final = (1, 3, 5)
"""How many nodes there may be."""
LAYOUT_FILE: Final = "dev.json"
LOCK_FILE: Final = "dev.lock"


@dataclass(frozen=True, slots=True)
class DevOptions:
    """`nodes` is 1, 3 or 5; node i (from 0) serves HTTP on `port` + i; all data is under `data_dir`."""

    nodes: int = 3
    port: int = DEFAULT_PORT
    data_dir: Path = Path(".horae")
    worker: bool = True

    @property
    def urls(self) -> dict[str, str]:
        """The base URL of each node, by its id."""
        return {f"n{i + 1}": f"http://{LOOPBACK}:{self.port + i}" for i in range(self.nodes)}


@contextlib.contextmanager
def own_data_dir(options: DevOptions) -> Iterator[None]:
    """Hold the data directory for this process alone. Raises: `ConfigError` with the fix."""
    root = options.data_dir
    require_utf8(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _require_ours(root)
        lock = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"{root} cannot be used: {error.strerror}; choose another with --data") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{root} is in use by another horae dev: stop it, or choose another --data") from None
        _require_same_layout(options)
        yield
    finally:
        os.close(lock)


def _require_ours(root: Path) -> None:
    """A directory of somebody else's is not moved in beside; what file managers and the like leave hidden in any is
    nobody's. Raises: `ConfigError`, OSError."""
    ours = {temporary_of(Path(LAYOUT_FILE)).name, *(f"n{i + 1}" for i in range(max(SIZES)))}
    found = [it.name for it in content_of(root) if not it.name.startswith(".")]
    if {LAYOUT_FILE, LOCK_FILE} & set(found):
        return
    strange = next((name for name in found if name not in ours), None)
    if strange is not None:
        raise ConfigError(f"{root} holds {strange}, which is not of horae dev: choose another with --data")


def made_nodes(options: DevOptions) -> list[str]:
    """The ids of the nodes that have begun here, of whatever number."""
    names = (f"n{i + 1}" for i in range(max(SIZES)))
    return [name for name in names if not is_new(options.data_dir / name)]


def note_layout(options: DevOptions) -> None:
    """Write down how many nodes there are: last before they are started, so that a refusal binds nobody.

    Raises: `ConfigError` with the fix.
    """
    path = options.data_dir / LAYOUT_FILE
    if _read_layout(path) == options.nodes:
        return
    try:
        write_atomically(path, json.dumps({"nodes": options.nodes}).encode() + b"\n")
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary_of(path).unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}; mend that, or choose another --data") from error


def _require_same_layout(options: DevOptions) -> None:
    """One data directory, one number of nodes: the voters of a cluster are not changed by a flag."""
    made = made_nodes(options)
    if not made:
        return
    path = options.data_dir / LAYOUT_FILE
    found = _read_layout(path)
    if found is None:
        likely = next(size for size in SIZES if size >= int(made[-1][1:]))
        raise ConfigError(
            f'{path} does not say how many nodes the cluster there has: write {{"nodes": {likely}}} into it, since '
            f"{', '.join(made)} {'is' if len(made) == 1 else 'are'} beside it, or choose another --data"
        )
    if found != options.nodes:
        raise ConfigError(
            f"{options.data_dir} holds a cluster of {count_nodes(found)}, not {options.nodes}: "
            f"start it with --nodes {found}, or choose another --data"
        )


def _read_layout(path: Path) -> int | None:
    """How many nodes were written down; None for nothing, or nothing that could have been. Raises: `ConfigError`."""
    try:
        found = json.loads(path.read_bytes())["nodes"]
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return None
        raise ConfigError(f"{path} cannot be read: {error.strerror}; mend that, or choose another --data") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) is int and found in SIZES else None


def count_nodes(count: int) -> str:
    """So many nodes, for people."""
    return "1 node" if count == 1 else f"{count} nodes"


def require_free_ports(options: DevOptions) -> None:
    for port in range(options.port, options.port + options.nodes):
        if port > 65535:
            raise ConfigError(f"--port {options.port} leaves no room for {options.nodes} ports: choose a lower one")
        with contextlib.closing(_try_listen(port)) as bound:
            if bound.getsockname()[1] != port:
                raise ConfigError(f"port {port} is in use: stop what listens there, or choose another with --port")


def _try_listen(port: int) -> socket.socket:
    """A socket bound to the port; when that is taken, an unbound one (its port reads 0)."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):
        sock.bind((LOOPBACK, port))
        sock.listen(1)  # with SO_REUSEADDR alone two may bind; only one may listen
        return sock
    sock.close()
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def choose_raft_ports(options: DevOptions) -> list[int]:
    """Free ports, one a node. Raises: `ConfigError` when there are none near."""
    first = options.port + RAFT_PORT_OFFSET
    if first + PORTS_TRIED_MAX > 65535:
        first = options.port - RAFT_PORT_OFFSET - PORTS_TRIED_MAX
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for port in range(first, first + PORTS_TRIED_MAX):
            sock = held.enter_context(_try_listen(port))
            if sock.getsockname()[1] == port:
                ports.append(port)
            if len(ports) == options.nodes:
                return ports
    raise ConfigError(f"no {options.nodes} free ports from {first} on: choose another --port")


def node_args(options: DevOptions, raft_ports: list[int]) -> dict[str, list[str]]:
    """The flags of each node, by its id."""
    rafts = dict(zip(options.urls, raft_ports, strict=True))
    members = ",".join(f"{name}={LOOPBACK}:{rafts[name]}@{url}" for name, url in options.urls.items())
    return {
        name: [
            "node",
            f"--node-id={name}",
            f"--data-dir={options.data_dir / name}",
            "--cluster=dev",
            f"--members={members}",
            f"--http-listen={url.removeprefix('http://')}",
        ]
        for name, url in options.urls.items()
    }


def child_env(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without the keys of nodes, clients and workers: what a child gets is its flags.

    It writes to a pipe of ours, which is read as UTF-8, whatever the terminal's encoding is.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("HORAE_")}
    return kept | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
