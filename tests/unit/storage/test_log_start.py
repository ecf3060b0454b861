"""What a log refuses at a start, and what it makes sure of before it is served."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from horae_storage import log_records
from horae_storage.environment import _create_file
from horae_storage.errors import Corrupt, StorageError
from horae_storage.file_write import KernelWriter, Watch
from horae_storage.log_port import LogEntry, LogState
from horae_storage.raft_log import LmdbRaftLog
from horae_storage.scan import require_sound

LEAF = 0x02
"""LMDB's flag of a page that holds rows."""
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "data" / "v1" / "log"


def entries(first: int, last: int, size: int = 100) -> list[LogEntry]:
    return [LogEntry(b"x" * size, index, 1) for index in range(first, last + 1)]


def load(directory: Path) -> LogState:
    log = LmdbRaftLog(directory, lambda *_: None, create=False)
    try:
        return log.load()
    finally:
        log.close()


def write(directory: Path, first: int, groups: int, vote: str = "me", region_bytes: int = 8192) -> int:
    """So many groups of ten entries, one write each; the last index."""
    for at in range(first, first + 10 * groups, 10):
        log = LmdbRaftLog(directory, lambda *_: None, region_bytes=region_bytes)
        log.load()
        log.append(entries(at, at + 9))
        log.set_vote(1, vote)
        log.seal()
        log.close()
    return first + 10 * groups - 1


def test_what_was_written_and_not_synced_is_synced_before_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed between write and sync leaves a whole frame in the page cache: a restart answers for it."""
    write(tmp_path, 1, 1)
    synced: list[int] = []

    def fdatasync(fd: int) -> None:
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    log = LmdbRaftLog(tmp_path, lambda *_: None)  # no watch: syncs by a thread
    assert log.load().entries
    found = list(synced)
    log.close()
    assert found, "nothing was synced before load() returned"


async def test_a_sync_that_fails_at_the_start_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells of a failed write-back once: who takes it for `no such call here` has lost it."""
    write(tmp_path, 1, 1)
    monkeypatch.setattr(KernelWriter, "_result", lambda self: OSError(errno.EIO, os.strerror(errno.EIO)))
    loop = asyncio.get_running_loop()
    log = LmdbRaftLog(tmp_path, loop.call_soon_threadsafe, watch=Watch(loop.add_reader, loop.remove_reader))
    try:
        with pytest.raises(StorageError):
            log.load()
    finally:
        log.close()


def test_an_unreadable_tail_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 1)

    def pread(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(StorageError):
        load(tmp_path)


def test_the_tail_of_another_node_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "n1", 1, 3, vote="n1")
    write(tmp_path / "n2", 1, 3, vote="n2")
    shutil.copy(tmp_path / "n2" / "tail", tmp_path / "n1" / "tail")
    with pytest.raises(StorageError):
        load(tmp_path / "n1")


def test_a_hole_between_database_and_tail_is_refused(tmp_path: Path) -> None:
    """The port: `load` raises `Corrupt` when the indexes have a hole."""
    write(tmp_path / "a", 1, 13)
    write(tmp_path / "b", 1000, 14)
    shutil.copy(tmp_path / "b" / "tail", tmp_path / "a" / "tail")
    with pytest.raises(StorageError):
        load(tmp_path / "a")


@pytest.mark.parametrize("older", ["empty", "format 1"])
def test_a_database_from_before_there_was_a_tail_does_not_cost_the_tail(tmp_path: Path, older: str) -> None:
    log = tmp_path / "log"
    if older == "format 1":
        shutil.copytree(GOLDEN, log)
        before = (log / "log.mdb").read_bytes()
        first = load(log).entries[-1].log_index + 1
    else:
        log.mkdir()
        _create_file(log / "log.mdb")
        before = (log / "log.mdb").read_bytes()
        first = 1
    write(log, first, 3)
    tail = (log / "tail").read_bytes()
    (log / "log.mdb").write_bytes(before)
    with pytest.raises(StorageError):
        load(log)
    assert (log / "tail").read_bytes() == tail


def test_a_lost_page_of_acknowledged_writes_is_found(tmp_path: Path) -> None:
    """Pages and most disks' sectors have 4 KiB: one of them holds up to eight acknowledged frames."""
    last = 0
    for number in range(1, 8):
        log = LmdbRaftLog(tmp_path, lambda *_: None)
        log.load()
        log.append(entries(number, number, 10))
        log.seal()
        log.close()
        last = number
    image = bytearray((tmp_path / "tail").read_bytes())
    page = image.rfind(b"tail") // 4096 * 4096
    start = page if page > 4096 + (4 << 20) else page + 512  # the first frame of a round is missed already
    image[start : page + 4096] = bytes(page + 4096 - start)
    (tmp_path / "tail").write_bytes(image)
    try:
        found = load(tmp_path).entries
    except StorageError:
        return
    assert found[-1:] == entries(last, last, 10), f"{last - len(found)} acknowledged are gone, unsaid"


async def test_a_refused_load_leaves_no_descriptor(tmp_path: Path) -> None:
    write(tmp_path, 1, 1)
    image = bytearray((tmp_path / "tail").read_bytes())
    image[4096 + 8192 + 3] ^= 1
    (tmp_path / "tail").write_bytes(image)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError):
        load(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("bit", [0x40, 0x80])
def test_a_page_that_passes_the_walk_and_is_no_page_is_a_refusal(tmp_path: Path, bit: int) -> None:
    """A wrong first pointer in a leaf: LMDB finds out when it is there, which may be in the middle of the reading."""
    whole = tmp_path / "whole"
    write(whole, 1, 300)
    expected = load(whole)
    image = (whole / "log.mdb").read_bytes()
    leaves = [at for at in range(0, len(image), 4096) if image[at + 10] & LEAF]
    outcomes = set()
    for number, at in enumerate(leaves):
        directory = tmp_path / str(number)
        shutil.copytree(whole, directory)
        damaged = bytearray(image)
        damaged[at + 17] ^= bit
        (directory / "log.mdb").write_bytes(damaged)
        try:
            require_sound(directory / "log.mdb")
            outcomes.add(load(directory) == expected)
        except StorageError:
            outcomes.add("refused")
        shutil.rmtree(directory)
    assert False not in outcomes
    assert "refused" in outcomes


def test_what_lmdb_finds_out_while_it_is_read_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 1)

    def stored(txn: object) -> Iterator[tuple[bytes, bytes]]:
        raise lmdb.CorruptedError("mdb_cursor_get: Located page was wrong type")

    monkeypatch.setattr(log_records, "_stored_records", stored)
    with pytest.raises(Corrupt, match=r"log\.mdb is damaged"):
        load(tmp_path)
