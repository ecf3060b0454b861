"""A worker that runs commands, as a crontab's: `horae worker horae.shell:worker`.

The payload is `{"command", "stdin", "env", "user"}`; a shell (`SHELL` of `env`, or /bin/sh) runs the command, in a
process group of its own, which is ended when the attempt is: cancelled, out of time, its lease lost. Exit code 0 is
success, with the end of what it printed as the result; any other one, or a signal, fails the attempt. Whoever may
submit to its queue runs commands as its user: give it a queue, and tokens, of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from contextlib import suppress
from typing import Any, Final

from horae.client import DEFAULT_URL
from horae.errors import Dead
from horae.registry import Context
from horae.worker import Worker

QUEUE: Final = os.environ.get("HORAE_QUEUE") or "cron"
TASK: Final = "command"
KEPT_CHARS: Final = 4000
"""Of each output: its end tells the most."""
END_SECONDS: Final = 5.0
"""Between SIGTERM and SIGKILL, to the whole process group."""

worker = Worker(
    os.environ.get("HORAE_URL") or DEFAULT_URL,
    queues=[QUEUE],
    token=os.environ.get("HORAE_TOKEN") or None,
)


class CommandFailed(Exception):
    """The exit code or the signal, and the end of what the command printed."""


@worker.task(TASK)
async def run_command(
    context: Context, command: str, stdin: str | None = None, env: dict[str, str] | None = None, user: str | None = None
) -> dict[str, Any]:
    """What it printed, once it has ended well."""
    if user is not None and user != _own_name():
        raise Dead(f"this worker runs as {_own_name()}, the command is {user}'s: run one for it, on a queue of its own")
    said = env or {}
    process = await asyncio.create_subprocess_exec(
        *(said.get("SHELL", "/bin/sh"), "-c", command),
        env={**os.environ, "HORAE_EXECUTION_ID": context.execution_id, **said},
        cwd=said.get("HOME"),
        stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        printed, complained, _ = await asyncio.gather(
            _end_of(process.stdout), _end_of(process.stderr), _feed(process.stdin, stdin)
        )
        code = await process.wait()
    except BaseException:  # the attempt is over, and the command with it
        await _end_group(process)
        raise
    if code:
        how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        raise CommandFailed(f"{how}\n{complained or printed}".strip())
    return {"stdout": printed, "stderr": complained}


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """The last of what comes, however much that is."""
    assert stream is not None
    kept: deque[bytes] = deque()
    size = 0
    while part := await stream.read(1 << 16):
        kept.append(part)
        size += len(part)
        while size - len(kept[0]) > KEPT_CHARS * 4:
            size -= len(kept.popleft())
    return b"".join(kept).decode(errors="replace").replace("\0", "\ufffd")[-KEPT_CHARS:]


async def _feed(stream: asyncio.StreamWriter | None, text: str | None) -> None:
    if stream is None or text is None:
        return
    with suppress(ConnectionError, RuntimeError):  # it has ended, or reads no more: uvloop says so by the second
        stream.write(text.encode())
        await stream.drain()
    stream.close()


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """All that the command began and did not end: in order, and then at once."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()


def _own_name() -> str:
    import pwd  # not on Windows

    return pwd.getpwuid(os.geteuid()).pw_name


if __name__ == "__main__":
    worker.run()
