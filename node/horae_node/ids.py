"""Ids made by the leader: UUIDv7 (RFC 9562, 5.7), ordered by the moment they were made."""

from __future__ import annotations

import os


def uuid7(now_ms: int) -> str:
    """A new UUIDv7 for the moment `now_ms`, in its usual text form."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (
        (now_ms & 0xFFFF_FFFF_FFFF) << 80
        | 0x7 << 76
        | (random >> 62 & 0xFFF) << 64
        | 0b10 << 62
        | random & 0x3FFF_FFFF_FFFF_FFFF
    )
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
