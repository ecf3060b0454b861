"""The wire: who is let in, what is kept in order, what a broken or hostile peer costs. Over real loopback sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest
from tests.helpers.loopback import free_ports, listening

from horae_node.clock import ManualClock, SystemClock
from horae_node.core.decide.members import MEMBERS_MAX
from horae_node.errors import ConfigError
from horae_node.raft import reach, transport
from horae_node.raft.members import book_as_told
from horae_node.raft.port import Member, Roster
from horae_node.raft.transport import FRAME_BYTES_MAX, HELLO_BYTES_MAX, STRANGERS_MAX, Message, TcpTransport


class Told:
    """A receiver that writes down what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []
        self.links: list[tuple[str, bool]] = []
        self.books: list[Roster] = []
        self.is_led = False
        self.sent_away = asyncio.Event()
        self.misfits: list[str] = []
        self.origin_indexes: set[int | None] = set()
        self.unreachable: list[tuple[str, str, str]] = []
        """Peer, address and reason."""
        self.news = asyncio.Event()

    def on_messages(self, node_id: str, messages: list[Message]) -> None:
        self.messages += [(node_id, message) for message in messages]
        self.news.set()

    def on_book(self, book: Roster) -> None:
        self.books.append(book)

    def lacks_leader(self) -> bool:
        return not self.is_led

    def on_sent_away(self) -> None:
        self.sent_away.set()

    def on_misfit(self, reason: str, origin_index: int | None) -> None:
        self.misfits.append(reason)
        self.origin_indexes.add(origin_index)
        self.news.set()

    def on_unreachable(self, node_id: str, address: str, reason: str, for_s: float) -> None:
        self.unreachable.append((node_id, address, reason))
        self.news.set()

    def on_connection(self, node_id: str, up: bool) -> None:
        self.links.append((node_id, up))
        self.news.set()

    async def wait_links(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.links) < count:
                self.news.clear()
                await self.news.wait()

    async def wait_told(self, told: list[Any], count: int = 1) -> None:
        """Until one of the lists above has so many."""
        async with asyncio.timeout(10):
            while len(told) < count:
                self.news.clear()
                await self.news.wait()

    async def wait_messages(self, count: int) -> list[Message]:
        async with asyncio.timeout(5):
            while len(self.messages) < count:
                self.news.clear()
                await self.news.wait()
        return [message for _, message in self.messages]


def roster_of(voters: str, at_index: int = 0) -> Roster:
    return Roster(at_index, tuple(Member(name, "127.0.0.1:1", "") for name in voters.split()))


class Pair:
    def __init__(self) -> None:
        self.members = [Member(f"n{i}", f"127.0.0.1:{port}", "") for i, port in enumerate(free_ports(2), 1)]
        self.ends: dict[str, TcpTransport] = {}
        self.told: dict[str, Told] = {}

    async def start(
        self,
        node_id: str,
        cluster: str = "test",
        members: list[Member] | None = None,
        incarnation: str = "",
        knows: str | None = None,
        voters: str = "",
        at_index: int = 0,
        origin: tuple[str, int] | None = None,
        told: Told | None = None,
    ) -> Told:
        """`knows`: the only incarnation of its peer that this end believes. `voters`: what it was configured with."""
        address = next(m.raft_address for m in self.members if m.node_id == node_id)
        host, _, port = address.rpartition(":")
        end = TcpTransport(
            own_id=node_id,
            members=members or self.members,
            cluster=cluster,
            listen=(host, int(port)),
            clock=SystemClock(),
            incarnation=incarnation,
            check_peer=lambda node_id, told: None if knows in (None, told) else f"{node_id} forgot",
            origin=origin,
        )
        self.ends[node_id], self.told[node_id] = end, told or Told()
        if voters:
            others = {m.node_id: m.raft_address for m in members or self.members if m.node_id != node_id}
            end.set_peers(others, frozenset(), roster_of(voters, at_index))
        await end.start(self.told[node_id])
        return self.told[node_id]

    def send(self, here: str, there: str, *messages: Message) -> None:
        for message in messages:
            self.ends[here].send(there, message)
        self.ends[here].flush()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection to n2."""
        host, _, port = self.members[1].raft_address.rpartition(":")
        return await asyncio.open_connection(host, int(port))


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    for end in made.ends.values():
        await end.stop()


def frame(message: Any) -> bytes:
    body = msgpack.packb(message)
    return len(body).to_bytes(4) + body


HELLO = {"v": 1, "cluster": "test", "node": "n1", "incarnation": "i1"}
PING = bytes(4)
"""What a caller sends once it has heard a hello that is right."""


async def connected(pair: Pair) -> tuple[Told, Told]:
    one, two = await pair.start("n1"), await pair.start("n2")
    await one.wait_links(1)
    await two.wait_links(1)
    return one, two


async def test_messages_keep_their_order_both_ways(pair: Pair) -> None:
    one, two = await connected(pair)
    sent = [{"type": "x", "number": number, "data": bytes(number)} for number in range(300)]
    pair.send("n1", "n2", *sent)
    pair.send("n2", "n1", *sent)
    assert await two.wait_messages(300) == sent
    assert await one.wait_messages(300) == sent


async def test_entries_packed_once_read_as_sent(pair: Pair) -> None:
    _, two = await connected(pair)
    entries = [(b"x" * 900_000, 3, 1), (b"y", 4, 1)]
    message = {"type": "append_entries", "term": 1, "entries": entries, "seq": 9}
    pair.send("n1", "n2", message, message | {"seq": 10, "entries": []}, message | {"seq": 11})
    got = await two.wait_messages(3)
    assert [m["seq"] for m in got] == [9, 10, 11]
    assert got[0]["entries"] == got[2]["entries"] == tuple(entries)
    assert got[1]["entries"] == ()


async def test_a_peer_that_comes_back_is_connected_again(pair: Pair) -> None:
    one, _ = await connected(pair)
    await pair.ends["n2"].stop()
    await one.wait_links(2)
    await pair.start("n2")
    await one.wait_links(3)
    assert one.links == [("n2", True), ("n2", False), ("n2", True)]


async def test_a_dropped_connection_is_made_anew(pair: Pair) -> None:
    one, two = await connected(pair)
    pair.ends["n2"].disconnect("n1", "a test")
    assert two.links == [("n1", True)], "not within the call"
    await one.wait_links(3)
    await two.wait_links(3)
    assert two.links == [("n1", True), ("n1", False), ("n1", True)]


@pytest.mark.parametrize(
    "hello",
    [
        HELLO | {"cluster": "other"},
        HELLO | {"node": "stranger"},
        HELLO | {"node": "n2"},
        HELLO | {"node": 7},
        HELLO | {"node": ["n1"]},
        HELLO | {"incarnation": None},
        HELLO | {"v": 99},
        "hello",
    ],
)
async def test_who_is_not_of_us_is_refused_with_a_reason(pair: Pair, hello: object) -> None:
    two = await pair.start("n2")
    reader, writer = await pair.dial()
    writer.write(frame(hello) + frame({"type": "x"}))
    answer = await asyncio.wait_for(reader.read(), 5)
    assert "refused" in msgpack.unpackb(answer[4:])
    writer.close()
    assert (two.links, two.messages) == ([], [])


@pytest.mark.parametrize("noise", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1"])
async def test_noise_ends_the_connection(pair: Pair, noise: bytes) -> None:
    two = await pair.start("n2")
    reader, writer = await pair.dial()
    writer.write(noise)
    await end_of(reader)
    writer.close()
    assert two.links == []


async def test_a_frame_that_is_too_large_ends_the_connection(pair: Pair) -> None:
    two = await pair.start("n2")
    reader, writer = await pair.dial()
    writer.write(frame(HELLO) + PING)
    await two.wait_links(1)
    writer.write((FRAME_BYTES_MAX + 1).to_bytes(4))
    await end_of(reader)
    await two.wait_links(2)
    writer.close()


async def test_a_newer_connection_of_a_peer_closes_the_older_one_first(pair: Pair) -> None:
    two = await pair.start("n2")
    old_reader, old_writer = await pair.dial()
    old_writer.write(frame(HELLO) + PING)
    await two.wait_links(1)
    _, new_writer = await pair.dial()
    new_writer.write(frame(HELLO) + PING)
    await two.wait_links(3)
    assert two.links == [("n1", True), ("n1", False), ("n1", True)]
    await end_of(old_reader)
    new_writer.write(frame({"type": "x"}))
    assert await two.wait_messages(1) == [{"type": "x"}]
    for writer in (old_writer, new_writer):
        writer.close()


async def test_an_address_that_is_taken_is_a_configuration_error(pair: Pair) -> None:
    await pair.start("n2")
    host, _, port = pair.members[1].raft_address.rpartition(":")
    other = TcpTransport(
        own_id="n1", members=pair.members, cluster="test", listen=(host, int(port)), clock=ManualClock()
    )
    with pytest.raises(ConfigError, match=port):
        await other.start(Told())


async def test_what_is_silenced_while_it_begins_listens_to_nobody(pair: Pair) -> None:
    """Consensus fails before or while the address is bound: its cause is what is told, not a second failure."""
    host, _, port = pair.members[1].raft_address.rpartition(":")
    end = TcpTransport(own_id="n2", members=pair.members, cluster="test", listen=(host, int(port)), clock=SystemClock())
    pair.ends["n2"] = end
    end.silence()
    await end.start(Told())
    with pytest.raises(ConnectionRefusedError):
        await pair.dial()
    await end.stop()


async def end_of(reader: asyncio.StreamReader) -> None:
    """Until the other side has closed, whichever way."""
    try:
        await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return


@pytest.mark.parametrize("wary", ["n1", "n2"])
async def test_a_peer_that_lost_its_directory_is_refused_whoever_dials(pair: Pair, wary: str) -> None:
    other = "n2" if wary == "n1" else "n1"
    told = await pair.start(wary, incarnation="a", knows="b")
    await pair.start(other, incarnation="c")
    refused = asyncio.Event()
    pair.ends[wary].refuse = lambda link, reason: refused.set()  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await refused.wait()
    assert (other, True) not in told.links
    await pair.ends[other].stop()
    await pair.start(other, incarnation="b")
    await told.wait_links(1)
    assert told.links == [(other, True)]


async def test_a_link_that_the_caller_refuses_is_none_and_is_told_once(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emptied node believes everybody: it was dialled, up and down without end."""
    caplog.set_level("INFO", "horae.raft")
    monkeypatch.setattr(transport, "REDIAL_MAX_S", 0.01)
    two = await pair.start("n2", incarnation="c")
    refusals = asyncio.Semaphore(0)
    pair.ends["n2"].refused_by = lambda node_id: refusals.release()  # type: ignore[method-assign]
    one = await pair.start("n1", incarnation="a", knows="b")
    async with asyncio.timeout(10):
        for _ in range(4):
            await refusals.acquire()
    assert one.links == two.links == []
    assert refusals_of(caplog) == [
        ("WARNING", "n2", "n2 forgot"),
        ("WARNING", "n1", "refused by the peer: n2 forgot"),
    ]
    assert [record.msg for record in caplog.records if record.msg == "link_dropped"] == []


@pytest.mark.parametrize("first", [PING, frame({"type": "x"}), frame({"type": "x", "data": bytes(HELLO_BYTES_MAX)})])
async def test_a_link_is_one_when_anything_follows_the_hello(pair: Pair, first: bytes) -> None:
    """A message of a caller that sends no ping at once is as good."""
    two = await pair.start("n2")
    reader, writer = await pair.dial()
    writer.write(frame(HELLO))
    assert msgpack.unpackb((await asyncio.wait_for(reader.read(1000), 5))[4:])["node"] == "n2"
    assert two.links == []
    writer.write(first + frame({"type": "y"}))
    messages = await two.wait_messages(1 if first == PING else 2)
    assert two.links == [("n1", True)]
    assert messages[-1] == {"type": "y"}
    writer.close()


async def test_a_caller_that_parted_before_its_link_is_one_gets_none(pair: Pair) -> None:
    two = await pair.start("n2")
    reader, writer = await pair.dial()
    writer.write(frame(HELLO))
    await asyncio.wait_for(reader.read(1000), 5)
    pair.ends["n2"].set_peers({}, frozenset(), BOOK)
    writer.write(PING + frame({"type": "x"}))
    await end_of(reader)
    assert (two.links, two.messages) == ([], [])
    writer.close()


@pytest.mark.parametrize("wary", ["n1", "n2"])
async def test_who_calls_and_is_refused_or_refuses_is_not_out_of_reach(pair: Pair, wary: str) -> None:
    """n2 waits for the calls of n1, and they come: that one of them refuses the other has a line of its own."""
    await pair.start("n2", knows="right" if wary == "n2" else None)
    clock = ManualClock()
    known = pair.ends["n2"]._reach = reach.Reach(clock)
    known.expect("n1")
    clock.advance(4000)
    reader, writer = await pair.dial()
    writer.write(frame(HELLO) + (frame({"refused": "a test"}) if wary == "n1" else b""))
    await end_of(reader)
    writer.close()
    clock.advance(4000)
    assert known.missed("n1") is None
    clock.advance(2000)
    assert known.missed("n1") is not None


async def test_a_caller_that_refuses_a_second_call_keeps_nobody_from_a_sound_link(pair: Pair) -> None:
    two = await pair.start("n2")
    _, sound = await pair.dial()
    sound.write(frame(HELLO) + PING)
    await two.wait_links(1)
    reader, other = await pair.dial()
    other.write(frame(HELLO) + frame({"refused": "a test"}))
    await end_of(reader)
    sound.write(frame({"type": "x"}))
    assert await two.wait_messages(1) == [{"type": "x"}]
    assert two.links == [("n1", True)]
    for writer in (sound, other):
        writer.close()


# ---------------------------------------------------------------- members that change


def peers_of(pair: Pair, *node_ids: str) -> dict[str, str]:
    return {member.node_id: member.raft_address for member in pair.members if member.node_id in node_ids}


BOOK = Roster(9, (Member("n1", "h:1", "http://h"),), (Member("n7", "h:7", "http://h7"),))


@pytest.mark.parametrize("book", [7, "x", [1], [1, 2, 3], {"at_index": 1}])
async def test_what_is_no_roster_is_not_told(pair: Pair, book: object) -> None:
    two = await pair.start("n2")
    _, writer = await pair.dial()
    writer.write(frame(HELLO | {"book": book}) + PING)
    await two.wait_links(1)
    assert two.books == []
    writer.close()


def test_a_hello_has_room_for_the_longest_names() -> None:
    name, address = "n" * 63, "h" * 255
    members = tuple(Member(name, address, address) for _ in range(MEMBERS_MAX))
    hello = HELLO | {
        "node": name,
        "cluster": name,
        "incarnation": "i" * 64,
        "origin": "0" * 64,
        "book": book_as_told(Roster(2**40, members)),
    }
    assert len(msgpack.packb(hello)) < HELLO_BYTES_MAX
    configured = hello | {"voters": (name,) * MEMBERS_MAX}
    configured.pop("book")
    assert len(msgpack.packb(configured)) < HELLO_BYTES_MAX


async def test_a_roster_is_told_at_each_connection(pair: Pair) -> None:
    one, two = await connected(pair)
    assert one.books == two.books == []
    pair.ends["n1"].set_peers(peers_of(pair, "n2"), frozenset(), BOOK)
    pair.ends["n1"].disconnect("n2", "to connect anew")
    await two.wait_links(3)
    assert two.books == [BOOK]


@pytest.mark.parametrize(("stays", "goes"), [("n1", "n2"), ("n2", "n1")])
async def test_a_removed_node_is_told_whoever_dials(
    pair: Pair, stays: str, goes: str, caplog: pytest.LogCaptureFixture
) -> None:
    await connected(pair)
    pair.ends[stays].set_peers({}, frozenset({goes}), BOOK)
    await asyncio.wait_for(pair.told[goes].sent_away.wait(), 5)
    await pair.told[stays].wait_links(2)
    assert pair.told[stays].links[-1] == (goes, False)
    assert "WARNING" not in [record.levelname for record in caplog.records], "who is told says so itself"


async def test_a_removed_node_that_dials_is_told(pair: Pair) -> None:
    await pair.start("n2")
    pair.ends["n2"].set_peers({}, frozenset({"n1"}), BOOK)
    one = await pair.start("n1")
    await asyncio.wait_for(one.sent_away.wait(), 5)


def refusals_of(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Level, peer and reason of each line."""
    fields = [(record.levelname, record.horae_fields) for record in caplog.records if record.msg == "peer_refused"]  # type: ignore[attr-defined]
    return [(level, told["peer"], told["reason"]) for level, told in fields]


async def call_up(pair: Pair, *hellos: Message) -> None:
    """One connection after the other to n2, each to its end."""
    for hello in hellos:
        reader, writer = await pair.dial()
        writer.write(frame(hello))
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_each_refusal_is_told_once_a_node(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """Though all of them call from one host, in turns."""
    caplog.set_level("INFO", "horae.raft")
    await pair.start("n2", members=[*pair.members, Member("n0", "127.0.0.1:1", "")], knows="right")
    pair.ends["n2"].set_peers(peers_of(pair, "n1") | {"n0": "127.0.0.1:1"}, frozenset({"n8", "n9"}), BOOK)
    gone = [HELLO | {"node": name} for name in ("n8", "n9")]
    lost = [HELLO | {"node": name} for name in ("n0", "n1")]
    for _ in range(3):
        await call_up(pair, *gone, HELLO | {"node": "stranger"}, *lost)
    assert refusals_of(caplog) == [
        ("INFO", "n8", "node 'n8' is a member no more"),
        ("INFO", "n9", "node 'n9' is a member no more"),
        ("WARNING", "127.0.0.1", "unknown node 'stranger': members here are n0,n1,n2: start it with join"),
        ("WARNING", "n0", "n0 forgot"),
        ("WARNING", "n1", "n1 forgot"),
    ]


async def test_a_refusal_is_told_again_after_the_node_was_let_in(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    two = await pair.start("n2", knows="right")
    await call_up(pair, HELLO)
    _, writer = await pair.dial()
    writer.write(frame(HELLO | {"incarnation": "right"}) + PING)
    await two.wait_links(1)
    await call_up(pair, HELLO)
    writer.close()
    assert [peer for _, peer, _ in refusals_of(caplog)] == ["n1", "n1"]


async def test_a_removed_node_that_is_not_dialled_asks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    one = await pair.start("n1", members=[])
    pair.ends["n1"].set_peers({}, frozenset({"n2"}), BOOK)
    two = await pair.start("n2")
    await asyncio.wait_for(two.sent_away.wait(), 5)
    assert one.links == two.links == []


async def test_one_that_only_asks_gets_no_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though both know each other: the smaller id dials, and does so in its own time."""
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    monkeypatch.setattr(transport, "REDIAL_MIN_S", 0.2)
    await pair.start("n1")
    two = await pair.start("n2")
    await two.wait_links(1)
    assert not two.sent_away.is_set()


async def test_a_new_peer_is_dialled_and_an_old_one_dropped(pair: Pair) -> None:
    one = await pair.start("n1", members=[])
    two = await pair.start("n2")
    pair.ends["n1"].set_peers(peers_of(pair, "n2"), frozenset(), BOOK)
    await two.wait_links(1)
    await one.wait_links(1)
    pair.ends["n1"].set_peers({}, frozenset(), BOOK)
    await two.wait_links(2)
    assert two.links == [("n1", True), ("n1", False)]
    assert not two.sent_away.is_set()


async def test_a_hello_that_moves_its_very_sender_costs_that_connection_and_no_more(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roster in it is taken in while the call that has reached the peer has not returned yet: its end closes what
    it connected, and tells the protocol nothing, as uvloop does."""
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def slow(*args: Any, **given: Any) -> Any:
        made, link = await connect(*args, **given)
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            made.set_protocol(asyncio.Protocol())
            made.close()
            raise
        return made, link

    class Moves(Told):
        def on_book(self, book: Roster) -> None:
            super().on_book(book)
            if len(self.books) == 1:
                pair.ends["n1"].set_peers(moved, frozenset(), BOOK)

    moved = {"n2": pair.members[1].raft_address.replace("127.0.0.1", "localhost")}
    monkeypatch.setattr(loop, "create_connection", slow)
    monkeypatch.setattr(transport, "DEAD_S", 3600)
    two = await pair.start("n2", voters="n1 n2", at_index=7)
    one = await pair.start("n1", told=Moves())
    await one.wait_links(3)
    await two.wait_links(3)
    pair.send("n1", "n2", {"type": "x"})
    assert await two.wait_messages(1) == [{"type": "x"}]
    assert one.links == [("n2", True), ("n2", False), ("n2", True)]


@pytest.mark.parametrize("told", [{}, {"origin": "other"}], ids=["none", "another"])
async def test_a_peer_of_another_life_sends_nobody_away(pair: Pair, told: dict[str, str]) -> None:
    """Its members are not ours: a recovered survivor was removed in the life before."""
    two = await pair.start("n2", origin=("recovered", 0))
    reader, writer = await pair.dial()
    writer.write(frame(HELLO | {"origin": "recovered"}) + frame({"refused": "a test", "removed": True} | told))
    await end_of(reader)
    assert not two.sent_away.is_set()
    _, writer = await pair.dial()
    writer.write(frame(HELLO | {"origin": "recovered"}))
    writer.write(frame({"refused": "a test", "removed": True, "origin": "recovered"}))
    await asyncio.wait_for(two.sent_away.wait(), 5)
    writer.close()


async def test_a_peer_that_moved_is_dialled_at_its_new_address(pair: Pair) -> None:
    elsewhere = [pair.members[0], pair.members[1]._replace(raft_address="127.0.0.1:1")]
    await pair.start("n1", members=elsewhere)
    two = await pair.start("n2")
    pair.ends["n1"].set_peers(peers_of(pair, "n2"), frozenset(), BOOK)
    await two.wait_links(1)


# ---------------------------------------------------------------- configurations that disagree


THREE, FIVE = "n1 n2 n3", "n1 n2 n3 n4 n5"
ONE_SEES = "members differ: n2 has n1,n2,n3,n4,n5, here n1,n2,n3: make them alike"
TWO_SEES = "members differ: n1 has n1,n2,n3, here n1,n2,n3,n4,n5: make them alike"


async def test_voters_of_different_clusters_refuse_each_other(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each says so once, with both lists, though one dials for ever and the other asks."""
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    monkeypatch.setattr(transport, "REDIAL_MAX_S", 0.01)
    one, two = await pair.start("n1", voters=THREE), await pair.start("n2", voters=FIVE)
    await one.wait_told(one.misfits, 5)
    await two.wait_told(two.misfits, 5)
    assert (set(one.misfits), set(two.misfits)) == ({ONE_SEES}, {TWO_SEES})
    assert one.links == two.links == []
    assert sorted(refusals_of(caplog)) == [("WARNING", "n1", TWO_SEES), ("WARNING", "n2", ONE_SEES)]
    assert one.unreachable == two.unreachable == []


async def test_a_voter_that_is_not_known_here_is_told_of_both_lists(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody dials it: it asks."""
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    one = await pair.start("n1", members=[pair.members[0]], voters="n1 n3 n4")
    two = await pair.start("n2", voters="n2 n1 n3")
    await one.wait_told(one.misfits)
    await two.wait_told(two.misfits)
    assert sorted(refusals_of(caplog)) == [
        ("WARNING", "n1", "members differ: n1 has n1,n3,n4, here n1,n2,n3: make them alike"),
        ("WARNING", "n2", "members differ: n2 has n1,n2,n3, here n1,n3,n4: make them alike"),
    ]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"voters": THREE}, {"voters": "n3 n2 n1"}),
        ({"voters": THREE}, {}),
        ({}, {"voters": THREE}),
        ({"voters": THREE}, {"voters": FIVE, "at_index": 7}),
        ({"voters": THREE, "at_index": 7}, {"voters": FIVE}),
        ({"voters": "n1"}, {"voters": "n1 n3 n4"}),
        ({"voters": "n2 n3 n4"}, {"voters": "n2"}),
    ],
    ids=["alike", "older dialled", "older dials", "changed here", "changed there", "n2 joins", "n1 joins"],
)
async def test_members_that_are_alike_changed_or_not_told_are_no_misfit(
    pair: Pair, one: dict[str, Any], two: dict[str, Any]
) -> None:
    first, second = await pair.start("n1", **one), await pair.start("n2", **two)
    await first.wait_links(1)
    await second.wait_links(1)
    assert first.misfits == second.misfits == []


@pytest.mark.parametrize("at_index", [0, 7])
@pytest.mark.parametrize("newer", [("newer", 50), ("recovered", 0), None], ids=["newer", "recovered", "of before"])
async def test_nodes_of_different_lives_of_the_cluster_refuse_each_other(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    at_index: int,
    newer: tuple[str, int] | None,
) -> None:
    """Whether their members are as configured or were changed since; each says so once."""
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    monkeypatch.setattr(transport, "REDIAL_MAX_S", 0.01)
    one = await pair.start("n1", voters=THREE, at_index=at_index, origin=("older", 40))
    two = await pair.start("n2", voters=THREE, at_index=at_index, origin=newer)
    await one.wait_told(one.misfits, 5)
    await two.wait_told(two.misfits, 5)
    words = (
        "{} and this node are of different lives of the cluster, by a restore or a recovery: all members of a new "
        "cluster are restored from one file; for a disk that was lost, see 'A node whose disk was lost' in "
        "docs/operations.md"
    )
    assert (set(one.misfits), one.origin_indexes) == ({words.format("n2")}, {40})
    assert (set(two.misfits), two.origin_indexes) == ({words.format("n1")}, {None if newer is None else newer[1]})
    assert one.links == two.links == []
    assert sorted(refusals_of(caplog)) == [("WARNING", "n1", words.format("n1")), ("WARNING", "n2", words.format("n2"))]


@pytest.mark.parametrize(
    ("one", "two"),
    [(("same", 40), ("same", 40)), (("same", 40), ("same", 0)), (None, None)],
    ids=["both", "joined", "none"],
)
async def test_one_beginning_for_all_is_no_misfit(
    pair: Pair, one: tuple[str, int] | None, two: tuple[str, int] | None
) -> None:
    first, second = await pair.start("n1", origin=one), await pair.start("n2", origin=two)
    await first.wait_links(1)
    await second.wait_links(1)
    assert first.misfits == second.misfits == []


async def test_who_is_led_needs_no_stranger(pair: Pair) -> None:
    two = await pair.start("n2", voters="n1 n2", at_index=7)
    two.is_led = True
    reader, writer = await pair.dial()
    writer.write(frame(HELLO | {"node": "n4", "book": book_as_told(roster_of("n2 n4", 8))}))
    await asyncio.wait_for(reader.read(), 5)
    assert two.books == []
    writer.close()


async def test_many_silent_callers_keep_no_member_out(pair: Pair) -> None:
    two = await pair.start("n2")
    silent = [await pair.dial() for _ in range(STRANGERS_MAX + 5)]
    one = await pair.start("n1")
    await one.wait_links(1)
    await two.wait_links(1)
    gone = [reader.at_eof() for reader, _ in silent]
    assert gone[:5] == [True] * 5, "who was silent for longest"
    for _, writer in silent:
        writer.close()


async def test_an_address_that_no_host_can_have_ends_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "UNREACHABLE_S", 0.01)
    one = await pair.start(
        "n1", members=[pair.members[0], Member("n2", "a..b:7000", ""), Member("n3", "127.0.0.1:1", "")]
    )
    await one.wait_told(one.unreachable, 2)
    assert {peer for peer, _, _ in one.unreachable} == {"n2", "n3"}


@pytest.mark.parametrize("told", [7, ["x"], {"x": 1}, None, "other"])
async def test_a_stranger_of_another_life_introduces_nobody(pair: Pair, told: object) -> None:
    two = await pair.start("n2", voters="n1 n2", at_index=7, origin=("newer", 50))
    reader, writer = await pair.dial()
    book = book_as_told(roster_of("n2 n4", 8))
    writer.write(frame(HELLO | {"node": "n4", "book": book, "origin": told}))
    await asyncio.wait_for(reader.read(), 5)
    assert two.books == []
    writer.close()


@pytest.mark.parametrize("node", ["stranger", 7, ["n1"], {"n1": 1}])
async def test_a_stranger_restored_from_another_backup_ends_nobody(pair: Pair, node: object) -> None:
    two = await pair.start("n2", origin=("newer", 50))
    reader, writer = await pair.dial()
    writer.write(frame(HELLO | {"node": node, "origin": "older"}))
    refused = msgpack.unpackb((await reader.read())[4:])
    assert "unknown node" in refused["refused"]
    assert "of another life of the cluster" in refused["refused"]
    assert two.misfits == []
    writer.close()


async def test_configured_voters_are_told_until_members_change(pair: Pair) -> None:
    one = await pair.start("n1", voters=THREE)
    assert (one.books, pair.ends["n1"].hello["voters"]) == ([], ("n1", "n2", "n3"))
    pair.ends["n1"].set_peers(peers_of(pair, "n2"), frozenset(), BOOK)
    assert "voters" not in pair.ends["n1"].hello
    two = await pair.start("n2", voters=FIVE)
    await two.wait_links(1)
    assert (two.books, two.misfits) == ([BOOK], [])


@pytest.mark.parametrize("told", [7, "n1", [1], ["n1", "n2\nhorae: all is well"], {"n1": 1}, []])
async def test_what_are_no_voters_is_no_misfit(pair: Pair, told: object) -> None:
    two = await pair.start("n2", voters=THREE)
    _, writer = await pair.dial()
    writer.write(frame(HELLO | {"voters": told}) + PING)
    await two.wait_links(1)
    assert two.misfits == []
    writer.close()


@pytest.mark.parametrize(
    ("at_index", "way_in"), [(0, "with the same members in its configuration, or with join"), (7, "with join")]
)
async def test_who_is_not_known_reads_who_is_and_what_to_do(pair: Pair, at_index: int, way_in: str) -> None:
    await pair.start("n2", voters="n1 n2", at_index=at_index)
    reader, writer = await pair.dial()
    writer.write(frame(HELLO | {"node": "n4"}))
    answer = msgpack.unpackb((await asyncio.wait_for(reader.read(), 5))[4:])
    assert answer == {"refused": f"unknown node 'n4': members here are n1,n2: start it {way_in}"}
    writer.close()


@pytest.mark.parametrize(
    ("voters", "at_index", "believed"),
    [("n2 n4", 8, True), ("n2 n4", 7, False), ("n2 n3", 8, False), ("n3 n4", 8, False)],
    ids=["newer", "as old as ours", "without the stranger", "without us"],
)
async def test_a_stranger_that_is_a_member_by_a_newer_roster_is_believed(
    pair: Pair, voters: str, at_index: int, believed: bool
) -> None:
    """All whom a node knew may have left while it was away."""
    two = await pair.start("n2", voters="n1 n2", at_index=7)
    book = roster_of(voters, at_index)
    reader, writer = await pair.dial()
    writer.write(frame(HELLO | {"node": "n4", "book": book_as_told(book)}))
    await asyncio.wait_for(reader.read(), 5)
    assert two.books == ([book] if believed else [])
    writer.close()


# ---------------------------------------------------------------- who is not reached


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tries within the time after which it is told, and that soon."""
    monkeypatch.setattr(reach, "UNREACHABLE_S", 0.05)
    monkeypatch.setattr(transport, "ASK_S", 0.01)
    monkeypatch.setattr(transport, "REDIAL_MAX_S", 0.01)
    monkeypatch.setattr(transport, "REDIAL_MIN_S", 0.01)


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(("alone", "peer"), [("n1", "n2"), ("n2", "n1")])
async def test_a_peer_that_is_not_there_is_told_once_until_it_was_reached(pair: Pair, alone: str, peer: str) -> None:
    """By who dials, and by who is dialled."""
    told = await pair.start(alone)
    await told.wait_told(told.unreachable)
    here = (peer, next(m.raft_address for m in pair.members if m.node_id == peer), "Connection refused")
    assert told.unreachable == [here]
    await pair.start(peer)
    await told.wait_links(1)
    await pair.ends[peer].stop()
    await told.wait_told(told.unreachable, 2)
    assert told.unreachable == [here, here]


@pytest.mark.usefixtures("hurry")
async def test_one_that_answers_and_does_not_call_is_told(pair: Pair) -> None:
    """It has a wrong address for us: only its own log would say so else."""
    elsewhere = [pair.members[0], pair.members[1]._replace(raft_address="127.0.0.1:1")]
    one = await pair.start("n1", members=elsewhere)
    two = await pair.start("n2")
    await two.wait_told(two.unreachable)
    await one.wait_told(one.unreachable)
    assert one.unreachable == [("n2", "127.0.0.1:1", "Connection refused")]
    words = "refused by the peer: node 'n2' waits for our call, to 127.0.0.1:1: the smaller id dials"
    assert two.unreachable == [("n1", pair.members[0].raft_address, words)]


@pytest.mark.usefixtures("hurry")
async def test_an_address_of_something_else_is_no_peer(pair: Pair) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with listening(hang_up) as url:
        address = url.removeprefix("http://")
        one = await pair.start("n1", members=[pair.members[0], pair.members[1]._replace(raft_address=address)])
        await one.wait_told(one.unreachable)
    assert one.unreachable[0] == ("n2", address, "closed without a hello")


@pytest.mark.usefixtures("hurry")
async def test_a_peer_that_refuses_is_reached(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "UNREACHABLE_S", 0)
    calls = asyncio.Semaphore(0)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame({"refused": "a test"}))
        await reader.read()
        writer.close()
        calls.release()

    async with listening(refuse) as url, asyncio.timeout(10):
        address = url.removeprefix("http://")
        one = await pair.start("n1", members=[pair.members[0], pair.members[1]._replace(raft_address=address)])
        for _ in range(10):
            await calls.acquire()
        assert one.unreachable == []
