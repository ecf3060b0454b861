"""What callers have reckoned of schedules takes turns: a few milliseconds a pass of the loop, all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node.clock import ManualClock
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.model import SCHEDULES_VERSION
from horae_node.errors import NotApplied
from horae_node.schedules import RECKON_MS_MAX
from horae_node.shedding import Bounds

RULE = {"cron": "* * * * *", "job": {"task": "t"}}
FROM, TO = "2023-11-14T00:00:00Z", "2023-11-14T22:00:00Z"
CALLS = ("next", "preview", "backfill")


class SlowClock(ManualClock):
    """Each look at it costs a millisecond: as if each moment that is reckoned did."""

    def monotonic_ms(self) -> int:
        self.advance(1)
        return super().monotonic_ms()


async def node_with_schedules(count: int, **keys: Any) -> OneNode:
    node = await OneNode(clock=SlowClock(), **keys).open()
    node.proposer.send([RaiseMachineVersion(SCHEDULES_VERSION)])
    await settle()
    for number in range(count):
        await node.service.schedules.put(f"s{number}", msgspec.convert(RULE, wire.ScheduleRequest), None)
    return node


def ask(node: OneNode, name: str, number: int, moments: int) -> Awaitable[Any]:
    schedules = node.service.schedules
    if name == "preview":
        return schedules.preview(msgspec.convert(RULE | {"from": FROM, "n": moments}, wire.PreviewRequest))
    if name == "next":
        return schedules.next_times(f"s{number}", msgspec.convert({"from": FROM, "n": moments}, wire.NextQuery))
    return schedules.backfill(f"s{number}", msgspec.convert({"from": FROM, "to": TO}, wire.BackfillRequest))


@pytest.mark.parametrize("name", CALLS)
async def test_many_callers_get_no_more_of_a_pass_than_one(name: str) -> None:
    """Each had its own slice in every pass: 24 of them held the loop for 0.4 s, 60 ended all writes."""
    callers, moments = 8, 100
    node = await node_with_schedules(callers)
    asked = [asyncio.ensure_future(ask(node, name, number, moments)) for number in range(callers)]
    passes = 0
    while not all(task.done() for task in asked):
        passes += 1
        await asyncio.sleep(0)
    answers = [task.result() for task in asked]
    if name == "backfill":
        assert {answer.count for answer in answers} == {1000}
        moments = 1000
    else:
        assert {len(answer.times) for answer in answers} == {moments}
    assert passes >= callers * moments // RECKON_MS_MAX


@pytest.mark.parametrize("name", CALLS)
async def test_so_many_callers_may_wait_for_it(name: str) -> None:
    node = await node_with_schedules(3, bounds=Bounds(turns=2))
    asked = [asyncio.ensure_future(ask(node, name, number, 1000)) for number in range(2)]
    await settle()
    assert node.service.waiting()["reckoning"] == 2
    with pytest.raises(NotApplied, match="2 reckonings of schedules wait already") as refused:
        await ask(node, name, 2, 1000)
    assert refused.value.code == "rate_limited"
    assert refused.value.retry_after_ms
    await asyncio.gather(*asked)
    assert node.service.waiting()["reckoning"] == 0
    await ask(node, name, 2, 10)


async def test_rules_that_are_checked_take_turns_too() -> None:
    """A line is compiled and asked for its first moment: a millisecond or two each."""
    node = await node_with_schedules(0)
    request = msgspec.convert(RULE, wire.ScheduleRequest)
    puts = [asyncio.create_task(node.service.schedules.put(f"s{number}", request, None)) for number in range(4)]
    await settle_passes(3)
    assert node.service.waiting()["reckoning"] >= 2
    assert [made for _, made in await asyncio.gather(*puts)] == [True] * 4


async def settle_passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
