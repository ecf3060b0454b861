"""The shapes of the machine's state: what a job is, what happened to it, what a queue counts.

Plain tuples of plain data, so that a row in the store is the record itself. Moments and spans are int milliseconds;
fractions are int thousandths (`*_milli`): no float ever enters the machine. Next to read: `commands.py`, `tables.py`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class State(IntEnum):
    """The states of a job (docs/contract.md, "Jobs"). The numbers are stored: never renumber."""

    PENDING = 0
    READY = 1
    RUNNING = 2
    SUCCEEDED = 3
    DEAD = 4
    CANCELLED = 5
    EXPIRED = 6


FINISHED = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED, State.EXPIRED})
STATE_COUNT = len(State)


class Ending(IntEnum):
    """How the attempt that holds the job's last token ended; stored, so that a repeat gets the same answer."""

    NONE = 0  # not reported: running, or lost and not yet superseded
    COMPLETE = 1
    FAIL = 2
    RELEASE = 3
    TIMEOUT = 4  # reaped: a late report is refused


class Standing(IntEnum):
    """What a node is to the cluster; stored."""

    VOTER = 1
    LEARNER = 2  # gets everything, counts for nothing
    REMOVED = 3  # was a member: its id never comes back


class MemberRecord(NamedTuple):
    """One node that is or was a member. There are none before the first change: then the configured ones are."""

    raft_address: str
    http_url: str
    standing: int
    version: int  # log index of the last change


class JobSpec(NamedTuple):
    """What the submitter said, complete with defaults, as it never changes. `payload` is JSON text, opaque here."""

    id: str
    task: str
    queue: str
    payload: bytes
    priority: int
    max_attempts: int
    retry_initial_ms: int
    retry_factor_milli: int
    retry_max_ms: int
    retry_jitter_milli: int
    lease_ms: int
    timeout_ms: int
    max_lost: int
    expires_at_ms: int | None
    ttl_ms: int | None  # as submitted; the machine turns it into expires_at_ms when it stores the job
    unique_key: str | None
    concurrency_key: str | None
    tags: tuple[tuple[str, str], ...]  # sorted by key
    retention_ms: int
    schedule_id: str | None
    nominal_ms: int | None


SCHEDULES_VERSION = 4
"""From this machine version on there are schedules."""


class OnFailure(IntEnum):
    """What becomes of a job when one that it waits for ends in another state than `succeeded`; stored."""

    CANCEL = 0
    RUN = 1


class Links(NamedTuple):
    """What joins a job to others. See `links_of` (`tables.py`): most jobs have none."""

    after: tuple[str, ...]
    """Ids of the jobs that must be finished before it becomes due."""
    on_failure: int
    then: Follower | None


class Follower(NamedTuple):
    """The job that the success of another one brings forth, `delay_ms` later. Its spec may have links in turn."""

    spec: JobSpec
    delay_ms: int
    content_hash: bytes  # as of a submit; b"" when the id was made by the server


class Run(NamedTuple):
    """What has happened to a job: the small record that every transition rewrites."""

    state: int
    attempt: int  # of the current or last attempt; 0 before the first
    failures: int  # attempts that failed or timed out: what max_attempts bounds
    lost: int  # attempts that ended by a lost lease, unanswered for: what max_lost bounds
    token: int  # last fencing token granted; 0 before the first
    ending: int  # Ending of the attempt with `token`
    worker: str  # of the current or last attempt; "" while attempt is 0
    created_ms: int
    due_ms: int  # when it is or was due: run_at, or the retry's moment
    started_ms: int  # of the last attempt; 0 while attempt is 0
    finished_ms: int  # 0 while not finished
    lease_ms: int  # length of the current lease
    lease_end: int  # on the lease clock; 0 when not running
    timeout_end: int  # on the lease clock; 0 when not running
    watch: int  # the lease-clock key under which the watch index holds it; 0 when it is not there
    cancel_requested: bool
    dead_reason: str  # "" | failed | poison | no_retry | timeout
    version: int  # log index of the last change
    content_hash: bytes  # of the submit; b"" when the id was made by the server
    first_due_ms: int  # run_at as submitted


class AttemptError(NamedTuple):
    """One failed attempt, as history shows it."""

    attempt: int
    type: str
    message: str
    traceback: str
    at_ms: int
    worker: str


class Meta(NamedTuple):
    """The machine's own record, written with every entry, in the same transaction as its effects."""

    machine_version: int
    applied_index: int
    now_ms: int
    lease_clock: int  # ms
    epoch: int
    epoch_node: str
    digest: int
    job_seq: int  # last job number given


class Versions(NamedTuple):
    """The machine versions that a build knows: from `oldest` to `newest`, all of them."""

    oldest: int
    newest: int

    def have(self, version: int) -> bool:
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return str(self.newest) if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


KNOWN_VERSIONS = Versions(1, 4)
"""This build's. A change of released rules raises `newest`, and may act only where the state's version says so."""

FIRST_META = Meta(1, 1, 0, 0, 0, "", 0, 0)


LIMITS_VERSION = 2
"""From this machine version on queues have settings, and jobs may have concurrency keys."""

LINKS_VERSION = 3
"""From this machine version on jobs wait for others, bring forth others, are listed by what they have in common, and
leave a tombstone."""


class UnknownVersion(Exception):
    """The machine has been raised to a version that this build does not know: it must end, and guess nothing."""

    def __init__(self, version: int) -> None:
        super().__init__(f"machine version {version}")
        self.version = version


class QueueCounts(NamedTuple):
    """Jobs by state, kept as they change (API: depths)."""

    pending: int = 0
    ready: int = 0
    running: int = 0
    succeeded: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0


class QueueSettings(NamedTuple):
    """What an operator said of a queue. No row means `NO_SETTINGS`."""

    paused: bool
    max_running: int | None
    max_running_per_key: int
    rate_milli: int | None  # thousandths of a job a second
    burst: int | None  # whole jobs; None: as many as a second brings, at least one
    max_depth: int | None  # pending and ready jobs
    version: int  # log index of the last change


NO_SETTINGS = QueueSettings(False, None, 1, None, None, None, 0)


class Bucket(NamedTuple):
    """The tokens of a queue that has a rate: each grant takes a million."""

    micro: int
    at: int  # on the lease clock: what came since is added by whoever looks


class Missed(IntEnum):
    """What becomes of triggers that came too late; stored."""

    SKIP = 0
    LATEST = 1
    ALL = 2


class Overlap(IntEnum):
    """What a trigger does while an earlier job of its schedule is unfinished; stored."""

    ALLOW = 0
    SKIP = 1
    QUEUE = 2
    CANCEL = 3


class Fate(IntEnum):
    """What became of a trigger; stored in the ledger."""

    RAN = 0
    SKIPPED_OVERLAP = 1
    SKIPPED_MISSED = 2
    FOLDED = 3  # a later one that was missed as well ran for it
    DROPPED_LIMIT = 4
    PAUSED = 5
    DST_SKIPPED = 6  # its local time did not exist


class ScheduleSpec(NamedTuple):
    """What was said of a schedule. `job` is the template: a spec without an id."""

    id: str
    cron: str | None
    every_ms: int | None
    timezone: str
    dst_gap: str
    dst_repeat: str
    starts_ms: int | None
    ends_ms: int | None
    jitter_ms: int
    missed: int
    catch_up_ms: int
    max_catch_up: int
    grace_ms: int
    overlap: int
    job: JobSpec


class Occurrence(NamedTuple):
    """A moment that a schedule names, as the leader reckoned it."""

    nominal_ms: int
    fire_ms: int  # with its jitter
    note: str  # why it does not run, though the schedule names it: a local time that did not exist; else ""
    offset_ms: int | None = None  # the zone's then, by the data of who reckoned it; None: no local time counts


class ScheduleRun(NamedTuple):
    """What has become of a schedule: the small record that each trigger rewrites."""

    number: int  # its own, among those of jobs: the ledger's key
    version: int  # log index of the last change that somebody made
    created_ms: int
    changed_ms: int
    paused_ms: int | None  # since when it is paused
    next: Occurrence | None
    look_ms: int  # the moment under which FIRE has it; 0 while there is no next one
    made_up: int  # missed triggers that ran since it was last on time
    queued_seq: int  # the last job that was made to wait for the one before it; 0 for none
    last_nominal_ms: int | None
    ledger_rows: int
    from_ms: int = 0  # where the rule of now begins: moments of it before that are of the time of an older one


class Trigger(NamedTuple):
    """A line of the ledger."""

    fate: int
    why: str


class Lanes(NamedTuple):
    """What a queue keeps of its groups. There is a row while it has any."""

    next_turn: int
    keyless_turn: int  # when jobs without a key were served last
    waiting: int  # ready jobs of all groups
    groups: int


class Group(NamedTuple):
    """The jobs of a queue that share a concurrency key. There is a row while one of them is ready or running."""

    waiting: int  # ready jobs
    running: int
    rank: int  # its lane row: the inverted priority of its best job; -1: it has none, since it may not run one more
    turn: int  # its lane row: its place among those of one priority
