"""The machine's one door: `apply`. Pure: the same index, entry and state give the same outcomes and the same state.

This is a declaration for those who build beside it; see the functions' contracts.
"""

from __future__ import annotations

from typing import NamedTuple

from horae_node.core.commands import Command, Header
from horae_node.core.results import EntryOutcome
from horae_storage.kv import Txn, View


class Deadline(NamedTuple):
    """When something falls due next: by cluster time, and by the lease clock. None = nothing waits."""

    wall_ms: int | None
    lease_clock: int | None


def apply(index: int, header: Header, commands: tuple[Command, ...], txn: Txn) -> EntryOutcome:
    """Apply one log entry, with all its effects and `Meta` in `txn`.

    `index` must be `applied_index + 1` (asserted). Commands of another epoch than the machine's are each
    `Rejected("stale_epoch")`, but `OpenEpoch`, which compares and sets. Raises: `AssertionError` or `Corrupt` only,
    both fatal.
    """
    raise AssertionError("declared, not built")


def next_deadline(view: View) -> Deadline:
    """The earliest moment at which `AdvanceTime` would do something. A few bounded index look-ups."""
    raise AssertionError("declared, not built")
