"""Small files with one bit turned. Not here: what a reader must make of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def each_flipped_bit(file: Path) -> Iterator[bytes]:
    """The file's content with each of its bits turned, one at a time, as it then lies there."""
    whole = file.read_bytes()
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        yield bytes(damaged)
