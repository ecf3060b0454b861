"""Syncs by the kernel's queue and by a thread: the same promises, and the thread where the kernel has no queue."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from tests.helpers.mounts import mounted, tmpfs

from horae_storage import file_sync
from horae_storage.file_sync import Done, FileSync, KernelSync, ThreadSync, Watch, open_sync

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def open_best(fd: int, done: Done, *, watched: bool = True) -> FileSync:
    loop = asyncio.get_running_loop()
    watch = Watch(loop.add_reader, loop.remove_reader) if watched else None
    return open_sync(fd, done, loop.call_soon_threadsafe, watch)


def open_kind(kind: str, fd: int, done: Done) -> FileSync:
    sync = open_best(fd, done, watched=kind == "kernel")
    if kind == "kernel" and not isinstance(sync, KernelSync):
        sync.close()
        pytest.skip("SKIPPED FOR WANT OF THE KERNEL: no asynchronous sync here")
    assert isinstance(sync, KernelSync if kind == "kernel" else ThreadSync)
    return sync


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["kernel", "thread"])
def test_each_is_told_once(kind: str, loop: str, file: int) -> None:
    async def run() -> None:
        told: asyncio.Queue[OSError | None] = asyncio.Queue()
        sync = open_kind(kind, file, told.put_nowait)
        for number in range(1, 50):
            os.pwrite(file, b"x" * 1000, number * 1000)
            sync.begin()
            assert await asyncio.wait_for(told.get(), 30) is None
            assert told.empty()
        sync.close()
        sync.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


@pytest.mark.parametrize("kind", ["kernel", "thread"])
async def test_one_that_was_waited_for_is_not_told_again(kind: str, file: int) -> None:
    told: asyncio.Queue[OSError | None] = asyncio.Queue()
    sync = open_kind(kind, file, told.put_nowait)
    for _ in range(50):
        sync.begin()
        assert sync.finish() is None
        assert sync.finish() is None
    sync.begin()
    assert await asyncio.wait_for(told.get(), 30) is None
    assert told.empty()
    sync.close()


@pytest.mark.parametrize("kind", ["kernel", "thread"])
async def test_a_failure_is_told(kind: str, tmp_path: Path) -> None:
    """A file on a loop device whose own file has no room: the kernel learns of it when it writes back."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("SKIPPED FOR WANT OF A COMMAND: mkfs.ext4")
    with tmpfs(tmp_path / "small", 12) as small:
        image = small / "image"
        with image.open("wb") as made:
            made.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True, capture_output=True)  # noqa: ASYNC221
        with mounted(str(image), tmp_path / "disk", "-o", "loop") as disk:
            fd = os.open(disk / "file", os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(fd, 0, 32 << 20)  # promised by the file system, not by what is below it
            sync = open_kind(kind, fd, lambda error: None)
            os.pwrite(fd, os.urandom(24 << 20), 0)
            sync.begin()
            error = sync.finish()
            sync.close()
            os.close(fd)
    assert error is not None
    assert error.errno in (errno.EIO, errno.ENOSPC)


async def test_a_machine_of_another_kind_takes_the_thread(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    sync = open_best(file, lambda error: None)
    assert isinstance(sync, ThreadSync)
    sync.close()


async def test_a_kernel_without_the_call_takes_the_thread(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = file_sync.Calls(100_000, 100_000, 100_000, 100_000)
    monkeypatch.setattr(file_sync, "_CALLS", {platform.machine(): nowhere})
    before = len(os.listdir("/proc/self/fd"))
    sync = open_best(file, lambda error: None)
    assert isinstance(sync, ThreadSync)
    assert len(os.listdir("/proc/self/fd")) == before, "the eventfd was closed"
    sync.close()


async def test_a_file_that_cannot_be_synced_takes_the_thread() -> None:
    reader, writer = os.pipe()
    sync = open_best(writer, lambda error: None)
    assert isinstance(sync, ThreadSync)
    sync.begin()
    error = sync.finish()
    assert error is not None
    assert error.errno == errno.EINVAL
    sync.close()
    os.close(reader)
    os.close(writer)
