"""The machine's one door: `apply`. Pure: the same index, entry and state give the same outcomes and the same state.

Each command is first decided (`decide/`, reads only), then its changes are written (`evolve.py`); counts and `Meta`
are written once an entry. Next to read: `decide/`, then `evolve.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from horae_node.core.changes import Change, Decision
from horae_node.core.commands import (
    ENTRY_VERSION,
    AddMember,
    AdvanceTime,
    BackfillSchedule,
    CancelJob,
    CancelJobIn,
    ClaimJobs,
    Command,
    CompleteJob,
    DeleteJob,
    DeleteSchedule,
    FailJob,
    FireSchedule,
    Header,
    HeartbeatLease,
    MoveMember,
    Nothing,
    OpenEpoch,
    PauseSchedule,
    PromoteMember,
    PutSchedule,
    RaiseMachineVersion,
    ReleaseJob,
    RemoveMember,
    RequeueJob,
    RequeueJobIn,
    ResumeSchedule,
    RunJobNow,
    SetMembers,
    SetQueue,
    SubmitBatch,
    SubmitJob,
    TriggerSchedule,
)
from horae_node.core.context import Context
from horae_node.core.decide.advance import HOUSEKEEPING, HOUSEKEEPING_MAX, HOUSEKEEPING_SHARE, URGENT
from horae_node.core.decide.claim import decide_claim
from horae_node.core.decide.epoch import STALE_EPOCH, decide_nothing, decide_open_epoch
from horae_node.core.decide.finish import decide_complete, decide_fail, decide_release
from horae_node.core.decide.lease import decide_heartbeat
from horae_node.core.decide.members import (
    decide_add_member,
    decide_move_member,
    decide_promote_member,
    decide_remove_member,
    decide_set_members,
    read_members,
)
from horae_node.core.decide.operate import (
    decide_cancel,
    decide_cancel_in,
    decide_delete,
    decide_requeue,
    decide_requeue_in,
    decide_run_now,
)
from horae_node.core.decide.queues import decide_set_queue
from horae_node.core.decide.schedules import (
    decide_backfill_schedule,
    decide_delete_schedule,
    decide_fire_schedule,
    decide_pause_schedule,
    decide_put_schedule,
    decide_resume_schedule,
    decide_trigger_schedule,
)
from horae_node.core.decide.submit import decide_submit, decide_submit_batch
from horae_node.core.decide.version import decide_raise_version
from horae_node.core.evolve import evolve
from horae_node.core.model import FIRST_META, KNOWN_VERSIONS, Meta, Versions
from horae_node.core.results import Advanced, EntryOutcome, Outcome
from horae_node.core.tables import CLAIM_SWEEP, DUE, EXPIRY, META, REGROUP, RETENTION, WATCH, member_key, meta_of
from horae_storage.kv import Txn, View


class Deadline(NamedTuple):
    """When something falls due next: by cluster time, and by the lease clock. None = nothing waits."""

    wall_ms: int | None
    lease_clock: int | None


def apply(
    index: int, header: Header, commands: tuple[Command, ...], txn: Txn, known: Versions = KNOWN_VERSIONS
) -> EntryOutcome:
    """Apply one log entry, with all its effects and `Meta` in `txn`.

    `index` must be `applied_index + 1` (asserted). Commands of another epoch than the machine's are each
    `Rejected("stale_epoch")`, but `OpenEpoch`, which compares and sets; the clocks of such an entry do not count.
    `known` are the machine versions that may be met. Raises: `AssertionError`, `Corrupt` or `UnknownVersion` only, all
    fatal: what `txn` holds of the entry by then must never be committed.
    """
    row = txn.get(META)
    meta = FIRST_META if row is None else meta_of(row)
    assert index == meta.applied_index + 1, f"entry {index} after {meta.applied_index}"
    assert known.have(meta.machine_version), f"state of machine version {meta.machine_version}"
    assert header.version == ENTRY_VERSION, f"entry of version {header.version}"
    txn.seed_digest(meta.digest)
    ctx = Context(index, meta, txn, known)
    if header.epoch == ctx.epoch:
        ctx.now_ms = max(ctx.now_ms, header.now_ms)
        ctx.lease_clock = max(ctx.lease_clock, header.lease_clock)
    outcomes = tuple([_apply_command(ctx, header.epoch, command) for command in commands])
    ctx.flush()
    txn.put(META, _next_meta(ctx, txn.digest))
    return EntryOutcome(
        outcomes,
        ctx.ready_queues(),
        tuple(ctx.finished),
        tuple(ctx.died),
        ctx.members_changed,
        ctx.changes,
        ctx.now_ms,
        ctx.unsettled,
    )


def next_deadline(view: View) -> Deadline:
    """The earliest moment at which `AdvanceTime` would do something. A few bounded index look-ups."""
    wall = [_first(view, DUE), _first(view, EXPIRY), _first(view, RETENTION)]
    if view.keys(REGROUP, REGROUP + b"\xff", limit=1):
        wall.append(0)
    lease = [_first(view, WATCH), _first(view, CLAIM_SWEEP)]
    return Deadline(_earliest(wall), _earliest(lease))


def forget_members(txn: Txn) -> None:
    """Make the state one whose members were never written down, outside of any entry: for a cluster that begins anew.

    All nodes of that cluster must do so at the same index, or their digests differ from then on.
    """
    row = txn.get(META)
    if row is None:
        return
    txn.seed_digest(meta_of(row).digest)
    for node_id in sorted(read_members(txn)):
        txn.delete(member_key(node_id))
    txn.put(META, meta_of(row)._replace(digest=txn.digest))


def _apply_command(ctx: Context, epoch: int, command: Command) -> Outcome:
    kind = type(command)
    if epoch != ctx.epoch and kind is not OpenEpoch:
        return STALE_EPOCH
    if kind is AdvanceTime:
        return _advance(ctx, command)  # type: ignore[arg-type]
    decide = _DECIDERS.get(kind)
    assert decide is not None, f"unknown command {kind.__name__}"
    outcome, changes = decide(ctx, command)
    _evolve_all(ctx, changes)
    return outcome


def _evolve_all(ctx: Context, changes: Sequence[Change]) -> None:
    for change in changes:
        evolve(ctx, change)
    ctx.changes.extend(changes)


def _advance(ctx: Context, command: AdvanceTime) -> Advanced:
    """Phase by phase, each written before the next decides."""
    limit = command.limit
    items = 0
    for phases, reserve in ((URGENT, limit // HOUSEKEEPING_SHARE), (HOUSEKEEPING, 0)):
        if phases is HOUSEKEEPING and ctx.links:
            limit = min(limit, items + HOUSEKEEPING_MAX)
        for decide in phases:
            left = limit - reserve - items
            if left <= 0:
                break
            changes = decide(ctx, left)
            _evolve_all(ctx, changes)
            items += len(changes)
    return Advanced(items, _is_due(next_deadline(ctx.txn), ctx))


def _is_due(deadline: Deadline, ctx: Context) -> bool:
    return (deadline.wall_ms is not None and deadline.wall_ms <= ctx.now_ms) or (
        deadline.lease_clock is not None and deadline.lease_clock <= ctx.lease_clock
    )


def _next_meta(ctx: Context, digest: int) -> Meta:
    return Meta(ctx.version, ctx.index, ctx.now_ms, ctx.lease_clock, ctx.epoch, ctx.epoch_node, digest, ctx.job_seq)


def _first(view: View, table: bytes) -> int | None:
    """The earliest moment in a table keyed by moment."""
    keys = view.keys(table, table + b"\xff" * 9, limit=1)
    return int.from_bytes(keys[0][1:9], "big") if keys else None


def _earliest(moments: list[int | None]) -> int | None:
    return min([moment for moment in moments if moment is not None], default=None)


_DECIDERS: dict[type, Callable[[Context, Any], Decision]] = {
    OpenEpoch: decide_open_epoch,
    SubmitJob: decide_submit,
    SubmitBatch: decide_submit_batch,
    ClaimJobs: decide_claim,
    HeartbeatLease: decide_heartbeat,
    CompleteJob: decide_complete,
    FailJob: decide_fail,
    ReleaseJob: decide_release,
    CancelJob: decide_cancel,
    RequeueJob: decide_requeue,
    RunJobNow: decide_run_now,
    DeleteJob: decide_delete,
    Nothing: decide_nothing,
    RaiseMachineVersion: decide_raise_version,
    SetMembers: decide_set_members,
    SetQueue: decide_set_queue,
    CancelJobIn: decide_cancel_in,
    RequeueJobIn: decide_requeue_in,
    AddMember: decide_add_member,
    PromoteMember: decide_promote_member,
    PutSchedule: decide_put_schedule,
    DeleteSchedule: decide_delete_schedule,
    PauseSchedule: decide_pause_schedule,
    ResumeSchedule: decide_resume_schedule,
    FireSchedule: decide_fire_schedule,
    TriggerSchedule: decide_trigger_schedule,
    BackfillSchedule: decide_backfill_schedule,
    RemoveMember: decide_remove_member,
    MoveMember: decide_move_member,
}
