"""Snapshot files: whole or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from horae_storage import snapshot
from horae_storage.errors import Corrupt, StorageFailed
from horae_storage.kv import Store
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.memory import MemoryStore

META = snapshot.SnapshotMeta("cluster", 100, 7, 6, 1)


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path / "state")
    for i in range(500):
        store.txn.put(b"%d" % i, (i,))
    store.commit()
    return store


def test_there_and_back(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    snapshot.write(store, path, META)
    assert snapshot.verify(path) == META
    store.txn.put(b"0", ("later",))
    store.commit()
    snapshot.unpack(path, tmp_path / "bare")
    store.install(tmp_path / "bare")
    assert store.txn.get(b"0") == (0,)
    assert snapshot.verify(path) == META
    assert not list(tmp_path.glob("*.tmp"))


def test_the_checksum_tells_contents_apart(store: Store, tmp_path: Path) -> None:
    one, other = tmp_path / "one.snapshot", tmp_path / "other.snapshot"
    sha256 = snapshot.write(store, one, META)
    snapshot.write(store, other, META._replace(last_index=101))
    assert snapshot.checksum_of(one) == sha256.hex()
    assert snapshot.checksum_of(other) != snapshot.checksum_of(one)
    (tmp_path / "cut").write_bytes(one.read_bytes()[:-1])
    with pytest.raises(Corrupt):
        snapshot.checksum_of(tmp_path / "cut")
    with pytest.raises(StorageFailed):
        snapshot.checksum_of(tmp_path / "missing")


def test_of_a_frozen_state(store: Store, tmp_path: Path) -> None:
    frozen = store.freeze()
    store.txn.put(b"0", ("later",))
    store.commit()
    snapshot.write(frozen, tmp_path / "one.snapshot", META)
    frozen.release()
    snapshot.unpack(tmp_path / "one.snapshot", tmp_path / "bare")
    store.install(tmp_path / "bare")
    assert store.txn.get(b"0") == (0,)


def test_every_flipped_byte_is_found(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    snapshot.write(store, path, META)
    data = path.read_bytes()
    step = max(len(data) // 200, 1)
    for at in [*range(0, len(data), step), *range(len(data) - 100, len(data))]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(Corrupt):
            snapshot.verify(path)


@pytest.mark.parametrize("missing", [1, 56, 57, 100, 5000, None])
def test_a_file_cut_short_is_refused(store: Store, tmp_path: Path, missing: int | None) -> None:
    path = tmp_path / "one.snapshot"
    snapshot.write(store, path, META)
    size = path.stat().st_size
    os.truncate(path, 0 if missing is None else size - missing)
    with pytest.raises(Corrupt):
        snapshot.verify(path)
    with pytest.raises(Corrupt):
        snapshot.unpack(path, tmp_path / "bare")
    assert not (tmp_path / "bare").exists()


def test_trailing_bytes_are_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "one.snapshot"
    snapshot.write(store, path, META)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Corrupt):
        snapshot.verify(path)


def test_a_copy_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        snapshot.write(store, tmp_path / "no such folder" / "one.snapshot", META)
    (tmp_path / "one.snapshot.tmp").write_bytes(b"left by a crash")
    snapshot.write(store, tmp_path / "one.snapshot", META)
    assert snapshot.verify(tmp_path / "one.snapshot") == META
