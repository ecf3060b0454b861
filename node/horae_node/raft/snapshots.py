"""Snapshots on their way: `Shelf` cuts the leader's into pieces, `Intake` puts them together at a follower.

A piece is a dict: `index`, `term` (of the snapshot's last entry), `size` and `checksum` (of the whole), `offset`,
`data`, `crc` (of everything up to and with this piece), `last`. After any break a transfer begins again with its first
piece; a follower that still has more of the very same bytes says so in its answer, and the transfer goes on from there
(docs/decisions/0009). Nothing else is ever joined (docs/consensus.md, 8). What touches the disk is a method of its own
(`Transfer.fill`, `Reception.write`): the owner can have it done in a thread. Not here: when a follower needs a
snapshot, flow control (`guard.py`), taking and installing (the state machine, driven by `pysyncobj_adapter.py`).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from zlib import crc32

import msgpack

from horae_node.raft.port import SnapshotInfo
from horae_storage.files import PACE_BYTES, write_atomically

PIECE_BYTES: Final = 256 * 1024
"""Sent in well under a millisecond: other traffic slips in between."""

AHEAD_PIECES: Final = 4
"""Read ahead of what is sent: one visit to a thread for so many pieces."""

UNWRITTEN_BYTES_MAX: Final = 4 << 20
"""Received and not yet written; past it the sender is not told that more has arrived, and so it pauses."""

RESUME_S: Final = 60.0
"""How long the snapshot, and the log behind it, are kept for a follower whose connection broke amid a transfer: a
restarted router is back by then."""

Piece = dict[str, Any]

Have = tuple[bytes, int, int]
"""What a follower has of a snapshot: its checksum, and of how many bytes from its beginning on it has which CRC."""


class Shelf:
    """The leader's side: at most one snapshot file, and how far each follower has got it."""

    def __init__(self) -> None:
        self.oldest_index: Callable[[], int] = lambda: 0
        """The snapshot must reach the log's first entry, or its receiver could not go on from there."""
        self.want: Callable[[], None] = lambda: None
        """Called when a follower needs a snapshot and none is usable; more than once while it waits."""
        self.feed: Callable[[Transfer], None] = lambda transfer: transfer.fill()
        """Called when a transfer has no piece ready: see to `fill`, here or in a thread; often while that runs."""
        self.remove: Callable[[Path], None] = lambda path: path.unlink(missing_ok=True)
        """Called with a file that is of no use any more: see to its end, here or in a thread."""
        self.holds: dict[str, int] = {}
        """Index of the snapshot that each follower receives, installs, or may come back for."""
        self._info: SnapshotInfo | None = None
        self._transfers: dict[str, Transfer] = {}
        self._broken_at: dict[str, float] = {}

    @property
    def usable(self) -> bool:
        return self._info is not None and self._info.last_index >= self.oldest_index()

    @property
    def holding_index(self) -> int | None:
        """Index that the log may not be cut above while somebody needs a snapshot; None when nobody does."""
        return min(self.holds.values(), default=None)

    def put(self, info: SnapshotInfo) -> None:
        """A snapshot is ready. It replaces the one before; transfers of that go on from their open file."""
        if self._info is not None and self._info.path != info.path:
            self.remove(self._info.path)
        self._info = info

    def renew(self) -> None:
        """The file was found damaged at the other end: the next that is asked for is a new one."""
        if self._info is not None:
            self.remove(self._info.path)
            self._info = None

    def sweep(self, now: float) -> None:
        """Give up the file once it is of no use to anybody. `now` in seconds, as for `break_off`."""
        for node_id in [node_id for node_id, broken_at in self._broken_at.items() if now - broken_at > RESUME_S]:
            self.cancel(node_id)
        if self._info is not None and not self._transfers and not self.usable:
            self.renew()

    def may_send(self, node_id: str) -> bool:
        """Whether `next_piece` would give one; sees to it that it soon would."""
        transfer = self._transfers.get(node_id)
        if transfer is None:
            if not self.usable:
                self.want()
            return self.usable
        if not transfer.ready:
            self.feed(transfer)
        return bool(transfer.ready)

    def next_piece(self, node_id: str) -> Piece | None:
        """The next piece for that follower, None when none is ready now."""
        transfer = self._transfers.get(node_id)
        if transfer is None:
            if not self.usable:
                self.want()
                return None
            assert self._info is not None
            transfer = self._transfers[node_id] = Transfer(self._info)
            self.holds[node_id] = self._info.last_index
            self._broken_at.pop(node_id, None)
        if not transfer.ready:
            self.feed(transfer)
        return transfer.ready.popleft() if transfer.ready else None

    def skip(self, node_id: str, have: object) -> int | None:
        """Go on behind what that follower says it has; from where, None when nothing changes. What it says is checked:
        it comes from outside. Pieces that are on their way already are no harm: it skips what it has."""
        transfer = self._transfers.get(node_id)
        match have:
            case (bytes(checksum), int(offset), int(crc)) if (
                transfer is not None and checksum == transfer.info.checksum
            ):
                return offset if transfer.skip(offset, crc) else None
        return None

    def break_off(self, node_id: str, now: float) -> None:
        """Its connection came or went: whatever was sent must be sent again, or said to be there."""
        transfer = self._transfers.pop(node_id, None)
        if transfer is not None:
            transfer.close()
            self._broken_at[node_id] = now

    def acknowledged(self, node_id: str, index: int) -> None:
        """That follower's log goes up to `index`: its snapshot may be installed with that."""
        if self.holds.get(node_id, index + 1) <= index:
            self.cancel(node_id)

    def cancel(self, node_id: str) -> None:
        """Forget that follower's transfer (installed or refused)."""
        transfer = self._transfers.pop(node_id, None)
        if transfer is not None:
            transfer.close()
        self.holds.pop(node_id, None)
        self._broken_at.pop(node_id, None)

    def clear(self) -> None:
        """Drop all transfers and the file."""
        for node_id in list(self.holds):
            self.cancel(node_id)
        self.renew()


class Transfer:
    """One snapshot on its way to one follower."""

    def __init__(self, info: SnapshotInfo) -> None:
        self.info = info
        self.ready: deque[Piece] = deque()
        """Pieces that were read and not sent yet."""
        self.feeding = False
        """For the owner: a thread is at `fill`."""
        self._file: BinaryIO | None = open(info.path, "rb")  # noqa: SIM115 (closed by `close`)
        self._lock = threading.Lock()
        self._offset = 0
        self._crc = 0

    def fill(self) -> None:
        """Read some pieces. Blocks: best called in a thread, one at a time. Raises: OSError."""
        for _ in range(AHEAD_PIECES):
            with self._lock:
                if self._file is None or self._offset >= self.info.size_bytes:
                    return
                data = self._file.read(PIECE_BYTES)
                if not data:
                    raise OSError(5, "a snapshot ended early", str(self.info.path))
                self.ready.append(self._piece_of(data))

    def skip(self, offset: int, crc: int) -> bool:
        """Read on at `offset`, where the CRC of all before is `crc`; False when that is not ahead of what was read."""
        with self._lock:
            if self._file is None or not self._offset < offset < self.info.size_bytes:
                return False
            self._file.seek(offset)
            self._offset, self._crc = offset, crc
            self.ready.clear()
            return True

    def _piece_of(self, data: bytes) -> Piece:
        offset, self._offset = self._offset, self._offset + len(data)
        self._crc = crc32(data, self._crc)
        return {
            "index": self.info.last_index,
            "term": self.info.last_term,
            "previous_term": self.info.previous_term,
            "size": self.info.size_bytes,
            "checksum": self.info.checksum,
            "offset": offset,
            "data": data,
            "crc": self._crc,
            "last": self._offset >= self.info.size_bytes,
        }

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


class Intake:
    """A follower's side: one snapshot being received, over as many connections and from as many senders as it takes."""

    def __init__(self, directory: Path) -> None:
        self.store: Callable[[Reception], None] = lambda reception: reception.write()
        """Called when something was taken: see to `write`, here or in a thread; often while that runs."""
        self.discard: Callable[[Reception], None] = lambda reception: reception.discard()
        """Called with what is of no use any more: see to `discard`, here or in a thread."""
        self._directory = directory
        self._count = 0
        self._identity: Identity | None = None
        self._offset = 0
        self._crc = 0
        self.reception: Reception | None = None
        """The file under way, or the whole one, until `drop` or `done`."""

    @property
    def behind(self) -> bool:
        """The disk has not kept up: the sender should wait."""
        return self.reception is not None and self.reception.unwritten_bytes > UNWRITTEN_BYTES_MAX

    @property
    def have(self) -> Have | None:
        """What there is of the snapshot under way: its sender may skip that."""
        return None if self._identity is None else (self._identity.checksum, self._offset, self._crc)

    def take(self, piece: Piece) -> SnapshotInfo | bool:
        """Add a piece; what it holds that is there already is skipped. The snapshot when it is whole, True to go on,
        False when the piece does not fit (then everything received is dropped and the sender must begin again).
        """
        identity = Identity(piece["index"], piece["term"], piece["previous_term"], piece["size"], piece["checksum"])
        if identity != self._identity:
            if piece["offset"] > 0:
                self.drop()
                return False
            self._begin(identity)
        reception, known = self.reception, self._offset - piece["offset"]
        assert reception is not None
        if known >= len(piece["data"]) > 0:
            return True
        data = piece["data"][max(known, 0) :]
        self._crc = crc32(data, self._crc)
        self._offset += len(data)
        if known < 0 or self._crc != piece["crc"] or (piece["last"] and self._offset != piece["size"]):
            self.drop()
            return False
        reception.add(data)
        self.store(reception)
        if not piece["last"]:
            return True
        self._identity = None
        return SnapshotInfo(reception.path, *identity)

    def drop(self) -> None:
        """Throw away what was received."""
        self._identity = None
        reception, self.reception = self.reception, None
        if reception is not None:
            self.discard(reception)

    def done(self) -> None:
        """The whole file is the owner's from now on."""
        self.reception = None

    def _begin(self, identity: Identity) -> None:
        self.drop()
        self._count += 1
        self.reception = Reception(self._directory / f"incoming-{self._count}.snapshot")
        self._identity, self._offset, self._crc = identity, 0, 0


class Identity(NamedTuple):
    """What makes two snapshots one and the same; the fields of a `SnapshotInfo` behind its path."""

    last_index: int
    last_term: int
    previous_term: int
    size_bytes: int
    checksum: bytes


class Reception:
    """One file being received: added to on the loop, written in a thread. Each has a name of its own, so that a late
    write of an older one harms nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writing = False
        """For the owner: a thread is at `write`."""
        self._unwritten: deque[bytes] = deque()
        self._added_bytes = 0
        self._written_bytes = 0
        self._unsynced_bytes = 0
        self._file: BinaryIO | None = None
        self._dropped = False
        self._lock = threading.Lock()

    @property
    def unwritten_bytes(self) -> int:
        return self._added_bytes - self._written_bytes

    def add(self, data: bytes) -> None:
        self._unwritten.append(data)
        self._added_bytes += len(data)

    def write(self) -> None:
        """Write what was added. Blocks: best called in a thread. Raises: OSError."""
        with self._lock:
            while self._unwritten and not self._dropped:
                if self._file is None:
                    self._file = open(self.path, "wb", buffering=0)  # noqa: SIM115 (closed by `finish` or `discard`)
                data = self._unwritten.popleft()
                view = memoryview(data)
                while view:
                    view = view[self._file.write(view) or 0 :]
                self._written_bytes += len(data)
                self._unsynced_bytes += len(data)
                if self._unsynced_bytes >= PACE_BYTES:  # all at once in the end would hold up the syncs of the log
                    os.fdatasync(self._file.fileno())
                    self._unsynced_bytes = 0

    def finish(self) -> None:
        """Write the rest and make the whole file durable. Blocks: call it in a thread. Raises: OSError."""
        self.write()
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                with file:
                    os.fsync(file.fileno())

    def discard(self) -> None:
        """Delete what was written; nothing more is. Blocks: best called in a thread."""
        with self._lock:
            self._dropped = True
            if self._file is not None:
                self._file.close()
                self._file = None
            self.path.unlink(missing_ok=True)


class InstallNote:
    """Says on disk which snapshot is being installed, until the log has begun anew behind it.

    State and log are two stores. A crash between the two leaves a state that is ahead of its log: the note tells the
    restart the term of the entry at which the log must begin.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "installing"

    def write(self, index: int, term: int) -> None:
        """Synced, file and directory. Blocks: call it in a thread."""
        write_atomically(self._path, msgpack.packb((index, term)))

    def read(self) -> tuple[int, int] | None:
        """Index and term of the snapshot's last entry, None when no install was under way."""
        try:
            index, term = msgpack.unpackb(self._path.read_bytes())
        except FileNotFoundError:
            return None
        return index, term

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
