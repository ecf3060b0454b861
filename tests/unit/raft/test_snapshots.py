"""Snapshots on their way, piece by piece: what is joined, what is skipped, what is kept for whom, on real files."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from horae_node.raft import snapshots
from horae_node.raft.port import SnapshotInfo
from horae_node.raft.snapshots import AHEAD_PIECES, RESUME_S, Intake, Shelf

PIECE_BYTES = 100
CONTENT = bytes(range(256)) * 10
INDEX = 50


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", PIECE_BYTES)


def make(path: Path, content: bytes = CONTENT, index: int = INDEX) -> SnapshotInfo:
    path.write_bytes(content)
    return SnapshotInfo(path, index, 3, 2, len(content), sha256(content).digest())


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf()
    shelf.put(make(tmp_path / "made.snapshot"))
    return shelf


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(tmp_path)


def send(shelf: Shelf, intake: Intake, count: int) -> SnapshotInfo | bool:
    """So many pieces for follower `f`; what came of the last one."""
    taken: SnapshotInfo | bool = True
    for _ in range(count):
        taken = intake.take(next_piece(shelf))
    return taken


def next_piece(shelf: Shelf) -> dict[str, Any]:
    piece = shelf.next_piece("f")
    assert piece is not None
    return piece


def send_rest(shelf: Shelf, intake: Intake) -> tuple[SnapshotInfo, int]:
    """What came whole, and how many pieces it took."""
    for count in range(1, 100):
        taken = send(shelf, intake, 1)
        if isinstance(taken, SnapshotInfo):
            return taken, count
        assert taken
    raise AssertionError("it never ends")


def content_of(intake: Intake, info: SnapshotInfo) -> bytes:
    assert intake.reception is not None
    intake.reception.finish()
    return info.path.read_bytes()


def test_pieces_make_the_snapshot(shelf: Shelf, intake: Intake) -> None:
    info, count = send_rest(shelf, intake)
    assert count == 26
    assert content_of(intake, info) == CONTENT
    assert info[1:] == (INDEX, 3, 2, len(CONTENT), sha256(CONTENT).digest())


def test_after_a_break_only_what_is_missing_is_sent(shelf: Shelf, intake: Intake) -> None:
    send(shelf, intake, 20)
    shelf.break_off("f", 0.0)
    assert send(shelf, intake, 1) is True, "the first one again"
    assert shelf.skip("f", intake.have) == 20 * PIECE_BYTES
    info, count = send_rest(shelf, intake)
    assert count == 6
    assert content_of(intake, info) == CONTENT


def test_pieces_that_were_sent_before_the_answer_came_do_no_harm(shelf: Shelf, intake: Intake) -> None:
    send(shelf, intake, 20)
    shelf.break_off("f", 0.0)
    late = [next_piece(shelf) for _ in range(12)]
    intake.take(late[0])
    assert shelf.skip("f", intake.have) == 20 * PIECE_BYTES
    assert [intake.take(piece) for piece in late[1:]] == [True] * 11
    info, _ = send_rest(shelf, intake)
    assert content_of(intake, info) == CONTENT


def test_a_piece_of_another_length_adds_what_is_new_in_it(
    shelf: Shelf, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shelf, intake, 5)
    shelf.break_off("f", 0.0)
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 170)
    info, _ = send_rest(shelf, intake)
    assert content_of(intake, info) == CONTENT


@pytest.mark.parametrize("field", ["index", "term", "previous_term", "size", "checksum"])
def test_another_snapshot_is_joined_with_nothing(shelf: Shelf, intake: Intake, field: str) -> None:
    send(shelf, intake, 5)
    other = next_piece(shelf)
    other[field] = b"other" if field == "checksum" else other[field] + 1
    assert intake.take(other) is False
    assert intake.have is None
    assert list(intake._directory.glob("incoming*")) == []


def test_another_snapshot_begins_anew(shelf: Shelf, intake: Intake, tmp_path: Path) -> None:
    send(shelf, intake, 20)
    half = intake.reception
    shelf.break_off("f", 0.0)
    other = bytes(reversed(CONTENT))
    shelf.put(make(tmp_path / "other.snapshot", other))
    send(shelf, intake, 1)
    assert half is not None
    assert not half.path.exists()
    assert shelf.skip("f", intake.have) is None
    info, _ = send_rest(shelf, intake)
    assert content_of(intake, info) == other


def test_a_damaged_piece_after_a_break_is_found(shelf: Shelf, intake: Intake) -> None:
    send(shelf, intake, 20)
    shelf.break_off("f", 0.0)
    send(shelf, intake, 1)
    shelf.skip("f", intake.have)
    piece = next_piece(shelf)
    piece["data"] = bytes(PIECE_BYTES)
    assert intake.take(piece) is False
    assert intake.have is None


CHECKSUM = sha256(CONTENT).digest()


@pytest.mark.parametrize(
    "have",
    [
        None,
        7,
        (),
        (CHECKSUM, 2000),
        (CHECKSUM, "2000", 0),
        (b"of another one", 2000, 0),
        (CHECKSUM, -1, 0),
        (CHECKSUM, AHEAD_PIECES * PIECE_BYTES, 0),
        (CHECKSUM, len(CONTENT), 0),
        (CHECKSUM, 10**9, 0),
    ],
)
def test_what_a_follower_says_it_has_is_checked(shelf: Shelf, have: object) -> None:
    next_piece(shelf)
    assert shelf.skip("f", have) is None
    assert next_piece(shelf)["offset"] == PIECE_BYTES
    assert shelf.skip("a stranger", (CHECKSUM, 2000, 0)) is None


def test_the_log_is_held_for_who_may_come_back_for_the_rest(shelf: Shelf) -> None:
    next_piece(shelf)
    assert shelf.holding_index == INDEX
    shelf.break_off("f", 100.0)
    shelf.oldest_index = lambda: INDEX + 1 if shelf.holding_index is None else INDEX
    shelf.sweep(100.0 + RESUME_S)
    assert shelf.holding_index == INDEX
    assert shelf.usable
    shelf.sweep(100.1 + RESUME_S)
    assert shelf.holding_index is None
    assert not shelf.may_send("f"), "the file is given up"


def test_who_has_come_back_is_waited_for_no_more(shelf: Shelf) -> None:
    next_piece(shelf)
    shelf.break_off("f", 100.0)
    next_piece(shelf)
    shelf.sweep(200.0 + RESUME_S)
    assert shelf.holding_index == INDEX


def test_nothing_is_held_for_who_has_it(shelf: Shelf) -> None:
    next_piece(shelf)
    shelf.acknowledged("f", INDEX - 1)
    shelf.acknowledged("g", INDEX)
    assert shelf.holding_index == INDEX
    shelf.break_off("f", 100.0)
    shelf.acknowledged("f", INDEX)
    assert shelf.holding_index is None
    shelf.break_off("f", 100.0)
    assert shelf.holding_index is None, "a break without a transfer is none"
