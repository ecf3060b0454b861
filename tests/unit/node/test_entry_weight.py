"""An entry has so much work as its commands bring, however few bytes they are."""

from __future__ import annotations

from collections import Counter

from tests.helpers.one_node import OneNode

from horae import wire
from horae_node import codec
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.model import LINKS_VERSION


async def test_jobs_that_wait_for_many_others_are_not_all_cancelled_by_one_entry() -> None:
    """Each drops a row for each of the hundred that it waits for: a thousand of them held each loop for 190 ms."""
    node = await OneNode().open()
    await node.proposer.run_one(RaiseMachineVersion(LINKS_VERSION))
    parents = [(await node.submit(delay_seconds=3600)).id for _ in range(100)]
    for _ in range(200):
        await node.submit(queue="waits", after=parents)
    for _ in range(200):
        await node.submit(queue="plain", delay_seconds=3600)
    entries: Counter[str] = Counter()
    for queue in ("waits", "plain"):
        begun = len(node.raft.entries)
        answer = await node.service.cancel_many(
            wire.CancelManyRequest(filter=wire.CancelFilter(queue=queue), limit=1000)
        )
        assert answer.count == 200
        for entry in node.raft.entries[begun:]:
            commands = len(codec.split_entry(entry)[1])
            entries[queue] = max(entries[queue], commands)
    assert entries["plain"] == 200
    assert entries["waits"] < 100
