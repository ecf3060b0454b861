"""Cluster time: no minority of wrong wall clocks makes it run ahead, nor stand still while it may be carried on."""

from __future__ import annotations

import pytest

from horae_node.clock import ClusterClock, ManualClock

HOUR_MS = 3_600_000


def leading(voters: int) -> tuple[ManualClock, ClusterClock]:
    clock = ManualClock()
    cluster = ClusterClock(clock, "n1")
    cluster.lead(voters, 0, clock.monotonic_ms())
    return clock, cluster


def test_alone_it_is_the_hosts_own() -> None:
    clock, cluster = leading(1)
    clock.wall_offset_ms = -5
    assert cluster.now_ms() == clock.wall_ms()


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_with_all_heard_it_is_the_median(wrong_ms: int) -> None:
    clock, cluster = leading(3)
    cluster.observe("n2", clock.wall_ms() + 7)
    cluster.observe("n3", clock.wall_ms() + wrong_ms)
    assert cluster.now_ms() - clock.wall_ms() == (7 if wrong_ms > 0 else 0)


def test_of_three_heard_of_five_two_may_be_ahead() -> None:
    clock, cluster = leading(5)
    cluster.observe("n2", clock.wall_ms() + HOUR_MS)
    cluster.observe("n3", clock.wall_ms() + HOUR_MS)
    assert cluster.now_ms() == clock.wall_ms()


def test_a_leader_that_hears_nobody_does_not_trust_its_own_clock() -> None:
    clock, cluster = leading(3)
    cluster.observe("n2", clock.wall_ms())
    before = cluster.now_ms()
    clock.wall_offset_ms = HOUR_MS
    clock.advance(ClusterClock.STALE_MS + 1000)
    assert before + ClusterClock.STALE_MS <= cluster.now_ms() <= clock.wall_ms() - HOUR_MS


def test_a_clock_that_lags_does_not_stop_time_while_a_member_is_away() -> None:
    clock, cluster = leading(3)
    cluster.observe("n2", clock.wall_ms())
    cluster.observe("n3", clock.wall_ms() - HOUR_MS)
    before = cluster.now_ms()
    for _ in range(60):  # n2 is away
        clock.advance(1000)
        cluster.observe("n3", clock.wall_ms() - HOUR_MS)
        cluster.now_ms()
    assert before + 59_000 <= cluster.now_ms() <= clock.wall_ms()


@pytest.mark.parametrize("asked_every_ms", [1, 10, 999, 5000])
def test_time_that_goes_on_by_itself_falls_behind_however_often_it_is_asked_for(asked_every_ms: int) -> None:
    """Hosts' monotonic clocks run fast by up to half a thousandth: it was ahead after an hour of it."""
    clock, cluster = leading(3)
    cluster.observe("n2", clock.wall_ms())
    cluster.observe("n3", clock.wall_ms() - HOUR_MS)
    began_ms = cluster.now_ms()
    for _ in range(100_000 // asked_every_ms):
        clock.advance(asked_every_ms)
        cluster.observe("n3", clock.wall_ms() - HOUR_MS)
        cluster.now_ms()
    assert clock.wall_ms() - began_ms >= 99_000
    behind_ms = clock.wall_ms() - cluster.now_ms()
    assert 85 <= behind_ms <= 100  # n2 was heard in the first ten seconds


def test_a_new_leader_goes_on_from_what_it_applied() -> None:
    clock = ManualClock()
    cluster = ClusterClock(clock, "n1")
    applied_at = clock.monotonic_ms()
    told = clock.wall_ms()
    clock.advance(30_000)
    cluster.observe("n3", clock.wall_ms() - HOUR_MS)
    cluster.lead(3, told, applied_at)
    assert told + 29_000 <= cluster.now_ms() <= clock.wall_ms()


def test_once_all_are_heard_a_wrong_past_is_forgotten() -> None:
    clock, cluster = leading(3)
    cluster.lead(3, clock.wall_ms() + HOUR_MS, clock.monotonic_ms())
    cluster.observe("n2", clock.wall_ms())
    cluster.observe("n3", clock.wall_ms())
    assert cluster.now_ms() == clock.wall_ms()


def test_skew_is_told_of_those_who_are_heard() -> None:
    clock, cluster = leading(3)
    cluster.observe("n2", clock.wall_ms() - 40)
    cluster.observe("n3", clock.wall_ms() + HOUR_MS)
    assert cluster.skew_ms() == {"n1": 0, "n2": -40, "n3": HOUR_MS}
    clock.advance(ClusterClock.STALE_MS)
    cluster.observe("n2", clock.wall_ms() - 40)
    assert cluster.skew_ms().keys() == {"n1", "n2"}
