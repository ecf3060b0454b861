"""What may be asked of the machine: one NamedTuple a command, verbs, plain data only.

An *entry* is one Raft log entry: a header and any number of commands, each with an outcome of its own. Whatever is
random or depends on the host (ids, moments) was put into the command by the leader. `horae_node.codec` turns an entry
into bytes and back; an unknown tag or version there is fatal. Tags are stored in logs: never reuse one.
"""

from __future__ import annotations

from typing import NamedTuple

from horae_node.core.model import JobSpec, Occurrence, ScheduleSpec


class Header(NamedTuple):
    """Stamped once an entry by the leader."""

    version: int
    epoch: int
    now_ms: int  # cluster time; the machine keeps the maximum
    lease_clock: int  # ms, the leader's own elapsed time added to the machine's; the machine keeps the maximum


ENTRY_VERSION = 1


class OpenEpoch(NamedTuple):
    """A new leader takes over; refused (`stale_epoch`) unless `previous_epoch` is the machine's. Not epoch-checked."""

    node_id: str
    previous_epoch: int


class SubmitJob(NamedTuple):
    """Make one job. Due at `run_at_ms`, else `delay_ms` after the machine's now. `content_hash`: b"" or 16 bytes."""

    spec: JobSpec
    run_at_ms: int | None
    delay_ms: int
    content_hash: bytes


class SubmitBatch(NamedTuple):
    """All of `jobs` or none: when one is refused, the outcome names its position."""

    jobs: tuple[SubmitJob, ...]


class ClaimJobs(NamedTuple):
    """Grant up to `max_jobs` ready jobs of `queues` (in this order) to a worker."""

    worker: str
    queues: tuple[str, ...]
    max_jobs: int
    lease_ms: int | None  # None: each job's own
    claim_id: str  # "" = none


class HeartbeatLease(NamedTuple):
    """Renew one lease by its own length from the machine's lease clock. `progress`: JSON, kept for the next attempt."""

    job_id: str
    token: int
    progress: bytes | None


class CompleteJob(NamedTuple):
    job_id: str
    token: int
    result: bytes | None  # JSON text


class FailJob(NamedTuple):
    job_id: str
    token: int
    error_type: str
    message: str
    traceback: str
    retry: bool
    retry_in_ms: int | None


class ReleaseJob(NamedTuple):
    """Hand a job back, the attempt not counted."""

    job_id: str
    token: int
    delay_ms: int
    progress: bytes | None


class CancelJob(NamedTuple):
    job_id: str


class RequeueJob(NamedTuple):
    job_id: str


class RunJobNow(NamedTuple):
    job_id: str


class DeleteJob(NamedTuple):
    job_id: str


class AdvanceTime(NamedTuple):
    """Do what the header's moments made due: at most `limit` items (due, leases and time-outs, expiries, retention)."""

    limit: int


class Nothing(NamedTuple):
    """No change: proof that this leader's epoch still holds (barrier)."""


class RaiseMachineVersion(NamedTuple):
    """From here on the machine is of this version: all members know it. It never goes back."""

    version: int


class MemberAddress(NamedTuple):
    """Where a node is reached: `host:port` for the other nodes, a URL for everybody."""

    node_id: str
    raft_address: str
    http_url: str


class SetMembers(NamedTuple):
    """The configured voters, written down before the first change of members; `repeated` when there are some."""

    members: tuple[MemberAddress, ...]


class AddMember(NamedTuple):
    """A new node, as a learner. The same id with the same addresses again is a repeat."""

    node_id: str
    raft_address: str
    http_url: str


class PromoteMember(NamedTuple):
    """A learner becomes a voter."""

    node_id: str


class RemoveMember(NamedTuple):
    """A voter or learner leaves for good: its id never comes back."""

    node_id: str


class MoveMember(NamedTuple):
    """The same node, with its data, at new addresses."""

    node_id: str
    raft_address: str
    http_url: str


class CancelJobIn(NamedTuple):
    """`CancelJob`, if the job is in that state (`State`) by then."""

    job_id: str
    state: int


class RequeueJobIn(NamedTuple):
    """`RequeueJob`, if the job is in that state (`State`) by then."""

    job_id: str
    state: int


class SetQueue(NamedTuple):
    """Change what is named of a queue's settings: (field of `QueueSettings`, value), each at most once."""

    queue: str
    changes: tuple[tuple[str, bool | int | None], ...]


class PutSchedule(NamedTuple):
    """Make a schedule, or replace it. `first`: its first trigger after the moment at which it was asked for.

    `if_version`: replace that version only; 0: only make it; None: whichever.
    """

    spec: ScheduleSpec
    paused: bool
    first: Occurrence | None
    if_version: int | None


class DeleteSchedule(NamedTuple):
    schedule_id: str


class PauseSchedule(NamedTuple):
    schedule_id: str


class ResumeSchedule(NamedTuple):
    """`rewind`: the first trigger of the pause, from which on they count as missed; None: none does."""

    schedule_id: str
    rewind: Occurrence | None


class FireSchedule(NamedTuple):
    """Do what a schedule's triggers ask for that have come, from the one on that it has as its next, and move it on.

    `seen_ms`: since when a leader has been at work on what is due, without a pause: lateness is counted up to then.
    What waits its turn behind a hundred thousand others is not missed.
    """

    schedule_id: str
    occurrences: tuple[Occurrence, ...]
    following: Occurrence | None
    seen_ms: int


class TriggerSchedule(NamedTuple):
    """A job of the schedule now, besides its triggers."""

    schedule_id: str
    job_id: str


class BackfillSchedule(NamedTuple):
    """Run those triggers that have not run."""

    schedule_id: str
    occurrences: tuple[Occurrence, ...]


Command = (
    OpenEpoch
    | SubmitJob
    | SubmitBatch
    | ClaimJobs
    | HeartbeatLease
    | CompleteJob
    | FailJob
    | ReleaseJob
    | CancelJob
    | RequeueJob
    | RunJobNow
    | DeleteJob
    | AdvanceTime
    | Nothing
    | RaiseMachineVersion
    | SetMembers
    | AddMember
    | PromoteMember
    | RemoveMember
    | MoveMember
    | SetQueue
    | CancelJobIn
    | RequeueJobIn
    | PutSchedule
    | DeleteSchedule
    | PauseSchedule
    | ResumeSchedule
    | FireSchedule
    | TriggerSchedule
    | BackfillSchedule
)

TAGS: dict[int, type[tuple[object, ...]]] = {
    1: OpenEpoch,
    2: SubmitJob,
    3: SubmitBatch,
    4: ClaimJobs,
    5: HeartbeatLease,
    6: CompleteJob,
    7: FailJob,
    8: ReleaseJob,
    9: CancelJob,
    10: RequeueJob,
    11: RunJobNow,
    12: DeleteJob,
    13: AdvanceTime,
    14: Nothing,
    15: RaiseMachineVersion,
    16: SetMembers,
    17: AddMember,
    18: PromoteMember,
    19: RemoveMember,
    20: MoveMember,
    21: SetQueue,
    22: CancelJobIn,
    23: RequeueJobIn,
    24: PutSchedule,
    25: DeleteSchedule,
    26: PauseSchedule,
    27: ResumeSchedule,
    28: FireSchedule,
    29: TriggerSchedule,
    30: BackfillSchedule,
}
