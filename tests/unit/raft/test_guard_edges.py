"""The rules of the guard where two of them meet: reconnections, changes of leader, installs under way, empty logs.

Each test is named by the rule that it breaks without (docs/consensus.md); the rules in their smallest form are in
`test_guard.py`.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from zlib import crc32

import pytest
from tests.unit.raft.messages import (
    answer,
    answers,
    append,
    beat,
    far_back,
    leave_behind,
    matched,
    next_index,
    offer_snapshot,
    piece,
)
from tests.unit.raft.script import Script, ScriptNode

from horae_node.errors import Fatal
from horae_node.raft.port import SnapshotInfo
from horae_node.raft.pysyncobj_core import BATCH_BYTES, FOLLOWER, NOT_APPLIED, SUCCESS
from horae_node.raft.snapshots import AHEAD_PIECES, PIECE_BYTES, Transfer

# ---------------------------------------------------------------- 3, 4: what proves that something is broken


def test_3_a_leader_that_disagrees_with_what_is_committed_is_fatal(led: Script) -> None:
    heartbeat = append(led, prev=2, entries=[]) | {"term": 9, "prevLogTerm": 8}
    with pytest.raises(Fatal, match="our committed entry 2"):
        led.inject("c", "b", heartbeat)


def test_4_a_second_leader_of_our_own_term_is_fatal(led: Script) -> None:
    with pytest.raises(Fatal, match="leads in term 1"):
        led.inject("b", "a", append(led, prev=2, entries=[]))


# ---------------------------------------------------------------- 1, 6, 8, 14: a new connection


def test_1_an_answer_that_waits_for_the_disk_dies_with_its_connection(led: Script) -> None:
    """It would be taken for the answer to something that was sent on the new one."""
    led.auto_sync = False
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1)]))
    led.disconnect("a", "b")
    led.connect("a", "b")
    led["b"].sync()
    assert answers(led.under_way("b", "a")) == []


def test_6_a_refusal_from_before_a_reconnection_moves_nothing(led: Script) -> None:
    led["a"].write(b"x", b"y", b"z")
    led["a"].send()
    before = led["a"].guard.links["b"].seq
    led.disconnect("a", "b")
    led.connect("a", "b")
    led["a"].send()
    assert next_index(led, "b") == 6
    led.inject("b", "a", answer(success=False, reset=True, seq=before, next_node_idx=4))
    assert next_index(led, "b") == 6


def test_14_a_message_of_a_connection_that_is_gone_is_not_heard(led: Script) -> None:
    led.disconnect("a", "b")
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1)]))
    assert led["b"].last == 2


def slow_feed(node: ScriptNode) -> list[int]:
    """Let only so many visits to the file happen as there are items in the list that is given back."""
    visits = [1]

    def feed(transfer: Transfer) -> None:
        if visits:
            visits.pop()
            transfer.fill()

    node.shelf.feed = feed
    return visits


def begin_transfer(led: Script, pieces_min: int = AHEAD_PIECES + 4) -> list[int]:
    """`a` has sent the first pieces of a longer snapshot to `c`, and no more of it are read yet."""
    led.isolate("c")
    led["a"].write(*[bytes([number]) * PIECE_BYTES for number in range(pieces_min)])
    led.run("ab", 800)
    led["a"].machine.commit()
    led["a"].journal.cut_below(led["a"].last)
    led["a"].give_snapshot()
    visits = slow_feed(led["a"])
    led.rejoin("c")
    led["a"].rewind("c", 3)
    led["a"].send()
    return visits


def pieces(messages: list[dict[str, object]]) -> list[object]:
    """What each message carries of a snapshot: the offset of its piece, None for a plain beat."""
    return [m["serialized"] and m["serialized"]["offset"] for m in messages if "serialized" in m]  # type: ignore[index]


def test_8_a_new_connection_is_sent_the_snapshot_from_its_beginning(led: Script) -> None:
    """Unless the follower says that it has more of it."""
    visits = begin_transfer(led)
    assert pieces(led.under_way("a", "c"))[-2:] == [(AHEAD_PIECES - 1) * PIECE_BYTES, None]
    led.disconnect("a", "c")
    led.connect("a", "c")
    visits.append(1)
    led["a"].rewind("c", 3)
    led["a"].send()
    assert pieces(led.under_way("a", "c"))[0] == 0


def test_8_what_came_over_an_older_connection_is_not_sent_again(led: Script) -> None:
    visits = begin_transfer(led, 3 * AHEAD_PIECES)
    visits.append(1)
    led.tick("a")
    led["a"].send()
    led.deliver("a", "c")
    led.disconnect("a", "c")
    led.connect("a", "c")
    assert led["a"].guard.holding_index is not None, "the log is kept for it meanwhile"
    led["a"].rewind("c", 3)
    visits.append(1)
    led["a"].send()
    assert pieces(led.under_way("a", "c"))[0] == 0
    led.deliver("a", "c")
    led.deliver("c", "a")
    visits.append(1)
    led.tick("a")
    led["a"].send()
    assert pieces(led.under_way("a", "c"))[0] == 2 * AHEAD_PIECES * PIECE_BYTES


def test_10_a_transfer_whose_next_piece_is_not_read_yet_stalls_nobody(led: Script) -> None:
    visits = begin_transfer(led)
    sent = len(led.under_way("a", "c"))
    for _ in range(50):
        led["a"].send()
    assert len(led.under_way("a", "c")) == sent, "left out until a piece is there"
    assert led["a"].leads
    visits.append(1)
    led.tick("a")
    led["a"].send()
    assert pieces(led.under_way("a", "c"))[sent] == AHEAD_PIECES * PIECE_BYTES


# ---------------------------------------------------------------- 8, 9: snapshots


def test_8_a_piece_after_a_hole_makes_the_leader_begin_again(led: Script) -> None:
    led.inject("a", "b", beat(piece(last=False, size=24, crc=crc32(b"snapshot"))))
    led.inject("a", "b", beat(piece(offset=16, size=24, crc=crc32(b"snapshotsnapshot"), last=False)))
    assert [m["reset"] for m in led.under_way("b", "a")] == [False, True]


def test_8_pieces_of_two_leaders_are_never_joined(led: Script) -> None:
    led.inject("a", "b", beat(piece(last=False, size=16, crc=crc32(b"snapshot"))))
    of_another = piece(offset=8, size=16, crc=crc32(b"snapshotsnapshot"), checksum=b"of another")
    led.inject("c", "b", beat(of_another, term=2))
    assert led["b"].installs == []
    assert [m["reset"] for m in led.under_way("b", "c")] == [True]


def received(led: Script, *, last_index: int) -> SnapshotInfo:
    return SnapshotInfo(led.directory / "b" / "incoming.snapshot", last_index, 1, 1, 8, b"")


def install(led: Script, node_id: str) -> list[SnapshotInfo]:
    """Finish an install; what was restored."""
    restored: list[SnapshotInfo] = []
    led[node_id].core.enter()
    assert led[node_id].guard.finish_install(restored.append) == bool(restored)
    return restored


def test_8_an_install_that_the_log_has_overtaken_replaces_nothing(led: Script) -> None:
    led["b"].guard.installing = received(led, last_index=4)
    led["a"].write(b"x", b"y", b"z")
    led.run("abc", 200)
    assert led["b"].machine.applied_index == 5
    assert install(led, "b") == []
    assert answers(led.under_way("b", "a")) == [(True, 5)], "the leader, who waits for the install, is told"


def test_8_a_node_that_has_come_to_lead_installs_nothing(led: Script) -> None:
    led["b"].guard.installing = received(led, last_index=40)
    led.elect("b", "a", "c")
    assert install(led, "b") == []


def test_8_who_installs_says_so_and_is_waited_for(led: Script) -> None:
    far_back(led)
    led.run("abc", 300)
    assert len(led["c"].installs) == 1, "not sent again"
    led.tick("a", after_ms=70)
    led.deliver("a", "c")
    assert [m["installs"] for m in led.under_way("c", "a") if "installs" in m] == [True]


def test_10_who_is_sent_nothing_but_beats_hears_how_far_its_leader_is(led: Script) -> None:
    """It has heard of no entry that it lacks: by its own log it would take itself for caught up."""
    leave_behind(led)
    led["a"].journal.cut_below(20)
    led.rejoin("c")
    led["a"].rewind("c", 3)
    led["a"].send()
    for _ in range(3):
        led.tick("a", after_ms=70)
        led.deliver("a", "c")
        led.deliver("c", "a")
    assert led["c"].core.commit < led["a"].core.commit
    assert led["c"].guard.leader_commit == led["a"].core.commit
    assert not led["c"].guard.has_all_before_reign()


def test_8_a_gap_behind_an_install_under_way_is_no_reason_to_begin_again(led: Script) -> None:
    far_back(led)
    led.links["c", "a"].clear()
    led.inject("a", "c", append(led, prev=30, entries=[]))
    assert [(m["success"], m["reset"]) for m in led.under_way("c", "a")] == [(False, False)]


def test_9_a_copy_that_an_install_overtook_is_given_to_nobody(led: Script) -> None:
    led["c"].give_snapshot()
    far_back(led)
    assert led["c"].install()
    assert led["c"].shelf.next_piece("b") is None
    assert led["c"].wanted == 1, "a new one is asked for"


# ---------------------------------------------------------------- 11, 12: elections


def test_11_a_candidate_that_was_left_behind_learns_the_newer_term(led: Script) -> None:
    led["b"].core.step_down(7)
    led.links["b", "c"].clear()
    led.inject("c", "b", {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 2})
    (hint,) = led.under_way("b", "c")
    assert (hint["type"], hint["term"]) == ("term_hint", 7)


def test_11_who_retires_with_its_pre_vote_won_stands_no_more(script: Script) -> None:
    script.tick("a", after_ms=1000)
    script["a"].core.election_deadline = 0.0
    script.tick("a")
    script.deliver("a", "b")
    script.deliver("b", "a")
    assert script["a"].core.election_deadline == 0.0, "its next tick would hold the election"
    script["a"].core.enter()
    script["a"].guard.retire()
    script.tick("a")
    script.tick("a", after_ms=2000)
    assert script["a"].core.state == FOLLOWER
    assert script["a"].core.term == 0


def test_11_a_leader_that_is_cut_off_stops_within_the_fallback(led: Script) -> None:
    led.isolate("a")
    led.run("a", 600)
    assert led["a"].leads, "a short cut costs no leader"
    led.run("a", 240)
    assert not led["a"].leads


def test_11_a_one_way_cut_does_not_stop_the_cluster(led: Script) -> None:
    """Nothing reaches `a` any more, while all hear it: it would keep them from electing another for good."""
    for _ in range(100):
        led.clock.advance(20)
        for node_id in "abc":
            led.tick(node_id)
        for one, other in ("ab", "ac", "bc", "cb", "ab", "ac", "bc", "cb"):
            led.deliver(one, other)
        for deaf in "bc":
            led.links[deaf, "a"].clear()
    assert not led["a"].leads
    (leader,) = [node_id for node_id in "bc" if led[node_id].leads]
    led[leader].write(b"x")
    for _ in range(10):
        led.tick(leader, after_ms=20)
        for one, other in ("bc", "cb"):
            led.deliver(one, other)
    assert led[leader].reasons == {b"x": SUCCESS}


def test_12_a_vote_of_an_earlier_candidacy_does_not_count(led: Script) -> None:
    led["a"].core.step_down(5)
    led.tick("a", after_ms=1000)
    led.stand("a", "b", "c")
    led.inject("b", "a", {"type": "response_vote", "term": led["a"].core.term - 1})
    assert not led["a"].leads
    led.inject("b", "a", {"type": "response_vote", "term": led["a"].core.term})
    assert led["a"].leads


# ---------------------------------------------------------------- 13, 15, 16: proposals and what is in flight


def test_13_proposals_that_an_install_jumped_over_end_as_unknown(led: Script) -> None:
    led.isolate("a")
    lost = [b"x", b"y", b"z"]
    led["a"].write(*lost)
    led.elect("b", "c")
    led["b"].write(*[b"%d" % number for number in range(20)])
    led.run("bc", 400)
    offer_snapshot(led, "b", "a", first_index=15)
    led.deliver("b", "a")
    assert led["a"].reasons == {}
    assert led["a"].install()
    assert led["a"].reasons.keys() == set(lost)
    assert not {SUCCESS, *NOT_APPLIED} & set(led["a"].reasons.values())


def test_13_a_proposal_of_a_follower_goes_nowhere(led: Script) -> None:
    led["b"].propose(b"x")
    led.tick("b")
    assert led.under_way("b", "a") == led.under_way("b", "c") == []
    led.run("abc", 200)
    assert led["a"].machine.entries == []


def test_15_an_entry_as_large_as_a_batch_is_fatal_before_it_is_cut(led: Script) -> None:
    led["a"].propose(bytes(BATCH_BYTES))
    with pytest.raises(Fatal):
        led["a"].send()


def test_16_an_early_answer_frees_no_room(led: Script) -> None:
    led["a"].write(bytes(500_000))
    led["a"].send()
    link = led["a"].guard.links["b"]
    led.inject("b", "a", answer(success=False, seq=link.seq, early=True))
    assert link.flight_bytes > 500_000, "heard of, but not on its disk"
    led.inject("b", "a", answer(success=False, seq=link.seq, early=False))
    assert link.flight_bytes == 0


# ---------------------------------------------------------------- 18: the log never gets empty


def test_18_a_node_whose_log_is_only_a_root_follows_votes_and_leads(led: Script) -> None:
    far_back(led)
    led["a"].journal.cut_below(led["a"].last)
    assert led["c"].install()
    assert len(led["c"].journal) == 1, "the snapshot reached the log's end"
    led.tick("c", after_ms=2000)
    led.isolate("a")
    led.elect("c", "b")
    led["c"].write(b"x")
    led.run("bc", 200)
    assert led["c"].reasons == {b"x": SUCCESS}
    assert led["b"].machine.entries == led["c"].machine.entries


@pytest.mark.parametrize("prev", [0, 1, 2])
def test_18_nothing_that_a_leader_sends_takes_the_root_away(led: Script, prev: int) -> None:
    """Entries that begin at or below our root, each way that a later leader may place them."""
    led["b"].journal.cut_below(2)
    assert len(led["b"].journal) == 1
    entries = [(b"\0x", index, 1) for index in range(prev + 1, 5)]
    led.inject("c", "b", append(led, prev=2, entries=entries) | {"prevLogIdx": prev, "prevLogTerm": min(prev, 1)})
    led.tick("b")
    assert (led["b"].journal.first_index, led["b"].last) == (2, 4)
    with pytest.raises(Fatal):
        led.inject("c", "b", append(led, prev=2, entries=[(b"\0y", 2, 9)]) | {"term": 9, "prevLogIdx": 1})
    assert led["b"].journal.first_index == 2


# ---------------------------------------------------------------- 19: reads


def test_19_one_answer_of_four_others_confirms_no_read(tmp_path: Path) -> None:
    script = Script(tmp_path, size=5)
    script.elect("a", "b", "c", "d", "e")
    script.run("abcde", 100)
    round_ = script["a"].guard.begin_round()
    script.deliver("a", "b")
    script.deliver("b", "a")
    assert not round_.confirmed
    script.deliver("a", "c")
    script.deliver("c", "a")
    assert round_.confirmed


def test_19_a_round_of_an_earlier_reign_is_never_confirmed(led: Script) -> None:
    round_ = led["a"].guard.begin_round()
    led.deliver("a", "b")
    led.deliver("a", "c")
    led["a"].core.step_down(4)
    led.elect("a", "b", "c")
    led.run("abc", 200)
    assert led["a"].leads
    assert matched(led, "b") == led["a"].last, "answers of the new reign have come"
    assert not round_.confirmed


# ---------------------------------------------------------------- 20: the library changes no members


@pytest.mark.parametrize("change", [("rem", "c"), ("add", "d")])
def test_20_a_membership_entry_of_the_library_changes_nothing(led: Script, change: tuple[str, str]) -> None:
    entry = b"\2" + pickle.dumps(change)
    led.inject("a", "b", append(led, prev=2, entries=[(entry, 3, 1)], commit=3))
    led.tick("b")
    assert led["b"].machine.applied_index == 3
    assert {peer.id for peer in led["b"].core.others} == {"a", "c"}
    led["a"].core.enter()
    led["a"].core._obj._applyCommand(entry, None)
    led.tick("a")
    assert {peer.id for peer in led["a"].core.others} == {"b", "c"}
