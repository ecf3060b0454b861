"""One restore in a process of its own that is killed at a given step of it.

A step is each opening, making, renaming, giving away and removing of a file or folder at or below the directory, just
before it happens. Not here: what must be found afterwards (`test_restore.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from horae_node.clock import SystemClock
from horae_node.restore import restore

EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chown"})
CLUSTER = "second"
NODE = "n1"


def run(backup: Path, directory: Path, kill_at: int, steps_file: Path) -> None:
    """Restore; how many steps it took goes to `steps_file`."""
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
    restore(backup, directory, cluster=CLUSTER, node_id=NODE, clock=SystemClock())
    steps_file.write_text(str(steps))
