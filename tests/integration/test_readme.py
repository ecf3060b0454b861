"""The README's examples do what it says, as a newcomer would type them: on one real node, with the worker it shows.

Every Python block but the worker runs as a program of its own; each line of a shell block that is a user command runs,
in the order of the page; a block of `curl` that keeps a token runs as a whole. Not here: `horae dev` (`test_dev.py`),
installing.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.helpers.cluster import Cluster, clean_environ, running_cluster

pytestmark = pytest.mark.cluster

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LIMIT_S = 60
URL = re.compile(r"http://127\.0\.0\.1:707[0-2]")
USER_COMMANDS = ("submit", "job", "jobs", "cancel", "requeue", "wait", "cluster")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def scripts() -> list[str]:
    """The shell blocks that keep something from one line for the next: they run as a whole."""
    return [block for block in blocks("sh") if "=$(" in block]


def shell_lines() -> list[list[str]]:
    whole = scripts()
    typed = [block for block in blocks("sh") if block not in whole]
    lines = [shlex.split(line, comments=True) for block in typed for line in block.splitlines()]
    return [line for line in lines if line and (line[0] == "curl" or (line[0] == "horae" and line[1] in USER_COMMANDS))]


class Newcomer:
    """Types what the README shows, against this cluster, in a directory of their own."""

    def __init__(self, home: Path, cluster: Cluster) -> None:
        self.home = home
        self.url = cluster.nodes[0].url
        self.environ = clean_environ() | {"HORAE_URL": self.url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            *arguments, cwd=self.home, env=self.environ, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )

    async def run(self, *arguments: str) -> str:
        """What it printed. Raises: AssertionError unless it exits with 0."""
        process = await self.start(*arguments)
        async with asyncio.timeout(LIMIT_S):
            printed, _ = await process.communicate()
        assert process.returncode == 0, f"{arguments}: exit code {process.returncode}\n{printed.decode()}"
        return printed.decode()

    async def type(self, line: list[str]) -> str:
        line = [URL.sub(self.url, word) for word in line]
        return await self.run(*([sys.executable, "-m", "horae_http", *line[1:]] if line[0] == "horae" else line))

    @asynccontextmanager
    async def worker(self, *arguments: str) -> AsyncIterator[None]:
        process = await self.start(sys.executable, *arguments)
        try:
            yield
        finally:
            process.terminate()
            async with asyncio.timeout(LIMIT_S):
                printed, _ = await process.communicate()
            assert b"worker_started" in printed


async def test_every_example_works(tmp_path: Path) -> None:
    (worker,) = [block for block in blocks("python") if "worker.run()" in block]
    programs = [block for block in blocks("python") if block != worker]
    async with running_cluster(tmp_path / "cluster", nodes=1) as cluster:
        newcomer = Newcomer(tmp_path, cluster)
        (tmp_path / "shop.py").write_text(URL.sub(newcomer.url, worker), encoding="utf-8")
        async with newcomer.worker("-m", "horae.demo"), newcomer.worker("-m", "horae_http", "worker", "shop:worker"):
            printed = {
                " ".join(line): await newcomer.type(line)
                for line in shell_lines()
                if line[0] == "horae" or shutil.which("curl")
            }
            by_hand = [await newcomer.run("sh", "-ec", URL.sub(newcomer.url, script)) for script in scripts()]
            results = [await newcomer.run(sys.executable, "-c", URL.sub(newcomer.url, text)) for text in programs]
    assert {line.split()[1] for line in printed if line.startswith("horae")} == set(USER_COMMANDS)
    assert any("succeeded" in text and '{"shipped":7,"express":false}' in text for text in printed.values())
    assert any("2 of 5" in text and "receipt" in text for text in printed.values())
    (answers,) = by_hand
    assert '"status":"ok"' in answers
    assert answers.rpartition('"state":')[2].startswith('"succeeded"')
    assert results[0].splitlines() == ["{'shipped': 9, 'express': False}", "dead nothing to charge"]
    assert results[1].splitlines() == ["ready {'shipped': 10, 'express': False}"]
    assert results[2].splitlines() == [str(sum(range(100)))]


def test_the_worker_of_the_readme_is_run_by_both_ways_that_it_names() -> None:
    assert any("python shop.py &" in block and "horae worker shop:worker" in block for block in blocks("sh"))
