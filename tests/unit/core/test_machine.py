"""The door: indexes in order, epochs, the digest chain, and nothing unknown let in."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from tests.unit.core.world import World, submit

from horae_node.core import machine, views
from horae_node.core.commands import TAGS, AdvanceTime, CancelJob, CompleteJob, Header, Nothing, OpenEpoch, RequeueJob
from horae_node.core.digest import state_digest
from horae_node.core.evolve import evolve
from horae_node.core.model import FIRST_META
from horae_node.core.results import Done, EntryOutcome, EpochOpened, Rejected
from horae_storage.memory import MemoryStore


class Unheard(NamedTuple):
    job_id: str


def test_a_new_state_reads_as_the_first_meta():
    assert views.meta(MemoryStore().txn) == FIRST_META


@pytest.mark.parametrize("off", [-1, 1])
def test_an_index_out_of_order_is_fatal(off: int):
    world = World()
    with pytest.raises(AssertionError):
        machine.apply(world.index + 1 + off, Header(1, 1, 0, 0), (), world.txn)


@pytest.mark.parametrize("version", [0, 2])
def test_an_unknown_entry_version_is_fatal(version: int):
    world = World()
    with pytest.raises(AssertionError):
        machine.apply(world.index + 1, Header(version, 1, 0, 0), (), world.txn)


def test_an_unknown_command_is_fatal():
    command: Any = Unheard("a")
    with pytest.raises(AssertionError):
        World().apply(command)


def test_every_command_is_known():
    assert set(TAGS.values()) == {*machine._DECIDERS, AdvanceTime}


def test_a_change_that_is_not_one_is_an_error():
    with pytest.raises(KeyError):
        evolve(machine.Context(2, FIRST_META, World().txn), Unheard("a"))


def test_an_empty_entry_moves_the_index_and_the_clocks():
    world = World()
    world.pass_ms(5)
    entry = world.apply()
    meta = views.meta(world.txn)
    assert entry == EntryOutcome((), (), changes=[], now_ms=world.now_ms)
    assert (meta.applied_index, meta.now_ms, meta.lease_clock) == (world.index, world.now_ms, 5)


def test_epochs_are_compared_and_set():
    world = World(open_epoch=False)
    assert world.do(OpenEpoch("n1", 0)) == EpochOpened(1)
    assert isinstance(world.do(OpenEpoch("n2", 0)), Rejected)
    assert world.do(OpenEpoch("n2", 1)) == EpochOpened(2)
    assert views.meta(world.txn)[4:6] == (2, "n2")


def test_a_deposed_leaders_entry_does_nothing():
    world = World()
    world.do(submit("a", delay_ms=10))
    world.do(OpenEpoch("n2", 1))
    before = views.meta(world.txn)
    world.pass_ms(10**6)
    outcomes = world.apply(submit("b"), AdvanceTime(10), Nothing()).outcomes
    assert {outcome.code for outcome in outcomes if isinstance(outcome, Rejected)} == {"stale_epoch"}
    assert len(outcomes) == 3
    assert views.meta(world.txn)._replace(applied_index=0, digest=0) == before._replace(applied_index=0, digest=0)
    assert (world.state("a"), world.has("b")) == ("pending", False)


def test_the_barrier_changes_nothing():
    world = World()
    world.do(submit("a"))
    counts = views.all_counts(world.txn)
    assert world.do(Nothing()) == Done()
    assert views.all_counts(world.txn) == counts


def test_the_digest_tells_histories_apart():
    one, same, other = World(), World(), World()
    for world, name in ((one, "a"), (same, "a"), (other, "b")):
        world.do(submit(name))
        world.do(Nothing())
    digests = [views.meta(world.txn).digest for world in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert state_digest(one.txn) == state_digest(same.txn) != state_digest(other.txn)


def test_ready_queues_are_those_that_gained_and_kept():
    world = World()
    entry = world.apply(submit("z", queue="z"), submit("a", queue="a"), submit("p", queue="p", delay_ms=9))
    assert entry.ready_queues == ("a", "z")
    assert world.apply(Nothing()).ready_queues == ()


def test_finished_jobs_are_told_in_order_whatever_ended_them():
    world = World()
    world.apply(submit("a"), submit("b", ttl_ms=5, priority=-1), submit("c", lease_ms=1000, max_lost=0))
    world.claim("w", max_jobs=2)
    entry = world.apply(CompleteJob("a", world.index, None), CancelJob("c"))
    assert entry.finished == (1,)
    assert world.apply(CompleteJob("a", world.index - 1, None), RequeueJob("a")).finished == ()
    world.pass_ms(1000)
    assert world.apply(AdvanceTime(10)).finished == (3, 2)
