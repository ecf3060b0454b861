"""A peer is believed with the data directory it was first met with, and with no other."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from tests.helpers.damage import each_flipped_bit

from horae_storage import peer_book
from horae_storage.errors import DirectoryUnusable
from horae_storage.peer_book import FILE_NAME, PeerBook


def test_the_first_meeting_is_remembered_over_restarts(tmp_path: Path) -> None:
    assert PeerBook(tmp_path).check("n2", "one") is None
    book = PeerBook(tmp_path)
    assert book.check("n2", "one") is None
    assert "another data directory" in (book.check("n2", "two") or "")
    assert book.check("n3", "two") is None


def test_a_forgotten_peer_may_come_with_a_new_directory(tmp_path: Path) -> None:
    book = PeerBook(tmp_path)
    book.check("n2", "one")
    assert book.forget("n2")
    assert not book.forget("n2")
    assert PeerBook(tmp_path).check("n2", "two") is None


def test_what_others_told_counts_as_a_first_meeting_over_restarts(tmp_path: Path) -> None:
    PeerBook(tmp_path).learn({"n2": "one", "n3": "three"})
    book = PeerBook(tmp_path)
    assert [book.incarnation_of(name) for name in ("n2", "n3", "n4")] == ["one", "three", None]
    assert book.check("n2", "one") is None
    assert "another data directory" in (book.check("n3", "emptied") or "")
    assert book.check("n4", "four") is None
    assert book.incarnation_of("n4") == "four"


def test_what_is_learnt_and_cannot_be_written_down_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = PeerBook(tmp_path)

    def no_room(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(peer_book, "write_atomically", no_room)
    with pytest.raises(DirectoryUnusable, match="No space left"):
        book.learn({"n2": "one"})
    assert book.incarnation_of("n2") is None


def test_a_first_meeting_that_cannot_be_written_down_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a handshake, with a disk that is full: the node goes on without that peer, which calls again."""
    book = PeerBook(tmp_path)

    def no_room(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as system:
        system.setattr(peer_book, "write_atomically", no_room)
        assert "cannot be written down" in (book.check("n2", "one") or "")
    assert book.check("n2", "one") is None


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"n2": 1}', b"\xff"])
def test_a_damaged_book_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(DirectoryUnusable, match=f"{FILE_NAME} .*keep the files for inspection"):
        PeerBook(tmp_path)


def test_one_flipped_bit_is_refused(tmp_path: Path) -> None:
    """A healthy peer was accused, or one that forgot believed."""
    PeerBook(tmp_path).learn({"n2": "one", "n3": "three"})
    for _ in each_flipped_bit(tmp_path / FILE_NAME):
        with contextlib.suppress(DirectoryUnusable):
            book = PeerBook(tmp_path)
            assert [book.incarnation_of(name) for name in ("n2", "n3", "")] == ["one", "three", None]


def test_a_book_of_before_there_were_sums_is_taken(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"n2": "one"}')
    assert PeerBook(tmp_path).incarnation_of("n2") == "one"
