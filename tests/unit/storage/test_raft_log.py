"""The real log where the port says nothing: damage, a full or failing disk, a growing map, a loop that is gone."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from horae_storage.errors import Corrupt, StorageFailed, StorageFull
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog

WAIT_S = 30
SMALL_REGION = 8192
FRAMES_A_REGION = SMALL_REGION // 512


class Owner:
    """Opens a log without a loop: what is posted is taken out, and run, by the test."""

    def __init__(self, path: Path, **options: int) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]] = SimpleQueue()
        self.durable: list[int] = []
        self.failures: list[BaseException] = []
        self.log = LmdbRaftLog(path, lambda callback, *args: self._posted.put((callback, args)), **options)
        self.state = self.log.load()
        self.log.on_durable(self.durable.append)
        self.log.on_failure(self.failures.append)

    def run_one(self) -> None:
        """Wait for the next callback and run it."""
        callback, args = self._posted.get(timeout=WAIT_S)
        callback(*args)

    def settle(self) -> None:
        number = self.log.seal()
        while not self.durable or self.durable[-1] < number:
            self.run_one()


def entry(index: int, data: bytes = b"data") -> LogEntry:
    return LogEntry(data, index, 1)


def test_a_flipped_byte_in_the_database_is_found_at_the_start(tmp_path: Path) -> None:
    owner = Owner(tmp_path, region_bytes=SMALL_REGION)
    owner.log.append([entry(1, b"needle")])
    owner.settle()
    for index in range(2, 2 + 2 * FRAMES_A_REGION):  # so that the first region is folded
        owner.log.append([entry(index)])
        owner.settle()
    owner.log.close()
    path = tmp_path / "log.mdb"
    data = path.read_bytes()
    assert b"needle" in data
    path.write_bytes(data.replace(b"needle", b"noodle"))
    with pytest.raises(Corrupt, match=r"log\.mdb is damaged.*checksum.*keep the files"):
        Owner(tmp_path)


def test_a_missing_tail_is_refused(tmp_path: Path) -> None:
    Owner(tmp_path).log.close()
    (tmp_path / "tail").unlink()
    with pytest.raises(Corrupt, match="tail is missing"):
        Owner(tmp_path)


def test_a_missing_log_is_refused_where_it_must_be(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="missing"):
        LmdbRaftLog(tmp_path, lambda *_: None, create=False)


def test_the_map_grows_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """One group larger than the whole map: the transaction is dropped, the map doubled, the group written again."""
    owner = Owner(tmp_path, map_bytes=1 << 20, reserve_bytes=1 << 20)
    owner.log.append([entry(1), entry(2)])
    owner.settle()
    large = [entry(index, bytes([index]) * 700_000) for index in range(2, 10)]
    owner.log.truncate_from(2)
    owner.log.append(large)
    owner.settle()
    owner.log.append([entry(10)])
    owner.settle()
    owner.log.close()
    assert owner.failures == []
    owner = Owner(tmp_path)
    assert owner.state.entries == [entry(1), *large, entry(10)]
    owner.log.close()


def test_compaction_gives_room_back(tmp_path: Path) -> None:
    owner = Owner(tmp_path, reserve_bytes=1 << 20, region_bytes=1 << 20)
    sizes = []
    for index in range(1, 400):
        owner.log.append([entry(index, b"x" * 50_000)])
        owner.log.truncate_before(index - 20)
        owner.settle()
        sizes.append(owner.log.size_bytes())
    owner.log.close()
    assert sizes[-1] < 14 << 20


class FullDisk:
    """The system's answer to a wish for room, as long as it is entered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, from_bytes: int = 0) -> None:
        self.asked = threading.Event()
        self._allocate = os.posix_fallocate
        self._from_bytes = from_bytes
        self._monkeypatch = monkeypatch
        self._number = number

    def __enter__(self) -> FullDisk:
        self._monkeypatch.setattr(os, "posix_fallocate", self._refuse)
        return self

    def __exit__(self, *_: object) -> None:
        self._monkeypatch.undo()

    def _refuse(self, fd: int, offset: int, length: int) -> None:
        if length < self._from_bytes:
            self._allocate(fd, offset, length)
            return
        self.asked.set()
        raise OSError(self._number, os.strerror(self._number))


def fill_tail(owner: Owner) -> int:
    """Write until nothing more becomes durable; how many entries were written, the last of them in vain."""
    index = 0
    while not owner.failures:
        index += 1
        owner.log.append([entry(index, b"x" * 100_000)])
        number = owner.log.seal()
        while not owner.failures and (not owner.durable or owner.durable[-1] < number):
            owner.run_one()
    return index


class TestFullDisk:
    def test_stops_nothing_before_the_tail_is_full_and_is_waited_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = Owner(tmp_path, reserve_bytes=1 << 20, region_bytes=1 << 20)
        with FullDisk(monkeypatch, errno.ENOSPC) as disk:
            last = fill_tail(owner)
            assert [type(error) for error in owner.failures] == [StorageFull]
            assert last > 2 * (1 << 20) // 100_000, "both regions were used"
            owner.log.append([entry(last + 1)])
            owner.log.seal()
            disk.asked.clear()
            assert disk.asked.wait(WAIT_S)
            assert owner.log.durable == last - 1
        owner.settle()
        owner.log.close()
        assert len(owner.failures) == 1
        owner = Owner(tmp_path)
        assert [e.log_index for e in owner.state.entries] == list(range(1, last + 2))
        owner.log.close()

    def test_does_not_keep_it_from_closing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        owner = Owner(tmp_path, reserve_bytes=1 << 20, region_bytes=1 << 20)
        with FullDisk(monkeypatch, errno.ENOSPC):
            last = fill_tail(owner)
            owner.log.close()
        owner = Owner(tmp_path)
        assert [e.log_index for e in owner.state.entries] == list(range(1, last))
        owner.log.close()

    def test_is_found_full_by_a_write_too_large_for_the_tail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner = Owner(tmp_path, reserve_bytes=1 << 20)
        owner.log.append([entry(1)])
        owner.settle()
        with FullDisk(monkeypatch, errno.ENOSPC):
            owner.log.append([entry(2, b"x" * (2 << 20))])
            owner.log.seal()
            while not owner.failures:
                owner.run_one()
            assert owner.log.durable == 1
        owner.log.append([entry(3)])
        owner.settle()
        owner.log.close()
        owner = Owner(tmp_path)
        assert [(e.log_index, len(e.data)) for e in owner.state.entries] == [(1, 4), (2, 2 << 20), (3, 4)]
        owner.log.close()

    def test_a_fold_given_up_for_want_of_room_leaves_the_database_as_it_was(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Room for a word at the end, none for the fold: the word may not say that the fold was made."""
        owner = Owner(tmp_path, reserve_bytes=1 << 16, region_bytes=1 << 20)
        with FullDisk(monkeypatch, errno.ENOSPC):
            last = fill_tail(owner)
        with FullDisk(monkeypatch, errno.ENOSPC, from_bytes=1 << 18):
            owner.log.close()
        owner = Owner(tmp_path)
        assert [e.log_index for e in owner.state.entries] == list(range(1, last))
        owner.log.close()

    def test_of_its_owner_holds_it_up_as_its_own_does(self, tmp_path: Path) -> None:
        owner = Owner(tmp_path)
        owner.log.append([entry(1)])
        owner.settle()
        reason = StorageFull("no room")
        owner.log.hold(reason)
        assert owner.failures == []
        for index in (2, 3):
            owner.log.append([entry(index)])
            owner.log.seal()
        assert owner.failures == [reason]
        assert owner.log.durable == 1
        owner.log.hold(None)
        owner.settle()
        assert owner.log.durable == 3
        owner.log.hold(reason)
        owner.log.append([entry(4)])
        owner.log.seal()
        assert owner.failures == [reason, reason]
        owner.log.close()  # its tail has room
        owner = Owner(tmp_path)
        assert [e.log_index for e in owner.state.entries] == [1, 2, 3, 4]
        owner.log.close()


def test_a_failing_disk_is_told_and_nothing_later_becomes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path, reserve_bytes=1 << 20, region_bytes=1 << 20)
    with FullDisk(monkeypatch, errno.EIO):
        last = fill_tail(owner)
    assert [type(error) for error in owner.failures] == [StorageFailed]
    durable = owner.log.durable
    owner.log.append([entry(last + 1)])
    owner.log.seal()
    owner.log.close()
    assert owner.log.durable == durable


def test_a_sync_that_fails_is_told_and_nothing_later_becomes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path)
    owner.log.append([entry(1)])
    owner.settle()

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    owner.log.append([entry(2)])
    owner.log.seal()
    owner.run_one()
    assert [type(error) for error in owner.failures] == [StorageFailed]
    monkeypatch.undo()
    owner.log.append([entry(3)])
    owner.log.seal()
    owner.log.close()
    assert owner.log.durable == 1


def test_a_closed_loop_ends_nothing_badly(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    log = LmdbRaftLog(tmp_path, loop.call_soon_threadsafe)
    log.load()
    loop.close()
    log.append([entry(1)])
    log.seal()
    log.close()
    owner = Owner(tmp_path)
    assert owner.state.entries == [entry(1)]
    owner.log.close()
