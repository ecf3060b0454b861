"""Killed while writing: what was called durable is there, and what is there is a whole number of groups or commits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from horae_storage.lmdb_kv import LmdbStore
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog

CHILD = Path(__file__).with_name("crash_child.py")


def kill_after(lines: int, kind: str, directory: Path) -> int:
    """Run the child until it has said so many lines, kill it in mid-write; the last number it said."""
    with subprocess.Popen([sys.executable, str(CHILD), kind, str(directory)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        said = [int(child.stdout.readline()) for _ in range(lines)]
        child.kill()
        said += [int(line) for line in child.stdout.read().split(b"\n")[:-1]]
    return said[-1]


@pytest.mark.parametrize("kind", ["log", "small-log"])
@pytest.mark.parametrize("lines", [1, 40, 200])
def test_log(tmp_path: Path, lines: int, kind: str) -> None:
    """The small one is killed between, and in the middle of, the folds of its tail."""
    said = kill_after(lines, kind, tmp_path)
    log = LmdbRaftLog(tmp_path, post=lambda *_: None)
    state = log.load()
    log.close()
    last = state.entries[-1].log_index
    assert last >= said
    assert last % 3 == 0
    assert (state.term, state.voted_for) == (last, "me")
    assert state.entries == [LogEntry(b"%d" % i, i, 1) for i in range(1, last + 1)]


@pytest.mark.parametrize("lines", [1, 40, 1200])
def test_store(tmp_path: Path, lines: int) -> None:
    said = kill_after(lines, "store", tmp_path)
    store = LmdbStore(tmp_path)
    rows = dict(store.txn.scan(b"a", b"{", limit=2000))
    store.close()
    (last,) = rows.pop(b"a")
    assert last >= said
    assert rows.pop(b"z") == (last,)
    written = range(max(1, last - 999), last + 1)
    assert rows == {b"k%03d" % (number % 1000): (number, "x" * 500) for number in written}
