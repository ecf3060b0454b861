"""A copy of this node's state to take away, and the log cut short at an operator's word.

A backup is a snapshot file: taken of a frozen state off the loop, opened and at once removed from its folder, so that
its room is free again when it was read or its reader is gone, also after a crash. One at a time: each takes as much
room as the state. Not here: HTTP, what becomes of a backup (`restore.py`). Next to read: `horae_storage/snapshot.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from horae_node import logs
from horae_node.applier import Applier
from horae_node.errors import NotApplied
from horae_node.raft.port import Raft
from horae_storage.errors import StorageFull

PIECE_BYTES: Final = 256 * 1024
"""Read in a thread; what one reader holds in memory, besides its socket's buffer."""

FILE_NAME: Final = "backup.copy"
CATCH_UP_S: Final = 10.0
"""How long a node waits until it has applied what the backup is to contain."""
LOOK_S: Final = 0.02
RETRY_MS: Final = 5_000

log = logs.get_log("backup")


class Backup:
    """One copy, open. `close` it; whoever forgets it closes it, too: an answer may be dropped before it is begun."""

    def __init__(self, file: BinaryIO, size_bytes: int, index: int, on_close: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.index = index
        """Log index of the last entry applied in it."""
        self._file = file
        self._on_close: Callable[[], None] | None = on_close

    async def read(self) -> bytes:
        """The next piece, b"" at the end."""
        return await asyncio.to_thread(self._file.read, PIECE_BYTES)

    def close(self) -> None:
        """A second call does nothing."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            self._file.close()
            on_close()

    def __del__(self) -> None:
        self.close()


class Backups:
    """One for a node."""

    def __init__(self, applier: Applier, raft: Raft, directory: Path) -> None:
        """`directory`: on the data's disk; it is there when the first backup is asked for."""
        self._applier = applier
        self._raft = raft
        self._path = directory / FILE_NAME
        self._busy = False
        self._unwanted: asyncio.Task[Backup] | None = None

    async def open(self, after_index: int) -> Backup:
        """A copy of this node's state with at least the entry `after_index` in it.

        Raises: `NotApplied`: `rate_limited` while another is open, `storage_full`, `no_leader` when this node does not
        catch up.
        """
        if self._busy:
            raise NotApplied(
                "rate_limited", "a backup is under way on this node: one at a time", retry_after_ms=RETRY_MS
            )
        self._busy = True
        try:
            await self._wait_applied(after_index)
        except BaseException:
            self._done()
            raise
        taking = asyncio.get_running_loop().create_task(self._take())
        taking.add_done_callback(self._on_taken)
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The copy goes on in its thread: until it has ended, no other may begin, and then it is thrown away.
            self._unwanted = taking
            raise
        except StorageFull as error:
            raise NotApplied("storage_full", f"a backup needs as much room as the state: {error}") from error

    def _on_taken(self, taking: asyncio.Task[Backup]) -> None:
        if taking.cancelled() or taking.exception() is not None:
            self._done()
        elif taking is self._unwanted:
            taking.result().close()
        self._unwanted = None

    async def _wait_applied(self, index: int) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + CATCH_UP_S
        while self._applier.applied_index < index:
            if loop.time() >= end:
                raise NotApplied("no_leader", f"this node has not caught up with entry {index}: ask another one")
            await asyncio.sleep(LOOK_S)

    async def _take(self) -> Backup:
        await asyncio.to_thread(self._path.unlink, missing_ok=True)  # of a process that was killed
        info = await self._applier.take_snapshot(self._path, self._raft.term_of)
        file = self._path.open("rb")
        await asyncio.to_thread(self._path.unlink)
        log.event("backup_taken", index=info.last_index, bytes=info.size_bytes)
        return Backup(file, info.size_bytes, info.last_index, self._done)

    def _done(self) -> None:
        self._busy = False

    def compact(self) -> tuple[int, int]:
        """Make the state durable and cut the log to what it still needs: the durable index, and the first kept.

        Raises: `NotApplied("storage_full")`.
        """
        try:
            self._applier.commit()
        except StorageFull as error:
            raise NotApplied("storage_full", str(error)) from error
        return self._applier.durable_index, self._raft.compact()
