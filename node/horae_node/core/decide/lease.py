"""Keeping a lease: a heartbeat renews it by its own length, and takes the job's progress along."""

from __future__ import annotations

from horae_node.core.changes import Decision, LeaseRenewed
from horae_node.core.commands import HeartbeatLease
from horae_node.core.context import Context
from horae_node.core.decide.finish import LEASE_LOST, NOT_FOUND
from horae_node.core.decide.reading import find_job
from horae_node.core.results import Heartbeat
from horae_node.core.runs import renewed
from horae_node.core.tables import S_RUNNING


def decide_heartbeat(ctx: Context, command: HeartbeatLease) -> Decision:
    """One read and one write of the run: the watch index is left behind, and catches up when its moment comes.

    A lease that is over by the clock, but that no sweep has taken yet, is renewed: nobody else can hold the job.
    """
    job_id, token, progress = command
    found = find_job(ctx, job_id)
    if found is None:
        return NOT_FOUND, ()
    seq, run = found[0][0], found[1]
    if run.token != token or run.state != S_RUNNING:
        return LEASE_LOST, ()
    lease_end = ctx.lease_clock + run.lease_ms
    after = renewed(run, lease_end=lease_end, index=ctx.index)
    return Heartbeat(seq, lease_end, run.cancel_requested), (LeaseRenewed(seq, after, progress),)
