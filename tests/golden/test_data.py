"""Data directories that released builds wrote are opened by today's: the same jobs, the same digest; and what a newer
build wrote stops the node with one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgpack
import pytest
from tests.golden.make_data import CLUSTER, NODE, TERM, described, open_applier, replay
from tests.helpers.cluster import make_nodes
from tests.helpers.refusal import REFUSED, run_node

from horae_node.core.invariants import check_invariants
from horae_node.core.model import KNOWN_VERSIONS
from horae_node.core.tables import META
from horae_node.raft import boot
from horae_node.raft.pysyncobj_journal import ENTRY_REGULAR
from horae_storage.directory import open_directory
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog

DATA = Path(__file__).parent / "data"
VERSIONS = sorted(path.name for path in DATA.iterdir())


def open_log(directory: Path) -> LmdbRaftLog:
    return LmdbRaftLog(directory / "log", lambda callback, *_: None, create=False)


def test_there_is_one_of_each_version() -> None:
    assert VERSIONS == ["v1", "v2", "v3", "v4", "v5"]


def require_equal(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    """The same records, with the same values in every field that there was then."""
    assert found.keys() == expected.keys()
    for name, fields in expected.items():
        assert {key: found[name][key] for key in fields} == fields, name


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_opened_and_its_log_replayed(tmp_path: Path, version: str) -> None:
    path = tmp_path / "data"
    shutil.copytree(DATA / version, path)
    directory = open_directory(path, CLUSTER, NODE)
    assert directory.initialised
    directory.require_sound()
    applier = open_applier(LmdbStore(directory.state, create=False))
    log = open_log(path)
    journal, _ = boot.open_journal(log, applier)
    assert applier.applied_index < journal.last_index, "something is left to replay"
    replay(applier, journal.entries(journal.first_index, journal.last_index), journal.last_index)
    require_equal(described(applier), json.loads((path / "expected.json").read_text()))
    assert check_invariants(applier.view) == []
    log.close()
    applier.close()
    directory.close()


def entry_of_version_2(path: Path) -> None:
    append(path, msgpack.packb((2, 1, 0, 0, [])))


def entry_with_a_new_command(path: Path) -> None:
    append(path, msgpack.packb((1, 1, 0, 0, [(99, "what is this")])))


def command_of_another_shape(path: Path) -> None:
    append(path, msgpack.packb((1, 1, 0, 0, [(9, "job-1", "one field more")])))


def raise_to_a_newer_version(path: Path) -> None:
    append(path, msgpack.packb((1, 1, 0, 0, [(15, KNOWN_VERSIONS.newest + 1)])))


def append(path: Path, entry: bytes) -> None:
    log = open_log(path)
    last = log.load().entries[-1].log_index
    log.append([LogEntry(ENTRY_REGULAR + entry, last + 1, TERM)])
    log.seal()
    log.close()


def state_of_a_newer_version(path: Path) -> None:
    store = LmdbStore(path / "state")
    row = store.txn.get(META)
    assert row is not None
    store.txn.put(META, (KNOWN_VERSIONS.newest + 1, *row[1:]))
    store.commit()
    store.close()


@pytest.mark.cluster
@pytest.mark.parametrize(
    "newer",
    [
        entry_of_version_2,
        entry_with_a_new_command,
        command_of_another_shape,
        raise_to_a_newer_version,
        state_of_a_newer_version,
    ],
)
def test_what_a_newer_build_wrote_stops_the_node_in_one_line(tmp_path: Path, newer: object) -> None:
    node = make_nodes(tmp_path, [NODE])[0]
    node.write_config([node], cluster=CLUSTER)
    shutil.copytree(DATA / "v1", node.data_dir)
    newer(node.data_dir)  # type: ignore[operator]
    done = run_node(node)
    assert done.returncode == REFUSED, done
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("horae: ")]
    assert "upgrade this node" in line
