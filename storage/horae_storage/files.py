"""Small deeds on files that must survive a power cut: what is renamed here is complete and synced before its name is.

Not here: what the files hold. Next to read: `directory.py`, `snapshot.py`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

Owner = tuple[int, int]
"""User and group, by number."""

PRIVATE_MODE = 0o700
"""Of directories that hold payloads: they are nobody else's to read."""

TEMPORARY_SUFFIX = ".tmp"
"""Every half-finished file carries it, so that a start can sweep what a crash left."""


PACE_BYTES = 1 << 20
PACE_S = 0.01
"""A large file is written and read at most so fast in the background: 100 MiB/s leave the disk and the processors to
those who wait for a sync. Unpaced, a copy made the slowest hundredth of the submits seven times slower. In small steps,
since a small sync beside waits for each: its slowest hundredth took 5 to 8 ms behind 4 MiB, 2 to 4 ms behind 1 MiB."""


def pace() -> None:
    """Stand back after each `PACE_BYTES`. Only where nobody waits on this thread."""
    threading.Event().wait(PACE_S)


def temporary_of(path: Path) -> Path:
    """Where `path` is written before it gets its name: beside it, so that the rename stays on one file system."""
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def sync_file(path: Path) -> None:
    """Make the bytes of the file durable. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names in the directory durable: a rename is lost in a power cut until this returns. Raises: OSError."""
    sync_file(path)


def publish(temporary: Path, path: Path) -> None:
    """Give a complete temporary file its name, durably: a crash leaves the old file or the whole new one.

    Raises: OSError.
    """
    sync_file(temporary)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_atomically(path: Path, data: bytes, owner: Owner | None = None) -> None:
    """Replace the content of `path`, durably: a crash leaves the old content or the new. Raises: OSError.

    The file is the writer's, or belongs to `owner` before it has its name.
    """
    temporary = temporary_of(path)
    temporary.write_bytes(data)
    if owner is not None:
        os.chown(temporary, *owner)
    publish(temporary, path)


def make_directory(path: Path) -> bool:
    """Make a directory, its owner's alone, and those above it, durably; False when it was there. Raises: OSError."""
    if path.is_dir():
        return False
    missing = [it for it in (path, *path.parents) if not it.exists()]
    path.mkdir(PRIVATE_MODE, parents=True)
    for made in missing:
        sync_directory(made.parent)
    return True


def foreign_owner(path: Path) -> Owner | None:
    """Who is to have what root makes in another's directory, or the owner could not use it; None otherwise.

    Raises: OSError.
    """
    found = path.stat()
    owner = (found.st_uid, found.st_gid)
    return owner if os.geteuid() == 0 and owner != (os.geteuid(), os.getegid()) else None


def give(path: Path, owner: Owner | None) -> None:
    """Let `owner` have the file, durably; None leaves it as it is. Of a link nothing but the link is given.

    Raises: OSError.
    """
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)
        sync_file(path)


def sweep_temporaries(directory: Path) -> list[Path]:
    """Delete what a crash left half-finished in `directory`; the files deleted. Raises: OSError."""
    swept = sorted(p for p in directory.iterdir() if p.is_file() and p.name.endswith(TEMPORARY_SUFFIX))
    for path in swept:
        path.unlink()
    return swept
