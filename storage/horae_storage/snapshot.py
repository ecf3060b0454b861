"""The snapshot file: a copy of the state, and behind it what it is a copy of and the checksum of all.

    state copy | meta (MessagePack) | footer: meta length, state length, SHA-256 of state and meta, version, magic

The end of the file says what it is, so that the copy is written once and in place, and a file cut short anywhere has no
end. Everything here blocks: call it in a thread. Not here: when to take one, how it travels. Next: `kv.py`, `Frozen`.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import msgpack

from horae_storage.environment import as_file_error
from horae_storage.errors import Corrupt, UnknownFormat
from horae_storage.files import PACE_BYTES, pace, publish, temporary_of

FORMAT_VERSION = 1

_MAGIC = b"horaesnp"
_FOOTER = struct.Struct(">IQ32sI8s")
_PIECE_BYTES = 1 << 20


class SnapshotMeta(NamedTuple):
    """What a snapshot is a copy of."""

    cluster: str
    last_index: int
    """Log index of the last entry applied in it."""
    last_term: int
    previous_term: int
    """Term of the entry at `last_index - 1`."""
    machine_version: int


class Copyable(Protocol):
    """A store, or better what its `freeze` gave: then the copy is surely of the commit that the meta speaks of."""

    def copy_to(self, path: Path) -> None: ...


class _Footer(NamedTuple):
    meta_bytes: int
    state_bytes: int
    sha256: bytes
    version: int
    magic: bytes


def write(source: Copyable, path: Path, meta: SnapshotMeta) -> bytes:
    """Write a snapshot to `path`, synced; the name appears when the file is complete. Its SHA-256, as in the footer.

    Raises: `StorageFull` or `StorageFailed`; then nothing is left.
    """
    temporary = temporary_of(path)
    try:
        temporary.unlink(missing_ok=True)
        source.copy_to(temporary)
        packed = msgpack.packb(meta)
        with temporary.open("r+b") as file:
            state_bytes = os.fstat(file.fileno()).st_size
            sha256 = _hash_of(file, state_bytes, packed, paced=True)
            file.seek(state_bytes)
            file.write(packed + _FOOTER.pack(len(packed), state_bytes, sha256, FORMAT_VERSION, _MAGIC))
        publish(temporary, path)
        return sha256
    except OSError as error:
        raise as_file_error(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def verify(path: Path, *, paced: bool = False) -> SnapshotMeta:
    """Read the whole file and check it; `paced`: beside a node's own work.

    Raises: `UnknownFormat`; `Corrupt` when it is not exactly what was written; `StorageFailed`.
    """
    try:
        with path.open("rb") as file:
            footer, packed = _read_end(file, path)
            sha256 = _hash_of(file, footer.state_bytes, packed, paced=paced)
    except OSError as error:
        raise as_file_error(error, path) from error
    if sha256 != footer.sha256:
        raise _corrupt(path)
    return SnapshotMeta._make(msgpack.unpackb(packed, use_list=False))


def checksum_of(path: Path) -> str:
    """The SHA-256 of state and meta that the file ends with, in hex. The file is trusted: `verify` it first.

    Raises: `Corrupt` for a file without an end; `StorageFailed`.
    """
    try:
        with path.open("rb") as file:
            footer, _ = _read_end(file, path)
    except OSError as error:
        raise as_file_error(error, path) from error
    return footer.sha256.hex()


def unpack(path: Path, to: Path) -> None:
    """Write the bare state copy, for `Store.install`, to `to`, synced; an older file there is replaced.

    The file is trusted: `verify` it first. Raises: `Corrupt` for a file without an end; `StorageFull`; `StorageFailed`.
    """
    temporary = temporary_of(to)
    try:
        with path.open("rb") as source, temporary.open("wb") as target:
            footer, _ = _read_end(source, path)
            _copy(source, target, footer.state_bytes)
        publish(temporary, to)
    except OSError as error:
        raise as_file_error(error, to) from error
    finally:
        temporary.unlink(missing_ok=True)


def trim(path: Path) -> None:
    """Leave of a file that was verified the bare state copy, for `Store.install`, synced. It is no snapshot any more.

    Raises: `Corrupt` for a file without an end; `StorageFailed`.
    """
    try:
        with path.open("r+b") as file:
            footer, _ = _read_end(file, path)
            file.truncate(footer.state_bytes)
            os.fsync(file.fileno())
    except OSError as error:
        raise as_file_error(error, path) from error


def _read_end(file: BinaryIO, path: Path) -> tuple[_Footer, bytes]:
    """Footer and packed meta; the file stands at its beginning afterwards. Raises: `Corrupt`."""
    size = os.fstat(file.fileno()).st_size
    if size < _FOOTER.size:
        raise _corrupt(path)
    file.seek(size - _FOOTER.size)
    footer = _Footer._make(_FOOTER.unpack(file.read(_FOOTER.size)))
    if footer.magic != _MAGIC or footer.state_bytes + footer.meta_bytes + _FOOTER.size != size:
        raise _corrupt(path)
    if footer.version != FORMAT_VERSION:
        raise UnknownFormat(
            f"{path} has snapshot format {footer.version}, this program reads {FORMAT_VERSION}: run the version that "
            "wrote it"
        )
    file.seek(footer.state_bytes)
    packed = file.read(footer.meta_bytes)
    file.seek(0)
    return footer, packed


def _hash_of(file: BinaryIO, state_bytes: int, packed: bytes, *, paced: bool) -> bytes:
    """SHA-256 over the first `state_bytes` of the file and the packed meta."""
    sha256 = hashlib.sha256()
    file.seek(0)
    left, unpaced = state_bytes, 0
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        sha256.update(piece)
        left -= len(piece)
        unpaced += len(piece)
        if paced and unpaced >= PACE_BYTES:
            pace()
            unpaced = 0
    sha256.update(packed)
    return sha256.digest()


def _copy(source: BinaryIO, target: BinaryIO, count: int) -> None:
    """The next `count` bytes, inside the kernel. Raises: OSError."""
    copied = 0
    while copied < count:
        sent = os.sendfile(target.fileno(), source.fileno(), copied, count - copied)
        if not sent:
            raise OSError(5, "the file ended early")
        copied += sent


def _corrupt(path: Path) -> Corrupt:
    return Corrupt(f"{path} is not a whole snapshot")
