"""Ids are UUIDv7: their moment, version and variant where RFC 9562 has them, and no two alike."""

from __future__ import annotations

import uuid

from horae_node.ids import uuid7

NOW_MS = 1_764_500_000_123


def test_an_id_is_a_uuid_of_version_7_that_holds_its_moment() -> None:
    for now_ms in (0, NOW_MS, 2**48 - 1):
        text = uuid7(now_ms)
        read = uuid.UUID(text)
        assert str(read) == text
        assert (read.version, read.variant, read.int >> 80) == (7, uuid.RFC_4122, now_ms)


def test_ids_of_one_moment_differ_past_several_fetches_of_randomness() -> None:
    ids = [uuid7(NOW_MS) for _ in range(2_000)]
    assert len(set(ids)) == len(ids)


def test_every_bit_that_is_to_be_random_takes_both_values() -> None:
    values = [uuid.UUID(uuid7(NOW_MS)).int for _ in range(2_000)]
    both = 0
    for value in values:
        both |= value ^ values[0]
    assert both == 0xFFF << 64 | (1 << 62) - 1


def test_ids_sort_by_their_moments() -> None:
    ids = [uuid7(NOW_MS + ms) for ms in range(50)]
    assert ids == sorted(ids)
