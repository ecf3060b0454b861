"""A restore fills the very directory that it is given, whoever owns it and whatever it is mounted on; and `kill -9` at
every step of it leaves nobody's directory, in which the next restore works, or all of the backup."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.cluster import Cluster, make_nodes
from tests.helpers.made_state import Made, find, make_snapshot
from tests.helpers.mounts import tmpfs
from tests.helpers.refusal import require_refusal, run_command, run_node
from tests.integration import restore_child

from horae_node.clock import SystemClock
from horae_node.restore import restore
from horae_storage import snapshot
from horae_storage.directory import is_new, open_directory
from horae_storage.errors import DirectoryUnusable
from horae_storage.vacancy import LOCK_NAME, RESTORING_NAME

pytestmark = pytest.mark.cluster

LAST_INDEX = 40
TERM = 7
NOBODY = 65534
STEPS_MIN = 40
SAMPLE = 4
"""Every fourth step is killed at in the default run, all of them in the slow one."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.integration.restore_child"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_snapshot(tmp_path_factory.mktemp("backup"), last_index=LAST_INDEX, term=TERM)


@pytest.fixture
def mount_point(tmp_path: Path) -> Iterator[Path]:
    with tmpfs(tmp_path / "mounted", 256, mode=0o750) as place:
        yield place


def restore_here(made: Made, directory: Path) -> None:
    restore(made.path, directory, cluster=restore_child.CLUSTER, node_id=restore_child.NODE, clock=SystemClock())


async def require_whole(made: Made, directory: Path) -> None:
    """A node's, initialised, with all of the backup, and nothing else in it."""
    opened = open_directory(directory, restore_child.CLUSTER, restore_child.NODE)
    assert opened.initialised
    opened.close()
    assert await find(directory) == (LAST_INDEX, made.digest)
    assert not (directory / RESTORING_NAME).exists()


def names_in(directory: Path) -> list[str]:
    """None where there is no such directory."""
    return [it.name for it in directory.glob("*")]


def identity_of(path: Path) -> tuple[int, int, int, int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


async def test_an_empty_mount_point_is_filled_and_a_node_starts_on_it(made: Made, mount_point: Path) -> None:
    (mount_point / "lost+found").mkdir(mode=0o700)
    before = identity_of(mount_point)
    done = run_command("restore", str(made.path), "--data", str(mount_point), "--node-id", "n1", "--cluster", "test2")
    assert done.returncode == 0, done
    assert identity_of(mount_point) == before
    async with Cluster(mount_point.parent / "home", 1, cluster="test2", data_dir=str(mount_point)) as cluster:
        assert (await cluster.api.call("GET", f"/v1/jobs/j{LAST_INDEX}")).expect(200)["state"] == "ready"
        await cluster.stop_all()
        assert cluster.check_logs() == []


async def test_a_symlink_to_an_empty_directory_is_followed(made: Made, tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir()
    link.symlink_to(place)
    restore_here(made, link)
    assert link.is_symlink()
    await require_whole(made, place)


async def test_a_missing_directory_is_made_with_those_above_it(made: Made, tmp_path: Path) -> None:
    restore_here(made, tmp_path / "deep" / "data")
    await require_whole(made, tmp_path / "deep" / "data")


async def test_the_directory_keeps_its_mode(made: Made, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o710)
    before = identity_of(place)
    restore_here(made, place)
    assert identity_of(place) == before
    await require_whole(made, place)


async def test_what_root_makes_in_anothers_directory_is_the_owners(made: Made, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("SKIPPED FOR WANT OF RIGHTS: only root works in another's directory")
    place = tmp_path / "place"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    place.chmod(0o555)
    before = identity_of(place)
    restore_here(made, place)
    assert identity_of(place) == before
    within = list(place.rglob("*"))
    assert len(within) >= 8
    assert {(it.stat().st_uid, it.stat().st_gid) for it in within} == {(NOBODY, NOBODY)}
    await require_whole(made, place)


def test_where_nobody_may_write_it_says_so(made: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for data, words in ((tmp_path / "file", "choose another"), (tmp_path / "file" / "data", "choose another")):
        done = run_command("restore", str(made.path), "--data", str(data), "--node-id", "n1", "--cluster", "b")
        require_refusal(done, str(data), "cannot be used", words)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-1], "is damaged, cut short or no backup at all"),
        (lambda data: b"", "is damaged, cut short or no backup at all"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "is damaged, cut short or no backup at all"),
        (lambda data: data[:-9] + b"\x09" + data[-8:], "has snapshot format 9"),
    ],
    ids=["short", "empty", "flipped", "newer"],
)
def test_a_backup_that_is_none_is_named_once(made: Made, tmp_path: Path, damage, words: str) -> None:
    file = tmp_path / "file.backup"
    file.write_bytes(damage(made.path.read_bytes()))
    place = tmp_path / "place"
    done = run_command("restore", str(file), "--data", str(place), "--node-id", "n1", "--cluster", "b")
    require_refusal(done, words)
    assert done.stderr.count(str(file)) == 1
    assert not place.exists()


class Noise:
    """What is no state, in a snapshot whose checksum is right."""

    def copy_to(self, path: Path) -> None:
        path.write_bytes(b"\xff" * 65536)


@pytest.mark.parametrize("exists", [True, False])
def test_a_restore_that_fails_half_way_leaves_the_directory_as_it_was(made: Made, tmp_path: Path, exists: bool) -> None:
    snapshot.write(Noise(), tmp_path / "file.backup", made.meta)
    place = tmp_path / "place"
    if exists:
        place.mkdir()
    done = run_command(
        "restore", str(tmp_path / "file.backup"), "--data", str(place), "--node-id", "n1", "--cluster", "b"
    )
    require_refusal(done, "cannot be read back, and was removed", "an older backup")
    assert place.exists() is exists
    assert set(names_in(place)) <= {LOCK_NAME}


def test_a_node_that_starts_where_a_restore_was_broken_off_says_what_to_do(tmp_path: Path) -> None:
    node = make_nodes(tmp_path, ["n1"])[0]
    (node.data_dir / "state").mkdir(parents=True)
    (node.data_dir / "state" / "00000001.mdb").write_bytes(b"half")
    (node.data_dir / RESTORING_NAME).touch()
    before = sorted(node.data_dir.rglob("*"))
    require_refusal(run_node(node), str(node.data_dir), "was broken off: run `horae restore` into it again")
    assert sorted(node.data_dir.rglob("*")) == before


def run_child(made: Made, directory: Path, kill_at: int) -> int | None:
    steps_file = directory.with_name("steps")
    process = CONTEXT.Process(target=restore_child.run, args=(made.path, directory, kill_at, steps_file))
    process.start()
    process.join(60)
    return process.exitcode


async def require_nothing_or_all(made: Made, directory: Path) -> str:
    """What was found, by a word; and that a restore works after all where there is nothing."""
    if not is_new(directory):
        found = "all"
    else:
        found = "nothing"
        if (directory / RESTORING_NAME).exists():
            found = "broken off"
            with pytest.raises(DirectoryUnusable, match="was broken off: run `horae restore` into it again"):
                open_directory(directory, restore_child.CLUSTER, restore_child.NODE)
        else:
            assert set(names_in(directory)) <= {LOCK_NAME}, "a node may start on it as on any empty one"
        restore_here(made, directory)
    await require_whole(made, directory)
    return found


async def kill_at_each(made: Made, tmp_path: Path, *, exists: bool, every: int) -> None:
    def place(name: str) -> Path:
        path = tmp_path / name / "data"
        path.parent.mkdir()
        if exists:
            path.mkdir()
        return path

    whole = place("whole")
    assert run_child(made, whole, 0) == 0
    await require_whole(made, whole)
    steps = int(whole.with_name("steps").read_text())
    assert steps >= STEPS_MIN, "too little was done to kill it in"
    seen = []
    for kill_at in [*range(1, steps, every), steps]:
        directory = place(f"killed-{kill_at}")
        assert run_child(made, directory, kill_at) == -signal.SIGKILL, kill_at
        seen.append(await require_nothing_or_all(made, directory))
        shutil.rmtree(directory.parent)
    order = ["nothing", "broken off", "all"]
    assert sorted(seen, key=order.index) == seen
    assert set(seen) == set(order)


@pytest.mark.parametrize("exists", [True, False])
async def test_killed_at_some_steps(made: Made, tmp_path: Path, exists: bool) -> None:
    await kill_at_each(made, tmp_path, exists=exists, every=SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("exists", [True, False])
async def test_killed_at_every_step(made: Made, tmp_path: Path, exists: bool) -> None:
    await kill_at_each(made, tmp_path, exists=exists, every=1)
