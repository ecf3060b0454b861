"""Stories that break the library as shipped (docs/consensus.md), told step by step against the guarded one."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from tests.unit.raft.messages import append, offer_snapshot
from tests.unit.raft.parts import ListMachine
from tests.unit.raft.script import Script, ScriptNode

from horae_node.errors import ConfigError
from horae_node.raft.port import SnapshotInfo
from horae_node.raft.pysyncobj_core import NOT_APPLIED, SUCCESS
from horae_node.raft.snapshots import PIECE_BYTES, InstallNote
from horae_storage.log_port import LogEntry
from horae_storage.memory_log import MemoryRaftLog


def numbered(prefix: str, count: int, size: int = 0) -> list[bytes]:
    return [f"{prefix}{number}".encode().ljust(size, b".") for number in range(count)]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    made = Script(tmp_path)
    made.elect("a", "b", "c")
    made.run("abc", 100)
    return made


def acknowledged(node: ScriptNode) -> list[bytes]:
    return [entry for entry, reason in node.reasons.items() if reason == SUCCESS]


def test_7_s1_a_deposed_leader_does_not_commit_its_own_tail_on_a_snapshot_piece(script: Script) -> None:
    script.isolate("a")
    script["a"].write(*numbered("x", 3))
    script.elect("b", "c")
    script["b"].write(*numbered("y", 20, 40_000))
    script.run("bc", 400)
    offer_snapshot(script, "b", "a", first_index=15)
    assert script.deliver("b", "a", 1) == 1
    script.tick("a")
    assert script["a"].machine.entries == []
    assert acknowledged(script["a"]) == []
    script.run("abc", 200)
    assert script["a"].install()
    script.run("abc", 300)
    assert script["a"].machine.entries == script["b"].machine.entries == numbered("y", 20, 40_000)


def test_3_s2_batches_sent_again_truncate_nothing_that_was_acknowledged(script: Script) -> None:
    script.isolate("c")
    entries = numbered("e", 3, 900_000)
    for entry in entries:
        script["a"].write(entry)
        script["a"].send()
    script.deliver("a", "b")
    assert script["b"].last == 5
    script.deliver("b", "a", 1)
    # What the library would send again after that first answer, were its position moved back.
    first = script["a"].journal.entries(3, 3)
    again = append(script, prev=2, entries=[tuple(entry) for entry in first])
    script["a"].send()
    script.deliver("b", "a")
    for _ in entries:
        script.tick("a")
    assert acknowledged(script["a"]) == entries
    script.inject("a", "b", again)
    script.crash("a")
    script.connect("b", "c")
    script.elect("b", "c")
    script.run("bc", 400)
    assert script["b"].machine.entries == script["c"].machine.entries == entries


def test_4_s3_an_answer_of_an_earlier_reign_commits_nothing_in_a_later_one(tmp_path: Path) -> None:
    script = Script(tmp_path, size=5)
    script.elect("a", "b", "c", "d", "e")
    script.run("abcde", 100)
    for other in "cde":
        script.disconnect("a", other)
    script["a"].write(*numbered("a", 5))
    script["a"].send()
    script.deliver("a", "b")
    old = script.under_way("b", "a")
    assert old[-1]["next_node_idx"] == 8
    for other in "cde":
        script.disconnect("b", other)
    script.elect("c", "d", "e")
    script.connect("a", "c")
    script.connect("b", "c")
    script.run("abcde", 200)
    script.isolate("c")
    for one, other in ("ad", "ae", "de"):
        script.connect(one, other)
    script.elect("a", "d", "e")
    script.disconnect("a", "e")
    script.disconnect("a", "b")
    script.connect("a", "b")
    script["a"].write(*numbered("b", 4))
    script["a"].send()
    script.deliver("a", "d")
    script.deliver("d", "a")
    script.links["a", "b"].clear()
    for message in old:
        script.inject("b", "a", message)
    script.tick("a")
    assert acknowledged(script["a"]) == []


def test_8_s5_a_snapshot_that_breaks_off_claims_nothing(script: Script) -> None:
    script.isolate("a")
    script["a"].write(*numbered("x", 60))
    script.elect("b", "c")
    entries = numbered("y", 20, PIECE_BYTES)
    script["b"].write(*entries)
    script.run("bc", 600)
    offer_snapshot(script, "b", "a", first_index=15)
    assert script.deliver("b", "a", 1) == 1
    script.disconnect("a", "b")
    script.connect("a", "b")
    script["b"].send()
    script.deliver("b", "a")
    script.deliver("a", "b")
    peer = script["b"].core.peers["a"]
    assert script["b"].core.match_index[peer] == 0
    for _ in range(3):
        script.run("abc", 300)
    assert script["a"].install()
    script.run("abc", 300)
    assert script["a"].machine.entries == entries
    assert script["b"].core.match_index[peer] == script["b"].last


def test_1_2_power_lost_with_acknowledgements_out_loses_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path)
    script.elect("a", "b", "c")
    script.run("abc", 100)
    script.auto_sync = False
    script.isolate("c")
    script["a"].propose(b"x")
    script["a"].send()
    script.deliver("a", "b")
    script.deliver("b", "a")
    script["a"].sync()
    script.tick("a")
    script.crash("b")  # its copy was not on its disk
    assert acknowledged(script["a"]) == [], "one disk is no majority"
    script.auto_sync = True
    script.restart("b")
    script.isolate("a")
    script.connect("b", "c")
    script.elect("b", "c")
    script.run("bc", 300)
    script.rejoin("a")
    script.run("abc", 600)
    assert [node.machine.entries for node in script.nodes.values()] == [[], [], []]
    assert script["a"].terms == script["b"].terms


def test_13_callbacks_of_a_leader_that_is_cut_off_all_come_within_the_fallback(script: Script) -> None:
    script.isolate("a")
    entries = numbered("w", 100)
    script["a"].write(*entries)
    script.run("a", 900)
    assert not script["a"].leads
    queued = [entry for entry, reason in script["a"].reasons.items() if reason in NOT_APPLIED]
    assert queued == [], "what is in the log may yet be committed: the adapter answers `unknown`"
    script.elect("b", "c")
    script.run("bc", 200)
    script.rejoin("a")
    script.run("abc", 600)
    assert acknowledged(script["a"]) == []


def test_6_a_conflict_with_more_than_a_batch_behind_it_is_soon_resolved(script: Script) -> None:
    script.isolate("a")
    script["a"].write(b"x")
    script.elect("b", "c")
    entries = numbered("y", 12, 900_000)
    script["b"].write(*entries)
    script.run("bc", 400)
    script.rejoin("a")
    script["b"].rewind("a", 4)
    script.run("abc", 600)
    assert script["a"].machine.entries == entries


def test_8_a_follower_far_back_takes_a_snapshot_and_keeps_what_follows_it(script: Script) -> None:
    script.isolate("c")
    entries = numbered("y", 40)
    script["a"].write(*entries)
    script.run("ab", 400)
    script["a"].give_snapshot()
    script["a"].journal.cut_below(30)
    script["a"].write(b"later")
    script.run("ab", 200)
    script.rejoin("c")
    script["a"].rewind("c", 3)
    script.run("abc", 300)
    assert script["c"].install()
    script.run("abc", 300)
    assert script["c"].machine.entries == [*entries, b"later"]
    assert script["c"].journal.first_index == 42


def test_8_a_new_leader_in_the_middle_of_a_transfer_sends_its_own_from_the_beginning(script: Script) -> None:
    script.isolate("c")
    entries = numbered("y", 20, PIECE_BYTES)
    script["a"].write(*entries)
    script.run("ab", 600)
    for node in "ab":
        script[node].give_snapshot()
        script[node].journal.cut_below(15)
    script.rejoin("c")
    script["a"].rewind("c", 3)
    script["a"].send()
    assert script.deliver("a", "c", 2) == 2, "a part of it has come"
    half = script["c"].guard._intake.reception
    assert half is not None
    assert half.path.exists()
    script.elect("b", "c")
    script["b"].rewind("c", 3)
    for _ in range(3):
        script.run("abc", 300)
    assert script["c"].install()
    script.run("abc", 300)
    assert script["c"].machine.entries == entries
    assert not half.path.exists(), "nothing of the older one is left"


def test_8_an_install_keeps_a_tail_that_extends_the_snapshot(script: Script) -> None:
    script["a"].write(*numbered("y", 10))
    script["a"].send()
    script.deliver("a", "b")
    assert script["b"].last == 12
    script["b"].guard.installing = snapshot_of(script, last_index=6, term=1)
    assert script["b"].install_now()
    assert script["b"].journal.first_index == 6
    assert script["b"].last == 12
    assert script.under_way("b", "a")[-1]["next_node_idx"] == 7, "the applied prefix, not the log's end"


def snapshot_of(script: Script, *, last_index: int, term: int) -> SnapshotInfo:
    path = script.directory / "a" / "made.snapshot"
    path.write_bytes(msgpack.packb((last_index, [])))
    return SnapshotInfo(path, last_index, term, term, path.stat().st_size, b"")


# ---------------------------------------------------------------- restarts between the two disks


def restart(script: Script, log: MemoryRaftLog, applied: int, note: tuple[int, int] | None = None) -> ScriptNode:
    if note is not None:
        InstallNote(script.directory / "a").write(*note)
    machine = ListMachine()
    machine.applied_index = machine.durable_index = applied
    return ScriptNode(script, "a", log, machine)


def log_with(entries: int) -> MemoryRaftLog:
    log = MemoryRaftLog()
    log.load()
    log.on_durable(lambda durable: None)
    log.append([LogEntry(b"\x01", index, 1) for index in range(1, entries + 1)])
    log.seal()
    log.sync()
    return log.crash()


@pytest.mark.parametrize(("index", "noted_term"), [(30, 1), (30, 4), (8, 4)])
def test_a_crash_between_the_installed_state_and_its_log_is_mended_at_the_start(
    script: Script, index: int, noted_term: int
) -> None:
    node = restart(script, log_with(10), applied=index, note=(index, noted_term))
    assert (node.journal.first_index, node.last, node.terms) == (index, index, [noted_term])


def test_a_note_left_over_from_a_finished_install_changes_nothing(script: Script) -> None:
    node = restart(script, log_with(10), applied=8, note=(8, 1))
    assert (node.journal.first_index, node.last) == (1, 10)


def test_a_crash_before_the_state_was_installed_changes_nothing(script: Script) -> None:
    node = restart(script, log_with(10), applied=8, note=(30, 4))
    assert (node.journal.first_index, node.last) == (1, 10)
    assert InstallNote(script.directory / "a").read() is None


@pytest.mark.parametrize(("entries", "applied"), [(10, 30), (0, 30)])
def test_a_state_and_a_log_of_different_times_do_not_start(script: Script, entries: int, applied: int) -> None:
    with pytest.raises(ConfigError, match=r"not of one time\..*'A node whose disk was lost'"):
        restart(script, log_with(entries), applied)


def test_a_restart_goes_on_from_the_applied_and_replays_only_what_is_known_to_be_committed(script: Script) -> None:
    script["a"].write(*numbered("e", 5))
    script.run("abc", 200)
    for node in script.nodes.values():
        node.machine.commit()
    script["a"].write(*numbered("f", 5))
    script.run("abc", 200)
    script.crash("c")
    script.restart("c")
    assert script["c"].machine.entries == numbered("e", 5)
    script.run("abc", 300)
    assert script["c"].machine.entries == numbered("e", 5) + numbered("f", 5)
