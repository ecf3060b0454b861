"""Where everything lies: the keys of the tables and indexes, and the small rows that the indexes carry.

One prefix byte a table, then big-endian integers, so that byte order is number order. A queue's name is followed by
NUL, which no name contains, so that one queue's range never holds another's rows. Index rows carry what the next
transition needs (`JobTerms`, `JobHandle`), so that no hot path decodes a spec with its payload.
Not here: reading or writing. Next to read: `evolve.py` (the only writer), `views.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple, cast

from horae_node.core.model import (
    STATE_COUNT,
    AttemptError,
    Bucket,
    Follower,
    Group,
    JobSpec,
    Lanes,
    Links,
    MemberRecord,
    Meta,
    Occurrence,
    QueueCounts,
    QueueSettings,
    Run,
    ScheduleRun,
    ScheduleSpec,
    State,
    Trigger,
)
from horae_storage.kv import Row

BUCKET = b"b"  # queue -> Bucket
CLAIM = b"k"  # worker, NUL, claim id -> (sweep moment, grants)
CLAIM_LONG = b"K"
CLAIM_SWEEP = b"j"  # lease-clock moment, claim key -> ()
COUNTS = b"c"  # queue -> QueueCounts
DUE = b"d"  # due_ms, seq -> JobTerms; pending jobs
ERROR = b"e"  # seq, token -> AttemptError
ERASE = b"G\1"  # number of a schedule that is gone -> (): its ledger goes
EXPIRY = b"x"  # expires_at_ms, seq -> (); jobs that wait for their first start
FIRE = b"f"  # moment, schedule id -> (); schedules that have a next trigger
GROUP = b"g"  # queue, NUL, group -> Group
HELD = b"h"  # -> (how many jobs wait for others,); no row for none
ID = b"i"  # job id -> JobHandle, or Tombstone
ID_LONG = b"I"
KEYED = b"y"  # queue, NUL, group, inverted priority, due_ms, seq -> JobTerms; ready jobs that have a concurrency key
KEYED_DUE = b"Y"  # queue, NUL, due_ms, seq -> (); the same ones
LANE = b"a"  # queue, NUL, inverted priority, turn, group -> (); groups that may run one more job
LANES = b"A"  # queue -> Lanes
LEDGER = b"L"  # number of the schedule, nominal moment -> Trigger
LISTED = b"l"  # queue, NUL, state, seq -> ()
LIVE = b"J"  # schedule id, NUL, seq -> (); unfinished jobs of schedules
MEMBER = b"n"  # node id -> MemberRecord
META = b"m"
NEEDED = b"D"  # seq, seq of a job that waits for it -> (its place in that job's `after`,)
NEEDS = b"N"  # seq -> (OnFailure, seqs of the unfinished jobs that it waits for); such a job is pending, and not in DUE
PROGRESS = b"p"  # seq -> (JSON text,)
READY = b"q"  # queue, NUL, inverted priority, due_ms, seq -> JobTerms; those without a concurrency key
REGROUP = b"G"  # queue -> (group,); limits have changed: groups after this one are to be looked at
RESULT = b"o"  # seq -> (JSON text,)
RETENTION = b"z"  # purge moment, seq -> (); finished jobs; of a tombstone (its key,)
RUN = b"r"  # seq -> Run
SCHEDULE = b"S"  # schedule id -> ScheduleSpec
SCHEDULE_RUN = b"F"  # schedule id -> ScheduleRun
SETTINGS = b"t"  # queue -> QueueSettings
SETTLE = b"G\0"  # seq (, last seq) -> (the state that it ended in, last seq): those up to that one are to be told
SPEC = b"s"  # seq -> JobSpec
TRAIT = b"v"  # trait, seq -> (); see `trait_of`
TRAITS_FROM = b"V"  # -> (seq,): jobs after this one have rows in TRAIT; no row: none has
UNIQUE = b"u"  # queue, NUL, unique key -> (seq,); unfinished jobs
UNIQUE_LONG = b"U"
WATCH = b"w"  # lease-clock moment, seq -> (); running jobs

# Plain ints: an enum's attribute costs more than the comparison that it serves.
S_PENDING = int(State.PENDING)
S_READY = int(State.READY)
S_RUNNING = int(State.RUNNING)
S_SUCCEEDED = int(State.SUCCEEDED)
S_DEAD = int(State.DEAD)
S_CANCELLED = int(State.CANCELLED)
S_EXPIRED = int(State.EXPIRED)

PRIORITY_MAX = 100
TEXT_BYTES_MAX = 200
"""Longer ids and keys are stored by their digest: 200 characters may be 800 bytes, past the store's key limit."""
HOUSEKEEPING_MS = 1000
"""Purges and claim sweeps fall on multiples of this: a busy cluster tidies once a second, not once a job."""
ERRORS_KEPT = 20
TOMBSTONE_MS = 3_600_000
"""Longer than any client tries again; the record itself is kept for `retention_ms` before."""
LEDGER_ROWS_MAX = 10_000
"""Triggers of one schedule that the ledger remembers: a week of one a minute, a year of one an hour."""
TRAIT_BYTES = 12
"""Of a digest: rows of two names that share it are told apart by the record."""


class JobHandle(NamedTuple):
    """The row under a job's id: its number, and what an ending needs to know of the spec. See `group_of_handle`."""

    seq: int
    queue: str
    retention_ms: int
    unique_key: str | None


class Tombstone(NamedTuple):
    """What is left under a job's id for `TOMBSTONE_MS` after its record went, so that no late repeat of its submit
    makes it run again. Only of ids that callers gave. The first field tells it from a `JobHandle`."""

    zero: int
    state: int
    content_hash: bytes
    seq: int
    attempt: int
    created_ms: int
    first_due_ms: int
    started_ms: int
    finished_ms: int


class JobTerms(NamedTuple):
    """The row of a waiting job in `DUE`, `READY` and `KEYED`: what making it ready and granting it need of the spec.

    See `group_of`.
    """

    queue: str
    priority: int
    lease_ms: int
    timeout_ms: int
    expires_at_ms: int | None
    payload_bytes: int


class ClaimRecord(NamedTuple):
    """What a claim id was given. Kept while one of its leases lives; `sweep_at` is on the lease clock."""

    sweep_at: int
    grants: tuple[tuple[int, int], ...]  # (seq, token)


class QueueKeys(NamedTuple):
    """The key prefixes of one queue."""

    ready: bytes
    ready_stop: bytes
    listed: tuple[bytes, ...]  # by state
    keyed: bytes
    keyed_due: bytes
    lane: bytes
    group: bytes


# A row is the record: these give its type back without the checks of the generated constructors (a third of the cost).
run_of = cast(Callable[[Row], Run], partial(tuple.__new__, Run))
spec_of = cast(Callable[[Row], JobSpec], partial(tuple.__new__, JobSpec))
meta_of = cast(Callable[[Row], Meta], partial(tuple.__new__, Meta))
counts_of = cast(Callable[[Row], QueueCounts], partial(tuple.__new__, QueueCounts))
error_of = cast(Callable[[Row], AttemptError], partial(tuple.__new__, AttemptError))
handle_of = cast(Callable[[Row], JobHandle], partial(tuple.__new__, JobHandle))
terms_of_row = cast(Callable[[Row], JobTerms], partial(tuple.__new__, JobTerms))
member_of = cast(Callable[[Row], MemberRecord], partial(tuple.__new__, MemberRecord))
settings_of = cast(Callable[[Row], QueueSettings], partial(tuple.__new__, QueueSettings))
bucket_of = cast(Callable[[Row], Bucket], partial(tuple.__new__, Bucket))
lanes_of = cast(Callable[[Row], Lanes], partial(tuple.__new__, Lanes))
group_row_of = cast(Callable[[Row], Group], partial(tuple.__new__, Group))
tombstone_of = cast(Callable[[Row], Tombstone], partial(tuple.__new__, Tombstone))
trigger_of = cast(Callable[[Row], Trigger], partial(tuple.__new__, Trigger))
claim_of = cast(Callable[[Row], ClaimRecord], partial(tuple.__new__, ClaimRecord))

seq_bytes: Callable[[int], bytes] = Struct(">Q").pack
pair_bytes: Callable[[int, int], bytes] = Struct(">QQ").pack
"""(moment, seq), or (seq, token)."""
_ready_tail: Callable[[int, int, int], bytes] = Struct(">BQQ").pack


GROUP_BYTES = 16
LINKS_FIELD = len(JobSpec._fields)
_EXPIRES_FIELD = JobSpec._fields.index("expires_at_ms")


def terms_of(spec: JobSpec) -> JobTerms:
    row = (spec.queue, spec.priority, spec.lease_ms, spec.timeout_ms, spec.expires_at_ms, len(spec.payload))
    return terms_of_row(row if spec.concurrency_key is None else (*row, group_id(spec.concurrency_key)))


def handle_for(seq: int, spec: JobSpec) -> JobHandle:
    row = (seq, spec.queue, spec.retention_ms, spec.unique_key)
    group = b"" if spec.concurrency_key is None else group_id(spec.concurrency_key)
    follows = follower_of(spec) is not None
    if spec.schedule_id is not None:
        return handle_of((*row, group, follows, spec.schedule_id))
    if follows:
        return handle_of((*row, group, True))
    return handle_of((*row, group) if group else row)


def links_of(spec: JobSpec) -> Links | None:
    """Jobs that have links have them as one field more than others."""
    row: Row = spec
    return Links(*row[LINKS_FIELD]) if len(row) > LINKS_FIELD else None


def linked(spec: JobSpec, links: Links) -> JobSpec:
    """The same with links. It has none yet."""
    return spec_of((*spec, links))


def follower_of(spec: JobSpec) -> Follower | None:
    row: Row = spec
    then = row[LINKS_FIELD][2] if len(row) > LINKS_FIELD else None
    return None if then is None else Follower(spec_of(then[0]), *then[1:])


def spec_bytes(spec: JobSpec) -> int:
    """Payloads that lie in the row of a spec: its own, and those of what is to follow."""
    total = len(spec.payload)
    follower = follower_of(spec)
    return total if follower is None else total + spec_bytes(follower.spec)


def with_expiry_at(spec: JobSpec, expires_at_ms: int | None) -> JobSpec:
    """The same with another expiry: `_replace` knows nothing of links."""
    return spec_of((*spec[:_EXPIRES_FIELD], expires_at_ms, *spec[_EXPIRES_FIELD + 1 :]))


def group_id(concurrency_key: str) -> bytes:
    """The name of a key's group in keys of the store."""
    return blake2b(concurrency_key.encode(), digest_size=GROUP_BYTES).digest()


def group_of(terms: JobTerms) -> bytes | None:
    """The group of a job with a concurrency key, whose rows have it as one field more than others."""
    row: Row = terms
    return row[6] if len(row) > 6 else None


def group_of_handle(handle: JobHandle) -> bytes | None:
    row: Row = handle
    return (row[4] or None) if len(row) > 4 else None


def has_follower(handle: JobHandle) -> bool:
    row: Row = handle
    return len(row) > 5 and row[5]


def schedule_of_handle(handle: JobHandle) -> str | None:
    """The schedule that made the job."""
    row: Row = handle
    return row[6] if len(row) > 6 else None


def is_tombstone(row: Row) -> bool:
    """Of a row under an id."""
    return not row[0]


@lru_cache(maxsize=8192)
def trait_of(kind: str, name: str) -> bytes:
    """The prefix of the rows of all jobs that have this in common. Kinds: `task`, `tag` (its name `key:value`),
    `schedule`."""
    return TRAIT + blake2b(f"{kind}\0{name}".encode(), digest_size=TRAIT_BYTES).digest()


def traits_of(spec: JobSpec) -> list[bytes]:
    traits = [trait_of("task", spec.task)]
    traits += [trait_of("tag", f"{key}:{value}") for key, value in spec.tags]
    if spec.schedule_id is not None:
        traits.append(trait_of("schedule", spec.schedule_id))
    return traits


@lru_cache(maxsize=8192)
def queue_keys(queue: str) -> QueueKeys:
    name = queue.encode()
    listed = tuple(LISTED + name + b"\0" + bytes((state,)) for state in range(STATE_COUNT))
    after = name + b"\0"
    return QueueKeys(
        READY + after, READY + name + b"\1", listed, KEYED + after, KEYED_DUE + after, LANE + after, GROUP + after
    )


def id_key(job_id: str) -> bytes:
    raw = job_id.encode()
    return ID + raw if len(raw) <= TEXT_BYTES_MAX else ID_LONG + _short(raw)


def unique_index_key(queue: str, unique_key: str) -> bytes:
    raw = unique_key.encode()
    prefix = queue.encode() + b"\0"
    return UNIQUE + prefix + raw if len(raw) <= TEXT_BYTES_MAX else UNIQUE_LONG + prefix + _short(raw)


def claim_key(worker: str, claim_id: str, queues: Sequence[str] = ()) -> bytes:
    """`queues`: of the claim; none for a record by the rules before machine version 4, which asked for no queue.

    Two who share a worker's name and a claim id, and not the queues, may not have each other's jobs.
    """
    raw = worker.encode() + b"\0" + claim_id.encode()
    if queues:
        return CLAIM_LONG + _short("\0".join((*queues, worker, claim_id)).encode())
    return CLAIM + raw if len(raw) <= TEXT_BYTES_MAX else CLAIM_LONG + _short(raw)


def ready_key(keys: QueueKeys, priority: int, due_ms: int, seq: int) -> bytes:
    return keys.ready + _ready_tail(PRIORITY_MAX - priority, due_ms, seq)


def keyed_key(keys: QueueKeys, group: bytes, priority: int, due_ms: int, seq: int) -> bytes:
    return keys.keyed + group + _ready_tail(PRIORITY_MAX - priority, due_ms, seq)


def lane_key(keys: QueueKeys, rank: int, turn: int, group: bytes) -> bytes:
    return keys.lane + bytes((rank,)) + seq_bytes(turn) + group


def settings_key(queue: str) -> bytes:
    return SETTINGS + queue.encode()


def bucket_key(queue: str) -> bytes:
    return BUCKET + queue.encode()


def lanes_key(queue: str) -> bytes:
    return LANES + queue.encode()


def regroup_key(queue: str) -> bytes:
    return REGROUP + queue.encode()


def after_queue(prefix: bytes) -> bytes:
    """The end of the range of one queue's keys, whose prefix ends with NUL."""
    return prefix[:-1] + b"\1"


def keyed_range(keys: QueueKeys, group: bytes) -> tuple[bytes, bytes]:
    """All ready jobs of a group."""
    start = keys.keyed + group
    return start, start + b"\xff"


def pair_range(table: bytes, first: int, last: int) -> tuple[bytes, bytes]:
    """All rows of `table` keyed by `first` and a second number up to `last`."""
    return table + seq_bytes(first), table + pair_bytes(first, last) + b"\0"


def job_of_settle(key: bytes) -> int:
    """The job that has ended, by the key of a row of `SETTLE`."""
    return int.from_bytes(key[2:10], "big")


def schedule_key(schedule_id: str) -> bytes:
    return SCHEDULE + schedule_id.encode()


def schedule_run_key(schedule_id: str) -> bytes:
    return SCHEDULE_RUN + schedule_id.encode()


def fire_key(moment_ms: int, schedule_id: str) -> bytes:
    return FIRE + seq_bytes(moment_ms) + schedule_id.encode()


def live_prefix(schedule_id: str) -> bytes:
    return LIVE + schedule_id.encode() + b"\0"


def schedule_spec_of(row: Row) -> ScheduleSpec:
    return ScheduleSpec._make((*row[:-1], spec_of(row[-1])))


def schedule_run_of(row: Row) -> ScheduleRun:
    following = row[5]
    fields = (*row[:5], None if following is None else Occurrence(*following), *row[6:])
    return ScheduleRun(*fields)


def trigger_id(schedule_id: str, nominal_ms: int) -> str:
    """The id of a trigger's job: there cannot be two of one trigger."""
    return f"{schedule_id}@{utc_text(nominal_ms)}"


@lru_cache(maxsize=8192)
def utc_text(moment_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds. The calendar is reckoned here, in whole numbers: no clock, no zone.

    Days to a date as in H. Hinnant, "chrono-compatible low-level date algorithms" (civil_from_days).
    """
    seconds, ms = divmod(moment_ms, 1000)
    days, second = divmod(seconds, 86_400)
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153  # months from March on
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    return f"{year:04d}-{month:02d}-{day:02d}T{clock}.{ms:03d}Z"


def member_key(node_id: str) -> bytes:
    return MEMBER + node_id.encode()


def counts_key(queue: str) -> bytes:
    return COUNTS + queue.encode()


def purge_at(finished_ms: int, retention_ms: int) -> int:
    """The moment after which a finished job's record goes, rounded up to the housekeeping step."""
    return round_up(finished_ms + retention_ms)


def round_up(moment: int) -> int:
    return -(-moment // HOUSEKEEPING_MS) * HOUSEKEEPING_MS


def expiry_of(run: Run, expires_at_ms: int | None) -> int | None:
    """When a job in this condition expires. Only one that waits for its first start can: a started one is retried."""
    return expires_at_ms if expires_at_ms is not None and run.state <= S_READY and run.attempt == 0 else None


def _short(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=32).digest()
