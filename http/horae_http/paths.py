"""What a path must be to hold a node's data. Not here: the directory itself (`horae_storage.directory`)."""

from __future__ import annotations

from pathlib import Path

from horae_node.errors import ConfigError


def require_utf8(path: Path) -> None:
    """Raises: `ConfigError` with the fix; the database opens no other path."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the path {str(path)!r} is not UTF-8: rename its directory, or choose another") from None
