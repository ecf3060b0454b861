"""Zone data of our own making: a package `tzdata` in a directory, with zones more, fewer or other than those installed.

For another process the directory goes first on its path (`PYTHONPATH`); for this one, `seen` puts it there for a while.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import tzdata

from horae_node import cron


def fixed(hours: int) -> bytes:
    """A zone file (RFC 8536): so many hours ahead of UTC, for ever."""
    abbr = f"{hours:+03d}"
    data = struct.pack(">iBB", hours * 3600, 0, 0) + abbr.encode() + b"\0"
    block = b"TZif2" + bytes(15) + struct.pack(">6I", 0, 0, 0, 0, 1, len(abbr) + 1) + data
    return block + block + f"\n<{abbr}>{-hours}\n".encode()


def make_package(home: Path, changes: Mapping[str, bytes | None], version: str = "2030.1") -> Path:
    """The installed package with these zones in the place of its own; None: it has none of that name. Gives `home`."""
    package = home / "tzdata"
    shutil.copytree(Path(tzdata.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    names = set((package / "zones").read_text("utf-8").split())
    for name, data in changes.items():
        path = package / "zoneinfo" / name
        if data is None:
            path.unlink(missing_ok=True)
            names.discard(name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            names.add(name)
    (package / "zones").write_text("\n".join(sorted(names)) + "\n", "utf-8")
    info = home / f"tzdata-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tzdata\nVersion: {version}\n", "utf-8")
    return home


@contextlib.contextmanager
def seen(home: Path) -> Iterator[None]:
    """This process has the data of that package meanwhile."""
    sys.path.insert(0, str(home))
    _reload()
    try:
        yield
    finally:
        sys.path.remove(str(home))
        _reload()


def _reload() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tzdata"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    cron.forget()
