"""A data directory belongs to one node, to one process at a time, and loses nothing unnoticed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from horae_storage.directory import Directory, is_new, open_directory, require_usable
from horae_storage.errors import DirectoryInUse, DirectoryUnusable, ForeignDirectory
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.raft_log import LmdbRaftLog

HOLDER = """
import sys
from pathlib import Path
from horae_storage.directory import open_directory
directory = open_directory(Path(sys.argv[1]), "c", "a")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


def initialise(path: Path) -> Directory:
    """A directory with state and log in it, closed."""
    directory = open_directory(path, "c", "a")
    LmdbStore(directory.state).close()
    LmdbRaftLog(directory.log, lambda *_: None).close()
    directory.mark_initialised()
    directory.close()
    return directory


def test_is_made_and_opened_again(path: Path) -> None:
    directory = open_directory(path, "c", "a")
    assert [p.is_dir() for p in (directory.state, directory.log, directory.snapshots)] == [True] * 3
    assert not directory.initialised
    directory.close()
    directory.close()
    open_directory(path, "c", "a").close()


def test_is_new_until_it_is_made(path: Path) -> None:
    assert is_new(path)
    require_usable(path)
    assert not path.parent.exists(), "looked at only"
    open_directory(path, "c", "a").close()
    assert not is_new(path)


def test_what_could_not_be_made_is_said_before(path: Path) -> None:
    path.parent.write_text("a file")
    with pytest.raises(DirectoryUnusable, match="Not a directory"):
        require_usable(path)
    path.parent.unlink()
    (path / "log").mkdir(parents=True)
    (path / "log" / "log.mdb").write_bytes(b"data")
    with pytest.raises(DirectoryUnusable, match=r"holds data, but identity\.json is missing"):
        require_usable(path)


@pytest.mark.parametrize(("cluster", "node_id"), [("other", "a"), ("c", "b")])
def test_of_another_node_is_refused(path: Path, cluster: str, node_id: str) -> None:
    open_directory(path, "c", "a").close()
    with pytest.raises(ForeignDirectory, match=r"node 'a' of cluster 'c'.*choose another directory"):
        open_directory(path, cluster, node_id)
    open_directory(path, "c", "a").close()


def test_in_use_here_is_refused(path: Path) -> None:
    directory = open_directory(path, "c", "a")
    with pytest.raises(DirectoryInUse, match="stop it"):
        open_directory(path, "c", "a")
    directory.close()
    open_directory(path, "c", "a").close()


def test_in_use_by_another_process_is_refused_until_that_is_killed(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryInUse):
            open_directory(path, "c", "a")
        holder.kill()
        holder.wait()
        open_directory(path, "c", "a").close()


def test_that_is_a_file_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("a file")
    with pytest.raises(DirectoryUnusable, match="choose another"):
        open_directory(path, "c", "a")


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"format_version": 1, "cluster": 3}', b'{"cluster": "\xff"}', b"\xff", b"[" * 100_000],
)
def test_damaged_identity_is_refused(path: Path, content: bytes) -> None:
    open_directory(path, "c", "a").close()
    (path / "identity.json").write_bytes(content)
    with pytest.raises(DirectoryUnusable, match=r"identity\.json is damaged; keep the files"):
        open_directory(path, "c", "a")


def test_of_a_newer_program_is_refused(path: Path) -> None:
    open_directory(path, "c", "a").close()
    identity = json.loads((path / "identity.json").read_text())
    (path / "identity.json").write_text(json.dumps(identity | {"format_version": 2}))
    with pytest.raises(DirectoryUnusable, match="format 2"):
        open_directory(path, "c", "a")


def test_data_without_an_identity_is_refused(path: Path) -> None:
    initialise(path)
    (path / "identity.json").unlink()
    with pytest.raises(DirectoryUnusable, match=r"identity\.json is missing"):
        open_directory(path, "c", "a")


@pytest.mark.parametrize("name", ["state", "log"])
@pytest.mark.parametrize("whole", [True, False])
def test_data_gone_missing_is_refused(path: Path, name: str, whole: bool) -> None:
    initialise(path)
    assert open_directory_twice(path).initialised
    shutil.rmtree(path / name)
    if not whole:
        (path / name).mkdir()
    with pytest.raises(DirectoryUnusable, match=f"{name} is missing"):
        open_directory(path, "c", "a")


def open_directory_twice(path: Path) -> Directory:
    open_directory(path, "c", "a").close()
    directory = open_directory(path, "c", "a")
    directory.close()
    return directory


def test_half_finished_files_are_swept(path: Path) -> None:
    directory = initialise(path)
    half = [folder / "x.tmp" for folder in (path, directory.state, directory.log, directory.snapshots)]
    for file in half:
        file.write_bytes(b"half")
    kept = directory.snapshots / "whole.snapshot"
    kept.write_bytes(b"whole")
    open_directory(path, "c", "a").close()
    assert [file.exists() for file in half] == [False] * 4
    assert kept.exists()
