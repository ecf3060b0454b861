"""One number for a whole state, by a full scan: for tests, and for comparing nodes that are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from horae_storage.kv import Row, View

_PAGE = 1000
_STOP = b"\xff"


def state_digest(view: View) -> str:
    """Hex digest over every key and row, in key order. Equal states, and only those, give equal digests."""
    digest = blake2b(digest_size=32)
    for key, row in every_row(view):
        digest.update(repr((key, _plain(row))).encode())
    return digest.hexdigest()


def every_row(view: View) -> Iterator[tuple[bytes, Row]]:
    start = b"\0"
    while True:
        rows = view.scan(start, _STOP, limit=_PAGE)
        yield from rows
        if len(rows) < _PAGE:
            return
        start = rows[-1][0] + b"\0"


def _plain(value: Any) -> Any:
    """A record and the plain row that a store decodes are one value: no type's name may get in."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
