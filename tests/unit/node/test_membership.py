"""What the leader adds to the rules: no change without a majority, one at a time, promotion when caught up."""

from __future__ import annotations

import asyncio

import pytest
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import codec, membership
from horae_node.core.commands import Nothing
from horae_node.errors import NotApplied, Refused
from horae_node.membership import CAUGHT_UP_ENTRIES, CAUGHT_UP_MS, WAITS_TOLD_MS
from horae_node.raft.port import Member, PeerStatus

N4 = Member("n4", "n4:1", "http://n4")


def peer(*, connected: bool = True, match_index: int = 0) -> PeerStatus:
    return PeerStatus(connected, match_index, 0)


async def of_three(**peers: PeerStatus) -> OneNode:
    """n1 leads n2 and n3; what is not given is connected."""
    node = OneNode()
    node.raft.peers = {"n2": peer(), "n3": peer()} | peers
    return await node.open()


def standing(node: OneNode, node_id: str) -> str | None:
    return node.raft.roster.standing(node_id)


async def promote(node: OneNode) -> None:
    """Let the learner catch up, as the node's housekeeping sees it."""
    node.raft.peers["n4"] = peer(match_index=node.raft.status().last_index)
    assert not node.membership.is_promotion_due(0)
    assert node.membership.is_promotion_due(CAUGHT_UP_MS)
    await node.membership.promote()
    node.membership.on_roster()


async def refusal(call: object) -> Refused:
    with pytest.raises(Refused) as refused:
        await call  # type: ignore[misc]
    return refused.value


async def test_the_first_change_writes_the_configured_members_down() -> None:
    node = await of_three()
    await node.membership.remove("n3")
    assert [standing(node, name) for name in ("n1", "n2", "n3")] == ["voter", "voter", "removed"]
    assert node.raft.roster.at_index > 0


async def test_a_new_node_counts_once_it_has_caught_up() -> None:
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    assert standing(node, "n4") == "learner"
    assert not adding.done()
    await promote(node)
    assert await adding == "voter"
    assert await node.membership.add(N4) == "voter", "a repeat"


async def test_what_keeps_a_learner_from_counting_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "horae.members")
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    for now_ms in (0, WAITS_TOLD_MS - 1, WAITS_TOLD_MS, 2 * WAITS_TOLD_MS):
        assert not node.membership.is_promotion_due(now_ms)
    told = [record.horae_fields["reason"] for record in caplog.records if record.msg == "promotion_put_off"]  # type: ignore[attr-defined]
    assert told == ["it is not reached"]
    adding.cancel()


async def test_a_change_is_told_once_an_entry_after_it_is_stored() -> None:
    """By a majority that counts the new node: with that entry it learns that the change is committed. Else the leader
    might be gone with the news, and who is left would count as before."""
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    node.raft.hold = True
    promoting = asyncio.create_task(promote(node))
    await settle()
    node.raft.commit_all()
    assert standing(node, "n4") == "voter"
    node.membership.on_roster()
    await settle()
    assert node.membership.settling == "n4"
    assert not adding.done()
    assert [type(command) for command in codec.split_entry(node.raft.entries[-1])[1]] == [Nothing]
    node.raft.commit_all()
    await promoting
    assert await adding == "voter"
    assert node.membership.settling is None


async def test_a_learner_that_is_far_behind_or_gone_again_is_not_promoted() -> None:
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    node.membership.on_roster()
    last = node.raft.status().last_index
    for hindered in (peer(connected=False, match_index=last), peer(match_index=last - CAUGHT_UP_ENTRIES - 1)):
        node.raft.peers["n4"] = peer(match_index=last)
        assert not node.membership.is_promotion_due(0)
        node.raft.peers["n4"] = hindered
        assert not node.membership.is_promotion_due(CAUGHT_UP_MS)
        node.raft.peers["n4"] = peer(match_index=last)
        assert not node.membership.is_promotion_due(CAUGHT_UP_MS), "the time counts anew"
        node.membership.on_leadership()
    adding.cancel()


async def test_who_waits_for_a_node_that_is_removed_is_told() -> None:
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    await node.membership.remove("n4")
    node.membership.on_roster()
    assert "removed before it counted" in str(await refusal(adding))


async def test_who_waits_is_sent_to_the_new_leader() -> None:
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    node.raft.lose_leadership()
    node.membership.on_leadership()
    with pytest.raises(NotApplied, match="no_leader"):
        await adding


async def test_a_promotion_that_would_stop_the_cluster_is_put_off() -> None:
    node = await of_three()
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    node.raft.peers |= {"n3": peer(connected=False), "n4": peer(connected=False)}
    await node.membership.promote()
    assert standing(node, "n4") == "learner"
    adding.cancel()


async def test_a_removal_that_leaves_no_majority_is_refused() -> None:
    node = await of_three(n3=peer(connected=False))
    assert "a change without quorum: without n2, only 1 of 2" in str(await refusal(node.membership.remove("n2")))
    await node.membership.remove("n3")


async def test_a_second_change_while_one_is_under_way_is_refused() -> None:
    node = await of_three()
    node.raft.hold = True
    first = asyncio.create_task(node.membership.remove("n3"))
    await settle()
    assert "under way" in str(await refusal(node.membership.remove("n2")))
    node.raft.hold = False
    node.raft.commit_all()
    await first
    assert standing(node, "n2") == "voter"


async def test_the_rules_refusal_is_the_callers() -> None:
    node = await of_three()
    refused = await refusal(node.membership.remove("n9"))
    assert (refused.code, refused.detail) == ("not_found", "there is no member n9")
    refused = await refusal(node.membership.add(Member("n2", "elsewhere:1", "http://elsewhere")))
    assert refused.code == "conflict"
    assert "n2 is a member already" in refused.detail
    refused = await refusal(node.membership.move(Member("n9", "elsewhere:1", "http://elsewhere")))
    assert refused.code == "not_found"
    assert node.raft.roster.at_index == 0, "a refused call writes nothing down"


async def test_a_leader_that_is_to_leave_hands_over_first() -> None:
    node = await of_three(n2=peer(match_index=3), n3=peer(match_index=7))
    assert "n1 leads on, and stays" in str(await refusal(node.membership.remove("n1")))
    node.raft.hands_over = True
    with pytest.raises(NotApplied, match="no_leader"):
        await node.membership.remove("n1")
    assert node.raft.handed_to == ["n3", "n3"]
    assert standing(node, "n1") == "voter"


async def test_a_leader_whose_removal_is_refused_leads_on() -> None:
    """Looked at first: the lead is not handed over for nothing."""
    node = await of_three()
    node.raft.hands_over = True
    adding = asyncio.create_task(node.membership.add(N4))
    await settle()
    assert "n4 is being added" in str(await refusal(node.membership.remove("n1")))
    node.raft.hold = True
    removing = asyncio.create_task(node.membership.remove("n4"))
    await settle()
    assert "under way: wait for it" in str(await refusal(node.membership.remove("n1")))
    assert node.raft.handed_to == []
    node.raft.hold = False
    node.raft.commit_all()
    await removing
    adding.cancel()


async def test_what_a_node_that_is_not_there_holds_up_says_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "REACH_WAIT_S", 0.01)
    node = await of_three()
    added = await node.service.add_member(wire.MemberRequest(node="n4", raft_address="n4:1", http_url="http://n4"))
    assert added == wire.MemberStanding("n4", "learner", connected=False)
    way_out = (
        "n4 is being added; it is not reachable at n4:1: start it with `join`, or take it back with `horae cluster"
    )
    for call in (
        node.membership.add(Member("n5", "n5:1", "http://n5")),
        node.membership.remove("n3"),
        node.membership.move(Member("n3", "elsewhere:1", "http://n3")),
    ):
        refused = await refusal(call)
        assert refused.code == "conflict"
        assert way_out in refused.detail
    node.raft.peers["n4"] = peer()
    assert "wait for it, or remove it" in str(await refusal(node.membership.remove("n3")))
    assert await node.membership.add(N4, 0) == "learner", "a repeat"
    await node.membership.move(Member("n3", "n3:1", "http://n3"))
    await node.membership.remove("n4")
    await node.membership.remove("n4")


@pytest.mark.parametrize(
    ("to", "code", "says"),
    [("n9", "not_found", "no member n9"), ("n3", "conflict", "not connected"), ("n2", "conflict", "n1 leads on")],
)
async def test_a_hand_over_that_cannot_be_is_refused(to: str, code: str, says: str) -> None:
    node = await of_three(n3=peer(connected=False))
    refused = await refusal(node.membership.hand_over(to))
    assert refused.code == code
    assert says in refused.detail


async def test_a_node_that_is_low_on_disk_is_not_handed_the_lead() -> None:
    node = await of_three(n2=PeerStatus(True, 9, 0, disk_low=True))
    refused = await refusal(node.membership.hand_over("n2"))
    assert refused.code == "conflict"
    assert "n2 is low on disk" in refused.detail
    assert node.raft.handed_to == []


async def test_the_leader_hands_over_to_nobody_when_it_leads_as_asked() -> None:
    node = await of_three()
    await node.membership.hand_over("n1")
    assert node.raft.handed_to == []


async def test_a_full_disk_is_no_successor() -> None:
    node = await of_three(n2=PeerStatus(True, 9, 0, True), n3=peer(connected=False))
    assert not await node.membership.hand_over_to_any()
    assert node.raft.handed_to == []


async def test_a_successor_with_little_room_is_better_than_none_and_no_better() -> None:
    low = PeerStatus(True, 9, 0, disk_low=True)
    node = await of_three(n2=low, n3=peer(match_index=8))
    await node.membership.hand_over_to_any()
    node.raft.peers["n3"] = peer(connected=False)
    await node.membership.hand_over_to_any()
    assert node.raft.handed_to == ["n3", "n2"]


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [
        ({"node": "a b"}, "/node"),
        ({"raft_address": "nowhere"}, "/raft_address"),
        ({"raft_address": "0.0.0.0:7071"}, "/raft_address"),
        ({"http_url": "http://0.0.0.0:7070"}, "/http_url"),
        ({"http_url": "n4:7070"}, "/http_url"),
    ],
)
async def test_what_is_no_address_is_refused_by_its_place(keys: dict[str, str], pointer: str) -> None:
    node = await of_three()
    request = wire.MemberRequest(**({"node": "n4", "raft_address": "n4:1", "http_url": "http://n4"} | keys))
    refused = await refusal(node.service.add_member(request))
    assert (refused.code, refused.pointer) == ("invalid", pointer)
    assert refused.detail.startswith("must "), "the pointer names the place, once"


async def test_a_removed_node_is_not_ready_and_says_why() -> None:
    node = await of_three()
    assert node.service.ready()[0]
    node.service.removed = True
    assert node.service.ready() == (False, "this node was removed from the cluster")


async def test_the_leaders_address_follows_the_members() -> None:
    node = await of_three()
    node.raft.follow("n4")
    assert node.service.leader_url() is None
    node.service.set_members([N4])
    assert node.service.leader_url() == "http://n4"
