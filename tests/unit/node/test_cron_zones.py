"""The clocks of zones: spans, changes and local times, held against the zone files themselves."""

from __future__ import annotations

import struct
import zoneinfo
from datetime import datetime, timedelta
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.node.cron_oracle import info_of, moment

from horae_node import zones

NAMES = sorted(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())
VARIED = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia", "Asia/Gaza"]
VARIED += ["Africa/Casablanca", "Antarctica/Troll", "Europe/Dublin", "America/Caracas", "Asia/Pyongyang", "UTC"]
DAY_S = 86_400


def zone_file(name: str) -> bytes:
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def changes_in_file(name: str) -> list[tuple[int, int]]:
    """Second and new offset in seconds of each change of offset that the file lists (RFC 8536, version 2)."""
    data = zone_file(name)
    head = struct.Struct(">4s c 15x 6l")
    _, _, isut, isstd, leap, times, types, chars = head.unpack_from(data)
    start = head.size + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    *_, times, types, _ = head.unpack_from(data, start)
    start += head.size
    moments = struct.unpack_from(f">{times}q", data, start)
    kinds = data[start + times * 8 : start + times * 9]
    offsets = [struct.unpack_from(">l", data, start + times * 9 + kind * 6)[0] for kind in range(types)]
    listed = list(zip(moments, (offsets[kind] for kind in kinds), strict=True))
    return [new for old, new in pairwise([(0, offsets[0]), *listed]) if old[1] != new[1]]


def test_no_zone_changes_twice_within_six_days():
    """What lets `zones` look once a day: a release of tzdata that breaks it must be seen here."""
    close = [
        (name, first)
        for name in NAMES
        for (first, _), (second, _) in pairwise(changes_in_file(name))
        if first >= 0 and second - first < 6 * DAY_S
    ]
    assert close == []


@pytest.mark.parametrize("name", VARIED)
def test_changes_are_those_of_the_file(name: str):
    listed = [(at_s * 1000, offset_s * 1000) for at_s, offset_s in changes_in_file(name) if at_s >= 0]
    last_ms = listed[-1][0] if listed else 0  # what comes then is in a rule, not in the list
    found, at_ms = [], 0
    while at_ms <= last_ms:
        span = zones.zone(name).span_at(at_ms)
        if span.offset_ms != span.before_ms and span.start_ms >= 0:
            found.append((span.start_ms, span.offset_ms))
        at_ms = span.end_ms
    assert list(dict.fromkeys(found)) == listed


@given(st.sampled_from(VARIED), st.integers(0, moment("2300-01-01 00:00")))
def test_a_moment_is_in_its_span(name: str, at_ms: int):
    clock = zones.zone(name)
    span = clock.span_at(at_ms)
    assert span.start_ms <= at_ms < span.end_ms
    offset = datetime.fromtimestamp(at_ms // 1000, info_of(name)).utcoffset()
    assert timedelta(milliseconds=span.offset_ms) == offset
    assert clock.span_at(span.end_ms).before_ms == span.offset_ms
    assert at_ms in clock.instants_of(at_ms + span.offset_ms)


def test_a_local_time_comes_never_once_or_twice():
    berlin = zones.zone("Europe/Berlin")
    assert berlin.instants_of(moment("2026-03-29 02:30")) == []
    assert berlin.instants_of(moment("2026-03-29 03:00")) == [moment("2026-03-29 01:00")]
    assert berlin.instants_of(moment("2026-10-25 02:30")) == [moment("2026-10-25 00:30"), moment("2026-10-25 01:30")]
    apia = zones.zone("Pacific/Apia")
    assert apia.instants_of(moment("2011-12-30 12:00")) == []
    assert zones.zone("UTC").instants_of(moment("2031-12-31 23:59")) == [moment("2031-12-31 23:59")]


def test_the_text_has_the_zone_s_offset():
    assert zones.zone("Europe/Berlin").text(moment("2026-10-25 00:30") + 7) == "2026-10-25T02:30:00.007+02:00"
    assert zones.zone("Asia/Kathmandu").text(moment("2026-01-01 00:00")) == "2026-01-01T05:45:00.000+05:45"
    assert zones.zone("UTC").text(0) == "1970-01-01T00:00:00.000+00:00"
    assert zones.zone("Africa/Monrovia").text(0) == "1970-01-01T00:00:00.000+00:00"


def test_an_unknown_zone_has_neighbours():
    for name in ("Europe/Berln", "europe/berlin", "../zones", "", "Europe", "Europe/Berlin\0"):
        with pytest.raises(KeyError):
            zones.zone(name)
    assert zones.names_like("europe/berlin")[0] == "Europe/Berlin"
    assert zones.names_like("") == []
    assert zones.version().startswith("20")


def test_the_rules_are_the_package_s_not_the_machine_s(tmp_path: Path):
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        (tmp_path / "Europe").mkdir()
        (tmp_path / "Europe" / "Madrid").write_bytes(zone_file("Asia/Tokyo"))
        assert zones.Zone("Europe/Madrid").short_name(0) == "CET"
    finally:
        zoneinfo.reset_tzpath(to=before)
