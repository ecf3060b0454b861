"""Whatever is asked, in whatever order: the tables agree, tokens rise, nothing is early, a replay is the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.world import HASH, World, make_schedule, make_spec, submit

from horae_node.core import lists, machine, schedule_views, views
from horae_node.core.commands import (
    ENTRY_VERSION,
    AdvanceTime,
    BackfillSchedule,
    CancelJob,
    ClaimJobs,
    Command,
    CompleteJob,
    DeleteJob,
    DeleteSchedule,
    FailJob,
    FireSchedule,
    Header,
    HeartbeatLease,
    OpenEpoch,
    PauseSchedule,
    PutSchedule,
    RaiseMachineVersion,
    ReleaseJob,
    RequeueJob,
    ResumeSchedule,
    RunJobNow,
    SetQueue,
    SubmitBatch,
    SubmitJob,
    TriggerSchedule,
)
from horae_node.core.digest import state_digest
from horae_node.core.model import NO_SETTINGS, Follower, Links, Missed, Occurrence, OnFailure, Overlap
from horae_node.core.results import EntryOutcome, Granted
from horae_node.core.tables import TOMBSTONE_MS, TRAITS_FROM, linked, spec_of
from horae_storage.kv import Txn
from horae_storage.memory import MemoryStore

Entry = tuple[Header, tuple[Command, ...]]

DAY_MS = 90_000_000
"""More than the retention of what follows a job: a default one, of a day."""
JOB_IDS = ["a", "b", "c", "d", "é" * 150]
ids = st.sampled_from(JOB_IDS)
queues = st.sampled_from(["q", "qq", "mail"])
spans = st.sampled_from([0, 1, 500, 1000, 3000])
followers = st.builds(
    lambda job_id, delay_ms, hash, ttl_ms, key: Follower(
        make_spec(job_id, ttl_ms=ttl_ms, unique_key=key, queue="q"), delay_ms, hash
    ),
    ids,
    spans,
    st.sampled_from([HASH, b"", b"other content..."]),
    st.sampled_from([None, None, 0, 3000]),
    st.sampled_from([None, "u"]),
)
links = st.builds(
    lambda after, on_failure, then: Links(tuple(after), int(on_failure), then),
    st.lists(ids, max_size=3, unique=True),
    st.sampled_from(OnFailure),
    st.none() | followers,
)


def _submit(job_id: str, delay_ms: int, given: dict[str, Any], joined: Links | None) -> SubmitJob:
    command = submit(job_id, delay_ms=delay_ms, hash=HASH, **given)
    return command if joined is None else command._replace(spec=linked(command.spec, joined))


submits = st.builds(
    _submit,
    ids,
    spans,
    st.fixed_dictionaries(
        {
            "queue": queues,
            "priority": st.sampled_from([-100, 0, 100]),
            "max_attempts": st.integers(1, 3),
            "max_lost": st.integers(0, 2),
            "lease_ms": st.sampled_from([1000, 2000]),
            "timeout_ms": st.sampled_from([1500, 9000]),
            "retry_jitter_milli": st.sampled_from([0, 500]),
            "ttl_ms": st.sampled_from([None, None, None, 0, 900, 5000]),
            "unique_key": st.sampled_from([None, "u"]),
            "concurrency_key": st.sampled_from([None, None, "k", "m"]),
            "retention_ms": spans,
            "tags": st.sampled_from([(), (("t", "1"),)]),
        }
    ),
    st.none() | links,
)
claims = st.builds(
    lambda worker, named, most, lease_ms, claim_id: ClaimJobs(worker, tuple(named), most, lease_ms, claim_id),
    st.sampled_from(["w1", "w2"]),
    st.lists(queues, min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([None, 1000]),
    st.sampled_from(["", "c1", "c2"]),
)
settings_changes = st.fixed_dictionaries(
    {},
    optional={
        "paused": st.booleans(),
        "max_running": st.sampled_from([None, 1, 2]),
        "max_running_per_key": st.sampled_from([1, 2]),
        "rate_milli": st.sampled_from([None, 500, 2000]),
        "burst": st.sampled_from([None, 1, 3]),
        "max_depth": st.sampled_from([None, None, 0, 2]),
    },
)
plain = st.one_of(
    submits,
    st.builds(lambda queue, changes: SetQueue(queue, tuple(changes.items())), queues, settings_changes),
    st.builds(SubmitBatch, st.lists(submits, min_size=1, max_size=4).map(tuple)),
    st.builds(AdvanceTime, st.sampled_from([1, 8, 100])),
    *[st.builds(kind, ids) for kind in (CancelJob, RequeueJob, RunJobNow, DeleteJob)],
)


@st.composite
def reports(draw: st.DrawFn, world: World) -> Command:
    """About one job, a granted one where there is any, with its token mostly, or one that is near."""
    held = [job_id for job_id in JOB_IDS if world.has(job_id) and world.run(job_id).token]
    job_id = draw(st.sampled_from(held or JOB_IDS))
    token = world.run(job_id).token if world.has(job_id) else 1
    token = max(0, token + draw(st.sampled_from([0, 0, 0, 0, -1, 1])))
    progress = draw(st.sampled_from([None, b"1"]))
    return draw(
        st.sampled_from(
            [
                HeartbeatLease(job_id, token, progress),
                CompleteJob(job_id, token, progress),
                FailJob(job_id, token, "E", "m", "", draw(st.booleans()), draw(st.sampled_from([None, 0, 700]))),
                ReleaseJob(job_id, token, draw(spans), progress),
            ]
        )
    )


@st.composite
def on_schedules(draw: st.DrawFn, world: World) -> Command:
    """What people and the leader command of two schedules: mostly what fits their state, sometimes not."""
    name = draw(st.sampled_from(["s", "t"]))
    found = schedule_views.find(world.txn, name)
    soon = world.now_ms + draw(st.sampled_from([-700, 1, 500, 2000]))
    later = draw(
        st.none() | st.builds(lambda ms, jitter_ms: Occurrence(soon + ms, soon + ms + jitter_ms, ""), spans, spans)
    )
    first = Occurrence(soon, soon, draw(st.sampled_from(["", "", "", "no such time"])))
    have = found.run.next if found is not None and found.run.next is not None else first
    between = have.nominal_ms + 1
    come = draw(st.sampled_from([(have,), (have, Occurrence(between, between, "")), (first,)]))
    template = draw(submits).spec
    spec = make_schedule(
        name,
        missed=int(draw(st.sampled_from(Missed))),
        overlap=int(draw(st.sampled_from(Overlap))),
        grace_ms=draw(spans),
        catch_up_ms=draw(spans),
        max_catch_up=draw(st.sampled_from([1, 3])),
        job=spec_of(("", *template[1:])),
    )
    return draw(
        st.sampled_from(
            [
                PutSchedule(spec, draw(st.booleans()), first, draw(st.sampled_from([None, None, 0, 3]))),
                FireSchedule(name, come, later, world.now_ms),
                FireSchedule(name, come, later, world.now_ms),
                FireSchedule(name, come, later, world.now_ms - draw(spans)),
                PauseSchedule(name),
                ResumeSchedule(name, draw(st.sampled_from([None, first]))),
                DeleteSchedule(name),
                TriggerSchedule(name, draw(ids)),
                BackfillSchedule(name, come),
            ]
        )
    )


class Recorder(World):
    """Keeps the log and the outcomes, and watches every grant."""

    def __init__(self) -> None:
        self.log: list[tuple[Entry, EntryOutcome]] = []
        self.tokens: dict[int, int] = {}
        super().__init__()

    def apply(self, *commands: Command) -> EntryOutcome:
        header = Header(ENTRY_VERSION, self.epoch, self.now_ms, self.lease_clock)
        entry = super().apply(*commands)
        self.log.append(((header, commands), entry))
        for outcome in entry.outcomes:
            if isinstance(outcome, Granted) and not outcome.repeated:
                self.check_grants(outcome)
        return entry

    def check_grants(self, granted: Granted) -> None:
        """Of a claim alone in its entry also: no more than the settings let through."""
        for seq, token in granted.grants:
            assert token == self.index > self.tokens.get(seq, 0)
            self.tokens[seq] = token
            run = views.run(self.txn, seq)
            if run is not None and run.token == token and run.ending == 0 and run.state == 2:
                assert run.due_ms <= views.meta(self.txn).now_ms


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@given(st.data())
def test_any_history_keeps_the_promises(data: st.DataObject):
    world = Recorder()
    world.apply(RaiseMachineVersion(data.draw(st.sampled_from([1, 2, 3, 4, 4]))))
    for _ in range(data.draw(st.integers(1, 40))):
        commands = data.draw(
            st.lists(plain | claims | reports(world) | reports(world) | on_schedules(world), min_size=1, max_size=3)
        )
        world.apply(*commands)
        world.now_ms += data.draw(spans)
        world.lease_clock += data.draw(spans)
        if data.draw(st.integers(0, 30)) == 0:
            world.apply(RaiseMachineVersion(4))
        if data.draw(st.integers(0, 30)) == 0:
            world.apply(OpenEpoch("n", world.epoch))
            world.epoch += 1
    check_replay(world.log, world.txn)
    check_drains(world)


def check_replay(log: list[tuple[Entry, EntryOutcome]], txn: Txn) -> None:
    """Another node, the same log: the same answers, and the same state."""
    replica = MemoryStore()
    for index, ((header, commands), entry) in enumerate(log, 2):
        assert machine.apply(index, header, commands, replica.txn) == entry
        if index % 3 == 0:
            replica.commit()
    assert views.meta(replica.txn).digest == views.meta(txn).digest
    assert state_digest(replica.txn) == state_digest(txn)


def check_drains(world: World) -> None:
    """Left alone, what runs is lost, what waits is due, what is finished goes: no row stays for ever."""
    world.do(AdvanceTime(1000))
    nothing = tuple(NO_SETTINGS._asdict().items())[:-1]
    world.apply(*[SetQueue(queue, nothing) for queue in ("q", "qq", "mail")])
    for job in lists.list_jobs(world.txn, None, None, None, 100).seqs:
        spec = views.spec(world.txn, job)
        assert spec is not None
        world.do(CancelJob(spec.id))
    world.apply(DeleteSchedule("s"), DeleteSchedule("t"))
    for _ in range(3):
        world.pass_ms(DAY_MS + TOMBSTONE_MS)
        world.do(AdvanceTime(1000))
    assert {*world.txn.keys(b"\0", b"\xff", limit=9)} <= {b"m", TRAITS_FROM}
