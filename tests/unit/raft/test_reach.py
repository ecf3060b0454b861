"""Who is not reached: told once an absence, after so long, and by which words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from horae_node.clock import ManualClock
from horae_node.raft.reach import UNREACHABLE_S, Reach, reason_of

LONG_MS = round(UNREACHABLE_S * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reach(clock: ManualClock) -> Reach:
    made = Reach(clock)
    made.expect("n2")
    return made


def test_an_absence_is_told_once_and_not_at_once(reach: Reach, clock: ManualClock) -> None:
    assert reach.missed("n2") is None
    clock.advance(LONG_MS - 1)
    assert reach.missed("n2") is None
    clock.advance(1)
    assert reach.missed("n2") == UNREACHABLE_S
    clock.advance(10 * LONG_MS)
    assert reach.missed("n2") is None


def test_the_next_absence_is_told_again(reach: Reach, clock: ManualClock) -> None:
    clock.advance(LONG_MS)
    assert reach.missed("n2") == UNREACHABLE_S
    reach.drop("n2")
    assert reach.missed("n2") is None
    reach.expect("n2")
    assert reach.missed("n2") is None
    clock.advance(LONG_MS)
    assert reach.missed("n2") == UNREACHABLE_S


def test_who_refuses_is_there(reach: Reach, clock: ManualClock) -> None:
    clock.advance(LONG_MS - 1)
    reach.refused("n2")
    clock.advance(LONG_MS - 1)
    assert reach.missed("n2") is None
    clock.advance(1)
    assert reach.missed("n2") == pytest.approx(UNREACHABLE_S)


def test_one_answer_is_no_sign_that_it_never_calls(reach: Reach, clock: ManualClock) -> None:
    clock.advance(LONG_MS)
    assert reach.answered("n2") is None
    assert reach.answered("n2") == UNREACHABLE_S
    assert reach.answered("n2") is None


def test_nobody_waits_for_a_stranger(reach: Reach, clock: ManualClock) -> None:
    clock.advance(LONG_MS)
    reach.refused("n9")
    reach.drop("n9")
    assert reach.missed("n9") is reach.answered("n9") is None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "Connection refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "No route to host"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
        (ConnectionResetError(), "ConnectionResetError"),
    ],
)
def test_a_reason_is_in_the_systems_words(error: OSError, words: str) -> None:
    assert reason_of(error) == words
