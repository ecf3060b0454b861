"""Snapshots on their way: `Shelf` cuts the leader's into pieces, `Intake` puts them together at a follower.

A piece is a dict: `index`, `term` (of the snapshot's last entry), `size` (of the whole), `offset`, `data`, `crc` (of
everything up to and with this piece), `last`. One transfer a follower, from its beginning after any break: nothing of
an older transfer or connection is ever joined to a newer one (RAFT.md 8). Not here: when a follower needs one, flow
control (`guard.py`), taking and installing (the state machine, driven by `pysyncobj_adapter.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final
from zlib import crc32

import msgpack

from horae_node.raft.port import SnapshotInfo

PIECE_BYTES: Final = 256 * 1024
"""Read, checked and sent in well under a millisecond: other traffic slips in between."""

Piece = dict[str, Any]


class Shelf:
    """The leader's side: at most one snapshot file, and how far each follower has got it."""

    def __init__(self) -> None:
        self.oldest_index: Callable[[], int] = lambda: 0
        """The snapshot must reach the log's first entry, or its receiver could not go on from there."""
        self.want: Callable[[], None] = lambda: None
        """Called when a follower needs a snapshot and none is usable; more than once while it waits."""
        self._info: SnapshotInfo | None = None
        self._transfers: dict[str, _Transfer] = {}

    @property
    def usable(self) -> bool:
        return self._info is not None and self._info.last_index >= self.oldest_index()

    @property
    def holding_index(self) -> int | None:
        """Index that the log may not be cut above while somebody receives; None when nobody does."""
        return min((transfer.info.last_index for transfer in self._transfers.values()), default=None)

    def put(self, info: SnapshotInfo) -> None:
        """A snapshot is ready. It replaces the one before; transfers of that go on from their open file."""
        if self._info is not None and self._info.path != info.path:
            self._info.path.unlink(missing_ok=True)
        self._info = info

    def next_piece(self, node_id: str) -> Piece | None:
        transfer = self._transfers.get(node_id)
        if transfer is None:
            if not self.usable:
                self.want()
                return None
            assert self._info is not None
            transfer = self._transfers[node_id] = _Transfer(self._info)
        return transfer.next_piece()

    def cancel(self, node_id: str) -> None:
        """Forget that follower's transfer (finished, refused, or its connection came or went)."""
        transfer = self._transfers.pop(node_id, None)
        if transfer is not None:
            transfer.close()

    def clear(self) -> None:
        """Drop all transfers and the file."""
        for node_id in list(self._transfers):
            self.cancel(node_id)
        if self._info is not None:
            self._info.path.unlink(missing_ok=True)
            self._info = None


class _Transfer:
    def __init__(self, info: SnapshotInfo) -> None:
        self.info = info
        self._file = open(info.path, "rb")  # noqa: SIM115 (closed by `close`)
        self._offset = 0
        self._crc = 0

    def next_piece(self) -> Piece:
        data = self._file.read(PIECE_BYTES)
        offset, self._offset = self._offset, self._offset + len(data)
        self._crc = crc32(data, self._crc)
        return {
            "index": self.info.last_index,
            "term": self.info.last_term,
            "previous_term": self.info.previous_term,
            "size": self.info.size_bytes,
            "offset": offset,
            "data": data,
            "crc": self._crc,
            "last": self._offset >= self.info.size_bytes,
        }

    def close(self) -> None:
        self._file.close()


class Intake:
    """A follower's side: one file being received, from one sender."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "incoming.snapshot"
        self._file: BinaryIO | None = None
        self._sender: tuple[str, int] | None = None
        self._offset = 0
        self._crc = 0

    def take(self, sender: tuple[str, int], piece: Piece) -> SnapshotInfo | bool:
        """Add a piece of `sender` (its node id and term). The snapshot when it is whole, True to go on, False when
        the piece does not fit (then everything received is dropped and the sender must begin again).
        """
        if piece["offset"] == 0:
            self._begin(sender)
        if self._file is None or self._sender != sender or piece["offset"] != self._offset:
            self.drop()
            return False
        self._crc = crc32(piece["data"], self._crc)
        self._offset += len(piece["data"])
        if self._crc != piece["crc"] or (piece["last"] and self._offset != piece["size"]):
            self.drop()
            return False
        self._file.write(piece["data"])
        if not piece["last"]:
            return True
        self._file.flush()
        return SnapshotInfo(self._path, piece["index"], piece["term"], piece["previous_term"], piece["size"])

    def sync(self) -> None:
        """Make the whole file durable. Blocks: call it in a thread."""
        file, self._file = self._file, None
        if file is not None:
            with file:
                os.fsync(file.fileno())

    def drop(self) -> None:
        """Throw away what was received."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._sender = None

    def _begin(self, sender: tuple[str, int]) -> None:
        self.drop()
        self._path.unlink(missing_ok=True)
        self._file = open(self._path, "wb")  # noqa: SIM115 (closed by `sync` or `drop`)
        self._sender, self._offset, self._crc = sender, 0, 0


class InstallNote:
    """Says on disk which snapshot is being installed, until the log has begun anew behind it.

    State and log are two stores. A crash between the two leaves a state that is ahead of its log: the note tells the
    restart the term of the entry at which the log must begin.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "installing"

    def write(self, index: int, term: int) -> None:
        """Synced, file and directory. Blocks: call it in a thread."""
        fresh = self._path.with_suffix(".new")
        with open(fresh, "wb") as file:
            file.write(msgpack.packb((index, term)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        sync_directory(self._path.parent)

    def read(self) -> tuple[int, int] | None:
        """Index and term of the snapshot's last entry, None when no install was under way."""
        try:
            index, term = msgpack.unpackb(self._path.read_bytes())
        except FileNotFoundError:
            return None
        return index, term

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
