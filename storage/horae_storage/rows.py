"""The bytes of a row: MessagePack, then four bytes of CRC-32 over key and packed row, little-endian.

LMDB has no checksums: a flipped bit reads as a wrong value. With the key in the sum, a value that turns up under
another key is found too. Both stores use these bytes, so that both refuse the same rows and chain the same digest.
The hot paths of `lmdb_kv.py` repeat these lines in place: a call costs as much as the work it would save.
"""

from __future__ import annotations

from zlib import crc32

import msgpack

from horae_storage.errors import REJOIN, Corrupt
from horae_storage.kv import MAX_KEY_BYTES, Row

CRC_BYTES = 4

INTACT = crc32(crc32(b"").to_bytes(CRC_BYTES, "little"))
"""CRC-32 over any bytes followed by their own CRC-32 is this constant: one sum checks a value without cutting it."""

DELETED = 0x64656C21
"""Mixed into the digest before a deleted key, so that a deletion never looks like a put."""


def encode_row(packed: bytes, key: bytes) -> bytes:
    """A packed row as it is stored at `key`."""
    return packed + crc32(packed, crc32(key)).to_bytes(CRC_BYTES, "little")


def decode_row(key: bytes, value: bytes, where: object) -> Row:
    """The row that `encode_row` made; lists come back as tuples. Raises: `Corrupt`, naming `where`."""
    if crc32(value, crc32(key)) != INTACT:
        raise corrupt_row(key, where)
    row: Row = msgpack.unpackb(value[:-CRC_BYTES], use_list=False)
    return row


def digest_of_put(digest: int, value: bytes) -> int:
    """The chain after a put of `value` (as `encode_row` made it): its CRC stands for key and row."""
    return crc32(value[-CRC_BYTES:], digest)


def digest_of_delete(digest: int, key: bytes) -> int:
    """The chain after `key`, which was there, was deleted."""
    return crc32(key, digest ^ DELETED)


def require_key(key: bytes) -> None:
    """Raises: ValueError for a key that no store takes."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"a key has 1 to {MAX_KEY_BYTES} bytes, this one {len(key)}")


def corrupt_row(key: bytes, where: object) -> Corrupt:
    """The error for a row of `where`, a file, whose checksum fails."""
    return Corrupt(f"{where} is damaged: the row at key {key!r} does not match its checksum; {REJOIN}")
