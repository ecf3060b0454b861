"""The journal: positions and indexes, what is durable after each kind of write, tails that are not copied."""

from __future__ import annotations

import pytest

from horae_node.errors import Fatal
from horae_node.raft import pysyncobj_journal
from horae_node.raft.pysyncobj_journal import Journal
from horae_storage.memory_log import MemoryRaftLog


@pytest.fixture
def log() -> MemoryRaftLog:
    made = MemoryRaftLog()
    made.on_durable(lambda durable: None)
    return made


@pytest.fixture
def journal(log: MemoryRaftLog) -> Journal:
    """Ten entries, 1 to 10, of term 1 and ten bytes each, all durable."""
    made = Journal(log, log.load())
    for index in range(1, 11):
        made.add(b"x" * 10, index, 1)
    sync(log, made)
    return made


def sync(log: MemoryRaftLog, journal: Journal) -> None:
    journal.seal()
    log.sync()
    journal.on_durable(log.durable)


def test_the_library_reads_entries_as_tuples(journal: Journal) -> None:
    assert journal[0] == (b"x" * 10, 1, 1)
    assert journal[-1] == (b"x" * 10, 10, 1)
    assert len(journal) == 10
    assert journal[3:5] == [(b"x" * 10, 4, 1), (b"x" * 10, 5, 1)]


def test_an_open_slice_is_a_view(journal: Journal) -> None:
    tail = journal[7:]
    assert not isinstance(tail, list)
    assert len(tail) == 3
    assert [entry.log_index for entry in tail] == [8, 9, 10]
    assert (tail[0].log_index, tail[-1].log_index) == (8, 10)
    assert [entry.log_index for entry in tail[:2]] == [8, 9]
    assert not journal[10:]
    assert not journal[50:]
    with pytest.raises(IndexError):
        journal[7:][3]


def test_writes_are_durable_when_their_group_is(log: MemoryRaftLog, journal: Journal) -> None:
    journal.add(b"y", 11, 2)
    assert journal.mark == log.sealed + 1
    journal.seal()
    assert journal.mark == log.sealed
    assert journal.durable_index == 10
    sync(log, journal)
    assert (journal.durable, journal.durable_index) == (journal.mark, 11)


def test_what_was_truncated_and_written_anew_is_not_durable_by_the_older_sync(
    log: MemoryRaftLog, journal: Journal
) -> None:
    journal.add(b"y", 11, 2)
    first = journal.seal()
    journal.deleteEntriesFrom(8)
    assert journal.durable_index == 8
    journal.add(b"z", 9, 3)
    journal.add(b"z", 10, 3)
    journal.seal()
    log.sync(first)
    journal.on_durable(log.durable)
    assert journal.durable_index == 8
    sync(log, journal)
    assert journal.durable_index == 10
    assert [entry.term for entry in log.crash().load().entries] == [1] * 8 + [3, 3]


def test_one_handlers_writes_are_one_group(log: MemoryRaftLog, journal: Journal) -> None:
    before = log.sealed
    journal.deleteEntriesFrom(8)
    journal.add(b"z", 9, 3)
    journal.setCurrentTerm(3, "b")
    assert journal.seal() == before + 1
    assert journal.seal() == before + 1


def test_a_commit_index_alone_is_no_write(log: MemoryRaftLog, journal: Journal) -> None:
    before = log.sealed
    journal.setRaftCommitIndex(7)
    assert journal.seal() == before


def test_cutting_keeps_the_rest(log: MemoryRaftLog, journal: Journal) -> None:
    journal.cut_below(6)
    assert (journal.first_index, journal.last_index, journal.data_bytes) == (6, 10, 50)
    assert journal.term_at(5) is None
    assert journal.term_at(6) == 1
    journal.cut_below(3)
    journal.cut_below(99)
    assert (journal.first_index, journal.last_index) == (6, 10)
    sync(log, journal)
    assert log.crash().load().entries[0].log_index == 6


def test_beginning_anew_behind_a_snapshot(log: MemoryRaftLog, journal: Journal) -> None:
    journal.restart_at(40, 4)
    assert (journal.first_index, journal.last_index, journal.durable_index) == (40, 40, 0)
    sync(log, journal)
    assert journal.durable_index == 40
    assert log.crash().load().entries == [(b"\x01", 40, 4)]


@pytest.mark.parametrize(
    ("tail_bytes", "tail_entries", "cut"), [(1000, 100, 1), (1000, 4, 7), (25, 100, 9), (5, 100, 10), (25, 4, 9)]
)
def test_where_to_cut_for_a_tail(journal: Journal, tail_bytes: int, tail_entries: int, cut: int) -> None:
    assert journal.cut_for(tail_bytes=tail_bytes, tail_entries=tail_entries) == cut


@pytest.mark.parametrize(
    ("start", "turn_bytes", "turn_entries", "last"),
    [(3, 30, 9, 5), (3, 5, 9, 3), (9, 1000, 9, 10), (10, 1, 9, 10), (3, 1000, 4, 6), (3, 1000, 1, 3), (9, 1000, 2, 10)],
)
def test_what_is_applied_in_one_turn(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, start: int, turn_bytes: int, turn_entries: int, last: int
) -> None:
    monkeypatch.setattr(pysyncobj_journal, "TURN_BYTES", turn_bytes)
    monkeypatch.setattr(pysyncobj_journal, "TURN_ENTRIES", turn_entries)
    assert journal.turn_end(start) == last


def test_a_hole_is_fatal(journal: Journal) -> None:
    with pytest.raises(Fatal):
        journal.add(b"y", 12, 1)


def test_the_library_may_not_clear_the_log(journal: Journal) -> None:
    with pytest.raises(Fatal):
        journal.clear()


def test_18_a_cut_leaves_one_entry_at_least(journal: Journal) -> None:
    journal.cut_below(11)
    assert len(journal) == 10, "the entry to begin with is not there"
    journal.cut_below(10)
    assert (len(journal), journal.first_index, journal.last_index) == (1, 10, 10)
    journal.add(b"y", 11, 2)
    assert journal[-1].log_index == 11


def test_18_a_new_beginning_leaves_its_root(journal: Journal) -> None:
    journal.restart_at(40, 4)
    assert (len(journal), journal[0].log_index, journal[-1].term) == (1, 40, 4)


def test_18_to_empty_the_log_is_fatal(log: MemoryRaftLog, journal: Journal) -> None:
    for empty in (journal.clear, lambda: journal.deleteEntriesFrom(0), lambda: journal.deleteEntriesTo(10)):
        with pytest.raises(Fatal):
            empty()
    assert len(journal) == 10
    assert len(log.crash().load().entries) == 10
