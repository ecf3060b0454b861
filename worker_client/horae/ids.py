"""Ids that a caller makes once per logical call, so that each repeat of the call is the same call.

UUIDv7 (RFC 9562, section 5.7): they sort by the moment they were made, so a store that is ordered by id appends.
"""

from __future__ import annotations

import os

from horae import clock

_VERSION_7 = 0x7 << 76
_VARIANT_10 = 0b10 << 62
_RANDOM_A = 0xFFF << 64
_RANDOM_B = (1 << 62) - 1


def new_id() -> str:
    """A fresh UUIDv7 in its canonical text of 36 characters."""
    chance = int.from_bytes(os.urandom(10), "big")
    value = clock.wall_ms() << 80 | _VERSION_7 | (chance & _RANDOM_A) | _VARIANT_10 | (chance & _RANDOM_B)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
