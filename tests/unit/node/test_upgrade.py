"""When the leader raises the machine's version: not before every member is known to know the next one."""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.one_node import OneNode, settle

from horae_node import codec
from horae_node.core.commands import AddMember, Command, MemberAddress, RaiseMachineVersion, RemoveMember, SetMembers
from horae_node.core.model import Versions
from horae_node.leader.upgrade import AGAIN_MS, Upgrade
from horae_node.raft.port import PeerStatus


def address(name: str) -> MemberAddress:
    return MemberAddress(name, f"{name}:1", f"http://{name}")


class Upgraded:
    """The leader n1 of n1, n2, n3, of a build that knows versions 1 to 3; the others say what a test lets them."""

    def __init__(self) -> None:
        self.node = OneNode(known=Versions(1, 3))
        self.upgrade = Upgrade(
            node_id="n1",
            raft=self.node.raft,
            applier=self.node.applier,
            proposer=self.node.proposer,
            session=self.node.session,
            clock=self.node.clock,
        )

    def say(self, **known: tuple[int, int] | None) -> None:
        self.node.raft.peers = {name: PeerStatus(True, 0, 0, False, said) for name, said in known.items()}

    async def look(self) -> int:
        """One look, and what came of it: the machine's version."""
        self.upgrade.run_once()
        await settle()
        return self.node.applier.meta().machine_version

    async def propose(self, command: Command) -> None:
        self.node.proposer.send([command])
        await settle()

    @property
    def proposed(self) -> list[int]:
        return [
            command.version
            for entry in self.node.raft.entries
            for command in codec.split_entry(entry)[1]
            if isinstance(command, RaiseMachineVersion)
        ]


@pytest.fixture
async def cluster() -> Upgraded:
    made = Upgraded()
    await made.node.open()
    await made.propose(SetMembers(tuple(address(name) for name in ("n1", "n2", "n3"))))
    return made


async def test_nothing_is_raised_while_a_member_knows_only_the_old_one(cluster: Upgraded) -> None:
    cluster.say(n2=(1, 3), n3=(1, 1))
    assert await cluster.look() == 1
    cluster.say(n2=(1, 3), n3=(1, 2))
    assert await cluster.look() == 2, "the newest that all know"
    cluster.say(n2=(1, 3), n3=(1, 3))
    assert await cluster.look() == 3
    assert await cluster.look() == 3
    assert cluster.proposed == [2, 3]


async def test_a_member_that_has_not_said_holds_it_up(cluster: Upgraded) -> None:
    cluster.say(n2=(1, 3), n3=None)
    assert await cluster.look() == 1
    cluster.say(n2=(1, 3))
    assert await cluster.look() == 1


async def test_a_member_that_is_away_holds_it_up(cluster: Upgraded) -> None:
    cluster.node.raft.peers = {
        "n2": PeerStatus(True, 0, 0, False, (1, 3)),
        "n3": PeerStatus(False, 0, 0, False, (1, 3)),
    }
    assert await cluster.look() == 1


async def test_a_learner_counts_and_who_is_no_member_does_not(cluster: Upgraded) -> None:
    await cluster.propose(AddMember(*address("n4")))
    cluster.say(n2=(1, 2), n3=(1, 2), n4=(1, 1))
    assert await cluster.look() == 1
    await cluster.propose(RemoveMember("n4"))
    assert await cluster.look() == 2


async def test_builds_without_a_version_in_common_stay_where_they_are(cluster: Upgraded) -> None:
    cluster.say(n2=(3, 4), n3=(1, 2))
    assert await cluster.look() == 1
    assert cluster.proposed == []


async def test_who_does_not_lead_proposes_nothing(cluster: Upgraded) -> None:
    cluster.say(n2=(1, 3), n3=(1, 3))
    cluster.node.raft.lose_leadership()
    assert await cluster.look() == 1
    assert cluster.proposed == []


async def test_a_raise_under_way_is_proposed_again_only_after_long(cluster: Upgraded) -> None:
    cluster.say(n2=(1, 3), n3=(1, 3))
    cluster.node.raft.hold = True
    for _ in range(5):
        cluster.upgrade.run_once()
        await asyncio.sleep(0)
    assert cluster.proposed == [3]
    cluster.node.clock.advance(AGAIN_MS)
    cluster.upgrade.run_once()
    cluster.node.raft.hold = False
    cluster.node.raft.commit_all()
    await settle()
    assert cluster.proposed == [3, 3]
    assert cluster.node.applier.meta().machine_version == 3


async def test_it_is_told_who_is_waited_for_and_what_was_done(
    cluster: Upgraded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "horae.upgrade")
    for newest in (1, 1, 3, 3):
        cluster.say(n2=(1, 3), n3=(1, newest))
        await cluster.look()
    assert [(record.message, record.horae_fields) for record in caplog.records] == [
        ("machine_version_waits", {"room": "upgrade", "version": 1, "nodes": "n3"}),
        ("machine_version_proposed", {"room": "upgrade", "version": 3}),
        ("machine_version_raised", {"room": "upgrade", "version": 3}),
    ]


async def test_a_node_that_runs_alone_raises_it_at_once() -> None:
    alone = Upgraded()
    await alone.node.open()
    assert await alone.look() == 3
