"""What a restart makes of the two disks: the log and the state's applied index must fit, or the node does not start.

The library's own start would clear the journal when a dump is newer (a real `kill -9` lost 100 of 150 entries); here
nothing is dropped but what an installed snapshot has replaced. Next to read: `snapshots.py` (`InstallNote`).
"""

from __future__ import annotations

from horae_node.errors import ConfigError
from horae_node.raft.port import StateMachine
from horae_node.raft.pysyncobj_journal import ENTRY_NOOP, ROOT_INDEX, Journal
from horae_node.raft.snapshots import InstallNote
from horae_storage.errors import REJOIN
from horae_storage.log_port import LogState, RaftLog


def open_journal(log: RaftLog, machine: StateMachine, note: InstallNote | None = None) -> tuple[Journal, LogState]:
    """Load the log, finish an interrupted install, and check that state and log fit.

    Raises: `ConfigError` when they do not (a log or a state of another time was put in place); `Corrupt`.
    """
    state = log.load()
    journal = Journal(log, state)
    applied = machine.applied_index
    installing = note.read() if note is not None else None
    if installing is not None and installing[0] <= applied:
        _finish_install(journal, state, *installing)
    elif not state.entries and applied == ROOT_INDEX:
        journal.add(ENTRY_NOOP, ROOT_INDEX, 0)  # a new node: the library's first entry, the same on all
    if note is not None and (installing is None or installing[0] > applied):
        note.remove()  # nothing was replaced yet: the leader sends again
    if not len(journal) or not journal.first_index <= applied <= journal.last_index:
        raise ConfigError(_misfit(journal, applied))
    journal.seal()
    return journal, state


def _finish_install(journal: Journal, state: LogState, index: int, term: int) -> None:
    """The state holds the snapshot; the log may still be the old one, which ends before it or contradicts it."""
    ends_before = not state.entries or journal.last_index < index
    if ends_before or (journal.first_index <= index and journal.term_at(index) != term):
        journal.restart_at(index, term)


def _misfit(journal: Journal, applied: int) -> str:
    kept = f"{journal.first_index} to {journal.last_index}" if len(journal) else "no entries"
    return (
        f"the state is at index {applied}, the log holds {kept}: they are not of one time. Put back the one that was "
        f"exchanged, or {REJOIN}"
    )
