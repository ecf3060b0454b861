"""The log in memory, in its own powers: it syncs when told, and loses what was not synced."""

from __future__ import annotations

import pytest

from horae_storage.errors import StorageFailed
from horae_storage.log_port import LogEntry
from horae_storage.memory_log import MemoryRaftLog


@pytest.fixture
def log() -> MemoryRaftLog:
    log = MemoryRaftLog()
    log.load()
    for index in range(1, 5):
        log.append([LogEntry(b"", index, 1)])
        log.set_vote(index, None)
        log.seal()
    return log


def test_durable_moves_only_when_told(log: MemoryRaftLog) -> None:
    told: list[int] = []
    log.on_durable(told.append)
    assert log.durable == 0
    log.sync(through=2)
    log.sync(through=2)
    log.sync()
    assert told == [2, 4]


@pytest.mark.parametrize(("synced", "kept"), [(0, 0), (2, 0), (2, 1), (0, 4), (4, 0), (1, 9)])
def test_a_crash_loses_unsynced_groups(log: MemoryRaftLog, synced: int, kept: int) -> None:
    log.sync(through=synced)
    restarted = log.crash(keep_groups=kept)
    left = min(synced + kept, 4)
    state = restarted.load()
    assert [entry.log_index for entry in state.entries] == list(range(1, left + 1))
    assert state.term == left
    log.sync()
    assert restarted.load() == state


def test_nothing_becomes_durable_after_a_failure(log: MemoryRaftLog) -> None:
    failures: list[BaseException] = []
    log.on_failure(failures.append)
    log.sync(through=1)
    error = StorageFailed("the disk")
    log.fail(error)
    log.sync()
    assert (failures, log.durable) == ([error], 1)
