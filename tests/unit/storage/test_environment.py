"""What is wrong with a file is found before it is used; map and room on the disk grow before they are needed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random

import pytest

from horae_storage.environment import MAX_READERS, read_shape
from horae_storage.errors import Corrupt, DirectoryUnusable, StorageFull
from horae_storage.lmdb_kv import LmdbStore

MIB = 1 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ADVICE = "keep the files for inspection"


def filled(directory: Path, rows: int = 2000) -> Path:
    """A store with some pages; its file."""
    store = LmdbStore(directory)
    for i in range(rows):
        store.txn.put(b"%06d" % i, (i, f"needle-{i:06d}"))
    store.commit()
    store.close()
    (path,) = directory.glob("*.mdb")
    return path


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path)
    os.truncate(path, read_shape(path).used_bytes - 1)
    with pytest.raises(Corrupt, match="truncated"):
        LmdbStore(tmp_path)


def test_a_file_of_exactly_its_pages_is_opened(tmp_path: Path) -> None:
    path = filled(tmp_path)
    os.truncate(path, read_shape(path).used_bytes)
    store = LmdbStore(tmp_path)
    assert store.txn.get(b"001999") == (1999, "needle-001999")
    store.close()


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000, bytes(65536)])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "00000001.mdb"
    path.write_bytes(content)
    with pytest.raises(Corrupt, match=f"{path.name} is damaged.*{ADVICE}"):
        LmdbStore(tmp_path)
    assert path.read_bytes() == content


PAGE_BYTES = 4096
HEAD_BYTES = 16
"""Before LMDB's meta in its page."""


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (0, bytes(PAGE_BYTES)),
        (0, b"\xff" * PAGE_BYTES),
        (HEAD_BYTES, b"\xff" * 4),
        (HEAD_BYTES + 24, bytes(4)),
        (HEAD_BYTES + 104, bytes(8)),
        (HEAD_BYTES + 112, bytes(8)),
        (HEAD_BYTES + 112, b"\xff" * 8),
    ],
    ids=["zeroed", "filled", "magic", "page size", "no entries", "root in the head", "no root"],
)
def test_a_damaged_meta_page_is_refused_and_not_read_as_an_older_or_empty_state(
    tmp_path: Path, page: int, at: int, damage: bytes
) -> None:
    path = filled(tmp_path)
    store = LmdbStore(tmp_path)
    store.txn.put(b"more", (1,))  # each commit goes to the other meta page: now both tell of rows
    store.commit()
    store.close()
    data = bytearray(path.read_bytes())
    begin = page * PAGE_BYTES + at
    data[begin : begin + len(damage)] = damage
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=ADVICE):
        LmdbStore(tmp_path)


def test_a_missing_file_is_refused_where_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="missing"):
        LmdbStore(tmp_path, create=False)


def test_a_file_that_cannot_be_opened_says_what_to_mend(tmp_path: Path) -> None:
    (tmp_path / "00000001.mdb").mkdir()
    with pytest.raises(DirectoryUnusable, match="mend its owner, mode or disk"):
        LmdbStore(tmp_path)


def test_a_flipped_byte_is_found_by_every_read(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    at = -1
    while (at := data.find(b"needle-001000", at + 1)) >= 0:  # old pages may hold it too
        data[at + 9] ^= 1
    path.write_bytes(data)
    store = LmdbStore(tmp_path)
    assert store.txn.get(b"000999") == (999, "needle-000999")
    with pytest.raises(Corrupt, match=f"{path.name} is damaged.*001000"):
        store.txn.get(b"001000")
    with pytest.raises(Corrupt, match="001000"):
        store.txn.scan(b"000000", b"9", limit=2000)
    with pytest.raises(Corrupt, match="001000"):
        store.txn.scan(b"000000", b"9", limit=2000, reverse=True)
    assert len(store.txn.keys(b"0", b"9", limit=3000)) == 2000
    store.close()


def test_the_map_grows_while_it_is_written(tmp_path: Path) -> None:
    """Far more than the first map holds, each commit within what is kept free."""
    store = LmdbStore(tmp_path, map_bytes=MIB, reserve_bytes=MIB)
    for i in range(200):
        store.txn.put(b"%d" % i, ("x" * 100_000,))
        store.commit()
    assert store.size_bytes() > 16 * MIB
    store.close()
    store = LmdbStore(tmp_path, map_bytes=MIB, reserve_bytes=MIB)
    assert [len(store.txn.get(b"%d" % i)[0]) for i in range(200)] == [100_000] * 200  # type: ignore[index]
    store.txn.put(b"more", ("x" * 5 * MIB,))
    store.commit()
    store.close()


def test_the_map_does_not_move_under_a_copy(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path, map_bytes=4 * MIB, reserve_bytes=MIB)
    base = store._env._map_bytes
    store.txn.put(b"a", ("x" * 2 * MIB,))
    frozen = store.freeze()
    store.commit()
    store.txn.put(b"b", ("x" * MIB,))
    store.commit()
    assert store._env._map_bytes == base
    frozen.release()
    store.txn.put(b"c", (1,))
    store.commit()
    assert store._env._map_bytes > base
    store.close()


def test_a_full_disk_refuses_the_commit_and_keeps_the_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system says that the disk is full when room is asked for: nothing is lost, and later it goes on."""
    store = LmdbStore(tmp_path, reserve_bytes=MIB)
    store.txn.put(b"a", ("x" * MIB,))
    store.commit()

    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.txn.put(b"b", (2,))
    with monkeypatch.context() as system:
        system.setattr(os, "posix_fallocate", no_room)
        with pytest.raises(StorageFull):
            store.commit()
        assert store.txn.get(b"b") == (2,)
        store.txn.put(b"c", (3,))
        with pytest.raises(StorageFull):
            store.commit()
    store.commit()
    store.close()
    store = LmdbStore(tmp_path)
    assert [store.txn.get(b"b"), store.txn.get(b"c")] == [(2,), (3,)]
    store.close()


class Disk:
    """The system's answers to wishes for room, of a disk with so much left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, left_bytes: int) -> None:
        self.left_bytes = left_bytes
        self._allocate = os.posix_fallocate
        monkeypatch.setattr(os, "posix_fallocate", self._answer)

    def _answer(self, fd: int, offset: int, length: int) -> None:
        wanted = max(offset + length - os.fstat(fd).st_size, 0)
        if wanted > self.left_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._allocate(fd, offset, length)
        self.left_bytes -= wanted


def test_a_commit_is_not_begun_without_room_for_all_that_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LmdbStore(tmp_path, reserve_bytes=MIB)
    disk = Disk(monkeypatch, 3 * MIB)
    for n in range(20):
        store.txn.put(b"%d" % n, ("x" * 250_000,))
    with pytest.raises(StorageFull):
        store.commit()
    disk.left_bytes += 2 * MIB
    store.commit()
    store.close()
    store = LmdbStore(tmp_path)
    assert len(store.txn.keys(b"0", b"9" * 9, limit=100)) == 20
    store.close()


def test_a_disk_that_has_not_enough_is_not_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems keep what they found before they gave up: it would be missing elsewhere."""
    store = LmdbStore(tmp_path, reserve_bytes=MIB)
    store.txn.put(b"a", ("x" * 8 * MIB,))
    asked: list[int] = []
    with monkeypatch.context() as system:
        found = list(os.statvfs(tmp_path))
        found[4] = MIB // found[1]  # what is left, in blocks
        system.setattr(os, "fstatvfs", lambda _: os.statvfs_result(found))
        system.setattr(os, "posix_fallocate", lambda *wish: asked.append(wish[2]))
        with pytest.raises(StorageFull):
            store.commit()
    assert asked == []
    store.commit()
    store.close()


def test_the_reader_table_has_no_holes(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path)
    found = (tmp_path / "00000001.mdb-lock").stat()
    assert found.st_blocks * 512 >= found.st_size > MAX_READERS * 64
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_commit_grows_the_file_by_more_than_was_reserved_for_it(tmp_path: Path, seed: int) -> None:
    """Sizes, orders and deletions as they come, and a copy under way, for which no page may be used again: what LMDB
    takes stays below what was reckoned, which is of use: a few writes to a large state do not ask for all of it."""
    rng = Random(seed)
    store = LmdbStore(tmp_path, reserve_bytes=MIB)
    env = store._env
    frozen = [store.freeze()] if seed % 2 else []
    for _ in range(25):
        large = rng.choice((0, 0, 3_000, 40_000, 300_000))
        for _ in range(rng.choice((1, 30, 30 if large else 3_000))):
            key = rng.choice((b"%012d", b"k%d" + b"-" * rng.randrange(300))) % rng.randrange(5_000)
            if rng.random() < 0.25:
                store.txn.delete(key)
            else:
                store.txn.put(key, ("x" * rng.choice((5, 200, 1_500, rng.randrange(1_500, 2_100), large)),))
        before, reckoned = env.used_bytes(), env.commit_pages_max(store._lmdb_txn, store.txn) * PAGE_BYTES
        store.commit()
        assert env.used_bytes() - before <= reckoned, f"seed {seed}"
    for copy in frozen:
        copy.release()
    store.txn.put(b"one", (1,))
    assert env.commit_pages_max(store._lmdb_txn, store.txn) * PAGE_BYTES < MIB
    store.close()


class TestGenerations:
    """An install is one rename: whatever a crash leaves of it, a start finds one whole state."""

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        store = LmdbStore(tmp_path / "other")
        store.txn.put(b"which", ("new",))
        store.commit()
        store.copy_to(tmp_path / "copy")
        store.close()
        return tmp_path / "copy"

    @pytest.fixture
    def state(self, tmp_path: Path) -> Path:
        store = LmdbStore(tmp_path / "state")
        store.txn.put(b"which", ("old",))
        store.commit()
        store.close()
        return tmp_path / "state"

    def which(self, state: Path) -> str:
        store = LmdbStore(state)
        (found,) = store.txn.get(b"which") or ("none",)
        store.close()
        return str(found)

    def test_crash_before_the_rename(self, state: Path, copy: Path) -> None:
        copy.rename(state / "00000002.mdb.tmp")
        assert self.which(state) == "old"
        assert [p.name for p in state.glob("*.mdb*") if "lock" not in p.name] == ["00000001.mdb"]

    def test_crash_after_the_rename(self, state: Path, copy: Path) -> None:
        copy.rename(state / "00000002.mdb")
        assert self.which(state) == "new"
        assert [p.name for p in state.glob("*.mdb*") if "lock" not in p.name] == ["00000002.mdb"]

    def test_install_and_restart(self, state: Path, copy: Path) -> None:
        store = LmdbStore(state)
        store.install(copy)
        assert store.txn.get(b"which") == ("new",)
        store.txn.put(b"which", ("newer",))
        store.commit()
        store.close()
        assert self.which(state) == "newer"
        assert [p.name for p in state.glob("*.mdb")] == ["00000002.mdb"]

    def test_a_broken_copy_is_refused_and_the_old_state_stays(self, state: Path, copy: Path) -> None:
        os.truncate(copy, copy.stat().st_size - 4096)
        store = LmdbStore(state)
        with pytest.raises(Corrupt):
            store.install(copy)
        assert store.txn.get(b"which") == ("old",)
        store.close()
        assert self.which(state) == "old"


@pytest.mark.parametrize("suffix", [b"", b"+"])
def test_a_write_into_each_page_takes_room_for_each_copy_and_each_split(tmp_path: Path, suffix: bytes) -> None:
    """The worst that small rows can do, beside a copy that is under way: the bound is met, and nearly reached."""
    store = LmdbStore(tmp_path, reserve_bytes=MIB)
    env = store._env
    for n in range(20_000):
        store.txn.put(b"%06d" % n, (n, "x" * 200))
    store.commit()
    frozen = store.freeze()
    for n in range(0, 20_000, 16):  # a page holds seventeen
        store.txn.put(b"%06d" % n + suffix, (n, "y" * 200))
    before, reckoned = env.used_bytes(), env.commit_pages_max(store._lmdb_txn, store.txn) * PAGE_BYTES
    store.commit()
    assert reckoned // 2 < env.used_bytes() - before <= reckoned
    frozen.release()
    store.close()
