"""`horae backup` against a server that gives none: it says what the server said, and ends as the other commands do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from tests.helpers.fake_server import FakeServer, problem
from tests.helpers.loopback import free_port

from horae_http.cli import main_group


def ok(index: int = 7) -> web.Response:
    return web.json_response({"applied_index": index})


async def backup(to: Path, *urls: str, deadline: str = "20") -> Result:
    """In a thread: the command blocks, and the server is on this loop."""
    return await asyncio.to_thread(_backup, to, ["--url", ",".join(urls), "--deadline", deadline])


def _backup(to: Path, words: list[str]) -> Result:
    environ = {"HORAE_URL": "", "HORAE_TOKEN": ""}
    result = CliRunner().invoke(main_group, ["backup", str(to / "x"), *words], env=environ)
    assert list(to.iterdir()) == [], "nothing is left of it"
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result


@pytest.mark.parametrize(
    ("code", "status", "says", "ends"),
    [
        ("forbidden", 403, "forbidden: it takes admin\\x1b; give a token that may (--token, HORAE_TOKEN)", 1),
        ("rate_limited", 429, "rate_limited: it takes admin\\x1b", 1),
        ("no_leader", 503, "no_leader: it takes admin\\x1b; `horae cluster` shows what each node sees", 3),
    ],
)
async def test_the_servers_reason_is_told(tmp_path: Path, code: str, status: int, says: str, ends: int) -> None:
    async with FakeServer() as server:
        server.fault("/v1/cluster", ok())
        server.fault("/v1/backup", problem(code, status, detail="it takes admin\x1b"))
        got = await backup(tmp_path, server.url)
    assert (got.exit_code, got.stderr) == (ends, f"horae: {says}\n")


async def test_what_one_node_says_is_not_lost_to_the_next_ones_silence(tmp_path: Path) -> None:
    async with FakeServer() as server:
        server.fault("/v1/cluster", problem("unauthenticated", 401))
        got = await backup(tmp_path, server.url, f"http://127.0.0.1:{free_port()}")
    assert got.exit_code == 1
    assert got.stderr.startswith("horae: unauthenticated")


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a link to a pipe", "a link in a circle"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "x"
    if kind == "a directory":
        file.mkdir()
    elif kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a link to a pipe":
        os.mkfifo(tmp_path / "there")
        file.symlink_to("there")
    else:
        file.symlink_to("x")
    before = {path.name: os.lstat(path) for path in tmp_path.iterdir()}
    words = ["backup", str(file), "--force", "--url", f"http://127.0.0.1:{free_port()}"]
    got = CliRunner().invoke(main_group, words, env={"HORAE_URL": "", "HORAE_TOKEN": ""})
    assert got.exit_code == 2
    assert got.stderr.startswith(f"horae: {file} is no regular file: ")
    assert {path.name: os.lstat(path) for path in tmp_path.iterdir()} == before


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
    got = CliRunner().invoke(main_group, ["backup", str(tmp_path / ("x" * 300))])
    assert got.exit_code == 2
    assert got.stderr.endswith("cannot be written: File name too long\n")


async def test_no_node_and_no_horae_node_are_told(tmp_path: Path) -> None:
    got = await backup(tmp_path, f"http://127.0.0.1:{free_port()}")
    assert got.exit_code == 3
    assert got.stderr.startswith("horae: no node gave a backup")
    async with FakeServer() as server:
        server.fault("/v1/cluster", web.Response(status=502, text="<html>"))
        got = await backup(tmp_path, server.url)
        assert got.exit_code == 1
        assert f"{server.url} answered 502 Bad Gateway: no horae node" in got.stderr


async def test_the_deadline_ends_a_backup_that_does_not_come(tmp_path: Path) -> None:
    async with FakeServer() as server:
        server.fault("/v1/cluster", ok())
        server.fault("/v1/backup", "hang")
        got = await backup(tmp_path, server.url, deadline="0.3")
    assert got.exit_code == 3
    assert got.stderr.startswith("horae: no whole backup came in the 0.3 s of the deadline; is the cluster up at")
