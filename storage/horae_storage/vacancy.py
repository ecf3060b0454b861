"""Whether a directory is nobody's: a node, or a restore, makes a directory its own only when nothing lies in it.

What a node left without its identity is never taken for empty: the node would come back and have forgotten its votes.
What is not ours at all is not moved in beside: a mistyped path would be noticed when its owner misses the room.
Looks only, and changes nothing. Next to read: `directory.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from horae_storage import peer_book
from horae_storage.files import temporary_of

IDENTITY_NAME = "identity.json"
LOCK_NAME = "lock"
RUNNING_NAME = "running"
RESTORING_NAME = "restoring"
"""Lies there from before a restore makes anything until after the identity says that all is there."""
RECOVERING_NAME = "recovering"
"""Lies there while a recovery is under way: half of one would lead alone as the node that it was."""
VOTERS_NAME = "voters.json"
"""Written by the node's room (`horae_node/voters.py`)."""
FOLDERS = ("state", "log", "snapshots")

_BEFORE_IDENTITY = frozenset({LOCK_NAME, RESTORING_NAME, temporary_of(Path(IDENTITY_NAME)).name, *FOLDERS})
_AFTER_IDENTITY = frozenset({RUNNING_NAME, RECOVERING_NAME, VOTERS_NAME, peer_book.FILE_NAME})
_LOST_AND_FOUND = "lost+found"


def content_of(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; a new file system's own empty folder does not count. Raises: OSError."""
    return sorted(it for it in folder.iterdir() if not _is_bare_lost_and_found(it))


def find_remains(path: Path) -> Path | None:
    """The first thing in `path` that a node wrote once the directory was its own. Raises: OSError."""
    return next((it for it in content_of(path) if it.name in _AFTER_IDENTITY or _holds_data(it)), None)


def find_strange(path: Path) -> Path | None:
    """The first thing in `path` that no node makes in a directory that is not its own yet. Raises: OSError."""
    for it in content_of(path):
        if it.name not in _BEFORE_IDENTITY or (it.name in FOLDERS) is not it.is_dir():
            return it
    return None


def _holds_data(it: Path) -> bool:
    return it.name in FOLDERS and it.is_dir() and bool(content_of(it))


def _is_bare_lost_and_found(it: Path) -> bool:
    """Of a file system just made it is root's alone: to whom it is closed it counts as empty."""
    return it.name == _LOST_AND_FOUND and it.is_dir() and not (os.access(it, os.R_OK) and any(it.iterdir()))
