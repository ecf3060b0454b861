"""The user commands against a server: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result
from tests.helpers.fake_server import FakeServer, problem

from horae.cli import main_group


async def run(server: FakeServer, *arguments: str) -> Result:
    """The command in a thread: it blocks, and the server is on this loop."""
    command = [*arguments, "--url", server.url]
    return await asyncio.to_thread(CliRunner().invoke, main_group, command, env={"HORAE_URL": "", "HORAE_TOKEN": ""})


async def finish(server: FakeServer, job_id: str, **outcome: object) -> None:
    """Take and end the job once somebody waits for it."""
    await server.wait_until(lambda: server.counts[f"/v1/jobs/{job_id}"] > 0)
    server.ready.remove(job_id)
    _, token = server._grant(job_id)
    server._end({"job_id": job_id, "lease_token": token, **outcome})


async def test_submit_shows_the_job(server: FakeServer) -> None:
    got = await run(server, "submit", "hello", "--payload", '{"name": "Ada"}', "--id", "mine", "--queue", "mail")
    assert got.exit_code == 0
    assert '{"name":"Ada"}' in got.stdout
    assert "\x1b" not in got.stdout
    (sent,) = server.sent("/v1/jobs")
    assert sent == {"task": "hello", "payload": {"name": "Ada"}, "id": "mine", "queue": "mail"}


async def test_a_time_is_sent_with_its_offset(server: FakeServer) -> None:
    await run(server, "submit", "hello", "--at", "2026-11-29T13:00:00+01:00")
    assert server.sent("/v1/jobs")[0]["run_at"] == "2026-11-29T13:00:00+01:00"


async def test_wait_shows_the_result_and_fails_with_the_job(server: FakeServer) -> None:
    waiting = asyncio.ensure_future(run(server, "submit", "hello", "--id", "good", "--wait", "--json"))
    await finish(server, "good", outcome="complete", result={"n": 1})
    got = await waiting
    assert (got.exit_code, json.loads(got.stdout)["result"]) == (0, {"n": 1})
    assert json.loads(got.stdout)["created_at"] == "2026-11-29T12:00:00.000Z"

    waiting = asyncio.ensure_future(run(server, "submit", "hello", "--id", "bad", "--wait", "20"))
    await finish(server, "bad", outcome="fail", error={"type": "E", "message": "m"}, retry=False)
    got = await waiting
    assert got.exit_code == 1
    assert "dead" in got.stdout


async def test_jobs_are_listed_up_to_the_limit(server: FakeServer) -> None:
    for _ in range(5):
        server.add("t")
    got = await run(server, "jobs", "--limit", "3", "--json")
    assert [job["id"] for job in json.loads(got.stdout)] == ["job-5", "job-4", "job-3"]
    got = await run(server, "jobs")
    assert len(got.stdout.strip().splitlines()) == 6


async def test_refusals_are_one_line_with_their_exit_code(server: FakeServer) -> None:
    got = await run(server, "job", "nowhere")
    assert (got.exit_code, got.stdout) == (1, "")
    assert got.stderr.startswith("horae: not_found")
    server.fault("/v1/jobs", problem("unauthenticated", 401))
    got = await run(server, "submit", "t")
    assert got.exit_code == 1
    assert "HORAE_TOKEN" in got.stderr
    server.fault("/v1/jobs", problem("invalid", 422))
    assert (await run(server, "submit", "t")).exit_code == 2


async def test_cancel(server: FakeServer) -> None:
    job_id = server.add("t")
    assert (await run(server, "cancel", job_id)).exit_code == 0
    assert server.jobs[job_id]["state"] == "cancelled"
    assert (await run(server, "cancel", job_id)).exit_code == 1
