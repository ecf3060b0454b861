"""Endings: once each, the same answer again, nothing from an attempt that was superseded or reaped."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.core.world import World, submit

from horae_node.core import views
from horae_node.core.commands import (
    AdvanceTime,
    CancelJob,
    Command,
    CompleteJob,
    FailJob,
    ReleaseJob,
    RequeueJob,
)
from horae_node.core.results import Done, Rejected
from horae_node.core.tables import ERRORS_KEPT

Report = Callable[[str, int], Command]
REPORTS: dict[str, Report] = {
    "complete": lambda job_id, token: CompleteJob(job_id, token, b"1"),
    "fail": lambda job_id, token: FailJob(job_id, token, "E", "m", "t", True, None),
    "release": lambda job_id, token: ReleaseJob(job_id, token, 0, None),
}
FOR_GOOD: dict[str, Report] = {
    "fail for good": lambda job_id, token: FailJob(job_id, token, "E", "m", "t", False, None)
}
every_report = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())


def code(outcome: object) -> str:
    return outcome.code if isinstance(outcome, Rejected) else "accepted"


@every_report
def test_a_report_counts_once_and_its_repeat_gets_the_same_answer(report: Report):
    world, token = running()
    assert world.do(report("a", token)) == Done(1)
    before = world.run("a")
    assert world.do(report("a", token)) == Done(1, repeated=True)
    assert world.run("a") == before
    others = [other for other in REPORTS.values() if other is not report]
    assert [code(world.do(other("a", token))) for other in others] == ["lease_lost", "lease_lost"]


def test_who_ends_and_who_of_them_is_dead_is_told_once():
    world = World()
    for job_id in "abc":
        world.do(submit(job_id))
    (_, token), *_ = world.claim("w", max_jobs=3)
    failure = FailJob("b", token, "E", "m", "t", False, None)
    told = world.apply(CompleteJob("a", token, None), failure, FailJob("c", token, "E", "m", "t", True, None))
    assert (told.finished, told.died) == ((1, 2), ((2, "no_retry"),))
    told = world.apply(failure)
    assert (told.finished, told.died) == ((), ())


@every_report
@pytest.mark.parametrize("token_off", [-1, 1])
def test_another_token_is_refused(report: Report, token_off: int):
    world, token = running()
    assert code(world.do(report("a", token + token_off))) == "lease_lost"


@every_report
def test_an_unknown_job_and_one_never_granted(report: Report):
    world = World()
    world.do(submit("a"))
    assert code(world.do(report("b", 1))) == "not_found"
    assert code(world.do(report("a", 0))) == "lease_lost"


@every_report
def test_a_late_report_counts_until_the_next_claim(report: Report):
    world, token = running(lease_ms=1000)
    lapse(world)
    assert world.state("a") == "ready"
    assert code(world.do(report("a", token))) == "accepted"


@every_report
def test_a_late_report_after_the_next_claim_is_refused(report: Report):
    world, token = running(lease_ms=1000)
    lapse(world)
    world.claim("other")
    assert code(world.do(report("a", token))) == "lease_lost"


@every_report
def test_a_reaped_attempt_is_closed(report: Report):
    world, token = running(timeout_ms=1000)
    lapse(world)
    assert views.last_error(world.txn, 1) is not None
    assert code(world.do(report("a", token))) == "lease_lost"


@every_report
def test_a_report_from_an_earlier_life_is_refused(report: Report):
    world, token = running(lease_ms=1000, max_lost=0)
    lapse(world)
    assert world.state("a") == "dead"
    world.do(RequeueJob("a"))
    assert code(world.do(report("a", token))) == "lease_lost"


def test_the_result_is_kept():
    world, token = running()
    world.do(CompleteJob("a", token, b'{"n":1}'))
    assert views.result(world.txn, 1) == b'{"n":1}'
    assert world.run("a").finished_ms == world.now_ms


def test_errors_tell_the_attempts_in_order():
    world, token = running()
    world.do(FailJob("a", token, "First", "m1", "t1", True, 0))
    world.claim("w2")
    world.do(FailJob("a", world.index, "Second", "m2", "", False, None))
    first, second = views.errors(world.txn, 1)
    assert (first.attempt, first.type, first.message, first.traceback, first.worker) == (1, "First", "m1", "t1", "w")
    assert (second.attempt, second.type, second.worker) == (2, "Second", "w2")
    assert views.last_error(world.txn, 1) == second


def test_the_last_errors_are_kept():
    world = World()
    world.do(submit("a", max_attempts=100))
    for n in range(ERRORS_KEPT + 5):
        ((_, token),) = world.claim("w")
        world.do(FailJob("a", token, f"E{n}", "", "", True, 0))
    errors = views.errors(world.txn, 1)
    assert [error.type for error in errors] == [f"E{n}" for n in range(5, ERRORS_KEPT + 5)]


def test_a_late_failure_takes_the_place_of_its_lost_lease():
    world, token = running(lease_ms=1000)
    lapse(world)
    world.do(FailJob("a", token, "Boom", "", "", True, None))
    assert [error.type for error in views.errors(world.txn, 1)] == ["Boom"]
    assert (world.run("a").lost, world.run("a").failures) == (0, 1)


@every_report
def test_an_attempt_that_reports_in_time_was_not_lost(report: Report):
    world, token = running(lease_ms=1000, max_lost=1)
    for _ in range(3):  # more often than losses are allowed
        lapse(world)
        assert (world.state("a"), world.run("a").lost) == ("ready", 1)
        world.do(report("a", token))
        assert world.run("a").lost == 0
        assert "lease_expired" not in [error.type for error in views.errors(world.txn, 1)]
        if world.state("a") == "succeeded":
            return
        world.pass_ms(60_000)
        world.do(AdvanceTime(10))
        ((_, token),) = world.claim("w")


def test_lost_leases_do_not_use_up_attempts():
    world = World()
    world.do(submit("a", max_attempts=1, max_lost=2, lease_ms=1000))
    for _ in range(2):
        world.claim("w")
        lapse(world)
        assert world.state("a") == "ready"
    world.claim("w")
    lapse(world)
    assert (world.state("a"), world.run("a").dead_reason, world.run("a").failures) == ("dead", "poison", 0)


def test_a_release_keeps_the_place_and_the_count():
    world = World()
    world.do(submit("a"))
    ((_, token),) = world.claim("w")
    world.pass_ms(5)
    world.do(submit("b"))
    world.do(ReleaseJob("a", token, 0, b"7"))
    assert (world.run("a").attempt, world.run("a").worker, world.run("a").started_ms) == (0, "", 0)
    assert views.progress(world.txn, 1) == b"7"
    assert [seq for seq, _ in world.claim("w", max_jobs=2)] == [1, 2]


@pytest.mark.parametrize("max_attempts", [1, 5])
@pytest.mark.parametrize(
    ("report", "state"),
    [("complete", "succeeded"), ("fail", "cancelled"), ("fail for good", "cancelled"), ("release", "cancelled")],
)
def test_after_a_cancel_nothing_is_tried_again(report: str, state: str, max_attempts: int):
    world, token = running(max_attempts=max_attempts)
    world.do(CancelJob("a"))
    world.do((REPORTS | FOR_GOOD)[report]("a", token))
    assert (world.state("a"), world.run("a").dead_reason) == (state, "")


def test_a_time_out_after_a_cancel_is_no_death():
    world, _ = running(timeout_ms=1000, max_attempts=1)
    world.do(CancelJob("a"))
    lapse(world)
    assert (world.state("a"), world.run("a").dead_reason) == ("cancelled", "")


def test_retry_moments():
    world, token = running(retry_initial_ms=100)
    world.do(FailJob("a", token, "E", "", "", True, None))
    assert world.run("a").due_ms == world.now_ms + 100
    world.pass_ms(100)
    world.do(AdvanceTime(10))
    ((_, token),) = world.claim("w")
    world.do(FailJob("a", token, "E", "", "", True, 12))
    assert world.run("a").due_ms == world.now_ms + 12


def running(**given: int) -> tuple[World, int]:
    """Job `a`, granted to `w` with the token that is returned."""
    world = World()
    world.do(submit("a", **given))
    ((_, token),) = world.claim("w")
    return world, token


def lapse(world: World) -> None:
    """A thousand ms of lease clock go by, and are swept."""
    world.lease_clock += 1000
    world.do(AdvanceTime(10))
