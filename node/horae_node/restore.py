"""The two ways back that need no running node: a new cluster from a backup, and a cluster of one from a survivor.

Both work on a data directory that no node has open. `restore` fills one: the state is the backup's, and the log begins
at the very entry that the state ends with, so that every job, token and trigger is what it was, and nothing is done
twice. `recover` changes one: its node is the only voter from then on. Both forget who the members were: those of the
configuration count again. Not here: the words for the operator
(`horae_http/offline.py`), how a backup is taken (`backup.py`). Next to read: `raft/boot.py`, which checks what is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from horae_node.applier import Applier
from horae_node.clock import Clock
from horae_node.config import KEYS, NodeConfig
from horae_node.core import machine
from horae_node.core.model import KNOWN_VERSIONS
from horae_node.errors import ConfigError, Outdated
from horae_node.raft import boot
from horae_node.raft.pysyncobj_journal import ENTRY_NOOP, ENTRY_REGULAR, Journal
from horae_node.raft.snapshots import InstallNote
from horae_node.voters import read_voters, write_voters
from horae_storage import peer_book, snapshot
from horae_storage.directory import Directory, Origin, open_directory, restoring
from horae_storage.errors import Corrupt, UnknownFormat
from horae_storage.lmdb_kv import FIRST_STATE, LmdbStore
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog

COMMANDS_PER_COMMIT = 5_000
"""As a node's own default: bounds what is in one transaction."""


def restore(backup: Path, data_dir: Path, *, cluster: str, node_id: str, clock: Clock) -> snapshot.SnapshotMeta:
    """Make an empty or missing directory that of a node of the new cluster `cluster`; what the backup is a copy of.

    It is a node's when it is complete and synced, and nobody's before; what was begun before a crash is begun anew.
    Raises: `ConfigError` for a backup that is damaged, an impossible name or the old cluster's, or a state that this
    build does not know; `DirectoryUnusable` for a directory that holds something; `StorageError`.
    """
    _require_name("node_id", node_id)
    _require_name("cluster", cluster)
    meta = _verify(backup)
    if not KNOWN_VERSIONS.have(meta.machine_version):
        raise ConfigError(
            f"{backup} is of machine version {meta.machine_version}, this build knows {KNOWN_VERSIONS}: "
            "restore it with the version that wrote it, or a newer one"
        )
    if cluster == meta.cluster:
        raise ConfigError(
            f"{backup} is of a cluster named {meta.cluster!r}: give the new one another name, or nodes and workers of "
            "the two could meet"
        )
    try:
        with restoring(data_dir, cluster, node_id) as directory:
            _fill(directory, backup, meta, clock)
    except (Corrupt, ConfigError) as error:
        raise ConfigError(
            f"what was made of {backup} in {data_dir} cannot be read back, and was removed: the disk fails, or the "
            "backup holds damage under a right checksum; try another disk, or an older backup"
        ) from error
    return meta


def _verify(backup: Path) -> snapshot.SnapshotMeta:
    try:
        return snapshot.verify(backup)
    except UnknownFormat:
        raise
    except Corrupt as error:
        raise ConfigError(
            f"{backup} is damaged, cut short or no backup at all: take another one, or an older one"
        ) from error


def _require_name(key: str, name: str) -> None:
    try:
        next(known for known in KEYS if known.name == key).parse(name)
    except ValueError as error:
        raise ConfigError(f"{key} {error}") from error


def _fill(directory: Directory, backup: Path, meta: snapshot.SnapshotMeta, clock: Clock) -> None:
    directory.note_origin(Origin(snapshot.checksum_of(backup), meta.last_index))
    snapshot.unpack(backup, directory.state / FIRST_STATE)
    log = _open_log(directory.log, create=True)
    log.load()
    log.reset([LogEntry(ENTRY_NOOP, meta.last_index, meta.last_term)])
    log.set_vote(meta.last_term, None)
    log.set_commit(meta.last_index)
    log.seal()
    log.close()
    _look(directory, clock)
    _forget_members(directory)


class Survivor(NamedTuple):
    """What a data directory holds that is to become a cluster of one."""

    voters: list[str]
    """The members so far."""
    applied_index: int
    commit_index: int
    """Highest entry that this node knew to be committed."""
    last_index: int
    """Entries after `commit_index` may have been acknowledged or not: they take effect."""
    now_ms: int
    """Cluster time of the last entry that was applied."""


def survey(config: NodeConfig, clock: Clock) -> Survivor:
    """What `recover` would make a cluster of. Raises as it does."""
    directory = _open_survivor(config)
    try:
        return _survey(config, directory, clock)
    finally:
        directory.close()


def recover(config: NodeConfig, clock: Clock) -> Survivor:
    """Make this node, the only one in the configuration's members, the only voter of its data directory.

    What it was. Its peers of before, should they come back, refuse it. A second call does nothing more; one that was
    broken off is done again, and until then no node starts there.
    Raises: `ConfigError` when members name another node too or the directory never ran; storage's refusals.
    """
    directory = _open_survivor(config)
    try:
        survivor = _survey(config, directory, clock)
        directory.begin_recovery()
        _apply_tail(directory, clock)  # a change of members in it would come after they were forgotten
        _forget_members(directory)
        directory.begin_anew()
        (config.data_dir / peer_book.FILE_NAME).unlink(missing_ok=True)
        write_voters(config.data_dir, [config.node_id])
        directory.end_recovery()
        directory.give_to_owner()
    except OSError as error:
        raise ConfigError(f"{config.data_dir} cannot be written: {error.strerror}") from error
    except Outdated as error:
        raise ConfigError(str(error)) from error
    finally:
        directory.close()
    return survivor


def _open_survivor(config: NodeConfig) -> Directory:
    if len(config.members) != 1:
        raise ConfigError(
            f"members must name this node, {config.node_id}, alone: others would start empty and could outvote it"
        )
    if not config.data_dir.is_dir():
        raise ConfigError(f"{config.data_dir} does not exist: there is nothing to recover")
    directory = open_directory(config.data_dir, config.cluster, config.node_id, recovers=True)
    if not directory.initialised:
        directory.close()
        raise ConfigError(f"{config.data_dir} has never held a cluster: there is nothing to recover")
    return directory


def _survey(config: NodeConfig, directory: Directory, clock: Clock) -> Survivor:
    applied_index, commit_index, last_index, now_ms = _look(directory, clock)
    voters = read_voters(config.data_dir) or [config.node_id]
    return Survivor(voters, applied_index, max(commit_index, applied_index), last_index, now_ms)


def _look(directory: Directory, clock: Clock) -> tuple[int, int, int, int]:
    """Applied, committed, last index, and the cluster time. Raises: `ConfigError`, `Corrupt`."""
    with _opened(directory, clock) as (applier, journal, commit_index):
        return applier.applied_index, commit_index, journal.last_index, applier.meta().now_ms


def _apply_tail(directory: Directory, clock: Clock) -> None:
    """Apply all that the log holds, which a cluster of one takes for committed, and let the log begin at its end: what
    it says of members, nobody who joins may apply. Raises: `Outdated`, `StorageFull`.
    """
    with _opened(directory, clock) as (applier, journal, _):
        for data, index, _ in journal.entries(applier.applied_index + 1, journal.last_index):
            applier.apply(index, data[1:] if data[:1] == ENTRY_REGULAR else b"")
        applier.commit()
        journal.cut_below(applier.durable_index)
        journal.seal()


def _forget_members(directory: Directory) -> None:
    store = LmdbStore(directory.state, create=False)
    try:
        machine.forget_members(store.txn)
        store.commit()
    finally:
        store.close()


@contextmanager
def _opened(directory: Directory, clock: Clock) -> Iterator[tuple[Applier, Journal, int]]:
    """State and log, and the commit index, opened as a start would; an install that was interrupted is finished."""
    store = LmdbStore(directory.state, create=False)
    applier = Applier(store, cluster="", clock=clock, commit_interval_ms=1, commit_commands=COMMANDS_PER_COMMIT)
    try:
        log = _open_log(directory.log, create=False)
        try:
            journal, state = boot.open_journal(log, applier, InstallNote(directory.snapshots))
            yield applier, journal, state.commit_index
        finally:
            log.close()
    finally:
        applier.close()


def _open_log(path: Path, *, create: bool) -> LmdbRaftLog:
    def post(callback: Any, *values: Any) -> None:
        """Nobody waits for a single group: `close` sees to all of them."""

    return LmdbRaftLog(path, post, create=create)
