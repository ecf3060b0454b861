"""The checker is awake: a healthy state has no finding, and each kind of damage has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.core.world import World, submit

from horae_node.core.commands import AdvanceTime, CancelJob, FailJob
from horae_node.core.invariants import check_invariants
from horae_node.core.tables import (
    CLAIM,
    CLAIM_SWEEP,
    COUNTS,
    DUE,
    ERROR,
    EXPIRY,
    ID,
    LISTED,
    META,
    PROGRESS,
    READY,
    RESULT,
    RETENTION,
    RUN,
    SPEC,
    UNIQUE,
    WATCH,
    run_of,
    seq_bytes,
)
from horae_storage.kv import Txn

LOST = (CLAIM, CLAIM_SWEEP, COUNTS, DUE, EXPIRY, ID, LISTED, META, READY, RETENTION, RUN, SPEC, UNIQUE, WATCH)


def test_a_new_and_a_busy_state_are_sound():
    assert check_invariants(World(open_epoch=False).txn) == []
    assert check_invariants(busy().txn) == []


@pytest.mark.parametrize("table", LOST)
def test_a_lost_row_is_found(table: bytes):
    world = busy()
    assert world.txn.delete(first_key(world.txn, table))
    assert check_invariants(world.txn) != []


@pytest.mark.parametrize("table", [DUE, READY, WATCH, EXPIRY, RETENTION, UNIQUE, ERROR, PROGRESS, RESULT, CLAIM, b"?"])
def test_a_leaked_row_is_found(table: bytes):
    world = busy()
    world.txn.put(table + seq_bytes(99) + seq_bytes(99), (0, ()))
    assert check_invariants(world.txn) != []


@pytest.mark.parametrize("table", [COUNTS, DUE, READY, ID, UNIQUE])
def test_a_row_with_other_content_is_found(table: bytes):
    world = busy()
    key = first_key(world.txn, table)
    row = world.txn.get(key)
    assert row is not None
    world.txn.put(key, (*row[:-1], "other"))
    assert check_invariants(world.txn) != []


DAMAGE: dict[str, dict[str, object]] = {
    "lease": {"lease_end": 0},
    "late watch": {"watch": 10**9},
    "ending": {"ending": 1},
    "token": {"token": 0},
    "future token": {"token": 10**6},
    "finished": {"finished_ms": 5},
    "failures": {"failures": 99},
    "reason": {"dead_reason": "failed"},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_an_impossible_record_is_found(damage: dict[str, object]):
    world = busy()
    replace_run(world.txn, world.run("running").version, lambda run: run_of(tuple((run._asdict() | damage).values())))
    assert check_invariants(world.txn) != []


def busy() -> World:
    """A job in most states, a claim, an error."""
    world = World()
    world.apply(submit("failed"), submit("running", priority=-1, unique_key="u"))
    ((_, token),) = world.claim("w")
    world.do(FailJob("failed", token, "E", "", "", True, 99))
    world.claim("w", claim_id="c")
    world.apply(submit("ready", ttl_ms=5), submit("pending", delay_ms=5), submit("cancelled"))
    world.apply(CancelJob("cancelled"), AdvanceTime(10))
    return world


def first_key(txn: Txn, table: bytes) -> bytes:
    return txn.keys(table, table + b"\xff" * 9, limit=1)[0]


def replace_run(txn: Txn, version: int, change: Callable) -> None:  # type: ignore[type-arg]
    for key, row in txn.scan(RUN, RUN + b"\xff" * 9, limit=99):
        if run_of(row).version == version:
            txn.put(key, change(run_of(row)))
