"""A client that nobody closed: the blocking one closes itself and says nothing, the other one warns once."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from tests.helpers.fake_server import FakeServer

from horae import Client

BLOCKING = """
import gc, sys, threading
from horae import Client
client = Client({url!r})
client.submit("t", id="x")
"""
ENDS = {
    "alive at the end": "",
    "collected": """
others = [it for it in threading.enumerate() if it is not threading.current_thread()]
del client
for it in others:
    it.join(20)
assert [it.name for it in others] == ["horae-client"] and not others[0].is_alive()
""",
    "collected with what holds it": """
class Holder: pass
holder = Holder()
holder.itself, holder.client = holder, client
del client, holder
gc.collect()
""",
    "alive in another thread's call": """
sent = threading.Event()
def wait():
    sent.set()
    client.wait("x")
threading.Thread(target=wait, daemon=True).start()
sent.wait()
""",
    "alive, and the program exits": "sys.exit(0)",
}
FORK = """
import os
from horae import Client
client = Client({url!r})
child = os.fork()
if not child:
    try:
        client.submit("t", id="x")
    except RuntimeError as error:
        print(error)
    client.close()
    with Client({url!r}) as own:
        own.submit("t", id="of the child")
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""
ASYNC = """
import asyncio, gc
from horae import AsyncClient
class Holder: pass
async def main():
    holder = Holder()
    holder.itself, holder.client = holder, AsyncClient({url!r})
    await holder.client.submit("t")
    del holder
    gc.collect()
asyncio.run(main())
"""


async def told(program: str, *options: str) -> str:
    """What a program says on both its pipes; it must end by itself, and well."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *options, "-c", program, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(60):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said
    return said.decode()


@pytest.mark.parametrize("end", ENDS)
async def test_a_blocking_client_closes_itself_without_a_word(server: FakeServer, end: str) -> None:
    assert await told(BLOCKING.format(url=server.url) + ENDS[end], "-W", "default") == ""


async def test_an_async_client_warns_once_where_warnings_are_shown(server: FakeServer) -> None:
    program = ASYNC.format(url=server.url)
    assert await told(program) == ""
    said = await told(program, "-W", "default")
    assert said.count("Warning") == 1
    assert "ResourceWarning: an AsyncClient was not closed: use it as `async with AsyncClient(...)`" in said


async def test_a_forked_child_has_no_part_in_its_parents_client(server: FakeServer) -> None:
    """Its calls would wait for a thread that is not there; its own client is as any other."""
    said = await told(FORK.format(url=server.url))
    assert said == "this client was made before a fork, and its thread stayed behind: make one in each process\n"
    assert list(server.jobs) == ["of the child"]


async def test_a_call_under_way_ends_with_its_client(server: FakeServer) -> None:
    server.fault("/v1/jobs/x", "hang")
    client = Client(server.url)
    call = asyncio.ensure_future(asyncio.to_thread(client.job, "x"))
    await server.wait_until(lambda: server.counts["/v1/jobs/x"] == 1)
    await asyncio.to_thread(client.close)
    with pytest.raises(RuntimeError, match="closed"):
        await call
    assert [it for it in threading.enumerate() if it.name == "horae-client"] == []
