"""What an operator may say of a queue: pause, limits, a rate, a depth; and that each holds for every way to a grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.core.world import HASH, World, submit

from horae_node.core import views
from horae_node.core.commands import (
    AdvanceTime,
    CancelJob,
    ClaimJobs,
    CompleteJob,
    FailJob,
    ReleaseJob,
    RequeueJob,
    SetQueue,
    SubmitBatch,
)
from horae_node.core.decide.turns import ROWS_SPARE
from horae_node.core.model import NO_SETTINGS
from horae_node.core.results import BatchSubmitted, Done, Granted, Rejected, Submitted
from horae_node.core.tables import KEYED, READY, REGROUP


@pytest.fixture
def world() -> World:
    return World(version=2)


def claim_all(world: World, most: int = 100) -> list[str]:
    return world.ids(world.claim("w", max_jobs=most))


def complete(world: World, job_id: str) -> tuple[str, ...]:
    """The queues that were woken."""
    return world.apply(CompleteJob(job_id, world.run(job_id).token, None)).ready_queues


# ---------------------------------------------------------------- settings


def test_an_older_cluster_knows_neither_settings_nor_keys():
    world = World()
    for outcome in (world.set_queue(paused=True), world.do(submit("a", concurrency_key="k"))):
        assert isinstance(outcome, Rejected)
        assert outcome.code == "conflict"
        assert "older version" in outcome.detail
    assert not world.has("a")


def test_what_is_not_named_stays(world: World):
    assert world.set_queue(max_running=3, rate_milli=500) == Done()
    assert world.set_queue(paused=True) == Done()
    kept = views.settings(world.txn, "default")
    assert kept == NO_SETTINGS._replace(max_running=3, rate_milli=500, paused=True, version=world.index)
    assert world.set_queue(paused=True, max_running=3) == Done(0, True)
    assert views.settings(world.txn, "default") == kept


def test_settings_that_say_nothing_leave_no_row(world: World):
    world.set_queue(paused=True, rate_milli=7, burst=2, max_depth=0)
    world.set_queue(paused=False, rate_milli=None, burst=None, max_depth=None)
    assert world.txn.keys(b"\0", b"\xff", limit=9) == [b"m"]
    assert views.settings(world.txn, "default") is NO_SETTINGS


def test_settings_are_for_one_queue(world: World):
    world.set_queue("mail", paused=True)
    world.do(submit("a"))
    world.do(submit("b", queue="mail"))
    world.do(submit("c", queue="mail2"))
    assert world.ids(world.claim("w", queues=("mail", "mail2", "default"), max_jobs=9)) == ["c", "a"]


# ---------------------------------------------------------------- pause


def test_a_paused_queue_grants_nothing_and_takes_everything(world: World):
    world.do(submit("running"))
    assert claim_all(world) == ["running"]
    world.set_queue(paused=True)
    world.do(submit("a"))
    world.do(submit("keyed", concurrency_key="k"))
    assert claim_all(world) == []
    assert complete(world, "running") == ("default",)
    assert views.takeable(world.txn, "default", world.lease_clock)[::2] == (0, None)
    resumed = world.apply(SetQueue("default", (("paused", False),)))
    assert resumed.ready_queues == ("default",)
    assert claim_all(world) == ["a", "keyed"]


# ---------------------------------------------------------------- max_running


def test_no_more_run_than_may(world: World):
    world.set_queue(max_running=2)
    for job_id in ("a", "b", "c", "d"):
        world.do(submit(job_id))
    assert claim_all(world, 1) == ["a"]
    assert claim_all(world) == ["b"]
    assert claim_all(world) == []
    assert complete(world, "a") == ("default",)
    assert claim_all(world) == ["c"]


@pytest.mark.parametrize("ending", ["fail", "release", "lapse", "time-out", "cancel"])
def test_whatever_ends_an_attempt_makes_room(world: World, ending: str):
    world.set_queue(max_running=1)
    world.do(submit("a", timeout_ms=40_000, max_attempts=1))
    world.do(submit("b"))
    (grant,) = world.claim("w")
    token = grant[1]
    if ending == "fail":
        woken = world.apply(FailJob("a", token, "E", "", "", True, 60_000)).ready_queues
    elif ending == "release":
        woken = world.apply(ReleaseJob("a", token, 60_000, None)).ready_queues
    elif ending == "cancel":
        world.do(CancelJob("a"))
        woken = world.apply(ReleaseJob("a", token, 0, None)).ready_queues
    else:
        for _ in range(2 if ending == "time-out" else 1):
            world.pass_ms(25_000)
            if ending == "time-out":
                world.heartbeat("a", token)
        world.pass_ms(10_000)
        woken = world.apply(AdvanceTime(100)).ready_queues
    assert woken == ("default",)
    assert len(world.claim("w")) == 1
    assert world.claim("w") == ()


def test_two_claims_of_one_entry_share_the_room(world: World):
    world.set_queue(max_running=3)
    world.apply(*[submit(f"j{number}") for number in range(9)])
    entry = world.apply(ClaimJobs("w1", ("default",), 2, None, ""), ClaimJobs("w2", ("default",), 2, None, ""))
    assert [len(outcome.grants) for outcome in entry.outcomes if isinstance(outcome, Granted)] == [2, 1]


def test_a_limit_lowered_below_what_runs_stops_no_job(world: World):
    world.apply(submit("a"), submit("b"), submit("c"))
    claim_all(world, 2)
    world.set_queue(max_running=1)
    assert claim_all(world) == []
    complete(world, "a")
    assert claim_all(world) == []
    complete(world, "b")
    assert claim_all(world) == ["c"]


# ---------------------------------------------------------------- rate


def test_a_bucket_begins_full_and_fills_with_the_lease_clock(world: World):
    world.set_queue(rate_milli=500, burst=2)
    world.apply(*[submit(f"j{number}") for number in range(9)])
    assert len(claim_all(world)) == 2
    world.now_ms += 3_600_000  # a wall clock that jumps brings no tokens
    assert claim_all(world) == []
    assert views.takeable(world.txn, "default", world.lease_clock) == (0, 0, 2000)
    world.lease_clock += 1999
    assert claim_all(world) == []
    world.lease_clock += 1
    assert len(claim_all(world)) == 1
    world.lease_clock += 60_000
    assert len(claim_all(world)) == 2


def test_retries_draw_from_the_bucket_too(world: World):
    world.set_queue(rate_milli=1000, burst=1)
    world.do(submit("a"))
    (grant,) = world.claim("w")
    world.do(FailJob("a", grant[1], "E", "", "", True, 0))
    assert world.state("a") == "ready"
    assert world.claim("w") == ()
    world.lease_clock += 1000
    assert len(world.claim("w")) == 1


def test_without_a_burst_a_second_is_held(world: World):
    world.set_queue(rate_milli=2500)
    world.apply(*[submit(f"j{number}") for number in range(9)])
    assert len(claim_all(world)) == 3


def test_a_new_rate_keeps_what_came_by_the_old_one(world: World):
    world.set_queue(rate_milli=1000, burst=10)
    world.apply(*[submit(f"j{number}") for number in range(20)])
    assert len(claim_all(world)) == 10
    world.lease_clock += 4000
    world.set_queue(rate_milli=1, burst=3)
    assert len(claim_all(world)) == 3
    world.set_queue(rate_milli=None)
    assert len(claim_all(world)) == 7
    world.set_queue(rate_milli=1000)  # begins anew, and full
    world.apply(*[submit(f"k{number}") for number in range(5)])
    assert len(claim_all(world)) == 3


def test_a_slow_rate_loses_no_fraction(world: World):
    """Claims in between, each of which looks at the bucket, change nothing about when the next token comes."""
    world.set_queue(rate_milli=3, burst=1)
    world.apply(submit("a"), submit("b"))
    claim_all(world)
    for _ in range(333):
        world.lease_clock += 1000
        assert claim_all(world) == []
        world.set_queue(max_depth=world.index)
    world.lease_clock += 334
    assert claim_all(world) == ["b"]


# ---------------------------------------------------------------- max_depth


def test_past_its_depth_a_queue_takes_no_submit(world: World):
    world.set_queue(max_depth=2)
    world.do(submit("a", hash=HASH))
    world.do(submit("later", delay_ms=9000))
    refused = world.do(submit("c"))
    assert isinstance(refused, Rejected)
    assert refused.code == "rate_limited"
    assert "max_depth" in refused.detail
    assert isinstance(world.do(submit("other", queue="mail")), Submitted)
    assert world.do(submit("a", hash=HASH)) == Submitted(1, None)  # a repeat makes nothing
    claim_all(world, 1)
    assert isinstance(world.do(submit("c")), Submitted)  # what runs does not wait


def test_a_batch_counts_its_own_jobs(world: World):
    world.set_queue(max_depth=2)
    refused = world.do(SubmitBatch((submit("a"), submit("x", queue="mail"), submit("b"), submit("c"))))
    assert isinstance(refused, Rejected)
    assert (refused.code, refused.position) == ("rate_limited", 3)
    assert isinstance(world.do(SubmitBatch((submit("a"), submit("b")))), BatchSubmitted)


def test_a_retry_and_a_requeue_pass_the_depth(world: World):
    world.do(submit("a", max_attempts=2))
    (grant,) = world.claim("w")
    world.set_queue(max_depth=0)
    world.do(FailJob("a", grant[1], "E", "", "", True, 0))
    assert world.state("a") == "ready"
    world.do(CancelJob("a"))
    assert world.do(RequeueJob("a")) == Done(1)


# ---------------------------------------------------------------- concurrency keys


def test_jobs_of_one_key_run_one_at_a_time(world: World):
    for job_id, key in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("free", None)):
        world.do(submit(job_id, concurrency_key=key))
    assert claim_all(world) == ["free", "a1", "b1"]
    assert claim_all(world) == []
    assert views.takeable(world.txn, "default", world.lease_clock)[::2] == (0, None)
    assert complete(world, "a1") == ("default",)
    assert views.takeable(world.txn, "default", world.lease_clock)[::2] == (1, None)
    assert claim_all(world) == ["a2"]


def test_a_key_is_one_queues_own(world: World):
    world.do(submit("a", concurrency_key="k"))
    world.do(submit("b", concurrency_key="k", queue="mail"))
    assert world.ids(world.claim("w", queues=("default", "mail"), max_jobs=9)) == ["a", "b"]


def test_a_limit_raised_is_live_at_once(world: World):
    world.apply(*[submit(f"a{number}", concurrency_key="a") for number in range(5)])
    assert len(claim_all(world)) == 1
    world.set_queue(max_running_per_key=3)
    woken = world.apply(AdvanceTime(100))
    assert woken.ready_queues == ("default",)
    assert len(claim_all(world)) == 2
    world.set_queue(max_running_per_key=1)
    world.apply(AdvanceTime(100))
    complete(world, "a0")
    complete(world, "a1")
    assert claim_all(world) == []
    complete(world, "a2")
    assert claim_all(world) == ["a3"]


def test_a_lowered_limit_holds_before_the_groups_were_looked_at(world: World):
    world.set_queue(max_running_per_key=2)
    world.apply(*[submit(f"a{number}", concurrency_key="a") for number in range(5)])
    assert claim_all(world, 1) == ["a0"]
    world.set_queue(max_running_per_key=1)
    assert claim_all(world) == []


@pytest.mark.parametrize("per_key", [1, 1000])
def test_a_claim_reads_about_as_many_rows_as_it_grants(world: World, per_key: int):
    """Each group that it opened was read for all that the claim wanted: a claim of a thousand took 1.6 s."""
    world.set_queue(max_running_per_key=per_key)
    world.apply(*[submit(f"{key}-{number}", concurrency_key=f"k{key}") for key in range(40) for number in range(40)])
    read = count_rows(world, lambda: claim_all(world, 40))
    assert read <= 2 * 40 + ROWS_SPARE


def test_expired_jobs_are_passed_over_within_bounds(world: World):
    keys = [f"k{number % 60}" for number in range(2400)]
    world.apply(*[submit(f"j{number}", concurrency_key=key, ttl_ms=5) for number, key in enumerate(keys)])
    world.pass_ms(10)
    assert count_rows(world, lambda: claim_all(world, 1)) <= 2 + ROWS_SPARE


def count_rows(world: World, act: Callable[[], object]) -> int:
    """Rows of ready jobs that are read meanwhile."""
    read = 0
    scan = type(world.txn).scan

    def counting(self: Any, start: bytes, stop: bytes, **how: Any) -> Any:
        nonlocal read
        rows = scan(self, start, stop, **how)
        if start[:1] in (KEYED, READY) and how["limit"] < 1000:  # those of the invariants are pages of so many
            read += len(rows)
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(world.txn), "scan", counting)
        act()
    return read


def test_what_could_be_taken_of_a_key_is_counted(world: World):
    """Each waiter cost a round of its own."""
    world.set_queue(max_running_per_key=3)
    world.apply(*[submit(f"a{number}", concurrency_key="a") for number in range(5)], submit("b", concurrency_key="b"))
    assert views.takeable(world.txn, "default", 0).jobs == 4
    claim_all(world, 2)
    assert views.takeable(world.txn, "default", 0).jobs == 2


def test_many_groups_are_looked_at_in_steps(world: World):
    world.apply(*[submit(f"{key}{number}", concurrency_key=f"k{key}") for key in range(30) for number in range(2)])
    assert len(claim_all(world)) == 30
    world.set_queue(max_running_per_key=2)
    steps = 0
    while world.txn.keys(REGROUP, REGROUP + b"\xff", limit=1):
        assert views.next_deadline(world.txn).wall_ms == 0
        world.do(AdvanceTime(8))
        steps += 1
    assert steps > 3
    assert len(claim_all(world)) == 30


def test_one_busy_tenant_starves_nobody(world: World):
    world.set_queue(max_running_per_key=100)
    world.apply(*[submit(f"busy{number}", concurrency_key="busy") for number in range(50)])
    world.pass_ms(1000)
    world.apply(*[submit(f"{key}{number}", concurrency_key=key) for key in ("s", "t") for number in range(2)])
    assert claim_all(world, 7) == ["busy0", "s0", "t0", "busy1", "s1", "t1", "busy2"]


def test_jobs_without_a_key_take_turns_like_one_tenant(world: World):
    world.set_queue(max_running_per_key=100)
    world.apply(*[submit(f"free{number}") for number in range(3)])
    world.apply(*[submit(f"k{number}", concurrency_key="k") for number in range(3)])
    order = [claim_all(world, 1)[0] for _ in range(6)]
    assert order == ["free0", "k0", "free1", "k1", "free2", "k2"]


def test_priority_comes_before_turns(world: World):
    world.set_queue(max_running_per_key=100)
    world.apply(submit("a0", concurrency_key="a"), submit("b0", concurrency_key="b"))
    world.apply(*[submit(f"a{number}", concurrency_key="a", priority=5) for number in (1, 2)])
    world.apply(submit("free", priority=3))
    assert claim_all(world) == ["a1", "a2", "free", "b0", "a0"]


def test_expired_jobs_at_the_head_of_a_group_are_passed_over(world: World):
    world.do(submit("gone", concurrency_key="a", ttl_ms=500, priority=9))
    world.do(submit("a", concurrency_key="a"))
    world.do(submit("b", concurrency_key="b", priority=1))
    world.pass_ms(600)
    assert claim_all(world) == ["b", "a"]


def test_a_job_handed_back_in_the_same_entry_is_not_granted_in_it(world: World):
    world.do(submit("a", concurrency_key="k"))
    (grant,) = world.claim("w")
    entry = world.apply(ReleaseJob("a", grant[1], 0, None), ClaimJobs("w", ("default",), 1, None, ""))
    assert len(entry.outcomes[1].grants) == 1  # type: ignore[union-attr]
    assert world.run("a").token == world.index


@pytest.mark.parametrize("way", ["cancel", "expire", "purge"])
def test_a_group_without_a_job_leaves_no_row(world: World, way: str):
    world.do(submit("a", concurrency_key="k", ttl_ms=1000, retention_ms=0))
    if way == "cancel":
        world.do(CancelJob("a"))
    elif way == "purge":
        world.claim("w")
        complete(world, "a")
    for _ in range(3):
        world.pass_ms(5000)
        world.do(AdvanceTime(100))
    assert world.txn.keys(b"\0", b"\xff", limit=9) == [b"m"]


def test_the_oldest_ready_job_is_found_among_groups(world: World):
    world.do(submit("a", concurrency_key="a"))
    world.pass_ms(1000)
    world.do(submit("b"))
    assert min(views.oldest_ready_ms(world.txn, "default")) == world.now_ms - 1000
