"""Schedules by the client library and by the command line, on three real nodes."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.helpers.story import Queue

from horae import AsyncClient, Client, Invalid, NewJob, NotFound, PreconditionFailed
from horae_http.cli import main_group

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

HOUR = timedelta(hours=1)


async def command(q: Queue, *words: str, group: str = "schedule") -> Result:
    given = [group, *words, "--url", q.url]

    return await asyncio.to_thread(CliRunner().invoke, main_group, given, env={"HORAE_URL": "", "HORAE_TOKEN": ""})


async def test_a_schedule_is_made_changed_and_deleted(any_q: Queue) -> None:
    q = any_q
    job = NewJob(task="t", queue=q.name, payload={"n": 1}, then=NewJob(task="u", queue=q.name))
    async with AsyncClient(q.url) as client:
        starts = datetime(2999, 1, 1, tzinfo=UTC)
        made = await client.put_schedule(q.name, job, cron="0 3 * * *", timezone="Europe/Berlin", starts_at=starts)
        assert (made.cron, made.missed, made.starts_at, made.job["payload"]) == ("0 3 * * *", "skip", starts, {"n": 1})
        assert made.job["then"]["task"] == "u"
        again = await client.put_schedule(q.name, job, cron="0 3 * * *", timezone="Europe/Berlin", starts_at=starts)
        assert again.version == made.version
        with pytest.raises(PreconditionFailed):
            await client.put_schedule(q.name, job, if_version=0, every_seconds=60)
        with pytest.raises(PreconditionFailed):
            await client.put_schedule(q.name, job, if_version=made.version - 1, every_seconds=60)
        changed = await client.put_schedule(q.name, job, if_version=made.version, every_seconds=60, overlap="skip")
        assert (changed.every_seconds, changed.cron, changed.overlap) == (60, None, "skip")
        assert q.name in [schedule.id async for schedule in client.schedules(page=1)]
        assert (await client.pause_schedule(q.name)).paused
        assert not (await client.resume_schedule(q.name, missed=True)).paused
        assert await client.schedule(q.name) == await client.resume_schedule(q.name)
        await client.delete_schedule(q.name)
        with pytest.raises(NotFound):
            await client.delete_schedule(q.name)
        with pytest.raises(NotFound):
            await client.schedule(q.name)


async def test_what_is_wrong_is_told_by_its_field(any_q: Queue) -> None:
    q = any_q
    job = NewJob(task="t", queue=q.name)
    async with AsyncClient(q.url) as client:
        for terms, pointer in (
            ({"cron": "0 0 30 2 *"}, "/cron"),
            ({"cron": "@daily", "timezone": "Mars"}, "/timezone"),
        ):
            with pytest.raises(Invalid) as refused:
                await client.put_schedule(q.name, job, **terms)  # type: ignore[arg-type]
            assert refused.value.problem.errors[0].pointer == pointer
        with pytest.raises(Invalid) as refused:
            await client.put_schedule(q.name, NewJob(task="t", run_at="2999-01-01T00:00:00Z"), every_seconds=60)
        assert refused.value.problem.errors[0].pointer == "/job/run_at"
        with pytest.raises(TypeError, match="did you mean timezone"):
            await client.put_schedule(q.name, job, time_zone="UTC")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="NewJob"):
            await client.put_schedule(q.name, {"task": "t"}, every_seconds=60)  # type: ignore[arg-type]


async def test_jobs_by_hand_and_after_the_fact_and_what_became_of_them(any_q: Queue) -> None:
    q = any_q
    with Client(q.url) as client:
        await asyncio.to_thread(
            client.put_schedule, q.name, NewJob(task="t", queue=q.name), cron="0 * * * *", starts_at=None
        )
        first = await asyncio.to_thread(client.trigger_schedule, q.name, own_id="one")
        assert await asyncio.to_thread(client.trigger_schedule, q.name, own_id="one") == first
        assert (await asyncio.to_thread(client.trigger_schedule, q.name)).id != first.id
        now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        begin, end = now - 3 * HOUR, now - timedelta(minutes=1)
        done = await asyncio.to_thread(client.backfill_schedule, q.name, begin, end)
        assert (done.count, done.triggers) == (3, 3)
        ledger = await asyncio.to_thread(lambda: client.triggers(q.name, from_=begin, to=end))
        assert [(line.nominal_time, line.outcome, line.why) for line in ledger] == [
            (begin + hours * HOUR, "ran", "backfill") for hours in range(3)
        ]
        following = await asyncio.to_thread(client.next_times, q.name, 2, from_=now)
        assert [time.nominal_time for time in following] == [now, now + HOUR]
        odd = await asyncio.to_thread(
            lambda: client.preview(1, cron="30 2 * * *", timezone="Europe/Berlin", from_="2027-03-28T00:00:00Z")
        )
        assert odd[0].note is not None


async def test_the_commands(any_q: Queue) -> None:
    q = any_q
    put = ["put", q.name, "t", "--queue", q.name, "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"]
    made = await command(q, *put, "--payload", '{"n": 1}', "--json")
    version = json.loads(made.stdout)["version"]
    assert "Europe/Berlin" in (await command(q, "show", q.name)).stdout
    assert q.name in (await command(q, "list")).stdout
    later = await command(q, *put, "--if-version", str(version + 1), "--missed", "latest")
    assert (later.exit_code, later.stderr.count("\n")) == (1, 1)
    assert (await command(q, *put, "--if-version", str(version), "--missed", "latest")).exit_code == 0
    assert "paused" in (await command(q, "pause", q.name)).stdout
    assert "runs again; next: 2" in (await command(q, "resume", q.name, "--missed")).stdout
    assert f"{q.name}@manual-mine" in (await command(q, "trigger", q.name, "--id", "mine")).stdout
    window = ["--from", "2026-11-01T00:00:00Z", "--to", "2026-11-03T00:00:00Z"]
    assert "2 of 2 triggers" in (await command(q, "backfill", q.name, *window)).stdout
    assert (await command(q, "triggers", q.name, *window)).stdout.count("backfill") == 2
    assert "1 of 2" in (await command(q, "triggers", q.name, *window, "--limit", "1")).stderr
    assert len((await command(q, "next", q.name, "-n", "3")).stdout.splitlines()) == 4
    assert (await command(q, "preview", "--every", "60", "-n", "2")).stdout.count("Z ") == 2
    assert (await command(q, "delete", q.name)).exit_code == 0
    assert (await command(q, "show", q.name)).exit_code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["put", "s", "t"], "--cron"),
        (["put", "s", "t", "--cron", "@daily", "--every", "60"], "exclude"),
        (["put", "s", "t", "--cron", "0 0 30 2 *"], "--cron"),
        (["put", "s", "t", "--every", "0.5"], "--every"),
        (["put", "s", "t", "--cron", "@daily", "--unique-key", "k", "--overlap", "queue"], "--unique-key"),
        (["put", "s", "t", "--cron", "@daily", "--starts", "2999-01-01"], "--starts"),
        (["put", "s", "t", "--cron", "@daily", "--payload", "{"], "--payload"),
        (["backfill", "s", "--from", "2026-11-01T00:00:00Z"], "--to"),
        (["trigger", "s", "--id", ""], "--id"),
        (["preview", "--cron", "@daily", "--timezone", "Mars"], "--timezone"),
    ],
)
async def test_bad_usage_names_the_flag(any_q: Queue, words: list[str], said: str) -> None:
    got = await command(any_q, *words)
    assert got.exit_code == 2
    assert said in got.stderr
    assert got.stderr.count("\n") == 1


CRONTAB = """\
MAILTO=ops@example.org
30 2 * * * backup --all
*/5 * * * * poll %once
30 2 * * *  backup --all
0 0 30 2 * never
@reboot start
CRON_TZ=Asia/Tokyo
@weekly tidy
"""


async def test_a_crontab_becomes_schedules_and_what_cannot_is_said(any_q: Queue, tmp_path: Path) -> None:
    q = any_q
    file = tmp_path / "crontab"
    file.write_text(CRONTAB)
    words = ["crontab", str(file), "--queue", q.name, "--prefix", q.name]
    unsure = await command(q, *words, group="import")
    assert (unsure.exit_code, "--timezone" in unsure.stderr) == (2, True)
    words += ["--timezone", "Europe/Berlin"]
    plan = await command(q, *words, group="import")
    assert plan.exit_code == 1, "some lines are left out"
    for said in (
        "line 1 taken, but: no mail",
        "line 4 taken, but: it is line 2 once more",
        "line 6 is left out: @reboot",
    ):
        assert said in plan.stdout
    assert "line 5 is left out: " in plan.stdout
    async with AsyncClient(q.url) as client:
        assert [one async for one in client.schedules() if one.id.startswith(q.name)] == []
        for _ in range(2):
            applied = json.loads((await command(q, *words, "--apply", "--json", group="import")).stdout)
            made = [one async for one in client.schedules() if one.id.startswith(q.name)]
            assert [one["line"] for one in applied["schedules"]] == [2, 3, 8]
            assert {one.id for one in made} == {one["id"] for one in applied["schedules"]}
            assert len({one.version for one in made}) == 3
        versions = {one.id: one.version for one in made}
        await command(q, *words, "--apply", group="import")
        assert {one.id: one.version async for one in client.schedules() if one.id in versions} == versions
        by_cron = {one.cron: one for one in made}
    assert (by_cron["30 2 * * *"].timezone, by_cron["@weekly"].timezone) == ("Europe/Berlin", "Asia/Tokyo")
    assert by_cron["*/5 * * * *"].job["payload"] == {"command": "poll", "stdin": "once\n"}
    assert (by_cron["@weekly"].job["task"], by_cron["@weekly"].job["queue"]) == ("command", q.name)
