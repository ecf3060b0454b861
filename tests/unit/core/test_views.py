"""Reads: lists newest first without a gap over pages, counts, and what the leader looks ahead at."""

from __future__ import annotations

import pytest
from tests.unit.core.world import NOW_MS, World, submit

from horae_node.core import lists, views
from horae_node.core.commands import CancelJob
from horae_node.core.model import QueueCounts, State

READY, PENDING, CANCELLED, EXPIRED = map(int, (State.READY, State.PENDING, State.CANCELLED, State.EXPIRED))


def test_what_is_not_there():
    txn = World().txn
    assert views.job_seq(txn, "a") is None
    assert (views.spec(txn, 1), views.run(txn, 1), views.progress(txn, 1), views.result(txn, 1)) == (None,) * 4
    assert (views.errors(txn, 1), views.last_error(txn, 1)) == ([], None)
    assert views.counts(txn, "default") == QueueCounts()
    assert lists.list_jobs(txn, None, None, None, 5).seqs == []


@pytest.mark.parametrize("queue", [None, "a", "ab", "b", "none"])
@pytest.mark.parametrize("state", [None, READY, PENDING, CANCELLED])
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_together_are_the_whole_list(queue: str | None, state: int | None, limit: int):
    world = listed_world()
    wanted = [seq for seq in range(24, 0, -1) if matches(world, seq, queue, state)]
    found: list[int] = []
    before: int | None = None
    while True:
        page, before = lists.list_jobs(world.txn, queue, state, before, limit)
        assert len(page) <= limit
        found += page
        if before is None:
            break
    assert found == wanted


def test_among_many_queues_no_page_looks_at_all(monkeypatch: pytest.MonkeyPatch):
    """A call for a state cost a look-up for each queue: with 60,000 of them, the lead."""
    monkeypatch.setattr(lists, "QUEUES_MERGED", 2)
    monkeypatch.setattr(lists, "LOOKED_MAX", 5)
    world = listed_world()
    wanted = [seq for seq in range(24, 0, -1) if matches(world, seq, None, CANCELLED)]
    found: list[int] = []
    before: int | None = None
    pages = 0
    while before is not None or not pages:
        page, before = lists.list_jobs(world.txn, None, CANCELLED, before, 100)
        found += page
        pages += 1
    assert found == wanted
    assert pages == 5


def test_a_state_that_few_of_many_queues_have_takes_one_page(monkeypatch: pytest.MonkeyPatch):
    """A list by state alone walked along all jobs once there were more queues than lists may be merged."""
    monkeypatch.setattr(lists, "QUEUES_MERGED", 2)
    monkeypatch.setattr(lists, "LOOKED_MAX", 5)
    world = World()
    for n in range(30):
        world.do(submit(f"j{n}", queue=f"q{n}"))
    for cancelled in ("j3", "j17"):
        world.do(CancelJob(cancelled))
    assert lists.list_jobs(world.txn, None, CANCELLED, None, 5) == ([18, 4], None)
    assert lists.list_jobs(world.txn, None, EXPIRED, None, 5) == ([], None)


def test_a_short_page_is_the_last():
    world = listed_world()
    assert lists.list_jobs(world.txn, None, None, 3, 5).seqs == [2, 1]
    assert lists.list_jobs(world.txn, None, None, 1, 5).seqs == []
    assert lists.list_jobs(world.txn, "a", None, 0, 5).seqs == []


def test_lists_of_one_state_are_merged_over_neighbours_in_one_queue():
    world = World()
    for n, queue in enumerate("aabbaab"):
        world.do(submit(f"j{n}", queue=queue))
    assert lists.list_jobs(world.txn, None, READY, None, 9).seqs == [7, 6, 5, 4, 3, 2, 1]
    assert lists.list_jobs(world.txn, None, READY, 6, 3).seqs == [5, 4, 3]


def test_queues_and_their_counts():
    world = listed_world()
    assert views.queue_names(world.txn, "", 10) == ["a", "ab", "b"]
    assert views.queue_names(world.txn, "a", 1) == ["ab"]
    assert views.queue_names(world.txn, "b", 5) == []
    counts = views.all_counts(world.txn)
    assert list(counts) == ["a", "ab", "b"]
    assert sum(map(sum, counts.values())) == 24
    assert views.takeable(world.txn, "a", 0) == (counts["a"].ready, None, None)
    assert counts["a"].ready == views.counts(world.txn, "a").ready
    assert views.takeable(world.txn, "none", 0) == (0, None, None)


def test_the_leader_sees_what_will_be_due():
    world = World()
    world.apply(*[submit(f"j{n}", queue="ab"[n % 2], delay_ms=10 * n) for n in range(1, 6)])
    assert views.due_queues(world.txn, NOW_MS, 10) == {}
    assert views.due_queues(world.txn, NOW_MS + 30, 10) == {"b": 2, "a": 1}
    assert views.due_queues(world.txn, NOW_MS + 30, 2) == {"b": 1, "a": 1}


def listed_world() -> World:
    """24 jobs over three queues: ready, pending and cancelled in turn."""
    world = World()
    for n in range(24):
        world.do(submit(f"j{n}", queue=("a", "ab", "b")[n % 3], delay_ms=n % 2))
        if n % 4 == 0:
            world.do(CancelJob(f"j{n}"))
    return world


def matches(world: World, seq: int, queue: str | None, state: int | None) -> bool:
    spec, run = views.spec(world.txn, seq), views.run(world.txn, seq)
    assert spec is not None
    assert run is not None
    return queue in (None, spec.queue) and state in (None, run.state)
