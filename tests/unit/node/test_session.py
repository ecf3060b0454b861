"""The leader's reign: grants go to who waits longest, at the due moment, in the entry that makes the job ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import codec, proposer, service
from horae_node.core.commands import (
    AdvanceTime,
    ClaimJobs,
    FireSchedule,
    Nothing,
    OpenEpoch,
    RaiseMachineVersion,
    ReleaseJob,
    SubmitJob,
)
from horae_node.core.invariants import check_invariants
from horae_node.core.model import SCHEDULES_VERSION
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.leader import claim_book, session, waiters
from horae_node.raft.port import PeerStatus
from horae_node.service import Refused

EVERY_MINUTE = {"every_seconds": 60, "job": {"task": "t", "lease_seconds": 3600}}


async def until(condition: Callable[[], bool]) -> None:
    """Until the loop's own timers have brought it about; a failure after 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a timer tells nobody)
            await asyncio.sleep(0)


def last_commands(node: OneNode) -> list[str]:
    return [type(command).__name__ for command in codec.split_entry(node.raft.entries[-1])[1]]


async def test_a_reign_begins_with_its_epoch() -> None:
    node = await OneNode().open()
    assert last_commands(node) == [OpenEpoch.__name__]
    assert (node.session.epoch, node.applier.meta().epoch) == (1, 1)


async def test_a_job_for_a_waiting_worker_travels_with_its_grant() -> None:
    node = await OneNode().open()
    claim = node.claim()
    await settle()
    job = await node.submit()
    granted = await claim
    assert [(each.id, each.attempt) for each in granted] == [(job.id, 1)]
    assert last_commands(node) == [SubmitJob.__name__, ClaimJobs.__name__]


async def test_a_due_job_travels_with_its_grant() -> None:
    node = await OneNode().open()
    job = await node.submit(delay_seconds=60)
    claim = node.claim()
    await settle()
    entries = len(node.raft.entries)
    await node.pass_ms(59_999)
    assert len(node.raft.entries) == entries, "nothing is proposed before its time"
    await node.pass_ms(1)
    assert [each.id for each in await claim] == [job.id]
    assert last_commands(node) == [AdvanceTime.__name__, ClaimJobs.__name__]


async def test_only_what_may_bring_a_moment_closer_makes_the_leader_look(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await OneNode().open()
    looks: list[object] = []
    real = session.machine.next_deadline
    monkeypatch.setattr(session.machine, "next_deadline", lambda view: (looks.append(view), real(view))[1])
    await until(lambda: node.session._arming is None)
    looks.clear()
    await node.submit()
    assert (node.session._arming, looks) == (None, [])
    for options in ({"delay_seconds": 60}, {"ttl_seconds": 60}):
        await node.submit(**options)
        assert node.session._arming is not None
        await until(lambda: node.session._arming is None)
        assert looks
        looks.clear()
    await node.pass_ms(60_001)
    states = [view.state for view in (await node.service.jobs(wire.JobsQuery())).jobs]
    assert states == ["expired", "ready", "ready"]


async def test_the_job_of_a_trigger_travels_with_its_grant() -> None:
    node = await OneNode().open()
    node.proposer.send([RaiseMachineVersion(SCHEDULES_VERSION)])
    await settle()
    await node.service.schedules.put("s", msgspec.convert(EVERY_MINUTE, wire.ScheduleRequest), None)
    claim = node.claim()
    await settle()
    await node.pass_ms(60_000)
    assert [job.schedule_id for job in await claim] == ["s"]
    assert last_commands(node) == [FireSchedule.__name__, ClaimJobs.__name__]


async def test_a_claim_that_a_trigger_was_to_serve_waits_on_when_there_is_no_job() -> None:
    """It was asked for in the trigger's entry, and the job ran on: nothing is handed out, and nobody is told so."""
    node = await OneNode().open()
    node.proposer.send([RaiseMachineVersion(SCHEDULES_VERSION)])
    await settle()
    rule = msgspec.convert({**EVERY_MINUTE, "overlap": "skip"}, wire.ScheduleRequest)
    await node.service.schedules.put("s", rule, None)
    await node.pass_ms(60_000)
    assert len(await node.claim()) == 1
    waiting = node.claim()
    await settle()
    await node.pass_ms(60_000)
    assert last_commands(node) == [FireSchedule.__name__, ClaimJobs.__name__]
    assert not waiting.done()
    job = await node.submit()
    assert [each.id for each in await waiting] == [job.id]


async def test_an_idle_leader_writes_nothing() -> None:
    node = await OneNode().open()
    claim = node.claim()
    await settle()
    entries = len(node.raft.entries)
    await node.pass_ms(3_600_000)
    assert len(node.raft.entries) == entries
    claim.cancel()


async def test_first_come_first_served_and_no_more_woken_than_there_are_jobs() -> None:
    node = await OneNode().open()
    claims = []
    for _ in range(5):
        claims.append(node.claim())
        await settle()
    await node.submit(id="a")
    await node.submit(id="b")
    await settle()
    assert [claim.done() for claim in claims] == [True, True, False, False, False]
    assert [job.id for claim in claims[:2] for job in claim.result()] == ["a", "b"]
    asked = [
        command
        for entry in node.raft.entries
        for command in codec.split_entry(entry)[1]
        if isinstance(command, ClaimJobs)
    ]
    assert len(asked) == 2
    for claim in claims[2:]:
        claim.cancel()


async def test_queues_in_the_order_named() -> None:
    node = await OneNode().open()
    for queue in ("low", "high", "low", "high"):
        await node.submit(queue=queue)
    jobs = await node.claim("high", "low", max_jobs=3)
    assert [job.queue for job in jobs] == ["high", "high", "low"]


async def test_one_claim_over_many_queues_is_asked_once() -> None:
    node = await OneNode().open()
    claim = node.claim("a", "b", "c", max_jobs=2)
    await settle()
    await asyncio.gather(node.submit(queue="a"), node.submit(queue="b"), node.submit(queue="c"))
    assert [job.queue for job in await claim] == ["a", "b"]
    assert [job.queue for job in await node.claim("a", "b", "c", max_jobs=9)] == ["c"]


async def test_a_claim_without_a_wait_gets_what_is_ready_or_nothing() -> None:
    node = await OneNode().open()
    assert await node.claim(wait_seconds=0) == []
    await node.submit()
    assert len(await node.claim(wait_seconds=0)) == 1


async def test_the_same_claim_id_gets_the_same_jobs() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    await node.submit(id="b")
    first = await node.claim(claim_id="c1")
    again = await node.claim(claim_id="c1", wait_seconds=0)
    assert [(j.id, j.lease_token) for j in first] == [(j.id, j.lease_token) for j in again]


async def test_the_wait_of_a_long_poll_is_no_latency() -> None:
    node = await OneNode().open()
    waiting = node.claim()
    await settle()
    await node.pass_ms(20_000)
    await node.submit()
    await waiting
    await node.submit()
    await node.pass_ms(20_000)
    await node.claim()
    text = node.metrics.text().decode()
    assert "horae_claim_seconds_count 2.0" in text
    assert "horae_claim_seconds_sum 0.0" in text


async def test_who_hangs_up_while_parked_is_forgotten() -> None:
    node = await OneNode().open()
    gone = node.claim()
    await settle()
    gone.cancel()
    await settle()
    assert len(node.session.waiters) == 0
    await node.submit()
    assert len(await node.claim()) == 1


async def test_who_hangs_up_while_granted_costs_no_attempt() -> None:
    node = await OneNode().open()
    gone = node.claim()
    await settle()
    node.raft.hold = True
    submit = asyncio.create_task(node.submit(id="a"))
    await settle()
    gone.cancel()
    await settle()
    node.raft.hold = False
    node.raft.commit_all()
    await submit
    await settle()
    assert last_commands(node) == [ReleaseJob.__name__]
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("ready", 0)
    assert check_invariants(node.applier.view) == []


async def test_a_late_hang_up_does_not_take_back_what_the_repeat_was_given() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    request = wire.ClaimRequest(worker="w", queues=["default"], claim_id="c1", wait_seconds=5)
    lost = await node.service.claim(request)
    repeat = await node.service.claim(request)
    lost.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "running"
    repeat.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "ready"


def claim_request(worker: str = "w", **keys: object) -> wire.ClaimRequest:
    return msgspec.convert({"worker": worker, "queues": ["default"], "claim_id": "c1", **keys}, wire.ClaimRequest)


async def commit(node: OneNode) -> None:
    node.raft.hold = False
    node.raft.commit_all()
    await settle()


async def hang_up(*calls: asyncio.Task[list[wire.ClaimedJob]]) -> None:
    for call in calls:
        call.cancel()
        await settle()


async def under_way(node: OneNode, **keys: object) -> asyncio.Task[list[wire.ClaimedJob]]:
    """A claim that an entry which is not stored yet will grant job `a`."""
    await node.submit(id="a")
    node.raft.hold = True
    claim = node.claim(claim_id="c1", **keys)
    await settle()
    assert node.raft.pending
    return claim


async def assert_gone_back(node: OneNode) -> None:
    await settle()
    job = await node.service.job("a")
    assert (job.state, job.attempt, job.lost) == ("ready", 0, 0)
    assert check_invariants(node.applier.view) == []


async def lead_again(node: OneNode, term: int) -> None:
    node.raft.lose_leadership()
    await settle()
    node.raft.is_leader, node.raft.leader_id, node.raft.term = True, "n1", term
    await node.session.open_epoch(term)


@pytest.mark.parametrize("known", [True, False], ids=["repeated here", "perhaps repeated elsewhere"])
async def test_what_a_repeat_may_hold_is_not_taken_back_by_a_leader_that_leads_again(known: bool) -> None:
    """It knew of no other claim of that id, took the jobs from the repeat, and they ran twice."""
    node = await OneNode().open()
    await node.submit(id="a")
    first = await node.service.claim(claim_request())
    await lead_again(node, 3)
    if known:
        repeat = await node.service.claim(claim_request())
        assert [job.id for job in repeat.answer.jobs] == ["a"]
    first.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "running"


async def test_a_repeat_keeps_its_jobs_however_many_claims_go_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim id that was forgotten counted as that of the claim that nobody waited for."""
    monkeypatch.setattr(claim_book, "ANSWERS_REMEMBERED", 3)
    node = await OneNode().open()
    await node.submit(id="a")
    first = await node.service.claim(claim_request())
    await node.service.claim(claim_request())
    for other in range(5):
        await node.submit(id=f"{other}")
        await node.service.claim(claim_request(f"w{other}"))
    first.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "running"


async def test_claims_that_got_nothing_do_not_keep_a_grant_from_going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_book, "ANSWERS_REMEMBERED", 3)
    node = await OneNode().open()
    await node.submit(id="a")
    gone = await node.service.claim(claim_request())
    for other in range(5):
        assert (await node.service.claim(claim_request(f"w{other}"))).answer.jobs == []
    gone.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "ready"


async def test_an_answer_that_was_forgotten_may_have_been_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_book, "ANSWERS_REMEMBERED", 2)
    node = await OneNode().open()
    for job_id in ("a", "b", "c"):
        await node.submit(id=job_id)
    first = await node.service.claim(claim_request())
    await node.service.claim(claim_request("w2"))
    repeat = await node.service.claim(claim_request())
    await node.service.claim(claim_request("w3"))
    for delivery in (first, repeat):
        delivery.undeliverable()
    await settle()
    assert (await node.service.job("a")).state == "running"


def said_undelivered(node: OneNode, delivery: service.Delivery, mark: str | None = None, token: int = 0) -> bool:
    """What the leader says to a node that could not deliver that answer."""
    leases = [wire.EndingRequest(job.id, token or job.lease_token, "release") for job in delivery.answer.jobs]
    return node.service.claim_undelivered(delivery.mark if mark is None else mark, leases)


async def test_the_leader_knows_an_answer_by_its_mark_until_another_may_have_been_delivered() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    first = await node.service.claim(claim_request())
    nameless = await node.service.claim(msgspec.convert({"worker": "w", "queues": ["q"]}, wire.ClaimRequest))
    repeat = await node.service.claim(claim_request())
    assert not said_undelivered(node, first), "the repeat may have it"
    for strange in ("", ".", "1", "1.", "1.x", "2.1", "1." + "9" * 5000, nameless.mark):
        assert not said_undelivered(node, repeat, mark=strange)
    assert not said_undelivered(node, repeat, token=7), "it must know what it speaks of"
    assert said_undelivered(node, repeat)
    assert said_undelivered(node, repeat), "as often as the other node must ask"
    await lead_again(node, 3)
    assert not said_undelivered(node, repeat)


@pytest.mark.parametrize("end", ["hung up", "answered"])
async def test_what_another_node_could_not_deliver_is_its_repeats_that_is_under_way(end: str) -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    first = await node.service.claim(claim_request())
    node.raft.hold = True
    repeat = node.claim(claim_id="c1")
    await settle()
    assert node.raft.pending
    assert not said_undelivered(node, first)
    if end == "hung up":
        await hang_up(repeat)
        await commit(node)
        await assert_gone_back(node)
    else:
        await commit(node)
        assert [job.id for job in await repeat] == ["a"]
        assert (await node.service.job("a")).state == "running"


async def test_losing_leadership_answers_every_waiting_claim_at_once() -> None:
    node = await OneNode().open()
    claims = [node.claim() for _ in range(3)]
    await settle()
    node.raft.lose_leadership()
    ends = await asyncio.gather(*claims, return_exceptions=True)
    assert all(isinstance(end, NotApplied) and end.code == "no_leader" for end in ends)
    with pytest.raises(NotApplied):
        await node.submit()


@pytest.mark.parametrize("end", ["lost", "lost and won", "goes down"])
async def test_claims_are_told_a_few_a_pass_that_the_node_leads_no_more(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Four hundred claims of a thousand queues took 0.14 s of one pass to leave, and then all were answered in one."""
    monkeypatch.setattr(session, "DISMISSED_A_PASS", 2)
    monkeypatch.setattr(session, "SWEPT_A_PASS", 3)
    node = await OneNode().open()
    parked = [node.session.park(ClaimJobs("w", (f"q{n}", "q"), 1, None, f"{n}"), 0 if n else 60_000) for n in range(9)]
    if end == "goes down":
        node.session.drain()
    else:
        node.raft.lose_leadership()
    assert [waiter.future.done() for waiter in parked] == [True] * 2 + [False] * 7
    assert (len(node.session.waiters), node.session.waiters.waits_on("q")) == (0, False)
    node.session.abandon(parked[-1])
    await asyncio.sleep(0)
    assert [waiter.future.done() for waiter in parked] == [True] * 4 + [False] * 5
    if end == "lost and won":
        node.raft.is_leader, node.raft.leader_id, node.raft.term = True, "n1", 3
        await node.session.open_epoch(3)
    for waiter in parked[:-1]:
        with pytest.raises(NotApplied):
            await waiter.future
    await until(lambda: node.session._dismissing is None)
    assert not node.session.waiters._left
    if end == "lost and won":
        await node.submit(id="a", queue="q")
        assert [job.id for job in await node.claim("q")] == ["a"]


async def test_names_that_parked_claims_wait_on_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number alone was: four hundred claims of a thousand queues took 160 MB, and 20,000 may wait."""
    monkeypatch.setattr(waiters, "NAMES_MAX", 10)
    node = await OneNode().open()
    parked = [node.claim(*[f"{claim}-{n}" for n in range(5)], claim_id=f"{claim}") for claim in range(2)]
    await settle()
    for claim_id in (None, "c"):
        with pytest.raises(NotApplied) as caught:
            await node.claim("more", claim_id=claim_id)
        assert (caught.value.code, caught.value.retry_after_ms) == ("rate_limited", 1000)
    assert len(node.session._claims) == 2
    await hang_up(parked[0])
    assert await node.claim("more", wait_seconds=0) == []
    node.raft.lose_leadership()
    with pytest.raises(NotApplied):
        await parked[1]
    await lead_again(node, 3)
    assert await node.claim(*[f"{n}" for n in range(10)], wait_seconds=0) == []


async def test_claims_for_the_same_queues_share_their_names() -> None:
    node = await OneNode().open()
    requests = [claim_request(f"w{n}", queues=["".join(("a", "b")), "".join(("c", "d"))]) for n in range(3)]
    for request in requests:
        request.wait_seconds = 30
    calls = [asyncio.create_task(node.service.claim(request)) for request in requests]
    await settle()
    kept = {id(waiter.command.queues) for waiter in node.session.waiters.all()}
    assert len(kept) == 1
    assert len({id(queue) for request in requests for queue in request.queues}) == 2
    for call in calls:
        call.cancel()
    await settle()
    assert (node.session.waiters._kinds, node.session.waiters._names) == ({}, 0)


async def test_a_claim_under_way_when_leadership_goes_is_unknown() -> None:
    node = await OneNode().open()
    await node.submit()
    node.raft.hold = True
    claim = node.claim()
    await settle()
    node.raft.lose_leadership()
    with pytest.raises(OutcomeUnknown):
        await claim


async def test_a_second_leader_silences_the_first_ones_late_entries() -> None:
    node = await OneNode().open()
    other = codec.pack_command(OpenEpoch("n2", node.session.epoch))
    await node.raft.propose(codec.join_entry(node.session.header(), [other]))
    with pytest.raises(NotApplied) as caught:
        await node.submit()
    assert caught.value.code == "no_leader"


async def test_a_lease_that_runs_out_hands_the_job_to_who_waits() -> None:
    node = await OneNode().open()
    await node.submit(id="a", lease_seconds=10)
    (first,) = await node.claim()
    waiting = node.claim(worker="w2")
    await node.pass_ms(9_999)
    assert not waiting.done()
    await node.pass_ms(1)
    (second,) = await waiting
    assert (second.id, second.attempt) == ("a", 2)
    assert second.lease_token > first.lease_token


async def test_the_lease_clock_stands_still_between_leaders() -> None:
    node = await OneNode().open()
    await node.submit(id="a", lease_seconds=10)
    await node.claim()
    node.raft.lose_leadership()
    await settle()
    node.clock.advance(3_600_000)
    node.raft.is_leader, node.raft.term = True, 2
    await node.session.open_epoch(2)
    await settle()
    assert (await node.service.job("a")).state == "running"
    await node.pass_ms(10_000)
    assert (await node.service.job("a")).state == "ready"


async def test_while_leases_run_the_next_leader_knows_how_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "STAMP_MS", 10)
    node = await OneNode().open()
    await node.submit(id="a", lease_seconds=10)
    await node.claim()
    began = node.applier.meta().lease_clock
    entries = len(node.raft.entries)
    node.clock.advance(3_000)
    for _ in range(10_000):
        if len(node.raft.entries) > entries:
            break
        await asyncio.sleep(0.001)
    await settle()  # proposed: now applied
    assert last_commands(node) == [Nothing.__name__]
    assert node.applier.meta().lease_clock == began + 3_000
    node.raft.lose_leadership()
    await settle()
    node.raft.is_leader, node.raft.term = True, 2
    await node.session.open_epoch(2)
    await node.pass_ms(7_000)
    assert (await node.service.job("a")).state == "ready", "what ran of the lease before does not run again"


async def test_what_is_due_is_done_in_bounded_pieces() -> None:
    node = await OneNode(advance_limit=10).open()
    await asyncio.gather(*[node.submit(delay_seconds=5) for _ in range(35)])
    await node.pass_ms(5_000)
    for _ in range(20):
        await asyncio.sleep(0.001)
        if (await node.service.jobs(wire.JobsQuery(state="pending", limit=1))).jobs == []:
            break
    page = await node.service.jobs(wire.JobsQuery(state="ready", limit=50))
    assert len(page.jobs) == 35


async def test_a_wait_for_the_result_ends_with_the_entry_that_finishes_the_job() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    reader = asyncio.create_task(node.service.job("a", wait_ms=60_000))
    (job,) = await node.claim()
    await settle()
    assert not reader.done()
    await node.service.complete("a", wire.CompleteRequest(lease_token=job.lease_token))
    assert (await reader).state == "succeeded"


async def test_a_repeat_that_comes_while_the_first_is_under_way_gets_its_jobs() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    node.raft.hold = True
    first = node.claim(claim_id="c1")
    await settle()
    first.cancel()
    repeat = node.claim(claim_id="c1")
    await settle()
    node.raft.hold = False
    node.raft.commit_all()
    assert [job.id for job in await repeat] == ["a"]
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("running", 1)


@pytest.mark.parametrize("wait_seconds", [0, 30])
async def test_a_claim_whose_every_call_hung_up_costs_no_attempt(wait_seconds: float) -> None:
    """A repeat that ended first was taken for the end of the claim: what the first was granted nobody had."""
    node = await OneNode().open()
    first = await under_way(node)
    await hang_up(first, node.claim(claim_id="c1", wait_seconds=wait_seconds))
    await commit(node)
    await assert_gone_back(node)


@pytest.mark.parametrize("hung_up", [True, False])
async def test_a_repeat_that_does_not_wait_has_the_outcome_of_the_call_before(hung_up: bool) -> None:
    """It was told of no jobs before the entry was stored: a worker that stops gives back by it what it was granted."""
    node = await OneNode().open()
    first = node.claim(claim_id="c1")
    await settle()
    node.raft.hold = True
    submit = asyncio.create_task(node.submit(id="a"))
    await settle()
    if hung_up:
        await hang_up(first)
    repeat = node.claim(claim_id="c1", wait_seconds=0)
    await until(lambda: all(call.expired for call in node.session.waiters.all()[1:]))
    await settle()
    assert not repeat.done()
    await commit(node)
    assert [job.id for job in await repeat] == ["a"]
    assert hung_up or [job.id for job in await first] == ["a"]
    await submit
    assert (await node.service.job("a")).state == "running"


async def test_a_repeat_that_does_not_wait_is_told_of_no_jobs_when_the_call_before_got_none() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    node.raft.hold = True
    cancelling, first = asyncio.create_task(node.service.cancel("a")), node.claim(claim_id="c1")
    await settle()
    assert last_commands(node) == ["CancelJob", "ClaimJobs"]
    repeat = node.claim(claim_id="c1", wait_seconds=0)
    await until(lambda: all(call.expired for call in node.session.waiters.all()[1:]))
    await settle()
    assert not repeat.done()
    await commit(node)
    assert await repeat == []
    assert (await cancelling).state == "cancelled"
    assert not first.done()
    await hang_up(first)


async def test_a_repeat_is_told_that_nobody_knows_when_the_outcome_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what that outcome is goes back, since nobody waits for it."""
    monkeypatch.setattr(session, "OUTCOME_WAIT_MS", 5)
    node = await OneNode().open()
    await hang_up(await under_way(node))
    with pytest.raises(OutcomeUnknown):
        await node.claim(claim_id="c1", wait_seconds=0)
    await commit(node)
    await assert_gone_back(node)


async def test_what_was_granted_too_late_goes_back_though_a_repeat_came_and_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    hold(node, monkeypatch)
    first = node.claim(claim_id="c1")
    await wait_stuck(node)
    with pytest.raises(OutcomeUnknown):
        await first
    repeat = node.claim(claim_id="c1")
    await settle()
    await hang_up(repeat)
    await let_go(node, monkeypatch)
    await assert_gone_back(node)


@pytest.mark.parametrize("asked", [True, False], ids=["while it asks for it", "before"])
async def test_what_one_call_lost_goes_back_when_the_last_that_waits_hangs_up(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    node = await OneNode().open()
    first = await under_way(node)
    repeat = node.claim(claim_id="c1")
    await hang_up(first)
    monkeypatch.setattr(session, "GRANT_JOBS_MAX", int(asked))
    node.raft.commit_all()  # what the repeat asks for then is held up
    await settle()
    assert len(node.raft.pending) == int(asked)
    await hang_up(repeat)
    await commit(node)
    await assert_gone_back(node)


async def test_a_claim_of_other_queues_is_another_one() -> None:
    """Two tenants with a worker's name and a claim id in common: the jobs of one do not wait for the other's calls."""
    node = await OneNode().open()
    first = await under_way(node)
    other = node.claim("elsewhere", claim_id="c1")
    await hang_up(first)
    await commit(node)
    await assert_gone_back(node)
    await hang_up(other)


async def test_a_call_that_waits_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many claims with other ids came during a long poll that its own was forgotten."""
    monkeypatch.setattr(claim_book, "ANSWERS_REMEMBERED", 3)
    node = await OneNode().open()
    first = node.claim(claim_id="c1")
    await settle()
    for other in range(5):
        await node.submit(queue=f"{other}")
        assert len(await node.claim(f"{other}", claim_id=f"other{other}")) == 1
    others = [node.claim("idle", claim_id=f"idle{other}") for other in range(5)]
    await settle()
    node.raft.hold = True
    submit = asyncio.create_task(node.submit(id="a"))
    await settle()
    await hang_up(first)
    await commit(node)
    await submit
    await assert_gone_back(node)
    await hang_up(*others)
    assert len(node.session._claims) <= 4


@pytest.mark.parametrize("when", ["waiting", "under way", "answered"])
async def test_a_repeat_that_hangs_up_takes_no_jobs_from_who_has_them(when: str) -> None:
    """A proxy's retry was sent and closed at once: the job went to another worker while its own was at it."""
    node = await OneNode().open()
    await node.submit(id="a")
    await node.service.claim(claim_request())
    if when == "answered":
        (await node.service.claim(claim_request())).undeliverable()
    else:
        node.raft.hold = when == "under way"
        repeat = node.claim(claim_id="c1")
        await asyncio.sleep(0)
        if when == "under way":
            await settle()
            assert node.raft.pending
        await hang_up(repeat)
        await commit(node)
    await settle()
    assert (await node.service.job("a")).state == "running"


async def test_jobs_of_a_claim_go_back_once_no_answer_was_delivered() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    answers = [await node.service.claim(claim_request()) for _ in range(3)]
    for answer in answers[:2]:
        answer.undeliverable()
        await settle()
        assert (await node.service.job("a")).state == "running"
    answers[2].undeliverable()
    await assert_gone_back(node)


async def test_a_repeat_is_not_given_what_is_on_its_way_back() -> None:
    """It would lose it a moment later."""
    node = await OneNode().open()
    await node.submit(id="a")
    lost = await node.service.claim(claim_request())
    assert said_undelivered(node, lost)  # and the release comes behind the repeat's own entry
    assert await node.claim(claim_id="c1", wait_seconds=0) == []
    waiting = node.claim(claim_id="c1")
    await settle()
    (job,) = lost.answer.jobs
    await node.service.release(job.id, wire.ReleaseRequest(job.lease_token))
    assert [again.lease_token > job.lease_token for again in await waiting] == [True]


async def test_what_an_answer_had_no_room_for_goes_back_unless_another_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CLAIM_BYTES_MAX", 1)
    node = await OneNode().open()
    for job_id in ("b", "a"):
        await node.submit(id=job_id, payload=msgspec.Raw(b'"x"'))
    for _ in range(2):
        delivery = await node.service.claim(claim_request(max_jobs=2))
        assert [job.id for job in delivery.answer.jobs] == ["b"]
        await assert_gone_back(node)
        assert (await node.service.job("b")).state == "running"


@pytest.mark.parametrize("end", ["hung up", "answered"])
async def test_what_an_answer_had_no_room_for_is_left_to_the_call_that_is_open(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(service, "CLAIM_BYTES_MAX", 1)
    node = await OneNode().open()
    for job_id in ("b", "a"):
        await node.submit(id=job_id, payload=msgspec.Raw(b'"x"'))
    node.raft.hold = True
    first = node.claim(claim_id="c1", max_jobs=2)
    await settle()
    repeat = node.claim(claim_id="c1", max_jobs=2)
    await settle()
    node.raft.commit_all()  # what the repeat asks for then is held up
    assert [job.id for job in await first] == ["b"]
    assert (await node.service.job("a")).state == "running"
    if end == "hung up":
        await hang_up(repeat)
    await commit(node)
    assert end == "hung up" or [job.id for job in await repeat] == ["b"]
    await assert_gone_back(node)
    assert (await node.service.job("b")).state == "running"


@pytest.mark.parametrize("claim_id", ["c1", None])
async def test_who_hangs_up_under_way_and_is_granted_nothing_is_forgotten(claim_id: str | None) -> None:
    """It was parked again, for nobody and without an end, and asked for jobs that then had to go back."""
    node = await OneNode().open()
    await node.submit(id="a")
    node.raft.hold = True
    cancelling, gone = asyncio.create_task(node.service.cancel("a")), node.claim(claim_id=claim_id)
    await settle()
    assert last_commands(node) == ["CancelJob", "ClaimJobs"]
    await hang_up(gone)
    await commit(node)
    assert (await cancelling).state == "cancelled"
    assert (len(node.session.waiters), len(node.session._claims)) == (0, 0)


async def test_calls_of_one_claim_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_book, "CALLS_MAX", 3)
    node = await OneNode().open()
    calls = [node.claim(claim_id="c1") for _ in range(3)]
    await settle()
    with pytest.raises(NotApplied, match="wait already"):
        await node.claim(claim_id="c1")
    await hang_up(*calls)
    assert len(node.session._claims) == 0
    assert await node.claim(claim_id="c1", wait_seconds=0) == []


async def test_a_repeat_after_a_change_of_leaders_gets_the_same_jobs() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    (first,) = await node.claim(claim_id="c1")
    node.raft.lose_leadership()
    await settle()
    node.raft.is_leader, node.raft.term = True, 2
    await node.session.open_epoch(2)
    (again,) = await node.claim(claim_id="c1")
    assert again.lease_token == first.lease_token


async def test_who_hangs_up_in_the_pass_that_grants_gives_back() -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    waiter = node.session.park(ClaimJobs("w", ("default",), 1, None, ""), 30_000)
    await waiter.future
    node.session.abandon(waiter)
    await settle()
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("ready", 0)


async def test_a_draining_session_answers_who_waits_and_still_takes_grants_back() -> None:
    node = await OneNode().open()
    await node.submit(id="a", queue="q")
    node.raft.hold = True
    gone, parked = node.claim("q"), node.claim("other")
    await settle()
    gone.cancel()
    node.session.drain()
    with pytest.raises(NotApplied):
        await parked
    with pytest.raises(NotApplied):
        await node.claim("q")
    idle = asyncio.create_task(node.proposer.wait_idle())
    node.raft.hold = False
    node.raft.commit_all()
    await idle
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("ready", 0)


async def test_a_draining_session_gives_back_what_a_repeat_that_waits_might_have_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when that one is answered later."""
    monkeypatch.setattr(session, "DISMISSED_A_PASS", 1)
    node = await OneNode().open()
    gone = await under_way(node)
    others = [node.claim("other") for _ in range(100)]
    repeat = node.claim("other", claim_id="c1")
    await hang_up(gone)
    node.session.drain()
    idle = asyncio.create_task(node.proposer.wait_idle())
    node.raft.hold = False
    node.raft.commit_all()
    await idle
    assert not repeat.done()
    await assert_gone_back(node)
    for claim in (*others, repeat):
        with pytest.raises(NotApplied):
            await claim


@pytest.mark.parametrize("stored", [True, False])
async def test_a_claim_that_does_not_wait_is_asked_for_before_it_is_told_of_no_jobs(
    monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Sixteen workers that emptied a queue of 100,000 jobs were told of none half way, as entries took over 50 ms."""
    monkeypatch.setattr(session, "LAST_LOOK_MS", 0)
    node = await OneNode().open()
    await node.submit()
    node.raft.hold = True
    node.proposer.send([Nothing()])
    await settle()
    claim = node.claim(wait_seconds=0)
    for _ in range(session.LAST_LOOKS_MAX // 2):
        await asyncio.sleep(0)
    assert not claim.done()
    if not stored:
        for _ in range(session.LAST_LOOKS_MAX):
            await asyncio.sleep(0)
    node.raft.hold = False
    node.raft.commit_all()
    assert len(await claim) == (1 if stored else 0)


async def test_a_raised_rate_wakes_who_waits_for_a_token_of_the_old_one() -> None:
    """The timer of the old rate was kept: a parked claim ended empty though its job could be had."""
    node = await OneNode().open()
    node.proposer.send([RaiseMachineVersion(2)])
    await settle()
    await node.service.set_queue("default", wire.QueuePatch(rate_per_second=0.001, burst=1))
    for job_id in ("a", "b"):
        await node.submit(id=job_id)
    assert [job.id for job in await node.claim()] == ["a"]
    request = wire.ClaimRequest(worker="w", queues=["default"], wait_seconds=50)
    waiting = asyncio.create_task(node.service.claim(request))
    await settle()
    node.clock.advance(1000)
    await node.service.set_queue("default", wire.QueuePatch(rate_per_second=1000))
    node.clock.advance(10)
    async with asyncio.timeout(20):
        assert [job.id for job in (await waiting).answer.jobs] == ["b"]


async def unsettle(node: OneNode, what: str) -> None:
    """A call after which a job of the queue can be had that could not be had before."""
    if what == "limit":
        await node.service.set_queue("default", wire.QueuePatch(max_running_per_key=2))
    else:
        (parent,) = await node.claim("parents")
        await node.service.complete("parent", wire.CompleteRequest(lease_token=parent.lease_token))


async def with_something_to_settle(what: str) -> OneNode:
    node = await OneNode().open()
    node.proposer.send([RaiseMachineVersion(SCHEDULES_VERSION)])
    await settle()
    if what == "limit":
        for job_id in ("first", "a"):
            await node.submit(id=job_id, concurrency_key="k")
        assert [job.id for job in await node.claim()] == ["first"]
    else:
        await node.submit(id="parent", queue="parents")
        await node.submit(id="a", after=["parent"])
    assert await node.claim(wait_seconds=0) == []
    return node


@pytest.mark.parametrize("what", ["limit", "parent"])
async def test_a_claim_right_after_the_answer_has_what_the_call_set_off(what: str) -> None:
    """It was carried on by an entry of its own, a moment later: a claim that did not wait was told of no jobs."""
    node = await with_something_to_settle(what)
    await unsettle(node, what)
    assert [job.id for job in await node.claim(wait_seconds=0)] == ["a"]
    assert check_invariants(node.applier.view) == []


@pytest.mark.parametrize("what", ["limit", "parent"])
async def test_a_claim_that_comes_while_that_is_carried_on_is_decided_after_it(what: str) -> None:
    node = await with_something_to_settle(what)
    await unsettle(node, what)
    node.raft.hold = True
    await settle()
    assert len(node.raft.pending) == 1
    claim, elsewhere = node.claim(wait_seconds=0), node.claim("empty", wait_seconds=0)
    await until(lambda: len(node.session._behind_this) + len(node.session._behind_next) == 2)
    assert not claim.done()
    node.raft.hold = False
    node.raft.commit_all()
    assert await elsewhere == []
    assert [job.id for job in await claim] == ["a"]


async def test_a_claim_behind_something_that_is_never_stored_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LAST_LOOK_MS", 1)
    node = await with_something_to_settle("parent")
    await unsettle(node, "parent")
    node.raft.hold = True
    await settle()
    async with asyncio.timeout(5):
        assert await node.claim(wait_seconds=0) == []
    assert len(node.session._behind_next) + len(node.session._behind_this) == 0


def claims_by_entry(node: OneNode) -> list[list[str]]:
    """Who was asked for, in each entry that asks for any."""
    entries = [codec.split_entry(entry)[1] for entry in node.raft.entries]
    claims = [[command.worker for command in entry if isinstance(command, ClaimJobs)] for entry in entries]
    return [workers for workers in claims if workers]


async def test_claims_of_many_queues_come_few_an_entry_first_come_first_served() -> None:
    """A hundred claims of a thousand queues each were decided in one entry: 0.16 s of each node's loop."""
    node = await OneNode().open()
    names = [f"q{number}" for number in range(999)]
    claims = []
    for worker in range(20):
        claims.append(node.claim(*names, "last", worker=f"w{worker}"))
        await settle()
    node.raft.entries.clear()
    await asyncio.gather(*[node.submit(queue="last") for _ in range(30)])
    assert [len(jobs) for jobs in await asyncio.gather(*claims)] == [1] * 20
    asked = claims_by_entry(node)
    assert [worker for workers in asked for worker in workers] == [f"w{worker}" for worker in range(20)]
    most = session.GRANT_JOBS_MAX * session.QUEUES_A_JOB // 1000 + 1
    assert max(map(len, asked)) <= most
    assert len(asked) < 20


async def test_one_entry_looks_at_so_many_queues_and_the_rest_comes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty claims of a thousand unknown names each were looked at in one pass: 0.12 s of the leader's loop."""
    monkeypatch.setattr(session, "QUEUES_LOOKED_MAX", 3)
    node = await OneNode().open()
    await node.submit(queue="last")
    names = tuple(f"q{number}" for number in range(10))
    waiter = node.session.park(ClaimJobs("w", (*names, "last"), 1, None, ""), 60_000)
    for _ in range(3):
        assert node.session.plan(node.session.header(), {}).last == []
    (asked,) = node.session.plan(node.session.header(), {}).last
    asked.future.set_exception(NotApplied("no_leader", "it was not proposed"))
    with pytest.raises(NotApplied):
        await waiter.future
    for wait_seconds in (0, 30):
        node.session.close()
        await lead_again(node, node.raft.term + 1)
        assert len(await node.claim(*names, "last", wait_seconds=wait_seconds)) == 1
        await node.submit(queue="last")


async def test_repeats_come_so_many_an_entry_and_each_gets_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a change of leaders all who wait may be repeats: they were decided in one entry."""
    monkeypatch.setattr(session, "LAST_LOOK_MS", 1)
    monkeypatch.setattr(session, "GRANT_JOBS_MAX", 3)
    node = await OneNode().open()
    for worker in range(10):
        await node.submit(id=f"j{worker}")
        await node.claim(worker=f"w{worker}", claim_id="c")
    node.raft.entries.clear()
    node.raft.hold = True
    repeats = [node.claim(worker=f"w{worker}", claim_id="c", wait_seconds=0) for worker in range(10)]
    for _ in range(8):
        await asyncio.sleep(0.005)
        node.raft.commit_all()
    assert [[job.id for job in await repeat] for repeat in repeats] == [[f"j{worker}"] for worker in range(10)]
    assert list(map(len, claims_by_entry(node))) == [3, 3, 3, 1]


def hold(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leaves from now on is overdue soon."""
    monkeypatch.setattr(proposer, "COMMIT_DEADLINE_MS", 5)
    node.raft.hold = True


async def wait_stuck(node: OneNode) -> None:
    """Until what is under way is overdue."""
    await settle()
    with pytest.raises(NotApplied):
        await node.proposer.run_one(Nothing())


async def let_go(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way is stored, after all, and what comes of it."""
    monkeypatch.undo()
    node.raft.hold = False
    node.raft.commit_all()
    await settle()


@pytest.mark.parametrize("end", ["hung up", "told that it is unknown"])
async def test_what_a_claim_is_granted_too_late_goes_back(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """The outcome of an overdue entry was dropped: the job waited for its lease, which nobody had."""
    node = await OneNode().open()
    await node.submit(id="a")
    hold(node, monkeypatch)
    claim = node.claim()
    await settle()
    if end == "hung up":
        claim.cancel()
    await wait_stuck(node)
    if end != "hung up":
        with pytest.raises(OutcomeUnknown):
            await claim
    await let_go(node, monkeypatch)
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("ready", 0)
    assert check_invariants(node.applier.view) == []


async def test_what_a_claim_is_granted_too_late_is_its_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await OneNode().open()
    await node.submit(id="a")
    hold(node, monkeypatch)
    claim = node.claim(claim_id="c")
    await wait_stuck(node)
    with pytest.raises(OutcomeUnknown):
        await claim
    repeat = node.claim(claim_id="c")
    await settle()
    await let_go(node, monkeypatch)
    (job,) = await repeat
    assert (job.id, job.attempt) == ("a", 1)
    assert (await node.service.job("a")).state == "running"


@pytest.mark.parametrize("stuck", [True, False], ids=["while nothing is stored", "right before"])
async def test_what_cannot_be_delivered_goes_back_once_something_is_stored_again(
    monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """Releases were dropped while an entry was overdue, and those that waited behind it."""
    node = await OneNode().open()
    await node.submit(id="a")
    delivery = await node.service.claim(claim_request())
    hold(node, monkeypatch)
    node.proposer.send([Nothing()])
    await settle()
    if stuck:
        await wait_stuck(node)
    delivery.undeliverable()
    await wait_stuck(node)
    assert len(node.raft.pending) == 1
    await let_go(node, monkeypatch)
    job = await node.service.job("a")
    assert (job.state, job.attempt) == ("ready", 0)


async def test_names_of_queues_and_claims_that_are_over_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader kept a place for each name of a queue, and each claim that had an id with all that it named."""
    monkeypatch.setattr(session, "QUEUES_REMEMBERED", 5)
    monkeypatch.setattr(claim_book, "ANSWERS_REMEMBERED", 5)
    node = await OneNode().open()
    for number in range(20):
        await node.submit(queue=f"nobody{number}")
        await node.submit(queue=f"q{number}")
        assert len(await node.claim(f"q{number}", f"none{number}", claim_id=f"{number}")) == 1
    kept = (node.session._asked, node.session._nothing_ready, node.session._check, node.session._claims)
    assert [len(each) <= 5 for each in kept] == [True] * 4
    assert not node.session._asked
    for claim in node.session._claims._claims.values():
        assert (claim.calls, claim.lost) == ([], ())


async def test_who_waits_is_woken_however_many_queues_were_forgotten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that a claim under way might have taken goes to the next in line."""
    monkeypatch.setattr(session, "QUEUES_REMEMBERED", 1)
    node = await OneNode().open()
    idle = [node.claim(f"idle{number}") for number in range(5)]
    await settle()
    await node.submit(id="a", queue="p")
    await node.submit(id="b", queue="q")
    node.raft.hold = True
    first = node.claim("p", "q")
    await settle()
    second = node.claim("q")
    idle += [node.claim(f"idle{number}") for number in range(5, 10)]
    await settle()
    node.raft.hold = False
    node.raft.commit_all()
    assert [job.id for job in await first] == ["a"]
    assert [job.id for job in await second] == ["b"]
    for number, claim in enumerate(idle):
        await node.submit(id=f"{number}", queue=f"idle{number}")
        assert [job.id for job in await claim] == [f"{number}"]


async def test_what_an_older_build_does_not_know_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a job that all others had refused, or ended at a command that it did not know."""
    monkeypatch.setattr(service, "VERSION_LOOK_S", 0.0)
    node = await OneNode().open()
    entries = len(node.raft.entries)
    keyed = msgspec.convert({"task": "t", "concurrency_key": "k"}, wire.SubmitRequest)
    for call in (
        node.service.set_queue("q", wire.QueuePatch(paused=True)),
        node.service.submit(keyed),
        node.service.submit_batch([keyed], atomic=False),
    ):
        with pytest.raises(Refused, match="older version"):
            await call
    await settle()
    assert len(node.raft.entries) == entries


# ---------------------------------------------------------------- nodes that hang


def peer(*, connected: bool = True, last_heard_ms: int | None = 0) -> PeerStatus:
    return PeerStatus(connected, 0, last_heard_ms)


@pytest.mark.parametrize(
    "silent",
    [peer(last_heard_ms=session.SILENT_MS + 1), peer(connected=False), peer(last_heard_ms=None)],
    ids=["hangs", "is cut off", "was never heard"],
)
async def test_callers_at_a_node_that_is_silent_are_passed_over(silent: PeerStatus) -> None:
    """Four jobs of four workers behind a hung follower were granted to nobody, one after the other, and died of it."""
    node = await OneNode().open()
    node.raft.peers = {"n2": peer(), "n3": peer()}
    behind, beside = node.claim(via="n2"), node.claim(via="n3")
    await settle()
    node.raft.peers["n2"] = silent
    await node.pass_ms(session.HEARD_AGAIN_MS)
    first = await node.submit()
    assert [job.id for job in await beside] == [first.id]
    second = await node.submit()
    await settle()
    assert not behind.done()
    assert (await node.service.job(second.id)).state == "ready"
    assert [job.id for job in await node.claim()] == [second.id], "whoever comes by another way gets it"


async def test_who_was_passed_over_is_served_once_his_node_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LOOK_AGAIN_MS", 1)
    monkeypatch.setattr(session, "HEARD_AGAIN_MS", 0)
    node = await OneNode().open()
    node.raft.peers = {"n2": peer(connected=False), "n3": peer()}
    claim = node.claim(via="n2")
    job = await node.submit()
    await settle()
    assert not claim.done()
    node.raft.peers["n2"] = peer()
    assert [each.id for each in await claim] == [job.id]


async def test_a_reign_that_ends_looks_no_more_for_who_was_passed_over() -> None:
    node = await OneNode().open()
    node.raft.peers = {"n2": peer(connected=False)}
    claim = node.claim(via="n2")
    await node.submit()
    await settle()
    node.session.close()
    with pytest.raises(NotApplied):
        await claim
    assert node.session._passing is None
