"""A node's data directory: whose it is, that only one process has it, and that nothing of it has gone missing.

The identity is written before anything else and a lock is held while the directory is open. Once state and log have
been made, `mark_initialised` writes that down: from then on a missing one is refused, because a node that forgot its
vote or its entries can make a cluster forget what it acknowledged. Not here: what the files hold. Next: `lmdb_kv.py`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from horae_storage import scan
from horae_storage.errors import REJOIN, DirectoryInUse, DirectoryUnusable, ForeignDirectory
from horae_storage.files import sweep_temporaries, write_atomically

FORMAT_VERSION = 1

_IDENTITY_NAME = "identity.json"
_LOCK_NAME = "lock"
_RUNNING_NAME = "running"
_FOLDERS = ("state", "log", "snapshots")


class Directory:
    """An open data directory: `open_directory` makes it, `close` lets others have it."""

    def __init__(self, path: Path, lock_fd: int, identity: dict[str, Any]) -> None:
        self.path = path
        self.state = path / "state"
        self.log = path / "log"
        self.snapshots = path / "snapshots"
        self._lock_fd: int | None = lock_fd
        self._identity = identity

    @property
    def initialised(self) -> bool:
        """True when state and log have been made here before: they must exist, and are never made again."""
        return bool(self._identity["initialised"])

    @property
    def incarnation(self) -> str:
        """Made at random with the directory: a node that lost its directory cannot pass for the one it was."""
        return str(self._identity["incarnation"])

    def mark_initialised(self) -> None:
        """Write down, synced, that state and log exist. A second call does nothing. Raises: `DirectoryUnusable`."""
        if not self.initialised:
            self._identity["initialised"] = True
            _write_identity(self.path, self._identity)

    def require_sound(self) -> None:
        """Walk the log's pages, and the state's too unless the last run ended in order. Forks: before all threads.

        Raises: `Corrupt`, `DirectoryUnusable`.
        """
        suspects = [*self.log.glob("*.mdb")]
        if (self.path / _RUNNING_NAME).exists():
            suspects += sorted(self.state.glob("*.mdb"))[-1:]
        for path in suspects:
            scan.require_sound(path)

    def begin_run(self) -> None:
        """Say on the disk that a node is at work here, until `end_run`. Raises: `DirectoryUnusable`."""
        try:
            write_atomically(self.path / _RUNNING_NAME, b"")
        except OSError as error:
            raise _unusable(self.path, error) from error

    def end_run(self) -> None:
        """State and log were closed in order."""
        (self.path / _RUNNING_NAME).unlink(missing_ok=True)

    def renew_incarnation(self) -> None:
        """Be another directory to every peer that has met this one. Raises: `DirectoryUnusable`."""
        self._identity["incarnation"] = os.urandom(16).hex()
        _write_identity(self.path, self._identity)

    def close(self) -> None:
        """Give up the lock. A second call does nothing."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def is_new(path: Path) -> bool:
    """No node has made this directory its own yet. Nothing is touched."""
    return not (path / _IDENTITY_NAME).exists()


def require_usable(path: Path) -> None:
    """A node could make this directory, which `is_new`, its own; nothing is made. Raises: `DirectoryUnusable`."""
    _require_unowned(path)
    place = next(it for it in (path, *path.absolute().parents) if it.exists())
    if not place.is_dir():
        raise _unusable(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unusable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def open_directory(path: Path, cluster: str, node_id: str) -> Directory:
    """Open the data directory of this node, made when it is new; sweeps half-finished files of an earlier process.

    Raises: `ForeignDirectory`, `DirectoryInUse`, `DirectoryUnusable`; then nothing of it has changed.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock_fd = _lock(path)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        return _open_locked(path, lock_fd, cluster, node_id)
    except BaseException:
        os.close(lock_fd)
        raise


def _open_locked(path: Path, lock_fd: int, cluster: str, node_id: str) -> Directory:
    try:
        identity = _read_identity(path)
        if identity is None:
            identity = _new_identity(path, cluster, node_id)
            _write_identity(path, identity)
        _require_own(path, identity, cluster, node_id)
        directory = Directory(path, lock_fd, identity)
        if directory.initialised:
            _require_complete(directory)
        for folder in (directory.state, directory.log, directory.snapshots):
            folder.mkdir(exist_ok=True)
        for folder in (path, directory.state, directory.log, directory.snapshots):
            sweep_temporaries(folder)
    except OSError as error:
        raise _unusable(path, error) from error
    return directory


def _lock(path: Path) -> int:
    """The descriptor that holds the lock: the kernel frees it when the process ends, however it ends."""
    fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise DirectoryInUse(
            f"data directory {path} is in use by another process: stop it, or give this node a directory of its own"
        ) from error
    return fd


def _read_identity(path: Path) -> dict[str, Any] | None:
    try:
        text = (path / _IDENTITY_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        identity = json.loads(text)
        known = {"format_version": int, "cluster": str, "node_id": str, "initialised": bool, "incarnation": str}
        if not all(isinstance(identity[name], kind) for name, kind in known.items()):
            raise ValueError("wrong types")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DirectoryUnusable(f"{path / _IDENTITY_NAME} is damaged; {REJOIN}") from error
    return dict(identity)


def _new_identity(path: Path, cluster: str, node_id: str) -> dict[str, Any]:
    """Raises: `DirectoryUnusable`."""
    _require_unowned(path)
    return {
        "format_version": FORMAT_VERSION,
        "cluster": cluster,
        "node_id": node_id,
        "initialised": False,
        "incarnation": os.urandom(16).hex(),
    }


def _require_unowned(path: Path) -> None:
    """Raises: `DirectoryUnusable` where data lies that nobody owns."""
    for folder in (path / name for name in _FOLDERS):
        if folder.is_dir() and any(folder.iterdir()):
            raise DirectoryUnusable(
                f"{folder} holds data, but {_IDENTITY_NAME} is missing beside it: restore it, or take an empty one"
            )


def _write_identity(path: Path, identity: dict[str, Any]) -> None:
    try:
        write_atomically(path / _IDENTITY_NAME, json.dumps(identity, indent=1).encode() + b"\n")
    except OSError as error:
        raise _unusable(path, error) from error


def _require_own(path: Path, identity: dict[str, Any], cluster: str, node_id: str) -> None:
    found = identity["cluster"], identity["node_id"]
    if found != (cluster, node_id):
        raise ForeignDirectory(
            f"data directory {path} belongs to node {found[1]!r} of cluster {found[0]!r}, this is node {node_id!r} of "
            f"cluster {cluster!r}: mend the configuration, or choose another directory"
        )
    if identity["format_version"] != FORMAT_VERSION:
        raise DirectoryUnusable(
            f"data directory {path} has format {identity['format_version']}, this program reads {FORMAT_VERSION}: "
            "run the version that wrote it"
        )


def _require_complete(directory: Directory) -> None:
    """Raises: `DirectoryUnusable` when state or log has gone."""
    for folder in (directory.state, directory.log):
        if not folder.is_dir() or not any(folder.glob("*.mdb")):
            raise DirectoryUnusable(f"the data in {folder} is missing; {REJOIN}")


def _unusable(path: Path, error: OSError) -> DirectoryUnusable:
    return DirectoryUnusable(
        f"data directory {path} cannot be used: {error.strerror}: mend its owner, mode or disk, or choose another"
    )
