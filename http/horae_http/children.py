"""Child processes that are watched, started again when they end by themselves, and never outlive their parent.

A child runs through this file's own `__main__`: it dies with its parent (Linux: the kernel kills it; everywhere: its
standard input, a pipe that only the parent holds, comes to its end), then becomes the module it was started for.
It imports nothing from the directory it is started in, where a module may be called like one of the library.
Not here: what the children are, or what to do when all are up (`dev.py`, next to read).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

RESTART_FIRST_S = 1.0
RESTART_MAX_S = 30.0
"""A child that ends at once again and again is tried ever more rarely; one that ran for so long, at the first delay."""
EXIT_REFUSED = 2
REFUSALS_MAX = 3
"""Starts in a row that a child refused, once it was seen to work."""
_PR_SET_PDEATHSIG = 1
_LAST_WORDS_S = 1.0
_READ_BYTES = 65536


class Child:
    """One supervised process. `supervise()` is its task; `stop()` ends it for good. Lines go to `say(name, line)`.

    `refused` is set when it says at its first start that it cannot (exit code 2): its own line says why.
    """

    def __init__(
        self,
        name: str,
        module: str,
        args: Sequence[str],
        env: Mapping[str, str],
        say: Callable[[str, str], None],
        refused: asyncio.Event,
        *,
        restart_first_s: float = RESTART_FIRST_S,
    ) -> None:
        self.name = name
        self.process: asyncio.subprocess.Process | None = None
        self.settled = False
        """Set by the owner once the child was seen to work: from then on exit code 2 ends it only when it comes again
        and again, for what holds a port may just be going."""
        self._refused = refused
        self._restart_first_s = restart_first_s
        self._argv = [sys.executable, "-P", "-m", "horae_http.children", str(os.getpid()), module, *args]
        self._env = dict(env)
        self._say = say
        self._starts = 0
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    async def supervise(self) -> None:
        """Start, pass its lines on, start again; returns after `stop()` or a refused start."""
        delay_s = self._restart_first_s
        refusals = 0
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping.is_set():
                started = loop.time()
                code = await self._run_once()
                if self._stopping.is_set():
                    return
                if code == EXIT_REFUSED and not self.settled:
                    self._refused.set()
                    return
                refusals = refusals + 1 if code == EXIT_REFUSED else 0
                if refusals == REFUSALS_MAX:
                    self._say("dev", f"{self.name} cannot start, its line above says why; it is not started again")
                    return
                delay_s = self._restart_first_s if loop.time() - started > RESTART_MAX_S else delay_s
                self._say("dev", f"{self.name} ended by itself ({_how(code)}); it starts again in {delay_s:g} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
                delay_s = min(delay_s * 2, RESTART_MAX_S)
        finally:
            self._ended.set()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and after `grace_s` SIGKILL; returns when it has ended. `supervise` must be running."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._ended.wait(), grace_s)
        except TimeoutError:
            self._say("dev", f"{self.name} did not end within {grace_s:g} s and is killed")
            self.signal(signal.SIGKILL)
            await self._ended.wait()

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on, if the process lives."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def _run_once(self) -> int:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            env=self._env,
            process_group=0,  # Ctrl-C reaches the parent alone, which stops its children in order
        )
        self._starts += 1
        if self._stopping.is_set():  # stop() came while it was being started
            self.signal(signal.SIGTERM)
        elif self._starts > 1:
            self._say("dev", f"{self.name} is started again, pid {self.process.pid}")
        assert self.process.stdout is not None
        pump = asyncio.create_task(self._pass_on(self.process.stdout))
        try:
            code = await self.process.wait()
            await asyncio.wait([pump], timeout=_LAST_WORDS_S)
            return code
        finally:
            pump.cancel()

    async def _pass_on(self, stream: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stream.read(_READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._say(self.name, line.decode(errors="replace"))
        if rest:
            self._say(self.name, rest.decode(errors="replace"))


def die_with_parent(parent_pid: int) -> None:
    """End this process (SIGKILL) when the process `parent_pid`, which started it with a pipe as its input, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=_watch_input, name="parent-watch", daemon=True).start()


def _watch_input() -> None:
    while os.read(0, _READ_BYTES):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    module_name = sys.argv[2]
    sys.argv[:] = [module_name, *sys.argv[3:]]
    runpy.run_module(module_name, run_name="__main__", alter_sys=True)
