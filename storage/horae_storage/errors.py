"""What can go wrong with a disk, each with what it means for the caller."""

from __future__ import annotations

REJOIN = "keep the files for inspection, and take the node in again by docs/operations.md, 'A node whose disk was lost'"
"""What to do about damaged data. Never simply to empty the directory: a node that votes under its old id and has
forgotten what it acknowledged can lose acknowledged jobs for the whole cluster.
"""


class StorageError(Exception):
    """Base of all storage errors."""


class StorageFull(StorageError):
    """No room on the disk: definite, nothing of the failed write took effect; it may succeed once there is room."""


class StorageFailed(StorageError):
    """The disk or the environment failed in a way that nothing can be trusted after: the process must end."""


class Corrupt(StorageFailed):
    """Stored bytes do not match their checksum, or a file is not what its header says: the process must end."""


class UnknownFormat(Corrupt):
    """A file that may well be whole, but of a format that this program does not read. The message says which."""


class ForeignDirectory(StorageError):
    """The data directory belongs to another cluster or node. The message says whose it is and what to do."""


class DirectoryInUse(StorageError):
    """Another live process has this data directory open."""


class DirectoryUnusable(StorageError):
    """The data directory cannot be created, read or written. The message names the path and the fix."""
