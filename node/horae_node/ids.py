"""Ids made by the leader: UUIDv7 (RFC 9562, 5.7), ordered by the moment they were made.

On the loop only. Randomness is fetched for many ids at once: a system call an id cost more than all the rest of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_DIGITS: Final = 19
"""Random hexadecimal digits of an id: 74 bits are wanted, two digits' worth of bits make up the variant's digit."""
_IDS_A_FETCH: Final = 256
_VARIANTS: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid7(now_ms: int) -> str:
    """A new UUIDv7 for the moment `now_ms`, in its usual text form."""
    random = _next_digits()
    return f"{_moment_digits(now_ms)}-7{random[:3]}-{_VARIANTS[random[3]]}{random[4:7]}-{random[7:]}"


@lru_cache(maxsize=16)
def _moment_digits(now_ms: int) -> str:
    text = f"{now_ms & 0xFFFF_FFFF_FFFF:012x}"
    return f"{text[:8]}-{text[8:]}"


def _digits() -> Iterator[str]:
    while True:
        pool = os.urandom(_IDS_A_FETCH * _DIGITS).hex()
        for at in range(0, 2 * _IDS_A_FETCH * _DIGITS, _DIGITS):
            yield pool[at : at + _DIGITS]


_next_digits = _digits().__next__
