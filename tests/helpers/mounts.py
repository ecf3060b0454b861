"""File systems of their own, for tests that want a small or another one: mounted for a while, skipped without rights.

Not here: what happens on them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(what: str, place: Path, *options: str) -> Iterator[Path]:
    """`what` at `place`, which is made. Skips the test where that cannot be."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("SKIPPED FOR WANT OF RIGHTS: a file system of its own needs root and mount")
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, what, str(place)], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"SKIPPED FOR WANT OF RIGHTS: mount says {done.stderr!r}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def tmpfs(place: Path, size_mib: int, *, mode: int = 0o755) -> Iterator[Path]:
    """In memory, and full after so much."""
    with mounted("tmpfs", place, "-t", "tmpfs", "-o", f"size={size_mib}m,mode={mode:o}"):
        yield place


@contextlib.contextmanager
def loop_device(image: Path, *, sector_bytes: int) -> Iterator[str]:
    """The file as a disk with sectors of that size. Skips the test where that cannot be."""
    if os.geteuid() != 0 or shutil.which("losetup") is None:
        pytest.skip("SKIPPED FOR WANT OF RIGHTS: a disk of its own needs root and losetup")
    command = ["losetup", "--find", "--show", "--sector-size", str(sector_bytes), str(image)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"SKIPPED FOR WANT OF RIGHTS: losetup says {done.stderr!r}")
    try:
        yield done.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


def ext4_image(path: Path, size_mib: int, *options: str) -> Path:
    """A file that holds an ext4 file system, for `mounted` or `loop_device`. Skips the test where none can be made."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("SKIPPED FOR WANT OF A COMMAND: mkfs.ext4")
    with path.open("wb") as file:
        file.truncate(size_mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(path)], check=True, capture_output=True)
    return path
