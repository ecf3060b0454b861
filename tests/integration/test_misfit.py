"""Real nodes whose configured members or backups differ, or who find nobody: no two histories in one cluster, and it is
said."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import CLUSTER_NAME, HOST, Cluster, NodeProcess, free_ports, poll
from tests.helpers.refusal import require_refusal, run_command

from horae_storage.peer_book import PeerBook

pytestmark = pytest.mark.cluster

FIVE_IDS = "n1,n2,n3,n4,n5"
THREE_IDS = "n1,n2,n3"


@contextlib.asynccontextmanager
async def unlike(home: Path) -> AsyncIterator[Cluster]:
    """Five nodes, none of them started: n1 and n2 know of three members, the others of five."""
    cluster = Cluster(home, 5)
    for node in cluster.nodes[:2]:
        node.write_config(cluster.nodes[:3])
    async with Api(cluster.urls) as api:
        cluster.api = api
        try:
            yield cluster
        finally:
            cluster.kill_all()


async def wait_log(node: NodeProcess, *words: str) -> str:
    """The first line of its log with all the words."""

    async def look() -> str | None:
        lines = node.log_text().splitlines()
        return next((line for line in lines if all(word in line for word in words)), None)

    found: str = await poll(f"{node.name} logs {words}", look)
    return found


async def wait_end(node: NodeProcess) -> tuple[int, str]:
    """Exit code and last line of a node that ends by itself."""
    process = node.process
    assert process is not None

    async def ended() -> bool:
        return process.poll() is not None

    await poll(f"{node.name} ends", ended)
    return process.returncode, node.log_text().splitlines()[-1]


async def submit(cluster: Cluster, node: NodeProcess, job_id: str) -> None:
    (await cluster.api.call("POST", "/v1/jobs", {"id": job_id, "task": "noop"}, url=node.url)).expect(201)


def misfit(peer: str, theirs: str, ours: str) -> str:
    return f"members differ: {peer} has {theirs}, here {ours}: make them alike"


async def test_two_clusters_of_one_name_never_exchange_a_message(tmp_path: Path) -> None:
    """Both acknowledged, one after the other: they stay two, each with its own history, and say so."""
    async with unlike(tmp_path) as cluster:
        smaller, larger = cluster.nodes[:2], cluster.nodes[2:]
        for node in smaller:
            cluster.start(node)
        await cluster.wait_ready(smaller)
        for number in range(5):
            await submit(cluster, smaller[0], f"smaller-{number}")
        await cluster.stop_all()
        for node in larger:
            cluster.start(node)
        await cluster.wait_ready(larger)
        await submit(cluster, larger[0], "larger")
        for node in smaller:
            cluster.start(node)
        await cluster.wait_ready(smaller)
        three = larger[0]
        for node in smaller:
            await wait_log(node, " warning peer_refused ", misfit("n3", FIVE_IDS, THREE_IDS))
            await wait_log(three, " warning peer_refused ", misfit(node.name, THREE_IDS, FIVE_IDS))
            for other in larger[1:]:  # they are not known there: they ask
                await wait_log(other, " warning peer_refused ", misfit(node.name, THREE_IDS, FIVE_IDS))
                await wait_log(node, " warning peer_refused ", misfit(other.name, FIVE_IDS, THREE_IDS))
        await submit(cluster, smaller[0], "smaller-again")
        await submit(cluster, three, "larger-again")
        assert await histories(cluster) == {"n1": (6, 0), "n2": (6, 0), "n3": (0, 2), "n4": (0, 2), "n5": (0, 2)}
        for node in cluster.nodes:
            assert node.alive, node.log_text()
            for there in cluster.nodes:
                assert node.log_text().count(f"members differ: {there.name} has") <= node.starts, "once a start"
        for node in smaller:
            assert f" peer_connected node=n3 room=raft peer={node.name}" not in three.log_text()
        assert " peer_connected node=n3 room=raft peer=n4" in three.log_text()
        await cluster.stop_all()
        assert cluster.check_logs() == []


async def histories(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """How many jobs of the smaller and of the larger cluster each node has."""
    found = {}
    for node in cluster.nodes:
        jobs = (await cluster.api.call("GET", "/v1/jobs?limit=100", url=node.url)).expect(200)["jobs"]
        ids = [job["id"] for job in jobs]
        found[node.name] = tuple(sum(name.startswith(kind) for name in ids) for kind in ("smaller", "larger"))
    return found  # type: ignore[return-value]


async def test_a_newcomer_with_other_members_ends_and_harms_nobody(tmp_path: Path) -> None:
    """Once they are mended it starts on what it has."""
    async with unlike(tmp_path) as cluster:
        one, two, wrong = cluster.nodes[:3]
        for node in (one, two):
            cluster.start(node)
        await cluster.wait_ready([one, two])
        await submit(cluster, one, "before")
        cluster.start(wrong)
        assert await wait_end(wrong) in [(2, f"horae: {misfit(peer, THREE_IDS, FIVE_IDS)}") for peer in ("n1", "n2")], (
            wrong.log_text()
        )
        assert " error " not in wrong.log_text()
        assert "Traceback" not in wrong.log_text()
        warned = [node for node in (one, two) if misfit("n3", FIVE_IDS, THREE_IDS) in node.log_text()]
        assert warned != [], "whom it met"
        await submit(cluster, one, "after")
        wrong.write_config([one, two, wrong])
        cluster.start(wrong)
        await cluster.wait_ready([wrong])
        cluster.nodes = [one, two, wrong]
        await cluster.finish()


async def test_a_newcomer_that_nobody_dials_asks_and_ends(tmp_path: Path) -> None:
    async with unlike(tmp_path) as cluster:
        one, two = cluster.nodes[:2]
        for node in (one, two):
            cluster.start(node)
        await cluster.wait_ready([one, two])
        five = cluster.nodes[4]
        cluster.start(five)
        code, last = await wait_end(five)
        assert (code, last) == (2, f"horae: {misfit('n1', THREE_IDS, FIVE_IDS)}")
        await wait_log(one, " warning peer_refused ", misfit("n5", FIVE_IDS, THREE_IDS))
        assert one.log_text().count("members differ") == 1


@pytest.mark.parametrize("wrong_is", [0, 2])
async def test_a_member_restored_from_another_backup_ends_and_harms_nobody(tmp_path: Path, wrong_is: int) -> None:
    """Whoever dials whom. The newer backup's entries are no continuation of what the majority has. Restored from the
    right one, it is a member like the others."""
    older, newer = await take_backups(tmp_path)
    cluster = Cluster(tmp_path / "new", 3)
    wrong = cluster.nodes[wrong_is]
    right = [node for node in cluster.nodes if node is not wrong]
    async with Api(cluster.urls) as api:
        cluster.api = api
        try:
            for node in right:
                await restore(older, node)
                cluster.start(node)
            await cluster.wait_ready(right)
            await submit(cluster, right[0], "before")
            await restore(newer, wrong)
            cluster.start(wrong)
            ends = [(2, f"horae: {of_another_backup(node)}") for node in right]
            assert await wait_end(wrong) in ends, wrong.log_text()
            assert " error " not in wrong.log_text()
            assert "Traceback" not in wrong.log_text()
            assert any(of_another_backup(wrong) in node.log_text() for node in right), "whom it met"
            for node in right:
                assert node.log_text().count(of_another_backup(wrong)) <= 1
            await submit(cluster, right[0], "after")
            shutil.rmtree(wrong.data_dir)
            await restore(older, wrong)
            cluster.start(wrong)
            await cluster.wait_ready([wrong])
            for job_id in ("old-0", "before", "after"):
                (await api.call("GET", f"/v1/jobs/{job_id}", url=wrong.url)).expect(200)
            assert (await api.call("GET", "/v1/jobs/old-1", url=wrong.url)).status == 404
            await cluster.finish()
        finally:
            cluster.kill_all()


async def test_an_emptied_member_of_a_restored_cluster_comes_back_as_the_docs_say(tmp_path: Path) -> None:
    """By the three steps of operations.md. Of which life it is, nobody but its operator may tell it: empty nodes that
    took it from whom they met would elect each other over nothing, and pass for those that were restored."""
    older, _ = await take_backups(tmp_path)
    cluster = Cluster(tmp_path / "new", 3)
    async with Api(cluster.urls) as api:
        cluster.api = api
        try:
            for node in cluster.nodes:
                await restore(older, node)
                cluster.start(node)
            await cluster.wait_ready()
            await submit(cluster, cluster.nodes[0], "before")
            emptied = cluster.nodes[1]
            cluster.kill(emptied)
            shutil.rmtree(emptied.data_dir)
            for node in (cluster.nodes[0], cluster.nodes[2]):
                await cluster.stop(node)
                PeerBook(node.data_dir).forget(emptied.name)  # or they had not met yet
                cluster.start(node)
            await cluster.wait_ready([cluster.nodes[0], cluster.nodes[2]])
            cluster.start(emptied)
            code, last = await wait_end(emptied)
            assert (code, "different lives of the cluster" in last) == (2, True)
            shutil.rmtree(emptied.data_dir)
            view = await cluster.view(cluster.nodes[0])
            assert view is not None
            adopt = ("node", "adopt", view["origin"], "--config", str(emptied.config_path))
            assert (await asyncio.to_thread(run_command, *adopt)).returncode == 0
            require_refusal(await asyncio.to_thread(run_command, *adopt), "is a node's already")
            require_refusal(
                await asyncio.to_thread(run_command, "node", "adopt", "x", *adopt[3:]), "64 hexadecimal digits"
            )
            cluster.start(emptied)
            await cluster.wait_ready([emptied])
            for job_id in ("old-0", "before"):
                await poll(f"{job_id} in the emptied node's own state", partial(_holds, api, emptied, job_id))
            await cluster.finish()
        finally:
            cluster.kill_all()


async def _holds(api: Api, node: NodeProcess, job_id: str) -> bool:
    """Whether its own state does. One that is ready may still lack the last entries: it passes calls on."""
    return (await api.call("GET", f"/v1/jobs/{job_id}?consistency=local", url=node.url)).status == 200


def of_another_backup(peer: NodeProcess) -> str:
    return (
        f"{peer.name} and this node are of different lives of the cluster, by a restore or a recovery: all members of "
        "a new cluster are restored from one file; for a disk that was lost, see 'A node whose disk was lost' in "
        "docs/operations.md"
    )


async def take_backups(home: Path) -> tuple[Path, Path]:
    """Of one cluster: with `old-0`, and later with `old-1` as well."""
    backups = home / "older.backup", home / "newer.backup"
    async with Cluster(home / "old", 1, cluster="old") as cluster:
        for number, backup in enumerate(backups):
            await submit(cluster, cluster.nodes[0], f"old-{number}")
            done = await asyncio.to_thread(run_command, "backup", str(backup), "--url", cluster.nodes[0].url)
            assert done.returncode == 0, done
    return backups


async def restore(backup: Path, node: NodeProcess) -> None:
    words = ("restore", str(backup), "--data", str(node.data_dir), "--node-id", node.name, "--cluster", CLUSTER_NAME)
    done = await asyncio.to_thread(run_command, *words)
    assert done.returncode == 0, done


async def test_a_node_alone_says_whom_it_misses_and_when_they_are_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    two = cluster.nodes[1]
    async with Api(cluster.urls) as api:
        cluster.api = api
        try:
            cluster.start(two)
            for peer in (cluster.nodes[0], cluster.nodes[2]):
                line = await wait_log(two, " warning peer_unreachable ", f"peer={peer.name}")
                assert f'address={HOST}:{peer.raft_port} reason="Connection refused" for_seconds=' in line
            line = await wait_log(two, " warning no_leader ", " for_seconds=")
            assert line.endswith(' connected="" missing="n1,n3"')
            cluster.start(cluster.nodes[0])
            cluster.start(cluster.nodes[2])
            await cluster.wait_ready()
            for peer in ("n1", "n3"):
                await wait_log(two, " info peer_connected ", f"peer={peer}")
                assert two.log_text().count(f"peer_unreachable node=n2 room=raft peer={peer}") == 1
            assert two.log_text().count("no_leader") == 1
            for node in (cluster.nodes[0], cluster.nodes[2]):
                assert "peer_unreachable" not in node.log_text()
                assert " no_leader " not in node.log_text()
            await cluster.finish()
        finally:
            cluster.kill_all()


async def test_a_wrong_address_is_told_on_both_sides(tmp_path: Path) -> None:
    """The others make a majority: only these logs tell that one link is not there."""
    cluster = Cluster(tmp_path, 3)
    one, two, _ = cluster.nodes
    nowhere = free_ports(1)[0]
    text = one.config_path.read_text()
    assert text.count(f'n2 = {{ raft = "{HOST}:{two.raft_port}"') == 1
    one.config_path.write_text(text.replace(f'"{HOST}:{two.raft_port}"', f'"{HOST}:{nowhere}"'))
    try:
        for node in cluster.nodes:
            cluster.start(node)
        line = await wait_log(one, " warning peer_unreachable ", "peer=n2")
        assert f'address={HOST}:{nowhere} reason="Connection refused" for_seconds=' in line
        line = await wait_log(two, " warning peer_unreachable ", "peer=n1")
        assert "refused by the peer: node 'n2' waits for our call" in line
        await cluster.stop_all()
    finally:
        cluster.kill_all()


async def test_an_orderly_start_and_stop_warns_of_nothing(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 3) as cluster:
        await cluster.stop_all()
        for node in cluster.nodes:
            cluster.start(node)
        await cluster.wait_ready()
        await cluster.stop_all()
        for node in cluster.nodes:
            for event in ("peer_unreachable", "no_leader", "peer_refused"):
                assert f" {event} " not in node.log_text(), node.log_text()
