"""What a node takes from the machine it runs on: its data directory, its stores, its wire, its dice.

`Host` is all that the simulator replaces, besides the clock; `SystemHost` is the real one. May not decide anything.
Next to read: `runtime.py`, which puts the parts together.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Protocol

from horae_node.clock import Clock
from horae_node.config import NodeConfig
from horae_node.raft.port import Roster
from horae_node.raft.transport import TcpTransport, TransportPort
from horae_node.voters import forget_voters, read_members, write_members, write_voters
from horae_storage.directory import Directory, open_directory
from horae_storage.file_write import Watch
from horae_storage.kv import Store
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.log_port import RaftLog
from horae_storage.peer_book import PeerBook
from horae_storage.raft_log import LmdbRaftLog

SWITCH_INTERVAL_S = 0.0002
"""How long a busy loop keeps the interpreter from the log's writer. At 5 ms a sync was noticed seconds late."""


class Host(Protocol):
    """Opened once a process, on the running loop; each part is asked for once, after `open`."""

    def open(self) -> None:
        """Take the data directory for this process. Raises: storage's refusals; then nothing is held."""
        ...

    def close(self) -> None:
        """Let others have the directory, after the parts were closed."""
        ...

    def mark_initialised(self) -> None:
        """State and log have been made: from now on a missing one is refused."""
        ...

    def store(self) -> Store: ...

    def raft_log(self) -> RaftLog: ...

    def transport(self) -> TransportPort: ...

    def dice(self) -> random.Random:
        """For election time-outs: no two nodes may draw the same."""
        ...

    @property
    def snapshot_dir(self) -> Path: ...

    def known_members(self) -> Roster | None:
        """Who the members were when this was last written down; None: as configured."""
        ...

    def remember_members(self, book: Roster) -> None:
        """Write down, synced, who the members are. Blocks: off the loop."""
        ...

    def forget_members(self) -> None:
        """Take back the configured members that the first start wrote down, of a node that has done nothing by them.

        Blocks for a moment.
        """
        ...

    @property
    def origin(self) -> str | None:
        """Where this life of the cluster began, if in a backup or a survivor (`horae_storage.directory.Origin`)."""
        ...

    def incarnation_of(self, node_id: str) -> str | None:
        """Which data directory that member is believed with here, or is our own; None when it was never met."""
        ...

    def free_bytes(self) -> int:
        """Room left on the disk of the data directory."""
        ...


class SystemHost:
    """The machine as it is: files, sockets, chance."""

    def __init__(self, config: NodeConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._directory: Directory
        self._peers: PeerBook

    def open(self) -> None:
        config = self._config
        self._directory = open_directory(config.data_dir, config.cluster, config.node_id)
        self._directory.begin_run()
        sys.setswitchinterval(SWITCH_INTERVAL_S)

    def close(self) -> None:
        self._directory.end_run()
        self._directory.close()

    def mark_initialised(self) -> None:
        self._directory.mark_initialised()

    def store(self) -> Store:
        return LmdbStore(self._directory.state, create=not self._directory.initialised)

    def raft_log(self) -> RaftLog:
        loop = asyncio.get_running_loop()
        watch = Watch(loop.add_reader, loop.remove_reader)
        return LmdbRaftLog(
            self._directory.log, loop.call_soon_threadsafe, watch=watch, create=not self._directory.initialised
        )

    def transport(self) -> TransportPort:
        config = self._config
        self._peers = PeerBook(config.data_dir)
        return TcpTransport(
            own_id=config.node_id,
            members=config.members,
            cluster=config.cluster,
            listen=config.raft_listen,
            clock=self._clock,
            incarnation=self._directory.incarnation,
            check_peer=self._peers.check,
            origin=self._directory.origin,
        )

    def dice(self) -> random.Random:
        return random.Random()

    def known_members(self) -> Roster | None:
        return read_members(self._config.data_dir)

    def remember_members(self, book: Roster) -> None:
        if book.at_index or self._config.join:
            write_members(self._config.data_dir, book)
        else:  # as configured, after all: what was heard was refuted
            write_voters(self._config.data_dir, [member.node_id for member in book.voters])

    def forget_members(self) -> None:
        forget_voters(self._config.data_dir)

    @property
    def origin(self) -> str | None:
        origin = self._directory.origin
        return None if origin is None else origin.sha256

    def incarnation_of(self, node_id: str) -> str | None:
        own = node_id == self._config.node_id
        return self._directory.incarnation if own else self._peers.incarnation_of(node_id)

    @property
    def snapshot_dir(self) -> Path:
        return self._directory.snapshots

    def free_bytes(self) -> int:
        room = os.statvfs(self._config.data_dir)
        return room.f_bavail * room.f_frsize
