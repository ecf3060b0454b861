"""Rule 20 in its smallest forms: who counts, who stands, who is called up; and a roster as a peer tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.raft.messages import answer, kinds
from tests.unit.raft.script import Script

from horae_node.raft.members import Seats, addresses_of, book_as_told, book_of, seats_of
from horae_node.raft.port import Member, Roster
from horae_node.raft.pysyncobj_core import CANDIDATE, FOLLOWER

NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def led(tmp_path: Path) -> Script:
    """Four nodes: `a`, `b` and `c` vote, `d` learns; `a` leads."""
    script = Script(tmp_path, 4)
    for node_id in script.ids:
        others = frozenset("abc") - {node_id}
        learners = frozenset("d") - {node_id}
        script[node_id].guard.adopt(Seats(node_id != "d", others, learners, NOBODY))
    script.elect("a", "b", "c")
    script.settle()
    script.run("abcd", 100)
    assert [node.machine.applied_index for node in script.nodes.values()] == [2, 2, 2, 2]
    return script


def seats(voters: str, learners: str = "", acquaintances: str = "", *, own_votes: bool = True) -> Seats:
    return Seats(own_votes, frozenset(voters), frozenset(learners), frozenset(acquaintances))


def test_20_a_learners_acknowledgement_commits_nothing(led: Script) -> None:
    led["a"].propose(b"x")
    led["a"].send()
    led.settle("a", "d")
    led.tick("a")
    assert led["d"].last == 3
    assert led["a"].machine.entries == []
    led.settle("a", "b")
    led.tick("a")
    assert led["a"].machine.entries == [b"x"]


def test_20_a_learner_confirms_no_round_of_reads(led: Script) -> None:
    round_ = led["a"].guard.begin_round()
    led["a"].send()
    led.settle("a", "d")
    assert not round_.confirmed
    led["a"].send()
    led.settle("a", "b")
    assert round_.confirmed


def test_20_a_learners_clock_does_not_count(led: Script) -> None:
    assert {peer for peer, _ in led["a"].clocks} == {"b", "c"}


def test_20_a_leader_that_only_learners_hear_steps_down(led: Script) -> None:
    led.disconnect("a", "b")
    led.disconnect("a", "c")
    led.run("ad", 2000)
    assert not led["a"].leads


def test_20_a_learner_never_stands(led: Script) -> None:
    led.isolate("a")
    for _ in range(100):
        led.tick("d", after_ms=20)
    assert led["d"].core.leader_id is None
    assert kinds(led.under_way("d", "b")) == kinds(led.under_way("d", "c")) == []


def test_20_a_learner_grants_votes_that_count_for_nothing(led: Script) -> None:
    """Its own state may be older than the candidate's, in whose it votes."""
    led.isolate("a")
    led.disconnect("b", "c")
    led.clock.advance(2000)
    led.inject("b", "d", {"type": "request_vote", "term": 9, "last_log_index": 2, "last_log_term": 1})
    assert kinds(led.under_way("d", "b")) == ["response_vote"]
    for _ in range(100):
        led.tick("b", after_ms=20)
        led.settle("b", "d")
    assert not led["b"].leads


def test_20_a_learner_elects_nobody(led: Script) -> None:
    led.isolate("a")
    while "pre_vote" not in kinds(led.under_way("b", "c")):
        led.tick("b", after_ms=20)
    term = led["b"].core.term
    asked = next(message for message in led.under_way("b", "c") if message["type"] == "pre_vote")
    yes = {"type": "pre_vote_resp", "id": asked["id"], "ok": True, "term": term}
    led.inject("d", "b", yes)
    led.tick("b")
    assert led["b"].core.state == FOLLOWER
    led.inject("c", "b", yes)
    led.tick("b")
    assert led["b"].core.state == CANDIDATE
    led.inject("d", "b", {"type": "response_vote", "term": term + 1})
    assert not led["b"].leads
    led.inject("c", "b", {"type": "response_vote", "term": term + 1})
    assert led["b"].leads


def test_20_nobody_stands_before_it_has_applied_what_it_knows_to_be_committed(led: Script) -> None:
    led.isolate("a")
    led["b"].guard.commit_known = 3
    for _ in range(100):
        led.tick("b", after_ms=20)
    assert kinds(led.under_way("b", "c")) == []
    led["b"].guard.commit_known = 2
    for _ in range(10):
        led.tick("b", after_ms=20)
    assert "pre_vote" in kinds(led.under_way("b", "c"))


def test_20_entries_and_what_they_say_is_committed_get_durable_together(led: Script) -> None:
    led.auto_sync = False
    led["a"].propose(b"x")
    led["a"].sync()
    led["a"].send()
    led.deliver("a", "c")
    led["c"].sync()
    led.deliver("c", "a")
    led.tick("a")
    assert led["a"].core.commit == 3
    led["a"].propose(b"y")
    led["a"].sync()
    led["a"].send()
    led.deliver("a", "b")
    led["b"].sync()
    led.crash("b")
    led.restart("b")
    assert led["b"].last == 4
    assert led["b"].guard.commit_known == 3


def test_20_the_only_voter_commits_what_is_on_its_disk(led: Script) -> None:
    led.auto_sync = False
    led["a"].guard.adopt(seats("", "d"))
    led["a"].propose(b"x")
    led["a"].journal.seal()
    led.tick("a")
    assert led["a"].machine.entries == []
    led["a"].sync()
    led.tick("a")
    assert led["a"].machine.entries == [b"x"]


def test_20_the_only_voter_elects_itself(led: Script) -> None:
    led["b"].guard.adopt(seats(""))
    for _ in range(100):
        led.tick("b", after_ms=20)
    assert led["b"].leads
    assert led["b"].guard.begin_round().confirmed


def test_20_two_voters_need_both(led: Script) -> None:
    led["a"].guard.adopt(seats("b", "d"))
    led["a"].propose(b"x")
    led.tick("a")
    assert led["a"].machine.entries == []
    led["a"].send()
    led.settle("a", "b")
    led.tick("a")
    assert led["a"].machine.entries == [b"x"]


def test_20_a_promoted_node_counts_at_once(led: Script) -> None:
    led["a"].propose(b"x")
    led["a"].send()
    led.settle("a", "d")
    led["a"].guard.adopt(seats("bcd"))
    led.tick("a")
    assert led["a"].machine.entries == [], "two of four"
    led.settle("a", "b")
    led.tick("a")
    assert led["a"].machine.entries == [b"x"]


def test_20_a_leader_that_is_no_voter_any_more_steps_down(led: Script) -> None:
    led["a"].guard.adopt(seats("bc", "d", own_votes=False))
    led.tick("a")
    assert not led["a"].leads


def test_20_who_has_parted_is_neither_heard_nor_sent_to(led: Script) -> None:
    led["a"].guard.adopt(seats("bc"))
    led["a"].propose(b"x")
    led["a"].send()
    assert kinds(led.under_way("a", "d")) == []
    led.inject("d", "a", {"type": "term_hint", "term": 99})
    led["a"].guard.on_connection("d", False)
    assert led["a"].leads


def test_20_an_acquaintance_is_heard_and_not_counted(led: Script) -> None:
    led["d"].guard.adopt(seats("bc", acquaintances="a", own_votes=False))
    led["a"].propose(b"x")
    led["a"].send()
    led.settle()
    led.run("abcd", 100)
    assert led["d"].machine.entries == [b"x"]
    led["a"].guard.adopt(seats("bc", acquaintances="d"))
    led.inject("d", "a", answer(term=led["a"].core.term, seq=1, next_node_idx=4))
    led["a"].propose(b"y")
    led["a"].send()
    assert kinds(led.under_way("a", "d")) == []


# ---------------------------------------------------------------- handing over


def test_a_called_candidate_is_voted_for_though_a_leader_is_heard(led: Script) -> None:
    vote = {"type": "request_vote", "term": 5, "last_log_index": 2, "last_log_term": 1}
    led.inject("b", "c", vote)
    assert kinds(led.under_way("c", "b")) == []
    led.inject("b", "c", vote | {"called": True})
    assert kinds(led.under_way("c", "b")) == ["response_vote"]


def test_the_leader_calls_who_has_everything_only(led: Script) -> None:
    led["a"].propose(b"x")
    led["a"].send()
    handover = led["a"].guard.begin_handover("b", 1.0)
    assert handover is not None
    led["a"].guard.maybe_call(handover)
    assert "lead_now" not in kinds(led.under_way("a", "b"))
    led.settle("a", "b")
    led["a"].guard.maybe_call(handover)
    led["a"].guard.maybe_call(handover)
    assert kinds(led.under_way("a", "b")) == ["lead_now"]
    led.settle("a", "b")
    led.tick("b")
    led.settle()
    assert led["b"].leads
    assert led["b"].core.term == 2


def test_a_call_that_is_called_off_is_not_followed(led: Script) -> None:
    """A follower that was frozen while it was called deposed a healthy leader when it went on."""
    handover = led["a"].guard.begin_handover("b", 1.0)
    assert handover is not None
    led["a"].guard.call_off(handover)
    led["a"].guard.maybe_call(handover)
    led["a"].guard.call_off(handover)
    assert kinds(led.under_way("a", "b")) == ["lead_now", "lead_not"]
    led.settle("a", "b")
    led.tick("b")
    assert led["b"].core.term == 1


def test_a_call_that_lay_there_while_the_process_stood_still_is_none(led: Script) -> None:
    led.tick("b")
    led.clock.advance(1500)
    led.inject("a", "b", {"type": "lead_now", "term": 1})
    led.tick("b")
    led.settle()
    assert led["b"].core.term == 1


@pytest.mark.parametrize("node_id", ["a", "d", "z"])
def test_nobody_but_another_voter_is_handed_the_lead(led: Script, node_id: str) -> None:
    assert led["a"].guard.begin_handover(node_id, 1.0) is None


def test_a_call_is_followed_only_from_the_leader_of_the_term_and_only_for_a_while(led: Script) -> None:
    for caller, term in (("c", 1), ("a", 9)):
        led.inject(caller, "b", {"type": "lead_now", "term": term})
        led.tick("b")
        assert led["b"].core.term == 1
    led.inject("a", "b", {"type": "lead_now", "term": 1})
    led["b"].guard.commit_known = 3
    led.tick("b")
    assert led["b"].core.term == 1, "not before it has applied what is committed"
    led.clock.advance(1000)
    led["b"].guard.commit_known = 2
    led["b"].core.election_deadline = led.clock.monotonic() + 1
    led.tick("b")
    assert led["b"].core.term == 1, "too late"


# ---------------------------------------------------------------- rosters

N1, N2, N3, N4 = (Member(f"n{i}", f"h{i}:1", f"http://h{i}") for i in range(1, 5))


def test_seats_count_by_the_roster_and_know_by_the_book() -> None:
    roster, book = Roster(5, (N1, N2), (N3,)), Roster(9, (N1, N4._replace(raft_address="new:1")))
    assert seats_of("n1", roster, book) == Seats(True, frozenset({"n2"}), frozenset({"n3"}), frozenset({"n4"}))
    assert seats_of("n3", roster, book).own_votes is False
    assert addresses_of("n1", roster, book) == {"n2": "h2:1", "n3": "h3:1", "n4": "new:1"}


def test_a_book_is_told_and_understood() -> None:
    book = Roster(7, (N1, N2), (N3,), frozenset({"n9"}))
    assert book_of(book_as_told(book)) == book._replace(removed=frozenset())


@pytest.mark.parametrize(
    "told",
    [
        None,
        3,
        [],
        [1, 2, 3],
        ["1", [], []],
        [1, [["n1", "h:1"]], []],
        [1, [], [["n", "h:x", ""]]],
        [1, [["n", "h:65536", ""]], []],
        [1, [], [[1]]],
    ],
)
def test_what_is_no_book_is_none(told: object) -> None:
    assert book_of(told) is None
