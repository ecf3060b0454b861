"""Log lines: one line with a stable name and fields, libraries included, and nothing below the level."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from horae_node import logs


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("horae")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("info", "n1", stream)
    return stream


def test_a_line_has_time_level_event_node_room_and_fields(out):
    logs.get_log("raft").event("leader_elected", term=3, reason="time ran out", peer=None)
    pattern = (
        r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info leader_elected node=n1 room=raft term=3 reason="time ran out" '
    )
    assert re.fullmatch(pattern + "peer=None\n", out.getvalue())


def test_a_value_cannot_forge_a_line(out):
    logs.get_log("http").warning("odd_name", name="a\n2026 error fake")
    assert out.getvalue().count("\n") == 1
    assert r'name="a\n2026 error fake"' in out.getvalue()


def test_below_the_level_nothing_is_written(out):
    logs.get_log("raft").debug("tick", n=1)
    assert out.getvalue() == ""


def test_an_error_carries_its_traceback(out):
    try:
        raise ValueError("broken")
    except ValueError as error:
        logs.get_log("process").error("fatal", exc=error, index=7)
    assert " error fatal node=n1 room=process index=7\nTraceback" in out.getvalue()
    assert out.getvalue().endswith("ValueError: broken\n")


def test_lines_of_libraries_have_one_event_and_only_warnings(out):
    logging.getLogger("asyncio").warning("slow %s", "callback")
    logging.getLogger("asyncio").info("quiet")
    assert out.getvalue().endswith('warning library node=n1 logger=asyncio message="slow callback"\n')
    assert out.getvalue().count("\n") == 1
