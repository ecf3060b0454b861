"""`kill -9` at every step of receiving and installing a snapshot leaves the old state or the new one, and a node that
starts again and then takes the snapshot."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

import pytest
from tests.helpers.made_state import Made, find, make_snapshot
from tests.integration import install_child

pytestmark = pytest.mark.cluster

OLD_INDEX = 1
NEW_INDEX = 120
STEPS_MIN = 15
SAMPLE = 3
"""Every third step is killed at in the default run, all of them in the slow one."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integration.install_child"])


def run_child(directory: Path, made: Made, kill_at: int) -> int | None:
    """The exit code: None or negative for a signal."""
    process = CONTEXT.Process(target=install_child.receive, args=(directory, made.path, made.meta, kill_at))
    process.start()
    process.join(60)
    return process.exitcode


async def kill_at_each(tmp_path: Path, every: int) -> None:
    made = make_snapshot(tmp_path, last_index=NEW_INDEX, term=install_child.TERM)
    whole = tmp_path / "whole"
    assert run_child(whole, made, 0) == 0
    assert await find(whole) == (NEW_INDEX, made.digest)
    steps = int((whole / "steps").read_text())
    assert steps >= STEPS_MIN, "too little was done to kill it in"
    seen = set()
    for kill_at in range(1, steps + 1, every):
        directory = tmp_path / f"killed-{kill_at}"
        assert run_child(directory, made, kill_at) == -signal.SIGKILL, kill_at
        index, digest = await find(directory)
        assert (index, digest) in ((OLD_INDEX, 0), (NEW_INDEX, made.digest)), kill_at
        seen.add(index)
        if index == OLD_INDEX:
            assert run_child(directory, made, 0) == 0, "it takes the snapshot after all"
            assert await find(directory) == (NEW_INDEX, made.digest)
        shutil.rmtree(directory)
    assert seen == {OLD_INDEX, NEW_INDEX}


async def test_killed_at_some_steps(tmp_path: Path) -> None:
    await kill_at_each(tmp_path, SAMPLE)


@pytest.mark.slow
async def test_killed_at_every_step(tmp_path: Path) -> None:
    await kill_at_each(tmp_path, 1)
