"""Time: nothing early, everything at its moment, never more than the limit, and the deadline says when."""

from __future__ import annotations

import pytest
from tests.unit.core.world import NOW_MS, World, submit

from horae_node.core import views
from horae_node.core.commands import AdvanceTime, CancelJob, ClaimJobs
from horae_node.core.decide.reading import READ_BYTES_MAX, ROW_BYTES
from horae_node.core.machine import Deadline
from horae_node.core.model import SCHEDULES_VERSION, Links, OnFailure
from horae_node.core.results import Advanced, Granted
from horae_node.core.tables import linked


def test_nothing_waits():
    world = World()
    assert views.next_deadline(world.txn) == Deadline(None, None)
    assert world.do(AdvanceTime(10)) == Advanced(0, False)


def test_a_pending_job_is_ready_at_its_moment_and_not_before():
    world = World()
    world.do(submit("a", delay_ms=100))
    assert views.next_deadline(world.txn) == Deadline(NOW_MS + 100, None)
    world.now_ms += 99
    world.do(AdvanceTime(10))
    assert world.state("a") == "pending"
    world.now_ms += 1
    assert world.apply(AdvanceTime(10)).ready_queues == ("default",)
    assert world.state("a") == "ready"


def test_advance_and_the_grant_that_follows_share_an_entry():
    world = World()
    world.do(submit("a", delay_ms=100))
    world.now_ms += 100
    entry = world.apply(AdvanceTime(10), ClaimJobs("w", ("default",), 1, None, ""))
    assert entry.outcomes[1] == Granted(((1, world.index),))
    assert entry.ready_queues == ()


def test_a_dead_workers_job_is_ready_at_the_lease_end_and_not_before():
    world = World()
    world.do(submit("a", lease_ms=1000))
    world.claim("w")
    assert views.next_deadline(world.txn) == Deadline(None, 1000)
    world.lease_clock = 999
    world.do(AdvanceTime(10))
    assert world.state("a") == "running"
    world.lease_clock = 1000
    assert world.apply(AdvanceTime(10)).ready_queues == ("default",)
    assert world.state("a") == "ready"


def test_the_lease_does_not_follow_the_wall_clock():
    world = World()
    world.do(submit("a", lease_ms=1000, timeout_ms=1000))
    world.claim("w")
    world.now_ms += 10**9
    world.do(AdvanceTime(10))
    assert world.state("a") == "running"


def test_a_heartbeat_moves_the_watch_when_it_comes():
    world = World()
    world.do(submit("a", lease_ms=1000))
    ((_, token),) = world.claim("w")
    world.lease_clock = 700
    world.heartbeat("a", token)
    assert views.next_deadline(world.txn).lease_clock == 1000
    world.lease_clock = 1000
    assert world.do(AdvanceTime(10)) == Advanced(1, False)
    assert views.next_deadline(world.txn).lease_clock == 1700
    world.lease_clock = 1700
    world.do(AdvanceTime(10))
    assert world.state("a") == "ready"


def test_no_heartbeat_saves_an_attempt_from_its_time_out():
    world = World()
    world.do(submit("a", lease_ms=1000, timeout_ms=1500, max_attempts=1))
    ((_, token),) = world.claim("w")
    world.lease_clock = 800
    world.heartbeat("a", token)
    for clock in (1000, 1499):
        world.lease_clock = clock
        world.do(AdvanceTime(10))
        assert world.state("a") == "running"
    world.lease_clock = 1500
    world.do(AdvanceTime(10))
    assert (world.state("a"), world.run("a").dead_reason) == ("dead", "timeout")


def test_finished_jobs_go_after_their_retention():
    world = World()
    world.do(submit("a", retention_ms=5000))
    world.do(CancelJob("a"))
    moment = views.next_deadline(world.txn).wall_ms
    assert moment is not None
    assert NOW_MS + 5000 <= moment < NOW_MS + 6000
    world.now_ms = moment - 1
    world.do(AdvanceTime(10))
    assert world.has("a")
    world.now_ms = moment
    world.do(AdvanceTime(10))
    assert not world.has("a")
    assert views.all_counts(world.txn) == {}


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 20])
def test_the_limit_holds_and_all_is_done_in_the_end(limit: int):
    world = World()
    world.apply(*[submit(f"due{n}", delay_ms=1) for n in range(9)])
    world.apply(*[submit(f"old{n}", ttl_ms=1, delay_ms=1) for n in range(9)])
    world.apply(*[submit(f"run{n}", priority=9, lease_ms=1000) for n in range(9)])
    world.claim("w", max_jobs=9, claim_id="c")
    world.pass_ms(1000)
    done, more = 0, True
    while more:
        outcome = world.do(AdvanceTime(limit))
        assert isinstance(outcome, Advanced)
        assert 0 < outcome.items <= limit
        done, more = done + outcome.items, outcome.more
    counts = views.counts(world.txn, "default")
    assert (counts.ready, counts.expired, counts.pending, counts.running) == (18, 9, 0, 0)
    assert done == 9 + 9 + 9 + 1


def test_housekeeping_has_its_share_under_a_flood_of_due_jobs():
    world = World()
    world.apply(*[submit(f"done{n}", retention_ms=0) for n in range(4)])
    world.apply(*[CancelJob(f"done{n}") for n in range(4)])
    world.apply(*[submit(f"due{n}", delay_ms=1) for n in range(40)])
    world.pass_ms(1000)
    assert world.do(AdvanceTime(16)) == Advanced(16, True)
    assert views.counts(world.txn, "default").cancelled == 2


def test_the_clocks_never_go_back():
    world = World()
    world.pass_ms(500)
    world.do(submit("a"))
    world.pass_ms(-400)
    world.do(submit("b"))
    assert world.run("b").created_ms == world.run("a").created_ms
    assert views.meta(world.txn).lease_clock == 500


def test_jobs_that_wait_for_many_others_do_not_all_expire_in_one_entry():
    """Each drops a row for each of the hundred: a thousand of them took 170 ms."""
    world = World(version=SCHEDULES_VERSION)
    parents = tuple(f"p{number}" for number in range(100))
    world.apply(*[submit(parent, delay_ms=10**9) for parent in parents])
    jobs = 2 * READ_BYTES_MAX // ROW_BYTES // 100
    for number in range(jobs):
        waits = submit(f"j{number}", expires_at_ms=NOW_MS + 1000)
        world.do(waits._replace(spec=linked(waits.spec, Links(parents, int(OnFailure.CANCEL), None))))
    world.pass_ms(1000)
    items = []
    while views.counts(world.txn, "default").expired < jobs:
        outcome = world.do(AdvanceTime(1000))
        assert isinstance(outcome, Advanced)
        items.append(outcome.items)
    assert len(items) == 2 or (len(items) == 3 and items[-1] < 10)
