"""A node's data directory: whose it is, that only one process has it, and that nothing of it has gone missing.

The identity is written before anything else and a lock is held while the directory is open. Once state and log have
been made, `mark_initialised` writes that down: from then on a missing one is refused, because a node that forgot its
vote or its entries can make a cluster forget what it acknowledged. A restore goes the other way round: its mark comes
first, the identity last, and between the two no start takes the directory.
Not here: what the files hold; what counts as empty (`vacancy.py`). Next: `lmdb_kv.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from horae_storage import scan
from horae_storage.errors import REJOIN, DirectoryInUse, DirectoryUnusable, ForeignDirectory
from horae_storage.files import (
    PRIVATE_MODE,
    Owner,
    foreign_owner,
    give,
    make_directory,
    sweep_temporaries,
    sync_directory,
    temporary_of,
    write_atomically,
)
from horae_storage.sealed_json import sealed, unsealed
from horae_storage.vacancy import (
    FOLDERS,
    IDENTITY_NAME,
    LOCK_NAME,
    RECOVERING_NAME,
    RESTORING_NAME,
    RUNNING_NAME,
    content_of,
    find_remains,
    find_strange,
)

FORMAT_VERSION = 1

_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EEXIST})
"""Something else stands where the directory would be."""


class Origin(NamedTuple):
    """Where this life of the cluster began, if not with an empty log: in a backup that was restored, or in a survivor
    that was recovered. Nodes with different ones, or one without, are of different histories."""

    sha256: str
    """Of the backup's content, in hex; of a recovery as many random digits."""
    last_index: int
    """Log index of the last entry in the backup; 0 where this node did not begin with it."""


class Directory:
    """An open data directory: `open_directory` makes it, `close` lets others have it."""

    def __init__(self, path: Path, lock_fd: int, identity: dict[str, Any]) -> None:
        self.path = path
        self.folders = _folders(path)
        self.state, self.log, self.snapshots = self.folders
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

    @property
    def origin(self) -> Origin | None:
        """None unless the directory was restored."""
        return _origin_of(self._identity)

    def note_origin(self, origin: Origin) -> None:
        """It stands in the identity from when that is written next: of a restore, at its end."""
        self._identity["origin"] = origin._asdict()

    def mark_initialised(self, owner: Owner | None = None) -> None:
        """Write down, synced, that state and log exist; `owner` gets the file. A second call does nothing.

        Raises: `DirectoryUnusable`.
        """
        if not self.initialised:
            self._identity["initialised"] = True
            _write_identity(self.path, self._identity, owner)

    def require_sound(self) -> None:
        """Walk the log's pages, and the state's too unless the last run ended in order. Forks: before all threads.

        Raises: `Corrupt`, `DirectoryUnusable`.
        """
        suspects = [*self.log.glob("*.mdb")]
        if (self.path / RUNNING_NAME).exists():
            suspects += sorted(self.state.glob("*.mdb"))[-1:]
        for path in suspects:
            scan.require_sound(path)

    def begin_run(self) -> None:
        """Say on the disk that a node is at work here, until `end_run`. Raises: `DirectoryUnusable`."""
        try:
            write_atomically(self.path / RUNNING_NAME, b"")
        except OSError as error:
            raise _unusable(self.path, error) from error

    def end_run(self) -> None:
        """State and log were closed in order."""
        (self.path / RUNNING_NAME).unlink(missing_ok=True)

    def begin_recovery(self) -> None:
        """From now on no node starts here, until `end_recovery`. Raises: `DirectoryUnusable`."""
        try:
            write_atomically(self.path / RECOVERING_NAME, b"")
        except OSError as error:
            raise _unusable(self.path, error) from error

    def end_recovery(self) -> None:
        """All of it is on the disk. Raises: OSError."""
        (self.path / RECOVERING_NAME).unlink()
        sync_directory(self.path)

    def begin_anew(self) -> None:
        """Be another directory to every peer that has met this one, and of another life of the cluster to all others.

        Raises: `DirectoryUnusable`.
        """
        self._identity["incarnation"] = os.urandom(16).hex()
        self.adopt_origin(os.urandom(32).hex())

    def adopt_origin(self, sha256: str) -> None:
        """Be of the life of the cluster that began there. Raises: `DirectoryUnusable`."""
        self.note_origin(Origin(sha256, 0))
        _write_identity(self.path, self._identity)

    def give_to_owner(self) -> None:
        """Where root worked in another's directory, what it wrote anew is the owner's. Raises: `DirectoryUnusable`."""
        try:
            owner = foreign_owner(self.path)
            for file in (it for folder in (self.path, *self.folders) for it in content_of(folder)):
                give(file, owner)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def close(self) -> None:
        """Give up the lock. A second call does nothing."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def _folders(path: Path) -> tuple[Path, Path, Path]:
    state, log, snapshots = FOLDERS
    return path / state, path / log, path / snapshots


def is_new(path: Path) -> bool:
    """No node has made this directory its own yet. Nothing is touched."""
    return not os.path.exists(path / IDENTITY_NAME)  # unlike Path.exists not an error where it may not look


def require_usable(path: Path) -> None:
    """A node could make this directory, which `is_new`, its own; nothing is made. Raises: `DirectoryUnusable`."""
    try:
        _require_unowned(path)
    except OSError as error:
        raise _unusable(path, error) from error
    place = next(it for it in (path, *path.absolute().parents) if os.path.exists(it))
    if not place.is_dir():
        raise _unusable(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unusable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def open_directory(path: Path, cluster: str, node_id: str, *, recovers: bool = False) -> Directory:
    """Open the data directory of this node, made when it is new; sweeps half-finished files of an earlier process.

    `recovers`: by a recovery, which alone opens what an earlier one has left half done.

    Raises: `ForeignDirectory`, `DirectoryInUse`, `DirectoryUnusable`; then nothing of it has changed.
    """
    try:
        if is_new(path):
            _require_unowned(path)  # again under the lock: here a refusal leaves not even that behind
        path.mkdir(PRIVATE_MODE, parents=True, exist_ok=True)
        lock_fd = _lock(path)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        if not recovers and (path / RECOVERING_NAME).exists():
            raise DirectoryUnusable(
                f"a recovery in {path} was broken off: run `horae node recover` again, with --yes-i-lose"
            )
        return _open_locked(path, lock_fd, cluster, node_id)
    except BaseException:
        os.close(lock_fd)
        raise


def _open_locked(path: Path, lock_fd: int, cluster: str, node_id: str) -> Directory:
    try:
        identity = _read_identity(path)
        if identity is None:
            _require_unowned(path)
            identity = _new_identity(cluster, node_id)
            _write_identity(path, identity)
        _require_own(path, identity, cluster, node_id)
        directory = Directory(path, lock_fd, identity)
        if directory.initialised:
            _require_complete(directory)
        for folder in directory.folders:
            folder.mkdir(exist_ok=True)
        for folder in (path, *directory.folders):
            sweep_temporaries(folder)
        (path / RESTORING_NAME).unlink(missing_ok=True)  # it was complete: the identity is there
    except OSError as error:
        raise _unusable(path, error) from error
    return directory


@contextlib.contextmanager
def restoring(path: Path, cluster: str, node_id: str) -> Iterator[Directory]:
    """An empty or missing directory, to be filled in the block: at its end it is this node's, initialised and synced.

    Before that it is nobody's: no start takes it, and the next restore removes what a crash left of this one. When the
    block raises, that is done at once. The directory itself stays the one it is, whoever owns it, mount point or not;
    where root fills another's, all that lies in it becomes the owner's.

    Raises: `DirectoryInUse`; `DirectoryUnusable`, also for what is not empty, of which nothing has changed then.
    """
    try:
        if os.path.exists(path):
            _require_fillable(path)
        made = make_directory(path)
        directory = Directory(path, _lock(path), _new_identity(cluster, node_id))
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        _require_fillable(path)  # again: somebody may have held the lock meanwhile
        try:
            owner = _begin_restore(directory)
            yield directory
            _complete_restore(directory, owner)
        except BaseException:
            _undo_restore(directory, made=made)
            raise
    except OSError as error:
        raise _unusable(path, error) from error
    finally:
        directory.close()


def _begin_restore(directory: Directory) -> Owner | None:
    """Mark the directory and clear it of an earlier restore; who is to own what is made. Raises: OSError."""
    path = directory.path
    owner = foreign_owner(path)
    mark = path / RESTORING_NAME
    mark.touch()
    for file in (path / LOCK_NAME, mark):
        give(file, owner)
    sync_directory(path)
    _clear(directory)
    for folder in directory.folders:
        folder.mkdir(exist_ok=True)
        give(folder, owner)
    return owner


def _complete_restore(directory: Directory, owner: Owner | None) -> None:
    """All that was made is synced under its name before the identity gets its own. Raises: OSError."""
    for folder in directory.folders:
        for file in content_of(folder):
            give(file, owner)
        sync_directory(folder)
    sync_directory(directory.path)
    directory.mark_initialised(owner)
    with contextlib.suppress(OSError):  # the next start removes it as well
        (directory.path / RESTORING_NAME).unlink()


def _undo_restore(directory: Directory, *, made: bool) -> None:
    """Leave the directory as empty as it was; where that fails the mark stays, and says so."""
    path = directory.path
    with contextlib.suppress(OSError):
        if (path / RESTORING_NAME).exists():
            _clear(directory)
            for folder in directory.folders:
                with contextlib.suppress(OSError):  # another file system may be mounted there
                    folder.rmdir()
            sync_directory(path)
            (path / RESTORING_NAME).unlink()
        if made and is_new(path):
            (path / LOCK_NAME).unlink()
            path.rmdir()


def _clear(directory: Directory) -> None:
    """The identity goes first, or a crash would leave one over data that has gone. Raises: OSError."""
    identity = directory.path / IDENTITY_NAME
    for file in (identity, temporary_of(identity)):
        file.unlink(missing_ok=True)
    sync_directory(directory.path)
    for folder in directory.folders:
        for file in content_of(folder) if folder.is_dir() else ():
            file.unlink()


def _require_fillable(path: Path) -> None:
    """Raises: `DirectoryUnusable` where something lies that no unfinished restore left; OSError."""
    if foreign_owner(path) is not None and (link := next((it for it in _folders(path) if it.is_symlink()), None)):
        raise DirectoryUnusable(
            f"{link} is a link in another user's directory, and root follows none there: restore as that user"
        )
    if (identity := _read_identity(path)) is not None:
        found = f"belongs to node {identity['node_id']!r} of cluster {identity['cluster']!r} already"
    elif (path / RESTORING_NAME).exists():
        return
    elif (it := find_remains(path) or find_strange(path)) is not None:
        found = f"is not empty, it holds {it.name}"
    else:
        return
    raise DirectoryUnusable(
        f"{path} {found}: a restore fills an empty directory, or makes one, and touches no other; choose another"
    )


def _lock(path: Path) -> int:
    """The descriptor that holds the lock: the kernel frees it when the process ends, however it ends."""
    fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
        text = (path / IDENTITY_NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        identity = unsealed(text)
        known = {"format_version": int, "cluster": str, "node_id": str, "initialised": bool, "incarnation": str}
        if not all(isinstance(identity[name], kind) for name, kind in known.items()):
            raise ValueError("wrong types")
        _origin_of(identity)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DirectoryUnusable(f"{path / IDENTITY_NAME} is damaged; {REJOIN}") from error
    return identity


def _origin_of(identity: dict[str, Any]) -> Origin | None:
    """Raises: KeyError, TypeError, ValueError for what is none."""
    if "origin" not in identity:
        return None
    origin = Origin(identity["origin"]["sha256"], identity["origin"]["last_index"])
    if not isinstance(origin.sha256, str) or not isinstance(origin.last_index, int):
        raise ValueError("wrong types")
    return origin


def _new_identity(cluster: str, node_id: str) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "cluster": cluster,
        "node_id": node_id,
        "initialised": False,
        "incarnation": os.urandom(16).hex(),
    }


def _require_unowned(path: Path) -> None:
    """Raises: `DirectoryUnusable` where anything lies that a node would not make first; OSError."""
    try:
        if (path / RESTORING_NAME).exists():
            raise DirectoryUnusable(f"a restore into {path} was broken off: run `horae restore` into it again")
        if (it := find_remains(path)) is not None:
            raise DirectoryUnusable(f"{it} holds data, but {IDENTITY_NAME} is missing; {REJOIN}")
        if (it := find_strange(path)) is not None:
            raise DirectoryUnusable(
                f"data directory {path} is no node's and not empty, it holds {it.name}: give this node a directory of "
                "its own, or move that away"
            )
    except FileNotFoundError:
        return


def _write_identity(path: Path, identity: dict[str, Any], owner: Owner | None = None) -> None:
    try:
        write_atomically(path / IDENTITY_NAME, sealed(identity), owner)
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
    """No other directory is advised where this one may be a node's: on an empty one it would have forgotten."""
    in_the_way = error.errno in _IN_THE_WAY and is_new(path)
    fix = "choose another, or move away what stands in its place" if in_the_way else "mend its owner, mode or disk"
    what = "" if error.filename in (None, str(path)) else f" ({Path(os.fsdecode(error.filename)).name})"
    return DirectoryUnusable(f"data directory {path} cannot be used{what}: {error.strerror}: {fix}")
