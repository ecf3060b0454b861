"""Claims: order, limits, tokens that only grow, and the claim id that brings a lost answer back."""

from __future__ import annotations

from tests.unit.core.world import NOW_MS, World, submit

from horae_node.core import views
from horae_node.core.commands import (
    AdvanceTime,
    ClaimJobs,
    CompleteJob,
    FailJob,
    HeartbeatLease,
    RaiseMachineVersion,
    ReleaseJob,
)
from horae_node.core.decide.claim import CLAIM_BYTES_MAX, PAGE_MIN, PAGES_MAX
from horae_node.core.decide.reading import READ_BYTES_MAX, ROW_BYTES
from horae_node.core.model import LINKS_VERSION, SCHEDULES_VERSION
from horae_node.core.results import Advanced, Granted


def test_nothing_ready_is_an_empty_grant():
    world = World()
    world.do(submit("a", delay_ms=1))
    assert world.claim("w", max_jobs=5, claim_id="c") == ()


def test_order_is_priority_then_due_then_submitted():
    world = World()
    world.do(submit("a", run_at_ms=NOW_MS - 5))
    world.do(submit("b", run_at_ms=NOW_MS - 9))
    world.do(submit("c", run_at_ms=NOW_MS - 9))
    world.do(submit("d", priority=1))
    world.do(submit("e", priority=-1, run_at_ms=1))
    assert [seq for seq, _ in world.claim("w", max_jobs=9)] == [4, 2, 3, 1, 5]


def test_one_queue_is_not_a_prefix_of_another():
    world = World()
    world.do(submit("a", queue="mail"))
    world.do(submit("b", queue="mail.high"))
    assert world.claim("w", queues=("mail",), max_jobs=9) == ((1, world.index),)


def test_max_jobs_holds_over_all_queues():
    world = World()
    for n in range(4):
        world.do(submit(f"j{n}", queue="ab"[n % 2]))
    assert [seq for seq, _ in world.claim("w", queues=("b", "a"), max_jobs=3)] == [2, 4, 1]


def test_the_lease_is_the_claims_or_the_jobs():
    world = World()
    world.lease_clock = 70
    world.do(submit("a", lease_ms=1000, timeout_ms=5000))
    world.do(submit("b", lease_ms=1000, timeout_ms=5000))
    world.do(ClaimJobs("w", ("default",), 1, None, ""))
    world.do(ClaimJobs("w", ("default",), 1, 9000, ""))
    a, b = world.run("a"), world.run("b")
    assert (a.lease_ms, a.lease_end, a.timeout_end, a.watch) == (1000, 1070, 5070, 1070)
    assert (b.lease_ms, b.lease_end, b.timeout_end, b.watch) == (9000, 9070, 5070, 5070)


def test_a_job_is_granted_once_an_entry_so_that_tokens_differ():
    world = World()
    world.do(submit("a"))
    token = world.index + 1
    entry = world.apply(
        ClaimJobs("w", ("default",), 1, None, ""),
        ReleaseJob("a", token, 0, None),
        ClaimJobs("w", ("default",), 1, None, ""),
    )
    assert entry.outcomes[2] == Granted(())
    assert entry.ready_queues == ("default",)
    assert world.claim("w") == ((1, token + 1),)


def test_a_claim_id_is_the_workers_own():
    world = World()
    world.do(submit("a"))
    first = world.claim("w1", claim_id="c")
    assert world.claim("w2", claim_id="c") == ()
    assert world.claim("w1", claim_id="c") == first


def test_a_repeated_claim_gives_only_what_still_runs():
    world = World()
    world.do(submit("a"))
    world.do(submit("b"))
    (a, b) = world.claim("w", max_jobs=2, claim_id="c")
    world.do(CompleteJob("a", a[1], None))
    assert world.do(ClaimJobs("w", ("default",), 2, None, "c")) == Granted((b,), True)


def test_a_claim_id_without_live_leases_grants_anew():
    world = World()
    world.do(submit("a"))
    ((_, token),) = world.claim("w", claim_id="c")
    world.do(CompleteJob("a", token, None))
    world.do(submit("b"))
    assert world.do(ClaimJobs("w", ("default",), 1, None, "c")) == Granted(((2, world.index),))


def test_another_grant_of_the_same_job_does_not_answer_an_old_claim():
    world = World()
    world.do(submit("a"))
    ((_, token),) = world.claim("w", claim_id="c")
    world.do(FailJob("a", token, "E", "", "", True, 0))
    world.claim("other")
    assert world.claim("w", claim_id="c") == ()


def test_claim_records_live_as_long_as_a_lease_and_then_go():
    world = World()
    world.do(submit("a", lease_ms=1000))
    ((_, token),) = world.claim("w", claim_id="c")
    world.lease_clock = 900
    world.heartbeat("a", token)
    world.lease_clock = 1000
    world.do(AdvanceTime(100))
    assert world.claim("w", claim_id="c") == ((1, token),)
    world.do(CompleteJob("a", token, None))
    world.lease_clock = 2000
    world.do(AdvanceTime(100))
    assert [key for key in world.txn.keys(b"j", b"l", limit=9) if key[:1] in (b"j", b"k")] == []


def test_expired_jobs_at_the_head_do_not_hide_a_live_one():
    world = World()
    expired = PAGE_MIN * 2
    world.apply(*[submit(f"x{n}", priority=9, ttl_ms=10) for n in range(expired)], submit("live"))
    world.pass_ms(10)
    assert expired < PAGE_MIN * (PAGES_MAX - 1)
    assert [seq for seq, _ in world.claim("w")] == [expired + 1]


def test_a_claim_grants_so_many_bytes_of_payload_and_the_next_one_the_rest():
    world = World()
    half = CLAIM_BYTES_MAX // 2
    for job_id, size in (("a", half), ("b", half), ("c", 4), ("d", half + 1)):
        world.do(submit(job_id, payload=b"x" * size))
    world.do(submit("e", payload=b"x" * half, queue="other"))
    # full to the byte: not c, which comes next, nor the other queue's
    assert [seq for seq, _ in world.claim("w", queues=("default", "other"), max_jobs=9)] == [1, 2]
    # d leaves no room for e, and nothing behind a job without room is taken before it
    assert [seq for seq, _ in world.claim("w", queues=("default", "other"), max_jobs=9)] == [3, 4]
    assert [seq for seq, _ in world.claim("w", queues=("default", "other"), max_jobs=9)] == [5]


def test_a_payload_without_room_ends_the_claim_even_where_smaller_ones_follow():
    world = World()
    for job_id, size in (("a", 4), ("big", CLAIM_BYTES_MAX), ("c", 4)):
        world.do(submit(job_id, payload=b"x" * size))
    world.do(submit("d", payload=b"1", queue="other"))
    assert [seq for seq, _ in world.claim("w", queues=("default", "other"), max_jobs=9)] == [1]


def test_a_claim_grants_one_job_whatever_its_size():
    world = World()
    world.do(submit("a", payload=b"x" * (CLAIM_BYTES_MAX + 1)))
    world.do(submit("b", payload=b"1"))
    assert [seq for seq, _ in world.claim("w", max_jobs=9)] == [1]
    assert [seq for seq, _ in world.claim("w", max_jobs=9)] == [2]


def test_counts_follow():
    world = World()
    world.apply(submit("a"), submit("b"), submit("c", delay_ms=5))
    world.claim("w")
    assert views.counts(world.txn, "default")._asdict() == {
        "pending": 1, "ready": 1, "running": 1, "succeeded": 0, "dead": 0, "cancelled": 0, "expired": 0,
    }  # fmt: skip


def test_who_asks_for_other_queues_does_not_get_what_they_hold() -> None:
    """Two tenants, each with a worker `w` and a claim `c` of its own."""
    world = World(version=SCHEDULES_VERSION)
    world.do(submit("a", queue="a"))
    first = world.claim("w", queues=("a",), claim_id="c")
    assert world.ids(first) == ["a"]
    assert world.claim("w", queues=("b",), claim_id="c") == ()
    assert world.claim("w", queues=("a",), claim_id="c") == first
    assert views.claim_known(world.txn, "w", "c", ("a",))
    assert not views.claim_known(world.txn, "w", "c", ("b",))


def test_a_claim_that_was_granted_by_older_rules_is_still_known() -> None:
    world = World(version=LINKS_VERSION)
    world.do(submit("a"))
    first = world.claim("w", claim_id="c")
    world.do(RaiseMachineVersion(SCHEDULES_VERSION))
    assert views.claim_known(world.txn, "w", "c", ("default",))
    assert world.claim("w", claim_id="c") == first


def test_a_sweep_of_large_claims_takes_several_entries() -> None:
    """Sixty claims of a thousand jobs, whose leases were renewed, were looked through by one entry."""
    world = World(version=SCHEDULES_VERSION)
    claims = 2 * READ_BYTES_MAX // ROW_BYTES // 1000
    held: list[tuple[int, int]] = []
    for number in range(claims):
        world.apply(*[submit(f"j{number * 1000 + place}") for place in range(1000)])
        held += world.claim("w", max_jobs=1000, claim_id=f"c{number}")
    world.lease_clock += 25_000
    world.apply(*[HeartbeatLease(f"j{seq - 1}", token, None) for seq, token in held])
    world.lease_clock += 6_000
    swept = []
    while not swept or swept[-1].more:
        outcome = world.do(AdvanceTime(10_000))
        assert isinstance(outcome, Advanced)
        swept.append(outcome)
    most = READ_BYTES_MAX // ROW_BYTES // 1000 + 1
    assert [outcome.items for outcome in swept] == [len(held) + most, claims - most]
