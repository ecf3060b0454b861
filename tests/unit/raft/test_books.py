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
