"""`horae dev`: a whole cluster on this machine, for trying it out: three nodes, a demo worker, one job run through.

Nodes are real processes on loopback with real data under `.horae/`; a second start finds its jobs again. Ids are names:
Raft ports are chosen anew at each start. Not for production: no tokens, one machine. Not here: how a child is kept and
ended (`children.py`), directory and ports (`dev_place.py`), what a node does (`main.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from horae_http.children import Child
from horae_http.dev_place import (
    DevOptions,
    child_env,
    choose_raft_ports,
    count_nodes,
    made_nodes,
    node_args,
    note_layout,
    own_data_dir,
    require_free_ports,
)
from horae_http.ending import hang_up_stops, ignore_signals, say_last
from horae_node.errors import ConfigError

READY_S: Final = 30.0
JOB_S: Final = 20.0
STOP_S: Final = 10.0
POLL_S: Final = 0.05
RETRY_S: Final = 0.5
ONE_WISH_S: Final = 0.5
"""Signals so close together are one wish to stop: a wrapper passes on what its process group has heard already."""

LOOK_S: Final = 1.0
"""How often the nodes are asked who leads: a person who has just killed the leader is waiting to see it."""
_COLOURS: Final = (36, 33, 35, 32, 34)
"""Of the nodes, by their number: n2 has the same at every start."""
_OTHER_COLOURS: Final = {"worker": 94, "dev": 90}
_NAME_WIDTH: Final = 6
_LEVEL: Final = slice(24, 30)
"""Where a log line has its level, after the time."""

T = TypeVar("T")


def run_dev(options: DevOptions) -> int:
    """Run the cluster until Ctrl-C, SIGTERM or SIGHUP.

    The exit code: 0, 1 (it did not come up), 2 (cannot start: one line says why).
    """
    try:
        with own_data_dir(options):
            require_free_ports(options)
            run = _Dev(options)
            note_layout(options)
            return asyncio.run(run.run())
    except ConfigError as error:
        say_last(error)
        return 2


class Printer:
    """Lines of several processes on one output, each with its origin; coloured on a terminal.

    What cannot be printed is left out: the run goes on, and stops in order, on a full disk and without its terminal.
    `on_closed` is called once, when nobody reads the output any more.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._closed = False
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def say(self, name: str, line: str) -> None:
        prefix = f"{name:<{_NAME_WIDTH}} |"
        if self._coloured:
            prefix = f"\x1b[{colour_of(name)}m{prefix}\x1b[0m"
        self.write(f"{prefix} {line}")

    def write(self, text: str) -> None:
        if self._closed:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:
            self._closed = True
            self._on_closed()
        except OSError:  # a disk may have room again, and whoever closes a terminal tells by SIGHUP
            pass


def colour_of(name: str) -> int:
    """The code of a process's colour, the same at every start."""
    return _OTHER_COLOURS[name] if name in _OTHER_COLOURS else _COLOURS[(int(name[1:]) - 1) % len(_COLOURS)]


class _Dev:
    """One run: owns the children, the signals and what is printed."""

    def __init__(self, options: DevOptions) -> None:
        self._options = options
        self._urls = list(options.urls.values())
        self._stop = asyncio.Event()
        self._told_at = 0.0
        self._ending = False
        self._leader: str | None = None
        self._printer = Printer(self._stop.set)
        self._refused = asyncio.Event()
        self._again = bool(made_nodes(options))
        args = node_args(options, choose_raft_ports(options))
        self._nodes = [self._child(name, "horae_http", flags) for name, flags in args.items()]
        self._worker = self._child("worker", "horae.demo", [])
        self._running: list[Child] = []

    def _child(self, name: str, module: str, args: list[str]) -> Child:
        env = child_env(os.environ)
        if module == "horae.demo":
            env["HORAE_URL"] = ",".join(self._urls)
        return Child(name, module, args, env, self._say, self._refused)

    def _say(self, name: str, line: str) -> None:
        """A line of a child's, or about one. At the end only what may matter: how a node stops is no news."""
        if not (self._ending and line[_LEVEL] == " info "):
            self._printer.say(name, line)

    async def run(self) -> int:
        self._handle_signals()
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    return await self._serve(group)
                finally:
                    await self._stop_all()
        finally:
            ignore_signals()

    async def _serve(self, group: asyncio.TaskGroup) -> int:
        self._printer.say("dev", f"starting {count_nodes(len(self._nodes))}, data in {self._options.data_dir}")
        self._start(group, self._nodes)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=JOB_S)) as session:
            if await self._until(self._wait_ready(session), READY_S) is None:
                return self._why_not_ready()
            if self._options.worker:
                self._start(group, [self._worker])
                if not await self._until(self._run_demo_job(session), JOB_S) and not self._stop.is_set():
                    self._printer.say("dev", f"the demo job was not done within {JOB_S:g} s; the lines above say why")
            seen = await self._until(self._wait_leader(session), JOB_S)
            if not self._stop.is_set():
                self._printer.write(welcome(self._options, self._leader, self._pids()))
                await self._watch_leader(session, seen or (0, None))
        return 0

    def _start(self, group: asyncio.TaskGroup, children: list[Child]) -> None:
        for child in children:
            group.create_task(child.supervise())
            self._running.append(child)

    async def _stop_all(self) -> None:
        """The worker first: it still reports what it did; then who follows, and last who leads: a leader that stops
        looks for a successor, and would take one that stops as well. Signals now hurry the rest.
        """
        self._printer.say("dev", "stopping")
        self._ending = True
        leader = [child for child in self._running if child.name == self._leader]
        worker = [child for child in self._running if child is self._worker]
        followers = [child for child in self._running if child not in leader and child not in worker]
        for children in (worker, followers, leader):
            await asyncio.gather(*(self._stop_one(child) for child in children))

    async def _stop_one(self, child: Child) -> None:
        await child.stop(STOP_S)
        self._printer.say("dev", f"{child.name} has stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hang_up_stops() else [])):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._stop.is_set():
            self._told_at = now
            self._stop.set()
        elif now - self._told_at > ONE_WISH_S:  # the second time: at once
            for child in self._running:
                child.signal(signal.SIGKILL)

    async def _until(self, work: Coroutine[Any, Any, T], limit_s: float) -> T | None:
        """What `work` gives; None when told to stop, a child refused to start, or the time is up first."""
        task = asyncio.create_task(work)
        others = [asyncio.create_task(event.wait()) for event in (self._stop, self._refused)]
        try:
            await asyncio.wait([task, *others], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for pending in (task, *others):
                pending.cancel()
            await asyncio.gather(task, *others, return_exceptions=True)

    async def _wait_ready(self, session: aiohttp.ClientSession) -> bool:
        for child, url in zip(self._nodes, self._urls, strict=True):
            await _wait_until_ready(session, url)
            child.settled = True
        return True

    def _why_not_ready(self) -> int:
        if self._stop.is_set():
            return 0
        if self._refused.is_set():
            self._printer.say("dev", "a process cannot start; its line above says why")
            return 2
        self._printer.say("dev", f"the nodes were not ready within {READY_S:g} s; their lines above say why")
        return 1

    async def _run_demo_job(self, session: aiohttp.ClientSession) -> bool:
        """Submit one job to any node and print what became of it."""
        url = self._urls[0]
        job = await _call(session, "POST", f"{url}/v1/jobs", {"task": "hello", "payload": {"name": "world"}})
        job_id = job["id"]
        self._printer.say("dev", f"submitted the demo job {job_id}")
        job = await _call(session, "GET", f"{url}/v1/jobs/{job_id}?wait_seconds={JOB_S - 5:g}")
        result = json.dumps(job["result"], ensure_ascii=False)
        self._printer.say("dev", f"the demo job {_ended(job['state'])}, attempt {job['attempt']}: {result}")
        self._worker.settled = True
        return True

    async def _wait_leader(self, session: aiohttp.ClientSession) -> tuple[int, str | None]:
        """The term and its leader."""
        view = await _call(session, "GET", f"{self._urls[0]}/v1/cluster")
        self._leader = view["leader"]
        if self._again:
            self._printer.say("dev", f"{self._options.data_dir} held a cluster: its jobs are here again")
        return view["term"], view["leader"]

    async def _watch_leader(self, session: aiohttp.ClientSession, seen: tuple[int, str | None]) -> None:
        """Say who leads whenever that changes, until told to stop."""
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_S)
            views = await asyncio.gather(*(_own_view(session, url) for url in self._urls))
            newest = newest_leader(views)
            if newest is not None and newest[0] > seen[0] and not self._stop.is_set():
                seen = newest
                self._leader = newest[1]
                self._printer.say("dev", f"{newest[1]} leads now, pid {self._pids().get(newest[1], '?')}")

    def _pids(self) -> dict[str, int]:
        return {child.name: child.process.pid for child in self._nodes if child.process is not None}


def _ended(state: str) -> str:
    return "succeeded" if state == "succeeded" else f"is {state}"


async def _wait_until_ready(session: aiohttp.ClientSession, url: str) -> None:
    limit = aiohttp.ClientTimeout(total=1)
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"{url}/readyz", timeout=limit) as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(POLL_S)


async def _own_view(session: aiohttp.ClientSession, url: str) -> Any:
    """Whom this node takes for the leader; None when it does not answer."""
    limit = aiohttp.ClientTimeout(total=LOOK_S)
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(f"{url}/v1/cluster?consistency=local", timeout=limit) as answer:
            return await answer.json() if answer.status == 200 else None
    return None


def newest_leader(views: Sequence[Any]) -> tuple[int, str] | None:
    """The newest term that has a leader, and who it is. Who was away for a while may still name an older one."""
    known = [(view["term"], view["leader"]) for view in views if view is not None and view["leader"] is not None]
    return max(known, default=None)


async def _call(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Any:
    """One call, tried again until the caller's deadline, as while the cluster elects. A submit may be made twice."""
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.request(method, url, json=body) as answer:
                if answer.status < 400:
                    return await answer.json()
        await asyncio.sleep(RETRY_S)


def command_name() -> str:
    """What the user types to get `horae`: its name when that is found, else its path."""
    own = Path(sys.argv[0])
    if own.name != "horae":
        return f"{sys.executable} -m horae_http"
    found = shutil.which("horae")
    if found is not None and Path(found).resolve() == own.resolve():
        return "horae"
    with contextlib.suppress(ValueError):
        return str(own.absolute().relative_to(Path.cwd()))
    return str(own)


def welcome(options: DevOptions, leader: str | None, pids: dict[str, int]) -> str:
    """What is printed once all is up: where everything is, and what to try next."""
    horae = command_name()
    curl = f"curl -s {options.urls['n1']}/v1/jobs"
    lines = [""]
    for name, url in options.urls.items():
        lines.append(f"  {name}  {url}  pid {pids.get(name, '?')}{'  leader' if name == leader else ''}")
    lines += ["", "  Try, in another terminal:", ""]
    lines += [f"    export HORAE_URL={','.join(options.urls.values())}"]
    if not options.worker:
        lines += [
            f"    {horae} worker horae.demo:worker &    (the demo worker, which this cluster was started without)"
        ]
    lines += [f'    {horae} submit hello --payload \'{{"name": "you"}}\' --wait']
    lines += [f'    {curl} -d \'{{"task": "add", "payload": {{"a": 1, "b": 2}}}}\'']
    lines += [f"    {horae} jobs", f"    {horae} cluster"]
    if leader in pids and options.nodes > 1:
        lines += [f"    kill -9 {pids[leader]}    (the leader: the others go on, and it is started again)"]
    lines += [
        "",
        f"  Ctrl-C stops everything. What was acknowledged stays in {options.data_dir} for the next start.",
        "",
    ]
    return "\n".join(lines)
