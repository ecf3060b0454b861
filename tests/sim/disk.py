"""A machine's disk: how long a sync takes, when it fails or is full, and what a crash leaves of it.

The log writes one transaction after another, each with all groups that waited when it began: a crash keeps what was
synced and, of the transaction under way, all or nothing. The state is committed on the node's own thread: the node is
held up meanwhile. Both are the conformance-tested stores in memory, with these manners added.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.sim.world import MILLISECOND, Process, World

from horae_storage.errors import StorageFailed, StorageFull
from horae_storage.memory import MemoryStore
from horae_storage.memory_log import MemoryRaftLog

FULL_RETRY_US: Final = 200 * MILLISECOND
"""How soon a log that found no room tries again."""

ROOM_BYTES: Final = 1 << 40


class Disk:
    """One machine's, over all lives of its node."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.sync_us = rng.choice((100, 300, 1000, 4000))
        """A usual sync of this disk."""
        self.slowness = 1.0
        self.full = False
        self.broken = False
        self.store = SimStore(self)
        self.log = SimLog(self)

    def latency_us(self) -> int:
        """Of one sync: a long tail, as disks have."""
        return int(self.sync_us * self.slowness * (0.5 + self.rng.expovariate(2.0)))

    def crash(self) -> None:
        """The process is gone: what was not synced is lost."""
        self.log = self.log.after_crash()
        self.store.abort()


class SimLog(MemoryRaftLog):
    """The log whose writer is the disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._sim = disk
        self._process: Process | None = None
        self._writing_through = 0
        """Last group of the transaction under way; 0: none is."""
        self._told_full = False

    def attach(self, process: Process) -> None:
        self._process = process

    def _hand_over(self, group: object) -> None:
        self._unsynced.append(group)  # type: ignore[arg-type]
        if not self._writing_through:
            self._begin()

    def _begin(self) -> None:
        self._writing_through = self.sealed
        self._sim.world.after(self._sim.latency_us(), self._process, self._finish)

    def _finish(self) -> None:
        if self._failed or self._closed:
            return
        if self._sim.broken:
            self.fail(StorageFailed("input/output error (injected)"))
            return
        if self._sim.full:
            self._wait_for_room()
            return
        through, self._writing_through = self._writing_through, 0
        self._told_full = False
        self.sync(through)
        if self._unsynced and not self._writing_through:
            self._begin()

    def _wait_for_room(self) -> None:
        if not self._told_full:
            self._told_full = True
            self._failure_callback(StorageFull("no space left (injected)"))
        self._sim.world.after(FULL_RETRY_US, self._process, self._finish)

    def after_crash(self) -> SimLog:
        """The log that a restart finds. This one is dead."""
        self._closed = True
        keep = self.durable
        # While the disk is full or broken the transaction under way cannot have got there.
        if self._writing_through and not self._sim.full and not self._sim.broken and self._sim.rng.random() < 0.5:
            keep = self._writing_through
        found = self.crash(keep - self.durable)
        restarted = SimLog(self._sim)
        restarted._disk = found._disk
        return restarted


class SimStore(MemoryStore):
    """The state whose commit holds up its process."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._sim = disk
        self.process: Process | None = None
        self.on_install: Callable[[], None] = lambda: None

    def install(self, path: Path) -> None:
        super().install(path)
        self.on_install()

    def commit(self) -> None:
        if not self.dirty:
            return
        if self._sim.broken:
            raise StorageFailed("input/output error (injected)")
        if self._sim.full:
            raise StorageFull("no space left (injected)")
        super().commit()
        if self.process is not None:
            self.process.busy_until_us = self._sim.world.now_us + self._sim.latency_us()

    def close(self) -> None:
        """The process lets go; what is committed is the disk's."""
        self.abort()
