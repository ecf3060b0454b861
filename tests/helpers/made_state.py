"""A snapshot file of some jobs, made without a node, and what a start finds in a directory that took it.

Not here: how it got there.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from tests.unit.core.world import make_spec

from horae_node import codec
from horae_node.applier import Applier
from horae_node.clock import SystemClock
from horae_node.core.commands import ENTRY_VERSION, Header, OpenEpoch, SubmitJob
from horae_node.core.invariants import check_invariants
from horae_node.raft import boot
from horae_node.raft.snapshots import InstallNote
from horae_storage import snapshot
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.raft_log import LmdbRaftLog


class Made(NamedTuple):
    path: Path
    meta: snapshot.SnapshotMeta
    digest: int
    """Of the state in it."""


def make_snapshot(directory: Path, *, last_index: int, term: int) -> Made:
    """A file in `directory`, of one job an entry."""
    store = LmdbStore(directory / "source")
    applier = _applier(store)
    payload = b'"%s"' % (b"x" * 2000)
    for index in range(2, last_index + 1):
        spec = make_spec(f"j{index}", payload=payload)
        command = OpenEpoch("n1", 0) if index == 2 else SubmitJob(spec, None, 0, b"")
        header = Header(ENTRY_VERSION, int(index > 2), 1_000_000, 0)
        applier.apply(index, codec.join_entry(header, [codec.pack_command(command)]))
    meta = snapshot.SnapshotMeta("test", last_index, term, term, 1)
    digest = applier.meta().digest
    applier.commit()
    path = directory / "made.snapshot"
    snapshot.write(store, path, meta)
    applier.close()
    return Made(path, meta, digest)


async def find(directory: Path) -> tuple[int, int]:
    """What a start finds, having checked that state and log fit: applied index and digest."""
    store = LmdbStore(directory / "state")
    applier = _applier(store)
    log = LmdbRaftLog(directory / "log", asyncio.get_running_loop().call_soon_threadsafe)
    try:
        assert check_invariants(store.txn) == []
        journal, _ = boot.open_journal(log, applier, InstallNote(directory / "snapshots"))
        assert journal.first_index <= applier.applied_index <= journal.last_index
        return applier.applied_index, applier.meta().digest
    finally:
        log.close()
        applier.close()


def _applier(store: LmdbStore) -> Applier:
    return Applier(store, cluster="test", clock=SystemClock(), commit_interval_ms=1000, commit_commands=1000)
