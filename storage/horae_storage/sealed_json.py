"""Small files that people may read and disks may damage: a JSON object with the checksum of its own other members.

A flipped bit in a name or a number is still JSON: without a sum, a node took it for what was written.
"""

from __future__ import annotations

import json
from typing import Any, Final
from zlib import crc32

SUM: Final = ""
"""The member that holds the checksum: a name that nothing else has."""


def sealed(value: dict[str, Any]) -> bytes:
    """The object as a file's content."""
    return json.dumps({SUM: _sum_of(value), **value}, indent=1).encode() + b"\n"


def unsealed(content: bytes) -> dict[str, Any]:
    """The object as it was sealed; one without a sum was written before there were sums.

    Raises: ValueError (RecursionError too) for what is no object, or another one than was sealed.
    """
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("it holds no object")
    if SUM in value and value.pop(SUM) != _sum_of(value):
        raise ValueError("its checksum is another")
    return value


def _sum_of(value: dict[str, Any]) -> int:
    return crc32(json.dumps(value, sort_keys=True).encode())
