"""What must be right around a node before it opens anything: its data directory, the voters it was made for, its ports.

In this order, each refused with the fix and nothing left open. The voters' ids are written down at the first start: a
node that came back with other voters could elect itself beside its old peers, and both halves would acknowledge.
Not here: the configuration alone (`config.py`). Next to read: `runtime.py`.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import msgspec

from horae_node.config import Address, NodeConfig
from horae_node.errors import ConfigError
from horae_storage.directory import open_directory
from horae_storage.files import write_atomically

VOTERS_FILE: Final = "voters.json"


def require_surroundings(config: NodeConfig) -> None:
    """Check directory, files, voters and ports, and let go of them again. Forks: before all threads.

    Raises: `ConfigError`, `ForeignDirectory`, `DirectoryInUse`, `DirectoryUnusable`, `Corrupt`.
    """
    directory = open_directory(config.data_dir, config.cluster, config.node_id)
    try:
        directory.require_sound()
        _require_same_voters(config)
        _require_free_port("http_listen", config.http_listen)
        if len(config.members) > 1:  # a node alone has nobody to listen to
            _require_free_port("raft_listen", config.raft_listen)
    finally:
        directory.close()


def _require_same_voters(config: NodeConfig) -> None:
    ids = [member.node_id for member in config.members]
    found = read_voters(config.data_dir)
    if found is None:
        write_voters(config.data_dir, ids)
    elif found != ids:
        theirs = ", ".join(found)
        raise ConfigError(
            f"members are {', '.join(ids)}, but {config.data_dir} belongs to a cluster of {theirs}: "
            "this version cannot change the members of a cluster; mend members, or choose another data_dir"
        )


def read_voters(data_dir: Path) -> list[str] | None:
    """The ids of the cluster's members as written down at the first start; None before it. Raises: `ConfigError`."""
    path = data_dir / VOTERS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[str])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): write the ids of all members into it, as a list"
        ) from error


def write_voters(data_dir: Path, ids: list[str]) -> None:
    """Whole or not at all, also after a power cut."""
    write_atomically(data_dir / VOTERS_FILE, msgspec.json.encode(ids) + b"\n")


def _require_free_port(key: str, address: Address) -> None:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, target in found:
            with socket.socket(family, kind, protocol) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(target)
                sock.listen(1)  # with SO_REUSEADDR two may bind, but only one listens
    except OSError as error:
        raise ConfigError(
            f"{key} {address} cannot be used: {error.strerror}; stop what holds it, or change the key"
        ) from error
