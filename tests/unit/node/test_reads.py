"""Views of jobs: a new one's is made from a shared copy, and must be what a look at the state would show."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.core.world import World, submit

from horae_node import reads
from horae_node.core.results import Submitted

KINDS = {
    "plain": {},
    "later": {"delay_ms": 500},
    "own terms": {"priority": 7, "max_attempts": 2, "lease_ms": 1000, "tags": (("k", "v"),)},
    "unique": {"unique_key": "u", "concurrency_key": "c"},
    "to live": {"ttl_ms": 1500},
    "until": {"expires_at_ms": 10**13},
    "of a schedule": {"schedule_id": "s", "nominal_ms": 5},
}


def encoded(job: object) -> bytes:
    return msgspec.json.encode(job)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_job_reads_as_its_submit_said(kind: str) -> None:
    world = World(version=2)
    outcome = world.do(submit("a", payload=b'{"x":1}', **KINDS[kind]))
    assert isinstance(outcome, Submitted)
    assert outcome.new is not None
    clocks = reads.Clocks(0, 0)
    assert encoded(reads.new_job_view(outcome.new.spec, outcome.new.run)) == encoded(
        reads.job_view(world.txn, outcome.seq, clocks)
    )


def test_what_one_job_goes_through_does_not_show_in_its_like() -> None:
    world = World()
    world.do(submit("a"))
    world.claim("w")
    running = reads.job_view(world.txn, 1, reads.Clocks(0, 0))
    fresh = world.do(submit("b"))
    assert isinstance(fresh, Submitted)
    assert fresh.new is not None
    view = reads.new_job_view(fresh.new.spec, fresh.new.run)
    assert (running.state, running.worker, running.attempt) == ("running", "w", 1)
    assert (view.id, view.state, view.worker, view.attempt) == ("b", "ready", None, 0)
