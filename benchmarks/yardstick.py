"""The yardstick: the least that an aiohttp server does for a request of the same size. Run by `throughput.py`.

A bare handler on uvloop that parses the JSON body and answers a fixed one; no state, no disk, no peers. What the nodes
reach is divided by what this reaches on the same machine, in the same run, under the same client: the quotient can be
compared between machines. `python benchmarks/yardstick.py PORT ANSWER_BYTES`; ends on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import msgspec
import uvloop
from aiohttp import web


async def serve(port: int, answer_bytes: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    frame = b'{"filler":""}'
    answer = frame[:-2] + b"x" * max(0, answer_bytes - len(frame)) + frame[-2:]
    decode = msgspec.json.Decoder().decode

    async def submit(request: web.Request) -> web.Response:
        decode(await request.read())
        return web.Response(status=201, body=answer, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/jobs", submit)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
