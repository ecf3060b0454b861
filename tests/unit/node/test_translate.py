"""Requests become commands without losing or shifting anything."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae import wire
from horae_node import translate
from horae_node.core.commands import SubmitJob
from horae_node.core.tables import follower_of


def submit(**keys: object) -> SubmitJob:
    return translate.submit_command(msgspec.convert({"task": "t", **keys}, wire.SubmitRequest), 1_700_000_000_000)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-29T12:00:00.123Z", 1_795_953_600_123),
        ("2026-11-29T12:00:00.123001Z", 1_795_953_600_124),
        ("2026-11-29T13:30:00+01:30", 1_795_953_600_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_moments(text: str, ms: int) -> None:
    assert translate.moment_ms(msgspec.convert(text, wire.Moment)) == ms


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9999, 12, 30)), st.integers(-720, 720))
def test_a_moment_is_never_early_and_less_than_a_millisecond_late(naive: datetime, offset_minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    late = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=translate.moment_ms(moment)) - moment
    assert timedelta(0) <= late < timedelta(milliseconds=1)


def test_defaults_are_those_of_the_contract() -> None:
    spec = submit().spec
    assert (spec.queue, spec.priority, spec.max_attempts, spec.max_lost) == ("default", 0, 5, 3)
    assert (spec.retry_initial_ms, spec.retry_factor_milli, spec.retry_max_ms) == (1000, 2000, 3_600_000)
    assert (spec.retry_jitter_milli, spec.lease_ms, spec.timeout_ms) == (200, 30_000, 3_600_000)
    assert (spec.retention_ms, spec.payload) == (86_400_000, b"null")


def test_content_is_compared_by_what_it_says() -> None:
    one = submit(id="a", payload=msgspec.Raw(b'{"x": 1, "y": [1, 2]}'))
    same = submit(id="a", payload=msgspec.Raw(b'{"y":[1,2],"x":1}'))
    other = submit(id="a", payload=msgspec.Raw(b'{"y":[2,1],"x":1}'))
    later = submit(id="a", payload=msgspec.Raw(b'{"y":[1,2],"x":1}'), delay_seconds=1)
    assert one.content_hash == same.content_hash
    assert len({one.content_hash, other.content_hash, later.content_hash}) == 3
    assert submit().content_hash == b""


def test_an_id_made_here_is_a_uuid_of_version_7_and_new_each_time() -> None:
    first, second = submit().spec.id, submit().spec.id
    assert first != second
    assert first[14] == "7"
    assert int(first.replace("-", "")[:12], 16) == 1_700_000_000_000


def test_a_template_that_is_followed_has_no_names() -> None:
    """Each trigger's jobs have ids of their own; a check of given ids took the empty ones for doubles."""
    job = {"task": "t", "then": {"task": "u", "then": {"task": "v"}}}
    request = msgspec.convert({"cron": "@hourly", "job": job}, wire.ScheduleRequest)
    spec = translate.schedule_spec("s", request)
    assert translate.schedule_spec("s", request) == spec
    follower = follower_of(spec.job)
    assert follower is not None
    later = follower_of(follower.spec)
    assert later is not None
    assert (spec.job.id, follower.spec.id, later.spec.id, later.spec.task) == ("", "", "", "v")


def test_nothing_is_collected_while_a_large_payload_is_hashed() -> None:
    """To search its young lists for cycles took longer than all the rest."""
    request = wire.SubmitRequest(task="t", id="j", payload=msgspec.Raw(b"[%s]" % b",".join([b"[]"] * 80_000)))
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        translate.submit_command(request, 1)
    finally:
        gc.callbacks.remove(note)
    assert gc.isenabled()
    assert len(collections) <= 2, "one, at the end of it"
