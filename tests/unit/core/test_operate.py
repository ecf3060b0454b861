"""Cancel, requeue, run now, delete: which states allow them, and what they leave behind."""

from __future__ import annotations

import pytest
from tests.unit.core.world import World, submit

from horae_node.core import views
from horae_node.core.commands import (
    AdvanceTime,
    CancelJob,
    CancelJobIn,
    Command,
    CompleteJob,
    DeleteJob,
    FailJob,
    RequeueJob,
    RequeueJobIn,
    RunJobNow,
)
from horae_node.core.results import Done, Rejected

STATES = ("pending", "ready", "running", "succeeded", "dead", "cancelled", "expired")
ALLOWED = {
    CancelJob: {"pending", "ready", "running"},
    RequeueJob: {"dead", "cancelled", "expired"},
    RunJobNow: {"pending", "ready"},
    DeleteJob: {"succeeded", "dead", "cancelled", "expired"},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ALLOWED, ids=lambda kind: kind.__name__)
def test_each_is_allowed_in_its_states_only(kind: type, state: str):
    world = in_state(state)
    before = world.run("a")
    outcome = world.do(kind("a"))
    if state in ALLOWED[kind]:
        assert isinstance(outcome, Done)
    else:
        assert isinstance(outcome, Rejected)
        assert outcome.code == "conflict"
        assert world.run("a") == before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("kind", "plain"), [(CancelJobIn, CancelJob), (RequeueJobIn, RequeueJob)])
def test_one_that_is_named_by_its_state_is_meant_in_it(kind: type, plain: type, state: str):
    """A bulk call for what is ready asked running jobs to stop, which were claimed between the look and the command."""
    for number, other in enumerate(STATES):
        world = in_state(state)
        outcome = world.do(kind("a", number))
        assert isinstance(outcome, Done) == (other == state and state in ALLOWED[plain])
    assert world.do(kind("none", 0)) == world.do(plain("none"))


@pytest.mark.parametrize("kind", ALLOWED, ids=lambda kind: kind.__name__)
def test_an_unknown_job(kind: type):
    outcome = World().do(kind("a"))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "not_found"


@pytest.mark.parametrize("state", ["pending", "ready"])
def test_a_cancelled_job_is_never_granted(state: str):
    world = in_state(state)
    world.do(CancelJob("a"))
    world.pass_ms(10_000)
    world.do(AdvanceTime(10))
    assert world.claim("w") == ()
    assert world.state("a") == "cancelled"


def test_a_running_job_is_asked_to_stop():
    world = in_state("running")
    assert world.do(CancelJob("a")) == Done(1)
    assert world.do(CancelJob("a")) == Done(1, repeated=True)
    assert world.heartbeat("a", world.run("a").token).cancel_requested


def test_a_requeue_starts_anew_and_keeps_the_history():
    world = in_state("dead")
    token = world.run("a").token
    world.do(RequeueJob("a"))
    run = world.run("a")
    assert (run.attempt, run.failures, run.lost, run.finished_ms, run.dead_reason) == (0, 0, 0, 0, "")
    assert (run.worker, run.started_ms) == ("", 0)
    assert len(views.errors(world.txn, 1)) == 1
    assert world.claim("w")[0][1] > token


def test_a_requeued_job_expires_by_a_new_time_to_live():
    world = World()
    world.do(submit("a", ttl_ms=100))
    expire(world)
    world.do(RequeueJob("a"))
    spec = views.spec(world.txn, 1)
    assert spec is not None
    assert spec.expires_at_ms == world.now_ms + 100
    expire(world)
    assert world.state("a") == "expired"


def test_a_requeue_waits_for_the_unique_key():
    world = World()
    world.do(submit("a", unique_key="k"))
    world.do(CancelJob("a"))
    world.do(submit("b", unique_key="k"))
    outcome = world.do(RequeueJob("a"))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "conflict"
    world.do(CancelJob("b"))
    assert world.do(RequeueJob("a")) == Done(1)


def test_run_now_moves_the_moment():
    world = in_state("pending")
    assert world.apply(RunJobNow("a")).ready_queues == ("default",)
    assert world.run("a").due_ms == world.now_ms
    assert world.do(RunJobNow("a")) == Done(1, repeated=True)


def test_a_deleted_job_leaves_nothing_and_its_id_is_free():
    world = in_state("dead")
    world.do(DeleteJob("a"))
    assert views.queue_names(world.txn, "", 10) == []
    assert world.txn.keys(b"\0", b"\xff", limit=10) == [b"m"]
    world.do(submit("a"))
    assert views.errors(world.txn, 2) == []


def in_state(state: str) -> World:
    """Job `a` in this state."""
    world = World()
    ends: dict[str, Command] = {
        "succeeded": CompleteJob("a", 4, b"1"),
        "dead": FailJob("a", 4, "E", "", "", False, None),
    }
    world.do(submit("a", delay_ms=5000 if state == "pending" else 0, ttl_ms=100 if state == "expired" else None))
    if state in ("running", "succeeded", "dead"):
        world.claim("w")
    if state in ends:
        world.do(ends[state])
    if state == "cancelled":
        world.do(CancelJob("a"))
    if state == "expired":
        expire(world)
    assert world.state("a") == state
    return world


def expire(world: World) -> None:
    world.pass_ms(100)
    world.do(AdvanceTime(10))
