"""Damage that LMDB answers with a signal is found by the child of the scan, and told as one line by its parent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_a_file_that_ends_early_is_found(path: Path) -> None:
    pages = pages_in_use(path)
    os.truncate(path, pages[-1] * PAGE_BYTES)
    with pytest.raises(Corrupt, match="truncated"):
        require_sound(path)
