"""What of an entry's changes the outside is told: from a change to the few values that its event needs.

One table, by the change's type: what is no change of a job's state, of a queue's settings or of the members is named
as silent. Made at every apply: no look-up, and nothing large is kept alive. Not here: how events are kept and read
(`feed.py`), how they look on the wire (`horae.wire.Event`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from horae.wire import EventType
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
from horae_node.core.model import Ending, Run, Standing
from horae_node.core.tables import S_CANCELLED, S_DEAD, S_EXPIRED, S_READY, S_RUNNING, S_SUCCEEDED

Place = tuple[int, int]
"""Of an event: its entry's log index, and the position of its change among all of the entry's."""

Told = tuple[int, int, int, EventType, int, str, int, int, str, int, str]
"""An event as it is kept: log index, position, `now_ms`, type; the job's number, queue, state, attempt, worker,
`due_ms`, and why it is dead.

0 and "" where there is none. Of a member, its id in the place of the worker, its standing in that of the reason. A bare
tuple: the collector then leaves tens of thousands of them alone."""

_BY_STATE: Final[Mapping[int, EventType]] = {
    S_RUNNING: "cancel_requested",
    S_SUCCEEDED: "succeeded",
    S_DEAD: "dead",
    S_CANCELLED: "cancelled",
    S_EXPIRED: "expired",
}
_BY_ENDING: Final[Mapping[int, EventType]] = {
    Ending.NONE: "lost",
    Ending.FAIL: "retrying",
    Ending.TIMEOUT: "timed_out",
    Ending.RELEASE: "released",
}


def _tell_submitted(index: int, position: int, now_ms: int, change: JobSubmitted) -> Told:
    seq, spec, run, _ = change
    return index, position, now_ms, "submitted", seq, spec.queue, run.state, 0, "", run.due_ms, ""


def _tell_granted(index: int, position: int, now_ms: int, change: JobGranted) -> Told:
    seq, _, terms, _, run = change
    return index, position, now_ms, "running", seq, terms.queue, S_RUNNING, run.attempt, run.worker, 0, ""


def _tell_changed(index: int, position: int, now_ms: int, change: JobChanged) -> Told:
    handle, before, after = change[:3]
    kind = _kind_of(before, after)
    state = after.state
    due_ms = after.due_ms if state < S_RUNNING else 0
    worker = after.worker or before.worker if kind == "released" else after.worker
    return (
        index, position, now_ms, kind, handle.seq, handle.queue, state, after.attempt, worker, due_ms,
        after.dead_reason,
    )  # fmt: skip


def _tell_purged(index: int, position: int, now_ms: int, change: JobPurged) -> Told:
    seq, spec, run = change
    return index, position, now_ms, "removed", seq, spec.queue, run.state, run.attempt, "", 0, ""


def _tell_queue(index: int, position: int, now_ms: int, change: QueueSet) -> Told:
    return index, position, now_ms, "queue_changed", 0, change.queue, 0, 0, "", 0, ""


def _tell_member(index: int, position: int, now_ms: int, change: MemberChanged) -> Told:
    standing = Standing(change.after.standing).name.lower()
    return index, position, now_ms, "members_changed", 0, "", 0, 0, change.node_id, 0, standing


def _kind_of(before: Run, after: Run) -> EventType:
    """What one change of a job's state is called. A late report of a lost attempt ends a job that waits already."""
    if after.state >= S_RUNNING:
        return _BY_STATE[after.state]
    if before.state > S_RUNNING:
        return "requeued"
    if before.state == S_RUNNING or before.ending != after.ending:
        return _BY_ENDING[after.ending]
    return "ready" if after.state == S_READY else "freed"


TELLERS: Final[Mapping[type, Callable[[int, int, int, Any], Told]]] = {
    JobSubmitted: _tell_submitted,
    JobGranted: _tell_granted,
    JobChanged: _tell_changed,
    JobPurged: _tell_purged,
    QueueSet: _tell_queue,
    MemberChanged: _tell_member,
}
"""Makes the event of a change: `(index, position, now_ms, change)`."""

SILENT: Final = frozenset(
    {
        ClaimForgotten,
        ClaimRecorded,
        EpochRaised,
        ErrorNoted,  # it changed nothing of the job
        GroupLooked,
        JobSettled,
        LeaseRenewed,
        LossWithdrawn,  # the ending that came late is told
        NeedsMet,  # it waits for others still
        LedgerErased,
        RegroupMoved,
        ScheduleDeleted,  # events are of jobs, queues and members: a trigger is told of by its job
        ScheduleMoved,
        SchedulePut,
        TriggerNoted,
        SpecAmended,  # the requeue is told
        TombstoneSwept,  # the job was removed before
        VersionRaised,
        WatchMoved,
    }
)
"""Changes without an event: bookkeeping, and what goes with a change that has one."""
