"""Under load new work is turned away first, then reads, endings last; and a refusal says honestly when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import codec
from horae_node.clock import ManualClock
from horae_node.core.commands import Nothing, RaiseMachineVersion
from horae_node.core.model import LIMITS_VERSION, LINKS_VERSION
from horae_node.errors import NotApplied, Refused
from horae_node.leader import waiters
from horae_node.service import SMALL_BATCH_JOBS
from horae_node.shedding import MEMORY_S, RETRY_AFTER_S_MAX, Bounds, Crowd, Drain, Rank
from horae_node.turns import Turns

SMALL = Bounds(commands=10)
LEVELS = {9: None, 10: Rank.NEW, 14: Rank.NEW, 15: Rank.READ, 19: Rank.READ, 20: Rank.ENDING}
"""Commands that wait, and the last rank that is turned away then."""


def read(shape: type[Any], **body: Any) -> Any:
    return msgspec.convert(body, shape)


LEASE = {"job_id": "j", "lease_token": 1}
CALLS: dict[str, tuple[Rank, Callable[[OneNode], Awaitable[Any]]]] = {
    "submit": (Rank.NEW, lambda node: node.submit()),
    "submit_batch": (
        Rank.NEW,
        lambda node: node.service.submit_batch([wire.SubmitRequest(task="t")], atomic=False),
    ),
    "claim": (Rank.NEW, lambda node: node.claim()),
    "cancel": (Rank.NEW, lambda node: node.service.cancel("j")),
    "requeue": (Rank.NEW, lambda node: node.service.requeue("j")),
    "run_now": (Rank.NEW, lambda node: node.service.run_now("j")),
    "delete": (Rank.NEW, lambda node: node.service.delete("j")),
    "cancel_many": (Rank.NEW, lambda node: node.service.cancel_many(read(wire.CancelManyRequest, filter={}))),
    "requeue_many": (Rank.NEW, lambda node: node.service.requeue_many(read(wire.RequeueManyRequest, filter={}))),
    "job": (Rank.READ, lambda node: node.service.job("j")),
    "jobs": (Rank.READ, lambda node: node.service.jobs(wire.JobsQuery())),
    "queues": (Rank.READ, lambda node: node.service.queues(limit=1, cursor=None)),
    "queue": (Rank.READ, lambda node: node.service.queue("q")),
    "workers": (Rank.READ, lambda node: node.service.workers(limit=1, cursor=None)),
    "heartbeat": (
        Rank.ENDING,
        lambda node: node.service.heartbeat(read(wire.HeartbeatRequest, worker="w", leases=[LEASE])),
    ),
    "complete": (Rank.ENDING, lambda node: node.service.complete("j", read(wire.CompleteRequest, lease_token=1))),
    "fail": (
        Rank.ENDING,
        lambda node: node.service.fail("j", read(wire.FailRequest, lease_token=1, error={"message": "m"})),
    ),
    "release": (Rank.ENDING, lambda node: node.service.release("j", read(wire.ReleaseRequest, lease_token=1))),
    "end_many": (
        Rank.ENDING,
        lambda node: node.service.end_many(
            read(wire.EndingsRequest, worker="w", leases=[LEASE | {"outcome": "complete"}])
        ),
    ),
    "set_queue": (Rank.ENDING, lambda node: node.service.set_queue("q", read(wire.QueuePatch, paused=True))),
}


async def raise_version(node: OneNode) -> None:
    node.proposer.send([RaiseMachineVersion(LIMITS_VERSION)])
    await settle()


async def crowded(commands: int) -> OneNode:
    """A leader with so many commands that wait for the entry under way."""
    node = await OneNode(bounds=SMALL).open()
    await raise_version(node)
    node.raft.hold = True
    node.proposer.send([Nothing()])
    await settle()
    node.proposer.send([Nothing()] * commands)
    await settle()
    assert node.proposer.queued_commands == commands
    return node


async def is_shed(call: Awaitable[Any]) -> bool:
    """Whether it is turned away at once, rather than answered, refused by the rules, or left waiting."""
    task = asyncio.ensure_future(call)
    await settle()
    if not task.done():
        task.cancel()
        return False
    error = task.exception()
    return isinstance(error, NotApplied) and error.code == "rate_limited"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("commands", LEVELS)
async def test_each_call_is_turned_away_in_its_turn(name: str, commands: int) -> None:
    rank, call = CALLS[name]
    upto = LEVELS[commands]
    assert await is_shed(call(await crowded(commands))) == (upto is not None and rank <= upto)


async def test_what_waits_in_bytes_counts_as_well() -> None:
    node = await OneNode(bounds=Bounds(command_bytes=100)).open()
    node.raft.hold = True
    node.proposer.send([Nothing()])
    await settle()
    assert not await is_shed(node.submit(payload=Raw(b'"%s"' % (b"x" * 200))))
    assert await is_shed(node.submit())


@pytest.mark.parametrize("wait", [0, 30_000])
async def test_local_readings_and_the_clusters_own_are_not_shed(wait: int) -> None:
    """Who looks why nothing is taken must see: a local reading waits for nothing."""
    node = await crowded(20)
    with pytest.raises(Refused, match="not_found"):
        await node.service.job("j", wait_ms=wait, local=True)
    assert (await node.service.jobs(wire.JobsQuery(consistency="local"))).jobs == []


async def test_once_it_has_drained_new_work_is_taken_again() -> None:
    node = await crowded(20)
    node.raft.hold = False
    node.raft.commit_all()
    await settle()
    assert node.proposer.queued_commands == 0
    assert (await node.submit()).state == "ready"


# ---------------------------------------------------------------- when to come back


async def retry_after_s(call: Awaitable[Any]) -> float:
    with pytest.raises(NotApplied) as refused:
        await call
    assert refused.value.retry_after_ms is not None
    seconds = refused.value.retry_after_ms / 1000
    assert f"again in {seconds:g} s" in refused.value.detail
    return seconds


async def busy(stored: int) -> OneNode:
    """A leader that stored so many in a second in which a command waited; that one is under way."""
    node = await OneNode(bounds=Bounds(commands=1000)).open()
    node.raft.hold = True
    for count, span_ms in ((1, 0), (stored, 0), (1, 1000)):
        node.proposer.send([Nothing()] * count)
        await settle()
        if node.proposer.queued_commands:
            node.clock.advance(span_ms)
            node.raft.commit_all()
            await settle()
    return node


@pytest.mark.parametrize(("stored", "seconds"), [(10, RETRY_AFTER_S_MAX), (50, 20), (500, 2), (10_000, 1)])
async def test_new_work_is_asked_back_once_all_that_waits_is_done(stored: int, seconds: int) -> None:
    """By the rate of the second before."""
    node = await busy(stored)
    node.proposer.send([Nothing()] * 1000)
    await settle()
    assert await retry_after_s(node.submit()) == seconds


async def test_reads_and_endings_are_asked_back_sooner_than_new_work() -> None:
    node = await busy(200)
    node.proposer.send([Nothing()] * 2000)
    await settle()
    calls = (node.submit(), node.service.queue("q"), CALLS["heartbeat"][1](node))
    new, reading, ending = [await retry_after_s(call) for call in calls]
    assert (new, reading, ending) == (10, 5, 3)


async def test_what_came_one_by_one_says_nothing_of_how_many_can() -> None:
    """The first refusals of a burst said 60 s, by the rate of the single caller before it."""
    node = await OneNode(bounds=Bounds(commands=1000)).open()
    node.raft.hold = True
    for _ in range(10):
        node.proposer.send([Nothing()])
        await settle()
        node.clock.advance(500)
        node.raft.commit_all()
    await settle()
    node.proposer.send([Nothing()])
    await settle()
    node.proposer.send([Nothing()] * 1000)
    await settle()
    assert await retry_after_s(node.submit()) == 1


async def test_a_rate_is_of_the_time_with_something_to_do() -> None:
    clock = ManualClock()
    drain = Drain(clock)
    for _ in range(50):
        drain.begin()
        clock.advance(100)
        drain.took(20)
        drain.pause()
        clock.advance(60_000)
    assert drain.per_second() == pytest.approx(200)
    assert drain.seconds_for(1000) == 5


async def test_a_rate_forgets_what_was_and_falls_while_nothing_moves() -> None:
    clock = ManualClock()
    drain = Drain(clock)
    drain.begin()
    clock.advance(1000)
    drain.took(1000)
    for _ in range(30):
        clock.advance(1000)
        drain.took(10)
    assert drain.per_second() == pytest.approx(10, rel=0.01)
    clock.advance(round(MEMORY_S * 1000))
    assert drain.per_second() < 5


async def test_of_what_never_moved_it_is_said_to_stand_as_long_again() -> None:
    clock = ManualClock()
    drain = Drain(clock)
    assert drain.seconds_for(100) == 1
    drain.begin()
    clock.advance(7000)
    assert drain.seconds_for(100) == 7
    clock.advance(1_000_000)
    assert drain.seconds_for(100) == RETRY_AFTER_S_MAX


# ---------------------------------------------------------------- callers that wait


async def test_parked_claims_are_bounded_and_one_that_leaves_makes_room() -> None:
    node = await OneNode(bounds=Bounds(claims=2)).open()
    first, second = node.claim(), node.claim()
    await settle()
    assert await retry_after_s(node.claim()) == 1
    assert node.service.waiting()["claim"] == 2
    first.cancel()
    await settle()
    third = node.claim()
    await node.submit()
    assert len(await second) == 1
    await node.submit()
    assert len(await third) == 1
    assert node.service.waiting()["claim"] == 0


async def test_the_names_in_parked_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim may have a thousand."""
    monkeypatch.setattr(waiters, "NAMES_MAX", 5)
    node = await OneNode().open()
    first, second = node.claim("a", "b", "c"), node.claim("a", "b")
    await settle()
    assert await retry_after_s(node.claim("a")) == 1
    first.cancel()
    await settle()
    assert await retry_after_s(node.claim("a", "b", "c", "d")) == 1
    third = node.claim("a", "b", "c")
    await settle()
    assert not third.done()
    for task in (second, third):
        task.cancel()


async def test_readings_that_wait_for_a_finish_are_bounded() -> None:
    node = await OneNode(bounds=Bounds(finish_waits=1)).open()
    await node.submit(id="j")
    waits = asyncio.create_task(node.service.job("j", wait_ms=30_000))
    await settle()
    assert await retry_after_s(node.service.job("j", wait_ms=30_000)) == 1
    assert (await node.service.job("j")).state == "ready", "who does not wait is answered"
    await node.service.cancel("j")
    assert (await waits).state == "cancelled"


async def test_readings_that_wait_for_the_leader_to_be_sure_are_bounded() -> None:
    crowd = Crowd("readings", 2)
    with crowd.one(), crowd.one(), pytest.raises(NotApplied, match="2 readings wait already"), crowd.one():
        pass
    assert crowd.waiting == 0


async def test_a_part_of_a_bound_is_kept_for_those_who_may_have_all_of_it() -> None:
    crowd = Crowd("requests", 4)
    with crowd.one(50), crowd.one(50):
        with pytest.raises(NotApplied), crowd.one(50):
            pass
        with crowd.one(), crowd.one(), pytest.raises(NotApplied), crowd.one():
            pass


async def test_lists_that_wait_for_their_turn_are_bounded_by_how_long_one_takes() -> None:
    clock = ManualClock()
    turns = Turns(clock, "lists", 3)

    async def look() -> None:
        async with turns.one():
            clock.advance(1500)

    await look()
    waiting = [asyncio.create_task(look()) for _ in range(3)]
    await asyncio.sleep(0)
    assert await retry_after_s(look()) == 5
    await asyncio.gather(*waiting)
    await look()


async def test_large_batches_come_one_a_pass_of_the_loop() -> None:
    """Twenty of a thousand jobs that had been read side by side held the loop for 0.2 s."""
    node = await OneNode().open()
    node.raft.hold = True
    node.proposer.send([Nothing()])
    await settle()
    jobs = [wire.SubmitRequest(task="t") for _ in range(SMALL_BATCH_JOBS + 1)]
    batches = [asyncio.create_task(node.service.submit_batch(jobs, atomic=False)) for _ in range(4)]
    taken = [_taken(node)]
    begun = taken[0]
    while taken[-1] < begun + 4 * len(jobs):
        await asyncio.sleep(0)
        taken.append(_taken(node))
    assert {after - before for before, after in pairwise(taken)} <= {0, len(jobs)}
    node.raft.hold = False
    node.raft.commit_all()
    assert [len(results) for results in await asyncio.gather(*batches)] == [len(jobs)] * 4


@pytest.mark.parametrize("follows", [False, True])
async def test_large_payloads_are_known_by_their_content_in_turns(follows: bool) -> None:
    """Each is read once more: 31 of them in one pass held the loop for 0.2 s."""
    node = await OneNode().open()
    await raise_version(node)
    node.proposer.send([RaiseMachineVersion(LINKS_VERSION)])
    await settle()
    large = Raw(b'"%s"' % (b"x" * 100_000))
    jobs = [
        wire.SubmitRequest(task="t", id=f"j{number}", then=wire.SubmitRequest(task="u", payload=large))
        if follows
        else wire.SubmitRequest(task="t", id=f"j{number}", payload=large)
        for number in range(20)
    ]
    node.raft.hold = True
    batch = asyncio.create_task(node.service.submit_batch(jobs, atomic=False))
    passes = 0
    begun = _taken(node)
    while _taken(node) == begun:
        passes += 1
        await asyncio.sleep(0)
    assert passes >= len(jobs)
    node.raft.hold = False
    node.raft.commit_all()
    assert len(await batch) == len(jobs)


def _taken(node: OneNode) -> int:
    """Commands that wait, or have left."""
    left = sum(len(codec.split_entry(entry)[1]) for entry in node.raft.entries)
    return left + node.proposer.queued_commands


def test_long_waits_leave_a_quarter_of_the_connections_to_others() -> None:
    few = Bounds().within(1000)
    assert (few.claims, few.finish_waits) == (500, 250)
    assert Bounds().within(1_000_000) == Bounds()


# ---------------------------------------------------------------- a queue's own depth


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 1),
        ({"rate_per_second": 0.1}, 10),
        ({"rate_per_second": 50}, 1),
        ({"paused": True}, RETRY_AFTER_S_MAX),
        ({"max_depth": 0}, RETRY_AFTER_S_MAX),
    ],
)
async def test_past_its_depth_a_queue_asks_back_when_it_may_have_let_one_out(
    settings: dict[str, Any], seconds: int
) -> None:
    node = await OneNode().open()
    await raise_version(node)
    await node.submit()
    await node.service.set_queue("default", read(wire.QueuePatch, **{"max_depth": 1, **settings}))
    with pytest.raises(Refused, match=f"again in {seconds} s") as refused:
        await node.submit()
    assert (refused.value.code, refused.value.retry_after_ms) == ("rate_limited", seconds * 1000)
    of_item = (await node.service.submit_batch([wire.SubmitRequest(task="t")], atomic=False))[0]
    assert isinstance(of_item, Refused)
    assert of_item.detail == refused.value.detail


async def test_a_full_queue_says_how_much_it_holds_and_how_much_it_may() -> None:
    node = await OneNode().open()
    await raise_version(node)
    for number in range(3):
        await node.submit(delay_seconds=number)
    await node.service.set_queue("default", read(wire.QueuePatch, max_depth=1))
    with pytest.raises(Refused) as refused:
        await node.submit()
    holds = "queue 'default' holds 3 pending and ready jobs, and its max_depth is 1"
    assert refused.value.detail == f"{holds}: try again in 1 s"
