"""What a decision asks `evolve` to write: one NamedTuple a change, participles, complete in themselves.

A decision reads and returns `(outcome, changes)`; nothing is written in between, so each change still finds the
state that it was decided on. Not here: rules (`decide/`), tables (`evolve.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horae_node.core.model import (
    AttemptError,
    JobSpec,
    MemberRecord,
    QueueSettings,
    Run,
    ScheduleRun,
    ScheduleSpec,
    Trigger,
)
from horae_node.core.results import Outcome
from horae_node.core.tables import ClaimRecord, JobHandle, JobTerms


class EpochRaised(NamedTuple):
    epoch: int
    node_id: str


class JobSubmitted(NamedTuple):
    """A new job; `seq` is the next free number. `needs`: the jobs that it waits for."""

    seq: int
    spec: JobSpec
    run: Run
    needs: Needs | None = None


class Needs(NamedTuple):
    """What a job waits for."""

    on_failure: int
    unfinished: tuple[tuple[int, int], ...]
    """(seq, place in `after`), by seq."""
    failed: tuple[tuple[int, int], ...]
    """(seq, state): those that have ended already, without success. They are told of like those that do so later."""


class JobGranted(NamedTuple):
    """ready -> running. `ready_key` is the index row that it was taken from."""

    seq: int
    ready_key: bytes
    terms: JobTerms
    before: Run
    after: Run


class LeaseRenewed(NamedTuple):
    seq: int
    after: Run
    progress: bytes | None


class WatchMoved(NamedTuple):
    """The lease is longer than its watch row knew: the row goes to the later moment."""

    seq: int
    before: Run
    after: Run


class JobChanged(NamedTuple):
    """Any other change of state. `terms` may be None only when neither `before` nor `after` waits (pending, ready)."""

    handle: JobHandle
    before: Run
    after: Run
    terms: JobTerms | None
    error: AttemptError | None = None
    progress: bytes | None = None
    result: bytes | None = None


class LossWithdrawn(NamedTuple):
    """The attempt with this token was answered for after its lease had run out: its `lease_expired` goes."""

    seq: int
    token: int


class SpecAmended(NamedTuple):
    """A requeue gave the job a new expiry."""

    seq: int
    spec: JobSpec


class JobPurged(NamedTuple):
    """Every row of a finished job goes."""

    seq: int
    spec: JobSpec
    run: Run


class ClaimRecorded(NamedTuple):
    """`replaced`: the record that lies under the key now."""

    key: bytes
    replaced: ClaimRecord | None
    record: ClaimRecord


class ClaimForgotten(NamedTuple):
    key: bytes
    record: ClaimRecord


class VersionRaised(NamedTuple):
    version: int


class ErrorNoted(NamedTuple):
    """An error of the attempt with this token that changed nothing of the job."""

    seq: int
    token: int
    error: AttemptError


class NeedsMet(NamedTuple):
    """Of the jobs that this one waits for, these are finished."""

    seq: int
    met: tuple[int, ...]


class JobSettled(NamedTuple):
    """All that waited for a job when it ended have been told of it. `key`: the row that says who."""

    key: bytes


class TombstoneSwept(NamedTuple):
    """The time of a tombstone is over: its id may be used anew."""

    sweep_key: bytes
    key: bytes


class SchedulePut(NamedTuple):
    """`before` is None for a new one, whose number is the next free one."""

    spec: ScheduleSpec
    before: ScheduleRun | None
    after: ScheduleRun


class ScheduleMoved(NamedTuple):
    """Its triggers have moved on, or somebody paused or resumed it."""

    schedule_id: str
    before: ScheduleRun
    after: ScheduleRun


class ScheduleDeleted(NamedTuple):
    schedule_id: str
    run: ScheduleRun


class TriggerNoted(NamedTuple):
    """A line in the ledger; `drop`: the oldest one, which goes for it."""

    schedule_id: str
    number: int
    nominal_ms: int
    trigger: Trigger
    drop: bytes | None


class LedgerErased(NamedTuple):
    """Lines of a schedule that is gone; `last`: there are no more."""

    number: int
    keys: tuple[bytes, ...]
    last: bool


class QueueSet(NamedTuple):
    queue: str
    before: QueueSettings
    after: QueueSettings


class GroupLooked(NamedTuple):
    """Whether a group may run one more was reckoned anew."""

    queue: str
    group: bytes


class RegroupMoved(NamedTuple):
    """All groups up to `after` were looked at; None: all of them."""

    queue: str
    after: bytes | None


class MemberChanged(NamedTuple):
    """A node came, went, or is something else now."""

    node_id: str
    after: MemberRecord


Change = (
    EpochRaised
    | JobSubmitted
    | JobGranted
    | LeaseRenewed
    | WatchMoved
    | JobChanged
    | LossWithdrawn
    | SpecAmended
    | JobPurged
    | ClaimRecorded
    | ClaimForgotten
    | VersionRaised
    | ErrorNoted
    | NeedsMet
    | SchedulePut
    | ScheduleMoved
    | ScheduleDeleted
    | TriggerNoted
    | LedgerErased
    | JobSettled
    | TombstoneSwept
    | QueueSet
    | GroupLooked
    | RegroupMoved
    | MemberChanged
)
Decision = tuple[Outcome, Sequence[Change]]
