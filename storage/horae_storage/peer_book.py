"""Which data directory each peer had when it was first met: a peer that comes back with another one has forgotten.

A node acknowledges and votes by what is on its disk. One that returns under its old id with an emptied or foreign
directory could vote again in a term it has voted in, or help to elect a leader that lacks what it had acknowledged: a
loss of acknowledged commands with one disk lost. So each directory has a random *incarnation*, told in the handshake;
it is written down, synced, before a peer is believed, and another one is refused from then on. A node that joins
later is told which directory each member has, and so knows an emptied one that it never met before.
Not here: the network. Next to read: `directory.py`, `horae_node/raft/transport.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from horae_storage.errors import REJOIN, DirectoryUnusable
from horae_storage.files import write_atomically
from horae_storage.sealed_json import sealed, unsealed

FILE_NAME = "peers.json"


class PeerBook:
    """The peers met so far, kept in one small file of the data directory."""

    def __init__(self, directory: Path) -> None:
        """Raises: `DirectoryUnusable` for a file that cannot be read or understood."""
        self._path = directory / FILE_NAME
        self._known = self._read()

    def check(self, node_id: str, incarnation: str) -> str | None:
        """Why this peer is refused; None when it is the one we know, or is met for the first time (then noted, synced).

        One that cannot be written down is refused, too: it calls again, and the disk may have room by then.
        """
        known = self._known.get(node_id)
        if known is None:
            try:
                self._write({**self._known, node_id: incarnation})
            except DirectoryUnusable as error:
                return f"node {node_id!r} is met for the first time, and that cannot be written down: {error}"
        elif known != incarnation:
            return (
                f"node {node_id!r} has another data directory than when it was first met: it was emptied, replaced or "
                "restored, and forgot what it acknowledged; see 'A node whose disk was lost' in docs/operations.md"
            )
        return None

    def incarnation_of(self, node_id: str) -> str | None:
        """Of the directory that this peer is believed with; None before it was met or told of."""
        return self._known.get(node_id)

    def learn(self, told: Mapping[str, str]) -> None:
        """Believe each of these peers with that directory only, written down, synced. Before any of them is met.

        Raises: `DirectoryUnusable`; then nothing was learnt.
        """
        self._write({**self._known, **told})

    def forget(self, node_id: str) -> bool:
        """Take the peer's next directory for the right one; False when the peer is not known."""
        if node_id not in self._known:
            return False
        self._write({other: kept for other, kept in self._known.items() if other != node_id})
        return True

    def _read(self) -> dict[str, str]:
        try:
            known = unsealed(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise DirectoryUnusable(
                f"{self._path} cannot be read ({error}): if it was edited, undo that (`horae node forget` takes a peer "
                f"out); else it is damaged; {REJOIN}"
            ) from error
        if not all(isinstance(value, str) for value in known.values()):
            raise DirectoryUnusable(f"{self._path} is damaged; {REJOIN}")
        return known

    def _write(self, known: dict[str, str]) -> None:
        try:
            write_atomically(self._path, sealed(dict(sorted(known.items()))))
        except OSError as error:
            raise DirectoryUnusable(f"{self._path} cannot be written: {error.strerror}") from error
        self._known = known
