"""The state machine as consensus sees it: committed entries go into the pure machine, and its state onto the disk.

Owns the store. One write transaction is open all the time; it is committed and synced when enough commands or enough
time have gone by: a crash loses only what the log replays. Runs on the loop; `take_snapshot` copies in a thread.
Not here: who proposed an entry, and why. Next to read: `core/machine.py`, `raft/port.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from horae_node import codec, logs
from horae_node.clock import Clock
from horae_node.core import machine, views
from horae_node.core.commands import ENTRY_VERSION, Header
from horae_node.core.model import KNOWN_VERSIONS, Meta, Standing, UnknownVersion, Versions
from horae_node.core.results import EntryOutcome
from horae_node.errors import Fatal, Outdated
from horae_node.raft.port import Member, Roster, SnapshotInfo
from horae_storage import snapshot
from horae_storage.errors import Corrupt, StorageFull
from horae_storage.kv import TXN_BYTES_MAX, Frozen, Store, View

log = logs.get_log("state")

FULL_RETRY_MS = 1000
"""How soon a state without room looks for some again, where the interval of its commits is longer."""

_NO_HEADER = Header(ENTRY_VERSION, 0, 0, 0)


class Applier:
    """A `raft.port.StateMachine` over a store."""

    def __init__(
        self,
        store: Store,
        *,
        cluster: str,
        clock: Clock,
        commit_interval_ms: int,
        commit_commands: int,
        known: Versions = KNOWN_VERSIONS,
        own: codec.OwnEntries | None = None,
    ) -> None:
        """`known`: the machine versions that it may meet; `own`: what the proposer of this node has under way.

        Raises: `Outdated` for a state of another machine version.
        """
        self._own = own or codec.OwnEntries()
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._commit_interval_ms = commit_interval_ms
        self._commit_commands = commit_commands
        meta = self.meta()
        self._known = known
        self._require_known("the state", meta.machine_version)
        self._applied_index = meta.applied_index
        self._durable_index = self._applied_index
        self._roster = _read_roster(store.txn)
        self._commands_open = 0
        self._in_entry = False
        """An entry is applied, or its apply raised and left half of it in the open transaction."""
        self._full = False
        self._held = False
        self._on_full: Callable[[StorageFull | None], None] | None = None
        self._copies: dict[asyncio.Future[tuple[int, bytes]], Frozen] = {}
        self._last_stamp = (self.meta().now_ms, clock.monotonic_ms())
        self._committed_at_ms = clock.monotonic_ms()
        self._on_entry: Callable[[int, EntryOutcome], None] | None = None
        self._on_install: Callable[[], None] | None = None

    @property
    def applied_index(self) -> int:
        return self._applied_index

    @property
    def durable_index(self) -> int:
        return self._durable_index

    @property
    def known_versions(self) -> Versions:
        return self._known

    @property
    def roster(self) -> Roster | None:
        return self._roster

    @property
    def last_stamp(self) -> tuple[int, int]:
        """The cluster time that the last entry carried, and the monotonic moment at which it was applied here, ms."""
        return self._last_stamp

    @property
    def view(self) -> View:
        """The state as applied. Ask again after each await: a commit or an installed snapshot replaces it."""
        return self._store.txn

    def meta(self) -> Meta:
        return views.meta(self._store.txn)

    def size_bytes(self) -> int:
        """Bytes that the state takes on disk."""
        return self._store.size_bytes()

    def on_entry(self, callback: Callable[[int, EntryOutcome], None]) -> None:
        """Call `callback(index, outcome)` after each entry that was applied. One callback."""
        self._on_entry = callback

    def on_install(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after a snapshot replaced the state. One callback."""
        self._on_install = callback

    def on_full(self, callback: Callable[[StorageFull | None], None]) -> None:
        """Call `callback(why)` when the open transaction is as large as it may be, and there is no room to commit it:
        nothing more should be given to `apply`. `callback(None)` when it is committed. One callback."""
        self._on_full = callback

    def apply(self, index: int, entry: bytes) -> EntryOutcome:
        """Apply one entry; the library's own empty ones only move the index on."""
        header, commands = self._own.split(entry) if entry else (_NO_HEADER, ())
        self._in_entry = True
        try:
            outcome = machine.apply(index, header, commands, self._store.txn, self._known)
        except UnknownVersion as unknown:
            self._require_known("the cluster's state", unknown.version)
            raise
        self._in_entry = False
        self._applied_index = index
        if outcome.members_changed:
            self._roster = _read_roster(self._store.txn)
        if commands:
            self._last_stamp = (header.now_ms, self._clock.monotonic_ms())
        self._commands_open += len(commands)
        if self._commands_open >= self._commit_commands or self._store.dirty_bytes >= TXN_BYTES_MAX // 2:
            self._commit_large()
        if self._on_entry is not None:
            self._on_entry(index, outcome)
        return outcome

    def maybe_commit(self) -> None:
        """Commit what has been open for the interval; called by the owner's timer."""
        interval_ms = min(self._commit_interval_ms, FULL_RETRY_MS) if self._full else self._commit_interval_ms
        due = self._clock.monotonic_ms() - self._committed_at_ms >= interval_ms
        if due and self._applied_index > self._durable_index:
            self._try_commit()

    def _commit_large(self) -> None:
        """The open transaction should not grow. On a full disk, that is known after the first try: the timer tries."""
        if not self._full:
            self._try_commit()
        if self._full and not self._held and self._on_full is not None:
            self._held = True
            self._on_full(StorageFull("the state has no room on the disk"))

    def _try_commit(self) -> None:
        """Commit, or keep the transaction open for a later try when the disk is full: the log still has all of it.

        Half an entry is never committed: who ended in the middle of one applies it anew, from its beginning.
        """
        if self._in_entry:
            return
        try:
            self.commit()
        except StorageFull as error:
            self._committed_at_ms = self._clock.monotonic_ms()
            if not self._full:
                log.warning("state_disk_full", reason=str(error))
            self._full = True

    @property
    def full(self) -> bool:
        """The last commit found no room; writes should be turned away until one succeeds."""
        return self._full

    def commit(self) -> None:
        """Make everything applied durable. Raises: `StorageFull` (all writes stay in the open transaction)."""
        assert not self._in_entry
        self._store.commit()
        self._durable_index = self._applied_index
        self._commands_open = 0
        self._committed_at_ms = self._clock.monotonic_ms()
        self._note_room()

    def _note_room(self) -> None:
        self._full = False
        if self._held and self._on_full is not None:
            self._held = False
            self._on_full(None)

    async def take_snapshot(self, path: Path, term_of: Callable[[int], int]) -> SnapshotInfo:
        self.commit()
        frozen = self._store.freeze()
        index = self._applied_index
        meta = snapshot.SnapshotMeta(
            cluster=self._cluster,
            last_index=index,
            last_term=term_of(index),
            previous_term=term_of(index - 1),
            machine_version=self.meta().machine_version,
        )
        copy = asyncio.ensure_future(asyncio.to_thread(_write_snapshot, frozen, path, meta))
        self._copies[copy] = frozen
        copy.add_done_callback(self._on_copied)
        size_bytes, checksum = await asyncio.shield(copy)
        return SnapshotInfo(path, index, meta.last_term, meta.previous_term, size_bytes, checksum)

    def _on_copied(self, copy: asyncio.Future[tuple[int, bytes]]) -> None:
        """Only now: to release what a thread still copies would hold the loop until it has ended."""
        self._copies.pop(copy).release()
        if not copy.cancelled():
            copy.exception()  # nobody may be left to hear of it

    async def wait_copies(self) -> None:
        """Until no thread copies the state any more: before `close`. Who asked for a copy may be gone."""
        while self._copies:
            await asyncio.wait(list(self._copies))

    async def check_snapshot(self, snapshot_info: SnapshotInfo) -> None:
        self._require_known("the snapshot", await asyncio.to_thread(_make_ready, snapshot_info))

    def install_snapshot(self, snapshot_info: SnapshotInfo) -> None:
        self._store.install(snapshot_info.path)
        self._applied_index = self.meta().applied_index
        if self._applied_index != snapshot_info.last_index:
            raise Fatal(f"the snapshot says index {snapshot_info.last_index}, its state {self._applied_index}")
        self._durable_index = self._applied_index
        self._roster = _read_roster(self._store.txn)
        self._last_stamp = (self.meta().now_ms, self._clock.monotonic_ms())
        self._commands_open = 0
        self._note_room()
        if self._on_install is not None:
            self._on_install()

    def _require_known(self, what: str, version: int) -> None:
        if not self._known.have(version):
            raise Outdated(f"{what} is of machine version {version}, this build knows {self._known}: upgrade this node")

    def close(self) -> None:
        """Commit and close the store."""
        self._try_commit()
        self._store.close()


def _read_roster(view: View) -> Roster | None:
    """The members that the state holds; None when it holds none."""
    records = views.read_members(view)
    if not records:
        return None
    by_standing: dict[int, list[Member]] = {standing: [] for standing in Standing}
    for node_id, record in records.items():
        by_standing[record.standing].append(Member(node_id, record.raft_address, record.http_url))
    return Roster(
        max(record.version for record in records.values()),
        tuple(by_standing[Standing.VOTER]),
        tuple(by_standing[Standing.LEARNER]),
        frozenset(member.node_id for member in by_standing[Standing.REMOVED]),
    )


def _write_snapshot(frozen: Frozen, path: Path, meta: snapshot.SnapshotMeta) -> tuple[int, bytes]:
    """Its size and its checksum."""
    checksum = snapshot.write(frozen, path, meta)
    return path.stat().st_size, checksum


def _make_ready(info: SnapshotInfo) -> int:
    """Check the file, and leave of it the bare state; its machine version. Raises: `Corrupt`, `StorageFailed`."""
    meta = snapshot.verify(info.path, paced=True)
    if (meta.last_index, meta.last_term) != (info.last_index, info.last_term):
        raise Corrupt(f"{info.path} is a snapshot at index {meta.last_index}, announced was {info.last_index}")
    snapshot.trim(info.path)
    return meta.machine_version
