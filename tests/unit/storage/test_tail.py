"""The tail of a log: what a crash may leave of its last frame is one thing, damage of what was acknowledged another."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae_storage.errors import Corrupt, StorageFull
from horae_storage.tail import Frame, Tail

REGION_BYTES = 16384
SECTOR_BYTES = 512
HEAD_BYTES = 4096


def make(path: Path) -> Tail:
    Tail.create(path, REGION_BYTES)
    return reopen(path)


def reopen(path: Path, folded: int = 0) -> Tail:
    tail = Tail(path)
    tail.read(folded)
    return tail


def write(tail: Tail, data: bytes) -> None:
    os.pwrite(tail.fd, *tail.frame(data))


def read(path: Path, folded: int = 0) -> list[bytes]:
    """The frames' data, but for the empty one that each file begins with."""
    tail = Tail(path)
    frames = tail.read(folded)
    tail.close()
    return [frame.data for frame in frames if frame.number]


def test_frames_come_back_in_order_and_more_go_after_them(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = make(path)
    for data in (b"one", b"two" * 400):
        write(tail, data)
    tail.close()
    tail = Tail(path)
    assert tail.read(0) == [Frame(1, 0, b""), Frame(1, 1, b"one"), Frame(1, 2, b"two" * 400)]
    write(tail, b"three")
    tail.close()
    assert read(path) == [b"one", b"two" * 400, b"three"]


def test_two_rounds_come_back_and_a_folded_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = make(path)
    written = 0
    while tail.has_room(2):
        write(tail, b"%02d" % written)
        written += 1
    tail.turn_over()
    write(tail, b"second")
    tail.close()
    assert read(path) == [b"%02d" % n for n in range(written)] + [b"second"]
    assert read(path, folded=1) == [b"second"]


def test_a_region_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = make(path)
    for round_ in range(1, 6):
        while tail.has_room(1000):
            write(tail, b"%d" % round_ * 1000)
        tail.turn_over()
        write(tail, b"begun")
    tail.close()
    assert read(path, folded=5) == [b"begun"]
    last_rounds = read(path, folded=4)
    assert (last_rounds[0], last_rounds[-1]) == (b"begun", b"begun")
    assert set(last_rounds[1:-1]) == {b"5" * 1000}
    tail = reopen(path, folded=5)
    assert tail.round == 6
    write(tail, b"more")
    tail.close()
    assert read(path, folded=5) == [b"begun", b"more"]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_of_a_torn_frame_nothing_is_left_and_of_the_others_all(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    """A power cut lets through any of the sectors of the one frame that was not synced, in any order."""
    dice = random.Random(seed)
    path = tmp_path_factory.mktemp("torn") / "tail"
    tail = make(path)
    synced = [dice.randbytes(size) for size in sizes]
    for data in synced:
        write(tail, data)
    before = path.read_bytes()
    last = dice.randbytes(dice.randrange(1, 2000))
    write(tail, last)
    tail.close()
    after = path.read_bytes()
    image = bytearray(before)
    changed = [
        at
        for at in range(0, len(after), SECTOR_BYTES)
        if before[at : at + SECTOR_BYTES] != after[at : at + SECTOR_BYTES]
    ]
    through = [at for at in changed if dice.random() < 0.5]
    for at in through:
        image[at : at + SECTOR_BYTES] = after[at : at + SECTOR_BYTES]
    path.write_bytes(image)
    expected = [*synced, last] if through == changed else synced
    assert read(path) == expected
    tail = reopen(path)
    write(tail, b"next")
    tail.close()
    assert read(path) == [*expected, b"next"]


@pytest.mark.parametrize("damaged", range(3))
def test_a_damaged_frame_that_was_synced_is_refused(tmp_path: Path, damaged: int) -> None:
    """Every frame but the very last: after each a later one was written, so it was synced."""
    path = tmp_path / "tail"
    tail = make(path)
    for number in range(1, 4):
        write(tail, b"frame %d" % number * 100)
    tail.close()
    image = bytearray(path.read_bytes())
    at = image.find(b"frame %d" % damaged * 100) if damaged else HEAD_BYTES + REGION_BYTES
    assert at > 0
    image[at] ^= 0x10
    path.write_bytes(image)
    with pytest.raises(Corrupt, match=r"tail is damaged: .* is not what was written; keep the files"):
        read(path)


def test_zeroed_frames_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = make(path)
    write(tail, b"data")
    tail.close()
    path.write_bytes(path.read_bytes()[:HEAD_BYTES].ljust(HEAD_BYTES + 2 * REGION_BYTES, b"\0"))
    with pytest.raises(Corrupt, match="the first frame of round 1"):
        read(path)


def test_a_frame_missing_between_two_rounds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    tail = make(path)
    write(tail, b"last of the first round")
    tail.turn_over()
    write(tail, b"second round")
    tail.close()
    image = path.read_bytes()
    path.write_bytes(image.replace(b"last of the", b"xxxx of the"))
    with pytest.raises(Corrupt, match="frame 1 is not what was written"):
        read(path)


@pytest.mark.parametrize("at", [0, 17, 30])
def test_a_damaged_head_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "tail"
    make(path).close()
    image = bytearray(path.read_bytes())
    image[at] ^= 1
    path.write_bytes(image)
    with pytest.raises(Corrupt, match="tail is damaged: its head"):
        Tail(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    make(path).close()
    os.truncate(path, HEAD_BYTES + REGION_BYTES)
    with pytest.raises(Corrupt, match="truncated or grown"):
        Tail(path)


def test_bytes_of_another_file_are_no_frame_here(tmp_path: Path) -> None:
    """What a submitter puts into a job may be a frame byte by byte: not under this file's key."""
    tail = make(tmp_path / "one")
    write(tail, b"first")
    write(tail, b"forged")
    tail.close()
    forged = (tmp_path / "one").read_bytes()[HEAD_BYTES + REGION_BYTES + 1024 :][:SECTOR_BYTES]
    assert b"forged" in forged
    path = tmp_path / "two"
    tail = make(path)
    write(tail, b"first")
    tail.close()
    image = bytearray(path.read_bytes())
    start = HEAD_BYTES + REGION_BYTES + 1024
    image[start : start + SECTOR_BYTES] = forged
    path.write_bytes(image)
    assert read(path) == [b"first"]


def test_an_emptied_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tail"
    make(path).close()
    os.truncate(path, 0)
    with pytest.raises(Corrupt, match="its head is not that of a log's tail"):
        Tail(path)


def test_no_block_is_written_for_the_first_time_later(tmp_path: Path) -> None:
    """A direct write of such a block waits within the call. Files of before that was known are filled when opened."""
    path = tmp_path / "tail"
    tail = make(path)
    write(tail, b"kept")
    tail.close()
    size = path.stat().st_size
    assert _holes(path) == []
    with path.open("r+b") as file:
        for at in (HEAD_BYTES, HEAD_BYTES + REGION_BYTES + 8192):  # as if only allocated
            subprocess.run(["fallocate", "-p", "-o", str(at), "-l", "4096", str(path)], check=True)
        assert _holes(path) != []
        assert file.seek(0, os.SEEK_END) == size
    assert read(path) == [b"kept"]
    assert _holes(path) == []


def _holes(path: Path) -> list[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        at = os.lseek(fd, 0, os.SEEK_HOLE)
        return [] if at == path.stat().st_size else [at]
    finally:
        os.close(fd)


def test_no_room_for_the_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    with pytest.raises(StorageFull):
        Tail.create(tmp_path / "tail")
