"""A machine on the store in memory, with clocks that the test sets: what every test of the rules stands on."""

from __future__ import annotations

from typing import Any

from horae_node.core import machine, views
from horae_node.core.commands import (
    ENTRY_VERSION,
    ClaimJobs,
    Command,
    Header,
    HeartbeatLease,
    OpenEpoch,
    RaiseMachineVersion,
    SetQueue,
    SubmitJob,
)
from horae_node.core.invariants import check_invariants
from horae_node.core.model import KNOWN_VERSIONS, JobSpec, Missed, Overlap, Run, ScheduleSpec, State
from horae_node.core.results import EntryOutcome, Granted, Heartbeat, Outcome
from horae_node.core.tables import ERASE, SETTLE
from horae_storage.kv import Txn
from horae_storage.memory import MemoryStore

NOW_MS = 1_000_000
HASH = b"content-of-a-job"


def make_spec(job_id: str, **given: Any) -> JobSpec:
    """A spec with the contract's defaults but no jitter."""
    fields: dict[str, Any] = {
        "id": job_id,
        "task": "mail.send",
        "queue": "default",
        "payload": b"null",
        "priority": 0,
        "max_attempts": 5,
        "retry_initial_ms": 1000,
        "retry_factor_milli": 2000,
        "retry_max_ms": 3_600_000,
        "retry_jitter_milli": 0,
        "lease_ms": 30_000,
        "timeout_ms": 3_600_000,
        "max_lost": 3,
        "expires_at_ms": None,
        "ttl_ms": None,
        "unique_key": None,
        "concurrency_key": None,
        "tags": (),
        "retention_ms": 86_400_000,
        "schedule_id": None,
        "nominal_ms": None,
    }
    return JobSpec(**fields | given)


def make_schedule(schedule_id: str, **given: Any) -> ScheduleSpec:
    """One with the contract's defaults; `job`: what its template has of its own."""
    fields: dict[str, Any] = {
        "id": schedule_id,
        "cron": "* * * * *",
        "every_ms": None,
        "timezone": "UTC",
        "dst_gap": "after",
        "dst_repeat": "first",
        "starts_ms": None,
        "ends_ms": None,
        "jitter_ms": 0,
        "missed": int(Missed.SKIP),
        "catch_up_ms": 86_400_000,
        "max_catch_up": 1000,
        "grace_ms": 60_000,
        "overlap": int(Overlap.ALLOW),
        "job": make_spec(""),
    }
    return ScheduleSpec(**fields | given)


def submit(
    job_id: str, *, run_at_ms: int | None = None, delay_ms: int = 0, hash: bytes = b"", **given: Any
) -> SubmitJob:
    return SubmitJob(make_spec(job_id, **given), run_at_ms, delay_ms, hash)


class World:
    """Epoch 1 is open. `now_ms` and `lease_clock` go into each entry's header; every entry keeps the invariants."""

    def __init__(self, *, open_epoch: bool = True, version: int = 1) -> None:
        self.store = MemoryStore()
        self.index = 1
        self.now_ms = NOW_MS
        self.lease_clock = 0
        self.epoch = 0
        self.known = KNOWN_VERSIONS
        """The machine versions of the build that this is."""
        if open_epoch:
            self.apply(OpenEpoch("n1", 0))
            self.epoch = 1
        if version > 1:
            self.do(RaiseMachineVersion(version))

    @property
    def txn(self) -> Txn:
        return self.store.txn

    def pass_ms(self, ms: int) -> None:
        """Time goes by for both clocks."""
        self.now_ms += ms
        self.lease_clock += ms

    def apply(self, *commands: Command) -> EntryOutcome:
        """One entry."""
        self.index += 1
        header = Header(ENTRY_VERSION, self.epoch, self.now_ms, self.lease_clock)
        before = self._unsettled()
        entry = machine.apply(self.index, header, commands, self.txn, self.known)
        assert check_invariants(self.txn) == []
        assert entry.unsettled or self._unsettled() <= before
        return entry

    def _unsettled(self) -> set[bytes]:
        """What the next advance has to carry on."""
        found = (self.txn.keys(start, stop, limit=1000) for start, stop in ((SETTLE, ERASE), (ERASE + b"\xff", b"H")))
        return {key for keys in found for key in keys}

    def do(self, command: Command) -> Outcome:
        """One command in an entry of its own."""
        return self.apply(command).outcomes[0]

    def claim(
        self, worker: str, *, queues: tuple[str, ...] = ("default",), max_jobs: int = 1, claim_id: str = ""
    ) -> tuple[tuple[int, int], ...]:
        """The grants: (seq, token)."""
        outcome = self.do(ClaimJobs(worker, queues, max_jobs, None, claim_id))
        assert isinstance(outcome, Granted)
        return outcome.grants

    def ids(self, grants: tuple[tuple[int, int], ...]) -> list[str]:
        """The ids of granted jobs."""
        specs = [views.spec(self.txn, seq) for seq, _ in grants]
        return [spec.id for spec in specs if spec is not None]

    def set_queue(self, queue: str = "default", **changes: bool | int | None) -> Outcome:
        return self.do(SetQueue(queue, tuple(changes.items())))

    def heartbeat(self, job_id: str, token: int) -> Heartbeat:
        outcome = self.do(HeartbeatLease(job_id, token, None))
        assert isinstance(outcome, Heartbeat)
        return outcome

    def run(self, job_id: str) -> Run:
        seq = views.job_seq(self.txn, job_id)
        assert seq is not None, f"no job {job_id}"
        run = views.run(self.txn, seq)
        assert run is not None
        return run

    def state(self, job_id: str) -> str:
        return State(self.run(job_id).state).name.lower()

    def has(self, job_id: str) -> bool:
        return views.job_seq(self.txn, job_id) is not None
