"""Random calls, the process killed at any moment: a restart finds the log after some group, none acknowledged lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horae_storage.log_port import LogEntry, LogState
from horae_storage.raft_log import LmdbRaftLog

CHILD = Path(__file__).with_name("log_kill_child.py")
SIZES = (0, 1, 40, 300, 1500, 3000, 9000, 70_000, 1 << 20)


class Model:
    """The log as a list, and the calls that lead on from it."""

    def __init__(self, state: LogState) -> None:
        self.entries = list(state.entries)
        self.vote = (state.term, state.voted_for)

    def group(self, dice: random.Random, size_max: int) -> list[list[Any]]:
        return [call for _ in range(dice.randint(1, 5)) for call in self._call(dice, size_max)]

    def _call(self, dice: random.Random, size_max: int) -> list[list[Any]]:
        match dice.choices(("append", "from", "before", "reset", "vote"), (60, 15, 12, 3, 10))[0]:
            case "append":
                first = self.entries[-1].log_index + 1 if self.entries else dice.randint(1, 50)
                added = _made(dice, first, dice.randint(1, 6), size_max)
                self.entries += _entries(added)
                return [["append", added]]
            case "from" if self.entries:
                cut = dice.randint(self.entries[0].log_index, self.entries[-1].log_index + 1)
                self.entries = [entry for entry in self.entries if entry.log_index < cut]
                return [["truncate_from", cut]]
            case "before" if self.entries:
                cut = dice.randint(self.entries[0].log_index, self.entries[-1].log_index + 1)
                self.entries = [entry for entry in self.entries if entry.log_index >= cut]
                return [["truncate_before", cut]]
            case "reset":
                added = _made(dice, dice.randint(1, 50), dice.randint(0, 3), size_max)
                self.entries = _entries(added)
                return [["reset", added]]
            case _:
                self.vote = (dice.randint(1, 99), dice.choice((None, "a", "b")))
                return [["set_vote", *self.vote]]

    def state(self) -> tuple[tuple[int, str | None], list[LogEntry]]:
        return self.vote, list(self.entries)


def _made(dice: random.Random, first: int, count: int, size_max: int) -> list[list[int]]:
    sizes = [size for size in SIZES if size <= size_max]
    return [[first + n, dice.randint(1, 99), dice.choice(sizes)] for n in range(count)]


def _entries(made: list[list[int]]) -> list[LogEntry]:
    return [LogEntry(b"%d@%d" % (index, term) + b"." * size, index, term) for index, term, size in made]


def load(directory: Path) -> LogState:
    log = LmdbRaftLog(directory, lambda *_: None)
    try:
        return log.load()
    finally:
        log.close()


@pytest.mark.parametrize("kind", ["kernel", "thread"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("region_bytes", "size_max"), [(2048, 3000), (16384, 9000), (4 << 20, 1 << 20)])
def test_what_was_acknowledged_is_found(tmp_path: Path, kind: str, loop: str, region_bytes: int, size_max: int) -> None:
    dice = random.Random(int(os.environ.get("SEED", "1")) * 1000 + region_bytes)
    state = LogState(0, None, 0, [])
    for life in range(int(os.environ.get("LIVES", "4"))):
        model = Model(state)
        states = [model.state()]
        groups = []
        for _ in range(dice.randint(1, 300)):
            groups.append(model.group(dice, size_max))
            states.append(model.state())
        command = [sys.executable, str(CHILD), str(tmp_path), str(region_bytes), kind, loop]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            assert child.stdout.readline() == b"0\n"
            wanted = dice.randint(0, len(groups))
            os.set_blocking(child.stdout.fileno(), False)
            pending = b""
            for group in groups:
                child.stdin.write(json.dumps(group).encode() + b"\n")
                child.stdin.flush()
                pending += child.stdout.read() or b""
                if pending.count(b"\n") and int(pending.split(b"\n")[-2]) >= wanted:
                    break
            child.send_signal(signal.SIGKILL)
            os.set_blocking(child.stdout.fileno(), True)
            pending += child.stdout.read()
            lines = pending.split(b"\n")[:-1]
            assert not [line for line in lines if b"failed" in line], lines
            said = int(lines[-1]) if lines else 0
        state = load(tmp_path)
        found = (state.term, state.voted_for), state.entries
        candidates = [place for place, was in enumerate(states) if was == found]
        assert candidates, f"{life=}: a state that never was"
        # A group without a change has no number, so that its place is at least its number.
        assert candidates[-1] >= said, f"{life=}: {said} was acknowledged, found {candidates}"
