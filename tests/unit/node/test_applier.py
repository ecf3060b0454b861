"""What the applier refuses: versions that it does not know, and to keep half an entry."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.core.world import make_spec

from horae_node import codec
from horae_node.applier import FULL_RETRY_MS, Applier
from horae_node.clock import ManualClock
from horae_node.core import views
from horae_node.core.commands import ENTRY_VERSION, Command, Header, OpenEpoch, RaiseMachineVersion, SubmitJob
from horae_node.core.model import KNOWN_VERSIONS, Versions
from horae_node.errors import ConfigError, Outdated
from horae_node.restore import restore
from horae_storage import snapshot
from horae_storage.errors import StorageFull
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.memory import MemoryStore

NEWER = Versions(1, KNOWN_VERSIONS.newest + 1)


def open_applier(store: MemoryStore, known: Versions = KNOWN_VERSIONS) -> Applier:
    return Applier(store, cluster="c", clock=ManualClock(), commit_interval_ms=0, commit_commands=10**6, known=known)


def apply(applier: Applier, *commands: Command, epoch: int = 1) -> None:
    blobs = [codec.pack_command(command) for command in commands]
    applier.apply(applier.applied_index + 1, codec.join_entry(Header(ENTRY_VERSION, epoch, 5, 5), blobs))


def raised(store: MemoryStore) -> Applier:
    """A state that was raised by a build that knows a newer version, all of it on the disk."""
    applier = open_applier(store, NEWER)
    apply(applier, OpenEpoch("n1", 0), epoch=0)
    apply(applier, RaiseMachineVersion(NEWER.newest))
    applier.commit()
    return applier


def test_a_state_of_another_version_is_not_opened() -> None:
    store = MemoryStore()
    raised(store)
    with pytest.raises(
        Outdated,
        match=f"the state is of machine version {NEWER.newest}, this build knows {KNOWN_VERSIONS}: upgrade this node",
    ):
        open_applier(store)
    assert open_applier(store, NEWER).meta().machine_version == NEWER.newest
    with pytest.raises(Outdated, match="this build knows 8 to 9"):
        open_applier(store, Versions(8, 9))


def test_a_raise_that_is_not_known_ends_it_and_nothing_of_the_entry_is_kept() -> None:
    store = MemoryStore()
    applier = open_applier(store)
    apply(applier, OpenEpoch("n1", 0), epoch=0)
    applier.commit()
    apply(applier, SubmitJob(make_spec("before"), None, 0, b""))  # applied, and not on the disk yet
    job = SubmitJob(make_spec("a"), None, 0, b"")
    with pytest.raises(
        Outdated,
        match=f"the cluster's state is of machine version {NEWER.newest}, this build knows {KNOWN_VERSIONS}: upgrade",
    ):
        apply(applier, job, RaiseMachineVersion(NEWER.newest))
    assert views.job_seq(store.txn, "a") is not None, "the half that was written"
    applier.maybe_commit()
    with pytest.raises(AssertionError):
        applier.commit()
    store.abort()
    restarted = open_applier(store)
    assert restarted.applied_index == 2
    assert views.job_seq(restarted.view, "a") is None


async def test_a_snapshot_of_another_version_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "a.snapshot"
    info = await raised(MemoryStore()).take_snapshot(path, lambda index: 1)
    with pytest.raises(Outdated, match=f"the snapshot is of machine version {NEWER.newest}"):
        await open_applier(MemoryStore()).check_snapshot(info)


async def test_a_snapshot_of_a_known_version_brings_it_along(tmp_path: Path) -> None:
    info = await raised(MemoryStore()).take_snapshot(tmp_path / "a.snapshot", lambda index: 1)
    assert snapshot.verify(info.path).machine_version == NEWER.newest
    newcomer = open_applier(MemoryStore(), NEWER)
    await newcomer.check_snapshot(info)
    newcomer.install_snapshot(info)
    assert newcomer.meta().machine_version == NEWER.newest


async def test_a_backup_of_another_version_is_not_restored(tmp_path: Path) -> None:
    info = await raised(MemoryStore()).take_snapshot(tmp_path / "a.backup", lambda index: 1)
    with pytest.raises(
        ConfigError, match=f"of machine version {NEWER.newest}, this build knows {KNOWN_VERSIONS}: restore it with"
    ):
        restore(info.path, tmp_path / "data", cluster="d", node_id="n1", clock=ManualClock())
    assert not (tmp_path / "data").exists()


def test_a_full_disk_stops_the_log_before_the_open_transaction_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is due waits for room and no more; one that is as large as it may be is told, once."""
    clock, told = ManualClock(), list[StorageFull | None]()
    store = LmdbStore(tmp_path, reserve_bytes=1 << 16)
    applier = Applier(store, cluster="c", clock=clock, commit_interval_ms=60_000, commit_commands=3)
    applier.on_full(told.append)
    apply(applier, OpenEpoch("n1", 0), epoch=0)

    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as system:
        system.setattr(os, "posix_fallocate", no_room)
        apply(applier, SubmitJob(make_spec("a"), None, 0, b"x" * 500_000))
        clock.advance(60_000)
        applier.maybe_commit()
        assert (applier.full, told) == (True, [])
        for name in "bcd":
            apply(applier, SubmitJob(make_spec(name), None, 0, b""))
        assert [type(reason) for reason in told] == [StorageFull]
        assert applier.durable_index < applier.applied_index
    applier.maybe_commit()
    assert applier.full, "not before its time"
    clock.advance(FULL_RETRY_MS)
    applier.maybe_commit()
    assert (applier.full, told[1:]) == (False, [None])
    assert applier.durable_index == applier.applied_index
    applier.close()
