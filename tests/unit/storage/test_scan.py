"""Damage that LMDB answers with a signal is found by the child of the scan, and told as one line by its parent."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from horae_storage.environment import read_shape
from horae_storage.errors import Corrupt
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.scan import require_sound

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ROWS = 2000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of some levels and many pages."""
    store = LmdbStore(tmp_path)
    for n in range(ROWS):
        store.txn.put(b"%06d" % n, (n, b"x" * 200))
    store.commit()
    store.close()
    return tmp_path / "00000001.mdb"


def pages_in_use(path: Path) -> list[int]:
    data = path.read_bytes()
    return [n for n in range(2, len(data) // PAGE_BYTES) if data[n * PAGE_BYTES :][:PAGE_BYTES].strip(b"\0")]


def test_a_sound_file_passes_and_is_as_it_was(path: Path) -> None:
    before = path.read_bytes()
    require_sound(path)
    assert path.read_bytes() == before
    require_sound(path.with_name("missing.mdb"))


def test_each_page_of_zeroes_is_found(path: Path) -> None:
    whole = path.read_bytes()
    pages = pages_in_use(path)
    assert len(pages) > 50
    found = []
    for page in pages:
        path.write_bytes(whole[: page * PAGE_BYTES] + bytes(PAGE_BYTES) + whole[(page + 1) * PAGE_BYTES :])
        try:
            require_sound(path)
        except Corrupt as error:
            found.append(str(error))
    assert all(str(path) in line for line in found)
    assert len(found) >= len(pages) * 9 // 10, "the others are free pages, which nobody reads"


def numbered(page: bytes, number: int) -> bytes:
    return number.to_bytes(8, "little") + page[8:]


def test_each_page_that_says_it_is_another_is_found(path: Path) -> None:
    """A copy does not mind; the next write would end the process."""
    whole = path.read_bytes()
    wrong = list(pairwise(pages_in_use(path)))[::4]
    found, expected = [], []
    for page, other in wrong:
        at = page * PAGE_BYTES
        damaged = numbered(whole[at : at + PAGE_BYTES], other)
        path.write_bytes(whole[:at] + damaged + whole[at + PAGE_BYTES :])
        try:
            require_sound(path)
        except Corrupt as error:
            found.append(str(error))
            expected.append(f"page {page} is not what is pointed at: it says {other}")
    assert all(line in said for line, said in zip(expected, found, strict=True))
    assert len(found) >= len(wrong) * 9 // 10


def test_a_large_row_and_the_free_pages_are_looked_at(path: Path) -> None:
    store = LmdbStore(path.parent)
    store.txn.put(b"large", ("x" * 50_000,))
    for n in range(ROWS // 2):
        store.txn.delete(b"%06d" % n)
    store.commit()
    store.close()
    require_sound(path)
    whole = path.read_bytes()
    for page in (whole.index(b"x" * 5_000) // PAGE_BYTES, read_shape(path).roots[0]):
        at = page * PAGE_BYTES
        path.write_bytes(whole[:at] + numbered(whole[at : at + PAGE_BYTES], 2) + whole[at + PAGE_BYTES :])
        with pytest.raises(Corrupt, match=rf"page {page} is not what is pointed at: it says 2"):
            require_sound(path)


def test_a_compact_copy_is_sound(path: Path) -> None:
    store = LmdbStore(path.parent)
    store.txn.put(b"large", ("x" * 50_000,))
    store.commit()
    store.copy_to(path.with_name("copy"))
    store.close()
    require_sound(path.with_name("copy"))


def test_a_file_that_ends_early_is_found(path: Path) -> None:
    pages = pages_in_use(path)
    os.truncate(path, pages[-1] * PAGE_BYTES)
    with pytest.raises(Corrupt, match="truncated"):
        require_sound(path)
