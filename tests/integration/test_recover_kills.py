"""`kill -9` at every step of a recovery leaves the node that it was, or the survivor, or what no node starts on: never
one that leads alone and is still taken for a member by its old peers."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from tests.golden.make_data import CLUSTER, NODE
from tests.golden.test_data import DATA
from tests.integration import restore_child

from horae_node.clock import SystemClock
from horae_node.core import views
from horae_node.restore import recover
from horae_node.voters import read_voters
from horae_storage.directory import open_directory
from horae_storage.errors import DirectoryUnusable
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.vacancy import RECOVERING_NAME

pytestmark = pytest.mark.cluster

STEPS_MIN = 15
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integration.restore_child"])


def run_child(directory: Path, kill_at: int) -> int | None:
    steps_file = directory.with_name("steps")
    words = (CLUSTER, NODE, directory, kill_at, steps_file)
    process = CONTEXT.Process(target=restore_child.run_recovery, args=words)
    process.start()
    process.join(60)
    return process.exitcode


def place(tmp_path: Path, name: str) -> Path:
    """A node's that was in a cluster with another, and has some of the log to apply yet."""
    directory = tmp_path / name / "data"
    directory.parent.mkdir()
    shutil.copytree(DATA / "v1", directory)
    return directory


def look(directory: Path) -> tuple[bool, bool]:
    """Whether it is of another life than before, and whether its members were forgotten; as a node's start opens it."""
    opened = open_directory(directory, CLUSTER, NODE)
    anew = opened.origin is not None
    opened.close()
    store = LmdbStore(directory / "state", create=False)
    try:
        return anew, views.read_members(store.txn) == {}
    finally:
        store.close()


def test_killed_at_every_step(tmp_path: Path) -> None:
    whole = place(tmp_path, "whole")
    assert look(whole) == (False, True), "the state of this build's sample ends before its log changes members"
    assert run_child(whole, 0) == 0
    assert look(whole) == (True, True)
    assert read_voters(whole) == [NODE]
    steps = int(whole.with_name("steps").read_text())
    assert steps >= STEPS_MIN, "too little was done to kill it in"
    seen = []
    for kill_at in range(1, steps + 1):
        directory = place(tmp_path, f"killed-{kill_at}")
        assert run_child(directory, kill_at) == -signal.SIGKILL, kill_at
        if (directory / RECOVERING_NAME).exists():
            seen.append("broken off")
            with pytest.raises(DirectoryUnusable, match="was broken off: run `horae node recover` again"):
                open_directory(directory, CLUSTER, NODE)
        else:
            seen.append("survivor" if look(directory)[0] else "as it was")
        recover(restore_child.config_alone(CLUSTER, NODE, directory), SystemClock())
        assert look(directory) == (True, True), kill_at
        assert read_voters(directory) == [NODE]
        shutil.rmtree(directory.parent)
    order = ["as it was", "broken off", "survivor"]
    assert sorted(seen, key=order.index) == seen
    assert {"as it was", "broken off"} <= set(seen)
