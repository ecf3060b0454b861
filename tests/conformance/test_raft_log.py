"""One suite for every Raft log: what `horae_storage.log_port` promises, asked of the real and of the one in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from horae_storage.errors import StorageFull
from horae_storage.file_write import Watch
from horae_storage.log_port import LogEntry, LogState, RaftLog
from horae_storage.memory_log import MemoryRaftLog
from horae_storage.raft_log import LmdbRaftLog


class Disk:
    """Opens a log, and opens it again as a restart would."""

    def __init__(self, kind: str, path: Path) -> None:
        self._kind = kind
        self._path = path
        self._log: RaftLog | None = None
        self.told: list[int] = []
        self._grown = asyncio.Event()

    def open(self) -> tuple[RaftLog, LogState]:
        post = asyncio.get_running_loop().call_soon_threadsafe
        if self._kind != "memory":
            self.close()
            self._log = LmdbRaftLog(self._path, post, **self._options())
        else:
            self._log = self._log.crash() if isinstance(self._log, MemoryRaftLog) else MemoryRaftLog(post)
        self.told = []
        state = self._log.load()
        self._log.on_durable(self._on_durable)
        return self._log, state

    def _options(self) -> dict[str, Any]:
        """As a node opens it; or with a thread for the syncs, and a tail so small that it is folded all the time."""
        loop = asyncio.get_running_loop()
        if self._kind == "lmdb":
            return {"watch": Watch(loop.add_reader, loop.remove_reader)}
        return {"region_bytes": 2048}

    async def settle(self) -> None:
        """Seal, and wait until all is durable and the owner was told."""
        assert self._log is not None
        wanted = self._log.seal()
        while wanted and (not self.told or self.told[-1] < wanted):
            self._grown.clear()
            await asyncio.wait_for(self._grown.wait(), 30)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    def _on_durable(self, durable: int) -> None:
        assert self._log is not None
        assert durable <= self._log.durable
        self.told.append(durable)
        self._grown.set()


@pytest.fixture(params=["memory", "lmdb", "lmdb small"])
async def disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk(request.param, tmp_path / "log")
    yield disk
    disk.close()


def entries(first: int, last: int, term: int = 1) -> list[LogEntry]:
    return [LogEntry(b"%d@%d" % (index, term), index, term) for index in range(first, last + 1)]


async def test_a_new_log_is_empty(disk: Disk) -> None:
    log, state = disk.open()
    assert state == LogState(0, None, 0, [])
    assert (log.sealed, log.durable, log.seal()) == (0, 0, 0)


async def test_what_is_durable_is_found_again(disk: Disk) -> None:
    log, _ = disk.open()
    log.set_vote(3, "b")
    log.append(entries(1, 2))
    log.set_commit(1)
    log.append(entries(3, 5, 2))
    await disk.settle()
    assert disk.open()[1] == LogState(3, "b", 1, entries(1, 2) + entries(3, 5, 2))


async def test_groups_are_numbered_and_told_in_order(disk: Disk) -> None:
    log, _ = disk.open()
    numbers = []
    for index in range(1, 30):
        log.append(entries(index, index))
        numbers.append(log.seal())
        assert log.sealed == numbers[-1]
        if index % 7 == 0:
            await asyncio.sleep(0)
    await disk.settle()
    assert numbers == list(range(1, 30))
    assert disk.told == sorted(set(disk.told))
    assert (disk.told[-1], log.durable) == (29, 29)


async def test_an_empty_group_is_none(disk: Disk) -> None:
    log, _ = disk.open()
    log.append([])
    log.set_commit(4)
    assert log.seal() == 0
    log.append(entries(1, 1))
    assert [log.seal(), log.seal()] == [1, 1]
    await disk.settle()


async def test_commit_index_rides_along(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(1, 5))
    log.set_commit(4)
    await disk.settle()
    log.set_commit(5)
    await disk.settle()
    _, state = disk.open()
    assert state.commit_index == 4
    log, _ = disk.open()
    log.set_commit(5)
    log.set_vote(2, None)
    await disk.settle()
    assert disk.open()[1] == LogState(2, None, 5, entries(1, 5))


async def test_an_empty_log_starts_anywhere(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(100, 102))
    await disk.settle()
    assert disk.open()[1].entries == entries(100, 102)


async def open_with_ten(disk: Disk, *, apart: bool) -> RaftLog:
    """Ten entries in three groups; with `apart` they are durable before what comes next."""
    log, _ = disk.open()
    for first, last in ((1, 3), (4, 9), (10, 10)):
        log.append(entries(first, last))
        log.seal()
    if apart:
        await disk.settle()
    return log


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 9, 10, 11])
@pytest.mark.parametrize("apart", [True, False])
async def test_truncate_from(disk: Disk, cut: int, apart: bool) -> None:
    log = await open_with_ten(disk, apart=apart)
    log.truncate_from(cut)
    log.append(entries(min(cut, 11), 12, 2))
    await disk.settle()
    log, state = disk.open()
    assert state.entries == entries(1, min(cut, 11) - 1) + entries(min(cut, 11), 12, 2)
    log.append(entries(13, 13, 2))
    await disk.settle()
    assert disk.open()[1].entries[-2:] == entries(12, 13, 2)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 9, 10, 11, 50])
@pytest.mark.parametrize("apart", [True, False])
async def test_truncate_before(disk: Disk, cut: int, apart: bool) -> None:
    log = await open_with_ten(disk, apart=apart)
    log.truncate_before(cut)
    await disk.settle()
    log, state = disk.open()
    assert state.entries == entries(cut, 10)
    following = max(cut, 11)
    log.append(entries(following, following))
    await disk.settle()
    assert disk.open()[1].entries == entries(cut, 10) + entries(following, following)


async def test_a_log_cut_empty_starts_anywhere(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(5, 9))
    log.truncate_before(50)
    log.append(entries(20, 22, 2))
    await disk.settle()
    assert disk.open()[1].entries == entries(20, 22, 2)


async def test_reset(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(1, 9))
    log.set_vote(2, "a")
    await disk.settle()
    log.append(entries(10, 11))
    log.reset(entries(6, 7, 5))
    log.append(entries(8, 8, 5))
    await disk.settle()
    log, state = disk.open()
    assert state == LogState(2, "a", 0, entries(6, 7, 5) + entries(8, 8, 5))
    log.reset([])
    await disk.settle()
    assert disk.open()[1] == LogState(2, "a", 0, [])


async def test_an_entry_of_a_megabyte_and_many_small_ones(disk: Disk) -> None:
    log, _ = disk.open()
    large = [LogEntry(b"x" * (1 << 20), 1, 1), *entries(2, 5000), LogEntry(b"y" * (1 << 20), 5001, 1)]
    log.append(large)
    await disk.settle()
    log, state = disk.open()
    assert state.entries == large
    assert log.size_bytes() >= 2 << 20


async def test_holes_are_refused(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(1, 2))
    with pytest.raises(AssertionError):
        log.append(entries(4, 4))
    with pytest.raises(AssertionError):
        log.append([*entries(3, 3), *entries(5, 5)])


async def test_close_makes_what_was_sealed_durable(disk: Disk) -> None:
    log, _ = disk.open()
    log.append(entries(1, 3))
    log.seal()
    log.append(entries(4, 4))
    log.close()
    log.close()
    assert disk.open()[1].entries == entries(1, 3)


class Model:
    """The log as a plain list."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.vote: tuple[int, str | None] = (0, None)

    def next_index(self, rng: random.Random) -> int:
        return self.entries[-1].log_index + 1 if self.entries else rng.randint(1, 50)


def step(log: RaftLog, model: Model, rng: random.Random) -> None:
    """One random call, to the log and to the model."""
    match rng.choices(("append", "from", "before", "reset", "vote"), (60, 15, 10, 3, 10))[0]:
        case "append":
            first = model.next_index(rng)
            added = entries(first, first + rng.randint(0, 6), rng.randint(1, 99))
            model.entries += added
            log.append(added)
        case "from" if model.entries:
            cut = rng.randint(model.entries[0].log_index, model.entries[-1].log_index + 1)
            model.entries = [entry for entry in model.entries if entry.log_index < cut]
            log.truncate_from(cut)
        case "before" if model.entries:
            cut = rng.randint(model.entries[0].log_index, model.entries[-1].log_index + 1)
            model.entries = [entry for entry in model.entries if entry.log_index >= cut]
            log.truncate_before(cut)
        case "reset":
            first = rng.randint(1, 50)
            model.entries = entries(first, first + rng.randint(0, 3))
            log.reset(list(model.entries))
        case _:
            model.vote = (rng.randint(1, 99), rng.choice((None, "a", "b")))
            log.set_vote(*model.vote)


@pytest.mark.parametrize("seed", range(10))
async def test_random_calls_agree_with_a_list(disk: Disk, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    log, _ = disk.open()
    for _ in range(25):
        for _ in range(rng.randint(1, 10)):
            step(log, model, rng)
            if rng.random() < 0.4:
                log.seal()
        if rng.random() < 0.6:
            await disk.settle()
        if rng.random() < 0.3:
            await disk.settle()
            log, state = disk.open()
            assert state == LogState(*model.vote, 0, model.entries), f"{seed=}"


async def test_a_log_that_is_held_takes_nothing_and_tells_once(disk: Disk) -> None:
    log, _ = disk.open()
    failures: list[BaseException] = []
    log.on_failure(failures.append)
    log.append([LogEntry(b"", 1, 1)])
    await disk.settle()
    reason = StorageFull("no room for what follows from it")
    log.hold(reason)
    for index in (2, 3):
        log.append([LogEntry(b"", index, 1)])
        log.seal()
    await asyncio.sleep(0)
    assert (failures, log.durable) == ([reason], 1)
    log.hold(None)
    await disk.settle()
    assert log.durable == 3
    assert [e.log_index for e in disk.open()[1].entries] == [1, 2, 3]
