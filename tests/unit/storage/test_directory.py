"""A data directory belongs to one node, to one process at a time, and loses nothing unnoticed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.damage import each_flipped_bit

from horae_node.voters import VOTERS_FILE
from horae_storage import peer_book
from horae_storage.directory import Directory, Origin, is_new, open_directory, require_usable, restoring
from horae_storage.errors import DirectoryInUse, DirectoryUnusable, ForeignDirectory
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.raft_log import LmdbRaftLog
from horae_storage.sealed_json import sealed, unsealed
from horae_storage.vacancy import LOCK_NAME, RESTORING_NAME, RUNNING_NAME

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
    with pytest.raises(DirectoryUnusable, match=r"log holds data, but identity\.json is missing; keep the files"):
        require_usable(path)


def test_what_it_holds_is_its_owners_alone(path: Path) -> None:
    opened = open_directory(path, "c", "n1")
    opened.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


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
    with pytest.raises(DirectoryUnusable, match="choose another, or move away what stands in its place"):
        open_directory(path, "c", "a")


def test_no_other_is_advised_in_the_place_of_a_nodes_own(path: Path) -> None:
    initialise(path)
    shutil.rmtree(path / "snapshots")
    (path / "snapshots").write_text("a file")
    with pytest.raises(DirectoryUnusable, match=r"File exists: mend its owner, mode or disk$"):
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


def test_one_flipped_bit_of_the_identity_is_refused(path: Path) -> None:
    """It was believed, and the node refused by its peers, or told to mend its configuration."""
    open_directory(path, "c", "a").close()
    file = path / "identity.json"
    whole = file.read_bytes()
    for damaged in each_flipped_bit(file):
        with contextlib.suppress(ValueError):
            if unsealed(damaged) == unsealed(whole):
                continue  # a line break became another blank
        with pytest.raises(DirectoryUnusable, match=r"identity\.json is damaged"):
            open_directory(path, "c", "a")


def test_an_identity_of_before_there_were_sums_is_taken(path: Path) -> None:
    open_directory(path, "c", "a").close()
    file = path / "identity.json"
    file.write_text(json.dumps(unsealed(file.read_bytes())))
    open_directory(path, "c", "a").close()


def test_of_a_newer_program_is_refused(path: Path) -> None:
    open_directory(path, "c", "a").close()
    identity = unsealed((path / "identity.json").read_bytes())
    (path / "identity.json").write_bytes(sealed({**identity, "format_version": 2}))
    with pytest.raises(DirectoryUnusable, match="format 2"):
        open_directory(path, "c", "a")


def test_data_without_an_identity_is_refused(path: Path) -> None:
    initialise(path)
    (path / "identity.json").unlink()
    before = sorted(path.rglob("*"))
    with pytest.raises(
        DirectoryUnusable, match=r"identity\.json is missing; keep the files.*'A node whose disk was lost'"
    ):
        open_directory(path, "c", "a")
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("name", [VOTERS_FILE, peer_book.FILE_NAME, RUNNING_NAME])
def test_what_a_node_left_is_never_taken_for_empty(path: Path, name: str) -> None:
    """Its state and log were removed by hand, with the identity: it would have forgotten its votes."""
    path.mkdir(parents=True)
    (path / name).write_text("[]")
    with pytest.raises(DirectoryUnusable, match=f"{name} holds data, but identity.json is missing; keep the files"):
        open_directory(path, "c", "a")
    with pytest.raises(DirectoryUnusable, match=f"is not empty, it holds {name}"), restoring(path, "c", "a"):
        pytest.fail("it was taken")


def put_file(path: Path) -> None:
    (path / "notes.txt").write_text("theirs")


def put_folder(path: Path) -> None:
    (path / "notes.txt").mkdir()


def put_temporary(path: Path) -> None:
    (path / "notes.txt.tmp").write_text("theirs")


def put_rescued_file(path: Path) -> None:
    (path / "lost+found").mkdir()
    (path / "lost+found" / "#12").write_text("theirs")


def put_file_of_our_name(path: Path) -> None:
    (path / "state").write_text("theirs")


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (put_file, "notes.txt"),
        (put_folder, "notes.txt"),
        (put_temporary, "notes.txt.tmp"),
        (put_rescued_file, r"lost\+found"),
        (put_file_of_our_name, "state"),
    ],
)
def test_a_new_one_with_something_in_it_is_refused_untouched(
    path: Path, put: Callable[[Path], None], name: str
) -> None:
    path.mkdir(parents=True)
    put(path)
    before = sorted(path.rglob("*"))
    with pytest.raises(DirectoryUnusable, match=f"it holds {name}: give this node a directory of its own, or move"):
        open_directory(path, "c", "a")
    with pytest.raises(DirectoryUnusable, match=f"it holds {name}: give this node"):
        require_usable(path)
    with pytest.raises(DirectoryUnusable, match=f"it holds {name}: a restore fills"), restoring(path, "c", "a"):
        pytest.fail("it was taken")
    assert sorted(path.rglob("*")) == before


def test_one_that_is_somebodys_may_hold_more(path: Path) -> None:
    initialise(path)
    put_file(path)
    open_directory(path, "c", "a").close()
    assert (path / "notes.txt").exists()


@pytest.mark.parametrize("names", [["lost+found"], ["lost+found", "state/lost+found", "log"], []])
def test_a_new_file_systems_own_folder_counts_as_empty(path: Path, names: list[str]) -> None:
    path.mkdir(parents=True)
    for name in names:
        (path / name).mkdir(parents=True)
    (path / LOCK_NAME).touch()
    (path / "identity.json.tmp").write_text("half")
    require_usable(path)
    open_directory(path, "c", "a").close()
    assert not (path / "identity.json.tmp").exists()


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


def fill(directory: Directory) -> None:
    LmdbStore(directory.state).close()
    LmdbRaftLog(directory.log, lambda *_: None).close()


def test_a_restored_one_is_the_nodes_at_the_end_of_the_block(path: Path) -> None:
    with restoring(path, "c", "a") as directory:
        fill(directory)
        assert is_new(path)
        with pytest.raises(DirectoryUnusable, match="was broken off"):
            require_usable(path)
        with pytest.raises(DirectoryInUse), restoring(path, "c", "a"):
            pytest.fail("two at once")
    assert not (path / RESTORING_NAME).exists()
    opened = open_directory(path, "c", "a")
    assert opened.initialised
    opened.close()
    with (
        pytest.raises(DirectoryUnusable, match="belongs to node 'a' of cluster 'c' already"),
        restoring(path, "d", "b"),
    ):
        pytest.fail("it was taken")
    open_directory(path, "c", "a").close()


def require_undone(path: Path, error: BaseException) -> None:
    """A restore into `path` ends with the error."""

    def fail() -> None:
        with restoring(path, "c", "a") as directory:
            fill(directory)
            raise error

    with pytest.raises(DirectoryUnusable if isinstance(error, OSError) else type(error)):
        fail()


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_restore_that_fails_leaves_nothing(path: Path, exists: bool, error: BaseException) -> None:
    if exists:
        path.mkdir(parents=True)
    require_undone(path, error)
    assert path.exists() is exists
    assert not exists or [it.name for it in path.iterdir()] == [LOCK_NAME]
    with restoring(path, "c", "a") as directory:
        fill(directory)


def test_what_a_crash_left_of_a_restore_is_removed_by_the_next(path: Path) -> None:
    (path / "state").mkdir(parents=True)
    (path / RESTORING_NAME).touch()
    old = path / "state" / "00000007.mdb"
    old.write_bytes(b"half")
    with pytest.raises(DirectoryUnusable, match="was broken off: run `horae restore` into it again"):
        open_directory(path, "c", "a")
    with restoring(path, "c", "a") as directory:
        assert not old.exists()
        fill(directory)
    open_directory(path, "c", "a").close()


def test_a_mark_that_outlived_its_restore_is_swept(path: Path) -> None:
    """The identity is there, so all is: the crash came between the two."""
    initialise(path)
    (path / RESTORING_NAME).touch()
    open_directory(path, "c", "a").close()
    assert not (path / RESTORING_NAME).exists()


def test_what_was_restored_is_remembered_and_copied_to_no_other(path: Path) -> None:
    with restoring(path, "c", "a") as directory:
        fill(directory)
        directory.note_origin(Origin("ab" * 32, 40))
    opened = open_directory(path, "c", "a")
    assert opened.origin == Origin("ab" * 32, 40)
    opened.begin_anew()
    anew = opened.origin
    opened.close()
    assert anew is not None
    assert (anew.sha256 != "ab" * 32, anew.last_index) == (True, 0)
    opened = open_directory(path, "c", "a")
    assert opened.origin == anew
    opened.close()
    made = open_directory(path.parent / "made", "c", "a")
    assert made.origin is None
    made.close()


@pytest.mark.parametrize("origin", [7, "ab", {}, {"sha256": "ab"}, {"sha256": 7, "last_index": 7}, None])
def test_an_origin_that_is_none_is_damage(path: Path, origin: object) -> None:
    initialise(path)
    identity = path / "identity.json"
    identity.write_text(json.dumps(json.loads(identity.read_text()) | {"origin": origin}))
    with pytest.raises(DirectoryUnusable, match=r"identity\.json is damaged"):
        open_directory(path, "c", "a")


def test_root_follows_no_link_in_anothers_directory(path: Path, tmp_path: Path) -> None:
    """Its owner could have root empty any directory, and give him what is in it."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED FOR WANT OF RIGHTS: only root works in another's directory")
    kept = tmp_path / "elsewhere" / "kept"
    kept.parent.mkdir()
    kept.write_text("root's")
    path.mkdir(parents=True)
    (path / RESTORING_NAME).touch()
    (path / "state").symlink_to(kept.parent)
    os.chown(path, 65534, 65534)
    with pytest.raises(DirectoryUnusable, match="state is a link in another user's"), restoring(path, "c", "a"):
        pytest.fail("it was taken")
    assert kept.read_text() == "root's"
    assert (kept.stat().st_uid, kept.parent.stat().st_uid) == (0, 0)


def test_folders_that_cannot_be_removed_are_emptied_and_used(path: Path, tmp_path: Path) -> None:
    """As with a mount point: a link to another disk."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.mkdir(parents=True)
    (path / "log").symlink_to(elsewhere)
    require_undone(path, KeyboardInterrupt())
    assert list(elsewhere.iterdir()) == []
    with restoring(path, "c", "a") as directory:
        fill(directory)
    assert list(elsewhere.iterdir()) != []
