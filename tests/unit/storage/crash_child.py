"""A process to be killed: it writes to a log or a store until then, and says on its standard output what is durable.

Usage: `crash_child.py log|small-log|store DIRECTORY`. One line a number: what it says was synced before it said so.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from horae_storage.file_write import Watch
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog


async def write_log(directory: Path, **options: int) -> None:
    """Groups of three entries, and in each a vote whose term is the last index: both or neither must be found."""
    loop = asyncio.get_running_loop()
    watch = Watch(loop.add_reader, loop.remove_reader)
    log = LmdbRaftLog(directory, loop.call_soon_threadsafe, watch=watch, **options)
    log.load()
    grown = asyncio.Event()

    def on_durable(durable: int) -> None:
        print(durable * 3, flush=True)
        grown.set()

    log.on_durable(on_durable)
    index = 0
    while True:
        log.append([LogEntry(b"%d" % i, i, 1) for i in range(index + 1, index + 4)])
        index += 3
        log.set_vote(index, "me")
        grown.clear()
        if log.seal() % 3 == 0:  # so that writes of several groups are killed too
            await grown.wait()


def write_store(directory: Path) -> None:
    """Each commit writes its number under two keys, and moves one of a thousand others: all of it or nothing."""
    store = LmdbStore(directory)
    number = 0
    while True:
        number += 1
        store.txn.put(b"a", (number,))
        store.txn.put(b"k%03d" % (number % 1000), (number, "x" * 500))
        store.txn.put(b"z", (number,))
        store.commit()
        print(number, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "log":
        asyncio.run(write_log(Path(sys.argv[2])))
    elif sys.argv[1] == "small-log":
        asyncio.run(write_log(Path(sys.argv[2]), region_bytes=4096))
    else:
        write_store(Path(sys.argv[2]))
