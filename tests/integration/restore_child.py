"""One restore, or one recovery, in a process of its own that is killed at a given step of it.

A step is each opening, making, renaming, giving away and removing of a file or folder at or below the directory, just
before it happens. Not here: what must be found afterwards (`test_restore.py`, `test_recover_kills.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horae_node.clock import SystemClock
from horae_node.config import NodeConfig, load_config
from horae_node.restore import recover, restore

EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chown"})
CLUSTER = "second"
NODE = "n1"


def run(backup: Path, directory: Path, kill_at: int, steps_file: Path) -> None:
    """Restore; how many steps it took goes to `steps_file`."""
    _killed_at(
        kill_at,
        directory,
        steps_file,
        lambda: restore(backup, directory, cluster=CLUSTER, node_id=NODE, clock=SystemClock()),
    )


def run_recovery(cluster: str, node_id: str, directory: Path, kill_at: int, steps_file: Path) -> None:
    """Recover, as the only member; how many steps it took goes to `steps_file`."""
    config = config_alone(cluster, node_id, directory)
    _killed_at(kill_at, directory, steps_file, lambda: recover(config, SystemClock()))


def config_alone(cluster: str, node_id: str, directory: Path) -> NodeConfig:
    flags = {
        "node_id": node_id,
        "cluster": cluster,
        "data_dir": str(directory),
        "members": f"{node_id}=127.0.0.1:7171@http://127.0.0.1:7170",
        "http_listen": "127.0.0.1:7170",
    }
    return load_config(None, flags=flags, environ={})


def _killed_at(kill_at: int, directory: Path, steps_file: Path, work: Callable[[], object]) -> None:
    steps = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal steps
        if event in EVENTS and any(isinstance(arg, (str, os.PathLike)) and within(os.fspath(arg)) for arg in args):
            steps += 1
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def within(path: str) -> bool:
        return path == str(directory) or path.startswith(f"{directory}/")

    sys.addaudithook(hook)
    work()
    steps_file.write_text(str(steps))
