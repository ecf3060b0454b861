"""What must hold between the tables: everything derived is derived anew from specs and runs, and compared.

A full scan: for tests and for an offline check, never on the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from horae_node.core.digest import every_row
from horae_node.core.limits import MICRO, burst_of
from horae_node.core.model import (
    LINKS_VERSION,
    NO_SETTINGS,
    STATE_COUNT,
    Group,
    JobSpec,
    Lanes,
    QueueSettings,
    Run,
    Standing,
)
from horae_node.core.runs import NONE
from horae_node.core.tables import (
    BUCKET,
    CLAIM,
    CLAIM_LONG,
    CLAIM_SWEEP,
    COUNTS,
    DUE,
    ERASE,
    ERROR,
    ERRORS_KEPT,
    EXPIRY,
    FIRE,
    GROUP,
    GROUP_BYTES,
    HELD,
    ID,
    ID_LONG,
    KEYED,
    KEYED_DUE,
    LANE,
    LANES,
    LEDGER,
    LISTED,
    LIVE,
    MEMBER,
    META,
    NEEDED,
    NEEDS,
    PRIORITY_MAX,
    PROGRESS,
    READY,
    REGROUP,
    RESULT,
    RETENTION,
    RUN,
    S_CANCELLED,
    S_DEAD,
    S_PENDING,
    S_READY,
    S_RUNNING,
    S_SUCCEEDED,
    SCHEDULE,
    SCHEDULE_RUN,
    SETTINGS,
    SETTLE,
    SPEC,
    TRAIT,
    TRAITS_FROM,
    UNIQUE,
    UNIQUE_LONG,
    WATCH,
    bucket_of,
    claim_of,
    counts_key,
    expiry_of,
    fire_key,
    group_id,
    group_row_of,
    handle_for,
    id_key,
    is_tombstone,
    job_of_settle,
    keyed_key,
    lane_key,
    lanes_of,
    live_prefix,
    member_of,
    meta_of,
    pair_bytes,
    purge_at,
    queue_keys,
    ready_key,
    run_of,
    schedule_run_of,
    schedule_spec_of,
    seq_bytes,
    settings_of,
    spec_of,
    terms_of,
    tombstone_of,
    traits_of,
    unique_index_key,
)
from horae_storage.kv import MAX_KEY_BYTES, Row, View

_DERIVED = (
    ID
    + ID_LONG
    + TRAIT
    + LISTED
    + COUNTS
    + DUE
    + READY
    + KEYED
    + KEYED_DUE
    + WATCH
    + EXPIRY
    + RETENTION
    + UNIQUE
    + UNIQUE_LONG
)
_BY_JOB = ERROR + PROGRESS + RESULT
_LIMITS = SETTINGS + BUCKET + GROUP + LANE + LANES + REGROUP
_SCHEDULES = SCHEDULE + SCHEDULE_RUN + FIRE + LEDGER + LIVE
_LINKS = HELD + NEEDED + NEEDS + TRAITS_FROM
_KNOWN = (
    _DERIVED + _BY_JOB + _LIMITS + _LINKS + _SCHEDULES + SPEC + RUN + CLAIM + CLAIM_LONG + CLAIM_SWEEP + META + MEMBER
)


def check_invariants(view: View) -> list[str]:
    """Findings, one a line; empty when all holds."""
    rows = dict(every_row(view))
    findings = [f"unknown table: {key!r}" for key in rows if key[0] not in _KNOWN]
    findings += [f"key too long: {key!r}" for key in rows if len(key) > MAX_KEY_BYTES]
    jobs = _jobs(rows, findings)
    _check_derived(rows, jobs, findings)
    _check_rows_by_job(rows, jobs, findings)
    _check_claims(rows, findings)
    _check_groups(rows, jobs, findings)
    _check_links(rows, jobs, findings)
    _check_tombstones(rows, jobs, findings)
    _check_schedules(rows, jobs, findings)
    _check_settings(rows, findings)
    _check_meta(rows, jobs, findings)
    _check_members(rows, findings)
    for seq, (spec, run) in jobs.items():
        findings += [f"job {seq} ({spec.id}): {broken}" for broken in _broken(spec, run)]
    return findings


def _jobs(rows: dict[bytes, Row], findings: list[str]) -> dict[int, tuple[JobSpec, Run]]:
    specs = {key[1:]: spec_of(row) for key, row in rows.items() if key[:1] == SPEC}
    runs = {key[1:]: run_of(row) for key, row in rows.items() if key[:1] == RUN}
    findings += [f"spec without run, or run without spec: {key!r}" for key in sorted(specs.keys() ^ runs.keys())]
    both = sorted(specs.keys() & runs.keys())
    return {int.from_bytes(key, "big"): (specs[key], runs[key]) for key in both}


def _check_derived(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    expected = _derived_rows(rows, jobs)
    found = {key: row for key, row in rows.items() if key[0] in _DERIVED and not _is_of_tombstone(key, row)}
    findings += [f"index row leaked: {key!r} -> {row}" for key, row in found.items() if key not in expected]
    findings += [f"index row missing: {key!r} -> {row}" for key, row in expected.items() if key not in found]
    for key, row in expected.items():
        if key in found and tuple(found[key]) != tuple(row):
            findings.append(f"index row differs: {key!r} -> {found[key]}, expected {row}")


def _is_of_tombstone(key: bytes, row: Row) -> bool:
    return is_tombstone(row) if key[:1] in (ID, ID_LONG) else key[:1] == RETENTION and row != ()


def _derived_rows(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]]) -> dict[bytes, Row]:
    traits_from = _traits_from(rows)
    expected: dict[bytes, Row] = {}
    counts: dict[str, list[int]] = {}
    for seq, (spec, run) in jobs.items():
        expected[id_key(spec.id)] = handle_for(seq, spec)
        expected[queue_keys(spec.queue).listed[run.state] + seq_bytes(seq)] = ()
        counts.setdefault(spec.queue, [0] * STATE_COUNT)[run.state] += 1
        expected.update(_waiting_rows(seq, spec, run, held=NEEDS + seq_bytes(seq) in rows))
        if seq > traits_from:
            expected.update((trait + seq_bytes(seq), ()) for trait in traits_of(spec))
        if run.state == S_RUNNING:
            expected[WATCH + pair_bytes(run.watch, seq)] = ()
        if run.state <= S_RUNNING and spec.unique_key is not None:
            expected[unique_index_key(spec.queue, spec.unique_key)] = (seq,)
        if run.state > S_RUNNING:
            expected[RETENTION + pair_bytes(purge_at(run.finished_ms, spec.retention_ms), seq)] = ()
    for queue, kept in counts.items():
        expected[counts_key(queue)] = tuple(kept)
    return expected


def _traits_from(rows: dict[bytes, Row]) -> int:
    """The last job without rows for its traits."""
    row = rows.get(META)
    if row is None or meta_of(row).machine_version < LINKS_VERSION:
        return 2**64
    floor = rows.get(TRAITS_FROM)
    return 0 if floor is None else floor[0]


def _waiting_rows(seq: int, spec: JobSpec, run: Run, *, held: bool) -> dict[bytes, Row]:
    expected: dict[bytes, Row] = {}
    if run.state == S_PENDING and not held:
        expected[DUE + pair_bytes(run.due_ms, seq)] = terms_of(spec)
    if run.state == S_READY:
        keys = queue_keys(spec.queue)
        if spec.concurrency_key is None:
            expected[ready_key(keys, spec.priority, run.due_ms, seq)] = terms_of(spec)
        else:
            group = group_id(spec.concurrency_key)
            expected[keyed_key(keys, group, spec.priority, run.due_ms, seq)] = terms_of(spec)
            expected[keys.keyed_due + pair_bytes(run.due_ms, seq)] = ()
    expires_at_ms = expiry_of(run, spec.expires_at_ms)
    if expires_at_ms is not None:
        expected[EXPIRY + pair_bytes(expires_at_ms, seq)] = ()
    return expected


def _check_rows_by_job(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    errors: dict[int, int] = {}
    for key in rows:
        if key[0] in _BY_JOB:
            seq = int.from_bytes(key[1:9], "big")
            if seq not in jobs:
                findings.append(f"row of a job that is gone: {key!r}")
            elif key[:1] == ERROR:
                errors[seq] = errors.get(seq, 0) + 1
            elif key[:1] == RESULT and jobs[seq][1].state != S_SUCCEEDED:
                findings.append(f"result of a job that did not succeed: {seq}")
    findings += [f"job {seq} keeps {kept} errors" for seq, kept in errors.items() if kept > ERRORS_KEPT]


def _check_groups(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    """Groups count their jobs; those that may run one more, and no others, have a place in their queue's lanes."""
    ready: dict[tuple[str, bytes], list[int]] = {}
    running: dict[tuple[str, bytes], int] = {}
    for spec, run in jobs.values():
        if spec.concurrency_key is not None and run.state in (S_READY, S_RUNNING):
            name = spec.queue, group_id(spec.concurrency_key)
            ready.setdefault(name, [])
            if run.state == S_READY:
                ready[name].append(PRIORITY_MAX - spec.priority)
            running[name] = running.get(name, 0) + (run.state == S_RUNNING)
    groups = {
        (key[1 : -GROUP_BYTES - 1].decode(), key[-GROUP_BYTES:]): row for key, row in rows.items() if key[:1] == GROUP
    }
    findings += [
        f"group without a job, or jobs without a group: {name}" for name in sorted(groups.keys() ^ ready.keys())
    ]
    places: dict[bytes, Row] = {}
    by_queue: dict[str, list[Group]] = {}
    for name in groups.keys() & ready.keys():
        queue, group = name
        kept = group_row_of(groups[name])
        by_queue.setdefault(queue, []).append(kept)
        if (kept.waiting, kept.running) != (len(ready[name]), running[name]):
            findings.append(f"group {name} says {kept}: {len(ready[name])} ready, {running[name]} running")
        if kept.rank >= 0:
            places[lane_key(queue_keys(queue), kept.rank, kept.turn, group)] = ()
        may_run = bool(ready[name]) and running[name] < _settings(rows, queue).max_running_per_key
        rank = min(ready[name]) if may_run else -1
        if kept.rank != rank and REGROUP + queue.encode() not in rows:
            findings.append(f"group {name} has rank {kept.rank}, expected {rank}")
    found = {key for key in rows if key[:1] == LANE}
    findings += [f"lane row leaked or missing: {key!r}" for key in sorted(found ^ places.keys())]
    _check_lanes(rows, by_queue, findings)


def _check_links(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    """Who waits for others is pending and counted; each of the others is unfinished, or it is to be told."""
    needs = {int.from_bytes(key[1:], "big"): row for key, row in rows.items() if key[:1] == NEEDS}
    held = rows.get(HELD, (0,))[0]
    if held != len(needs) or rows.get(HELD) == (0,):
        findings.append(f"{held} jobs are said to wait for others: {len(needs)}")
    expected: set[bytes] = set()
    told_up_to: dict[int, int] = {}
    for key, row in rows.items():
        if key[:2] == SETTLE:
            told_up_to[job_of_settle(key)] = max(row[1], told_up_to.get(job_of_settle(key), 0))
    for seq, (_, others) in needs.items():
        if seq not in jobs or jobs[seq][1].state != S_PENDING or jobs[seq][1].attempt or not others:
            findings.append(f"job {seq} does not wait for others: {others}")
        expected.update(NEEDED + pair_bytes(other, seq) for other in others)
        for other in others:
            unfinished = other in jobs and jobs[other][1].state <= S_RUNNING
            if not unfinished and told_up_to.get(other, 0) < seq:
                findings.append(f"job {seq} waits for {other}, which is finished, and nobody will tell it")
    found = {key for key in rows if key[:1] == NEEDED}
    findings += [f"row of a need leaked or missing: {key!r}" for key in sorted(found ^ expected)]


def _check_tombstones(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    """Each will be swept, once."""
    stones = {key: tombstone_of(row) for key, row in rows.items() if key[:1] in (ID, ID_LONG) and is_tombstone(row)}
    sweeps = {row[0]: key for key, row in rows.items() if key[:1] == RETENTION and row != ()}
    findings += [f"tombstone without a sweep, or a sweep without: {key!r}" for key in sorted(stones.keys() ^ sweeps)]
    for key, stone in stones.items():
        if stone.seq in jobs or stone.state <= S_RUNNING or not stone.content_hash:
            findings.append(f"tombstone of a job that lives: {key!r} {stone}")
        elif key in sweeps and sweeps[key][9:] != seq_bytes(stone.seq):
            findings.append(f"tombstone of {stone.seq} is swept as {sweeps[key]!r}")


def _check_schedules(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    """Who has a next trigger is looked at in time; live jobs are listed; the ledger's lines are counted."""
    runs = {key[1:]: schedule_run_of(row) for key, row in rows.items() if key[:1] == SCHEDULE_RUN}
    specs = {key[1:]: schedule_spec_of(row) for key, row in rows.items() if key[:1] == SCHEDULE}
    findings += [f"schedule in half: {name!r}" for name in sorted(runs.keys() ^ specs.keys())]
    findings += [f"schedule {spec.id} lies under {name!r}" for name, spec in specs.items() if spec.id.encode() != name]
    fires = {fire_key(run.look_ms, name.decode()) for name, run in runs.items() if run.next is not None}
    found = {key for key in rows if key[:1] == FIRE}
    findings += [f"row of a next trigger leaked or missing: {key!r}" for key in sorted(fires ^ found)]
    live = {
        live_prefix(spec.schedule_id) + seq_bytes(seq)
        for seq, (spec, run) in jobs.items()
        if spec.schedule_id is not None and run.state <= S_RUNNING
    }
    found = {key for key in rows if key[:1] == LIVE}
    findings += [f"live job leaked or missing: {key!r}" for key in sorted(live ^ found)]
    lines: dict[int, int] = {}
    for key in rows:
        if key[:1] == LEDGER:
            number = int.from_bytes(key[1:9], "big")
            lines[number] = lines.get(number, 0) + 1
    for name, run in runs.items():
        if lines.pop(run.number, 0) != run.ledger_rows:
            findings.append(f"schedule {name!r} counts {run.ledger_rows} lines in its ledger")
    findings += [f"ledger of nobody: {number}" for number in lines if ERASE + seq_bytes(number) not in rows]


def _check_lanes(rows: dict[bytes, Row], by_queue: dict[str, list[Group]], findings: list[str]) -> None:
    lanes = {key[1:].decode(): lanes_of(row) for key, row in rows.items() if key[:1] == LANES}
    findings += [
        f"lanes without a group, or groups without: {queue}" for queue in sorted(lanes.keys() ^ by_queue.keys())
    ]
    for queue in lanes.keys() & by_queue.keys():
        kept, groups = lanes[queue], by_queue[queue]
        waiting = sum(group.waiting for group in groups)
        if kept != Lanes(kept.next_turn, kept.keyless_turn, waiting, len(groups)):
            findings.append(f"lanes of {queue} say {kept}: {waiting} ready in {len(groups)} groups")
        turns = [kept.keyless_turn, *[group.turn for group in groups if group.rank >= 0]]
        if len({*turns}) < len(turns) or max(turns) >= kept.next_turn:
            findings.append(f"turns of {queue}: {turns}, the next is {kept.next_turn}")


def _settings(rows: dict[bytes, Row], queue: str) -> QueueSettings:
    row = rows.get(SETTINGS + queue.encode())
    return NO_SETTINGS if row is None else settings_of(row)


def _check_settings(rows: dict[bytes, Row], findings: list[str]) -> None:
    names = {key[1:].decode() for key in rows if key[:1] == SETTINGS}
    for queue in sorted(names):
        settings = _settings(rows, queue)
        if settings._replace(version=0) == NO_SETTINGS:
            findings.append(f"settings of queue {queue} that say nothing")
    rated = {queue for queue in names if _settings(rows, queue).rate_milli is not None}
    buckets = {key[1:].decode(): bucket_of(row) for key, row in rows.items() if key[:1] == BUCKET}
    findings += [f"bucket without a rate, or a rate without: {queue}" for queue in sorted(rated ^ buckets.keys())]
    for queue in rated & buckets.keys():
        bucket = buckets[queue]
        full = burst_of(_settings(rows, queue)) * MICRO
        if not 0 <= bucket.micro <= full or (META in rows and bucket.at > meta_of(rows[META]).lease_clock):
            findings.append(f"bucket of queue {queue}: {bucket}, at most {full}")


def _check_claims(rows: dict[bytes, Row], findings: list[str]) -> None:
    records = {key: claim_of(row) for key, row in rows.items() if key[:1] in (CLAIM, CLAIM_LONG)}
    sweeps = {key for key in rows if key[:1] == CLAIM_SWEEP}
    expected = {CLAIM_SWEEP + seq_bytes(record.sweep_at) + key for key, record in records.items()}
    findings += [f"claim and sweep rows differ: {key!r}" for key in sorted(sweeps ^ expected)]


def _check_meta(rows: dict[bytes, Row], jobs: dict[int, tuple[JobSpec, Run]], findings: list[str]) -> None:
    row = rows.get(META)
    if row is None:
        findings += ["no meta row"] if rows else []
        return
    meta = meta_of(row)
    if jobs and max(jobs) > meta.job_seq:
        findings.append(f"job {max(jobs)} past the last number given, {meta.job_seq}")
    for seq, (_, run) in jobs.items():
        if run.version > meta.applied_index or run.token > meta.applied_index:
            findings.append(f"job {seq}: version {run.version} or token {run.token} past index {meta.applied_index}")


def _check_members(rows: dict[bytes, Row], findings: list[str]) -> None:
    standings = [member_of(row).standing for key, row in rows.items() if key[:1] == MEMBER]
    if standings and Standing.VOTER not in standings:
        findings.append("members without a voter")
    if standings.count(Standing.LEARNER) > 1:
        findings.append("more than one change of members under way")


def _broken(spec: JobSpec, run: Run) -> list[str]:
    """Rules within one job's record."""
    running = run.state == S_RUNNING
    return [text for text, holds in _RULES.items() if not holds(spec, run, running)]


_UNCOUNTED = {S_RUNNING: (1,), S_SUCCEEDED: (1,), S_CANCELLED: (0, 1)}
"""Attempts that are neither failures nor lost: the one that runs, succeeded, or was handed back to a cancel."""

_RULES: dict[str, Callable[[JobSpec, Run, bool], bool]] = {
    "lease, time-out and watch are set exactly while running": lambda _, run, running: (
        (run.lease_end > 0) == (run.timeout_end > 0) == (run.watch > 0) == running
    ),
    "the watch is not later than the deadline": lambda _, run, running: (
        run.watch <= min(run.lease_end, run.timeout_end)
    ),
    "a running attempt has no ending": lambda _, run, running: not running or run.ending == NONE,
    "a running attempt has a token": lambda _, run, running: not running or run.token > 0,
    "finished_ms is set exactly when finished": lambda _, run, running: (
        (run.finished_ms > 0) == (run.state > S_RUNNING) or run.created_ms == 0
    ),
    "only a running or finished job has a cancel requested": lambda _, run, running: (
        not run.cancel_requested or run.state >= S_RUNNING
    ),
    "a waiting or running job may fail once more": lambda spec, run, _: (
        run.state > S_RUNNING or (run.failures < spec.max_attempts and run.lost <= spec.max_lost)
    ),
    "every attempt is counted once, as what it ended in": lambda _, run, running: (
        run.attempt - run.failures - run.lost in _UNCOUNTED.get(run.state, (0,))
    ),
    "before the first attempt nobody has worked on it": lambda _, run, running: (
        run.attempt > 0 or (not run.worker and run.started_ms == 0)
    ),
    "failures are not more than attempts allow": lambda spec, run, _: run.failures <= max(spec.max_attempts, 1),
    "dead has a reason, nothing else has": lambda _, run, running: bool(run.dead_reason) == (run.state == S_DEAD),
}
