"""The only writer of the tables: each change, with every index row that follows from it.

No rules here: a change was decided on the very state that it finds. Rows are added and removed for the two states
of a transition, so that whatever leaves a state leaves all of its indexes (`invariants.py` rebuilds and compares).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horae_node.core.changes import (
    ClaimForgotten,
    ClaimRecorded,
    EpochRaised,
    ErrorNoted,
    GroupLooked,
    JobChanged,
    JobGranted,
    JobPurged,
    JobSettled,
    JobSubmitted,
    LeaseRenewed,
    LedgerErased,
    LossWithdrawn,
    MemberChanged,
    Needs,
    NeedsMet,
    QueueSet,
    RegroupMoved,
    ScheduleDeleted,
    ScheduleMoved,
    SchedulePut,
    SpecAmended,
    TombstoneSwept,
    TriggerNoted,
    VersionRaised,
    WatchMoved,
)
from horae_node.core.context import Context
from horae_node.core.limits import MICRO, burst_of
from horae_node.core.model import (
    LIMITS_VERSION,
    LINKS_VERSION,
    SCHEDULES_VERSION,
    AttemptError,
    Group,
    JobSpec,
    Lanes,
    Run,
    ScheduleRun,
)
from horae_node.core.tables import (
    CLAIM_SWEEP,
    DUE,
    ERASE,
    ERROR,
    ERRORS_KEPT,
    EXPIRY,
    LEDGER,
    NEEDED,
    NEEDS,
    PROGRESS,
    RESULT,
    RETENTION,
    RUN,
    S_DEAD,
    S_PENDING,
    S_READY,
    S_RUNNING,
    SETTLE,
    SPEC,
    TOMBSTONE_MS,
    TRAITS_FROM,
    WATCH,
    JobHandle,
    JobTerms,
    Tombstone,
    expiry_of,
    fire_key,
    group_of,
    group_of_handle,
    group_row_of,
    handle_for,
    id_key,
    keyed_key,
    keyed_range,
    lane_key,
    live_prefix,
    member_key,
    pair_bytes,
    pair_range,
    purge_at,
    queue_keys,
    ready_key,
    regroup_key,
    round_up,
    schedule_key,
    schedule_of_handle,
    schedule_run_key,
    seq_bytes,
    terms_of,
    traits_of,
    unique_index_key,
)


def evolve(ctx: Context, change: Any) -> None:
    """Write one change. Raises: KeyError for a change that is not one (an error of ours: fatal)."""
    _EVOLVERS[type(change)](ctx, change)


def evolve_epoch_raised(ctx: Context, change: EpochRaised) -> None:
    ctx.epoch, ctx.epoch_node = change


def evolve_job_submitted(ctx: Context, change: JobSubmitted) -> None:
    seq, spec, run, needs = change
    assert seq == ctx.job_seq + 1
    ctx.job_seq = seq
    put = ctx.put
    queue = spec.queue
    key = seq_bytes(seq)
    put(id_key(spec.id), handle_for(seq, spec))
    put(SPEC + key, spec)
    put(RUN + key, run)
    if needs is None:
        _put_waiting(ctx, seq, run, terms_of(spec))
    else:
        _put_held(ctx, seq, spec, needs)
    put(queue_keys(queue).listed[run.state] + key, ())
    if ctx.links:
        for trait in traits_of(spec):
            put(trait + key, ())
    if spec.unique_key is not None:
        put(unique_index_key(queue, spec.unique_key), (seq,))
    if spec.schedule_id is not None:
        put(live_prefix(spec.schedule_id) + key, ())
    ctx.count_new(queue, run.state)


def evolve_job_granted(ctx: Context, change: JobGranted) -> None:
    seq, taken_from, terms, before, after = change
    key = seq_bytes(seq)
    put, delete = ctx.put, ctx.delete
    queue = terms.queue
    listed = queue_keys(queue).listed
    delete(taken_from)
    put(RUN + key, after)
    put(WATCH + pair_bytes(after.watch, seq), ())
    delete(listed[S_READY] + key)
    put(listed[S_RUNNING] + key, ())
    if terms.expires_at_ms is not None and before.attempt == 0:
        delete(EXPIRY + pair_bytes(terms.expires_at_ms, seq))
    ctx.count_move(queue, S_READY, S_RUNNING)
    if ctx.limits:
        _count_grant(ctx, seq, before, terms)


def evolve_lease_renewed(ctx: Context, change: LeaseRenewed) -> None:
    key = seq_bytes(change.seq)
    ctx.put(RUN + key, change.after)
    if change.progress is not None:
        ctx.put(PROGRESS + key, (change.progress,))


def evolve_watch_moved(ctx: Context, change: WatchMoved) -> None:
    seq, before, after = change
    ctx.delete(WATCH + pair_bytes(before.watch, seq))
    ctx.put(WATCH + pair_bytes(after.watch, seq), ())
    ctx.put(RUN + seq_bytes(seq), after)


def evolve_job_changed(ctx: Context, change: JobChanged) -> None:
    handle, before, after, terms, error, progress, result = change
    seq, queue = handle[0], handle[1]
    key = seq_bytes(seq)
    ctx.put(RUN + key, after)
    if before.state == S_RUNNING:
        if after.state == S_RUNNING:
            assert before.watch == after.watch
        else:
            ctx.delete(WATCH + pair_bytes(before.watch, seq))
            group = group_of_handle(handle) if terms is None else group_of(terms)
            if group is not None:
                _move_group(ctx, queue, group, 0, -1)
    elif before.state <= S_READY:
        _delete_waiting(ctx, seq, before, terms)
    else:
        _delete_finished(ctx, handle, before)
    if after.state <= S_READY:
        _put_waiting(ctx, seq, after, terms)
    elif after.state > S_RUNNING:
        _put_finished(ctx, handle, before, after)
    if before.state != after.state:
        listed = queue_keys(queue).listed
        ctx.delete(listed[before.state] + key)
        ctx.put(listed[after.state] + key, ())
        ctx.count_move(queue, before.state, after.state)
    if progress is not None:
        ctx.put(PROGRESS + key, (progress,))
    if result is not None:
        ctx.put(RESULT + key, (result,))
    if error is not None:
        _put_error(ctx, key, before.token, error)


def evolve_loss_withdrawn(ctx: Context, change: LossWithdrawn) -> None:
    ctx.delete(ERROR + pair_bytes(change.seq, change.token))


def evolve_spec_amended(ctx: Context, change: SpecAmended) -> None:
    ctx.put(SPEC + seq_bytes(change.seq), change.spec)


def evolve_job_purged(ctx: Context, change: JobPurged) -> None:
    seq, spec, run = change
    key = seq_bytes(seq)
    delete = ctx.delete
    delete(RETENTION + pair_bytes(purge_at(run.finished_ms, spec.retention_ms), seq))
    if ctx.links and run.content_hash:
        _put_tombstone(ctx, seq, spec, run)
    else:
        delete(id_key(spec.id))
    delete(SPEC + key)
    delete(RUN + key)
    delete(queue_keys(spec.queue).listed[run.state] + key)
    delete(PROGRESS + key)
    delete(RESULT + key)
    for error_key in _error_keys(ctx, key):
        delete(error_key)
    ctx.counts(spec.queue)[run.state] -= 1
    if ctx.links:
        for trait in traits_of(spec):
            delete(trait + key)


def evolve_tombstone_swept(ctx: Context, change: TombstoneSwept) -> None:
    ctx.delete(change.sweep_key)
    ctx.delete(change.key)


def evolve_error_noted(ctx: Context, change: ErrorNoted) -> None:
    _put_error(ctx, seq_bytes(change.seq), change.token, change.error)


def evolve_needs_met(ctx: Context, change: NeedsMet) -> None:
    seq, met = change
    key = seq_bytes(seq)
    row = ctx.get(NEEDS + key)
    assert row is not None
    on_failure, needed = row
    left = tuple(other for other in needed if other not in met)
    assert len(left) == len(needed) - len(met)
    for other in met:
        ctx.delete(NEEDED + pair_bytes(other, seq))
    if left:
        ctx.put(NEEDS + key, (on_failure, left))
    else:
        ctx.delete(NEEDS + key)
        ctx.held -= 1


def evolve_job_settled(ctx: Context, change: JobSettled) -> None:
    ctx.delete(change.key)


def evolve_claim_recorded(ctx: Context, change: ClaimRecorded) -> None:
    key, replaced, record = change
    if replaced is not None:
        ctx.delete(CLAIM_SWEEP + seq_bytes(replaced.sweep_at) + key)
    ctx.put(key, record)
    ctx.put(CLAIM_SWEEP + seq_bytes(record.sweep_at) + key, ())


def evolve_claim_forgotten(ctx: Context, change: ClaimForgotten) -> None:
    ctx.delete(change.key)
    ctx.delete(CLAIM_SWEEP + seq_bytes(change.record.sweep_at) + change.key)


def evolve_version_raised(ctx: Context, change: VersionRaised) -> None:
    ctx.version = change.version
    ctx.limits = change.version >= LIMITS_VERSION
    links = change.version >= LINKS_VERSION
    if links and not ctx.links and ctx.job_seq:
        ctx.put(TRAITS_FROM, (ctx.job_seq,))
    ctx.links = links
    ctx.schedules = change.version >= SCHEDULES_VERSION


def evolve_queue_set(ctx: Context, change: QueueSet) -> None:
    queue, before, after = change
    micro = ctx.micro(queue)  # what came by the old rate
    ctx.set_settings(queue, after)
    if after.rate_milli is not None:
        full = burst_of(after) * MICRO
        ctx.set_micro(queue, full if micro is None else min(micro, full))
    elif micro is not None:
        ctx.drop_bucket(queue)
    if after.max_running_per_key != before.max_running_per_key and ctx.lanes(queue) is not None:
        ctx.put(regroup_key(queue), (b"",))
        ctx.unsettled = True
    ctx.gained(queue)


def evolve_group_looked(ctx: Context, change: GroupLooked) -> None:
    _move_group(ctx, change.queue, change.group, 0, 0)
    ctx.gained(change.queue)


def evolve_regroup_moved(ctx: Context, change: RegroupMoved) -> None:
    if change.after is None:
        ctx.delete(regroup_key(change.queue))
    else:
        ctx.put(regroup_key(change.queue), (change.after,))


def evolve_member_changed(ctx: Context, change: MemberChanged) -> None:
    ctx.put(member_key(change.node_id), change.after)
    ctx.members_changed = True


def evolve_schedule_put(ctx: Context, change: SchedulePut) -> None:
    spec, before, after = change
    if before is None:
        assert after.number == ctx.job_seq + 1
        ctx.job_seq = after.number
    ctx.put(schedule_key(spec.id), spec)
    _put_schedule_run(ctx, spec.id, before, after)


def evolve_schedule_moved(ctx: Context, change: ScheduleMoved) -> None:
    _put_schedule_run(ctx, *change)


def evolve_schedule_deleted(ctx: Context, change: ScheduleDeleted) -> None:
    schedule_id, run = change
    if run.next is not None:
        ctx.delete(fire_key(run.look_ms, schedule_id))
    ctx.delete(schedule_key(schedule_id))
    ctx.delete(schedule_run_key(schedule_id))
    if run.ledger_rows:
        ctx.put(ERASE + seq_bytes(run.number), ())


def evolve_trigger_noted(ctx: Context, change: TriggerNoted) -> None:
    ctx.put(LEDGER + pair_bytes(change.number, change.nominal_ms), change.trigger)
    if change.drop is not None:
        ctx.delete(change.drop)


def evolve_ledger_erased(ctx: Context, change: LedgerErased) -> None:
    for key in change.keys:
        ctx.delete(key)
    if change.last:
        ctx.delete(ERASE + seq_bytes(change.number))


def _put_schedule_run(ctx: Context, schedule_id: str, before: ScheduleRun | None, after: ScheduleRun) -> None:
    if before is not None and before.next is not None:
        ctx.delete(fire_key(before.look_ms, schedule_id))
    if after.next is not None:
        ctx.put(fire_key(after.look_ms, schedule_id), ())
    ctx.put(schedule_run_key(schedule_id), after)


def _count_grant(ctx: Context, seq: int, before: Run, terms: JobTerms) -> None:
    """A grant draws from the bucket, and who was served goes to the end of the line."""
    queue = terms.queue
    micro = ctx.micro(queue)
    if micro is not None:
        assert micro >= MICRO
        ctx.set_micro(queue, micro - MICRO)
    group = group_of(terms)
    if group is not None:
        ctx.delete(queue_keys(queue).keyed_due + pair_bytes(before.due_ms, seq))
        _move_group(ctx, queue, group, -1, 1, served=True)
        return
    lanes = ctx.lanes(queue)
    if lanes is not None:
        ctx.set_lanes(queue, lanes._replace(next_turn=lanes.next_turn + 1, keyless_turn=lanes.next_turn))


def _move_group(ctx: Context, queue: str, group: bytes, waiting: int, running: int, *, served: bool = False) -> None:
    """A job of the group came or went; its row among the ready ones is written already.

    A group that may run one more has a row in the lanes; it keeps its turn until it is served, or may not.
    """
    keys = queue_keys(queue)
    key = keys.group + group
    lanes = ctx.lanes(queue) or Lanes(1, 0, 0, 0)
    row = ctx.get(key)
    before = Group(0, 0, -1, 0) if row is None else group_row_of(row)
    waits, runs = before.waiting + waiting, before.running + running
    assert min(waits, runs) >= 0, f"group of queue {queue!r}: {waits} ready, {runs} running"
    next_turn, rank, turn = lanes.next_turn, -1, 0
    if waits and runs < ctx.settings(queue).max_running_per_key:
        start, stop = keyed_range(keys, group)
        rank = ctx.txn.keys(start, stop, limit=1)[0][len(start)]
        if served or before.rank < 0:
            turn, next_turn = next_turn, next_turn + 1
        else:
            turn = before.turn
    if (rank, turn) != (before.rank, before.turn):
        if before.rank >= 0:
            ctx.delete(lane_key(keys, before.rank, before.turn, group))
        if rank >= 0:
            ctx.put(lane_key(keys, rank, turn, group), ())
    groups = lanes.groups + (row is None)
    if waits or runs:
        ctx.put(key, Group(waits, runs, rank, turn))
    else:
        ctx.delete(key)
        groups -= 1
    kept = Lanes(next_turn, lanes.keyless_turn, lanes.waiting + waiting, groups)
    ctx.set_lanes(queue, kept if groups else None)


def _put_waiting(ctx: Context, seq: int, run: Run, terms: JobTerms | None) -> None:
    assert terms is not None
    if run.state == S_READY:
        group = group_of(terms)
        if group is None:
            ctx.put(ready_key(queue_keys(terms.queue), terms.priority, run.due_ms, seq), terms)
        else:
            keys = queue_keys(terms.queue)
            ctx.put(keyed_key(keys, group, terms.priority, run.due_ms, seq), terms)
            ctx.put(keys.keyed_due + pair_bytes(run.due_ms, seq), ())
            _move_group(ctx, terms.queue, group, 1, 0)
    else:
        ctx.put(DUE + pair_bytes(run.due_ms, seq), terms)
    if terms.expires_at_ms is not None and run.attempt == 0:
        ctx.put(EXPIRY + pair_bytes(terms.expires_at_ms, seq), ())


def _put_held(ctx: Context, seq: int, spec: JobSpec, needs: Needs) -> None:
    """It waits for others: what `_put_waiting` writes comes when the last of them is finished."""
    ctx.put(NEEDS + seq_bytes(seq), (needs.on_failure, tuple([other for other, _ in needs.unfinished])))
    for other, place in needs.unfinished:
        ctx.put(NEEDED + pair_bytes(other, seq), (place,))
    for other, state in needs.failed:
        _put_settle(ctx, other, state, seq)
    ctx.held += 1
    if spec.expires_at_ms is not None:
        ctx.put(EXPIRY + pair_bytes(spec.expires_at_ms, seq), ())


def _drop_needs(ctx: Context, seq: int) -> None:
    """It waits for nothing any more."""
    row = ctx.get(NEEDS + seq_bytes(seq))
    if row is not None:
        evolve_needs_met(ctx, NeedsMet(seq, row[1]))


def _put_tombstone(ctx: Context, seq: int, spec: JobSpec, run: Run) -> None:
    key = id_key(spec.id)
    times = run.created_ms, run.first_due_ms, run.started_ms, run.finished_ms
    ctx.put(key, Tombstone(0, run.state, run.content_hash, seq, run.attempt, *times))
    ctx.put(RETENTION + pair_bytes(round_up(ctx.now_ms + TOMBSTONE_MS), seq), (key,))


def _delete_waiting(ctx: Context, seq: int, run: Run, terms: JobTerms | None) -> None:
    assert terms is not None
    if run.state == S_READY:
        group = group_of(terms)
        if group is None:
            ctx.delete(ready_key(queue_keys(terms.queue), terms.priority, run.due_ms, seq))
        else:
            keys = queue_keys(terms.queue)
            ctx.delete(keyed_key(keys, group, terms.priority, run.due_ms, seq))
            ctx.delete(keys.keyed_due + pair_bytes(run.due_ms, seq))
            _move_group(ctx, terms.queue, group, -1, 0)
    else:
        assert run.state == S_PENDING
        ctx.delete(DUE + pair_bytes(run.due_ms, seq))
        if run.attempt == 0 and ctx.held:
            _drop_needs(ctx, seq)
    expires_at_ms = expiry_of(run, terms.expires_at_ms)
    if expires_at_ms is not None:
        ctx.delete(EXPIRY + pair_bytes(expires_at_ms, seq))


def _put_finished(ctx: Context, handle: JobHandle, before: Run, after: Run) -> None:
    seq, queue, retention_ms, unique_key = handle[:4]
    assert before.state <= S_RUNNING
    ctx.finished.append(seq)
    if after.state == S_DEAD:
        ctx.died.append((seq, after.dead_reason))
    ctx.put(RETENTION + pair_bytes(purge_at(after.finished_ms, retention_ms), seq), ())
    if unique_key is not None:
        ctx.delete(unique_index_key(queue, unique_key))
    schedule_id = schedule_of_handle(handle)
    if schedule_id is not None:
        ctx.delete(live_prefix(schedule_id) + seq_bytes(seq))
    if ctx.held:
        start, stop = pair_range(NEEDED, seq, ctx.job_seq)
        if ctx.txn.keys(start, stop, limit=1):
            _put_settle(ctx, seq, after.state, ctx.job_seq)


def _put_settle(ctx: Context, seq: int, state: int, up_to: int) -> None:
    """Those up to that number are to be told. Who is still to hear of an ending before a requeue hears of that."""
    ctx.unsettled = True
    key = SETTLE + seq_bytes(seq)
    before = ctx.get(key)
    if before is not None and before[0] != state:
        key += seq_bytes(up_to)
        if ctx.get(key) is not None:
            return
    ctx.put(key, (state, up_to))


def _delete_finished(ctx: Context, handle: JobHandle, before: Run) -> None:
    """A requeue: the job lives again, and holds its unique key again."""
    seq, queue, retention_ms, unique_key = handle[:4]
    ctx.delete(RETENTION + pair_bytes(purge_at(before.finished_ms, retention_ms), seq))
    if unique_key is not None:
        ctx.put(unique_index_key(queue, unique_key), (seq,))
    schedule_id = schedule_of_handle(handle)
    if schedule_id is not None:
        ctx.put(live_prefix(schedule_id) + seq_bytes(seq), ())


def _put_error(ctx: Context, key: bytes, token: int, error: AttemptError) -> None:
    """One error an attempt, keyed by its token: attempts are counted anew by a requeue, tokens only grow.

    A failure that is reported after its lease was lost takes the place of "lease_expired": it knows more.
    """
    ctx.put(ERROR + key + seq_bytes(token), error)
    for error_key in _error_keys(ctx, key)[:-ERRORS_KEPT]:
        ctx.delete(error_key)


def _error_keys(ctx: Context, key: bytes) -> list[bytes]:
    prefix = ERROR + key
    return ctx.txn.keys(prefix, prefix + b"\xff" * 9, limit=ERRORS_KEPT + 1)


_EVOLVERS: dict[type, Callable[[Context, Any], None]] = {
    EpochRaised: evolve_epoch_raised,
    JobSubmitted: evolve_job_submitted,
    JobGranted: evolve_job_granted,
    LeaseRenewed: evolve_lease_renewed,
    WatchMoved: evolve_watch_moved,
    JobChanged: evolve_job_changed,
    LossWithdrawn: evolve_loss_withdrawn,
    SpecAmended: evolve_spec_amended,
    JobPurged: evolve_job_purged,
    ClaimRecorded: evolve_claim_recorded,
    ClaimForgotten: evolve_claim_forgotten,
    VersionRaised: evolve_version_raised,
    MemberChanged: evolve_member_changed,
    SchedulePut: evolve_schedule_put,
    ScheduleMoved: evolve_schedule_moved,
    ScheduleDeleted: evolve_schedule_deleted,
    TriggerNoted: evolve_trigger_noted,
    LedgerErased: evolve_ledger_erased,
    ErrorNoted: evolve_error_noted,
    NeedsMet: evolve_needs_met,
    JobSettled: evolve_job_settled,
    TombstoneSwept: evolve_tombstone_swept,
    QueueSet: evolve_queue_set,
    GroupLooked: evolve_group_looked,
    RegroupMoved: evolve_regroup_moved,
}
