"""Follows the pages of an LMDB file from its two roots: each must be the page that its parent, or a row, points at.

LMDB reads by the pointer alone, and so does a copy. It writes by the number that a page says of itself: one that says
another ends the process with SIGABRT at the next write, or gives away a page that is in use. The tree of free pages
is read by no copy at all. Rows are not looked at. Looks only. Next to read: `scan.py`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

from horae_storage.environment import read_shape

_HEAD: Final = Struct("<QHHHH")  # number, pad, flags, and of a tree's page: end of the pointers, begin of the rows
_OVERFLOW_PAGES: Final = Struct("<I")  # in place of the last two
_NODE: Final = Struct("<HHHH")  # of a branch: the child's number, low to high; of a leaf: size (two), flags; key bytes
_POINTER: Final = Struct("<Q")
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_KINDS: Final = _BRANCH | _LEAF | _OVERFLOW
_BIG: Final = 1
"""The row of this node has pages of its own."""


def find_damage(path: Path) -> str | None:
    """What is wrong with the first page that is not what it should be; None for a sound file.

    Raises: OSError, `StorageError`.
    """
    shape = read_shape(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), shape.used_bytes, access=mmap.ACCESS_READ) as data:
        walk = _Walk(data, shape.page_bytes)
        return next((found for root in shape.roots for found in walk.findings(root)), None)


class _Walk:
    def __init__(self, data: mmap.mmap, page_bytes: int) -> None:
        self._data = data
        self._page_bytes = page_bytes
        self._pages = len(data) // page_bytes
        self._seen = bytearray(self._pages)

    def findings(self, root: int) -> Iterator[str]:
        """What is wrong with the pages of a tree. Whoever goes on after the first may go astray."""
        waiting = [(root, False)]
        while waiting:
            page, is_overflow = waiting.pop()
            if not 2 <= page < self._pages or self._seen[page]:
                yield f"page {page} is pointed at, and is not there or in use already"
                return
            self._seen[page] = 1
            number, _, flags, pointers_end, _ = _HEAD.unpack_from(self._data, page * self._page_bytes)
            kind = flags & _KINDS
            if number != page or (kind != _OVERFLOW if is_overflow else kind not in (_BRANCH, _LEAF)):
                yield f"page {page} is not what is pointed at: it says {number}, flags {flags:#x}"
                return
            if is_overflow:
                yield from self._require_run(page)
            elif not _HEAD.size <= pointers_end <= self._page_bytes:
                yield f"page {page} ends amid its pointers"
                return
            else:
                waiting += self._children(page * self._page_bytes, pointers_end, kind == _LEAF)

    def _require_run(self, page: int) -> Iterator[str]:
        (count,) = _OVERFLOW_PAGES.unpack_from(self._data, page * self._page_bytes + _HEAD.size - _OVERFLOW_PAGES.size)
        if not 1 <= count <= self._pages - page:
            yield f"page {page} says that {count} belong to it"

    def _children(self, start: int, pointers_end: int, is_leaf: bool) -> Iterator[tuple[int, bool]]:
        """The pages that a page points at, and whether they are a row's. A pointer past the page is no page's."""
        data, last_at = self._data, self._page_bytes - _NODE.size
        for at in memoryview(data[start + _HEAD.size : start + pointers_end - pointers_end % 2]).cast("H"):
            if at > last_at:
                yield 0, False
                return
            low, middle, high, key_bytes = _NODE.unpack_from(data, start + at)
            if not is_leaf:
                yield low | middle << 16 | high << 32, False
            elif high & _BIG:
                pointer_at = at + _NODE.size + key_bytes
                if pointer_at > self._page_bytes - _POINTER.size:
                    yield 0, True
                    return
                yield _POINTER.unpack_from(data, start + pointer_at)[0], True
