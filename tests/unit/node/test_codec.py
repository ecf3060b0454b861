"""Entries survive the way to bytes and back, and what this build does not know stops it instead of being guessed."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.core.world import make_spec

from horae import wire
from horae_node import codec, translate
from horae_node.core.commands import (
    ENTRY_VERSION,
    TAGS,
    AddMember,
    AdvanceTime,
    ClaimJobs,
    Command,
    CompleteJob,
    FailJob,
    Header,
    HeartbeatLease,
    MemberAddress,
    OpenEpoch,
    RaiseMachineVersion,
    RemoveMember,
    SetMembers,
    SubmitBatch,
    SubmitJob,
)
from horae_node.errors import Fatal

HEADER = Header(ENTRY_VERSION, 3, 1_700_000_000_123, 42)
COMMANDS: tuple[Command, ...] = (
    OpenEpoch("n1", 2),
    SubmitJob(make_spec("j", tags=(("a", "b"),), payload=b'{"n":1}'), None, 1500, b"x" * 16),
    SubmitBatch((SubmitJob(make_spec("one"), 5, 0, b""), SubmitJob(make_spec("zwei €"), None, 0, b""))),
    ClaimJobs("w", ("a", "b"), 10, None, "c1"),
    HeartbeatLease("j", 7, b"{}"),
    CompleteJob("j", 7, None),
    FailJob("j", 7, "ValueError", "no", "", True, None),
    AdvanceTime(100),
    RaiseMachineVersion(2),
    SetMembers((MemberAddress("n1", "a:1", "http://a"), MemberAddress("n2", "b:1", "http://b"))),
    AddMember("n3", "c:1", "http://c"),
    RemoveMember("n1"),
)


def entry_of(*commands: Command, header: Header = HEADER) -> bytes:
    return codec.join_entry(header, [codec.pack_command(command) for command in commands])


def test_an_entry_comes_back_as_it_was() -> None:
    header, commands = codec.split_entry(entry_of(*COMMANDS))
    assert header == HEADER
    assert commands == COMMANDS
    assert [type(command) for command in commands] == [type(command) for command in COMMANDS]
    assert isinstance(commands[1], SubmitJob)
    assert commands[1].spec._fields == make_spec("j")._fields


def test_every_command_has_one_tag() -> None:
    assert len(set(TAGS.values())) == len(TAGS)


def test_many_commands_need_a_longer_array_prefix() -> None:
    header, commands = codec.split_entry(entry_of(*[AdvanceTime(i) for i in range(70_000)]))
    assert (header, len(commands), commands[-1]) == (HEADER, 70_000, AdvanceTime(69_999))


def test_the_header_stays_within_its_bound() -> None:
    widest = Header(2**31, 2**63, 2**63, 2**63)
    assert len(codec.join_entry(widest, [])) <= codec.HEADER_BYTES_MAX


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\xc1",
        msgpack.packb([1, 2, 3]),
        msgpack.packb([ENTRY_VERSION + 1, 0, 0, 0, []]),
        msgpack.packb([ENTRY_VERSION, 0, 0, 0, [[99, 1]]]),
        msgpack.packb([ENTRY_VERSION, 0, 0, 0, [[13]]]),
        msgpack.packb([ENTRY_VERSION, 0, 0, 0, [[13, 1, 2]]]),
        msgpack.packb([ENTRY_VERSION, 0, 0, 0, [[2, [1, 2], None, 0, b""]]]),
    ],
)
def test_what_this_build_does_not_know_is_fatal(entry: bytes) -> None:
    with pytest.raises(Fatal):
        codec.split_entry(entry)


def test_a_lone_surrogate_never_reaches_the_log() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        codec.pack_command(SubmitJob(make_spec("j", task="\ud800"), None, 0, b""))


def types_of(value: object) -> object:
    """The types of a value and of all within it."""
    if isinstance(value, tuple):
        return type(value), tuple(map(types_of, value))
    return type(value)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
submits = st.fixed_dictionaries(
    {"task": st.just("t")},
    optional={
        "id": st.text("abc-", min_size=1, max_size=30),
        "payload": st.recursive(
            st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        ),
        "priority": st.integers(-100, 100),
        "max_attempts": st.integers(1, 50),
        "delay_seconds": st.floats(0, 1e6) | st.integers(0, 1000),
        "lease_seconds": st.floats(1, 3600) | st.integers(1, 60),
        "timeout_seconds": st.integers(1, 3600),
        "retention_seconds": st.integers(0, 10**6),
        "ttl_seconds": st.integers(1, 1000),
        "unique_key": texts.filter(bool),
        "tags": st.dictionaries(st.text("ab", min_size=1, max_size=5), texts, max_size=4),
    },
)


@given(st.lists(submits, min_size=1, max_size=5))
def test_what_was_packed_is_what_would_be_decoded(bodies: list[dict[str, Any]]) -> None:
    """A leader applies the submits that it made; the others decode them: value by value and type by type the same."""
    requests = []
    for body in bodies:
        try:
            requests.append(msgspec.json.decode(msgspec.json.encode(body), type=wire.SubmitRequest))
        except msgspec.ValidationError:
            assume(False)
    commands = tuple(translate.submit_command(request, 1_700_000_000_000) for request in requests)
    header = Header(ENTRY_VERSION, 3, 4, 5)
    entry = codec.join_entry(header, list(map(codec.pack_command, commands)))
    decoded = codec.split_entry(entry)
    assert decoded == (header, commands)
    assert types_of(decoded) == types_of((header, commands))


def test_an_entry_made_here_is_not_decoded_and_no_other_is_taken_for_it() -> None:
    commands = (SubmitJob(make_spec("a"), None, 0, b""),)
    header = Header(ENTRY_VERSION, 3, 4, 5)
    entry = codec.join_entry(header, list(map(codec.pack_command, commands)))
    long = entry + bytes(100)
    own, other = codec.OwnEntries(), codec.OwnEntries()
    own.remember(entry, header, commands)
    own.remember(long, header, commands)
    assert other.split(entry)[1] is not commands, "another node of the same process decodes"
    assert own.split(bytes(bytearray(entry)))[1] is commands
    assert own.split(entry)[1] is not commands, "remembered for one time"
    with pytest.raises(Fatal):
        own.split(long[:-1] + b"x")
