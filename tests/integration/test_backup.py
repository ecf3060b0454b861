"""Out and in again: a backup of a working cluster, new clusters made of it, and a cluster of one made of a survivor."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, make_nodes, running_cluster
from tests.helpers.refusal import require_refusal, run_command

from horae_storage import snapshot

pytestmark = pytest.mark.cluster

NEW = "second"


async def horae(*args: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run_command, *args)


async def submit(api: Api, job_id: str, **keys: Any) -> None:
    (await api.call_until_answered("POST", "/v1/jobs", {"task": "t", "id": job_id, **keys})).expect(201)


async def claim(api: Api, worker: str = "w") -> dict[str, Any]:
    body = {"worker": worker, "queues": ["default"], "max_jobs": 1, "wait_seconds": 5}
    (job,) = (await api.call("POST", "/v1/claims", body)).expect(200)["jobs"]
    return dict(job)


async def restore_all(file: Path, nodes: list[NodeProcess]) -> None:
    for node in nodes:
        done = await horae("restore", str(file), "--data", str(node.data_dir), "--node-id", node.name, "--cluster", NEW)
        assert done.returncode == 0, done


async def test_whoever_is_asked_gives_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    """By a plain call, as `curl` makes it: a follower lags by an entry or two, and one that is alone knows nothing."""
    async with running_cluster(tmp_path) as cluster:
        api, follower = cluster.api, await cluster.follower()
        for n in range(20):
            await submit(api, f"j{n}")
            reached = (await api.call("GET", "/v1/cluster")).expect(200)["applied_index"]
            await submit(api, f"k{n}")
            given = await api.send("GET", follower.url + "/v1/backup")
            assert (given.status, int(given.headers["Horae-Applied-Index"]) > reached) == (200, True)
        for node in cluster.nodes:
            if node is not follower:
                cluster.kill(node)
        (await api.send("GET", follower.url + "/v1/backup")).expect(503, "no_leader")
        assert (await api.send("GET", follower.url + "/v1/backup?consistency=local")).status == 200
        for node in cluster.nodes:
            if node is not follower:
                cluster.start(node)
        await cluster.wait_ready()


async def test_a_new_cluster_of_three_from_a_backup_goes_on_where_the_old_one_was(tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    async with running_cluster(tmp_path / "first") as first:
        api = first.api
        for n in range(20):
            await submit(api, f"j{n}")
        done_job, held_job = await claim(api), await claim(api)
        completed = {"lease_token": done_job["lease_token"], "result": 1}
        (await api.call("POST", f"/v1/jobs/{done_job['id']}/complete", completed)).expect(200)
        follower = await first.follower()
        done = await horae("backup", str(file), "--url", follower.url)
        assert done.returncode == 0, done
        assert "checked" in done.stdout
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, "payloads are nobody else's to read"
        require_refusal(await horae("backup", str(file), "--url", follower.url), str(file), "--force")
        link = tmp_path / "link"
        link.symlink_to(file.name)
        again = await horae("backup", str(link), "--url", follower.url, "--force", "--json")
        assert (link.is_symlink(), file.is_symlink()) == (True, False)
        assert again.returncode == 0, again
        told = json.loads(again.stdout)
        assert (told["file"], told["cluster"], told["size_bytes"]) == (str(link), "test", file.stat().st_size)
        await submit(api, "afterwards")
    meta = snapshot.verify(file)
    assert (meta.cluster, meta.last_index) == ("test", told["applied_index"])

    async with _Second(tmp_path / "second", file) as second:
        api = second.api
        assert len(set((await second.digests()).values())) == 1
        assert (await api.call("GET", "/v1/jobs/afterwards")).status == 404, "acknowledged after the backup"
        assert (await api.call("GET", f"/v1/jobs/{done_job['id']}")).expect(200)["state"] == "succeeded"
        held = (await api.call("GET", f"/v1/jobs/{held_job['id']}")).expect(200)
        assert (held["state"], held["attempt"]) == ("running", 1)
        again = (await api.call("POST", "/v1/jobs", {"task": "t", "id": "j5"})).expect(200)
        assert again["id"] == "j5", "its id is known: no second job"
        (await api.call("POST", f"/v1/jobs/{done_job['id']}/complete", completed)).expect(200)
        (
            await api.call("POST", f"/v1/jobs/{held_job['id']}/complete", {"lease_token": held_job["lease_token"]})
        ).expect(200)
        seen = set()
        for _ in range(18):
            job = await claim(api)
            assert job["attempt"] == 1
            assert job["lease_token"] > held_job["lease_token"], "tokens go on to grow"
            seen.add(job["id"])
        assert seen == {f"j{n}" for n in range(20)} - {done_job["id"], held_job["id"]}
        await second.stop_all()
        assert second.check_logs() == []


class _Second(Cluster):
    """A cluster of three whose nodes were each restored from `file`."""

    def __init__(self, home: Path, file: Path) -> None:
        super().__init__(home, 3, cluster=NEW)
        self._file = file

    async def __aenter__(self) -> Cluster:
        await restore_all(self._file, self.nodes)
        return await super().__aenter__()


async def test_a_restore_refuses_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    async with running_cluster(tmp_path / "first", 1) as first:
        await submit(first.api, "kept")
        assert (await horae("backup", str(file), "--url", first.nodes[0].url)).returncode == 0
        away = ("--url", "http://127.0.0.1:9", "--deadline", "0.5")
        require_refusal(await horae("backup", str(tmp_path / "x"), *away), "no node", code=3)
        assert not (tmp_path / "x").exists()
    target = tmp_path / "new"
    to_target = ("--data", str(target), "--node-id", "n1", "--cluster")
    require_refusal(await horae("restore", str(file), *to_target, "test"), "another name")
    require_refusal(await horae("restore", str(file), *to_target, "not a name"), "cluster")
    broken = bytearray(file.read_bytes())
    broken[len(broken) // 2] ^= 1
    (tmp_path / "broken").write_bytes(broken)
    (tmp_path / "short").write_bytes(file.read_bytes()[:-1])
    for name in ("broken", "short"):
        require_refusal(await horae("restore", str(tmp_path / name), *to_target, NEW), f"{name} is damaged")
    assert not target.exists()
    target.mkdir()
    (target / "something").write_text("")
    require_refusal(await horae("restore", str(file), *to_target, NEW), "is not empty, it holds something")


async def test_the_log_is_cut_at_a_word(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        for n in range(10):
            await submit(cluster.api, f"j{n}")
        leader = await cluster.leader()
        await cluster.digests()
        answer = (await cluster.api.send("POST", leader.url + "/v1/cluster/snapshot")).expect(200)
        assert answer["node"] == leader.name
        assert 10 <= answer["first_index"] <= answer["durable_index"]
        await submit(cluster.api, "after")
        cluster.kill(leader)
        cluster.start(leader)
        await cluster.wait_ready()


async def test_a_survivor_becomes_a_cluster_of_one(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        for n in range(10):
            await submit(cluster.api, f"j{n}")
        await cluster.digests()
        survivor = await cluster.follower()
        cluster.kill_all()
    for node in cluster.nodes:
        if node is not survivor:
            shutil.rmtree(node.data_dir)
    require_refusal(
        await horae("node", "recover", "--config", str(survivor.config_path), "--yes-i-lose"), "members", "alone"
    )
    survivor.write_config([survivor])
    recover = ("node", "recover", "--config", str(survivor.config_path))
    asked = await horae(*recover)
    assert "LOST" in asked.stdout
    require_refusal(asked, "nothing was changed", "--yes-i-lose", code=1)
    told = await horae(*recover, "--yes-i-lose")
    assert told.returncode == 0, told
    assert "n1, n2, n3" in told.stdout
    assert (await horae(*recover, "--yes-i-lose")).returncode == 0, "a second time does no harm"
    alone = Cluster(tmp_path / "unused", 1)
    alone.nodes = [survivor]
    async with alone:
        for n in range(10):
            assert (await alone.api.call("GET", f"/v1/jobs/j{n}")).expect(200)["state"] == "ready"
        await submit(alone.api, "after")
        await alone.stop_all()
        assert alone.check_logs() == []
        assert alone.check_states() == []


def test_a_directory_that_never_ran_is_not_recovered(tmp_path: Path) -> None:
    node = make_nodes(tmp_path, ["n1"])[0]
    done = run_command("node", "recover", "--config", str(node.config_path), "--yes-i-lose")
    require_refusal(done, "nothing to recover")
