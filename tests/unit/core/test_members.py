"""Who is a member: one change at a time, no id twice, never without a voter."""

from __future__ import annotations

import pytest
from tests.unit.core.world import World

from horae_node.core import views
from horae_node.core.commands import (
    AddMember,
    Command,
    MemberAddress,
    MoveMember,
    PromoteMember,
    RemoveMember,
    SetMembers,
)
from horae_node.core.decide.members import MEMBERS_MAX
from horae_node.core.model import Standing
from horae_node.core.results import Done, Rejected


def address(node_id: str) -> MemberAddress:
    return MemberAddress(node_id, f"{node_id}.test:7071", f"http://{node_id}.test:7070")


def add(node_id: str) -> AddMember:
    return AddMember(*address(node_id))


def three() -> World:
    world = World()
    assert world.do(SetMembers((address("n1"), address("n2"), address("n3")))) == Done()
    return world


def standings(world: World) -> dict[str, int]:
    return {node_id: member.standing for node_id, member in views.read_members(world.txn).items()}


def refused(world: World, command: Command) -> str:
    """What the rules say; nothing may have changed."""
    before = views.read_members(world.txn)
    outcome = world.do(command)
    assert isinstance(outcome, Rejected)
    assert views.read_members(world.txn) == before
    return f"{outcome.code}: {outcome.detail}"


def test_without_a_change_there_are_no_rows():
    assert views.read_members(World().txn) == {}


def test_members_are_written_down_once():
    world = three()
    assert world.do(SetMembers((address("n9"),))) == Done(0, True)
    assert standings(world) == dict.fromkeys(["n1", "n2", "n3"], Standing.VOTER)


def test_an_entry_says_that_members_changed():
    world = three()
    assert world.apply(add("n4")).members_changed
    assert not world.apply(add("n4")).members_changed


def test_a_node_is_added_as_a_learner_and_promoted():
    world = three()
    assert world.do(add("n4")) == Done()
    assert standings(world)["n4"] == Standing.LEARNER
    assert world.do(PromoteMember("n4")) == Done()
    assert standings(world)["n4"] == Standing.VOTER
    assert world.do(PromoteMember("n4")) == Done(0, True)


def test_adding_the_same_node_again_is_a_repeat():
    world = three()
    world.do(add("n4"))
    assert world.do(add("n4")) == Done(0, True)
    world.do(PromoteMember("n4"))
    assert world.do(add("n4")) == Done(0, True)


def test_an_id_that_exists_is_refused():
    assert "n2 is a member already" in refused(three(), AddMember("n2", "elsewhere:1", "http://elsewhere"))


@pytest.mark.parametrize("again", [address("n3"), MemberAddress("n3", "elsewhere:1", "http://elsewhere")])
def test_an_id_that_left_never_comes_back(again: MemberAddress):
    world = three()
    world.do(RemoveMember("n3"))
    assert "n3 was a member and left" in refused(world, AddMember(*again))


@pytest.mark.parametrize("second", [add("n5"), RemoveMember("n1"), MoveMember("n1", "a:1", "http://a")])
def test_a_second_change_while_one_is_under_way_is_refused(second: Command):
    world = three()
    world.do(add("n4"))
    assert "n4 is being added" in refused(world, second)


def test_a_learner_may_be_taken_back_and_moved():
    world = three()
    world.do(add("n4"))
    assert world.do(MoveMember("n4", "b:1", "http://b")) == Done()
    assert world.do(RemoveMember("n4")) == Done()
    assert standings(world)["n4"] == Standing.REMOVED
    assert world.do(add("n5")) == Done()


def test_the_last_voter_stays():
    world = three()
    assert world.do(RemoveMember("n1")) == Done()
    assert world.do(RemoveMember("n1")) == Done(0, True)
    assert world.do(RemoveMember("n2")) == Done()
    assert "last voter" in refused(world, RemoveMember("n3"))


def test_the_last_voter_stays_beside_a_learner():
    world = World()
    world.do(SetMembers((address("n1"),)))
    world.do(add("n2"))
    assert "last voter" in refused(world, RemoveMember("n1"))


def test_a_move_keeps_the_standing():
    world = three()
    assert world.do(MoveMember("n2", "b:1", "http://b")) == Done()
    moved = views.read_members(world.txn)["n2"]
    assert moved[:3] == ("b:1", "http://b", Standing.VOTER)
    assert world.do(MoveMember("n2", "b:1", "http://b")) == Done(0, True)


@pytest.mark.parametrize("command", [PromoteMember("n9"), RemoveMember("n9"), MoveMember("n9", "a:1", "http://a")])
def test_an_unknown_node(command: Command):
    assert refused(three(), command).startswith("not_found")


@pytest.mark.parametrize("kind", [PromoteMember, lambda node_id: MoveMember(node_id, "a:1", "http://a")])
def test_what_left_is_unknown(kind):
    world = three()
    world.do(RemoveMember("n3"))
    assert refused(world, kind("n3")).startswith("not_found")


def test_no_two_nodes_share_an_address():
    world = three()
    n1 = address("n1")
    assert "n1 has the address" in refused(world, AddMember("n4", n1.raft_address, "http://other"))
    assert "n1 has the URL" in refused(world, AddMember("n4", "other:1", n1.http_url))
    assert "n1 has the address" in refused(world, MoveMember("n2", n1.raft_address, "http://other"))
    world.do(RemoveMember("n1"))
    assert world.do(AddMember("n4", n1.raft_address, n1.http_url)) == Done()


def test_a_cluster_has_its_bound():
    world = World()
    world.do(SetMembers(tuple(address(f"n{number}") for number in range(MEMBERS_MAX))))
    assert "at most 9" in refused(world, add("x"))
    world.do(RemoveMember("n0"))
    assert world.do(add("x")) == Done()
