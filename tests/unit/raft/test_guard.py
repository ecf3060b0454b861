"""Each rule of the guard in its smallest form. The rules are numbered as in docs/consensus.md; the longer stories are
in `test_scenarios.py`.
"""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest
from tests.unit.raft.messages import (
    answer,
    answers,
    append,
    beat,
    far_back,
    kinds,
    leave_behind,
    matched,
    next_index,
    piece,
)
from tests.unit.raft.script import Script

from horae_node.errors import Fatal
from horae_node.raft.guard import WINDOW_BYTES
from horae_node.raft.port import ENTRY_BYTES_MAX
from horae_node.raft.pysyncobj_core import BATCH_BYTES, CANDIDATE, SUCCESS
from horae_node.raft.snapshots import UNWRITTEN_BYTES_MAX

# ---------------------------------------------------------------- 1, 2: the disk


def test_1_an_acknowledgement_waits_for_the_disk(led: Script) -> None:
    led.auto_sync = False
    led["a"].propose(b"x")
    led["a"].send()
    led.clock.advance(100)
    led.deliver("a", "b")
    assert answers(led.under_way("b", "a")) == [(False, -1)], "only a sign of life"
    led["b"].sync()
    assert answers(led.under_way("b", "a"))[1:] == [(True, 3)]


def test_1_a_vote_waits_for_the_disk(script: Script) -> None:
    script.auto_sync = False
    script.inject("a", "b", {"type": "request_vote", "term": 5, "last_log_index": 1, "last_log_term": 0})
    assert script.under_way("b", "a") == []
    script["b"].sync()
    assert kinds(script.under_way("b", "a")) == ["response_vote"]


def test_1_a_vote_request_waits_for_the_candidates_own_disk(script: Script) -> None:
    script.clock.advance(1000)
    script["a"].core.election_deadline = 0.0
    script.tick("a")
    script.deliver("a", "b")
    script.deliver("b", "a")
    script.auto_sync = False
    script.tick("a")
    assert script["a"].core.state == CANDIDATE
    assert "request_vote" not in kinds(script.under_way("a", "b"))
    script["a"].sync()
    assert "request_vote" in kinds(script.under_way("a", "b"))


def test_2_the_leaders_own_copy_counts_once_it_is_durable(led: Script) -> None:
    led.auto_sync = False
    led["a"].propose(b"x")
    led["a"].send()
    led.deliver("a", "b")
    led["b"].sync()
    led.deliver("b", "a")
    led.tick("a")
    assert led["a"].machine.entries == []
    led["a"].sync()
    led.tick("a")
    assert led["a"].machine.entries == [b"x"]


def test_2_a_leader_whose_disk_stands_still_steps_down(led: Script) -> None:
    led.auto_sync = False
    led["a"].propose(b"x")
    led.tick("a")
    for _ in range(30):
        led.tick("a", after_ms=80)
        for other in "bc":
            led.deliver("a", other)
            led[other].sync()
            led.deliver(other, "a")
    assert not led["a"].leads


@pytest.mark.parametrize("room_at", ["", "c"])
def test_2_a_leader_whose_disk_is_full_steps_down_for_one_that_has_room(led: Script, room_at: str) -> None:
    """Where none has any, it stays, and says so."""
    led.auto_sync = False
    for node_id in "abc":
        led[node_id].guard.disk_full = node_id != room_at
    led["a"].propose(b"x")
    for _ in range(30):
        led.tick("a", after_ms=80)
        for other in "bc":
            led.deliver("a", other)
            led[other].log.sync()
            led.deliver(other, "a")
    assert led["a"].leads == (room_at == "")


@pytest.mark.parametrize(
    ("full", "low", "said", "heard"),
    [
        (False, False, False, (False, False)),
        (False, True, "low", (False, True)),
        (True, False, True, (True, True)),
        (True, True, True, (True, True)),
    ],
)
def test_2_an_acknowledgement_says_how_much_room_there_is(
    led: Script, full: bool, low: bool, said: object, heard: tuple[bool, bool]
) -> None:
    """Builds that know no little room hear anything but False as a full disk."""
    led["b"].guard.disk_full, led["b"].guard.disk_low = full, low
    led.inject("a", "b", append(led, prev=2, entries=[]))
    answer = led.under_way("b", "a")[-1]
    assert answer["disk_full"] == said
    led.deliver("b", "a")
    link = led["a"].guard.links["b"]
    assert (link.disk_full, link.disk_low) == heard


def test_2_what_was_said_of_disks_to_an_earlier_reign_is_forgotten(led: Script) -> None:
    led["b"].guard.disk_low = True
    led.inject("a", "b", append(led, prev=2, entries=[]))
    led.deliver("b", "a")
    link = led["a"].guard.links["b"]
    assert link.disk_low
    led["a"].core.step_down(9)
    assert not link.disk_low


# ---------------------------------------------------------------- 3: no truncation without a conflict


def test_3_an_old_batch_that_comes_again_truncates_nothing(led: Script) -> None:
    entries = [(b"\0e%d" % index, index, 1) for index in range(3, 7)]
    led.inject("a", "b", append(led, prev=2, entries=entries))
    led.inject("a", "b", append(led, prev=2, entries=entries[:1]))
    led.inject("a", "b", append(led, prev=2, entries=[]))
    assert led["b"].last == 6
    assert answers(led.under_way("b", "a")) == [(True, 6), (True, 3), (True, 2)], "each for what it verified"


def test_3_only_what_was_verified_is_committed(led: Script) -> None:
    entries = [(b"\0e%d" % index, index, 1) for index in range(3, 7)]
    led.inject("a", "b", append(led, prev=2, entries=entries))
    led.inject("a", "b", append(led, prev=2, entries=entries[:2], commit=6))
    led.tick("b")
    assert led["b"].machine.applied_index == 4


def test_3_a_real_conflict_is_truncated(led: Script) -> None:
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1), (b"\0x", 4, 1)]))
    message = append(led, prev=2, entries=[(b"\0y", 3, 2)]) | {"term": 2}
    led.inject("c", "b", message)
    assert led["b"].terms == [0, 1, 2]


def test_3_truncating_what_is_committed_is_fatal(led: Script) -> None:
    message = append(led, prev=1, entries=[(b"\0y", 2, 2)]) | {"term": 2}
    with pytest.raises(Fatal):
        led.inject("c", "b", message)


def test_a_follower_applies_only_what_is_on_its_own_disk(led: Script) -> None:
    led.auto_sync = False
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1)], commit=3))
    led.tick("b")
    assert led["b"].machine.entries == [], "a state ahead of its log could not be matched with it after a crash"
    led["b"].sync()
    led.tick("b")
    assert led["b"].machine.entries == [b"x"]


# ---------------------------------------------------------------- 4, 5, 6: answers


def test_4_an_answer_of_another_term_does_not_count(led: Script) -> None:
    led["a"].propose(b"x")
    led.tick("a")
    led.inject("b", "a", answer(term=0, next_node_idx=4))
    assert matched(led, "b") == 2
    led.inject("b", "a", answer(term=1, next_node_idx=4))
    assert matched(led, "b") == 3


def test_4_an_answer_of_a_newer_term_ends_the_reign(led: Script) -> None:
    led.inject("b", "a", answer(term=9))
    assert not led["a"].leads
    assert led["a"].core.term == 9


def test_4_an_acknowledgement_beyond_our_log_is_fatal(led: Script) -> None:
    with pytest.raises(Fatal):
        led.inject("b", "a", answer(next_node_idx=50))


def test_5_the_answer_to_an_earlier_batch_does_not_move_the_send_position_back(led: Script) -> None:
    for entry in (b"x", b"y", b"z"):
        led["a"].propose(entry)
        led["a"].send()
    led["a"].sync()
    assert next_index(led, "b") == 6
    led.deliver("a", "b")
    led.deliver("b", "a", 1)
    assert matched(led, "b") == 3
    assert next_index(led, "b") == 6


def test_6_a_refusal_that_was_overtaken_moves_nothing(led: Script) -> None:
    for entry in (b"x", b"y", b"z"):
        led["a"].propose(entry)
    led["a"].send()
    seq = led["a"].guard.links["b"].seq
    led.inject("b", "a", answer(success=False, reset=True, seq=seq, next_node_idx=4))
    assert next_index(led, "b") == 4
    led["a"].send()
    led.inject("b", "a", answer(success=False, reset=True, seq=seq, next_node_idx=2))
    assert next_index(led, "b") == 6, "the second refusal answered what was sent before the first"


def test_6_a_refusal_is_clamped_at_the_leaders_own_end(led: Script) -> None:
    led.inject("b", "a", answer(success=False, reset=True, next_node_idx=500))
    assert next_index(led, "b") == led["a"].last + 1


def test_6_a_gap_is_answered_with_the_own_end_and_a_conflict_with_the_committed(led: Script) -> None:
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1), (b"\0x", 4, 1)]))
    led.links["b", "a"].clear()
    led.inject("a", "b", append(led, prev=2, entries=[]) | {"prevLogIdx": 9, "prevLogTerm": 1})
    led.inject("a", "b", append(led, prev=2, entries=[]) | {"prevLogIdx": 4, "prevLogTerm": 7, "term": 7})
    refusals = [(m["reset"], m["next_node_idx"]) for m in led.under_way("b", "a")]
    assert refusals == [(True, 5), (True, 3)]
    assert led["b"].last == 4


# ---------------------------------------------------------------- 7, 8, 10: snapshots


def test_7_a_snapshot_message_moves_no_commit_index(led: Script) -> None:
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1), (b"\0x", 4, 1)]))
    led.inject("a", "b", beat(None))
    led.inject("a", "b", beat(piece(last=False, size=100)))
    led.tick("b")
    assert led["b"].core.commit == 2
    assert led["b"].machine.applied_index == 2


def test_8_a_snapshot_at_or_below_the_applied_is_answered_with_what_is_committed(led: Script) -> None:
    led.inject("a", "b", beat(piece(index=2)))
    assert led["b"].installs == []
    assert answers(led.under_way("b", "a")) == [(True, 2)]


@pytest.mark.parametrize(
    "broken",
    [piece(crc=1), piece(offset=5), piece(size=9, crc=None), piece(last=False, offset=256)],
    ids=["checksum", "no beginning", "too short", "a hole"],
)
def test_8_a_broken_piece_makes_the_leader_begin_again(led: Script, broken: dict[str, object]) -> None:
    if broken["crc"] is None:
        broken["crc"] = crc32(b"snapshot")
    led.inject("a", "b", beat(broken))
    assert led["b"].installs == []
    assert [m["reset"] for m in led.under_way("b", "a")] == [True]


def test_8_over_a_new_connection_only_the_same_snapshot_goes_on(led: Script) -> None:
    first = piece(last=False, size=16, crc=crc32(b"snapshot"))
    second = piece(offset=8, size=16, crc=crc32(b"snapshotsnapshot"))
    led.inject("a", "b", beat(first))
    led.disconnect("a", "b")
    led.connect("a", "b")
    led.inject("a", "b", beat(first))
    assert [m["have"] for m in led.under_way("b", "a")] == [(b"of all", 8, crc32(b"snapshot"))]
    led.disconnect("a", "b")
    led.connect("a", "b")
    led.inject("a", "b", beat(second | {"checksum": b"of another"}))
    assert led["b"].installs == []
    led.inject("a", "b", beat(first))
    led.inject("a", "b", beat(second))
    assert [info.size_bytes for info in led["b"].installs] == [16]


def test_8_what_came_of_a_snapshot_goes_when_the_log_is_enough(led: Script) -> None:
    led.inject("a", "b", beat(piece(last=False, size=16, crc=crc32(b"snapshot"))))
    half = led["b"].guard._intake.reception
    assert half is not None
    led.inject("a", "b", append(led, prev=9, entries=[(b"\0x", 10, 1)]))
    assert half.path.exists(), "a gap says nothing"
    led.inject("a", "b", append(led, prev=2, entries=[(b"\0x", 3, 1)]))
    assert not half.path.exists()


def test_8_what_came_of_a_snapshot_goes_when_its_receiver_leads(led: Script) -> None:
    led.inject("a", "b", beat(piece(last=False, size=16, crc=crc32(b"snapshot"))))
    half = led["b"].guard._intake.reception
    assert half is not None
    led.elect("b", "c")
    assert not half.path.exists()


def test_8_a_snapshot_that_could_not_be_kept_is_asked_for_again(led: Script) -> None:
    far_back(led)
    assert led["a"].guard.holding_index == led["c"].installs[0].last_index, "the log is kept for who installs"
    led["c"].guard.abandon_install()
    led.run("abc", 300)
    assert len(led["c"].installs) == 2
    assert led["a"].wanted == 0, "the same one is sent again"
    assert led["c"].install()
    led.run("abc", 300)
    assert led["c"].machine.entries == led["a"].machine.entries
    assert led["a"].guard.holding_index is None


@pytest.mark.parametrize("kept", [True, False], ids=["installed", "abandoned"])
def test_8_a_leader_who_was_not_told_how_an_install_ended_learns_of_it(led: Script, kept: bool) -> None:
    """Who receives may not know its leader in that moment: it heard nothing for a while."""
    far_back(led)
    led["c"].core.forget_leader()
    if kept:
        assert led["c"].install()
    else:
        led["c"].guard.abandon_install()
    assert answers(led.under_way("c", "a"))[-1] == (False, -1), "of the pieces only"
    led.run("abc", 300)
    if not kept:
        assert len(led["c"].installs) == 2
        assert led["c"].install()
        led.run("abc", 300)
    assert led["c"].machine.entries == led["a"].machine.entries
    assert led["a"].guard.holding_index is None


def test_8_a_snapshot_that_came_damaged_is_made_anew(led: Script) -> None:
    far_back(led)
    led["c"].guard.abandon_install(damaged=True)
    led.run("abc", 300)
    assert led["a"].wanted > 0
    assert len(led["c"].installs) == 1
    led["a"].give_snapshot()
    led.run("abc", 300)
    assert led["c"].install()
    led.run("abc", 300)
    assert led["c"].machine.entries == led["a"].machine.entries


def test_8_a_full_disk_drops_pieces_until_it_is_over(led: Script) -> None:
    led["b"].guard.rest_intake()
    led.inject("a", "b", beat(piece(crc=crc32(b"snapshot"))))
    assert led["b"].installs == []
    assert [m["reset"] for m in led.under_way("b", "a")] == [False], "answered, or it would be taken for dead"
    led["b"].guard.abandon_install()
    assert [m["reset"] for m in led.under_way("b", "a")] == [False, True]
    led.inject("a", "b", beat(piece(crc=crc32(b"snapshot"))))
    assert len(led["b"].installs) == 1


def test_16_pieces_that_are_not_written_yet_count_as_in_flight(led: Script) -> None:
    intake = led["b"].guard._intake
    intake.store = lambda reception: None
    data = bytes(UNWRITTEN_BYTES_MAX + 1)
    led.inject("a", "b", beat(piece(data=data, size=len(data) + 8, crc=crc32(data), last=False)))
    assert [m["early"] for m in led.under_way("b", "a")] == [True]
    led["b"].guard.on_pieces_written()
    assert len(led.under_way("b", "a")) == 1, "still behind"
    reception = intake.reception
    assert reception is not None
    reception.write()
    led["b"].guard.on_pieces_written()
    assert [m["early"] for m in led.under_way("b", "a")] == [True, False]


def test_10_without_a_snapshot_the_leader_sends_one_beat_and_goes_on(led: Script) -> None:
    leave_behind(led)
    led["a"].journal.cut_below(20)
    led.rejoin("c")
    led["a"].rewind("c", 3)
    led["a"].send()
    assert led["a"].wanted == 1, "asked for once, for one follower"
    assert len(led.under_way("a", "c")) == 1
    led.run("abc", 200)
    assert led["a"].leads
    led.tick("a", after_ms=70)
    assert [m["serialized"] for m in led.under_way("a", "c")] == [None], "muted until there is one"
    assert led["c"].core.leader_id == "a", "and kept alive by plain beats"


# ---------------------------------------------------------------- 11, 12: elections


def test_11_a_node_that_was_cut_off_does_not_depose_the_leader(led: Script) -> None:
    led.isolate("c")
    led.run("abc", 3000)
    term = led["a"].core.term
    led.rejoin("c")
    led.run("abc", 1000)
    assert led["a"].leads
    assert led["a"].core.term == term


def test_11_a_node_that_is_cut_off_knows_of_no_leader(led: Script) -> None:
    led.isolate("c")
    led.run("abc", 3000)
    assert led["c"].core.leader_id is None
    led.rejoin("c")
    led.run("abc", 1000)
    assert led["c"].core.leader_id == "a"


def test_11_a_leader_that_retires_leaves_it_to_the_others(led: Script) -> None:
    led["a"].guard.retire()
    assert not led["a"].leads
    led.run("abc", 3000)
    (leader,) = [node for node in "abc" if led[node].leads]
    assert leader != "a"
    assert led["a"].core.leader_id == leader
    led.isolate("a")
    led.run("abc", 3000)
    led.rejoin("a")
    led.run("abc", 1000)
    assert led[leader].leads


def test_11_a_pre_vote_is_refused_while_the_leader_is_heard(led: Script) -> None:
    question = {"type": "pre_vote", "id": 7, "term": 2, "last_log_index": 99, "last_log_term": 1}
    led.tick("a", after_ms=61)
    led.deliver("a", "b")
    led.links["b", "c"].clear()
    led.inject("c", "b", question)
    led.clock.advance(500)
    led.inject("c", "b", question)
    assert [m["ok"] for m in led.under_way("b", "c")] == [False, True]


def test_11_a_vote_with_a_newer_term_does_not_depose_a_leader_that_is_heard(led: Script) -> None:
    led.tick("a", after_ms=61)
    led.deliver("a", "b")
    led.inject("c", "b", {"type": "request_vote", "term": 9, "last_log_index": 99, "last_log_term": 8})
    assert led["b"].core.term == 1


def test_11_those_left_behind_learn_the_newer_term(led: Script) -> None:
    led["b"].core.step_down(7)
    led.tick("a", after_ms=61)
    led.deliver("a", "b")
    assert kinds(led.under_way("b", "a"))[-1] == "term_hint"
    led.deliver("b", "a")
    assert not led["a"].leads
    assert led["a"].core.term == 7


def test_11_after_a_pause_the_network_is_read_before_the_timers(led: Script) -> None:
    led.tick("b")
    led.clock.advance(2000)
    led.tick("b")
    led.tick("b")
    assert "pre_vote" not in kinds(led.under_way("b", "a"))


def test_12_a_vote_is_given_again_to_the_same_candidate(script: Script) -> None:
    request = {"type": "request_vote", "term": 5, "last_log_index": 1, "last_log_term": 0}
    script.inject("a", "b", request)
    script.inject("a", "b", request)
    script.inject("c", "b", request)
    assert kinds(script.under_way("b", "a")) == ["response_vote"] * 2
    assert script.under_way("b", "c") == []


def test_12_a_vote_is_counted_once(tmp_path: Path) -> None:
    script = Script(tmp_path, size=5)
    script.clock.advance(1000)
    script.stand("a", "b", "c")
    vote = {"type": "response_vote", "term": script["a"].core.term}
    script.inject("b", "a", vote)
    script.inject("b", "a", vote)
    assert not script["a"].leads
    script.inject("c", "a", vote)
    assert script["a"].leads


# ---------------------------------------------------------------- 13, 14, 15, 16, 17, 19


def test_13_what_waits_in_the_queue_never_reaches_a_later_reign(led: Script) -> None:
    core = led["a"].core
    core.enter()
    core.propose(b"late", lambda result, reason: led["a"].reasons.__setitem__(b"late", reason))
    core.step_down(5)
    assert led["a"].reasons.keys() == {b"late"}
    led["a"].sync()
    led.elect("a", "b", "c")
    led.run("abc", 200)
    assert led["a"].machine.entries == []


@pytest.mark.parametrize("kind", ["apply_command", "apply_command_response", "timeout_now", "nonsense", None, 7])
def test_13_commands_of_others_are_not_taken(led: Script, kind: object) -> None:
    led.inject("b", "a", {"type": kind, "command": b"\0x", "request_id": 1, "term": 99})
    led.run("abc", 200)
    assert led["a"].machine.entries == []
    assert led["a"].leads


def test_14_strangers_are_not_heard(led: Script) -> None:
    led.inject("stranger", "b", append(led, prev=2, entries=[(b"\0x", 3, 9)]) | {"term": 9})
    led.inject("stranger", "b", {"type": "request_vote", "term": 9, "last_log_index": 9, "last_log_term": 9})
    assert led["b"].last == 2
    assert led["b"].core.term == 1


@pytest.mark.parametrize("size", [ENTRY_BYTES_MAX, ENTRY_BYTES_MAX - 1, BATCH_BYTES // 2, 65_536 * 2 - 10])
def test_15_the_largest_entries_are_sent_whole(led: Script, size: int) -> None:
    led["a"].propose(bytes(size))
    led["a"].send()
    led.run("abc", 200)
    assert all(node.machine.entries == [bytes(size)] for node in led.nodes.values())
    assert led["a"].reasons == {bytes(size): SUCCESS}


def test_16_what_is_in_flight_to_a_peer_is_bounded(led: Script) -> None:
    big = [bytes([number]) * 1_000_000 for number in range(40)]
    for entry in big:
        led["a"].propose(entry)
    for _ in range(5):
        led["a"].send()
    queued = sum(len(body) for body in led.links["a", "b"])
    assert queued < WINDOW_BYTES + 2 * BATCH_BYTES
    led.run("abc", 1000)
    assert led["b"].machine.entries == big
    assert led["a"].leads


def test_16_a_peer_whose_window_is_full_still_hears_beats(led: Script) -> None:
    for number in range(20):
        led["a"].propose(bytes([number]) * 1_000_000)
    led["a"].send()
    before = len(led.links["a", "b"])
    led.tick("a", after_ms=70)
    assert [m["serialized"] for m in led.under_way("a", "b")[before:]] == [None]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "append_entries"},
        beat(None) | {"prevLogIdx": "2", "prevLogTerm": 1},
        beat(None) | {"prevLogIdx": 2, "prevLogTerm": 1, "entries": 5},
        {"type": "append_entries", "term": 1, "seq": 1, "commit_index": 1, "serialized": {"index": 5}},
        {"type": "next_node_idx", "term": 1, "seq": 1, "next_node_idx": 3, "reset": 0, "success": True},
        {"type": "request_vote", "term": True, "last_log_index": 1, "last_log_term": 1},
    ],
)
def test_17_a_malformed_message_costs_its_sender_the_connection(led: Script, message: dict[str, object]) -> None:
    led.inject("a", "b", message)
    assert len(led["b"].dropped) == 1
    assert led["b"].last == 2


def test_19_a_read_waits_for_answers_to_what_was_sent_after_it(led: Script) -> None:
    led.tick("a", after_ms=61)
    led.deliver("a", "b")
    round_ = led["a"].guard.begin_round()
    led.deliver("b", "a")
    assert not round_.confirmed, "an answer to an older beat proves nothing"
    led.deliver("a", "b")
    led.deliver("b", "a")
    assert round_.confirmed
    assert round_.read_index == 2


def test_19_a_deposed_leader_confirms_no_read(led: Script) -> None:
    led.isolate("a")
    led.elect("b", "c")
    led.rejoin("a")
    round_ = led["a"].guard.begin_round()
    led.settle()
    assert not round_.confirmed
    assert not led["a"].leads


def test_19_a_new_leaders_read_waits_for_its_own_first_entry(led: Script) -> None:
    led.isolate("a")
    led.elect("b", "c")
    assert led["b"].guard.begin_round().read_index == 3


def test_answers_carry_the_senders_clock(led: Script) -> None:
    assert {peer for peer, _ in led["a"].clocks} == {"b", "c"}
    led.tick("a", after_ms=61)
    led.clock.wall_offset_ms = 5_000
    led.deliver("a", "b")
    led.deliver("b", "a")
    assert led["a"].clocks[-1] == ("b", led.clock.wall_ms())
