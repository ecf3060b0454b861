"""Durable writes by the kernel's queue and by a thread: the same promises, and the thread where there is no queue."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from tests.helpers.mounts import ext4_image, loop_device, mounted, tmpfs

from horae_storage import file_write
from horae_storage.file_write import BLOCK_BYTES, Done, FileWriter, KernelWriter, ThreadWriter, Watch, open_writer

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


FILE_BYTES = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"." * FILE_BYTES)
    return tmp_path / "file"


@contextmanager
def writer(path: Path, done: Done, *, watched: bool = True, bytes_max: int = FILE_BYTES) -> Iterator[FileWriter]:
    loop = asyncio.get_running_loop()
    watch = Watch(loop.add_reader, loop.remove_reader) if watched else None
    fd = os.open(path, os.O_RDWR)
    made = open_writer(path, fd, done, loop.call_soon_threadsafe, watch, bytes_max)
    try:
        yield made
    finally:
        made.close()
        os.close(fd)


@contextmanager
def writer_of(kind: str, path: Path, done: Done, bytes_max: int = FILE_BYTES) -> Iterator[FileWriter]:
    with writer(path, done, watched=kind == "kernel", bytes_max=bytes_max) as made:
        if kind == "kernel" and not isinstance(made, KernelWriter):
            pytest.skip("SKIPPED FOR WANT OF THE KERNEL: no direct writes by its queue here")
        assert isinstance(made, KernelWriter if kind == "kernel" else ThreadWriter)
        yield made


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["kernel", "thread"])
def test_each_is_told_once_and_lies_where_it_was_asked_for(kind: str, loop: str, path: Path) -> None:
    expected = bytearray(path.read_bytes())

    async def run() -> None:
        told: asyncio.Queue[OSError | None] = asyncio.Queue()
        with writer_of(kind, path, told.put_nowait) as made:
            at = 0
            for size in (1, 511, 512, 513, 5000, 100_000, 4, 0):
                data = os.urandom(size)
                made.begin(data, at)
                assert await asyncio.wait_for(told.get(), 30) is None
                assert told.empty()
                expected[at : at + size] = data
                end, at = at + size, -(-(at + size) // BLOCK_BYTES) * BLOCK_BYTES
                expected[end:at] = path.read_bytes()[end:at]  # noqa: ASYNC240 (the rest of its last block is anybody's guess)
                assert path.read_bytes() == expected  # noqa: ASYNC240
            made.close()
            made.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


@pytest.mark.parametrize("kind", ["kernel", "thread"])
async def test_one_that_was_waited_for_is_not_told_again(kind: str, path: Path) -> None:
    told: asyncio.Queue[OSError | None] = asyncio.Queue()
    with writer_of(kind, path, told.put_nowait) as made:
        for _ in range(50):
            made.begin(b"data", 0)
            assert made.finish() is None
            assert made.finish() is None
        made.begin(b"last", 0)
        assert await asyncio.wait_for(told.get(), 30) is None
        assert told.empty()


@pytest.mark.parametrize("kind", ["kernel", "thread"])
async def test_a_failure_is_told(kind: str, tmp_path: Path) -> None:
    """A file on a loop device whose own file has no room: it is found out when the data goes there."""
    with tmpfs(tmp_path / "small", 12) as small:
        image = ext4_image(small / "image", 64, "-O", "^has_journal")
        with mounted(str(image), tmp_path / "disk", "-o", "loop") as disk:
            with (disk / "file").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 32 << 20)  # promised by the file system, not by what is below it
            size = 24 << 20
            with writer_of(kind, disk / "file", lambda error: None, size) as writes:
                writes.begin(os.urandom(size), 0)
                error = writes.finish()
    assert error is not None
    assert error.errno in (errno.EIO, errno.ENOSPC)


async def test_a_file_that_ends_early_is_a_failure(path: Path) -> None:
    """What is not written to its last byte is not durable."""
    with writer_of("kernel", path, lambda error: None) as made:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, limit[1]))
        try:
            made.begin(b"x" * 4096, FILE_BYTES - 1024)
            error = made.finish()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, before)
    assert error is not None
    assert error.errno == errno.EIO
    assert "1024 of 4096" in str(error)


async def test_a_machine_of_another_kind_takes_the_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with writer(path, lambda error: None) as made:
        assert isinstance(made, ThreadWriter)


async def test_a_kernel_without_the_call_takes_the_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = file_write.Calls(100_000, 100_000, 100_000, 100_000)
    monkeypatch.setattr(file_write, "_CALLS", {platform.machine(): nowhere})
    before = len(os.listdir("/proc/self/fd"))
    with writer(path, lambda error: None) as made:
        assert isinstance(made, ThreadWriter)
        assert len(os.listdir("/proc/self/fd")) == before + 1, "the eventfd and the second descriptor were closed"


async def test_another_file_system_takes_the_thread(tmp_path: Path) -> None:
    """Where a direct write may be done within the call, the loop would wait for the disk."""
    with tmpfs(tmp_path / "other", 4) as other:
        (other / "file").write_bytes(bytes(4096))
        with writer(other / "file", lambda error: None) as made:
            assert isinstance(made, ThreadWriter)
            made.begin(b"data", 512)
            assert made.finish() is None
        assert (other / "file").read_bytes()[512:516] == b"data"


async def test_a_file_system_that_journals_data_takes_the_thread(tmp_path: Path) -> None:
    """It takes a direct write, and does all of it within the call."""
    image = ext4_image(tmp_path / "image", 64)
    with mounted(str(image), tmp_path / "disk", "-o", "loop,data=journal") as disk:
        (disk / "file").write_bytes(bytes(8192))
        with writer(disk / "file", lambda error: None) as made:
            assert isinstance(made, ThreadWriter)


async def test_a_disk_with_larger_blocks_takes_the_thread(tmp_path: Path) -> None:
    image = ext4_image(tmp_path / "image", 16, "-b", "4096")
    with loop_device(image, sector_bytes=4096) as device, mounted(device, tmp_path / "disk") as disk:
        (disk / "file").write_bytes(bytes(8192))
        with writer(disk / "file", lambda error: None) as made:
            assert isinstance(made, ThreadWriter)


async def test_a_failure_of_the_thread_is_told(path: Path) -> None:
    reader, pipe = os.pipe()
    made = ThreadWriter(pipe, lambda error: None, asyncio.get_running_loop().call_soon_threadsafe)
    made.begin(b"data", 0)
    error = made.finish()
    made.close()
    os.close(reader)
    os.close(pipe)
    assert error is not None
    assert error.errno == errno.ESPIPE
