"""A follower in a process of its own that receives and installs one snapshot, and is killed at a given step of it.

The follower is the real one, adapter, log, state and applier, on real files; its leader is played here, over a
transport that hands messages over, and whose connection breaks once amid the transfer. A step is each piece, and each
opening, renaming, removing and cutting of a file below the directory: at step `kill_at` the process kills itself. Not
here: what must be found afterwards (`test_install_kills.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from horae_node.applier import Applier
from horae_node.clock import SystemClock
from horae_node.raft import snapshots
from horae_node.raft.port import Member, Roster, SnapshotInfo
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.raft.snapshots import Shelf
from horae_storage import snapshot
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.raft_log import LmdbRaftLog

EVENTS = frozenset({"open", "os.rename", "os.remove", "os.truncate"})
MEMBERS = tuple(Member(name, f"127.0.0.1:{port}", "") for port, name in enumerate(("n1", "n2", "n3"), 1))
TERM = 7
PIECE_BYTES = 16 * 1024
"""Several pieces of a small state."""


class Leader:
    """The transport of the follower, and at its other end the leader."""

    def __init__(self, source: Path, meta: snapshot.SnapshotMeta, step: Callable[[], None]) -> None:
        self._meta = meta
        self._source = source
        self._step = step
        self._shelf = Shelf()
        self._seq = 0
        self.installed = asyncio.Event()

    async def start(self, handler: Any) -> None:
        self._handler = handler
        meta = self._meta
        data = self._source.read_bytes()
        checksum = sha256(data).digest()
        info = SnapshotInfo(self._source, meta.last_index, meta.last_term, meta.previous_term, len(data), checksum)
        self._shelf.put(info)
        self._shelf.remove = lambda path: None
        handler.on_connection("n1", True)
        asyncio.get_running_loop().call_soon(self._send_until_break, len(data) * 2 // 3)

    def _send_until_break(self, offset: int) -> None:
        while self._send_one()["offset"] < offset:
            pass
        self._handler.on_connection("n1", False)
        self._handler.on_connection("n1", True)
        self._shelf.break_off("n1", 0.0)
        self._send_one()  # its answer says how much there is

    def _send_rest(self) -> None:
        while not self._send_one()["last"]:
            pass

    def _send_one(self) -> dict[str, Any]:
        piece = self._shelf.next_piece("n1")
        assert piece is not None
        self._step()
        self._seq += 1
        message = {"type": "append_entries", "term": TERM, "seq": self._seq, "commit_index": 0, "serialized": piece}
        self._handler.on_messages("n1", [message])
        return piece

    def send(self, node_id: str, message: dict[str, Any]) -> None:
        if message.get("success") and message["next_node_idx"] == self._meta.last_index + 1:
            self.installed.set()
        if self._shelf.skip("n1", message.get("have")) is not None:
            asyncio.get_running_loop().call_soon(self._send_rest)

    def set_peers(self, addresses: Mapping[str, str], removed: frozenset[str], book: Roster) -> None: ...

    def flush(self, peers_max: int | None = None) -> bool:
        return False

    def disconnect(self, node_id: str, reason: str) -> None:
        raise AssertionError(reason)

    def silence(self) -> None: ...

    async def stop(self) -> None: ...


def receive(directory: Path, source: Path, meta: snapshot.SnapshotMeta, kill_at: int) -> None:
    """Run the follower in `directory` until it has the snapshot; how many steps it took goes to `directory/steps`."""
    snapshots.PIECE_BYTES = PIECE_BYTES  # type: ignore[misc]
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in EVENTS and any(isinstance(arg, (str, os.PathLike)) and within(os.fspath(arg)) for arg in args):
            step()

    def within(path: str) -> bool:
        return path.startswith(str(directory))

    sys.addaudithook(hook)
    asyncio.run(_receive(directory, Leader(source, meta, step)))
    directory.joinpath("steps").write_text(str(steps))


async def _receive(directory: Path, leader: Leader) -> None:
    store = LmdbStore(directory / "state")
    clock = SystemClock()
    applier = Applier(store, cluster="test", clock=clock, commit_interval_ms=1000, commit_commands=1000)
    raft = PySyncObjRaft(
        own_id="n2",
        book=Roster(0, MEMBERS),
        cluster="test",
        log=LmdbRaftLog(directory / "log", asyncio.get_running_loop().call_soon_threadsafe),
        machine=applier,
        snapshot_dir=directory / "snapshots",
        transport=leader,
        clock=clock,
    )
    failures: list[BaseException] = []
    raft.on_fatal(failures.append)
    await raft.start()
    async with asyncio.timeout(30):
        await leader.installed.wait()
        note = directory / "snapshots" / "installing"
        while note.exists():  # noqa: ASYNC110 (a test)
            await asyncio.sleep(0.01)
    with contextlib.suppress(asyncio.CancelledError):
        await raft.stop()
    applier.close()
    assert not failures, failures
