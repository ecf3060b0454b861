"""The wire between nodes: one TCP (or TLS) connection a pair, MessagePack frames, nothing believed of a stranger.

A frame is a 4-byte big-endian length and so many bytes of MessagePack; an empty frame is a ping. The first frame each
way is a hello: version, cluster, node id, and the newest roster that the node knows, or the configured voters while it
knows none: two nodes that are voters of different clusters by their configurations never exchange a message, nor do two
that were restored from different backups. The node with the smaller id dials; the other one only asks, when it is not
dialled for long, whether it is still a member. Who was dialled takes the link for one when anything follows the
hello: before, the caller may still refuse it. What arrives is handed on in order, one list a read; `on_connection`
brackets it, so that messages of two connections of a pair never mix.
Nothing is dropped silently: a peer that is too slow, too loud or not who it should be loses its connection, with a log
line. Not here: what a message means (`guard.py`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, Protocol, cast

import msgpack

from horae_node.clock import Clock
from horae_node.errors import ConfigError
from horae_node.logs import get_log
from horae_node.raft.members import book_as_told, book_of, voters_of
from horae_node.raft.port import Member, Roster
from horae_node.raft.reach import Reach, reason_of

PROTOCOL_VERSION: Final = 1
FRAME_BYTES_MAX: Final = 8 << 20
"""A batch of 2 MiB that one entry of 1 MiB may exceed, and room to grow."""
HELLO_BYTES_MAX: Final = 8192
"""A stranger can make us keep no more than this: a hello with nine members of the longest names."""
BUFFER_BYTES_MAX: Final = 32 << 20
"""Not taken by the peer's kernel yet: beyond it the connection goes, and the peer resumes from what it acknowledged."""
PING_S: Final = 0.5
DEAD_S: Final = 1.5
"""Three pings unheard: noticed before the next election would need the link."""
DIAL_TIMEOUT_S: Final = 1.0
HELLO_TIMEOUT_S: Final = 2.0
REDIAL_MIN_S: Final = 0.05
REDIAL_MAX_S: Final = 1.0
ASK_S: Final = 3.0
"""How long a node that waits to be dialled waits before it asks whether it is a member still: some redials long."""
STRANGERS_MAX: Final = 64
"""Calls that have not said hello yet."""
REASON_CHARS_MAX: Final = 800
"""Of a peer's words: nine members of the longest names."""
REFUSALS_MAX: Final = 1000
"""Remembered, so that each is logged once: the callers choose their reasons."""

_ENTRIES_KEY: Final[bytes] = msgpack.packb("entries")

Message = dict[str, Any]

log = get_log("raft")


class Receiver(Protocol):
    """Who is told. All calls come on the loop."""

    def on_messages(self, node_id: str, messages: list[Message]) -> None: ...

    def on_connection(self, node_id: str, up: bool) -> None:
        """A link to a member came up or is lost. Never twice the same in a row."""
        ...

    def on_book(self, book: Roster) -> None:
        """A peer told of this roster, whatever its age."""
        ...

    def lacks_leader(self) -> bool:
        """Nobody leads this node: a stranger who knows better is welcome. While somebody does, nobody needs one."""
        ...

    def on_sent_away(self) -> None:
        """A peer says that this node is a member no more."""
        ...

    def on_misfit(self, reason: str, origin_index: int | None) -> None:
        """A peer was configured with other members, or restored from another backup: again at each of its refusals.

        `origin_index`: the last entry of the backup that this node was restored from; None: of none.
        """
        ...

    def on_unreachable(self, node_id: str, address: str, reason: str, for_s: float) -> None:
        """A peer could not be reached for some seconds. Once, until `on_connection` says that it was."""
        ...


class TransportPort(Protocol):
    """What consensus asks of a network. Order is kept on a connection; what a lost connection held is lost with it."""

    async def start(self, receiver: Receiver) -> None:
        """Listen and dial. Raises: `ConfigError` when the address cannot be bound."""
        ...

    async def stop(self) -> None: ...

    def send(self, node_id: str, message: Message) -> None:
        """Queue a message until `flush`; it is dropped when the peer is not connected."""
        ...

    def flush(self, peers_max: int | None = None) -> bool:
        """Hand what is queued to the network, without waiting: for so many peers, or for all. True: more is queued."""
        ...

    def disconnect(self, node_id: str, reason: str) -> None:
        """Drop the connection to a peer, after the running call; a new one is made by itself."""
        ...

    def set_peers(self, addresses: Mapping[str, str], removed: frozenset[str], book: Roster) -> None:
        """Whom to be connected with, by id, and where they listen; allowed before `start`.

        Links to others end; one of `removed` is told that it is. `book` is told to every peer that is met from now on;
        of one as configured (at index 0) the voters' ids.
        """
        ...

    def silence(self) -> None:
        """Drop all connections and take no new ones: this node is about to end."""
        ...


class TcpTransport:
    def __init__(
        self,
        *,
        own_id: str,
        members: Iterable[Member],
        cluster: str,
        listen: tuple[str, int],
        clock: Clock,
        incarnation: str = "",
        check_peer: Callable[[str, str], str | None] | None = None,
        origin: tuple[str, int] | None = None,
        server_ssl: ssl.SSLContext | None = None,
        client_ssl: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`listen` is the host and port to bind. With the two contexts every link is TLS; without, any host that
        reaches the port and knows the cluster's name is believed: for development and closed networks.
        `incarnation` names our data directory; `check_peer(node_id, incarnation)` says why a peer with that directory
        is refused, None when it is not (`horae_storage.peer_book`). `origin`: the checksum of the backup that our
        directory was restored from, and the last entry in it; a peer with another one is refused.
        """
        self.own_id = own_id
        self.hello: Message = {"v": PROTOCOL_VERSION, "cluster": cluster, "node": own_id, "incarnation": incarnation}
        if origin is not None:
            self.hello["origin"] = origin[0]
        self._origin_index = None if origin is None else origin[1]
        self._check_peer = check_peer
        self._addresses = {m.node_id: _split(m.raft_address) for m in members if m.node_id != own_id}
        self._reach = Reach(clock)
        self._listen = listen
        self._clock = clock
        self._server_ssl = server_ssl
        self._client_ssl = client_ssl
        self._rng = rng or random.Random()
        self._links: dict[str, _Link] = {}
        self._strangers: dict[_Link, None] = {}
        """The oldest first."""
        self._unsent: dict[_Link, None] = {}
        self._refusals: dict[tuple[str, str], None] = {}
        """Whom and why, as logged; the oldest first."""
        self._packed: tuple[object, bytes] = (None, b"")
        self._running = False
        self._tasks: list[asyncio.Task[None]] = []
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._removed: frozenset[str] = frozenset()
        self._pinged_at = 0.0
        self._receiver: Receiver
        self._server: asyncio.Server | None = None
        self._silent = False

    # ------------------------------------------------------------------ the port

    async def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        loop = asyncio.get_running_loop()
        host, port = self._listen
        try:
            self._server = await loop.create_server(lambda: _Link(self, None), host, port, ssl=self._server_ssl)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} for the cluster: {error.strerror}") from error
        if self._silent:  # consensus failed meanwhile
            self._server.close()
            return
        self._running = True
        for node_id in sorted(self._addresses):
            self._reach.expect(node_id)
            self._dial(node_id)
        self._tasks = [loop.create_task(self._keep_pinging()), loop.create_task(self._keep_asking())]

    async def stop(self) -> None:
        if not self._running and not self._tasks:
            return
        self.silence()
        await asyncio.gather(*self._tasks, *self._dials.values(), return_exceptions=True)
        self._tasks = []
        self._dials = {}
        if self._server is not None:
            await self._server.wait_closed()

    def send(self, node_id: str, message: Message) -> None:
        link = self._links.get(node_id)
        if link is not None:
            entries = message.get("entries")
            if entries:
                link.queue_with(message, self._pack_entries(entries))
            else:
                link.queue(message)
            self._unsent[link] = None

    def flush(self, peers_max: int | None = None) -> bool:
        if not self._unsent:
            return False
        for link in list(islice(self._unsent, peers_max)):
            del self._unsent[link]
            link.flush()
        return bool(self._unsent)

    def disconnect(self, node_id: str, reason: str) -> None:
        link = self._links.get(node_id)
        if link is not None:
            link.drop(reason)

    def silence(self) -> None:
        self._running, self._silent = False, True
        if self._server is not None:  # else it has never listened: what failed did so while this node began
            self._server.close()
        for task in [*self._tasks, *self._dials.values()]:
            task.cancel()
        for link in [*self._links.values(), *self._strangers]:
            link.drop("this node ends")

    def set_peers(self, addresses: Mapping[str, str], removed: frozenset[str], book: Roster) -> None:
        before, self._removed = self._addresses, removed
        self._addresses = {node_id: _split(address) for node_id, address in addresses.items()}
        if book.at_index:
            self.hello["book"] = book_as_told(book)
            self.hello.pop("voters", None)
        else:
            self.hello["voters"] = tuple(sorted(member.node_id for member in book.voters))
        if not self._running:
            return
        for node_id in before.keys() - self._addresses.keys():
            self._part(node_id)
        for node_id, address in self._addresses.items():
            if before.get(node_id) != address:
                if node_id not in self._links:
                    self._reach.expect(node_id)
                self._dial(node_id)

    def _part(self, node_id: str) -> None:
        self._reach.drop(node_id)
        dial = self._dials.pop(node_id, None)
        if dial is not None:
            dial.cancel()
        link = self._links.get(node_id)
        if link is not None and node_id in self._removed:
            link.send_away()
        elif link is not None:
            link.drop("no member")

    def _dial(self, node_id: str) -> None:
        """Dial it from now on at its present address, if that is for us to do."""
        dial = self._dials.pop(node_id, None)
        if dial is not None:
            dial.cancel()
        if self.own_id < node_id:
            self._dials[node_id] = asyncio.get_running_loop().create_task(self._keep_dialled(node_id))

    def _pack_entries(self, entries: object) -> bytes:
        """Packed once for all peers that get the same list: entries are most of what is sent."""
        if self._packed[0] is not entries:
            self._packed = (entries, msgpack.packb(entries))
        return self._packed[1]

    # ------------------------------------------------------------------ what a link tells

    def now(self) -> float:
        return self._clock.monotonic()

    def took_stranger(self, link: _Link) -> None:
        if not self._running:
            link.drop("this node ends")
        self._strangers[link] = None
        called = [stranger for stranger in self._strangers if stranger.dialled_id is None]
        if len(called) > STRANGERS_MAX:  # a member says hello at once: who has been silent for longest goes
            called[0].drop("too many strangers")

    def check_hello(self, link: _Link, hello: object) -> str | None:
        """Why this hello is refused, None when it is right. The link gets its peer's id."""
        if not isinstance(hello, dict):
            return "not a hello"
        if "refused" in hello:
            link.misfit = self._misfit(hello)
            known = (link.dialled_id or link.peer_id) in self._addresses
            if hello.get("removed") is True and known and self._is_of_our_life(hello):
                link.sends_away = True
                self._receiver.on_sent_away()
            return link.misfit or f"refused by the peer: {str(hello['refused'])[:REASON_CHARS_MAX]}"
        if hello.get("v") != PROTOCOL_VERSION:
            return f"protocol version {hello.get('v')!r}, ours is {PROTOCOL_VERSION}"
        if hello.get("cluster") != self.hello["cluster"]:
            return f"cluster {hello.get('cluster')!r}, ours is {self.hello['cluster']!r}"
        node_id = hello.get("node")
        expected = link.dialled_id
        link.misfit = self._misfit(hello)
        if link.misfit is not None:
            link.told_id = node_id
            return link.misfit
        if isinstance(node_id, str) and node_id not in self._addresses:
            self._hear_of(node_id, hello)
        if not isinstance(node_id, str) or (node_id not in self._addresses and node_id not in self._removed):
            return self._unknown(node_id, hello)
        link.told_id = node_id
        if node_id in self._removed:
            link.is_removed = True
            return _no_more(node_id)
        if expected is not None and node_id != expected:
            return f"node {node_id!r} answers at the address of {expected!r}"
        if expected is None and node_id > self.own_id:
            link.only_asks = hello.get("asks") is True
            return f"node {node_id!r} waits for our call, to {_joined(*self._addresses[node_id])}: the smaller id dials"
        incarnation = hello.get("incarnation")
        if not isinstance(incarnation, str):
            return "no incarnation"
        refusal = self._check_peer(node_id, incarnation) if self._check_peer is not None else None
        if refusal is None:
            link.peer_id = node_id
            link.book = book_of(hello.get("book"))
        elif expected is None:
            self._reach.refused(node_id)  # it calls as it should
        return refusal

    def _misfit(self, told: Message) -> str | None:
        """Why that node and this one would be of two histories, which never meet in one cluster; None when not."""
        return self._unlike(told) or self._of_another_backup(told)

    def _of_another_backup(self, told: Message) -> str | None:
        """They are not of one beginning: the entries after it would be others.

        None unless that node is a member: what else is refused needs no better reason.
        """
        node_id = told.get("node")
        if self._is_of_our_life(told) or not isinstance(node_id, str) or node_id not in self._addresses:
            return None
        return (
            f"{node_id} and this node are of different lives of the cluster, by a restore or a recovery: all members "
            "of a new cluster are restored from one file; for a disk that was lost, see 'A node whose disk was lost' "
            "in docs/operations.md"
        )

    def _is_of_our_life(self, told: Message) -> bool:
        return bool(told.get("origin") == self.hello.get("origin"))

    def _unlike(self, told: Message) -> str | None:
        """Why that node and this one are voters of different clusters; None unless both are, as they were configured.

        Configurations that disagree would make two majorities that meet nowhere, and two histories.
        """
        ours, theirs, node_id = self.hello.get("voters"), voters_of(told.get("voters")), told.get("node")
        if ours is None or theirs is None or theirs == ours or self.own_id not in ours or node_id not in theirs:
            return None
        return f"members differ: {node_id} has {','.join(theirs)}, here {','.join(ours)}: make them alike"

    def _hear_of(self, stranger: str, hello: Message) -> None:
        """Its roster may be the only one that reaches us: all whom we knew may have left while we were away."""
        book, own_index = book_of(hello.get("book")), self.hello.get("book", [0])[0]
        if book is None or not self._receiver.lacks_leader() or not self._is_of_our_life(hello):
            return
        if book.introduces(stranger, self.own_id, own_index):
            self._receiver.on_book(book)

    def _unknown(self, node_id: object, hello: Message) -> str:
        ids = ",".join(sorted({self.own_id, *self._addresses}))
        if not self._is_of_our_life(hello):
            return (
                f"unknown node {node_id!r}, of another life of the cluster: members here are {ids}: leave its "
                "directory alone, and let the machine join under a new id with an empty one"
            )
        way_in = "with join" if "book" in self.hello else "with the same members in its configuration, or with join"
        return f"unknown node {node_id!r}: members here are {ids}: start it {way_in}"

    def refuse(self, link: _Link, reason: str) -> None:
        """Log each reason once a peer, until it is let in: one with a wrong configuration dials for ever.

        That a removed node is still there is no alarm: it is told, and says so itself, once.
        """
        if link.misfit is not None:
            # Not amid the refusal: the receiver may end this node by it, and the peer shall read why.
            asyncio.get_running_loop().call_soon(self._receiver.on_misfit, link.misfit, self._origin_index)
        who = link.who
        if (who, reason) in self._refusals:
            return
        self._refusals[who, reason] = None
        if len(self._refusals) > REFUSALS_MAX:
            del self._refusals[next(iter(self._refusals))]
        tell = log.event if link.is_removed or link.sends_away else log.warning
        tell("peer_refused", peer=who, reason=reason)

    def told_refusal(self, link: _Link, reason: str) -> Message:
        """What the other side reads: a misfit with what it needs to see that for itself."""
        told: Message = {"refused": reason}
        keys: tuple[str, ...] = ()
        if link.is_removed:
            told["removed"], keys = True, ("origin",)
        if link.misfit is not None:
            keys = ("node", "voters", "origin")
        return told | {key: self.hello[key] for key in keys if key in self.hello}

    def refused_by(self, node_id: str) -> None:
        """A member called, heard our hello, and did not like it."""
        self._reach.refused(node_id)

    def came_up(self, link: _Link) -> None:
        assert link.peer_id is not None
        if link.peer_id not in self._addresses:  # it has parted since its hello
            link.drop("no member")
            return
        link.was_up = True
        self._strangers.pop(link, None)
        older = self._links.get(link.peer_id)
        if older is not None:
            older.drop("replaced by a newer connection")
            self.went_down(older)
        self._links[link.peer_id] = link
        self._reach.drop(link.peer_id)
        self._refusals = {known: None for known in self._refusals if known[0] != link.peer_id}
        self._receiver.on_connection(link.peer_id, True)
        if link.book is not None:
            self._receiver.on_book(link.book)

    def went_down(self, link: _Link) -> None:
        self._strangers.pop(link, None)
        self._unsent.pop(link, None)
        if link.peer_id is not None and self._links.get(link.peer_id) is link:
            del self._links[link.peer_id]
            if link.peer_id in self._addresses:
                self._reach.expect(link.peer_id)
            self._receiver.on_connection(link.peer_id, False)

    def took_messages(self, link: _Link, messages: list[Message]) -> None:
        if link.peer_id is not None and self._links.get(link.peer_id) is link:
            self._receiver.on_messages(link.peer_id, messages)

    # ------------------------------------------------------------------ tasks

    async def _keep_dialled(self, node_id: str) -> None:
        host, port = self._addresses[node_id]
        wait_s = REDIAL_MIN_S
        if node_id in self._links:  # it has moved, and was reached before
            await self._links[node_id].closed.wait()
        while True:
            link = _Link(self, node_id)
            try:
                await self._connect(link, host, port)
            except (OSError, UnicodeError) as error:  # no host may be called so, and the state has it
                self._tell_unreachable(node_id, _why(error), self._reach.missed(node_id))
            else:
                await link.closed.wait()
                if link.was_up:
                    wait_s = REDIAL_MIN_S
                elif link.refusal is not None:
                    self._reach.refused(node_id)
                else:
                    self._tell_unreachable(node_id, link.ended, self._reach.missed(node_id))
            await asyncio.sleep(wait_s * (0.5 + self._rng.random()))
            wait_s = min(REDIAL_MAX_S, wait_s * 1.6)

    async def _keep_asking(self) -> None:
        """Ask those who should dial us and do not: they no longer do when we were removed while we were away."""
        unheard: set[str] = set()
        while True:
            await asyncio.sleep(ASK_S)
            missing = {node_id for node_id in self._addresses if node_id < self.own_id and node_id not in self._links}
            for node_id in sorted(missing & unheard):
                await self._ask(node_id)
            unheard = missing

    async def _ask(self, node_id: str) -> None:
        host, port = self._addresses.get(node_id, ("", 0))
        link = _Link(self, node_id, asks=True)
        try:
            await self._connect(link, host, port, until_closed=True)
        except (OSError, UnicodeError) as error:
            self._tell_unreachable(node_id, _why(error), self._reach.missed(node_id))
            return
        if link.misfit is not None or link.sends_away:
            self._reach.refused(node_id)
        elif link.refusal is not None:
            self._tell_unreachable(node_id, link.refusal, self._reach.answered(node_id))
        else:
            self._tell_unreachable(node_id, link.ended, self._reach.missed(node_id))

    async def _connect(self, link: _Link, host: str, port: int, *, until_closed: bool = False) -> None:
        """Whatever ends this before its time ends the link as well: it may be up by then, since a peer's hello may be
        taken in before the call that has reached it returns, and a loop may close what it connected in vain without a
        word to the protocol. Raises: OSError (TimeoutError), UnicodeError.
        """
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=self._client_ssl)
                if until_closed:
                    await link.closed.wait()
        except BaseException:
            link.drop("dialled in vain")
            raise

    def _tell_unreachable(self, node_id: str, reason: str, for_s: float | None) -> None:
        if for_s is not None and node_id in self._addresses:
            self._receiver.on_unreachable(node_id, _joined(*self._addresses[node_id]), reason, for_s)

    async def _keep_pinging(self) -> None:
        self._pinged_at = self.now()
        while True:
            await asyncio.sleep(PING_S)
            now = self.now()
            paused = now - self._pinged_at > 2 * PING_S
            self._pinged_at = now
            for link in [*self._links.values(), *self._strangers]:
                if paused:
                    link.heard_at = now  # we were stopped, not they: look again before judging
                link.check_alive(now)


class _Link(asyncio.Protocol):
    """One connection, from its first byte to its last."""

    def __init__(self, owner: TcpTransport, dialled_id: str | None, *, asks: bool = False) -> None:
        """`asks`: it is dialled only to hear whether we are a member still, and refused in any case."""
        self._owner = owner
        self.dialled_id = dialled_id
        self.only_asks = asks
        self.is_removed = False
        """The other side is no member any more."""
        self.sends_away = False
        """The other side says that we are none."""
        self.peer_id: str | None = None
        self.told_id: str | None = None
        """Who the other side says that it is, if we know such a node, or it was told of as a voter."""
        self.misfit: str | None = None
        """Why the other side and we would be of two histories."""
        self.refusal: str | None = None
        """Why one side did not want the other."""
        self.ended = "closed without a hello"
        """Why there was nothing to refuse."""
        self.book: Roster | None = None
        """The roster that its hello told of."""
        self.remote_host = "?"
        self.was_up = False
        self._greeted = False
        """Both hellos were sent, and the peer's is right."""
        self.closed = asyncio.Event()
        self.heard_at = owner.now()
        self._born_at = self.heard_at
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._queued: list[bytes] = []

    @property
    def who(self) -> str:
        """The other side, by the best name that there is."""
        return self.peer_id or self.dialled_id or self.told_id or self.remote_host

    # ------------------------------------------------------------------ asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        self.remote_host = str(peer[0]) if isinstance(peer, tuple) else "?"
        self._owner.took_stranger(self)
        if self.dialled_id is not None:
            self._write_now(self._owner.hello | {"asks": True} if self.only_asks else self._owner.hello)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self.heard_at = self._owner.now()
        received = self._received
        received += data
        messages: list[Message] = []
        at, end = 0, len(received)
        with memoryview(received) as view:
            while end - at >= 4:
                size = int.from_bytes(view[at : at + 4])
                if size > (FRAME_BYTES_MAX if self._greeted else HELLO_BYTES_MAX):
                    self.drop("frame too large")
                    return
                if end - at < 4 + size:
                    break
                if not size:
                    self._take_ping()
                elif not self._take(view[at + 4 : at + 4 + size], messages):
                    return
                at += 4 + size
        if at:
            del received[:at]
        if messages:
            self._owner.took_messages(self, messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    # ------------------------------------------------------------------ the owner's side

    def queue(self, message: Message) -> None:
        self._queued.append(_frame(message))

    def queue_with(self, message: Message, entries: bytes) -> None:
        """As `queue`, with the value of `entries` packed already: it becomes the last field of the map."""
        fields = {name: value for name, value in message.items() if name != "entries"}
        head: bytes = msgpack.packb(fields)
        assert len(fields) < 15  # a short map: its first byte holds the count
        size = len(head) + len(_ENTRIES_KEY) + len(entries)
        self._queued += (size.to_bytes(4) + bytes((head[0] + 1,)) + head[1:] + _ENTRIES_KEY, entries)

    def flush(self) -> None:
        queued, self._queued = self._queued, []
        if self._transport is None or not queued:
            return
        if self._transport.is_closing():  # the loop's doing: to write then is an error
            self.drop("closed")
            return
        self._transport.writelines(queued)
        if self._transport.get_write_buffer_size() > BUFFER_BYTES_MAX:
            self.drop("too slow: send buffer full")

    def check_alive(self, now: float) -> None:
        if now - self.heard_at > DEAD_S:
            self.drop("nothing heard")
        elif not self.was_up and now - self._born_at > HELLO_TIMEOUT_S:
            self.drop("no hello")
        elif self.was_up:
            self._ping()

    def drop(self, reason: str) -> None:
        """End the connection at once; what is queued goes with it. A second call does nothing."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self.ended = reason
        if self.was_up:
            log.event("link_dropped", peer=self.peer_id, reason=reason)
        transport.abort()
        # Not from within the caller, who may be the receiver itself in the middle of its work.
        asyncio.get_running_loop().call_soon(self._gone)

    # ------------------------------------------------------------------ inside

    def _take(self, frame: memoryview, messages: list[Message]) -> bool:
        """Unpack one frame; False when the connection is over."""
        try:
            message = msgpack.unpackb(frame, use_list=False, raw=False)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            self._refuse(f"not MessagePack: {type(error).__name__}")
            return False
        if self._greeted:
            if not isinstance(message, dict):
                self.drop("not a message")
                return False
            if "refused" in message:  # who called has heard our hello, and did not like it; or we are sent away
                self._take_refusal(message)
                return False
            if not self.was_up:
                self._owner.came_up(self)
            messages.append(message)
            return True
        refusal = self._owner.check_hello(self, message)
        if refusal is not None:
            self._refuse(refusal)
            return False
        self._greeted = True
        if self.dialled_id is None:
            self._write_now(self._owner.hello)
            return True
        self._ping()  # the other side waits to hear that we did not refuse it
        self._owner.came_up(self)
        return True

    def _take_ping(self) -> None:
        if self._greeted and not self.was_up:
            self._owner.came_up(self)

    def _take_refusal(self, message: Message) -> None:
        reason = self._owner.check_hello(self, message) or ""
        if not self.was_up and self.peer_id is not None:
            self.refusal = reason
            self._owner.refused_by(self.peer_id)
        self._owner.refuse(self, reason)
        self.drop("refused by the peer")

    def _ping(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\x00\x00\x00\x00")

    def send_away(self) -> None:
        """Tell the other side that it is a member no more, after all that it was sent, and end the connection."""
        self.flush()
        self.is_removed = True
        self._refuse(_no_more(self.who))

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        if not self.only_asks or self.misfit is not None:
            self._owner.refuse(self, reason)
        if self._transport is not None:
            self._write_now(self._owner.told_refusal(self, reason))
            transport, self._transport = self._transport, None
            transport.close()  # not aborted: the peer shall read why

    def _write_now(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_frame(message))

    def _gone(self) -> None:
        self._transport = None
        self._received.clear()
        if not self.closed.is_set():
            self.closed.set()
            self._owner.went_down(self)


def _no_more(node_id: str) -> str:
    return f"node {node_id!r} is a member no more"


def _frame(message: Message) -> bytes:
    body: bytes = msgpack.packb(message)
    return len(body).to_bytes(4) + body


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _why(error: OSError | UnicodeError) -> str:
    """Why nobody was reached; a time-out is our own."""
    if isinstance(error, UnicodeError):
        return f"no host is called so ({error})"
    return f"no answer within {DIAL_TIMEOUT_S:g} s" if type(error) is TimeoutError else reason_of(error)
