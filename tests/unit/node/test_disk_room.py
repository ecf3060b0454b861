"""Little room on a disk: who is told, who is given the lead and when, what a refusal says, and what the log does."""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.one_node import OneNode, settle

from horae_node.disk_room import HAND_ON_MS, ROOM_BYTES_AGAIN, ROOM_BYTES_MIN, DiskRoom
from horae_node.errors import NotApplied
from horae_node.membership import CAUGHT_UP_ENTRIES
from horae_node.raft.port import PeerStatus
from horae_node.shedding import Rank

MUCH = 50 * ROOM_BYTES_MIN
LITTLE = ROOM_BYTES_MIN - 1


def peer(*, low: bool = False, match: int = 10_000, connected: bool = True) -> PeerStatus:
    return PeerStatus(connected, match, 0, disk_low=low)


class Disk:
    """The leader n1 of as many as a test names, and the room on its disk."""

    def __init__(self, **peers: PeerStatus) -> None:
        self.node = OneNode()
        self.node.raft.peers = peers
        self.free_bytes = MUCH
        self.state_full = False
        self.now_ms = 0
        self.attempts: list[tuple[str, asyncio.Future[None]]] = []
        self.room = DiskRoom(
            node_id="n1",
            raft=self.node.raft,
            proposer=self.node.proposer,
            free_bytes=lambda: self.free_bytes,
            is_state_full=lambda: self.state_full,
            begin_handover=self.begin,
        )

    def begin(self, node_id: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.attempts.append((node_id, future))
        return future

    def look(self, after_ms: int = 1000, *, commands: bool = True) -> None:
        self.now_ms += after_ms
        self.room.run_once(self.now_ms, commands=commands)

    def fail(self) -> None:
        """The attempt under way was in vain."""
        self.attempts[-1][1].set_result(None)

    @property
    def called(self) -> list[str]:
        return [name for name, _ in self.attempts]

    def require_refusal(self, words: str) -> None:
        """New work is turned away, and told why with these at the beginning or the end."""
        said = self.refusal
        assert said is not None
        assert said.startswith(words) or said.endswith(words), said

    @property
    def refusal(self) -> str | None:
        try:
            self.node.proposer.require_room(Rank.NEW)
        except NotApplied as refused:
            return f"{refused.code}: {refused.detail}"
        return None


async def test_a_low_disk_is_told_to_the_others_until_there_is_more_than_a_little_again() -> None:
    disk = Disk(n2=peer(), n3=peer())
    told = []
    for free_bytes in (MUCH, ROOM_BYTES_MIN, LITTLE, ROOM_BYTES_MIN, ROOM_BYTES_AGAIN - 1, ROOM_BYTES_AGAIN, LITTLE):
        disk.free_bytes = free_bytes
        disk.look(commands=False)
        told.append(disk.node.raft.disk_low)
    assert told == [False, False, True, True, True, False, True]


@pytest.mark.parametrize("what", ["state", "log"])
async def test_a_state_or_a_log_that_found_no_room_is_low_whatever_is_free(what: str) -> None:
    disk = Disk(n2=peer(), n3=peer())
    disk.state_full, disk.node.raft.disk_full = what == "state", what == "log"
    disk.look(commands=False)
    assert disk.node.raft.disk_low


async def test_a_low_follower_is_no_reason_for_anything() -> None:
    disk = Disk(n2=peer(low=True), n3=peer())
    disk.look()
    assert (disk.called, disk.refusal) == ([], None)


async def test_a_low_leader_hands_over_to_who_has_room_and_refuses_nothing_meanwhile() -> None:
    disk = Disk(n2=peer(low=True), n3=peer(), n4=peer(connected=False), n5=peer(match=0))
    disk.free_bytes = LITTLE
    disk.look()
    assert disk.called == ["n3"]
    assert disk.refusal is None
    disk.look()
    assert disk.called == ["n3"], "one at a time"
    assert disk.refusal is None


async def test_who_has_most_of_the_log_is_asked_first() -> None:
    disk = Disk(n2=peer(match=5_000), n3=peer(match=5_001))
    disk.free_bytes = LITTLE
    disk.look()
    assert disk.called == ["n3"]


async def test_who_handed_on_and_leads_again_hands_on_at_once() -> None:
    """An operator gave the lead back to the node with the full disk: writes were refused for ten seconds."""
    disk = Disk(n2=peer(), n3=peer(match=1))
    disk.free_bytes = LITTLE
    disk.look()
    disk.node.raft.is_leader = False
    disk.fail()
    disk.look(500, commands=False)
    disk.node.raft.is_leader = True
    disk.look(500)
    assert disk.called == ["n2", "n2"]
    assert disk.refusal is None


async def test_a_hand_over_in_vain_is_tried_again_with_another_and_not_at_once() -> None:
    disk = Disk(n2=peer(match=9_000), n3=peer(match=8_000))
    disk.free_bytes = LITTLE
    disk.look()
    disk.fail()
    disk.look(HAND_ON_MS - 1)
    assert disk.called == ["n2"]
    disk.require_refusal("storage_full: too little room on the disk of n1, which leads")
    disk.look(1)
    assert disk.called == ["n2", "n3"]
    assert disk.refusal is None
    disk.fail()
    disk.look(HAND_ON_MS)
    assert disk.called == ["n2", "n3", "n2"]


async def test_who_is_the_only_one_with_room_is_tried_again() -> None:
    disk = Disk(n2=peer(), n3=peer(low=True), n4=peer(connected=False), n5=peer(connected=False))
    disk.free_bytes = LITTLE
    disk.look()
    disk.fail()
    disk.look(HAND_ON_MS)
    assert disk.called == ["n2", "n2"]


async def test_nobody_is_handed_over_to_who_has_no_room_or_is_not_there_or_is_far_behind() -> None:
    disk = Disk(n2=peer(connected=False), n3=peer(match=0))
    disk.free_bytes = LITTLE
    disk.look()
    assert disk.called == []
    disk.require_refusal("make room on n1 (72 MiB free at least)")


async def test_a_follower_some_entries_behind_has_caught_up() -> None:
    disk = Disk(n2=peer(match=1), n3=peer(match=0))
    await disk.node.open()
    disk.free_bytes = LITTLE
    disk.look()
    assert disk.node.applier.applied_index < CAUGHT_UP_ENTRIES
    assert disk.called == ["n2"]


async def test_where_a_majority_is_low_nobody_hands_over_and_the_refusal_says_which_nodes() -> None:
    disk = Disk(n2=peer(low=True), n3=peer())
    disk.free_bytes = LITTLE
    disk.look()
    assert disk.called == []
    disk.require_refusal("of too many nodes: make room on n1, n2 (72 MiB free at least)")
    disk.node.raft.peers["n3"] = peer(low=True)
    disk.look(HAND_ON_MS)
    assert disk.called == [], "all low: nobody could do better"


async def test_a_leader_with_room_refuses_as_well_where_a_majority_is_low() -> None:
    disk = Disk(n2=peer(low=True), n3=peer(low=True))
    disk.look()
    disk.require_refusal("make room on n2, n3 (72 MiB free at least)")
    disk.node.proposer.require_room(Rank.ENDING)
    disk.node.raft.peers["n3"] = peer()
    disk.look()
    assert disk.refusal is None


async def test_a_log_that_waits_for_room_can_be_given_to_nobody() -> None:
    disk = Disk(n2=peer(), n3=peer())
    disk.node.raft.disk_full = True
    disk.look()
    assert disk.called == []
    assert disk.refusal is not None


async def test_a_cluster_of_one_says_where_room_is_wanted() -> None:
    disk = Disk()
    disk.free_bytes = LITTLE
    disk.look()
    disk.require_refusal("make room on n1 (72 MiB free at least)")


async def test_who_does_not_command_refuses_nothing_and_hands_nothing_over() -> None:
    disk = Disk(n2=peer(low=True), n3=peer(low=True))
    disk.look()
    disk.free_bytes = LITTLE
    disk.look(commands=False)
    assert (disk.called, disk.refusal) == ([], None)


async def test_each_beginning_and_each_end_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horae.node")
    disk = Disk()
    disk.look()
    for free_bytes in (LITTLE, 5, LITTLE, MUCH, MUCH):
        disk.free_bytes = free_bytes
        disk.look()
    await settle()
    assert [(line.levelname, line.msg) for line in caplog.records if line.name == "horae.node"] == [
        ("WARNING", "disk_low"),
        ("WARNING", "new_work_refused"),
        ("INFO", "disk_low_ended"),
        ("INFO", "new_work_taken"),
    ]
    begun = caplog.records[0].horae_fields  # type: ignore[attr-defined]
    assert begun["free_bytes"] == LITTLE
    assert "new work" in begun["refused"]
