"""Who may command: opening a leader's epoch, and the barrier that proves it still holds."""

from __future__ import annotations

from horae_node.core.changes import Decision, EpochRaised
from horae_node.core.commands import Nothing, OpenEpoch
from horae_node.core.context import Context
from horae_node.core.results import Done, EpochOpened, Rejected

STALE_EPOCH = Rejected("stale_epoch", "another leader's epoch has been opened")


def decide_open_epoch(ctx: Context, command: OpenEpoch) -> Decision:
    """Compare and set: of two new leaders that saw the same epoch, the first in the log has it."""
    if command.previous_epoch != ctx.epoch:
        return STALE_EPOCH, ()
    epoch = ctx.epoch + 1
    return EpochOpened(epoch), (EpochRaised(epoch, command.node_id),)


def decide_nothing(ctx: Context, command: Nothing) -> Decision:
    return _DONE


_DONE: Decision = (Done(), ())
