"""The newest writes of a log, in a plain file of fixed size: one durable write each, no page of a tree.

The file has two *regions*, filled in turn; each filling is a *round*. A write is a *frame*: its checksum, its round,
its number, its bytes. Frames of a round that is not folded into the database yet are read back at a start. The room is
taken, and written once, when the file is made: a write of it moves data alone, and a full disk cannot stop it.

The first frame of the round after the last folded one is always there: missing, it was damaged. So is a frame that is
broken while a later one is whole, because a frame is written only after the one before was synced, and one that the
database knows of. A broken frame after all others is what a crash tore: it was never acknowledged. Damage of the last
frames of all, after a crash, looks the same: some small ones may share a page of the disk.
Not here: how a frame gets to the disk (`file_write.py`), what it says, when to fold. Next to read: `raft_log.py`.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from horae_storage.environment import as_file_error
from horae_storage.errors import REJOIN, Corrupt, DirectoryUnusable
from horae_storage.file_write import BLOCK_BYTES
from horae_storage.files import publish, temporary_of

REGION_BYTES: Final = 4 << 20
"""Of the two regions each: some half second of heavy load, folded in one commit."""

FRAME_BYTES_MAX: Final = 1 << 20
"""A larger write would hold up the owner's loop: it goes into the database directly, off the loop."""

_HEAD_BYTES: Final = 4096
_MAGIC: Final = b"horae log tail\n\0"
_VERSION: Final = 1
_FILE_HEAD: Final = Struct("<16sIQI")  # magic, version, bytes of a region, key of the checksums
_FRAME_HEAD: Final = Struct("<4sIIQQ")  # mark, checksum, bytes, round, number
_MARK: Final = b"tail"
_ALIGN: Final = BLOCK_BYTES
"""Frames begin at multiples of it: a broken one can be stepped over in search of a later one, and a frame's last block
is its own."""


class Frame(NamedTuple):
    round: int
    number: int
    """Counts on through all rounds of a file, so that a missing frame between two rounds is found."""
    data: bytes


class Write(NamedTuple):
    """What is to be written where."""

    data: bytes
    at: int
    """Bytes from the file's start, a multiple of `BLOCK_BYTES`."""


class Tail:
    """The open file. Nothing is written here (`file_write.py`)."""

    def __init__(self, path: Path) -> None:
        """Open the file that `create` made. Raises: `Corrupt`, `DirectoryUnusable`, `StorageFailed`."""
        self.path = path
        self.round = 1
        """The round that is being filled."""
        self._number = 0
        self._offset = 0
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise Corrupt(f"{path} is missing; {REJOIN}") from error
        except OSError as error:
            raise DirectoryUnusable(f"{path} cannot be used: {error.strerror}: mend its owner, mode or disk") from error
        try:
            self._region_bytes, self.key = self._settle()
        except OSError as error:
            self.close()
            raise as_file_error(error, path) from error
        except Corrupt:
            self.close()
            raise

    def _settle(self) -> tuple[int, int]:
        """Read the head, after seeing to it that whatever is read from now on comes from the disk.

        What a killed process wrote and did not sync is answered for by a restart, so it is synced; what a failed sync
        left in memory is not on the disk, though the kernel calls it clean, so memory is let go.
        Raises: OSError, `Corrupt`.
        """
        _fill(self.fd)
        os.fdatasync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return _read_head(self.fd, self.path)

    @staticmethod
    def create(path: Path, region_bytes: int = REGION_BYTES) -> None:
        """Make the file durably, its first round begun with an empty frame; `region_bytes` is in whole blocks.

        Raises: `StorageFull`, `StorageFailed`.
        """
        assert region_bytes % _ALIGN == 0
        key = secrets.randbits(32)
        head = _FILE_HEAD.pack(_MAGIC, _VERSION, region_bytes, key)
        temporary = temporary_of(path)
        try:
            with temporary.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, _HEAD_BYTES + 2 * region_bytes)
                file.write(head + crc32(head).to_bytes(4, "little"))
                file.seek(_start_of(1, region_bytes))
                file.write(_frame_bytes(key, 1, 0, b""))
                file.flush()
                _fill(file.fileno())
            publish(temporary, path)
        except OSError as error:
            raise as_file_error(error, path) from error

    @property
    def last_frame(self) -> int:
        """Number of the frame written last."""
        return self._number - 1

    def is_used(self) -> bool:
        """Whether anything was written since `create`. Raises: `Corrupt`, `StorageFailed`."""
        return bool(self.read(0)[1:])

    def read(self, folded: int, at_least: int = 0) -> list[Frame]:
        """All whole frames of the rounds after `folded`, in order; the next frame goes after the last of them.

        Raises: `Corrupt` when one of them was damaged, or the frame numbered `at_least` is not there; `StorageFailed`.
        """
        frames = self._read_round(folded + 1)
        if not frames:
            raise self._damaged(f"the first frame of round {folded + 1}")
        following = self._read_round(folded + 2)
        if following and following[0].number != frames[-1].number + 1:
            raise self._damaged(f"frame {frames[-1].number + 1}")
        frames += following
        if frames[-1].number < at_least:
            raise self._damaged(f"frame {frames[-1].number + 1}")
        self.round, self._number = frames[-1].round, frames[-1].number + 1
        return frames

    @property
    def frame_bytes_max(self) -> int:
        """The most that one frame of this file holds."""
        return min(FRAME_BYTES_MAX, self._region_bytes - _FRAME_HEAD.size)

    @property
    def write_bytes_max(self) -> int:
        """The most that `frame` has written at once."""
        return _aligned(self.frame_bytes_max + _FRAME_HEAD.size)

    def has_room(self, data_bytes: int) -> bool:
        """Whether a frame of so many bytes fits into what is left of the round's region."""
        return self._offset + _FRAME_HEAD.size + data_bytes <= self._region_bytes

    def frame(self, data: bytes) -> Write:
        """The next frame of the round, to be written before there is another. The one before it must be durable."""
        assert self.has_room(len(data))
        frame = _frame_bytes(self.key, self.round, self._number, data)
        at = _start_of(self.round, self._region_bytes) + self._offset
        self._number += 1
        self._offset = _aligned(self._offset + len(frame))
        return Write(frame, at)

    def turn_over(self) -> None:
        """Begin the next round, in the other region: what that held must be folded."""
        self.round += 1
        self._offset = 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _read_round(self, round_: int) -> list[Frame]:
        """The whole frames of a round, from its region's start on; `_offset` is then after the last one."""
        try:
            region = os.pread(self.fd, self._region_bytes, _start_of(round_, self._region_bytes))
        except OSError as error:
            raise as_file_error(error, self.path) from error
        frames: list[Frame] = []
        at = 0
        while (frame := self._frame_at(region, at)) is not None and self._follows(frame, round_, frames):
            frames.append(frame)
            at = _aligned(at + _FRAME_HEAD.size + len(frame.data))
        self._require_end(region, at, round_, frames)
        if frames:
            self._offset = at
        return frames

    def _follows(self, frame: Frame, round_: int, frames: list[Frame]) -> bool:
        return frame.round == round_ and (not frames or frame.number == frames[-1].number + 1)

    def _require_end(self, region: bytes, at: int, round_: int, frames: list[Frame]) -> None:
        """No frame of the round may be whole after the first one that is not."""
        while (at := _next_mark(region, at)) >= 0:
            frame = self._frame_at(region, at)
            if frame is not None and frame.round == round_:
                raise self._damaged(f"frame {frames[-1].number + 1}" if frames else f"the start of round {round_}")
            at += _ALIGN

    def _frame_at(self, region: bytes, at: int) -> Frame | None:
        if at + _FRAME_HEAD.size > len(region):
            return None
        mark, checksum, size, round_, number = _FRAME_HEAD.unpack_from(region, at)
        start = at + _FRAME_HEAD.size
        if mark != _MARK or start + size > len(region):
            return None
        data = region[start : start + size]
        return Frame(round_, number, data) if checksum == _checksum(self.key, round_, number, data) else None

    def _damaged(self, what: str) -> Corrupt:
        return Corrupt(f"{self.path} is damaged: {what} is not what was written; {REJOIN}")


def _fill(fd: int) -> None:
    """Write zeros where the file was allocated and never written, which reads as zeros too. Raises: OSError.

    The first write of such a block has to be noted by the file system, and a direct one waits for that.
    """
    end = os.fstat(fd).st_size
    at = os.lseek(fd, 0, os.SEEK_HOLE) if end else end  # nothing to find in an empty one
    while at < end:
        try:
            stop = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data behind it
                raise
            stop = end
        while at < stop:
            at += os.pwrite(fd, bytes(min(stop - at, 1 << 20)), at)
        at = os.lseek(fd, stop, os.SEEK_HOLE) if stop < end else end


def _read_head(fd: int, path: Path) -> tuple[int, int]:
    """Bytes of a region, and the key of the checksums."""
    head = os.pread(fd, _FILE_HEAD.size + 4, 0)
    if len(head) < _FILE_HEAD.size + 4 or crc32(head[:-4]).to_bytes(4, "little") != head[-4:]:
        raise Corrupt(f"{path} is damaged: its head is not that of a log's tail; {REJOIN}")
    magic, version, region_bytes, key = _FILE_HEAD.unpack_from(head)
    if magic != _MAGIC or version != _VERSION:
        raise Corrupt(f"{path} has format {version}, this program reads {_VERSION}: run what wrote it")
    wanted = _HEAD_BYTES + 2 * region_bytes
    if (size := os.fstat(fd).st_size) != wanted:
        raise Corrupt(f"{path} is damaged: truncated or grown ({size} bytes, not {wanted}); {REJOIN}")
    return region_bytes, key


def _frame_bytes(key: int, round_: int, number: int, data: bytes) -> bytes:
    return _FRAME_HEAD.pack(_MARK, _checksum(key, round_, number, data), len(data), round_, number) + data


def _checksum(key: int, round_: int, number: int, data: bytes) -> int:
    """With the file's own random key: nobody can put bytes into a job that would pass for a frame of its log."""
    return crc32(data, crc32(b"%d.%d.%d" % (len(data), round_, number), key))


def _start_of(round_: int, region_bytes: int) -> int:
    return _HEAD_BYTES + (round_ % 2) * region_bytes


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _next_mark(region: bytes, at: int) -> int:
    """Where the next frame may begin, at `at` or later; -1 for nowhere."""
    while (at := region.find(_MARK, at)) >= 0 and at % _ALIGN:
        at += 1
    return at
