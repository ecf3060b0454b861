"""Schedules out and in again: a cluster made of a backup goes on with them, and so does a node that came back by a
snapshot and leads. No trigger fires a second time, what was missed is treated by its policy, the ledger is kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.cluster import Cluster, poll, running_cluster
from tests.helpers.refusal import run_command
from tests.helpers.triggers import SECOND, Schedule, gaps, lead, moments
from tests.integration.test_catch_up import SHORT_LOG, fill, live_view

pytestmark = pytest.mark.cluster

NEW = "second"
POLICIES = ("skip", "latest", "all")
OUTAGE = 9 * SECOND
"""From the backup to the restored cluster's start, at least: some triggers of it are surely missed."""


async def horae(*args: str) -> None:
    done = await asyncio.to_thread(run_command, *args)
    assert done.returncode == 0, done


async def restored(file: Path, home: Path) -> Cluster:
    """A cluster of three, each node restored from `file`; it does not run yet."""
    cluster = Cluster(home, 3, cluster=NEW)
    for node in cluster.nodes:
        await horae("restore", str(file), "--data", str(node.data_dir), "--node-id", node.name, "--cluster", NEW)
    return cluster


def by_outcome(lines: list[Any]) -> dict[str, list[datetime]]:
    found: dict[str, list[datetime]] = {}
    for line, at in zip(lines, moments(lines), strict=True):
        found.setdefault(line["outcome"], []).append(at)
    return found


async def test_a_restored_cluster_goes_on_with_its_schedules(tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    async with running_cluster(tmp_path / "first") as first:
        before: dict[str, Any] = {}
        for policy in POLICIES:
            schedule = Schedule(first.api, policy)
            await schedule.put(every_seconds=1, missed=policy, grace_seconds=2)
        paused, yearly = Schedule(first.api, "paused"), Schedule(first.api, "yearly")
        await paused.put(every_seconds=1, paused=True)
        made = await yearly.put(cron="30 2 29 2 *", timezone="Europe/Berlin", overlap="queue", dst_gap="skip")
        by_hand = await first.api.call("POST", "/v1/schedules/yearly/trigger")
        assert by_hand.expect(201)["schedule_id"] == "yearly"
        for policy in POLICIES:
            await Schedule(first.api, policy).ledger_of(3)
        await horae("backup", str(file), "--url", first.nodes[0].url)
        backed_up = datetime.now(UTC)
        for policy in (*POLICIES, "paused"):
            before[policy] = await Schedule(first.api, policy).ledger_of(4)
    await asyncio.sleep((backed_up + OUTAGE - datetime.now(UTC)) / SECOND)
    async with await restored(file, tmp_path / "second") as second:
        began = datetime.now(UTC)
        outage = began - backed_up
        assert outage > 3 * SECOND, "longer than the grace"
        assert (await Schedule(second.api, "yearly").read()) == made
        for policy in POLICIES:
            schedule = Schedule(second.api, policy)
            lines = await schedule.ledger_of(len(before[policy]) + outage // SECOND + 4)
            assert gaps(lines) == {SECOND}, "each second has come to something"
            assert lines[: len(before[policy]) - 2] == before[policy][:-2], "what was in the backup is kept"
            assert await schedule.jobs() == [line["job_id"] for line in lines if line["outcome"] == "ran"]
            fates = by_outcome(lines)
            missed = [at for at in moments(lines) if backed_up + 2 * SECOND < at < began - 4 * SECOND]
            assert missed
            late = {"skip": "skipped_missed", "latest": "folded", "all": "ran"}[policy]
            assert set(missed) <= set(fates[late])
            assert set(fates) <= {"ran", late}
            if policy == "latest":
                (made_up,) = [line for line in lines if line["outcome"] == "ran" and "late" in line.get("why", "")]
                assert moments([made_up])[0] > fates["folded"][-1]
        lines = await Schedule(second.api, "paused").ledger_of(len(before["paused"]) + 3)
        assert (gaps(lines), set(by_outcome(lines))) == ({SECOND}, {"paused"})
        assert len(set((await second.digests()).values())) == 1
        await second.stop_all()
        assert second.check_logs() == []


async def test_a_node_that_came_back_by_a_snapshot_leads_and_fires(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, **SHORT_LOG) as cluster:
        api = cluster.api
        leader, away = await cluster.leader(), await cluster.follower()
        early, late, edited = Schedule(api, "early"), Schedule(api, "late"), Schedule(api, "edited")
        await early.put(every_seconds=1, overlap="skip", job={"task": "t", "queue": "nobody"})
        await edited.put(every_seconds=1)
        await cluster.digests()
        last = (await live_view(cluster, away))["last_index"]
        cluster.kill(away)
        await late.put(every_seconds=1, jitter_seconds=0.2)
        await edited.put(every_seconds=2)
        calls = iter(range(1000))

        async def log_was_cut() -> bool:
            await fill(api, f"meanwhile-{next(calls)}", 4)
            return bool((await live_view(cluster, leader))["first_index"] > last + 1)

        await poll("the leader's log begins after where the other's ends", log_was_cut)
        cluster.start(away)
        await cluster.wait_ready()
        assert " snapshot_installed " in away.log_text()
        before = {one.name: await one.ledger() for one in (early, late, edited)}
        await lead(cluster, away)
        for one, step in ((early, SECOND), (late, SECOND), (edited, 2 * SECOND)):
            lines = await one.ledger_of(len(before[one.name]) + 3)
            assert [line["nominal_time"] for line in lines[: len(before[one.name])]] == [
                line["nominal_time"] for line in before[one.name]
            ]
            assert gaps(lines[-4:]) == {step}
            assert gaps(lines) <= {SECOND, step}
            ran = [line["job_id"] for line in lines if line["outcome"] == "ran"]
            assert await one.jobs() == ran
        assert [line["outcome"] for line in await early.ledger()][:2] == ["ran", "skipped_overlap"]
        assert set(by_outcome(await early.ledger())) == {"ran", "skipped_overlap"}
        assert len(by_outcome(await early.ledger())["ran"]) == 1, "the job that overlaps is known to the new leader"
        for one in (early, late, edited):
            (await api.call("DELETE", f"/v1/schedules/{one.name}")).expect(204)


async def test_a_survivor_that_is_made_a_cluster_of_one_goes_on_with_them(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        schedule = Schedule(cluster.api, "s")
        await schedule.put(every_seconds=1, missed="all", grace_seconds=0)
        before = await schedule.ledger_of(3)
        await cluster.digests()
        cluster.kill_all()
        survivor = cluster.nodes[1]
        cluster.nodes[:] = [survivor]
        survivor.write_config(cluster.nodes)
        await horae("node", "recover", "--config", str(survivor.config_path), "--yes-i-lose")
        cluster.start(survivor)
        await cluster.wait_ready()
        outage = datetime.now(UTC) - moments(before)[-1]
        lines = await schedule.ledger_of(len(before) + outage // timedelta(seconds=1))
        assert lines[: len(before) - 1] == before[:-1]
        assert (gaps(lines), set(by_outcome(lines))) == ({SECOND}, {"ran"})
        assert await schedule.jobs() == [line["job_id"] for line in lines]
        await cluster.stop_all()
        assert cluster.check_logs() == []
