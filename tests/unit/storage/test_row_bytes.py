"""The node's store and the memory store make the same bytes of a row, though by two encoders: one digest everywhere."""

from __future__ import annotations

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=300) | st.binary(max_size=300)
ROWS = st.lists(SCALARS | st.lists(SCALARS, max_size=20).map(tuple), max_size=20).map(tuple)

_BITS = (5, 7, 8, 15, 16, 31, 32, 63)
INTEGERS = [sign * 2**bits + near for bits in _BITS for near in (-1, 0, 1) for sign in (1, -1)]
LENGTHS = [edge + near for edge in (16, 32, 256, 65_536) for near in (-1, 0)]


@given(ROWS)
def test_any_row(row: tuple[object, ...]) -> None:
    assert msgspec.msgpack.encode(row) == msgpack.packb(row)


@pytest.mark.parametrize("integer", [n for n in INTEGERS if n >= -(2**63)])
def test_integers_where_the_encoding_grows(integer: int) -> None:
    assert msgspec.msgpack.encode((integer,)) == msgpack.packb((integer,))


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_where_the_encoding_grows(length: int) -> None:
    row = ("x" * length, b"x" * length, (0,) * length)
    assert msgspec.msgpack.encode(row) == msgpack.packb(row)
