"""Submits: idempotent by id, merged by unique key, refused when they could never run; batches are all or nothing."""

from __future__ import annotations

import pytest
from tests.unit.core.world import HASH, NOW_MS, World, make_spec, submit

from horae_node.core import views
from horae_node.core.commands import CompleteJob, SubmitBatch
from horae_node.core.digest import state_digest
from horae_node.core.model import SCHEDULES_VERSION
from horae_node.core.results import BatchSubmitted, Rejected, Submitted
from horae_storage.kv import MAX_KEY_BYTES


def test_numbers_rise_in_submit_order():
    world = World()
    outcomes = [world.do(submit(name)) for name in ("a", "b", "c")]
    assert [(one.seq, one.new.spec.id, one.new.run) for one in outcomes] == [
        (1, "a", world.run("a")),
        (2, "b", world.run("b")),
        (3, "c", world.run("c")),
    ]
    assert views.meta(world.txn).job_seq == 3


def test_the_spec_is_kept_as_said():
    world = World(version=2)
    spec = make_spec("a", tags=(("k", "v"),), payload=b'{"x":1}', concurrency_key="c", nominal_ms=5, schedule_id="s")
    world.do(submit("a", tags=(("k", "v"),), payload=b'{"x":1}', concurrency_key="c", nominal_ms=5, schedule_id="s"))
    assert views.spec(world.txn, 1) == spec


@pytest.mark.parametrize(("first", "second"), [(b"", b""), (HASH, b""), (b"", HASH), (HASH, HASH[::-1])])
def test_same_id_without_equal_content_is_a_conflict(first: bytes, second: bytes):
    world = World()
    world.do(submit("a", hash=first))
    outcome = world.do(submit("a", hash=second))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "conflict"


def test_same_id_with_equal_content_is_the_same_job_even_when_finished():
    world = World()
    world.do(submit("a", hash=HASH))
    world.claim("w")
    world.do(CompleteJob("a", world.index, None))
    assert world.do(submit("a", hash=HASH)) == Submitted(1, None)


@pytest.mark.parametrize(
    ("due", "state"), [(NOW_MS - 1, "ready"), (NOW_MS, "ready"), (NOW_MS + 1, "pending"), (0, "ready")]
)
def test_due_decides_the_state(due: int, state: str):
    world = World()
    world.do(submit("a", run_at_ms=due))
    assert world.state("a") == state
    assert world.run("a").first_due_ms == due


def test_run_at_wins_over_delay():
    world = World()
    world.do(submit("a", run_at_ms=NOW_MS + 7, delay_ms=99))
    assert world.run("a").due_ms == NOW_MS + 7


def test_a_moment_that_cannot_be_stored_is_refused():
    outcome = World().do(submit("a", run_at_ms=-1))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "invalid"


def test_time_to_live_becomes_a_moment():
    world = World()
    world.do(submit("a", ttl_ms=50))
    spec = views.spec(world.txn, 1)
    assert spec is not None
    assert (spec.expires_at_ms, spec.ttl_ms) == (NOW_MS + 50, 50)


def test_a_refused_batch_changes_nothing_but_the_index():
    world = World()
    world.do(submit("taken"))
    before = views.all_counts(world.txn), views.meta(world.txn).job_seq
    outcome = world.do(SubmitBatch((submit("a"), submit("b"), submit("taken"))))
    assert isinstance(outcome, Rejected)
    assert outcome.position == 2
    assert (views.all_counts(world.txn), views.meta(world.txn).job_seq) == before
    assert not world.has("a")


def test_a_batch_sees_its_own_jobs():
    world = World()
    jobs = (submit("a", hash=HASH), submit("a", hash=HASH), submit("b", unique_key="u"), submit("c", unique_key="u"))
    outcome = world.do(SubmitBatch(jobs))
    assert isinstance(outcome, BatchSubmitted)
    assert [(job.seq, job.created) for job in outcome.jobs] == [(1, True), (1, False), (2, True), (2, False)]
    assert not world.has("c")


def test_a_batch_equals_its_jobs_one_by_one():
    together, apart = World(), World()
    jobs = tuple(submit(f"j{n}", priority=n % 3, delay_ms=n % 2) for n in range(10))
    together.apply(SubmitBatch(jobs))
    apart.apply(*jobs)
    assert state_digest(together.txn) == state_digest(apart.txn)


@pytest.mark.parametrize("text", ["x" * 200, "\U0001f600" * 200, "é" * 101])
def test_long_ids_and_keys_fit_the_store_and_stay_apart(text: str):
    world = World()
    queue = "q" * 100
    world.do(submit(text, unique_key=text, queue=queue, ttl_ms=5))
    world.do(submit(text[:-1], unique_key=text[:-1], queue=queue))
    world.claim(text[:200], queues=(queue,), claim_id=text)
    assert views.job_seq(world.txn, text) == 1
    assert views.job_seq(world.txn, text[:-1]) == 2
    assert views.job_seq(world.txn, text + "x") is None
    keys = world.txn.keys(b"\0", b"\xff", limit=1000)
    assert max(len(key) for key in keys) <= MAX_KEY_BYTES


def test_the_id_counts_before_the_unique_key_in_a_batch_as_well():
    """An id of the batch's own, with other content, was passed over for the holder of a unique key outside."""
    world = World(version=SCHEDULES_VERSION)
    world.do(submit("holder", unique_key="k"))
    twins = submit("twin", hash=HASH), submit("twin", hash=HASH[::-1] + b"x", unique_key="k")
    outcome = world.do(SubmitBatch(twins))
    assert isinstance(outcome, Rejected)
    assert (outcome.code, outcome.position) == ("conflict", 1)
    world.do(twins[0])
    alone = world.do(twins[1])
    assert isinstance(alone, Rejected)
    assert alone.code == "conflict"
