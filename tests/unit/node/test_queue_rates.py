"""What goes through queues, counted from what is applied."""

from __future__ import annotations

from tests.helpers.one_node import OneNode
from tests.unit.core.world import make_spec

from horae import wire
from horae_node.clock import ManualClock
from horae_node.core.changes import Change, JobSubmitted
from horae_node.core.runs import submitted
from horae_node.queue_rates import QUEUES_MAX, SPAN_MS, SPANS, QueueRates, Rates


def made(queue: str) -> Change:
    run = submitted(due_ms=0, now_ms=0, index=1, content_hash=b"")
    return JobSubmitted(1, make_spec("a", queue=queue), run)


def test_a_minute_is_kept_and_no_more():
    clock = ManualClock()
    rates = QueueRates(clock)
    clock.advance(30_000)
    rates.on_entry([made("q")] * 60)
    assert rates.of("q") == Rates(2.0, 0.0, 0.0)
    clock.advance(SPAN_MS * (SPANS - 1) - 1)
    assert rates.of("q").submitted > 0.9
    clock.advance(2 * SPAN_MS)
    assert rates.of("q") == rates.of("unheard") == Rates(0.0, 0.0, 0.0)
    clock.advance(10**9)
    rates.on_entry([made("q")] * 5)
    assert 0.08 <= rates.of("q").submitted <= 5 / 50


def test_queues_without_end_are_not_all_counted():
    rates = QueueRates(ManualClock())
    rates.on_entry([made(f"q{n}") for n in range(QUEUES_MAX + 10)])
    assert rates.of(f"q{QUEUES_MAX - 1}").submitted == 1
    assert rates.of(f"q{QUEUES_MAX}").submitted == 0


async def test_submits_starts_and_ends_show_in_the_queue():
    node = await OneNode().open()
    for _ in range(4):
        await node.submit(queue="mail")
    (first, second) = await node.claim("mail", max_jobs=2)
    await node.service.complete(first.id, wire.CompleteRequest(lease_token=first.lease_token))
    await node.service.release(second.id, wire.ReleaseRequest(lease_token=second.lease_token))
    found = (await node.service.queue("mail")).rates
    assert found == wire.QueueRates(4.0, 2.0, 1.0)
    listed = await node.service.queues(limit=10, cursor=None)
    assert [queue.rates for queue in listed.queues] == [found]
