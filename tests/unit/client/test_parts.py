"""The parts that need no server: ids, back-off, the choice of nodes, values, leases and their clock, the commands."""

from __future__ import annotations

import asyncio
import atexit
import copy
import logging
import pickle
import signal
import socket
import sys
import types
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import structs

import horae
from horae import Claim, Client, Dead, Retry, Snooze, Worker, backoff, codec, errors, logs, signals, wire
from horae.cli import main_group
from horae.ids import new_id
from horae.jobs import Beat, Renewal
from horae.leases import Lease, LeaseKeeper
from horae.nodes import Nodes
from horae.runner import loop_ended


def test_ids_are_version_7_and_differ() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(text[14] == "7" and text[19] in "89ab" and len(text) == 36 for text in ids)


def test_backoff_grows_to_its_cap_and_is_spread() -> None:
    assert backoff.delay_seconds(1, lambda: 1.0) == backoff.FIRST_SECONDS
    assert backoff.delay_seconds(2, lambda: 0.0) == backoff.FIRST_SECONDS / 2
    assert backoff.delay_seconds(10**9, lambda: 1.0) == backoff.MAX_SECONDS
    assert [backoff.spread(4, lambda: 0.0), backoff.spread(4, lambda: 1.0)] == [4, 5]


def test_nodes_go_to_the_leader_and_round_the_others() -> None:
    nodes = Nodes(["http://a/", "http://b", "http://c"])
    first, wait = nodes.pick(0.0)
    assert (first.url, wait) == ("http://a", 0.0)
    nodes.heard(first, "http://c")
    assert nodes.pick(0.0)[0].url == "http://c"
    nodes.failed(nodes.pick(0.0)[0], began=0.0, now=0.0)
    assert nodes.pick(0.0)[0].url == "http://a"
    nodes.failed(first, began=0.0, now=0.0)
    assert nodes.pick(0.0)[0].url == "http://b"
    nodes.refused(nodes.pick(0.0)[0], seconds=9, now=0.0)
    node, wait = nodes.pick(0.0)
    assert node.url in ("http://a", "http://c")
    assert 0 < wait <= backoff.FIRST_SECONDS


def test_calls_that_fail_together_are_one_failure() -> None:
    nodes = Nodes(["http://a"])
    node, _ = nodes.pick(1.0)
    for _ in range(64):
        nodes.failed(node, began=1.0, now=1.5)
    assert node.failures == 1


def test_a_leader_that_is_not_configured_keeps_its_pause() -> None:
    nodes = Nodes(["http://a"])
    node, _ = nodes.pick(0.0)
    nodes.heard(node, "http://elsewhere")
    elsewhere, _ = nodes.pick(0.0)
    nodes.failed(elsewhere, began=0.0, now=0.0)
    nodes.heard(node, "http://elsewhere")
    assert nodes.pick(0.0)[0] is node


def test_values_are_measured_as_json() -> None:
    assert bytes(codec.encode_value({1: (2,)}, bytes_max=100, what="x")) == b"\x81\xa11\x91\x02"
    with pytest.raises(errors.TooLarge, match="over the limit of 20"):
        codec.encode_value("\x01" * 10, bytes_max=20, what="x")  # 12 bytes of MessagePack, 62 of JSON
    codec.encode_value("a" * 18, bytes_max=20, what="x")


class Heir(dict[str, Any]):
    """A dictionary by another name."""


def test_values_nest_as_deep_as_the_contract_allows_and_no_deeper() -> None:
    deep: Any = "leaf"
    for level in range(wire.JSON_DEPTH_MAX):
        deep = Heir(a=deep) if level % 2 else (deep,)
    wide = [[number] for number in range(1000)]
    for fits in (deep, wide):
        sent = codec.encode_value(fits, bytes_max=20_000, what="x")
        assert msgspec.msgpack.decode(sent) == msgspec.json.decode(msgspec.json.encode(fits))
    with pytest.raises(errors.Invalid, match="the x nests deeper than 100 levels"):
        codec.encode_value([deep], bytes_max=20_000, what="x")


class Text(str):
    """As an ORM's, a template's or numpy's."""

    def __str__(self) -> str:
        raise RuntimeError


class Whole(int):
    pass


class Real(float):
    pass


class Octets(bytes):
    pass


class Moment(datetime):
    pass


class Row(list[Any]):
    pass


@pytest.mark.parametrize(
    ("heir", "plain"),
    [
        (Text("x"), "x"),
        (Whole(2**63), 2**63),
        (Real(2.5), 2.5),
        (Octets(b"x"), "eA=="),
        (Moment(2026, 11, 29, 12, tzinfo=UTC), "2026-11-29T12:00:00Z"),
        (Row([Text("x"), Heir(a=Whole(1))]), ["x", {"a": 1}]),
        ({Whole(1): Text("x")}, {"1": "x"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_heir_of_a_plain_type_is_sent_as_that(heir: Any, plain: Any) -> None:
    sent = msgspec.msgpack.decode(codec.encode_value(heir, bytes_max=100, what="x"))
    assert sent == plain
    assert type(sent) is type(plain)


@pytest.mark.parametrize(
    "verdict", [Retry("why", in_seconds=2), Snooze(4), Dead("never")], ids=lambda it: type(it).__name__
)
def test_a_verdict_survives_the_way_to_another_process(verdict: Exception) -> None:
    for twin in (pickle.loads(pickle.dumps(verdict)), copy.copy(verdict)):
        assert (type(twin), str(twin), vars(twin)) == (type(verdict), str(verdict), vars(verdict))


def test_what_has_no_json_form_is_named() -> None:
    with pytest.raises(TypeError, match="type object is unsupported"):
        codec.encode_value([object()], bytes_max=100, what="x")


def test_a_payload_that_holds_itself_is_refused_before_it_is_sent() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(errors.Invalid, match=r"payload .* holds itself"), Client("http://127.0.0.1:1") as client:
        client.submit("t", loop)


# ---------------------------------------------------------------- leases, on a clock of our own


def claim(*, lease_seconds: float = 30.0) -> Claim:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Claim(
        id="a",
        execution_id="a",
        task="t",
        queue="q",
        attempt=1,
        max_attempts=5,
        lease_token=1,
        lease_expires_at=at + timedelta(seconds=lease_seconds),
        lease_seconds=lease_seconds,
        timeout_at=at + timedelta(seconds=100),
        run_at=at,
    )


def test_a_last_attempt_whose_loop_ended_is_left_to_its_lease() -> None:
    """One of several that are in hand is the cause: what may be innocent must not die of it."""
    error = asyncio.CancelledError()
    one, last = claim(), structs.replace(claim(), attempt=5)
    ending = loop_ended(one, error)
    assert ending is not None
    assert (ending.outcome, ending.retry) == ("fail", True)
    assert loop_ended(last, error) is None


class Bench:
    """A keeper that is never started: its passes are made by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.keeper = LeaseKeeper(
            ["http://127.0.0.1:1"],
            worker="w",
            notify=lambda lease: self.told.append(lease.job_id),
            now=lambda: self.now,
        )


async def test_a_lease_is_measured_from_before_its_claim_was_sent() -> None:
    bench = Bench()
    lease = Lease(claim(), sent=0.0, received=20.0)
    bench.keeper.add([lease])
    assert (lease.proven, lease.beat_at, lease.fence_at) == (True, 10.0, 29.0)
    assert lease.timeout_at == 120.0
    bench.now = 29.0
    bench.keeper.run_once(bench.now)
    assert (lease.lost, bench.told) == ("lease_expired", ["a"])
    assert not bench.keeper.finish(lease)


async def test_a_handler_that_ends_too_late_is_not_reported_even_before_the_keeper_looks() -> None:
    bench = Bench()
    late, early = (Lease(claim(), sent=0.0, received=0.0) for _ in range(2))
    bench.now = 28.9
    assert bench.keeper.finish(early)
    assert not bench.keeper.finish(early)
    bench.now = 29.0
    assert not bench.keeper.finish(late)


async def test_an_outcome_in_hand_is_not_given_up() -> None:
    bench = Bench()
    lease = Lease(claim(), sent=0.0, received=0.0)
    bench.keeper.add([lease])
    assert bench.keeper.finish(lease)
    bench.now = 1000.0
    bench.keeper._beating = object()  # type: ignore[assignment]
    bench.keeper.run_once(bench.now)
    assert (lease.lost, bench.told) == ("", [])


async def test_a_claim_that_waited_past_its_lease_must_be_proven_first() -> None:
    bench = Bench()
    lease = Lease(claim(lease_seconds=10), sent=0.0, received=15.0)
    assert (lease.proven, lease.beat_at) == (False, 15.0)
    bench.keeper._renew(lease, Beat("a", 1), Renewal("a", "ok"), 15.0)
    assert (lease.proven, lease.fence_at, bench.told) == (True, 24.5, ["a"])


async def test_a_renewal_counts_from_before_it_was_sent_and_a_cancel_is_told_once() -> None:
    bench = Bench()
    lease = Lease(claim(), sent=0.0, received=0.0)
    for _ in range(2):
        bench.keeper._renew(lease, Beat("a", 1), Renewal("a", "ok", cancel_requested=True), 10.0)
    assert (lease.beat_at, lease.fence_at, lease.stop_reason) == (20.0, 39.0, "cancel_requested")
    assert bench.told == ["a"]


# ---------------------------------------------------------------- the commands


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(main_group, list(arguments), env={"HORAE_URL": "", "HORAE_TOKEN": ""} | (env or {}))
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["submit", "t", "--payload", "{name: Ada}"], "--payload is not JSON"),
        (["submit", "t", "--payload", "[" * 100_000], "--payload nests deeper than the 100 levels"),
        (["submit", "t", "--payload", '"\\ud800"'], "half a character; write both halves"),
        (["submit", "t", "--payload", "\udcff"], "--payload is not UTF-8"),
        (["submit", "t", "--payload", ""], "--payload is not JSON: it is empty"),
        (["submit", "t", "--payload", "[NaN]"], "no NaN and no Infinity"),
        (["submit", "t", "--payload", str(2**64)], "64 bits"),
        (["submit", "t", "--at", "tomorrow"], "is not a time"),
        (["submit", "t", "--at", "2026-01-01T00:00:00"], "has no offset"),
        (["submit", "t", "--at", "2026-01-01T00:00:00Z", "--delay", "1"], "exclude each other"),
        (["worker", "nowhere"], "MODULE:WORKER"),
        (["worker", "no_such_module_here:worker"], "no module"),
        (["worker", "json:loads"], "no horae Worker"),
        (["worker", "..:x"], "'..:x' is not MODULE:WORKER"),
        (["worker", "json.:x"], "'json.:x' is not MODULE:WORKER"),
        (["job", "x", "--url", "localhost"], "--url: not a base URL"),
        (["job", "x", "--url", "http://a\\b"], "--url: not a base URL"),
        (["job", "x", "--url", f"http://{'a' * 70}"], "--url: not a base URL"),
        (["job", "x", "--url", "http://\udcff"], "--url is not UTF-8 text"),
        (["cluster", "--url", "\udcff", "lead", "n1"], "--url is not UTF-8 text"),
        (["cluster", "lead", "\udcff"], "NODE is not UTF-8 text"),
        (["job", "\udcff"], "ID is not UTF-8 text"),
        (["submit", "\udcff"], "TASK is not UTF-8 text"),
        (["submit", "t", "--id", "\udcff"], "--id is not UTF-8 text"),
        (["submit", "t", "--id", ""], "--id is empty"),
        (["submit", ""], "TASK is empty"),
        (["job", ""], "ID is empty"),
        (["job", ".."], "ID '..' names nothing"),
        (["cluster", "remove", "."], "NODE '.' names nothing"),
        (["job", "x", "--token", "a\nb"], "token: it has characters"),
        (["job", "x", "--url", "http://u:p@a", "--token", "b"], "names a user, and there is a token"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert err.startswith("horae: ")
    assert err.count("\n") == 1


def test_dir_names_what_it_is_for_and_no_more() -> None:
    names = [name for name in dir(horae) if not name.startswith("__")]
    brought: dict[str, object] = {}
    exec("from horae import *", brought)
    assert sorted(name for name in brought if name != "__builtins__") == names
    assert names == sorted(horae._HOME_OF)
    assert all(hasattr(horae, name) for name in names)


def test_a_log_line_shows_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="horae"):
        logs.event_over(logging.INFO, "it", "Trace\n\t\x1b[31m\x9b\n", error="\x1b\x9b\x7f\n")
    assert caplog.messages == ['it error="\\u001b\\u009b\\u007f\\n"\nTrace\n\t\\x1b[31m\\x9b']
    line = "\x1b[31mred"
    record = logging.LogRecord("other", logging.INFO, "", 0, line, None, None)
    try:
        raise ValueError(line)
    except ValueError:
        record.exc_info = sys.exc_info()
    shown = logs._Formatter().format(record)
    assert r" info \x1b[31mred" in shown
    assert shown.endswith("\nValueError: \\x1b[31mred")
    assert "\x1b" not in shown


def test_a_wait_that_swallowed_the_task_is_explained() -> None:
    code, out, err = run("submit", "--wait", "hello")
    assert (code, out) == (2, "")
    assert "put TASK before it, as in `submit hello --wait`" in " ".join(err.split())


def test_a_cluster_that_is_not_there_is_exit_code_3() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        code, _, err = run("job", "x", "--deadline", "0.2", env={"HORAE_URL": f"{url},{url}/"})
    assert code == 3
    assert url in err
    assert err.count("\n") == 1


@pytest.fixture
def signals_kept() -> Iterator[None]:
    """A command that is the last of its process leaves its own handlers."""
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    yield
    atexit.unregister(signals._ignore)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_kept")
def test_the_worker_command_takes_the_named_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("some_tasks")
    ran: list[Worker] = []

    class Recorded(Worker):
        def run(self) -> None:
            ran.append(self)

    module.w = Recorded("http://a", token="old")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_tasks", module)
    assert run("worker", "some_tasks:w", "--token", "new")[0] == 0
    assert run("worker", "some_tasks:w", "--url", "http://b", "--url", "http://c")[0] == 0
    assert [worker.token for worker in ran] == ["new", "new"]
    assert ran[0].urls == ["http://b", "http://c"]
