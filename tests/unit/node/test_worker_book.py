"""Who works: seen lately, with what in hand, bounded, a page at a time."""

from __future__ import annotations

import msgspec
import pytest
from tests.helpers.one_node import OneNode

from horae import wire
from horae_node import worker_book
from horae_node.service import Refused
from horae_node.worker_book import KEPT_S, Seen, WorkerBook


def book_of(running: set[tuple[int, str]] | None = None) -> WorkerBook:
    """All that is held runs, or this alone."""
    return WorkerBook(lambda seq, worker: running is None or (seq, worker) in running)


def page(book: WorkerBook, now_s: float = 0.0, limit: int = 100, after: str = "", only: object = None) -> list[Seen]:
    return book.page(now_s, after, limit, only)[0]  # type: ignore[arg-type]


def test_who_claims_is_seen_with_its_queues_and_what_it_holds() -> None:
    book = book_of()
    book.saw("b", 1.0, ["mail", "sms"])
    book.holds("b", [7, 8])
    book.saw("a", 2.0)
    assert page(book, 3.0) == [Seen("a", (), 0, 1.0), Seen("b", ("mail", "sms"), 2, 2.0)]
    book.saw("b", 4.0)  # a heartbeat names no queues
    book.ended(7)
    book.ended(99)
    assert page(book, 4.0)[1] == Seen("b", ("mail", "sms"), 1, 0.0)


def test_what_runs_elsewhere_or_nowhere_is_not_told() -> None:
    running = {(1, "a"), (2, "b")}
    book = book_of(running)
    for worker in ("a", "b"):
        book.saw(worker, 0.0)
    book.holds("a", [1, 2, 3])
    book.holds("b", [2])
    assert [(it.worker, it.running) for it in page(book)] == [("a", 1), ("b", 1)]
    running.clear()
    assert [it.running for it in page(book)] == [0, 0]


def test_the_silent_are_forgotten_with_what_they_held() -> None:
    book = book_of()
    book.saw("a", 0.0)
    book.holds("a", [1])
    book.saw("b", 10.0)
    assert [it.worker for it in page(book, KEPT_S)] == ["a", "b"]
    assert [it.worker for it in page(book, KEPT_S + 1)] == ["b"]
    book.holds("a", [5])  # of one that is not known
    assert (len(book), book._holder) == (1, {})


def test_no_more_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_book, "WORKERS_MAX", 3)
    monkeypatch.setattr(worker_book, "HELD_MAX", 2)
    book = book_of()
    for number, worker in enumerate("abcad"):
        book.saw(worker, float(number))
    assert [it.worker for it in page(book)] == ["a", "c", "d"]
    book.holds("a", range(10))
    assert page(book)[0].running == len(book._holder) == 2


def test_no_more_names_of_queues_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may name a thousand in each claim, and there may be ten thousand of them."""
    monkeypatch.setattr(worker_book, "NAMES_KEPT_MAX", 10)
    book = book_of()
    for number, worker in enumerate("abcab"):
        book.saw(worker, float(number), [f"q{n}" for n in range(3 + number % 2)])
        book.saw(worker, float(number))
    assert [(it.worker, len(it.queues)) for it in page(book)] == [("a", 4), ("b", 3), ("c", 3)]
    book.saw("d", 9.0, ["q"])
    assert [it.worker for it in page(book, 9.0)] == ["a", "b", "d"]
    assert [it.worker for it in page(book, KEPT_S + 3.5)] == ["b", "d"]
    book.saw("e", KEPT_S + 4, [f"q{n}" for n in range(6)])
    assert [it.worker for it in page(book, KEPT_S + 4)] == ["b", "d", "e"]


def test_pages_go_on_and_end_early_where_much_is_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_book, "LOOKS_MAX", 4)
    book = book_of()
    for number, worker in enumerate("abcde"):
        book.saw(worker, 0.0, ["even" if number % 2 == 0 else "odd"])
        book.holds(worker, range(3 * number, 3 * number + 3))
    assert [it.worker for it in page(book, limit=1)] == ["a"]
    found, more = book.page(0.0, "", 100, None)
    assert ([it.worker for it in found], more) == (["a", "b"], "b")
    found, more = book.page(0.0, "d", 100, None)
    assert ([it.worker for it in found], more) == (["e"], None)
    found, more = book.page(0.0, "", 100, {"odd"})
    assert ([it.worker for it in found], more) == (["b", "d"], None)


def test_a_page_names_no_more_queues_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may name a thousand, and a page have a thousand workers: a hundred megabytes. Names that a token may not
    see are looked at all the same."""
    monkeypatch.setattr(worker_book, "NAMES_MAX", 7)
    book = book_of()
    for worker in "abcde":
        book.saw(worker, 0.0, [f"{worker}{n}" for n in range(4)])
    found, last = book.page(0.0, "", 100, None)
    assert ([it.worker for it in found], last) == (["a", "b"], "b")
    found, last = book.page(0.0, "", 100, {"e3"})
    assert (found, last) == ([], "b")
    found, last = book.page(0.0, "b", 100, {"e3"})
    assert (found, last) == ([], "d")
    found, last = book.page(0.0, "d", 100, {"e3"})
    assert ([it.queues for it in found], last) == ([("e3",)], None)


async def test_the_leader_tells_who_works() -> None:
    node = await OneNode().open()
    for number in range(3):
        await node.submit(id=f"j{number}")
    (first,) = await node.claim()
    (shown,) = (await node.service.workers(limit=10, cursor=None)).workers
    assert (shown.queues, shown.running) == (["default"], 1)
    beat = {"worker": "other", "leases": [{"job_id": first.id, "lease_token": first.lease_token}]}
    await node.service.heartbeat(msgspec.convert(beat, wire.HeartbeatRequest))
    await node.service.complete(first.id, wire.CompleteRequest(lease_token=first.lease_token))
    listed = await node.service.workers(limit=1, cursor=None)
    rest = await node.service.workers(limit=1, cursor=listed.next_cursor)
    assert sorted(it.worker for it in listed.workers + rest.workers) == sorted(["other", shown.worker])
    assert [it.running for it in listed.workers + rest.workers] == [0, 0]
    assert rest.next_cursor is None
    with pytest.raises(Refused, match="not a cursor"):
        await node.service.workers(limit=1, cursor="x")
