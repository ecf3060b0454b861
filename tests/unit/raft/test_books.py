"""Rosters that others know: a newer one is believed, one of an older life is not, old news is quiet."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.raft.parts import Cluster, wait_until

from horae_node.raft.port import Member, Roster

STRANGER = Member("n9", "127.0.0.1:9", "")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, size=4, spares=1)
    yield made
    assert await made.end() == []


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_book_of_what_is_applied_here_already_is_of_another_life_of_the_cluster(
    cluster: Cluster, ahead: int
) -> None:
    """A recovered survivor forgot its members, not its log: who was a member before may still be there, and tell."""
    await cluster.start("n1")
    applied_index = cluster.machines["n1"].applied_index
    books: list[Roster] = []
    cluster.nodes["n1"].on_roster(books.append)
    book = Roster(applied_index + ahead, (*cluster.voters, STRANGER))
    cluster.nodes["n1"].on_book(book)
    assert books == [book] * ahead
    assert cluster.network is not None
    assert ("n9" in cluster.network.nodes["n1"].known) == bool(ahead)


async def test_of_the_changes_that_a_node_missed_the_last_one_is_news(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "horae.raft")
    await cluster.start()
    for _ in range(3):
        await cluster.change("n1 n2 n3", learners="n4")
        await cluster.change("n1 n2 n3")
    await cluster.change("n1 n2 n3", learners="n4")
    changed = [record.levelno for record in caplog.records if record.msg == "members_changed"]
    assert changed == [logging.INFO] * 3 * 7, "told by each, when it is new"
    caplog.clear()
    await cluster.start("n4")
    index = cluster.nodes["n1"].roster.at_index
    await wait_until(lambda: cluster.nodes["n4"].roster.at_index == index)
    changed = [record.levelno for record in caplog.records if record.msg == "members_changed"]
    assert changed == [logging.DEBUG] * 6 + [logging.INFO]


async def test_who_is_led_needs_nobodys_word_until_the_leader_goes(cluster: Cluster) -> None:
    await cluster.start()
    leader = await cluster.leader()
    follower = cluster.other_than(leader)
    await wait_until(lambda: cluster.nodes[follower].leader_id == leader)
    assert cluster.network is not None
    book = Roster(9_000, (*cluster.voters, STRANGER))
    for node_id in (leader, follower):
        cluster.nodes[node_id].on_book(book)
        assert "n9" not in cluster.network.nodes[node_id].known
    for other in ("n1", "n2", "n3"):
        if other != follower:
            cluster.network.cut(follower, other)
    await wait_until(lambda: "n9" in cluster.network.nodes[follower].known)  # type: ignore[union-attr]


async def test_members_that_no_leader_can_confirm_are_believed_until_there_is_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged file, or a lie, with a number that no log reaches: it may not keep the truth out for ever."""
    await cluster.start("n1")
    books: list[Roster] = []
    cluster.nodes["n1"].on_roster(books.append)
    lie = Roster(9_000, (*cluster.voters[:2], STRANGER))
    cluster.nodes["n1"].on_book(lie)
    assert books == [lie]
    await cluster.start("n2", "n3")
    await cluster.propose(b"x")
    await wait_until(lambda: len(books) == 2)
    assert books[1].at_index == 0
    assert cluster.network is not None
    assert "n9" not in cluster.network.nodes["n1"].known
    await cluster.change("n1 n2 n3", learners="n4")
    await wait_until(lambda: books[-1].at_index == cluster.nodes["n2"].roster.at_index)
    refuted = [record for record in caplog.records if record.msg == "members_refuted"]
    assert len(refuted) >= 1
    assert {record.levelno for record in refuted} == {logging.WARNING}
