"""While the machine is of an older version, what needs a newer one waits for it, or is refused whole: no command that
members of an older build could not read gets into the log. After the raise it works. Each command has its row here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import codec, service
from horae_node.core import commands as c
from horae_node.core.model import KNOWN_VERSIONS
from horae_node.core.tables import links_of
from horae_node.errors import Refused

SINCE: dict[type[Any], int] = {
    c.OpenEpoch: 1,
    c.SubmitJob: 1,
    c.SubmitBatch: 1,
    c.ClaimJobs: 1,
    c.HeartbeatLease: 1,
    c.CompleteJob: 1,
    c.FailJob: 1,
    c.ReleaseJob: 1,
    c.CancelJob: 1,
    c.RequeueJob: 1,
    c.RunJobNow: 1,
    c.DeleteJob: 1,
    c.AdvanceTime: 1,
    c.Nothing: 1,
    c.RaiseMachineVersion: 1,
    c.SetMembers: 1,
    c.AddMember: 1,
    c.PromoteMember: 1,
    c.RemoveMember: 1,
    c.MoveMember: 1,
    c.SetQueue: 2,
    c.CancelJobIn: 2,
    c.RequeueJobIn: 2,
    c.PutSchedule: 4,
    c.DeleteSchedule: 4,
    c.PauseSchedule: 4,
    c.ResumeSchedule: 4,
    c.FireSchedule: 4,
    c.TriggerSchedule: 4,
    c.BackfillSchedule: 4,
}
"""From which machine version on a log may hold the command."""


def since(command: Any) -> int:
    """From which machine version on a log may hold this very command, with all that it says."""
    jobs = [command] if isinstance(command, c.SubmitJob) else command.jobs if isinstance(command, c.SubmitBatch) else []
    specs = [job.spec for job in jobs]
    needed = [SINCE[type(command)]]
    needed += [2 for spec in specs if spec.concurrency_key is not None]
    needed += [3 for spec in specs if links_of(spec) is not None]
    return max(needed)


def submit(**keys: Any) -> wire.SubmitRequest:
    return msgspec.convert({"task": "t"} | keys, wire.SubmitRequest)


@dataclass
class Row:
    """A call that needs a version, and what it comes to before."""

    name: str
    command: type[Any]
    version: int
    call: Callable[[OneNode], Awaitable[Any]]
    before: str
    """`conflict`: refused after a while; `not_found`: there is nothing to do it to; `older`: done by older commands."""


def put(node: OneNode, **keys: Any) -> Awaitable[Any]:
    request = msgspec.convert({"cron": "0 0 1 1 *", "job": {"task": "t"}} | keys, wire.ScheduleRequest)
    return node.service.schedules.put("s", request, None)


def batch(node: OneNode, atomic: bool, **keys: Any) -> Awaitable[Any]:
    return node.service.submit_batch([submit(id="plain"), submit(**keys)], atomic=atomic)


def window(node: OneNode) -> Awaitable[Any]:
    request = msgspec.convert({"from": "1970-01-01T00:00:00Z", "to": "1970-01-01T00:00:01Z"}, wire.BackfillRequest)
    return node.service.schedules.backfill("s", request)


async def fire(node: OneNode) -> None:
    await put(node, cron=None, every_seconds=60)
    await node.pass_ms(60_000)
    await node.have_lines("s", 1)


def many(state: str) -> dict[str, Any]:
    return {"filter": {"queue": "default", "state": state}}


ROWS = [
    Row(
        "set a queue",
        c.SetQueue,
        2,
        lambda node: node.service.set_queue("default", wire.QueuePatch(paused=True)),
        "conflict",
    ),
    Row(
        "cancel many in a state",
        c.CancelJobIn,
        2,
        lambda node: node.service.cancel_many(msgspec.convert(many("ready"), wire.CancelManyRequest)),
        "older",
    ),
    Row(
        "requeue many in a state",
        c.RequeueJobIn,
        2,
        lambda node: node.service.requeue_many(msgspec.convert(many("cancelled"), wire.RequeueManyRequest)),
        "older",
    ),
    Row("a concurrency key", c.SubmitJob, 2, lambda node: node.service.submit(submit(concurrency_key="k")), "conflict"),
    Row("a batch with one", c.SubmitBatch, 2, lambda node: batch(node, True, concurrency_key="k"), "conflict"),
    Row("a loose batch with one", c.SubmitJob, 2, lambda node: batch(node, False, concurrency_key="k"), "conflict"),
    Row("after", c.SubmitJob, 3, lambda node: node.service.submit(submit(after=["ready"])), "conflict"),
    Row("then", c.SubmitJob, 3, lambda node: node.service.submit(submit(then={"task": "t"})), "conflict"),
    Row("a batch with then", c.SubmitBatch, 3, lambda node: batch(node, True, then={"task": "t"}), "conflict"),
    Row("a loose batch with after", c.SubmitJob, 3, lambda node: batch(node, False, after=["plain"]), "conflict"),
    Row("put a schedule", c.PutSchedule, 4, put, "conflict"),
    Row("pause one", c.PauseSchedule, 4, lambda node: node.service.schedules.pause("s"), "not_found"),
    Row("resume one", c.ResumeSchedule, 4, lambda node: node.service.schedules.resume("s", missed=True), "not_found"),
    Row("trigger one", c.TriggerSchedule, 4, lambda node: node.service.schedules.trigger("s"), "not_found"),
    Row("backfill one", c.BackfillSchedule, 4, window, "not_found"),
    Row("delete one", c.DeleteSchedule, 4, lambda node: node.service.schedules.delete("s"), "not_found"),
    Row("fire one", c.FireSchedule, 4, fire, "conflict"),
]


def test_each_command_has_its_row():
    assert SINCE.keys() == set(c.TAGS.values())
    assert {row.command for row in ROWS} >= {command for command, version in SINCE.items() if version > 1}
    assert max(SINCE.values()) == KNOWN_VERSIONS.newest
    for row in ROWS:
        assert SINCE[row.command] <= row.version


async def opened(version: int) -> OneNode:
    """A cluster of that version, with a job that is ready and one that was cancelled."""
    node = await OneNode().open()
    if version > 1:
        await node.proposer.run_one(c.RaiseMachineVersion(version))
    await node.submit(id="ready")
    await node.submit(id="cancelled")
    await node.service.cancel("cancelled")
    return node


def logged(node: OneNode) -> list[Any]:
    return [command for entry in node.raft.entries for command in codec.split_entry(entry)[1]]


def require_readable(node: OneNode) -> None:
    """No command came before the raise to its version."""
    version = 1
    for command in logged(node):
        assert since(command) <= version, f"{command} in the log of a cluster of version {version}"
        if isinstance(command, c.RaiseMachineVersion):
            version = command.version


OLDER = [(row, version) for row in ROWS for version in range(1, row.version)]


@pytest.mark.parametrize(
    ("row", "version"), OLDER, ids=[f"{row.name} in version {version}".replace(" ", "-") for row, version in OLDER]
)
async def test_by_older_rules_nothing_is_half_done_and_after_the_raise_it_works(
    row: Row, version: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "VERSION_LOOKS", 2)
    node = await opened(version)
    entries, before = len(node.raft.entries), node.applier.meta()
    if row.before == "older":
        await row.call(node)
        require_readable(node)
        node = await opened(version)
    else:
        with pytest.raises(Refused) as refused:
            await row.call(node)
        assert refused.value.code == row.before
        if row.before == "conflict":
            assert "older version" in refused.value.detail
        assert node.raft.entries[entries:] == []
        assert node.applier.meta() == before
    await node.proposer.run_one(c.RaiseMachineVersion(row.version))
    if row.before == "not_found":
        await put(node)
    await row.call(node)
    for _ in range(5000):  # the leader's own commands come by its timers
        newer = [command for command in logged(node) if since(command) == row.version and type(command) is row.command]
        if newer:
            break
        await asyncio.sleep(0.001)
    assert newer, "it is by the new command that it is done"
    require_readable(node)


@pytest.mark.parametrize("row", [row for row in ROWS if row.before == "conflict"], ids=lambda row: row.name)
async def test_a_call_waits_for_the_raise(row: Row):
    """A new cluster takes up its newest rules within a second or two of its first election."""
    node = await opened(row.version - 1)
    call = asyncio.ensure_future(row.call(node))
    await settle()
    assert not call.done()
    await node.proposer.run_one(c.RaiseMachineVersion(row.version))
    await call
    require_readable(node)
