"""Who uses the cluster: submitters, workers, readers, operators; careful ones, and ones that stall, die, report late.

Each is a generator that yields what it waits for: a span (int, microseconds) or a call. They only act and write down
what they were told (`Job`, the edge's history); judging is `judge.py`. Once `calm`, workers behave, so that what was
submitted must drain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from msgspec import Raw
from tests.sim.calls import OK, PATIENCE_US, REFUSED, Ask, Call, Edge
from tests.sim.world import MILLISECOND, SECOND, World

from horae import wire
from horae_node.core.tables import claim_key
from horae_node.service import Service

QUEUES: Final = ("a", "b")
PER_KEY_MAX: Final = 2
LIMITS: Final[dict[str, tuple[Any, ...]]] = {
    "paused": (False, False, True),
    "max_running": (None, 1, 3),
    "max_running_per_key": (1, PER_KEY_MAX),
    "rate_per_second": (None, 0.5, 5.0),
    "burst": (None, 1, 4),
    "max_depth": (None, None, 5, 50),
}
NO_LIMITS: Final = wire.QueuePatch(
    paused=False, max_running=None, max_running_per_key=None, rate_per_second=None, burst=None, max_depth=None
)
KEEP_SECONDS: Final = 1_000_000
"""Retention: the record of every job is there to be judged at the end."""

BULK: Final = {"bulk": "yes"}
"""The tag of the jobs that are cancelled and requeued many at once."""

SCHEDULES: Final = 2
CRONS: Final = {"*/2 * * * * *": 2000, "*/5 * * * * *": 5000, "*/10 * * * * *": 10_000}
"""Lines that come at even steps (ms), in whatever zone."""
ZONES: Final = ("UTC", "America/New_York", "Asia/Kolkata")
LAST_SCHEDULE_S: Final = 6
"""In the end each schedule triggers for so long, and nothing else goes on."""

READ_EVERY_US: Final = SECOND // 2

SOON_US: Final = 12 * MILLISECOND
"""Within this callers hang up while their claim is on its way into the log, and ask again while it still is."""

_UNIX = datetime(1970, 1, 1, tzinfo=UTC)

Effect = int | Callable[[Callable[[Any], None]], object]
Script = Generator[Effect, Any, None]


@dataclass(slots=True, eq=False)
class Job:
    """What one submitter wanted, and all that callers were told of it."""

    job_id: str
    request: wire.SubmitRequest
    due_ms: int | None
    """True time of day before which it may not start; None: none was named."""
    delay_ms: int
    submits: list[Call] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    shown: list[tuple[int, bytes]] = field(default_factory=list)
    """Of each grant: its token, and the progress that came with it."""
    endings: list[Call] = field(default_factory=list)
    beats: list[Call] = field(default_factory=list)
    cancels: list[Call] = field(default_factory=list)
    requeues: list[Call] = field(default_factory=list)
    moved: bool = False
    """A bulk call may have cancelled or requeued it."""
    hurried: bool = False
    """Somebody asked to run it now."""
    parent: Job | None = None
    """The job whose success brings it forth; nobody submits it."""
    scheduled: bool = False
    """A schedule made it."""
    fleeting: bool = False
    """Its record goes as soon as it is finished, and its submitter asks once more, late."""

    @property
    def was_requeued(self) -> bool:
        """It may have been finished, and live again."""
        return bool(self.requeues) or self.moved

    @property
    def acknowledged(self) -> Call | None:
        """The first submit that was answered with this job itself (not another one of its unique key)."""
        return next((call for call in self.submits if call.how == OK and call.value[0].id == self.job_id), None)


@dataclass(slots=True, eq=False)
class Grant:
    """One lease, as its claim was answered."""

    call: Call
    asked_us: int
    """When this claim was first asked for: a repeat gets the same lease, which runs from then at the earliest."""
    worker: str
    token: int
    attempt: int
    lease_us: int


class Workload:
    """All callers of a run, and the book of jobs."""

    def __init__(self, world: World, edge: Edge, rng: random.Random, ids: list[str]) -> None:
        self.world = world
        self.edge = edge
        self.rng = rng
        self.ids = ids
        self.book: dict[str, Job] = {}
        self.names: list[str] = []
        self.schedules: dict[str, list[Call]] = {}
        """By schedule: the calls that changed it. Each is answered with its version."""
        self.claims: dict[bytes, list[Call]] = {}
        """By the key that the state has a claim under: its calls."""
        self.triggered: list[Call] = []
        """Triggers by hand. Each is answered with the id of its job."""
        self.open_plans = SCHEDULES
        """Schedules that have not come to their last end."""
        self.calm = False
        self.closing = False
        self._good: dict[str, str] = {}
        """By caller: the node that answered last. Callers that behave stay with it."""
        self.open_submits = 0
        """Submitters that wait for an answer, or try again."""
        self._interval_us = rng.choice((SECOND // 2, SECOND, 2 * SECOND))
        self._sloppy = rng.choice((0.05, 0.15, 0.3))
        """How many of the claims are worked badly."""

    def start(self) -> None:
        for number in range(2):
            self._run(self._submitter(f"s{number}"))
        for number in range(3):
            self._run(self._worker(f"w{number}"))
        for number in range(2):
            self._run(self._reader(f"r{number}"))
        self._run(self._operator("o0"))
        self._run(self._limiter("l0"))
        self._run(self._bulk_operator("b0"))
        for number in range(SCHEDULES):
            self._run(self._planner(f"c{number}"))

    # ------------------------------------------------------------------ submitters

    def _submitter(self, name: str) -> Script:
        rng = self.rng
        while not self.closing:
            yield int(2 * self._interval_us * rng.expovariate(1.0))
            for _ in range(rng.choice((1, 1, 1, 4))):
                job = self._make_job()
                yield from self._submit(name, job)

    def _make_job(self) -> Job:
        rng = self.rng
        job_id = f"j{len(self.book)}"
        keys: dict[str, Any] = {}
        due_ms, delay_ms = None, 0
        when = rng.random()
        if when < 0.3:
            due_ms = self.world.true_wall_ms() + int(rng.random() * 15_000)
            keys["run_at"] = _moment(due_ms)
        elif when < 0.45:
            delay_ms = int(rng.random() * 10_000)
            keys["delay_seconds"] = delay_ms / 1000
        if rng.random() < 0.05:
            keys["unique_key"] = f"u{rng.randrange(3)}"
        if rng.random() < 0.2:
            keys["concurrency_key"] = f"k{rng.randrange(3)}"
        if rng.random() < 0.03:
            keys["ttl_seconds"] = 20.0
        if rng.random() < 0.15 and self.names:
            keys["after"] = list(dict.fromkeys(self._some_job() for _ in range(rng.choice((1, 1, 3)))))
            keys["on_failure"] = rng.choice(("cancel", "run"))
        if rng.random() < 0.08:
            keys["then"] = wire.SubmitRequest(
                task="t", id=f"{job_id}t", queue=rng.choice(QUEUES), lease_seconds=2.0, retention_seconds=KEEP_SECONDS
            )
        if rng.random() < 0.1:
            keys["tags"] = BULK
        fleeting = rng.random() < 0.05
        request = wire.SubmitRequest(
            task="t",
            id=job_id,
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 0, 5)),
            max_attempts=rng.choice((2, 4)),
            max_lost=rng.choice((1, 5)),
            lease_seconds=rng.choice((1.0, 2.0, 5.0)),
            timeout_seconds=rng.choice((20.0, 600.0)),
            retry=wire.Retry(initial_seconds=0.5, factor=2.0, max_seconds=2.0, jitter=0.2),
            retention_seconds=0 if fleeting else KEEP_SECONDS,
            **keys,
        )
        job = self.book[job_id] = Job(job_id, request, due_ms, delay_ms, fleeting=fleeting)
        self.names.append(job_id)
        if request.then is not None and request.then.id is not None:
            self.book[request.then.id] = Job(request.then.id, request.then, None, 0, parent=job)
            self.names.append(request.then.id)
        return job

    def _submit(self, name: str, job: Job) -> Script:
        """Repeated with its id until it is answered; a few callers give up instead."""
        self.open_submits += 1
        while True:
            call = yield self._ask(name, "submit", _submitting(job), job.job_id, note=job.submits)
            if call.how in (OK, REFUSED) or (not self.calm and self.rng.random() < 0.05):
                break
            yield self._backoff_us()
        if job.fleeting:
            yield int(20 * SECOND * self.rng.random())
            yield self._ask(name, "submit", _submitting(job), job.job_id, note=job.submits)
        self.open_submits -= 1

    # ------------------------------------------------------------------ workers

    def _worker(self, name: str) -> Script:
        claims = 0
        while True:
            claims += 1
            asked_us = self.world.now_us
            call = yield from self._claim(name, f"{name}-{claims}")
            if call is not None and call.value.jobs:
                yield from self._work(name, [self._note_grant(name, call, asked_us, job) for job in call.value.jobs])

    def _claim(self, name: str, claim_id: str) -> Generator[Effect, Any, Call | None]:
        rng = self.rng
        wait_s = rng.choice((0.0, 2.0, 10.0))
        request = wire.ClaimRequest(
            worker=name,
            queues=rng.sample(QUEUES, 2),
            max_jobs=10 if self.calm else rng.choice((1, 1, 3)),  # limits may have dammed up hundreds
            wait_seconds=wait_s,
            claim_id=claim_id,
        )
        calls: list[Call] = []
        for queues in ((), request.queues):  # by the rules before machine version 4, and since
            self.claims[claim_key(name, claim_id, queues)] = calls
        if not self.calm and rng.random() < 0.2:
            self._run(self._stray(name, request, calls))
        for _ in range(6):
            call: Call = yield self._ask_claim(name, request, calls, hurried=not self.calm and rng.random() < 0.3)
            if call.how == OK:
                if not call.value.jobs and not request.wait_seconds:
                    yield SECOND
                return call
            if call.value != "timed out" or self.calm:
                yield self._backoff_us()
                continue
            if rng.random() < 0.3:
                return None  # nobody asks for it any more
            yield int(SOON_US * rng.random())
            if rng.random() < 0.5:
                request = msgspec.structs.replace(request, wait_seconds=0.0)
        return None

    def _ask_claim(self, name: str, request: wire.ClaimRequest, calls: list[Call], *, hurried: bool) -> Effect:
        """Given up soon when `hurried`."""
        patience_us = PATIENCE_US + int(request.wait_seconds * SECOND)
        if hurried:
            patience_us = max(MILLISECOND, int(SOON_US * self.rng.random()))
        return self._ask(name, "claim", lambda service: service.claim(request), patience_us=patience_us, note=calls)

    def _stray(self, name: str, request: wire.ClaimRequest, calls: list[Call]) -> Script:
        """A claim sent once more by something on the way, which does not wait for the answer."""
        yield self._ask_claim(name, request, calls, hurried=True)

    def _note_grant(self, name: str, call: Call, asked_us: int, claimed: wire.ClaimedJob) -> tuple[Job, Grant]:
        job = self.book.get(claimed.id) or self._note_scheduled(claimed)
        job.shown.append((claimed.lease_token, bytes(claimed.progress)))
        grant = Grant(call, asked_us, name, claimed.lease_token, claimed.attempt, int(claimed.lease_seconds * SECOND))
        job.grants.append(grant)
        return job, grant

    def _note_scheduled(self, claimed: wire.ClaimedJob) -> Job:
        request = wire.SubmitRequest(task=claimed.task, id=claimed.id, queue=claimed.queue)
        job = self.book[claimed.id] = Job(claimed.id, request, None, 0, scheduled=True)
        return job

    def _work(self, name: str, held: list[tuple[Job, Grant]]) -> Script:
        rng = self.rng
        manner = rng.random()
        if not self.calm and manner < self._sloppy:
            if manner < self._sloppy / 3:
                return  # dies with the jobs in hand
            yield int(held[0][1].lease_us * (0.5 + 2 * rng.random()))  # stalls, and reports as if nothing were
        else:
            held = yield from self._beat_along(name, held)
        for job, grant in held:
            yield from self._end(name, job, grant)

    def _beat_along(self, name: str, held: list[tuple[Job, Grant]]) -> Generator[Effect, Any, list[tuple[Job, Grant]]]:
        """Run for a while with heartbeats; what is left of the jobs afterwards."""
        rng = self.rng
        end_us = self.world.now_us + int(rng.expovariate(1.0) * SECOND)
        third_us = min(grant.lease_us for _, grant in held) // 3
        while held and (left_us := end_us - self.world.now_us) > 0:
            yield min(left_us, third_us)
            if end_us <= self.world.now_us:
                break
            held = yield from self._beat(name, held)
        return held

    def _beat(self, name: str, held: list[tuple[Job, Grant]]) -> Generator[Effect, Any, list[tuple[Job, Grant]]]:
        leases = [
            wire.LeaseBeat(job_id=job.job_id, lease_token=grant.token, progress=Raw(b"%d" % grant.token))
            for job, grant in held
        ]
        request = wire.HeartbeatRequest(worker=name, leases=leases)
        call: Call = yield self._ask(
            name, "heartbeat", lambda service: service.heartbeat(request), patience_us=2 * SECOND
        )
        if call.how != OK:
            return held
        kept = []
        for (job, grant), status in zip(held, call.value.leases, strict=True):
            if status.status == "ok":
                job.beats.append(_of_token(call, grant.token))
            if status.status == "ok" or self.rng.random() < 0.3:  # some go on all the same: the fence must hold
                kept.append((job, grant))
        return kept

    def _end(self, name: str, job: Job, grant: Grant) -> Script:
        fate = self.rng.random()
        token, job_id = grant.token, job.job_id
        if fate < 0.85 or (self.calm and fate < 0.95):
            kind, ask = "complete", _completing(job_id, token)
        elif fate < 0.95:
            kind, ask = "fail", _failing(job_id, token)
        else:
            kind, ask = "release", _releasing(job_id, token)
        for _ in range(8):
            call: Call = yield self._ask(name, kind, ask, job_id, token, note=job.endings)
            if call.how in (OK, REFUSED):
                return
            yield self._backoff_us()

    # ------------------------------------------------------------------ readers and operators

    def _reader(self, name: str) -> Script:
        while not self.closing:
            yield int(READ_EVERY_US * self.rng.expovariate(1.0))
            if self.names:
                job_id = self._some_job()
                # Soon given up, so that reads begin all through a fault, not only before it.
                yield self._ask(name, "read", _reading(job_id), job_id, patience_us=2 * SECOND)

    def _operator(self, name: str) -> Script:
        rng = self.rng
        while not self.closing:
            yield int(6 * SECOND * rng.expovariate(1.0))
            if not self.names:
                continue
            job_id = self._some_job()
            job = self.book[job_id]
            what = rng.random()
            if what < 0.5:
                yield self._ask(name, "cancel", _cancelling(job_id), job_id, note=job.cancels)
            elif what < 0.8:
                yield self._ask(name, "requeue", _requeueing(job_id), job_id, note=job.requeues)
            else:
                job.hurried = True
                yield self._ask(name, "run_now", _hurrying(job_id), job_id)

    def _bulk_operator(self, name: str) -> Script:
        """Cancels, and requeues, all that have a tag, whatever page they are on."""
        while not self.calm:
            yield int(20 * SECOND * self.rng.expovariate(1.0))
            for job in self.book.values():
                job.moved |= job.request.tags == BULK
            ask = _cancelling_many() if self.rng.random() < 0.5 else _requeueing_many()
            yield self._ask(name, "bulk", ask)

    def _limiter(self, name: str) -> Script:
        """Changes what queues let through; in the end, again and again, to all, so that what waits must drain."""
        rng = self.rng
        while not self.calm:
            yield int(5 * SECOND * rng.expovariate(1.0))
            patch = wire.QueuePatch(**{key: rng.choice(values) for key, values in LIMITS.items() if rng.random() < 0.3})
            yield self._ask(name, "set queue", _limiting(rng.choice(QUEUES), patch))
        for _ in range(3):  # an earlier change may yet take effect, late
            for queue in QUEUES:
                while (yield self._ask(name, "set queue", _limiting(queue, NO_LIMITS))).how not in (OK, REFUSED):
                    yield self._backoff_us()
            yield 5 * SECOND

    def _planner(self, name: str) -> Script:
        """Makes one schedule, and does with it all that may be done. In the end it triggers for a while alone."""
        rng = self.rng
        self.schedules[name] = []
        yield int(20 * SECOND * rng.random())
        yield from self._change(name, "put schedule", self._putting(name))
        while not self.closing:
            yield min(int(8 * SECOND * rng.expovariate(1.0)), 20 * SECOND)
            what = rng.random()
            if what < 0.3:
                yield from self._change(name, "put schedule", self._putting(name))
            elif what < 0.65:
                yield from self._change(name, "pause", _pausing(name))
                yield int(rng.choice((5, 20)) * SECOND * rng.random())
                yield from self._change(name, "resume", _resuming(name, missed=rng.random() < 0.7))
            elif what < 0.73:
                yield self._ask(name, "delete schedule", _deleting(name))
            elif what < 0.85:
                yield self._ask(name, "trigger", _triggering(name), note=self.triggered)
            else:
                yield self._ask(name, "backfill", self._backfilling(name))
        yield from self._end_schedule(name)

    def _end_schedule(self, name: str) -> Script:
        """Again and again, until it is over: an earlier change may yet take effect, late. Cluster time may lag."""
        last: int | None = None
        while True:
            if last is None:
                ends_ms = self.world.true_wall_ms() + LAST_SCHEDULE_S * 1000
                request = self._draw_schedule(every_seconds=float(self.rng.choice((1, 2))), ends_at=_moment(ends_ms))
                call = yield from self._change(name, "put schedule", _putting(name, request, None))
                last = call.value if call.how == OK else None
            yield self._backoff_us() if last is None else (LAST_SCHEDULE_S + 2) * SECOND
            call = yield self._ask(name, "read schedule", _looking_at(name))
            if call.how == OK and call.value == (last, None):
                break
            if call.how == REFUSED or (call.how == OK and call.value[0] != last):
                last = None
        self.open_plans -= 1

    def _change(self, name: str, kind: str, ask: Ask) -> Generator[Effect, Any, Call]:
        """Repeated until it is answered; at times given up."""
        while True:
            call: Call = yield self._ask(name, kind, ask, note=self.schedules[name])
            if call.how in (OK, REFUSED) or self.rng.random() < 0.2:
                return call
            yield self._backoff_us()

    def _putting(self, name: str) -> Ask:
        """With a guard at times, which holds or does not."""
        rng = self.rng
        versions = [call.value for call in self.schedules[name] if call.how == OK]
        guard = rng.choice((None, None, 0, versions[-1], versions[-1], rng.choice(versions))) if versions else None
        times: dict[str, Any] = {}
        if rng.random() < 0.3:
            times["cron"], times["timezone"] = rng.choice(tuple(CRONS)), rng.choice(ZONES)
        else:
            times["every_seconds"] = float(rng.choice((2, 3, 5, 10)))
        now_ms = self.world.true_wall_ms()
        if rng.random() < 0.15:
            times["starts_at"] = _moment(now_ms + rng.randint(-5000, 5000))
        if rng.random() < 0.15:
            times["ends_at"] = _moment(now_ms + rng.randint(15_000, 40_000))
        jitter_s = rng.choice((0.0, 0.0, 0.5, 20.0))
        return _putting(name, self._draw_schedule(jitter_seconds=jitter_s, paused=rng.random() < 0.05, **times), guard)

    def _draw_schedule(self, **keys: Any) -> wire.ScheduleRequest:
        rng = self.rng
        missed = rng.choice(("skip", "latest", "latest", "all", "all"))
        overlap = "allow" if missed == "all" else rng.choice(("allow", "skip", "skip", "queue", "cancel"))
        has_key = overlap in ("allow", "skip") and rng.random() < 0.2
        template = wire.SubmitRequest(
            task="t",
            queue=rng.choice(QUEUES),
            lease_seconds=2.0,
            retention_seconds=KEEP_SECONDS,
            unique_key=f"u{rng.randrange(3)}" if has_key else None,
        )
        return wire.ScheduleRequest(
            job=template,
            missed=missed,
            overlap=overlap,
            grace_seconds=rng.choice((0.0, 1.0, 10.0)),
            catch_up_seconds=rng.choice((3.0, 100.0)),
            max_catch_up=rng.choice((1, 2, 1000)),
            **keys,
        )

    def _backfilling(self, name: str) -> Ask:
        """Some of the last moments."""
        to_ms = self.world.true_wall_ms() - self.rng.randint(100, 10_000)
        request = wire.BackfillRequest(from_=_moment(to_ms - self.rng.randint(1000, 20_000)), to=_moment(to_ms))
        return lambda service: service.schedules.backfill(name, request)

    def _some_job(self) -> str:
        """A recent one, mostly."""
        back = int(self.rng.expovariate(0.1))
        return self.names[max(0, len(self.names) - 1 - back)]

    # ------------------------------------------------------------------ inside

    def _ask(
        self,
        name: str,
        kind: str,
        ask: Ask,
        job_id: str = "",
        token: int = 0,
        *,
        patience_us: int = PATIENCE_US,
        note: list[Call] | None = None,
    ) -> Effect:
        """A call of any node; it is noted as it begins, so that one that never ends is known too."""
        node_id = self._good.pop(name, None) if self.calm else None
        if node_id is None:
            node_id = self.rng.choice(self.ids)

        def begin(done: Callable[[Any], None]) -> None:
            def answered(call: Call) -> None:
                if call.how in (OK, REFUSED):
                    self._good[name] = node_id
                done(call)

            call = self.edge.call(
                name, node_id, kind, ask, job_id=job_id, token=token, patience_us=patience_us, done=answered
            )
            if note is not None:
                note.append(call)

        return begin

    def _backoff_us(self) -> int:
        return int(SECOND * (0.1 + 0.5 * self.rng.random()))

    def _run(self, script: Script) -> None:
        def go_on(value: Any) -> None:
            try:
                effect = script.send(value)
            except StopIteration:
                return
            if isinstance(effect, int):
                self.world.after(max(effect, MILLISECOND), None, go_on, None)
            else:
                effect(go_on)

        self.world.after(int(SECOND * self.rng.random()), None, go_on, None)


def _of_token(call: Call, token: int) -> Call:
    """The call as it stands for one of its leases."""
    return Call(call.number, call.caller, call.kind, "", token, call.begin_us, call.seen_index, call.end_us, OK)


def _completing(job_id: str, token: int) -> Ask:
    return lambda service: service.complete(job_id, wire.CompleteRequest(lease_token=token))


def _limiting(queue: str, patch: wire.QueuePatch) -> Ask:
    return lambda service: service.set_queue(queue, patch)


def _submitting(job: Job) -> Ask:
    return lambda service: service.submit(job.request)


def _moment(moment_ms: int) -> datetime:
    return _UNIX + timedelta(milliseconds=moment_ms)


def _putting(schedule_id: str, request: wire.ScheduleRequest, if_version: int | None) -> Ask:
    async def put(service: Service) -> int:
        return (await service.schedules.put(schedule_id, request, if_version))[0].version

    return put


def _pausing(schedule_id: str) -> Ask:
    async def pause(service: Service) -> int:
        return (await service.schedules.pause(schedule_id)).version

    return pause


def _resuming(schedule_id: str, *, missed: bool) -> Ask:
    async def resume(service: Service) -> int:
        return (await service.schedules.resume(schedule_id, missed=missed)).version

    return resume


def _deleting(schedule_id: str) -> Ask:
    return lambda service: service.schedules.delete(schedule_id)


def _triggering(schedule_id: str) -> Ask:
    async def trigger(service: Service) -> str:
        return (await service.schedules.trigger(schedule_id))[0].id

    return trigger


def _looking_at(schedule_id: str) -> Ask:
    async def read(service: Service) -> tuple[int, str | None]:
        view = await service.schedules.read(schedule_id, local=False)
        return view.version, view.next_nominal_time

    return read


def _cancelling_many() -> Ask:
    request = wire.CancelManyRequest(filter=wire.CancelFilter(tag="bulk:yes"))
    return lambda service: service.cancel_many(request)


def _requeueing_many() -> Ask:
    request = wire.RequeueManyRequest(filter=wire.RequeueFilter(tag="bulk:yes", state="cancelled"))
    return lambda service: service.requeue_many(request)


def _reading(job_id: str) -> Ask:
    return lambda service: service.job(job_id)


def _cancelling(job_id: str) -> Ask:
    return lambda service: service.cancel(job_id)


def _requeueing(job_id: str) -> Ask:
    return lambda service: service.requeue(job_id)


def _hurrying(job_id: str) -> Ask:
    return lambda service: service.run_now(job_id)


def _failing(job_id: str, token: int) -> Ask:
    request = wire.FailRequest(lease_token=token, error=wire.ErrorBody(message="injected"))
    return lambda service: service.fail(job_id, request)


def _releasing(job_id: str, token: int) -> Ask:
    return lambda service: service.release(job_id, wire.ReleaseRequest(lease_token=token))
