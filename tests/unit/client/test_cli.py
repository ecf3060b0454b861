"""The user commands against a server: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from importlib.metadata import version
from math import inf
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from msgspec import convert
from tests.helpers.fake_server import FakeServer, _ok, _view, moment, problem

from horae import Client, Job
from horae.cli import Target, _wait, main_group


async def run(server: FakeServer, *arguments: str) -> Result:
    """The command in a thread: it blocks, and the server is on this loop."""
    command = [*arguments, "--url", server.url]
    return await asyncio.to_thread(CliRunner().invoke, main_group, command, env={"HORAE_URL": "", "HORAE_TOKEN": ""})


async def command(server: FakeServer, *arguments: str) -> asyncio.subprocess.Process:
    """The same as a process, for signals."""
    program = "import horae.cli; horae.cli.main_group(prog_name='horae')"
    pipe = asyncio.subprocess.PIPE
    environ = {**os.environ, "HORAE_URL": server.url}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=pipe, stderr=pipe, env=environ
    )


def cluster_view(own: str, other: str) -> dict[str, Any]:
    """As n2 sees it without a leader: n3 is there, though it cannot be asked."""
    rest = {"raft_address": "a", "match_index": None, "lag": None, "last_heard_seconds": None}
    members = [
        {"node": "n2", "url": own, "role": "follower", "connected": True, "clock_skew_seconds": None, **rest},
        {"node": "n3", "url": other, "role": "voter", "connected": True, "clock_skew_seconds": None, **rest},
    ]
    indexes = dict.fromkeys(("commit_index", "applied_index", "durable_index", "last_index", "first_index"), 120)
    view = {"cluster": "c", "node": "n2", "leader": None, "leader_url": None, "term": 7, "epoch": 1, **indexes}
    view |= {"role": "follower", "state_digest": "", "version": "0", "machine_version": 1, "cluster_time": ""}
    return view | {"disk": {}, "members": members}


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
    assert "horae: job bad is submitted" in got.stderr


async def test_a_wait_that_ends_first_says_so_with_its_own_exit_code(server: FakeServer) -> None:
    job_id = server.add("hello", job_id="slow")
    server.fault(f"/v1/jobs/{job_id}", *(_ok(_view(server.jobs[job_id])) for _ in range(50)))
    got = await run(server, "submit", "hello", "--id", "slow", "--wait", "0")
    assert got.exit_code == 4
    assert got.stderr.splitlines()[-1] == "horae: job slow is still ready; look with `horae job slow`"
    assert "slow" in got.stdout


async def test_a_second_submit_of_an_id_says_that_it_was_there(server: FakeServer) -> None:
    assert "already there" not in (await run(server, "submit", "hello", "--id", "mine")).stderr
    got = await run(server, "submit", "hello", "--id", "mine")
    assert (got.exit_code, got.stderr) == (0, "horae: job mine was already there; no second one was made\n")


async def test_an_interrupted_wait_names_the_job(server: FakeServer) -> None:
    process = await command(server, "submit", "hello", "--wait")
    async with asyncio.timeout(30):
        await server.wait_until(lambda: len(server.requests) == 2)
        process.send_signal(signal.SIGINT)
        _, told = await process.communicate()
    (job_id,) = server.jobs
    assert process.returncode == 130
    last = told.decode().splitlines()[-1]
    assert last == f"horae: job {job_id} goes on without you (it was ready); look with `horae job {job_id}`"


async def test_an_interrupted_submit_names_the_job(server: FakeServer) -> None:
    server.fault("/v1/jobs", *["hang"] * 9)
    process = await command(server, "submit", "hello")
    async with asyncio.timeout(30):
        await server.wait_until(lambda: len(server.requests) == 1)
        process.send_signal(signal.SIGINT)
        _, told = await process.communicate()
    job_id = server.sent("/v1/jobs")[0]["id"]
    assert process.returncode == 130
    assert told.decode() == f"horae: job {job_id} may have been submitted; look with `horae job {job_id}`\n"


async def test_an_unknown_outcome_names_the_job(server: FakeServer) -> None:
    server.fault("/v1/jobs", *["drop"] * 50)
    got = await run(server, "submit", "hello", "--deadline", "0.3")
    (job_id,) = server.jobs
    assert got.exit_code == 3
    assert f"look with `horae job {job_id}`, or repeat with --id {job_id}" in got.stderr


async def test_a_wrong_value_is_told_by_its_flag(server: FakeServer) -> None:
    fields = [{"pointer": "/queue", "detail": "must be short"}]
    body = {"type": "x", "title": "x", "status": 422, "code": "invalid", "errors": fields, "detail": "/queue must be"}
    server.fault("/v1/jobs", web.Response(status=422, body=msgspec.json.encode(body), content_type="application/json"))
    got = await run(server, "submit", "t", "--queue", "a b")
    assert (got.exit_code, got.stderr) == (2, "horae: --queue must be short; correct it and try again\n")
    for flag, value in (("--priority", "101"), ("--max-attempts", "0")):
        got = await run(server, "submit", "t", flag, value)
        assert got.exit_code == 2
        assert flag in got.stderr


@pytest.mark.parametrize("command", ["job x --deadline nan", "submit t --delay nan", "submit t --wait nan"])
def test_what_is_no_number_is_no_time(command: str) -> None:
    got = CliRunner().invoke(main_group, command.split())
    assert got.exit_code == 2
    assert f"'{command.split()[2]}': takes seconds" in got.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["submit", "t", "--delay", "soon"], "'soon' is not a valid number of seconds."),
        (["jobs", "--limit", "few"], "'few' is not a valid whole number."),
        (["submit", "t", "--payload", '{"a": 18446744073709551616}'], "the payload holds an integer of more than 64"),
    ],
)
def test_a_wrong_number_is_told_in_words(command: list[str], says: str) -> None:
    got = CliRunner().invoke(main_group, command)
    assert got.exit_code == 2
    assert says in got.stderr


async def test_that_there_are_more_jobs_is_told(server: FakeServer) -> None:
    for name in "abc":
        server.add("t", job_id=name)
    got = await run(server, "jobs", "--limit", "2", "--json")
    assert len(json.loads(got.stdout)) == 2
    assert got.stderr == "horae: the newest 2 are shown, there are more: --limit 20\n"
    assert (await run(server, "jobs", "--limit", "3")).stderr == ""


async def test_an_interrupted_command_says_so_and_ends_as_shells_expect(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "job", interrupt)
    got = await run(server, "job", "x")
    assert (got.exit_code, got.stdout, got.stderr) == (130, "", "horae: interrupted\n")


async def test_a_limit_past_any_number_of_jobs_is_no_limit(server: FakeServer) -> None:
    server.add("t", job_id="x")
    got = await run(server, "jobs", "--limit", str(10**20))
    assert (got.exit_code, len(got.stdout.splitlines())) == (0, 2)


@pytest.mark.parametrize("command", ["job x", "submit t", "cluster", "cluster --json", "cluster remove n1"])
def test_no_password_of_a_url_is_told(command: str) -> None:
    for url in ("http://u:secret@127.0.0.1:1", "http:/u:secret@127.0.0.1:1", "http://u:sec/ret@127.0.0.1"):
        got = CliRunner().invoke(main_group, [*command.split(), "--url", url, "--deadline", "0.1"])
        assert got.exit_code in (2, 3)
        assert "...@127.0.0.1" in got.stderr
        assert "ret@" not in got.output


async def test_a_user_of_a_url_is_sent(server: FakeServer) -> None:
    server.add("t", job_id="x")
    url = server.url.replace("://", "://u:secret@")
    got = await asyncio.to_thread(CliRunner().invoke, main_group, ["job", "x", "--url", url])
    assert got.exit_code == 0


# ---------------------------------------------------------------- what it prints goes nowhere


async def redirected(
    server: FakeServer, words: str, stdout: int = asyncio.subprocess.PIPE, **environ: str
) -> tuple[int | None, str, str]:
    """A command line of the shell, with its redirections: exit code, stdout, stderr."""
    source = "import horae.cli; horae.cli.main_group(prog_name='horae')"
    line = f'"{sys.executable}" -c "{source}" {words}'
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | environ
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", line, stdout=stdout, stderr=asyncio.subprocess.PIPE, env={**environ, "HORAE_URL": server.url}
    )
    async with asyncio.timeout(60):
        out, told = await process.communicate()
    return process.returncode, (out or b"").decode(), told.decode()


FULL_DEVICE = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
NO_ROOM = "but its answer cannot be printed: no space left on device"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param("submit t --id new >/dev/full", f"(job new, ready), {NO_ROOM}", marks=FULL_DEVICE),
        pytest.param("job x --json >/dev/full", f"(job x, ready), {NO_ROOM}", marks=FULL_DEVICE),
        pytest.param("jobs >/dev/full", f"the call succeeded, {NO_ROOM}", marks=FULL_DEVICE),
        pytest.param("jobs --json >/dev/full", f"the call succeeded, {NO_ROOM}", marks=FULL_DEVICE),
        pytest.param("--help >/dev/full", "the output cannot be written: no space left on device", marks=FULL_DEVICE),
        pytest.param("jobs >/dev/full 2>/dev/full", "", marks=FULL_DEVICE),
        ("submit t --id new >&-", "(job new, ready), but its answer cannot be printed: there is no standard output"),
        ("jobs >&- 2>&-", ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_a_call_whose_answer_cannot_be_printed_has_succeeded(
    server: FakeServer, words: str, says: str, unbuffered: str
) -> None:
    server.add("t", job_id="x")
    code, out, told = await redirected(server, words, PYTHONUNBUFFERED=unbuffered)
    assert (code, out) == (5, "")
    assert says in told
    assert told.count("\n") == (1 if says else 0)
    assert set(server.jobs) == ({"x", "new"} if "new" in words else {"x"})


@pytest.mark.parametrize("redirect", ["2>&-", pytest.param("2>/dev/full", marks=FULL_DEVICE)])
async def test_a_hint_that_cannot_be_printed_is_left_out(server: FakeServer, redirect: str) -> None:
    server.add("t", job_id="x")
    code, out, _ = await redirected(server, f"submit t --id x {redirect}")
    assert (code, out[:2]) == (0, "id")
    assert (await redirected(server, f"job nowhere {redirect}"))[0] == 1


async def test_a_reader_that_has_gone_wants_no_word(server: FakeServer) -> None:
    server.add("t", job_id="x")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, _, told = await redirected(server, "jobs", writing)
    finally:
        os.close(writing)
    assert (code, told) == (5, "")


async def test_what_an_encoding_lacks_is_escaped(server: FakeServer) -> None:
    code, out, told = await redirected(server, "submit t\u00e4 --id x", PYTHONIOENCODING="ascii")
    assert (code, told) == (0, "")
    assert r"t\xe4" in out
    code, out, told = await redirected(server, "job x --json", PYTHONIOENCODING="ascii")
    assert (code, json.loads(out)["task"], told) == (0, "t\u00e4", "")


async def test_without_a_leader_each_nodes_own_view_is_shown(server: FakeServer) -> None:
    gone = "http://127.0.0.1:1"
    server.fault("/v1/cluster", problem("no_leader", 503), _ok(cluster_view(server.url, gone)))
    got = await run(server, "cluster", "--deadline", "0.3")
    assert got.exit_code == 3
    assert "no leader; n2 sees n3; follower, term 7, applied 120" in got.stdout
    assert re.search(rf"^\?  +{gone}  +connection refused *$", got.stdout, re.MULTILINE)
    assert got.stderr == "horae: no leader: a majority of the nodes must be up and reach each other\n"
    server.fault("/v1/cluster", problem("no_leader", 503), _ok(cluster_view(server.url, gone)))
    shown = json.loads((await run(server, "cluster", "--deadline", "0.3", "--json")).stdout)
    assert (shown[server.url]["term"], shown[gone]) == (7, {"error": "connection refused"})


async def test_a_leader_that_the_asked_node_does_not_reach_is_named(server: FakeServer) -> None:
    async with FakeServer() as leader:
        old = cluster_view(leader.url, server.url) | {"node": "n1", "role": "leader", "leader": "n1", "term": 6}
        own = cluster_view(leader.url, "http://127.0.0.1:1") | {"node": "n2", "role": "leader", "leader": "n2"}
        async with FakeServer() as stale:
            asked = cluster_view(leader.url, stale.url) | {"node": "n3"}
            server.fault("/v1/cluster", problem("no_leader", 503), _ok(asked))
            leader.fault("/v1/cluster", _ok(own))
            stale.fault("/v1/cluster", _ok(old))
            got = await run(server, "cluster", "--deadline", "0.3")
    assert got.exit_code == 3
    assert "leader n2; n2 sees n3; leader, term 7" in got.stdout
    does_not = "the node asked does not reach the leader: n2 leads, by its own view"
    assert got.stderr == f"horae: {does_not}; ask it with --url {leader.url}\n"


async def test_a_leader_that_serves_nothing_is_not_said_to_be_elsewhere(server: FakeServer) -> None:
    view = cluster_view(server.url, "http://127.0.0.1:1") | {"role": "leader", "leader": "n2"}
    server.fault("/v1/cluster", problem("no_leader", 503), _ok(view))
    got = await run(server, "cluster", "--deadline", "0.3")
    words = "n2 leads, by its own view, but did not serve: it must reach a majority; try again"
    assert (got.exit_code, got.stderr) == (3, f"horae: {words}\n")


async def test_no_leader_is_told_with_the_next_step(server: FakeServer) -> None:
    server.fault("/v1/jobs/x", *(problem("no_leader", 503) for _ in range(20)))
    got = await run(server, "job", "x", "--deadline", "0.3")
    assert (got.exit_code, got.stdout) == (3, "")
    assert got.stderr == "horae: no_leader: no_leader; `horae cluster` shows what each node sees\n"


async def test_a_server_that_is_down_is_told_while_it_is_tried(server: FakeServer) -> None:
    """With a fault that lasts longer than the wait before it is told."""
    process = await command(server, "jobs", "--url", "http://127.0.0.1:1")
    assert process.stderr is not None
    async with asyncio.timeout(30):
        line = (await process.stderr.readline()).decode()
    process.kill()
    await process.communicate()  # to the end of its pipes: what is left of them at the loop's end warns of it
    words = (
        "horae: cannot reach the cluster: http://127.0.0.1:1: connection refused; retrying, each call for 30 s at most"
    )
    assert line.strip() == words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["HORAE_URL", "HORAE_TOKEN", "now or later"]),
        (["jobs", "--help"], ["HORAE_URL", "HORAE_TOKEN", "Default: 30.", "http://127.0.0.1:7070"]),
        (["--version"], [f"horae {version('horae')}"]),
    ],
)
def test_the_help_says_what_is_there(arguments: list[str], words: list[str]) -> None:
    got = CliRunner().invoke(main_group, arguments)
    assert got.exit_code == 0
    assert [word for word in words if word not in " ".join(got.stdout.split())] == []


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


FULL: dict[str, Any] = {
    "state": "running",
    "attempt": 3,
    "tags": {"team": "a", "run": "7"},
    "started_at": "2026-11-29T12:00:01.000Z",
    "lease_expires_at": "2026-11-29T12:00:31.000Z",
    "worker": "vm:2",
    "errors": [
        {"attempt": 1, "type": "E", "message": "first", "traceback": None, "at": moment(1), "worker": "vm:1"},
        {
            "attempt": 2,
            "type": "E",
            "message": "second",
            "traceback": "Trace\n  in f\n",
            "at": moment(2),
            "worker": None,
        },
    ],
}
FULL["last_error"] = FULL["errors"][-1]


async def test_a_job_shows_who_runs_it_and_how_it_failed(server: FakeServer) -> None:
    server.add("t", job_id="x")
    server.fault("/v1/jobs/x", _ok(_view(server.jobs["x"]) | FULL))
    shown = (await run(server, "job", "x")).stdout
    assert [line.split("  ")[0] for line in shown.splitlines()] == [
        "id", "task", "queue", "state", "attempt", "tags", "run at", "started at", "worker", "lease ends", "earlier",
        "last error", "traceback", "",
    ]  # fmt: skip
    for words in (
        "team=a, run=7",
        "2026-11-29 12:00:31.000Z",
        "E: first (attempt 1 by vm:1, 2026-11-29 12:00:01.000Z)",
        "E: second (attempt 2, 2026-11-29 12:00:02.000Z)",
        "in f",
    ):
        assert words in shown


EVIL = "a\x1b]0;title\x07b\x9b31mc\x7f\r\nd\te"
SHOWN = r"a\x1b]0;title\x07b\x9b31mc\x7f\r\nd\te"


async def test_control_characters_are_shown_not_sent(server: FakeServer) -> None:
    """In all that is for people; JSON is for programs, which get what is there."""
    error = {**FULL["errors"][1], "type": EVIL, "message": EVIL, "worker": EVIL, "traceback": f"Trace\n\t{EVIL}\n"}
    said = {"task": EVIL, "queue": EVIL, "worker": EVIL, "tags": {EVIL: EVIL}, "payload": EVIL, "progress": EVIL}
    job = FULL | said | {"errors": [error | {"attempt": 1}, error], "last_error": error}
    server.add("t", job_id="x")
    server.fault("/v1/jobs/x", *(_ok(_view(server.jobs["x"]) | job) for _ in range(2)))
    shown = (await run(server, "job", "x")).stdout
    assert [char for char in shown if char != "\n" and not char.isprintable()] == []
    assert shown.count(SHOWN) == 11, "task, queue, worker, both sides of a tag; type, message and worker of two errors"
    assert r"\u001b]0;title\u0007b\u009b31mc\u007f" in shown, "a value stays JSON"
    below = shown[shown.index("Trace") :].splitlines()
    assert [line.strip() for line in below] == ["Trace", r"a\x1b]0;title\x07b\x9b31mc\x7f\r", "d       e"]
    assert json.loads((await run(server, "job", "x", "--json")).stdout)["task"] == EVIL
    server.fault("/v1/jobs", _ok({"jobs": [_view(server.jobs["x"]) | job], "next_cursor": None}))
    assert SHOWN in (await run(server, "jobs")).stdout


async def test_control_characters_of_an_error_and_of_a_member_are_shown(server: FakeServer) -> None:
    server.fault("/v1/jobs/x", problem("not_found", 404, detail=EVIL))
    got = await run(server, "job", "x")
    assert got.stderr == "horae: not_found: a\\x1b]0;title\\x07b\\x9b31mc\\x7f d e\n"
    server.fault("/v1/cluster", _ok(cluster_view(EVIL, EVIL) | {"cluster": EVIL, "leader": EVIL}))
    shown = (await run(server, "cluster")).stdout
    assert shown.count(SHOWN) == 4
    assert "\x1b" not in shown


async def test_no_line_ends_in_blanks(server: FakeServer) -> None:
    server.add("t", job_id="x")
    server.add("t", job_id="a-much-longer-id")
    server.fault("/v1/jobs/x", _ok(_view(server.jobs["x"]) | FULL))
    for arguments in (("jobs",), ("job", "x")):
        lines = (await run(server, *arguments)).stdout.splitlines()
        assert len(lines) > 2
        assert [line for line in lines if line != line.rstrip()] == []


async def test_a_wait_tells_what_holds_the_job_up(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.add("t", job_id="x")
    ready = _view(server.jobs["x"])
    failed = ready | {"state": "pending", "attempt": 1, "last_error": FULL["errors"][0], "run_at": moment(30)}
    done = ready | {"state": "succeeded"}
    server.fault("/v1/jobs/x", *map(_ok, (ready, ready, ready, failed, failed, failed | {"state": "ready"}, done)))

    def wait() -> Job:
        with Client(server.url) as client:
            return _wait(client, convert(ready, Job), inf, look_seconds=0.0)

    assert (await asyncio.to_thread(wait)).state == "succeeded"
    assert capsys.readouterr().err.splitlines() == [
        "horae: job x: no worker has taken it yet: does one serve the queue default?",
        "horae: job x: attempt 1 of 5 failed: E: first; next try at 2026-11-29 12:00:30.000Z",
    ]


async def test_a_running_job_that_is_cancelled_is_told_when(server: FakeServer) -> None:
    job_id = server.add("t")
    server._grant(job_id)
    got = await run(server, "cancel", job_id)
    words = "is running: its worker is told at its next heartbeat, within about 10 s"
    assert (got.exit_code, got.stderr) == (0, f"horae: job {job_id} {words}\n")


def test_trouble_is_told_once_and_by_its_kind(capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(["http://a"], None, False, 30.0, True)
    target._tell("http://a: no_leader: none", 2.0, "not_serving")
    target._tell("http://a: queue 'q' is full", 2.0, "turned_away")
    target._tell("http://a: connection refused", 2.0, "unreachable")
    target._tell(None, 3.0, "not_serving")
    assert capsys.readouterr().err.splitlines() == [
        "horae: the cluster does not serve now: http://a: no_leader: none; retrying, each call for 30 s at most",
        "horae: the cluster turns the call away: http://a: queue 'q' is full; retrying, each call for 30 s at most",
        "horae: cannot reach the cluster: http://a: connection refused; retrying, each call for 30 s at most",
        "horae: answered again",
    ]


def test_the_worker_takes_no_flag_that_does_nothing() -> None:
    shown = CliRunner().invoke(main_group, ["worker", "--help"]).stdout
    assert re.findall(r"--[a-z]+", shown) == ["--url", "--token", "--help"]


def test_the_help_names_what_is_below_cluster() -> None:
    shown = " ".join(CliRunner().invoke(main_group, ["--help"]).stdout.split())
    assert "cluster Show the members; add, move, remove one, hand over the lead." in shown


async def test_several_urls_in_one_variable_are_all_asked(server: FakeServer) -> None:
    environ = {"HORAE_URL": f"http://127.0.0.1:1,{server.url}", "HORAE_TOKEN": ""}
    got = await asyncio.to_thread(CliRunner().invoke, main_group, ["jobs"], env=environ)
    assert got.exit_code == 0


async def test_cancel(server: FakeServer) -> None:
    job_id = server.add("t")
    assert (await run(server, "cancel", job_id)).exit_code == 0
    assert server.jobs[job_id]["state"] == "cancelled"
    assert (await run(server, "cancel", job_id)).exit_code == 1


# ---------------------------------------------------------------- members


PLACES = ("--raft", "10.0.0.4:7071", "--http", "http://10.0.0.4:7070")


async def test_many_jobs_are_requeued_page_after_page(server: FakeServer) -> None:
    server.fault("/v1/jobs/requeue", _ok({"count": 2, "next_cursor": "c"}), _ok({"count": 0, "next_cursor": None}))
    got = await run(server, "requeue", "--queue", "mail", "--tag", "tenant:acme")
    assert (got.exit_code, got.stdout) == (0, "2 jobs requeued\n")
    wanted = {"queue": "mail", "tag": "tenant:acme"}
    assert server.sent("/v1/jobs/requeue") == [
        {"filter": wanted, "cursor": None},
        {"filter": wanted, "cursor": "c"},
    ]


async def test_many_jobs_are_cancelled(server: FakeServer) -> None:
    server.fault("/v1/jobs/cancel", _ok({"count": 1, "next_cursor": None}), _ok({"count": 1, "next_cursor": None}))
    got = await run(server, "cancel", "--all")
    assert (got.exit_code, got.stdout) == (0, "1 job cancelled, or asked to stop where running\n")
    assert server.sent("/v1/jobs/cancel") == [{"filter": {}, "cursor": None}]
    assert json.loads((await run(server, "cancel", "--task", "t", "--json")).stdout) == {"count": 1}


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_many_jobs_are_never_meant_by_accident(verb: str) -> None:
    got = CliRunner().invoke(main_group, [verb])
    assert (got.exit_code, got.stderr) == (
        2,
        "horae: give an ID, or say which jobs: --queue, --state, --task, --tag, or --all\n",
    )
    got = CliRunner().invoke(main_group, [verb, "j1", "--queue", "mail", "--task", "t"])
    assert (got.exit_code, got.stderr) == (2, "horae: give an ID or --queue, --task, not both\n")
    got = CliRunner().invoke(main_group, [verb, "j1", "--all"])
    assert (got.exit_code, got.stderr) == (2, "horae: give an ID or --all, not both\n")


async def test_queues_are_listed(server: FakeServer) -> None:
    depth = {"pending": 1, "ready": 20, "running": 0, "succeeded": 0, "dead": 3, "cancelled": 0, "expired": 0}
    settings = {"paused": False, "max_running": None, "max_running_per_key": 1, "rate_per_second": None}
    settings |= {"burst": None, "max_depth": None, "rates": None}
    mail = {"name": "mail", "depth": depth, "oldest_ready_seconds": 1.25} | settings | {"paused": True}
    idle = {"name": "idle", "depth": depth | {"ready": 0}, "oldest_ready_seconds": None} | settings
    for _ in range(2):
        server.fault(
            "/v1/queues", _ok({"queues": [idle], "next_cursor": "c"}), _ok({"queues": [mail], "next_cursor": None})
        )
    got = await run(server, "queues")
    head, first, second = got.stdout.splitlines()
    assert head.split() == [
        *("queue", "pending", "ready", "running", "succeeded", "dead", "cancelled", "expired", "oldest", "ready"),
    ]
    assert (first.split(), second.split()) == (["idle", "1", "3"], ["mail", "1", "20", "3", "1.2", "s", "paused"])
    assert json.loads((await run(server, "queues", "--json")).stdout) == [idle, mail]


async def test_a_queue_is_shown_and_changed(server: FakeServer) -> None:
    depth = dict.fromkeys(("pending", "ready", "running", "succeeded", "dead", "cancelled", "expired"), 0)
    shown = {"name": "mail", "depth": depth, "oldest_ready_seconds": None, "paused": True, "rate_per_second": 2.5}
    server.fault("/v1/queues/mail", *[_ok(shown) for _ in range(3)])
    got = await run(server, "queue", "mail")
    assert got.stdout.splitlines()[-1] == "paused  max running per key 1  rate per second 2.5"
    got = await run(server, "queue", "mail", "--pause", "--rate", "2.5", "--max-depth", "none", "--json")
    assert json.loads(got.stdout)["paused"] is True
    assert server.requests[-1][1] == {"paused": True, "rate_per_second": 2.5, "max_depth": None}
    got = await run(server, "queue", "mail", "--resume")
    assert server.requests[-1][1] == {"paused": False}


def test_a_limit_is_a_number_or_none() -> None:
    got = CliRunner().invoke(main_group, ["queue", "mail", "--max-running", "many"])
    assert got.exit_code == 2
    assert "'many' is neither a whole number nor `none`" in got.stderr


@pytest.mark.parametrize(
    ("arguments", "path", "answer", "says"),
    [
        (("add", "n4", *PLACES), "", {"node": "n4", "standing": "voter"}, "n4 counts"),
        (("add", "n4", *PLACES), "", {"node": "n4", "standing": "learner"}, "n4 is in, and still catches up"),
        (
            ("add", "n4", *PLACES),
            "",
            {"node": "n4", "standing": "learner", "connected": False},
            "n4 is added, but not reachable at 10.0.0.4:7071: start it with `join`",
        ),
        (
            ("move", "n4", *PLACES),
            "/n4",
            {"node": "n4", "standing": "voter"},
            "n4 is reached at 10.0.0.4:7071 and http://10.0.0.4:7070 now\n",
        ),
        (("remove", "n4"), "/n4", {"node": "n4", "standing": "removed"}, "n4 is a member no more"),
    ],
)
async def test_members_are_changed(
    server: FakeServer, arguments: tuple[str, ...], path: str, answer: dict[str, object], says: str
) -> None:
    server.fault(f"/v1/cluster/members{path}", _ok(answer), _ok(answer))
    got = await run(server, "cluster", *arguments)
    assert (got.exit_code, got.stderr) == (4 if answer["standing"] == "learner" else 0, "")
    assert got.stdout.startswith(says)
    assert json.loads((await run(server, "cluster", *arguments, "--json")).stdout) == {"connected": None} | answer


async def test_a_new_members_addresses_are_sent(server: FakeServer) -> None:
    server.fault("/v1/cluster/members", _ok({"node": "n4", "standing": "voter"}))
    await run(server, "cluster", "add", "n4", *PLACES)
    sent = {"node": "n4", "raft_address": "10.0.0.4:7071", "http_url": "http://10.0.0.4:7070"}
    assert server.sent("/v1/cluster/members") == [sent]


async def test_the_lead_is_handed_over(server: FakeServer) -> None:
    server.fault("/v1/cluster/leader", _ok({"leader": "n2", "leader_url": "http://n2"}))
    got = await run(server, "cluster", "lead", "n2")
    assert (got.exit_code, got.stdout) == (0, "n2 leads\n")
    assert server.sent("/v1/cluster/leader") == [{"node": "n2"}]


async def test_a_refused_change_says_why(server: FakeServer) -> None:
    server.fault("/v1/cluster/members/n2", problem("conflict", 409, detail="a change without quorum"))
    got = await run(server, "cluster", "remove", "n2")
    assert (got.exit_code, got.stderr) == (1, "horae: conflict: a change without quorum\n")


async def test_flags_of_the_command_above_hold(server: FakeServer) -> None:
    server.fault("/v1/cluster/leader", _ok({"leader": "n2", "leader_url": None}))
    words = ["cluster", "--url", server.url, "--json", "lead", "n2"]
    got = await asyncio.to_thread(CliRunner().invoke, main_group, words, env={"HORAE_URL": "", "HORAE_TOKEN": ""})
    assert json.loads(got.stdout) == {"leader": "n2", "leader_url": None}
