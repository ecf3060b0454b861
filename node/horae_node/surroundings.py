"""What must be right around a node before it opens anything: its data directory, the voters it was made for, its ports.

In this order, each refused with the fix and nothing left open. Of a directory that is still to be made the ports come
first, so that a start that is refused leaves nothing behind. The voters' ids are written down at the first start: a
node that came back with other voters could elect itself beside its old peers, and both halves would acknowledge.
Not here: the configuration alone (`config.py`). Next to read: `runtime.py`.
"""

from __future__ import annotations

import socket

from horae_node import logs
from horae_node.config import Address, NodeConfig
from horae_node.errors import ConfigError
from horae_node.voters import read_members, read_voters, write_voters
from horae_storage.directory import is_new, open_directory, require_usable

log = logs.get_log("process")


def require_surroundings(config: NodeConfig) -> None:
    """Check directory, files, voters and ports, and let go of them again. Forks: before all threads.

    The directory of a node that joins is not made here: what a refusal asks to be mended, its name or its cluster's,
    would stand in it.

    Raises: `ConfigError`, `ForeignDirectory`, `DirectoryInUse`, `DirectoryUnusable`, `Corrupt`.
    """
    new = is_new(config.data_dir)
    if new:
        _require_free_ports(config)
        if config.join:
            require_usable(config.data_dir)
            return
    directory = open_directory(config.data_dir, config.cluster, config.node_id)
    try:
        directory.require_sound()
        _require_same_voters(config)
        if not new:
            _require_free_ports(config)
    finally:
        directory.close()


def _require_same_voters(config: NodeConfig) -> None:
    ids = [member.node_id for member in config.members]
    if read_members(config.data_dir) is not None:
        _report_other_members(config)
        return
    found = read_voters(config.data_dir)
    if found is None:
        if not config.join:
            write_voters(config.data_dir, ids)
    elif found != ids:
        theirs = ", ".join(found)
        raise ConfigError(
            f"members are {', '.join(ids)}, but {config.data_dir} belongs to a cluster of {theirs}: members are "
            "changed by `horae cluster add` and `remove`; mend members, or data_dir where it names the wrong one"
        )


def _report_other_members(config: NodeConfig) -> None:
    """The members were changed by a command since: what the configuration says of them is not obeyed."""
    book = read_members(config.data_dir)
    assert book is not None
    if not config.join and set(book.members) != set(config.members):
        log.warning(
            "members_not_as_configured",
            configured=",".join(member.node_id for member in config.members),
            members=",".join(member.node_id for member in book.members),
        )


def _require_free_ports(config: NodeConfig) -> None:
    _require_free_port("http_listen", config.http_listen)
    _require_free_port("raft_listen", config.raft_listen)


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
