"""The machine's version: raised by a command, never back, and no further than this build knows."""

from __future__ import annotations

import pytest
from tests.unit.core.world import World, submit

from horae_node.core import machine, views
from horae_node.core.commands import Header, Nothing, OpenEpoch, RaiseMachineVersion
from horae_node.core.model import FIRST_META, KNOWN_VERSIONS, UnknownVersion, Versions
from horae_node.core.results import Done, Rejected


@pytest.fixture
def world() -> World:
    """Run by a build that knows the second version."""
    made = World()
    made.known = Versions(1, 2)
    return made


def version(world: World) -> int:
    return views.meta(world.txn).machine_version


def test_a_new_state_is_of_the_first_version_whatever_the_build_knows(world: World) -> None:
    assert FIRST_META.machine_version == KNOWN_VERSIONS.oldest == version(world) == 1


def test_a_raise_holds_from_then_on(world: World) -> None:
    assert world.do(RaiseMachineVersion(2)) == Done()
    world.apply(submit("a"), Nothing())
    world.do(OpenEpoch("n2", 1))
    assert version(world) == 2


def test_the_same_again_is_a_repeat(world: World) -> None:
    assert world.apply(RaiseMachineVersion(2), RaiseMachineVersion(2)).outcomes == (Done(), Done(0, True))
    assert world.do(RaiseMachineVersion(2)) == Done(0, True)


def test_it_never_goes_back(world: World) -> None:
    world.do(RaiseMachineVersion(2))
    refused = world.do(RaiseMachineVersion(1))
    assert isinstance(refused, Rejected)
    assert refused.code == "conflict"
    assert version(world) == 2


def test_what_this_build_does_not_know_goes_no_further() -> None:
    world = World()
    newer = KNOWN_VERSIONS.newest + 1
    with pytest.raises(UnknownVersion, match=str(newer)):
        world.apply(submit("a"), RaiseMachineVersion(newer), submit("b"))


def test_a_deposed_leaders_raise_is_none(world: World) -> None:
    world.do(OpenEpoch("n2", 1))
    assert isinstance(world.do(RaiseMachineVersion(9)), Rejected)
    assert version(world) == 1


def test_a_state_of_a_version_that_is_not_known_takes_no_entry(world: World) -> None:
    world.do(RaiseMachineVersion(2))
    with pytest.raises(AssertionError, match="machine version 2"):
        machine.apply(world.index + 1, Header(1, 1, 0, 0), (), world.txn, Versions(1, 1))
    with pytest.raises(AssertionError, match="machine version 2"):
        machine.apply(world.index + 1, Header(1, 1, 0, 0), (), world.txn, Versions(3, 4))
