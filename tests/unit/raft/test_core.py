"""The contract with PySyncObj 0.3.17: each private name and field that we rely on, so that an upgrade fails here."""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf, syncobj

from horae_node.clock import ManualClock
from horae_node.errors import ConfigError, Fatal
from horae_node.raft import pysyncobj_core
from horae_node.raft.guard import MESSAGE_FIELDS
from horae_node.raft.port import ENTRY_BYTES_MAX, Timing
from horae_node.raft.pysyncobj_core import BATCH_BYTES, Core, Peer, require_pinned

FIELDS = [
    "commandsQueue",
    "commandsWaitingCommit",
    "conf",
    "connectedNodes",
    "lastResponseTime",
    "needLoadDumpFile",
    "noopIDx",
    "otherNodes",
    "raftCommitIndex",
    "raftCurrentTerm",
    "raftElectionDeadline",
    "raftLastApplied",
    "raftLeader",
    "raftLog",
    "raftMatchIndex",
    "raftNextIndex",
    "raftState",
    "readonlyNodes",
    "serializer",
    "votedForNodeId",
]
METHODS = [
    "applyLogEntries",
    "doApplyCommand",
    "generateRaftTimeout",
    "getCurrentLogIndex",
    "getEntries",
    "loadDumpFile",
    "sendAppendEntries",
    "setCurrentTerm",
    "setState",
    "tryLogCompaction",
]

SENT: dict[str, set[str]] = {
    "append_entries": {"type", "term", "commit_index", "entries", "prevLogIdx", "prevLogTerm"},
    "request_vote": {"type", "term", "last_log_index", "last_log_term"},
    "response_vote": {"type", "term"},
    "next_node_idx": {"type", "next_node_idx", "reset", "success"},
}


@pytest.fixture
def core() -> Core:
    class NoPieces:
        def next_piece(self, node_id: str) -> None:
            return None

    return Core(
        own_id="a",
        peer_ids=["b", "c"],
        timing=Timing(),
        clock=ManualClock(),
        rng=random.Random(1),
        pieces=NoPieces(),
        apply=lambda index, data: None,
        on_state=lambda old, new: None,
    )


def test_another_version_of_the_library_is_refused(tmp_path: Path) -> None:
    require_pinned()
    changed = tmp_path / "syncobj.py"
    changed.write_bytes(Path(syncobj.__file__).read_bytes() + b"#")
    with pytest.raises(ConfigError, match=r"0\.3\.17"):
        require_pinned(changed)


def test_the_names_that_are_used_are_the_names_listed_here() -> None:
    used = set(re.findall(r"_SyncObj__(\w+)", inspect.getsource(pysyncobj_core)))
    assert used == {*FIELDS, *METHODS}


def test_peers_of_one_hash_are_still_told_apart() -> None:
    one, other = "plumless", "buckeroo"  # a well-known collision of CRC-32
    assert hash(Peer(one)) == hash(Peer(other))
    assert Peer(one) != Peer(other)
    assert len({Peer(one), Peer(other), Peer(one)}) == 2
    assert (str(Peer(one)), Peer(one).id) == (one, one)


@pytest.mark.parametrize("name", FIELDS)
def test_the_library_has_the_field(core: Core, name: str) -> None:
    assert f"_SyncObj__{name}" in vars(core._obj)


@pytest.mark.parametrize("name", METHODS)
def test_the_library_has_the_method(name: str) -> None:
    assert callable(getattr(SyncObj, f"_SyncObj__{name}"))


@pytest.mark.parametrize("name", ["_applyCommand", "_checkCommandsToApply", "doTick"])
def test_the_library_has_the_open_method(name: str) -> None:
    assert callable(getattr(SyncObj, name))


@pytest.mark.parametrize(("kind", "fields"), SENT.items())
def test_the_library_sends_these_fields(kind: str, fields: set[str]) -> None:
    source = inspect.getsource(syncobj)
    bodies = re.findall(r"\{\s*'type': '" + kind + r"',[^{}]*\}", source)
    assert bodies
    assert any(set(re.findall(r"'(\w+)':", body)) == fields for body in bodies)


def test_every_message_of_the_library_that_is_taken_is_checked() -> None:
    for kind, fields in SENT.items():
        checked = {name for name, _ in MESSAGE_FIELDS[kind]}
        assert fields - checked <= {"type", "entries", "prevLogIdx", "prevLogTerm"}


def test_the_configuration_is_the_one_that_was_examined(core: Core) -> None:
    conf: Any = core._obj.conf
    expected = {
        "autoTick": False,
        "appendEntriesUseBatch": True,
        "commandsWaitLeader": False,
        "dynamicMembershipChange": False,
        "journalFile": None,
        "fullDumpFile": None,
        "serializer": None,
        "useFork": False,
        "password": None,
        "appendEntriesPeriod": 0.06,
        "raftMinTimeout": 0.4,
        "raftMaxTimeout": 0.8,
        "leaderFallbackTimeout": 0.8,
    }
    assert {name: getattr(conf, name) for name in expected} == expected
    assert vars(SyncObjConf()).keys() >= expected.keys()


def test_15_a_batch_holds_the_largest_entry_and_more() -> None:
    assert BATCH_BYTES > ENTRY_BYTES_MAX + 1


def test_no_dump_is_ever_loaded_by_the_library(core: Core) -> None:
    with pytest.raises(Fatal):
        core._obj._SyncObj__loadDumpFile(True)
