"""How a node becomes a member of a running cluster: it looks who is there, asks, and starts as one who only follows.

Its data directory is made once the cluster has said yes: what a no asks to be mended, the node's name or that of the
cluster, stands in it for good. The first start writes down the members that the cluster names, this node as a learner
beside them, and which data directory each has: one that was emptied before this node came is refused here as by those
who met it. From then on the log tells of every change. It asks again until it counts: a repeat. Not here: what the
cluster makes of it (`horae_node/membership.py`). Next to read: `main.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import aiohttp
import msgspec

from horae import wire
from horae_node import logs
from horae_node.config import NodeConfig
from horae_node.errors import ConfigError
from horae_node.raft.port import Member, Roster
from horae_node.voters import read_members, read_voters, write_members
from horae_storage.directory import is_new, open_directory
from horae_storage.peer_book import PeerBook

WAIT_S: Final = 30
"""How long the cluster may hold its answer back until this node has caught up."""
CALL_S: Final = 60.0
LOOK_S: Final = 10.0
PAUSE_S: Final = 0.5
LOOKS_MAX: Final = 60
"""A cluster that does not answer for so many rounds is not there."""

T = TypeVar("T")
Ask = Callable[[aiohttp.ClientSession, str], Awaitable[T | None]]
"""One call of one node; None to ask on."""

log = logs.get_log("join")


class _Problem(msgspec.Struct):
    detail: str = ""
    code: str = ""


async def learn_members(config: NodeConfig, token: str | None) -> None:
    """Before the first start: ask in, and write down who the members are. Nothing is done when that is known.

    Raises: `ConfigError` when no node answers, it is another cluster, or it refuses; then nothing was written.
    """
    if read_members(config.data_dir) is not None or read_voters(config.data_dir) is not None:
        return
    if not is_new(config.data_dir):
        with contextlib.closing(open_directory(config.data_dir, config.cluster, config.node_id)) as directory:
            if directory.initialised:
                return  # the file is lost; the state tells who the members are
    log.event("joining", at=",".join(config.join))
    if not config.tokens:
        await _ask_round(config, None, _look_untold, rounds=LOOKS_MAX)
    _require_place(config, await _ask_round(config, token, _look, rounds=LOOKS_MAX))
    await _ask_round(config, token, _asking(config, wait_seconds=0, enough=(200, 202)), rounds=None)
    # Again: the answer may have taken as long as another node's join, and what is written is for the first meeting.
    view = await _ask_round(config, token, _look, rounds=LOOKS_MAX)
    _require_place(config, view)
    _write_down(config, view)


def _require_place(config: NodeConfig, view: wire.ClusterView) -> None:
    """Raises: `ConfigError` where this node is wrong, or counts already and has forgotten."""
    if view.cluster != config.cluster:
        raise ConfigError(
            f"join: this is a node of cluster {config.cluster!r}, there is {view.cluster!r}: "
            f'set cluster = "{view.cluster}", or mend join'
        )
    known = next((it for it in view.members if it.node == config.node_id), None)
    if known is None or (known.standing != "voter" and known.incarnation in (None, _own_incarnation(config))):
        return
    raise ConfigError(
        f"join: {config.node_id} is a member already, and {config.data_dir} holds nothing of it: take a new node_id "
        f"(`horae cluster remove {config.node_id}` takes the old one out)"
    )


def _own_incarnation(config: NodeConfig) -> str | None:
    """Of the directory, if it is this node's: whoever began to join, and was broken off, may go on."""
    if is_new(config.data_dir):
        return None
    with contextlib.closing(open_directory(config.data_dir, config.cluster, config.node_id)) as directory:
        return directory.incarnation


def _write_down(config: NodeConfig, view: wire.ClusterView) -> None:
    """Who the others are and with which directories. The members last: with them this is done, and is not repeated."""
    others = [it for it in view.members if it.node != config.node_id]
    voters, learners = _members(others, "voter"), _members(others, "learner")
    with contextlib.closing(open_directory(config.data_dir, config.cluster, config.node_id)) as directory:
        if view.origin is not None:
            directory.adopt_origin(view.origin)
        PeerBook(config.data_dir).learn({it.node: it.incarnation for it in others if it.incarnation is not None})
        write_members(config.data_dir, Roster(0, voters, (*learners, config.own)))
    log.event("members_learnt", members=",".join(member.node_id for member in (*voters, *learners)))


async def ask_in(config: NodeConfig, token: str | None) -> None:
    """Ask until this node counts. Raises: `ConfigError` when the cluster refuses it."""
    await _ask_round(config, token, _asking(config, wait_seconds=WAIT_S, enough=(200,)), rounds=None)
    log.event("joined")


def _asking(config: NodeConfig, *, wait_seconds: int, enough: tuple[int, ...]) -> Ask[int]:
    """The call that takes this node in; its status once that is `enough`."""
    own = config.own
    body = {"node": own.node_id, "raft_address": own.raft_address, "http_url": own.http_url}
    told = ""

    async def ask(session: aiohttp.ClientSession, url: str) -> int | None:
        nonlocal told
        async with session.post(f"{url}/v1/cluster/members?wait_seconds={wait_seconds}", json=body) as answer:
            if answer.status in enough:
                return answer.status
            if answer.status != 202:
                reason = _require_passing(answer.status, await answer.read())
                if reason != told:
                    told = reason
                    log.event("join_put_off", status=answer.status, reason=reason)
            return None

    return ask


async def _look(session: aiohttp.ClientSession, url: str) -> wire.ClusterView | None:
    timeout = aiohttp.ClientTimeout(total=LOOK_S)
    async with session.get(f"{url}/v1/cluster", timeout=timeout) as answer:
        body = await answer.read()
        if answer.status != 200:
            _require_passing(answer.status, body)
            return None
    return msgspec.json.decode(body, type=wire.ClusterView)


async def _look_untold(session: aiohttp.ClientSession, url: str) -> bool | None:
    """A look as nobody, of a node without tokens. Raises: `ConfigError` where the cluster lets nobody look.

    By its own configuration such a node lets everybody do everything, and passes it on to the others.
    """
    async with session.get(f"{url}/v1/cluster", timeout=aiohttp.ClientTimeout(total=LOOK_S)) as answer:
        if answer.status == 401:
            raise ConfigError(
                "join: the cluster has tokens, and this node's configuration has none: it would serve whoever reaches "
                "it; give it the same [[tokens]] as the others"
            )
        return True if answer.status == 200 else None


async def _ask_round(
    config: NodeConfig,
    token: str | None,
    ask: Ask[T],
    *,
    rounds: int | None,
) -> T:
    """The first answer of any node, round after round. Raises: `ConfigError` after the last."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=CALL_S)) as session:
        for round_ in itertools.count(1):
            for url in config.join:
                try:
                    found = await ask(session, url)
                except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
                    log.debug("join_in_vain", url=url, reason=str(error))
                    continue
                if found is not None:
                    return found
            if round_ == rounds:
                raise ConfigError(f"join: no node of {', '.join(config.join)} answered with its cluster: is it up?")
            await asyncio.sleep(PAUSE_S)
    raise AssertionError("counting has no end")


def _members(views: list[wire.MemberView], standing: str) -> tuple[Member, ...]:
    return tuple(sorted(Member(it.node, it.raft_address, it.url) for it in views if it.standing == standing))


def _require_passing(status: int, body: bytes) -> str:
    """Why not now: another change under way does end. Raises: `ConfigError` for what waiting does not mend."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except msgspec.MsgspecError:
        problem = _Problem(body[:200].decode("utf-8", "replace"))
    under_way = problem.code == "conflict" and "under way" in problem.detail
    if status < 500 and status != 429 and not under_way:
        fix = ": put a token with the role admin into HORAE_TOKEN" if status in (401, 403) else ""
        raise ConfigError(f"join: the cluster refuses this node: {problem.detail or status}{fix}")
    return problem.detail
