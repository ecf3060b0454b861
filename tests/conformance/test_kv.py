"""One suite for every store: what `horae_storage.kv` promises, asked of the real one and of the one in memory.

A random run against a plain dictionary is at the end: it prints its seed, and any implementation must agree on every
answer and on every digest.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

from horae_storage.kv import MAX_KEY_BYTES, Store
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.memory import MemoryStore
from horae_storage.rows import encode_row

FIRST, LAST = b"\x00", b"\xff" * MAX_KEY_BYTES


def lmdb_store(path: Path) -> Store:
    return LmdbStore(path)


def memory_store(path: Path) -> Store:
    return MemoryStore()


@pytest.fixture(params=[memory_store, lmdb_store])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    stores: list[Store] = []

    def make_one() -> Store:
        stores.append(request.param(tmp_path / f"state-{len(stores)}"))
        return stores[-1]

    yield make_one
    for store in stores:
        store.close()


@pytest.fixture
def store(make: Callable[[], Store]) -> Store:
    return make()


class Colour(IntEnum):
    RED = 3


class Pair(NamedTuple):
    left: int
    right: str


class TestRows:
    @pytest.mark.parametrize(
        "row",
        [
            (),
            (None, True, False),
            (0, -1, 2**63 - 1, -(2**63), 2**64 - 1),
            ("", "text", "Zoë \U0001f300", b"", b"\x00\xff" * 3),
            ((), ((1, ("deep",)),), b"x" * 100_000),
        ],
    )
    def test_come_back_as_they_were(self, store: Store, row: tuple[Any, ...]) -> None:
        store.txn.put(b"k", row)
        assert store.txn.get(b"k") == row

    def test_come_back_as_plain_tuples_of_plain_data(self, store: Store) -> None:
        store.txn.put(b"k", (Pair(1, "a"), [1, [2]], Colour.RED))
        row = store.txn.get(b"k")
        assert row == ((1, "a"), (1, (2,)), 3)
        assert [type(item) for item in row] == [tuple, tuple, int]

    @pytest.mark.parametrize("row", [(object(),), (2**64,), ("\ud800",)])
    def test_that_cannot_be_encoded_are_refused_and_change_nothing(self, store: Store, row: tuple[Any, ...]) -> None:
        store.txn.put(b"k", (1,))
        digest = store.txn.digest
        with pytest.raises((TypeError, OverflowError, UnicodeEncodeError)):
            store.txn.put(b"k", row)
        assert (store.txn.get(b"k"), store.txn.digest) == ((1,), digest)
        store.txn.put(b"k", (2,))
        assert store.txn.get(b"k") == (2,)

    @pytest.mark.parametrize("key", [b"", b"x" * (MAX_KEY_BYTES + 1)])
    def test_keys_out_of_bounds_are_refused_and_change_nothing(self, store: Store, key: bytes) -> None:
        with pytest.raises(ValueError, match="511"):
            store.txn.put(key, ())
        assert not store.dirty
        store.txn.put(b"x" * MAX_KEY_BYTES, (1,))
        assert store.txn.keys(FIRST, LAST, limit=9) == [b"x" * MAX_KEY_BYTES]

    def test_what_is_not_there_is_none(self, store: Store) -> None:
        assert store.txn.get(b"k") is None
        assert store.txn.row_bytes(b"k") == 0

    def test_a_row_tells_its_size_unread(self, store: Store) -> None:
        for payload in (b"", b"x" * 300, b"x" * 300_000):
            store.txn.put(b"k", (payload,))
            assert store.txn.row_bytes(b"k") == len(encode_row(msgpack.packb((payload,)), b"k"))

    def test_delete_says_whether_there_was_something(self, store: Store) -> None:
        store.txn.put(b"k", (1,))
        assert [store.txn.delete(b"k"), store.txn.delete(b"k"), store.txn.get(b"k")] == [True, False, None]


class TestScans:
    @pytest.fixture
    def five(self, store: Store) -> Store:
        for key in (b"c", b"a", b"e", b"b", b"d"):
            store.txn.put(key, (key,))
        return store

    @pytest.mark.parametrize(
        ("start", "stop", "limit", "expected"),
        [
            (b"a", b"f", 9, b"abcde"),
            (b"a", b"e", 9, b"abcd"),
            (b"b", b"d\x00", 9, b"bcd"),
            (b"a", b"f", 2, b"ab"),
            (b"aa", b"cc", 9, b"bc"),
            (b"c", b"c", 9, b""),
            (b"d", b"b", 9, b""),
            (b"f", b"g", 9, b""),
            (b"0", b"1", 9, b""),
            (b"", LAST, 9, b"abcde"),
        ],
    )
    def test_bounds_and_limits(self, five: Store, start: bytes, stop: bytes, limit: int, expected: bytes) -> None:
        keys = [bytes([key]) for key in expected]
        assert five.txn.keys(start, stop, limit=limit) == keys
        assert five.txn.scan(start, stop, limit=limit) == [(key, (key,)) for key in keys]

    @pytest.mark.parametrize(
        ("start", "stop", "limit", "expected"),
        [
            (b"a", b"f", 9, b"edcba"),
            (b"a", b"e", 9, b"dcba"),
            (b"b", b"d\x00", 9, b"dcb"),
            (b"a", b"f", 2, b"ed"),
            (b"aa", b"cc", 9, b"cb"),
            (b"c", b"c", 9, b""),
            (b"d", b"b", 9, b""),
            (b"f", b"g", 9, b""),
            (b"0", b"1", 9, b""),
            (b"", LAST, 9, b"edcba"),
        ],
    )
    def test_reverse(self, five: Store, start: bytes, stop: bytes, limit: int, expected: bytes) -> None:
        keys = [bytes([key]) for key in expected]
        assert five.txn.keys(start, stop, limit=limit, reverse=True) == keys
        assert five.txn.scan(start, stop, limit=limit, reverse=True) == [(key, (key,)) for key in keys]

    def test_of_an_empty_store_are_empty(self, store: Store) -> None:
        assert store.txn.scan(FIRST, LAST, limit=1) == store.txn.scan(FIRST, LAST, limit=1, reverse=True) == []
        assert store.txn.keys(FIRST, LAST, limit=1) == store.txn.keys(FIRST, LAST, limit=1, reverse=True) == []

    def test_lists_are_the_callers(self, five: Store) -> None:
        pairs = five.txn.scan(b"a", b"z", limit=9)
        for key, _ in pairs:
            five.txn.delete(key)
        assert len(pairs) == 5
        assert five.txn.keys(b"a", b"z", limit=9) == []


class TestTransactions:
    def test_commit_keeps_and_abort_drops(self, store: Store) -> None:
        store.txn.put(b"a", (1,))
        store.txn.put(b"b", (1,))
        store.commit()
        store.txn.put(b"a", (2,))
        store.txn.delete(b"b")
        store.txn.put(b"c", (1,))
        store.abort()
        assert store.txn.scan(FIRST, LAST, limit=9) == [(b"a", (1,)), (b"b", (1,))]

    def test_dirty_from_the_first_write_to_the_commit(self, store: Store) -> None:
        assert not store.dirty
        store.txn.delete(b"a")
        assert not store.dirty
        store.txn.put(b"a", ("x" * 100,))
        assert store.dirty
        assert store.dirty_bytes >= 100
        store.commit()
        assert not store.dirty
        store.txn.delete(b"a")
        assert store.dirty
        store.abort()
        assert not store.dirty
        assert store.txn.get(b"a") == ("x" * 100,)

    def test_commit_of_nothing_keeps_the_transaction(self, store: Store) -> None:
        txn = store.txn
        store.commit()
        assert store.txn is txn

    def test_close_twice(self, store: Store) -> None:
        store.close()
        store.close()


class TestDigest:
    def test_is_the_same_everywhere(self, store: Store) -> None:
        store.txn.seed_digest(7)
        store.txn.put(b"a", (1, "x"))
        store.txn.put(b"b", (b"y",))
        store.txn.delete(b"a")
        store.txn.delete(b"never")
        assert store.txn.digest == 0xB1AB878B

    def test_follows_the_seed_the_order_and_every_write(self, store: Store) -> None:
        def digest_of(seed: int, *writes: tuple[bytes, tuple[Any, ...] | None]) -> int:
            store.abort()
            store.txn.put(b"there", ())
            store.txn.seed_digest(seed)
            for key, row in writes:
                if row is None:
                    store.txn.delete(key)
                else:
                    store.txn.put(key, row)
            return store.txn.digest

        digests = [
            digest_of(0),
            digest_of(1),
            digest_of(0, (b"a", (1,))),
            digest_of(0, (b"a", (2,))),
            digest_of(0, (b"b", (1,))),
            digest_of(0, (b"a", (1,)), (b"b", (2,))),
            digest_of(0, (b"b", (2,)), (b"a", (1,))),
            digest_of(0, (b"there", None)),
            digest_of(0, (b"there", ())),
        ]
        assert len(set(digests)) == len(digests)
        assert all(0 <= digest < 2**32 for digest in digests)
        assert digest_of(0, (b"never", None)) == digest_of(0)


class TestCopies:
    def test_a_copy_is_the_committed_state(self, store: Store, make: Callable[[], Store], tmp_path: Path) -> None:
        for i in range(3000):
            store.txn.put(b"%d" % i, (i, "x" * 50))
        store.commit()
        store.txn.put(b"open", ())
        store.txn.delete(b"0")
        store.copy_to(tmp_path / "copy")
        other = make()
        other.txn.put(b"old", ())
        other.commit()
        other.txn.put(b"older", ())
        other.install(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        assert not other.dirty
        assert other.txn.get(b"old") is None
        assert sorted(other.txn.keys(FIRST, LAST, limit=9999)) == sorted(b"%d" % i for i in range(3000))
        other.txn.put(b"new", (1,))
        other.commit()
        assert other.txn.get(b"new") == (1,)

    def test_frozen_stays_as_it_was(self, store: Store, make: Callable[[], Store], tmp_path: Path) -> None:
        store.txn.put(b"a", (1,))
        store.commit()
        frozen = store.freeze()
        store.txn.put(b"a", (2,))
        store.commit()
        thread = threading.Thread(target=frozen.copy_to, args=(tmp_path / "copy",))
        thread.start()
        thread.join()
        frozen.release()
        frozen.release()
        other = make()
        other.install(tmp_path / "copy")
        assert (store.txn.get(b"a"), other.txn.get(b"a")) == ((2,), (1,))

    def test_frozen_outlives_an_install_and_the_store(
        self, store: Store, make: Callable[[], Store], tmp_path: Path
    ) -> None:
        store.txn.put(b"a", (1,))
        store.commit()
        store.copy_to(tmp_path / "one")
        store.txn.put(b"a", (2,))
        store.commit()
        two, also_two = store.freeze(), store.freeze()
        store.install(tmp_path / "one")
        assert store.txn.get(b"a") == (1,)
        two.copy_to(tmp_path / "two")
        two.release()
        store.close()
        also_two.copy_to(tmp_path / "also two")
        also_two.release()
        for name in ("two", "also two"):
            other = make()
            other.install(tmp_path / name)
            assert other.txn.get(b"a") == (2,)

    def test_copies_on_another_thread_while_the_owner_writes(
        self, store: Store, make: Callable[[], Store], tmp_path: Path
    ) -> None:
        """Each commit moves two keys together: a copy that shows them apart has torn a commit."""
        done = threading.Event()

        def copy() -> None:
            for i in range(5):
                store.copy_to(tmp_path / f"copy{i}")
            done.set()

        thread = threading.Thread(target=copy)
        thread.start()
        count = 0
        while not done.is_set():
            count += 1
            store.txn.put(b"a", (count,))
            store.txn.put(b"b", (count,))
            store.commit()
        thread.join()
        other = make()
        for i in range(5):
            other.install(tmp_path / f"copy{i}")
            assert other.txn.get(b"a") == other.txn.get(b"b")

    def test_a_copy_never_overwrites(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "copy").write_bytes(b"precious")
        with pytest.raises(Exception, match="there already"):
            store.copy_to(tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"precious"
        assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []


@pytest.mark.parametrize("seed", range(8))
def test_random_writes_agree_with_a_dictionary(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    reference = MemoryStore()
    model: dict[bytes, tuple[Any, ...]] = {}
    committed: dict[bytes, tuple[Any, ...]] = {}
    for step in range(3000):
        key = rng.randbytes(rng.randint(1, 2))
        match rng.choices(("put", "delete", "read", "scan", "commit", "abort"), (50, 20, 10, 15, 1, 1))[0]:
            case "put":
                row = (step, rng.randbytes(rng.randint(0, 30)))
                model[key] = row
                store.txn.put(key, row)
                reference.txn.put(key, row)
            case "delete":
                assert store.txn.delete(key) == (model.pop(key, None) is not None) == reference.txn.delete(key)
            case "read":
                assert store.txn.get(key) == model.get(key)
            case "scan":
                stop, limit, reverse = rng.randbytes(1), rng.randint(1, 20), rng.random() < 0.5
                expected = sorted(((k, v) for k, v in model.items() if key <= k < stop), reverse=reverse)[:limit]
                assert store.txn.scan(key, stop, limit=limit, reverse=reverse) == expected, f"{seed=} {step=}"
                assert store.txn.keys(key, stop, limit=limit, reverse=reverse) == [k for k, _ in expected]
            case "commit":
                store.commit()
                reference.commit()
                committed = model.copy()
            case "abort":
                store.abort()
                reference.abort()
                model = committed.copy()
        assert store.txn.digest == reference.txn.digest, f"{seed=} {step=}"
    assert dict(store.txn.scan(b"", LAST, limit=10**6)) == model
