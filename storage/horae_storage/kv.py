"""The ordered key-value ports: what the machine is told of storage, and all it may know.

Keys are bytes, ordered as bytes, 511 bytes at most (LMDB's limit). Values are *rows*: tuples of plain data
(None, bool, int, str, bytes, and tuples of these). The store encodes, checks and decodes rows; the machine
never sees encoded bytes, and so stays pure. Two implementations pass `tests/conformance/test_kv.py`:
`memory.MemoryStore` (tests, simulator) and `lmdb_kv.LmdbStore` (the node).
Not here: anything about jobs. Next to read: `lmdb_kv.py`, then `horae_node/core/tables.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

Row = tuple[Any, ...]

MAX_KEY_BYTES = 511

TXN_BYTES_MAX = 64 << 20
"""What a transaction may hold before its owner must commit: well below the part of LMDB's map that is kept free."""


class View(Protocol):
    """A consistent reading of the store. A view of the open transaction sees that transaction's own writes."""

    def get(self, key: bytes) -> Row | None:
        """The row at `key`, or None. Lists come back as tuples.

        Raises: `Corrupt` (fatal) when the stored checksum does not match.
        """
        ...

    def row_bytes(self, key: bytes) -> int:
        """Bytes that the row at `key` takes as stored, 0 for none: neither read nor checked."""
        ...

    def scan(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[tuple[bytes, Row]]:
        """At most `limit` (>= 1) pairs with start <= key < stop, ascending; with `reverse`, from the end, descending.

        The list is the caller's; later writes do not change it.
        """
        ...

    def keys(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[bytes]:
        """As `scan`, keys only (no row is decoded)."""
        ...


class Txn(View, Protocol):
    """The open write transaction. Every write is seen at once by reads of the same transaction."""

    def put(self, key: bytes, row: Row) -> None:
        """Set the row at `key`.

        Raises: ValueError for an empty or too long key, TypeError or OverflowError for a row that cannot be encoded
        (nothing is written); `StorageFailed` (fatal) when the transaction outgrew what the store can hold open.
        """
        ...

    def delete(self, key: bytes) -> bool:
        """Remove `key`; False when it was not there (then the digest stays as it is)."""
        ...

    @property
    def digest(self) -> int:
        """An unsigned 32-bit chain over every put and effective delete, in order, since `seed_digest` was last called.

        Same writes in the same order from the same seed give the same value on every implementation and machine.
        """
        ...

    def seed_digest(self, value: int) -> None:
        """Start the chain at `value` (the machine does so at each log entry, with the value it stored last)."""
        ...


class Frozen(Protocol):
    """The state as it was committed at one moment, held still for a copy while the owner goes on writing."""

    def copy_to(self, path: Path) -> None:
        """Write a compacted copy to `path` (a file that must not exist), synced. On any thread; it blocks.

        Raises: `StorageFull` (nothing is left at `path`); `StorageFailed`.
        """
        ...

    def release(self) -> None:
        """Let go. Until then the store cannot reuse what was freed since. On any thread; a second call does nothing."""
        ...


class Store(Protocol):
    """Owner of the data: one open write transaction, committed and synced when its owner says so."""

    @property
    def txn(self) -> Txn:
        """The open write transaction. Valid until `commit`, `abort`, `install` or `close`; ask again after each."""
        ...

    @property
    def dirty(self) -> bool:
        """True when the open transaction holds writes that are not committed."""
        ...

    @property
    def dirty_bytes(self) -> int:
        """Bytes put since the last commit. The owner commits before it reaches `TXN_BYTES_MAX`."""
        ...

    def commit(self) -> None:
        """Make all writes so far durable (synced), atomically; then a new transaction is open. Clean: nothing happens.

        Raises: `StorageFull` (definite, and nothing is lost: the same transaction stays open, with its writes; call
        again when there may be room); `StorageFailed` (fatal) for any other error.
        """
        ...

    def abort(self) -> None:
        """Drop every write since the last commit; a new transaction is open on what was committed."""
        ...

    def freeze(self) -> Frozen:
        """Hold the last *committed* state still, to be copied on another thread: later commits are not in it.

        On the owner's thread, so that it is sure which commit that is. The caller releases it.
        """
        ...

    def copy_to(self, path: Path) -> None:
        """`freeze`, copy, release: for a caller to whom it does not matter which commit it gets. On any thread."""
        ...

    def install(self, path: Path) -> None:
        """Replace the whole state by the copy at `path` (a file that `copy_to` wrote), atomically, consuming it.

        A crash at any moment leaves the old state or the new one. The open transaction is dropped. Frozen states of
        the old one stay good until released. Raises: `StorageFull` (the old state stays); `StorageFailed`; `Corrupt`.
        """
        ...

    def size_bytes(self) -> int:
        """Bytes that the state takes on disk (0 for memory)."""
        ...

    def close(self) -> None:
        """Abort the open transaction and free everything. A second call does nothing."""
        ...
