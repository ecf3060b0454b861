"""Bulk changes and the list of queues on one node: what a filter means, how pages go on, what is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import bulk, reads
from horae_node.clock import ManualClock
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.results import Done, Rejected
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused
from horae_node.turns import Turns


def requeue(**keys: Any) -> wire.RequeueManyRequest:
    return msgspec.convert({"filter": {}} | keys, wire.RequeueManyRequest)


def cancel(**keys: Any) -> wire.CancelManyRequest:
    return msgspec.convert({"filter": {}} | keys, wire.CancelManyRequest)


async def dead_jobs(node: OneNode, *job_ids: str, **keys: Any) -> None:
    """Make jobs that fail for good."""
    for job_id in job_ids:
        await node.submit(id=job_id, **keys)
        (job,) = await node.claim(keys.get("queue", "default"))
        failure = msgspec.convert({"lease_token": job.lease_token, "error": {}, "retry": False}, wire.FailRequest)
        await node.service.fail(job_id, failure)


async def states(node: OneNode) -> dict[str, str]:
    page = await node.service.jobs(wire.JobsQuery(limit=1000))
    return {job.id: job.state for job in page.jobs}


@pytest.fixture
async def node() -> OneNode:
    return await OneNode().open()


async def test_a_filter_means_what_has_all_that_is_given(node: OneNode) -> None:
    await dead_jobs(node, "plain")
    await dead_jobs(node, "queue", queue="mail")
    await dead_jobs(node, "task", queue="mail", task="send")
    await dead_jobs(node, "tag", queue="mail", task="send", tags={"tenant": "a:b", "x": "y"})
    await node.submit(id="waits", queue="mail", task="send", tags={"tenant": "a:b"}, delay_seconds=60)
    every = {"queue": "mail", "task": "send", "tag": "tenant:a:b"}
    assert await node.service.requeue_many(requeue(filter=every | {"tag": "tenant:a"})) == wire.BulkAnswer(0, None)
    assert await node.service.requeue_many(requeue(filter=every)) == wire.BulkAnswer(1, None)
    assert await states(node) == {"plain": "dead", "queue": "dead", "task": "dead", "tag": "ready", "waits": "pending"}
    assert (await node.service.requeue_many(requeue(filter={"task": "send"}))).count == 1
    assert (await node.service.requeue_many(requeue(filter={"queue": "mail"}))).count == 1
    assert (await node.service.requeue_many(requeue(filter={"tag": "x:y"}))).count == 0, "it is dead no more"
    assert (await node.service.requeue_many(requeue())).count == 1
    assert set((await states(node)).values()) == {"ready", "pending"}


async def test_a_requeue_leaves_what_was_cancelled_unless_it_is_named(node: OneNode) -> None:
    await node.submit(id="c")
    await node.service.cancel("c")
    assert (await node.service.requeue_many(requeue())).count == 0
    assert (await node.service.requeue_many(requeue(filter={"state": "cancelled"}))).count == 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
async def test_pages_change_each_job_once(node: OneNode, limit: int) -> None:
    await dead_jobs(node, *"abc")
    await dead_jobs(node, *"de", queue="mail")
    counts, cursor = [], None
    while True:
        answer = await node.service.requeue_many(requeue(limit=limit, cursor=cursor))
        counts.append(answer.count)
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert sum(counts) == 5
    assert max(counts) <= limit
    assert set((await states(node)).values()) == {"ready"}


async def test_a_cancel_takes_all_that_is_not_finished(node: OneNode) -> None:
    await dead_jobs(node, "dead")
    await node.submit(id="pending", delay_seconds=60)
    await node.submit(id="running")
    await node.claim()
    await node.submit(id="ready")
    counts, cursor = [], None
    for _ in range(4):
        answer = await node.service.cancel_many(cancel(limit=1, cursor=cursor))
        counts.append(answer.count)
        cursor = answer.next_cursor
    assert (counts, cursor) == ([1, 1, 1, 0], None), "pending, ready, running"
    found = {"dead": "dead", "pending": "cancelled", "ready": "cancelled", "running": "running"}
    assert await states(node) == found
    assert (await node.service.job("running")).cancel_requested
    assert (await node.service.cancel_many(cancel())).count == 0, "it was asked already"


async def test_a_page_looks_at_a_bounded_number_of_jobs(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await dead_jobs(node, "old", task="rare")
    await dead_jobs(node, *"abcd")
    monkeypatch.setattr(bulk, "EXAMINED_MAX", 3)
    first = await node.service.requeue_many(requeue(filter={"task": "rare"}))
    assert first.count == 0
    assert first.next_cursor is not None, "there is more to look at"
    assert await node.service.requeue_many(
        requeue(filter={"task": "rare"}, cursor=first.next_cursor)
    ) == wire.BulkAnswer(1, None)


async def test_a_page_reads_a_bounded_number_of_bytes(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    await dead_jobs(node, *"abc", payload=Raw(b'"' + b"x" * 100 + b'"'))
    monkeypatch.setattr(bulk, "EXAMINED_BYTES_MAX", 200)
    first = await node.service.requeue_many(requeue())
    assert first.count == 2
    assert first.next_cursor is not None
    assert await node.service.requeue_many(requeue(cursor=first.next_cursor)) == wire.BulkAnswer(1, None)


async def test_a_job_that_changed_meanwhile_is_not_counted(node: OneNode) -> None:
    await dead_jobs(node, *"ab")
    node.raft.hold = True
    single = asyncio.create_task(node.service.requeue("a"))
    await settle()
    many = asyncio.create_task(node.service.requeue_many(requeue()))
    await settle()
    node.raft.hold = False
    node.raft.commit_all()
    await single
    assert (await many).count == 1


@pytest.mark.parametrize("cursor", ["", "!", "xx", "abcdefghijkl"])
async def test_a_cursor_of_nothing_is_refused_by_name(node: OneNode, cursor: str) -> None:
    for call in (node.service.requeue_many(requeue(cursor=cursor)), node.service.queues(limit=5, cursor=cursor)):
        with pytest.raises(Refused) as refused:
            await call
        assert (refused.value.code, refused.value.pointer) == ("invalid", "/cursor")


async def test_a_cursor_of_another_filter_is_refused(node: OneNode) -> None:
    await dead_jobs(node, *"ab")
    cursor = (await node.service.requeue_many(requeue(limit=1))).next_cursor
    assert cursor is not None
    with pytest.raises(Refused, match="another filter"):
        await node.service.cancel_many(cancel(cursor=cursor))
    with pytest.raises(Refused, match="not a cursor of this list"):
        await node.service.jobs(wire.JobsQuery(limit=1, cursor=cursor))


def test_what_is_known_of_a_page_that_failed() -> None:
    away, unknown = NotApplied("no_leader", "gone"), OutcomeUnknown("who knows")
    assert bulk.count_changed([Done(1), Done(2, True), Rejected("conflict", "")]) == 1
    with pytest.raises(NotApplied, match="gone"):
        bulk.count_changed([away, away])
    for results in ([Done(1), away], [away, unknown], [unknown]):
        with pytest.raises(OutcomeUnknown, match=f"some of {len(results)} jobs"):
            bulk.count_changed(results)


async def test_queues_are_listed_by_name_with_their_depth_and_how_long_they_wait(node: OneNode) -> None:
    await node.submit(queue="b", priority=5)
    await node.pass_ms(1500)
    await node.submit(queue="b", priority=9)
    await node.submit(queue="b", delay_seconds=60)
    await node.submit(queue="a", delay_seconds=60)
    await dead_jobs(node, "d", queue="c")
    first = await node.service.queues(limit=2, cursor=None)
    assert [(queue.name, queue.oldest_ready_seconds) for queue in first.queues] == [("a", None), ("b", 1.5)]
    assert first.queues[1].depth == wire.DepthView(1, 2, 0, 0, 0, 0, 0)
    second = await node.service.queues(limit=2, cursor=first.next_cursor)
    assert [(queue.name, queue.depth.dead) for queue in second.queues] == [("c", 1)]
    assert second.next_cursor is None


async def test_a_page_of_queues_takes_a_bounded_number_of_looks(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in "abc":
        for priority in (1, 2):
            await node.submit(queue=queue, priority=priority)
    monkeypatch.setattr(reads, "QUEUE_LOOKS_MAX", 3)
    first = await node.service.queues(limit=50, cursor=None)
    assert [queue.name for queue in first.queues] == ["a", "b"]
    second = await node.service.queues(limit=50, cursor=first.next_cursor)
    assert ([queue.name for queue in second.queues], second.next_cursor) == (["c"], None)


async def test_only_some_queues_are_listed_to_who_is_held_to_them(node: OneNode) -> None:
    for queue in "abc":
        await node.submit(queue=queue)
    only = frozenset({"c", "a", "none"})
    first = await node.service.queues(limit=1, cursor=None, only=only)
    assert [queue.name for queue in first.queues] == ["a"]
    second = await node.service.queues(limit=1, cursor=first.next_cursor, only=only)
    assert [queue.name for queue in second.queues] == ["c"]
    assert (await node.service.queues(limit=1, cursor=second.next_cursor, only=only)).queues == []


async def test_a_job_that_left_its_named_state_meanwhile_is_left_alone(node: OneNode) -> None:
    await raise_version(node)
    for number in range(3):
        await node.submit(id=f"j{number}")
    await node.claim()  # j0 runs by now
    page = bulk.Page(["j0", "j1", "j2"], None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "page", lambda view, request: page)
        answer = await node.service.cancel_many(cancel(filter={"state": "ready"}))
    assert answer == wire.BulkAnswer(2, None)
    job = await node.service.job("j0")
    assert (job.state, job.cancel_requested) == ("running", False)


async def test_a_cursor_holds_for_its_own_filter_only(node: OneNode) -> None:
    await dead_jobs(node, "a", "b")
    cursor = (await node.service.requeue_many(requeue(filter={"state": "dead"}, limit=1))).next_cursor
    for other in ({"task": "u"}, {"queue": "q"}):
        with pytest.raises(Refused, match="another filter"):
            await node.service.requeue_many(requeue(filter=other, cursor=cursor))
    assert (await node.service.requeue_many(requeue(cursor=cursor))).count == 1


async def test_jobs_are_listed_by_task_tag_and_schedule(node: OneNode) -> None:
    await node.submit(id="a", task="send", tags={"k": "v"})
    await node.submit(id="b", task="send")
    await node.submit(id="c", tags={"k": "v"})
    for wanted, ids in [
        ({"task": "send"}, ["b", "a"]),
        ({"tag": "k:v"}, ["c", "a"]),
        ({"task": "send", "tag": "k:v", "state": "ready"}, ["a"]),
        ({"tag": "k:w"}, []),
        ({"schedule_id": "s"}, []),
    ]:
        page = await node.service.jobs(msgspec.convert(wanted, wire.JobsQuery))
        assert ([job.id for job in page.jobs], page.next_cursor) == (ids, None)
    first = await node.service.jobs(wire.JobsQuery(task="send", limit=1))
    rest = await node.service.jobs(wire.JobsQuery(task="send", limit=1, cursor=first.next_cursor))
    assert ([job.id for job in rest.jobs], [job.id for job in first.jobs]) == (["a"], ["b"])


async def test_a_filtered_page_looks_at_so_many_and_goes_on(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "EXAMINED_MAX", 4)
    await node.submit(id="rare", task="rare")
    for number in range(10):
        await node.submit(id=f"j{number}")
    found: list[str] = []
    cursor, pages = None, 0
    while cursor is not None or not pages:
        page = await node.service.jobs(wire.JobsQuery(task="rare", cursor=cursor))
        found += [job.id for job in page.jobs]
        cursor, pages = page.next_cursor, pages + 1
    assert (found, pages) == (["rare"], 3)


async def test_long_looks_come_one_a_pass_of_the_loop() -> None:
    """A hundred callers that waited for one barrier built their pages in one pass: a stall of 0.9 s."""
    turns, passes = Turns(ManualClock(), "looks", 5), 0
    begun: list[int] = []

    async def look() -> None:
        async with turns.one():
            begun.append(passes)

    looks = [asyncio.create_task(look()) for _ in range(5)]
    while not all(task.done() for task in looks):
        passes += 1
        await asyncio.sleep(0)
    assert sorted({*begun}) == sorted(begun)


async def raise_version(node: OneNode) -> None:
    node.proposer.send([RaiseMachineVersion(2)])
    await settle()


async def test_a_list_by_state_and_task_has_those_that_are_both() -> None:
    node = await OneNode().open()
    for number in range(4):
        await node.submit(id=f"j{number}", task="t" if number else "u", tags={"k": "v"})
    await node.service.cancel("j0")
    await node.service.cancel("j2")
    for keys in ({"task": "t"}, {"tag": "k:v", "task": "t"}):
        listed = await node.service.jobs(wire.JobsQuery(state="cancelled", **keys))
        assert [job.id for job in listed.jobs] == ["j2"]
    assert [job.id for job in (await node.service.jobs(wire.JobsQuery(queue="other", tag="k:v"))).jobs] == []
