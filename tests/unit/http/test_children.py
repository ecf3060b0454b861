"""Supervised children: their lines, their restarts, their end; and that none outlives its parent."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from horae_http.children import REFUSALS_MAX, Child

pytestmark = [pytest.mark.timeout(60)]
LIMIT_S = 30
"""A bound against hanging, never a measure."""


class Lines:
    """What the children said, to be waited for."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def say(self, name: str, line: str) -> None:
        self.seen.append((name, line))
        self._more.set()

    async def wait_for(self, name: str, start: str, *, times: int = 1) -> None:
        async with asyncio.timeout(LIMIT_S):
            while sum(n == name and line.startswith(start) for n, line in self.seen) < times:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Child]:
    def make_child(source: str, lines: Lines, refused: asyncio.Event, *args: str) -> Child:
        (tmp_path / "sample.py").write_text(textwrap.dedent(source), encoding="utf-8")
        env = {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1", "PATH": os.environ["PATH"]}
        return Child("c", "sample", args, env, lines.say, refused, restart_first_s=0.01)

    return make_child


@asynccontextmanager
async def supervised(child: Child) -> AsyncIterator[None]:
    task = asyncio.create_task(child.supervise())
    try:
        yield
    finally:
        await child.stop(5)
        await task


WAITS = "import signal, sys\nprint('up', *sys.argv[1:])\nsignal.pause()\n"


async def test_its_lines_are_passed_on_and_its_arguments_given(make):
    lines, refused = Lines(), asyncio.Event()
    async with supervised(make(WAITS, lines, refused, "--flag=1")):
        await lines.wait_for("c", "up --flag=1")
    assert not refused.is_set()


async def test_lines_longer_than_any_buffer_and_a_last_one_without_an_end_arrive(make):
    lines = Lines()
    source = "import sys\nsys.stdout.write('x' * 300000 + '\\ntail')\nraise SystemExit(2)"
    async with asyncio.timeout(LIMIT_S):
        await make(source, lines, asyncio.Event()).supervise()
    assert lines.seen == [("c", "x" * 300000), ("c", "tail")]


async def test_a_child_that_dies_is_named_and_started_again(make):
    lines = Lines()
    child = make(WAITS, lines, asyncio.Event())
    async with supervised(child):
        await lines.wait_for("c", "up")
        child.signal(signal.SIGKILL)
        await lines.wait_for("c", "up", times=2)
        assert child.process is not None
        assert ("dev", f"c is started again, pid {child.process.pid}") in lines.seen
    assert ("dev", "c ended by itself (killed by SIGKILL); it starts again in 0.01 s") in lines.seen
    assert sum("is started again" in line for _, line in lines.seen) == 1


async def test_a_refused_first_start_is_not_tried_again(make):
    lines, refused = Lines(), asyncio.Event()
    child = make("print('port 1 is in use')\nraise SystemExit(2)", lines, refused)
    async with asyncio.timeout(LIMIT_S):
        await child.supervise()
    assert refused.is_set()
    assert lines.seen == [("c", "port 1 is in use")]


async def test_once_settled_exit_code_2_is_tried_again_and_not_for_ever(make):
    """What holds the port may just be going; who was removed from its cluster is so for good."""
    lines, refused = Lines(), asyncio.Event()
    child = make("print('up')\nraise SystemExit(2)", lines, refused)
    child.settled = True
    async with asyncio.timeout(LIMIT_S):
        await child.supervise()
    assert not refused.is_set()
    assert [line for name, line in lines.seen if name == "c"] == ["up"] * REFUSALS_MAX
    assert "it is not started again" in lines.seen[-1][1]


async def test_stop_asks_first(make):
    lines = Lines()
    source = """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: (print("bye"), sys.exit(0)))
        print("up")
        while True:
            signal.pause()
    """
    async with supervised(make(source, lines, asyncio.Event())):
        await lines.wait_for("c", "up")
    assert ("c", "bye") in lines.seen


async def test_stop_kills_one_that_does_not_listen(make):
    lines = Lines()
    source = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up")
        while True:
            signal.pause()
    """
    child = make(source, lines, asyncio.Event())
    task = asyncio.create_task(child.supervise())
    await lines.wait_for("c", "up")
    await child.stop(0.05)
    await task
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL


async def test_nothing_is_imported_from_the_directory_that_it_is_started_in(make, tmp_path, monkeypatch):
    """The child's own start imports these, and so would every library later."""
    own = tmp_path / "own"
    own.mkdir()
    for name in ("asyncio", "queue", "runpy", "sample"):
        (own / f"{name}.py").write_text("raise SystemExit('not the one that was meant')\n", encoding="utf-8")
    monkeypatch.chdir(own)
    lines = Lines()
    async with supervised(make("import queue\nprint('up', queue.Queue.__name__)\n" + WAITS, lines, asyncio.Event())):
        await lines.wait_for("c", "up Queue")


@pytest.mark.skipif(sys.platform != "linux", reason="waits on a pidfd")
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_no_child_outlives_a_parent_that_was_killed(tmp_path: Path, stopped: bool):
    (tmp_path / "sample.py").write_text("import os, signal\nprint('pid', os.getpid())\nsignal.pause()\n")
    source = """
        import asyncio, os
        from horae_http.children import Child
        def say(name, line):
            print(line, flush=True)
        asyncio.run(Child("c", "sample", [], dict(os.environ), say, asyncio.Event()).supervise())
    """
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[1])
        watch = os.pidfd_open(pid)
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        gone, _, _ = select.select([watch], [], [], LIMIT_S)
        os.close(watch)
        assert gone
    finally:
        parent.kill()
        parent.communicate()
