"""The wire between nodes: connections with order, delay, silence and loss, as TCP and the real transport have them.

A pair of nodes has at most one connection, dialled by the smaller id. Each direction keeps its order. A cut direction
holds what is sent; when it opens again soon, that arrives late; when not, the end that hears nothing drops the
connection, and the other end learns of it as soon as a packet can tell it. What a lost connection held is lost.
Not here: when faults happen (`faults.py`). Next to read: `horae_node/raft/transport.py`, which this stands for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import islice
from typing import Final

import msgpack
from tests.sim.world import SECOND, Handle, Process, World

from horae_node.raft.port import Roster
from horae_node.raft.transport import (
    ASK_S,
    DEAD_S,
    HELLO_TIMEOUT_S,
    PING_S,
    REDIAL_MAX_S,
    REDIAL_MIN_S,
    Message,
    Receiver,
)

CHECK_EVERY: Final = 97
"""Each so many-th message goes through the real encoding, and must come out as what is delivered."""

Direction = tuple[str, str]
"""From, to."""


class Connection:
    """One connection of a pair, from the dial on. `ends` holds those of the two that believe in it."""

    def __init__(self, dialler: str, acceptor: str) -> None:
        self.nodes = (dialler, acceptor)
        self.ends: set[str] = set()
        self.over = False
        """Some end has dropped it."""
        self.arrived_us: dict[str, int] = {dialler: 0, acceptor: 0}
        """Per receiver: nothing may arrive before this."""
        self.held: dict[str, list[list[Message]]] = {dialler: [], acceptor: []}
        """Per receiver: sent into a cut direction."""

    def other(self, node_id: str) -> str:
        return self.nodes[1] if self.nodes[0] == node_id else self.nodes[0]


class Network:
    """All wires of a cluster. `cut` and `mend` count, so that faults may overlap."""

    def __init__(self, world: World, rng: random.Random, ids: list[str]) -> None:
        self.world = world
        self.rng = rng
        self.ids = ids
        self.ends: dict[str, SimTransport] = {}
        """The transport of each live process."""
        self.delay_us = rng.choice((50, 200, 1000, 5000))
        self.jitter = rng.choice((0.1, 0.5, 2.0))
        self.spike_chance = 0.0
        self.spike_us = 0
        self.messages = 0
        self._cuts: dict[Direction, int] = {(one, other): 0 for one in ids for other in ids if one != other}
        self._cut_at: dict[Direction, int] = {}
        self._connections: dict[Direction, Connection] = {}
        """The newest of each pair, by (dialler, acceptor)."""

    # ------------------------------------------------------------------ faults

    def is_cut(self, source: str, target: str) -> bool:
        return self._cuts[source, target] > 0

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` until as many `mend`."""
        self._cuts[source, target] += 1
        if self._cuts[source, target] == 1:
            self._cut_at[source, target] = self.world.now_us
            self._expect_silence(source, target)

    def mend(self, source: str, target: str) -> None:
        self._cuts[source, target] -= 1
        if self._cuts[source, target]:
            return
        cut_at = self._cut_at.pop((source, target))
        connection = self._connections.get(_pair(source, target))
        if connection is None:
            return
        if target in connection.ends and source not in connection.ends and connection.over:
            self._reset(connection, target)
        elif connection.held[target]:
            # What was lost is sent again: the longer the silence, the longer the wait between two tries.
            wait_us = int(self.rng.random() * min(SECOND, (self.world.now_us - cut_at) / 2))
            held, connection.held[target] = connection.held[target], []
            for messages in held:
                self._send(connection, target, messages, wait_us)

    def mend_all(self) -> None:
        for direction, count in self._cuts.items():
            for _ in range(count):
                self.mend(*direction)

    def lose_connection(self, one: str, other: str) -> None:
        """Both ends hear of it at once: a reset in the middle."""
        connection = self._connections.get(_pair(one, other))
        if connection is not None:
            for end in connection.nodes:
                self._in(end, 0, self._close_end, connection, end)

    def quiet(self, node_id: str) -> None:
        """This node says nothing for now (paused, or without power): its peers notice in their time."""
        for other in self.ids:
            if other != node_id:
                self._expect_silence(node_id, other)

    # ------------------------------------------------------------------ processes

    def opened(self, end: SimTransport) -> None:
        self.ends[end.own_id] = end
        for connection in self._connections.values():
            if end.own_id in connection.nodes and connection.over:
                self._tell_over(connection, connection.other(end.own_id))  # of an earlier life: unknown here now
        self._reach(end, end.known)

    def _reach(self, end: SimTransport, others: set[str]) -> None:
        for other in sorted(others):
            if end.own_id < other:
                self._in(end.own_id, 0, self._dial, end, other, REDIAL_MIN_S)
            else:
                self.ask_later(end, other)

    def closed(self, end: SimTransport, *, silently: bool = False) -> None:
        """The process or its transport is gone; `silently`: no packet says so."""
        if self.ends.get(end.own_id) is end:
            del self.ends[end.own_id]
        for connection in list(self._connections.values()):
            if end.own_id in connection.ends:
                connection.ends.discard(end.own_id)
                connection.over = True
                if not silently:
                    self._tell_over(connection, connection.other(end.own_id))
        if silently:
            self.quiet(end.own_id)

    # ------------------------------------------------------------------ traffic

    def transmit(self, connection: Connection, source: str, messages: list[Message]) -> None:
        self.messages += len(messages)
        target = connection.other(source)
        if self._cuts[source, target]:
            connection.held[target].append(messages)
        else:
            self._send(connection, target, messages, 0)

    def drop(self, connection: Connection, end: str) -> None:
        """An end gives the connection up."""
        connection.ends.discard(end)
        connection.over = True
        connection.held[connection.other(end)].clear()
        self._tell_over(connection, connection.other(end))
        self._redial_if_dialler(connection, end)

    def _send(self, connection: Connection, target: str, messages: list[Message], wait_us: int) -> None:
        process = self._process(target)
        if process is None:
            return
        arrival_us = max(connection.arrived_us[target] + 1, self.world.now_us + wait_us + self._draw_us())
        connection.arrived_us[target] = arrival_us
        end = self.ends[target]
        self.world.push(arrival_us, process, Handle(end.take, (connection, messages)))

    def _draw_us(self) -> int:
        rng = self.rng
        delay_us = int(self.delay_us * (1.0 + self.jitter * rng.random()))
        if self.spike_chance and rng.random() < self.spike_chance:
            delay_us += int(rng.random() * self.spike_us)
        return delay_us

    # ------------------------------------------------------------------ ends of connections

    def _tell_over(self, connection: Connection, end: str) -> None:
        """A reset is on its way, behind what was sent before; it does not pass a cut."""
        if end in connection.ends and not self._cuts[connection.other(end), end]:
            self._reset(connection, end)

    def _reset(self, connection: Connection, end: str) -> None:
        arrival_us = max(connection.arrived_us[end] + 1, self.world.now_us + self._draw_us())
        connection.arrived_us[end] = arrival_us
        self._in(end, arrival_us - self.world.now_us, self._close_end, connection, end)

    def _close_end(self, connection: Connection, end: str) -> None:
        """Runs in the process of that end."""
        transport = self.ends.get(end)
        if end not in connection.ends or transport is None:
            return
        connection.ends.discard(end)
        connection.over = True
        transport.went_down(connection)
        self._tell_over(connection, connection.other(end))
        self._redial_if_dialler(connection, end)

    def _expect_silence(self, source: str, target: str) -> None:
        """If nothing has come from `source` for long enough, `target` gives the connection up."""
        connection = self._connections.get(_pair(source, target))
        if connection is not None and target in connection.ends:
            wait_us = int((DEAD_S + PING_S * self.rng.random()) * SECOND)
            began_us = self.world.now_us
            self._in(target, wait_us, self._check_silence, connection, source, target, began_us)

    def _check_silence(self, connection: Connection, source: str, target: str, began_us: int) -> None:
        cut_at = self._cut_at.get((source, target))
        since_cut = cut_at is not None and cut_at <= began_us
        process = self._process(source)
        mute = process is None or (process.paused and process.paused_at_us <= began_us)
        if (since_cut or mute) and target in connection.ends:
            self._close_end(connection, target)

    # ------------------------------------------------------------------ dialling

    def _redial_if_dialler(self, connection: Connection, end: str) -> None:
        if end == connection.nodes[0] and end in self.ends:
            self._dial_later(self.ends[end], connection.nodes[1], REDIAL_MIN_S)

    def _dial_later(self, end: SimTransport, other: str, wait_s: float) -> None:
        delay_us = int(wait_s * (0.5 + self.rng.random()) * SECOND)
        self._in(end.own_id, delay_us, self._dial, end, other, min(REDIAL_MAX_S, wait_s * 1.6))

    def _dial(self, end: SimTransport, other: str, wait_s: float) -> None:
        """Runs in the dialler's process."""
        own = end.own_id
        if self.ends.get(own) is not end or other in end.links or other not in end.known:
            return
        there = self.ends.get(other)
        if self._cuts[own, other] or self._cuts[other, own] or there is None or own not in there.known:
            self._tell_stranger(end, other)
            self._dial_later(end, other, wait_s)
            return
        connection = Connection(own, other)
        self._connections[own, other] = connection
        delay_us = self._draw_us()
        connection.arrived_us[other] = self.world.now_us + delay_us
        self._in(other, delay_us, self._accept, connection)
        self._in(own, int(HELLO_TIMEOUT_S * SECOND), self._give_up_hello, connection, end, wait_s)

    def ask_later(self, end: SimTransport, other: str) -> None:
        """Of one with a smaller id, who should dial: does it know us?"""
        if other not in end.asking:
            end.asking.add(other)
            self._in(end.own_id, int(ASK_S * SECOND), self._ask, end, other)

    def _ask(self, end: SimTransport, other: str) -> None:
        end.asking.discard(other)
        if self.ends.get(end.own_id) is end and other in end.known and other not in end.links:
            self._tell_stranger(end, other)
            self.ask_later(end, other)

    def _tell_stranger(self, end: SimTransport, other: str) -> None:
        """A hello is refused by who does not know us; but the roster in it is read."""
        there = self.ends.get(other)
        if there is not None and not self._cuts[end.own_id, other] and end.book.at_index:
            self._in(other, self._draw_us(), there.hear_of, end.own_id, end.book)

    def _accept(self, connection: Connection) -> None:
        """Runs in the acceptor's process: the hello is there, an older connection of the pair goes."""
        dialler, acceptor = connection.nodes
        if connection.over or self._connections[dialler, acceptor] is not connection:
            return
        if acceptor not in self.ends:
            return  # it has fallen silent since it was dialled, and is about to end
        connection.ends.add(acceptor)
        self.ends[acceptor].came_up(connection)
        if self._cuts[acceptor, dialler]:
            return
        arrival_us = self.world.now_us + self._draw_us()
        connection.arrived_us[dialler] = max(connection.arrived_us[dialler], arrival_us)
        self._in(dialler, arrival_us - self.world.now_us, self._be_up, connection)

    def _be_up(self, connection: Connection) -> None:
        dialler = connection.nodes[0]
        if not connection.over and dialler not in connection.ends and dialler in self.ends:
            connection.ends.add(dialler)
            self.ends[dialler].came_up(connection)

    def _give_up_hello(self, connection: Connection, end: SimTransport, wait_s: float) -> None:
        dialler, acceptor = connection.nodes
        newest = self._connections[dialler, acceptor] is connection
        if newest and self.ends.get(dialler) is end and dialler not in connection.ends and acceptor not in end.links:
            connection.over = True
            self._tell_over(connection, acceptor)
            self._dial_later(end, acceptor, wait_s)

    def peers_changed(self, end: SimTransport, before: set[str]) -> None:
        """Dial whom it knows now, drop whom it knows no more; one that was removed is told."""
        self._reach(end, end.known - before)
        for other in sorted(before - end.known):
            connection = end.links.get(other)
            if connection is not None:
                self._in(end.own_id, 0, self._close_end, connection, end.own_id)
            if other in end.removed and not self._cuts[end.own_id, other]:
                self._in(other, self._draw_us(), self._send_away, other)

    def _send_away(self, node_id: str) -> None:
        self.ends[node_id].sent_away()

    # ------------------------------------------------------------------ inside

    def _process(self, node_id: str) -> Process | None:
        end = self.ends.get(node_id)
        return None if end is None else end.process

    def _in(self, node_id: str, delay_us: int, callback: object, *args: object) -> None:
        """Later, in that node's process as it is now; never when it has ended."""
        process = self._process(node_id)
        if process is not None:
            self.world.after(delay_us, process, callback, *args)  # type: ignore[arg-type]


class SimTransport:
    """One process's end of all wires (port `TransportPort`)."""

    def __init__(self, network: Network, process: Process, own_id: str) -> None:
        self.network = network
        self.process = process
        self.own_id = own_id
        self.links: dict[str, Connection] = {}
        self.known = set(network.ids) - {own_id}
        self.removed: frozenset[str] = frozenset()
        self.book = Roster(0, ())
        self.asking: set[str] = set()
        self._queued: dict[str, list[Message]] = {}
        self._receiver: Receiver
        self._count = 0

    async def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.network.opened(self)

    async def stop(self) -> None:
        self.silence()

    def send(self, node_id: str, message: Message) -> None:
        if node_id in self.links:
            queued = self._queued.get(node_id)
            if queued is None:
                self._queued[node_id] = [self._as_received(message)]
            else:
                queued.append(self._as_received(message))

    def flush(self, peers_max: int | None = None) -> bool:
        if not self._queued:
            return False
        for node_id in list(islice(self._queued, peers_max)):
            messages = self._queued.pop(node_id)
            connection = self.links.get(node_id)
            if connection is not None:
                self.network.transmit(connection, self.own_id, messages)
        return bool(self._queued)

    def disconnect(self, node_id: str, reason: str) -> None:
        connection = self.links.get(node_id)
        if connection is not None:
            self.process.loop.call_soon(self._drop, connection)

    def set_peers(self, addresses: Mapping[str, str], removed: frozenset[str], book: Roster) -> None:
        before, self.known = self.known, set(addresses)
        self.removed, self.book = removed, book
        if self.network.ends.get(self.own_id) is self:
            self.network.peers_changed(self, before)

    def sent_away(self) -> None:
        self._receiver.on_sent_away()

    def silence(self) -> None:
        self.links.clear()
        self._queued.clear()
        self.network.closed(self)

    # ------------------------------------------------------------------ what the network tells

    def came_up(self, connection: Connection) -> None:
        other = connection.other(self.own_id)
        older = self.links.get(other)
        if older is not None:
            older.ends.discard(self.own_id)
            older.over = True
            self.went_down(older)
        self.links[other] = connection
        self._receiver.on_connection(other, True)
        there = self.network.ends.get(other)
        if there is not None and there.book.at_index:
            self._receiver.on_book(there.book)

    def hear_of(self, stranger: str, book: Roster) -> None:
        if self.network.ends.get(self.own_id) is not self or not self._receiver.lacks_leader():
            return
        if book.introduces(stranger, self.own_id, self.book.at_index):
            self._receiver.on_book(book)

    def went_down(self, connection: Connection) -> None:
        other = connection.other(self.own_id)
        if self.links.get(other) is connection:
            del self.links[other]
            self._queued.pop(other, None)
            self._receiver.on_connection(other, False)
            if other < self.own_id and other in self.known:
                self.network.ask_later(self, other)

    def take(self, connection: Connection, messages: list[Message]) -> None:
        other = connection.other(self.own_id)
        if self.links.get(other) is connection:
            self._receiver.on_messages(other, messages)

    def _drop(self, connection: Connection) -> None:
        if self.own_id in connection.ends:
            self.went_down(connection)
            self.network.drop(connection, self.own_id)

    def _as_received(self, message: Message) -> Message:
        """What the other side unpacks: nothing of it is shared with the sender."""
        copy = message.copy()
        entries = message.get("entries")
        if entries is not None:
            copy["entries"] = tuple(map(tuple, entries))
        if (piece := message.get("serialized")) is not None:
            copy["serialized"] = piece.copy()
        self._count += 1
        if self._count % CHECK_EVERY == 0:
            assert msgpack.unpackb(msgpack.packb(message), use_list=False) == copy
        return copy


def _pair(one: str, other: str) -> Direction:
    return (one, other) if one < other else (other, one)
