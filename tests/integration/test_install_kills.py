"""`kill -9` at every step of receiving and installing a snapshot leaves the old state or the new one, and a node that
starts again and then takes the snapshot."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from tests.integration import install_child
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

pytestmark = pytest.mark.cluster

OLD_INDEX = 1
NEW_INDEX = 120
STEPS_MIN = 15
SAMPLE = 3
"""Every third step is killed at in the default run, all of them in the slow one."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integration.install_child"])


def make_snapshot(directory: Path) -> tuple[Path, snapshot.SnapshotMeta, int]:
    """A snapshot of some jobs, its meta and the state's digest."""
    store = LmdbStore(directory / "source")
    applier = Applier(store, cluster="test", clock=SystemClock(), commit_interval_ms=1000, commit_commands=1000)
    for index in range(2, NEW_INDEX + 1):
        command = (
            OpenEpoch("n1", 0) if index == 2 else SubmitJob(make_spec(f"j{index}", payload=bytes(2000)), None, 0, b"")
        )
        header = Header(ENTRY_VERSION, int(index > 2), 1_000_000, 0)
        applier.apply(index, codec.join_entry(header, [codec.pack_command(command)]))
    meta = snapshot.SnapshotMeta("test", NEW_INDEX, install_child.TERM, install_child.TERM, 1)
    digest = applier.meta().digest
    applier.commit()
    path = directory / "made.snapshot"
    snapshot.write(store, path, meta)
    applier.close()
    return path, meta, digest


def run_child(directory: Path, made: tuple[Path, snapshot.SnapshotMeta, int], kill_at: int) -> int | None:
    """The exit code: None or negative for a signal."""
    process = CONTEXT.Process(target=install_child.receive, args=(directory, made[0], made[1], kill_at))
    process.start()
    process.join(60)
    return process.exitcode


async def found(directory: Path) -> tuple[int, int]:
    """What a restart finds, having checked that state and log fit: applied index and digest."""
    store = LmdbStore(directory / "state")
    applier = Applier(store, cluster="test", clock=SystemClock(), commit_interval_ms=1000, commit_commands=1000)
    log = LmdbRaftLog(directory / "log", asyncio.get_running_loop().call_soon_threadsafe)
    try:
        assert check_invariants(store.txn) == []
        journal, _ = boot.open_journal(log, applier, InstallNote(directory / "snapshots"))
        assert journal.first_index <= applier.applied_index <= journal.last_index
        return applier.applied_index, applier.meta().digest
    finally:
        log.close()
        applier.close()


async def kill_at_each(tmp_path: Path, every: int) -> None:
    made = make_snapshot(tmp_path)
    whole = tmp_path / "whole"
    assert run_child(whole, made, 0) == 0
    assert await found(whole) == (NEW_INDEX, made[2])
    steps = int((whole / "steps").read_text())
    assert steps >= STEPS_MIN, "too little was done to kill it in"
    seen = set()
    for kill_at in range(1, steps + 1, every):
        directory = tmp_path / f"killed-{kill_at}"
        assert run_child(directory, made, kill_at) == -signal.SIGKILL, kill_at
        index, digest = await found(directory)
        assert (index, digest) in ((OLD_INDEX, 0), (NEW_INDEX, made[2])), kill_at
        seen.add(index)
        if index == OLD_INDEX:
            assert run_child(directory, made, 0) == 0, "it takes the snapshot after all"
            assert await found(directory) == (NEW_INDEX, made[2])
        shutil.rmtree(directory)
    assert seen == {OLD_INDEX, NEW_INDEX}


async def test_killed_at_some_steps(tmp_path: Path) -> None:
    await kill_at_each(tmp_path, SAMPLE)


@pytest.mark.slow
async def test_killed_at_every_step(tmp_path: Path) -> None:
    await kill_at_each(tmp_path, 1)
