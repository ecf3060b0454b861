"""Settings of queues: what an operator changes while the cluster runs, and what a changed limit has looked at anew."""

from __future__ import annotations

from typing import Any

from horae_node.core.changes import Change, Decision, GroupLooked, QueueSet, RegroupMoved
from horae_node.core.commands import SetQueue
from horae_node.core.context import Context
from horae_node.core.results import Done, Rejected
from horae_node.core.tables import GROUP_BYTES, REGROUP, after_queue, queue_keys

TOO_OLD = Rejected(
    "conflict",
    "the cluster runs by the rules of an older version, which know neither settings of queues nor a concurrency_key: "
    "it takes up the new ones by itself once every member was upgraded and is reachable",
)


def decide_set_queue(ctx: Context, command: SetQueue) -> Decision:
    """What is not named stays as it is. Settings hold for a name, whether or not the queue has jobs."""
    if not ctx.limits:
        return TOO_OLD, ()
    before = ctx.settings(command.queue)
    named: dict[str, Any] = dict(command.changes)
    after = before._replace(**named)
    if after == before:
        return Done(0, True), ()
    return Done(), (QueueSet(command.queue, before, after._replace(version=ctx.index)),)


def decide_regroups(ctx: Context, budget: int) -> list[Change]:
    """Groups of a queue whose limit for each key has changed: whether they may run one more."""
    rows = ctx.txn.scan(REGROUP + b"\2", REGROUP + b"\xff", limit=1)
    if not rows:
        return []
    key, row = rows[0]
    queue = key[1:].decode()
    prefix = queue_keys(queue).group
    start = prefix + row[0] + b"\0" if row[0] else prefix
    groups = [found[-GROUP_BYTES:] for found in ctx.txn.keys(start, after_queue(prefix), limit=budget)]
    changes: list[Change] = [GroupLooked(queue, group) for group in groups]
    return [*changes, RegroupMoved(queue, groups[-1] if len(groups) == budget else None)]
