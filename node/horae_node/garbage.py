"""Where the garbage collector has nothing to find. Not here: what is made meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COLLECTED_BYTES_MAX: Final = 16 * 1024
"""A text that is shorter makes too few lists and tables for the collector to matter."""


@contextmanager
def uncollected(text_bytes: int) -> Iterator[None]:
    """While a text of this size is decoded: that makes a tree, and to search a million young lists for cycles takes ten
    times as long as making them. For what does not await."""
    if text_bytes < COLLECTED_BYTES_MAX or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
