"""One node as one process: configuration, then data directory, then ports, then Raft; and back in the other order.

Owns the loop, the signals and the exit code: 0 after an orderly stop, 1 when the node had to end (`fatal`), 2 when the
surroundings do not allow a start (one line on standard error, with the fix). Not here: how the node is wired
(`horae_node.runtime`), what is served (`app.py`). Next to read: `horae_node/runtime.py`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Final, NoReturn

import uvloop

from horae_http.app import build_app
from horae_http.auth import Tokens
from horae_http.ending import hang_up_stops, ignore_signals, say_last
from horae_http.join import ask_in, learn_members
from horae_http.server import raise_connections_max, start_server
from horae_node import logs
from horae_node.clock import SystemClock
from horae_node.config import NodeConfig, is_loopback
from horae_node.errors import ConfigError, Outdated
from horae_node.runtime import Node
from horae_node.shedding import Bounds
from horae_node.surroundings import require_surroundings
from horae_storage.errors import Corrupt, DirectoryInUse, DirectoryUnusable, ForeignDirectory, StorageError

REFUSALS: Final = (ConfigError, Outdated, ForeignDirectory, DirectoryInUse, DirectoryUnusable, Corrupt)
"""What the operator has to mend before a start makes sense."""

EXIT_FATAL: Final = 1
EXIT_REFUSED: Final = 2

YOUNG_OBJECTS_MAX: Final = 20_000
"""New objects before the collector looks for cycles: a batch of requests makes thousands and leaves none."""

log = logs.get_log("process")


def run_node(config: NodeConfig) -> int:
    """Run a node until it is told to stop (SIGTERM, SIGINT, SIGHUP) or must end; the exit code of the process."""
    logs.configure(config.log_level, config.node_id)
    try:
        require_surroundings(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(config))
    except REFUSALS as error:
        say_last(error)
        return EXIT_REFUSED
    except StorageError as error:  # no room, or a disk that fails: a later start may do
        say_last(error)
        return EXIT_FATAL
    return 0


async def _run(config: NodeConfig) -> None:
    """From start to orderly stop. A fatal error does not come back from here: the process ends at once."""
    stop = _stop_on_signals()
    await _run_until(stop, config)
    await asyncio.get_running_loop().shutdown_default_executor()  # a write may be under way: the last wait to hurry
    ignore_signals()


async def _run_until(stop: asyncio.Event, config: NodeConfig) -> None:
    if config.join and not await _unless_told(stop, learn_members(config, _token())):
        return
    connections_max = raise_connections_max()
    node = Node(config, clock=SystemClock(), bounds=Bounds().within(connections_max))
    await node.start()
    fatal = asyncio.create_task(_end_on_fatal(node))
    removed = asyncio.create_task(_end_if_removed(config, node))
    joining = asyncio.create_task(_join(config, node)) if config.join and node.standing != "voter" else None
    try:
        await _serve(config, node, stop, connections_max)
    finally:
        if joining is not None:
            joining.cancel()
        await node.stop()
        fatal.cancel()
        removed.cancel()
    log.event("process_ends", reason="told to stop")


async def _unless_told(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do it; False when told to stop first. Raises: what the work does."""
    working, told = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, told), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        told.cancel()


async def _join(config: NodeConfig, node: Node) -> None:
    """Ask the cluster in; a refusal ends the process, one who was removed asks no more."""
    asking = asyncio.create_task(ask_in(config, _token()))
    removed = asyncio.create_task(node.wait_removed())
    try:
        await asyncio.wait((asking, removed), return_when=asyncio.FIRST_COMPLETED)
        if asking.done() and (refused := asking.exception()) is not None:
            _end(refused)
    finally:
        asking.cancel()
        removed.cancel()


def _token() -> str | None:
    return os.environ.get("HORAE_TOKEN") or None


async def _serve(config: NodeConfig, node: Node, stop: asyncio.Event, connections_max: int) -> None:
    tokens = Tokens(config.tokens) if config.tokens else None
    app = build_app(node.service, metrics_text=node.metrics_text, tokens=tokens, on_fatal=_end)
    host, port = config.http_listen
    server = await start_server(app, host, port, connections_max=connections_max)
    _calm_collector()
    log.event("serving", http=config.http_listen, url=config.http_advertise, raft=config.raft_listen)
    if tokens is None:
        log.event("open_to_this_machine", http=config.http_listen, reason="no tokens are configured: loopback only")
    if not is_loopback(config.raft_listen.host):
        log.warning("raft_links_in_the_clear", raft=config.raft_listen)
    await stop.wait()
    async with asyncio.TaskGroup() as ending:
        ending.create_task(server.stop(config.stop_grace_ms))
        ending.create_task(node.retire())


def _stop_on_signals() -> asyncio.Event:
    """Set at the first SIGTERM, SIGINT or SIGHUP; a second one ends the process at once (what is acknowledged is on
    disk), but a terminal that closes may tell twice.
    """
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set() and number != signal.SIGHUP:
            os._exit(128 + number)
        log.event("signal", number=number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hang_up_stops() else [])):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    return stop


async def _end_if_removed(config: NodeConfig, node: Node) -> None:
    """One that was removed while it was away ends; one that took part stays, and says so to whoever asks it."""
    await node.wait_removed()
    if not node.took_part:
        _end(
            ConfigError(
                f"{config.node_id} was removed from cluster {config.cluster!r}, for good: to take this machine in "
                "again, give it a new node_id, an empty data_dir and join (docs/operations.md)"
            )
        )


async def _end_on_fatal(node: Node) -> None:
    _end(await node.wait_fatal())


def _end(error: BaseException) -> NoReturn:
    """End the process at once: nothing that the node holds can be trusted to answer well, nor to be cleaned up."""
    if isinstance(error, REFUSALS):
        say_last(error)
        os._exit(EXIT_REFUSED)
    log.error("fatal", exc=error, reason=str(error))
    logging.shutdown()
    os._exit(EXIT_FATAL)


def _calm_collector() -> None:
    """Keep what the start made out of every collection, and collect less often: a full pass is a stall of the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, 20, 50)
