"""A log that does what it is told: a group is a line of JSON on standard input; each durable number goes out."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import uvloop

from horae_storage.file_write import Watch
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog


def obey(log: LmdbRaftLog, call: list[Any]) -> None:
    name, *arguments = call
    if name in ("append", "reset"):
        entries = [LogEntry(b"%d@%d" % (i, t) + b"." * size, i, t) for i, t, size in arguments[0]]
        getattr(log, name)(entries)
    else:
        getattr(log, name)(*arguments)


async def main(directory: str, region_bytes: str, kind: str) -> None:
    loop = asyncio.get_running_loop()
    watch = Watch(loop.add_reader, loop.remove_reader) if kind == "kernel" else None
    log = LmdbRaftLog(Path(directory), loop.call_soon_threadsafe, watch=watch, region_bytes=int(region_bytes))
    log.load()
    log.on_durable(lambda number: os.write(1, b"%d\n" % number))  # type: ignore[arg-type]
    log.on_failure(lambda error: os.write(1, f"failed {error}\n".encode()))  # type: ignore[arg-type]
    os.write(1, b"0\n")
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        for call in json.loads(line):
            obey(log, call)
        log.seal()
    log.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[4] == "uvloop" else None) as runner:
        runner.run(main(*sys.argv[1:4]))
