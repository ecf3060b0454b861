"""What the facade makes of the machine's answers: each item its own, bounded pages, and how old a local reading is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.helpers.one_node import OneNode, settle

from horae import wire
from horae_node import reads, service
from horae_node.clock import ManualClock
from horae_node.core import views
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.model import LINKS_VERSION, SCHEDULES_VERSION
from horae_node.errors import NotApplied
from horae_node.membership import CAUGHT_UP_ENTRIES
from horae_node.raft.port import Member, PeerStatus
from horae_node.service import CLAIM_BYTES_MAX, NOT_CAUGHT_UP_ENTRIES, Refused

LARGE = {"payload": "x" * (wire.PAYLOAD_BYTES_MAX - 2)}
PER_PAGE = wire.ANSWER_BYTES_MAX // wire.PAYLOAD_BYTES_MAX


async def test_a_follower_is_ready_once_it_has_what_its_leader_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """And stays so through a moment's load: what it has heard itself says nothing of what it lacks."""
    node = await OneNode().open()
    raft = node.raft
    told: dict[str, Any] = {"leader_commit": None, "installs": False, "commit_index": 0, "applied_index": 5}
    status = raft.status()
    monkeypatch.setattr(raft, "status", lambda: status._replace(role="follower", **told))
    raft.is_leader, raft.leader_id = False, "n2"
    node.session.close()
    node.service.set_members([Member("n2", "n2:1", "http://n2")])
    seen = []
    for change in (
        {"leader_commit": None},
        {"leader_commit": 5 + CAUGHT_UP_ENTRIES + 1},
        {"leader_commit": 5 + CAUGHT_UP_ENTRIES, "installs": True},
        {"installs": False},
        {"leader_commit": 5 + NOT_CAUGHT_UP_ENTRIES},
        {"leader_commit": 5 + NOT_CAUGHT_UP_ENTRIES + 1},
        {"leader_commit": 5 + NOT_CAUGHT_UP_ENTRIES},
    ):
        told.update(change)
        seen.append(node.service.ready()[0])
    assert seen == [False, False, False, True, True, False, False]


async def _submit_large(node: OneNode, count: int) -> None:
    payload = Raw(msgspec.json.encode(LARGE["payload"]))
    for number in range(count):
        await node.service.submit(wire.SubmitRequest(task="t", id=str(number), payload=payload))


async def _claimed(node: OneNode, *job_ids: str) -> list[wire.ClaimedJob]:
    for job_id in job_ids:
        await node.submit(id=job_id)
    return await node.claim(max_jobs=len(job_ids))


def _endings(jobs: list[wire.ClaimedJob], **keys: Any) -> wire.EndingsRequest:
    items = [{"job_id": job.id, "lease_token": job.lease_token, "outcome": "complete", **keys} for job in jobs]
    return msgspec.convert({"worker": "w", "leases": items}, wire.EndingsRequest)


async def _then_deleted(node: OneNode, first: Coroutine[Any, Any, Any], job_id: str) -> Any:
    """The answer to `first` when a deletion is applied before anybody looks at what it did."""
    node.raft.hold = True
    task = asyncio.create_task(first)
    deletion = asyncio.create_task(node.service.delete(job_id))
    await settle()
    node.raft.commit_all()
    assert views.job_seq(node.applier.view, job_id) is None, "both are in one entry"
    await deletion
    node.raft.hold = False
    return await task


async def test_an_ending_whose_record_is_gone_is_accepted_without_it() -> None:
    node = await OneNode().open()
    jobs = await _claimed(node, "a", "b")
    first, second = await _then_deleted(node, node.service.end_many(_endings(jobs)), "a")
    assert (first, second) == (None, "succeeded")


@pytest.mark.parametrize("atomic", [False, True])
async def test_a_batch_tells_of_a_record_that_is_gone_by_its_item(atomic: bool) -> None:
    node = await OneNode().open()
    await node.service.end_many(_endings(await _claimed(node, "a")))
    requests = [wire.SubmitRequest(task="t", id=job_id) for job_id in ("a", "b")]
    gone, made = await _then_deleted(node, node.service.submit_batch(requests, atomic=atomic), "a")
    assert isinstance(gone, Refused)
    assert gone.code == "not_found"
    assert made[0].id == "b"


async def test_a_page_ends_early_and_the_next_goes_on() -> None:
    node = await OneNode().open()
    await _submit_large(node, PER_PAGE + 3)
    pages = []
    cursor = None
    while not pages or cursor is not None:
        page = await node.service.jobs(wire.JobsQuery(limit=PER_PAGE + 3, cursor=cursor))
        pages.append([job.id for job in page.jobs])
        cursor = page.next_cursor
    assert [len(page) for page in pages] == [PER_PAGE, 3]
    assert [job_id for page in pages for job_id in page] == [str(n) for n in reversed(range(PER_PAGE + 3))]


async def test_errors_and_results_count_too() -> None:
    node = await OneNode().open()
    error = {"message": "é" * wire.ERROR_MESSAGE_CHARS_MAX, "traceback": "é" * wire.ERROR_TRACEBACK_CHARS_MAX}
    jobs = await _claimed(node, *(str(n) for n in range(120)))
    await node.service.end_many(_endings(jobs, outcome="fail", error=error, retry=False))
    page = await node.service.jobs(wire.JobsQuery(limit=1000))
    assert len(page.jobs) == wire.ANSWER_BYTES_MAX // 40_000 + 1
    assert page.next_cursor is not None
    jobs = await _claimed(node, *(f"r{n}" for n in range(20)))
    for job in jobs:
        request = wire.CompleteRequest(lease_token=job.lease_token, result=Raw(b'"%s"' % (b"x" * 250_000)))
        await node.service.complete(job.id, request)
    page = await node.service.jobs(wire.JobsQuery(limit=1000))
    assert len(page.jobs) == wire.ANSWER_BYTES_MAX // 250_000 + 1


async def test_a_batch_shows_so_much_of_what_was_there_already() -> None:
    """A repeat of a few kilobytes would be answered with every result there is."""
    node = await OneNode().open()
    count = wire.ANSWER_BYTES_MAX // 250_000 + 10
    for job in await _claimed(node, *(f"r{n}" for n in range(count))):
        request = wire.CompleteRequest(lease_token=job.lease_token, result=Raw(b'"%s"' % (b"x" * 250_000)))
        await node.service.complete(job.id, request)
    requests = [wire.SubmitRequest(task="t", id=f"r{n}") for n in range(count)]
    requests.append(wire.SubmitRequest(task="t", payload=Raw(b'{"new":1}'), tags={"k": "v"}))
    for atomic in (False, True):
        shown = [
            item[0] for item in await node.service.submit_batch(requests, atomic=atomic) if isinstance(item, tuple)
        ]
        results = [len(bytes(job.result)) for job in shown]
        assert results == [250_002] * (wire.ANSWER_BYTES_MAX // 250_002 + 1) + [4] * 9 + [4]
        assert {job.state for job in shown[:-1]} == {"succeeded"}
        assert (bytes(shown[-1].payload), shown[-1].tags) == (b'{"new":1}', {"k": "v"}), "a new one is shown as it is"


async def test_one_job_that_a_whole_batch_stands_for_is_not_shown_a_thousand_times() -> None:
    node = await OneNode().open()
    tags = {str(n): "x" * 200 for n in range(16)}
    await node.submit(id="a", unique_key="u", payload=Raw(msgspec.json.encode(LARGE["payload"])), tags=tags)
    requests = [wire.SubmitRequest(task="t", unique_key="u") for _ in range(1000)]
    shown = [item[0] for item in await node.service.submit_batch(requests, atomic=False) if isinstance(item, tuple)]
    assert {job.id for job in shown} == {"a"}
    assert len(shown) == 1000
    assert len(msgspec.json.encode(wire.BatchAnswer([wire.BatchItem(job) for job in shown]))) < 6_000_000


async def test_tags_and_links_of_a_page_count_too() -> None:
    node = await OneNode().open()
    tags = {f"{n:02}" + "k" * 98: "é" * 200 for n in range(16)}
    for number in range(700):
        await node.submit(id=str(number), tags=tags)
    page = await node.service.jobs(wire.JobsQuery(limit=1000))
    assert len(page.jobs) == wire.ANSWER_BYTES_MAX // (16 * 500 + 3 * len(b"null")) + 1
    assert page.next_cursor is not None


async def test_readers_of_a_large_result_are_answered_one_a_pass() -> None:
    """All of them wait for the one entry that ends the job."""
    node = await OneNode().open()
    (job,) = await _claimed(node, "a")
    answered: list[int] = []
    passes = 0

    async def read() -> None:
        view = await node.service.job("a", wait_ms=60_000)
        assert len(bytes(view.result)) == 250_002
        answered.append(passes)

    readers = [asyncio.create_task(read()) for _ in range(20)]
    await settle()
    request = wire.CompleteRequest(lease_token=job.lease_token, result=Raw(b'"%s"' % (b"x" * 250_000)))
    readers.append(asyncio.create_task(node.service.complete("a", request)))
    while not all(reader.done() for reader in readers):
        passes += 1
        await asyncio.sleep(0)
    assert len(set(answered)) == 20
    assert sorted(answered) == answered


async def test_a_claim_that_is_given_up_before_its_turn_gives_its_jobs_back() -> None:
    node = await OneNode().open()
    for number in range(2):
        await node.submit(id=str(number), payload=Raw(msgspec.json.encode(LARGE["payload"])))
    held = await node.service._pace._line.acquire()
    claim = node.claim()
    await settle()
    assert held
    claim.cancel()
    await settle()
    node.service._pace._line.release()
    jobs = await node.claim(max_jobs=2)
    assert [(job.id, job.attempt) for job in jobs] == [("0", 1), ("1", 1)]


async def test_schedules_of_a_page_are_as_many_as_fit() -> None:
    node = await OneNode().open()
    await node.proposer.run_one(RaiseMachineVersion(SCHEDULES_VERSION))
    for number in range(PER_PAGE + 3):
        payload = Raw(msgspec.json.encode(LARGE["payload"]))
        body = {"every_seconds": 86400, "job": {"task": "t", "payload": payload}}
        await node.service.schedules.put(f"s{number:02}", msgspec.convert(body, wire.ScheduleRequest), None)
    pages, cursor = [], None
    while not pages or cursor is not None:
        page = await node.service.schedules.page(limit=1000, cursor=cursor, only=None, local=False)
        pages.append([one.id for one in page.schedules])
        cursor = page.next_cursor
    assert [len(page) for page in pages] == [PER_PAGE, 3]
    assert [one for page in pages for one in page] == [f"s{number:02}" for number in range(PER_PAGE + 3)]


async def test_what_a_claim_cannot_carry_goes_straight_back() -> None:
    node = await OneNode().open()
    count = CLAIM_BYTES_MAX // 60_000 + 20
    jobs = await _claimed(node, *(str(n) for n in range(count)))
    progress = Raw(b'"%s"' % (b"x" * 60_000))
    await node.service.end_many(_endings(jobs, outcome="release", progress=progress))
    first = await node.claim(max_jobs=1000)
    assert len(first) == CLAIM_BYTES_MAX // 60_000 + 1
    await settle()
    second = await node.claim(max_jobs=1000)
    assert sorted(int(job.id) for job in first + second) == list(range(count))
    assert {job.attempt for job in first + second} == {1}, "a grant that was not carried is not counted"


async def test_errors_stay_when_a_job_is_requeued() -> None:
    """They are its history: shown in every state of its new life, with those that come, and to who claims it."""
    node = await OneNode().open()
    seen: list[list[str]] = []

    async def look() -> None:
        job = await node.service.job("a")
        seen.append([error.type for error in job.errors])
        assert job.last_error == (job.errors[-1] if job.errors else None)

    async def claimed() -> wire.ClaimedJob:
        (job,) = await node.claim()
        assert (None if job.last_error is None else job.last_error.type) == (seen[-1][-1] if seen[-1] else None)
        await look()
        return job

    async def fail(job: wire.ClaimedJob, kind: str) -> None:
        await node.service.fail("a", wire.FailRequest(lease_token=job.lease_token, error=wire.ErrorBody(type=kind)))
        await look()

    await node.submit(id="a", max_attempts=1)
    await look()
    await fail(await claimed(), "First")
    node.clock.advance(10)
    await node.service.requeue("a")
    await look()
    job = await claimed()
    await node.service.release("a", wire.ReleaseRequest(lease_token=job.lease_token))
    await look()
    await fail(await claimed(), "Second")
    node.clock.advance(10)
    await node.service.requeue("a")
    await look()
    job = await claimed()
    await node.service.complete("a", wire.CompleteRequest(lease_token=job.lease_token))
    await look()
    assert seen == [[]] * 2 + [["First"]] * 5 + [["First", "Second"]] * 4


async def test_the_repeat_of_a_submit_whose_record_is_gone_names_no_job_that_never_was() -> None:
    node = await OneNode().open()
    await node.proposer.run_one(RaiseMachineVersion(LINKS_VERSION))
    then = {"task": "next", "then": {"task": "named", "id": "own"}}
    request = msgspec.convert({"task": "t", "id": "a", "then": then}, wire.SubmitRequest)
    made, _ = await node.service.submit(request)
    again, created = await node.service.submit(request)
    assert (again.then, created) == (made.then, False)
    await node.service.cancel("a")
    await node.service.delete("a")
    for shown in (
        (await node.service.submit(request))[0],
        (await node.service.submit_batch([request], atomic=False))[0][0],  # type: ignore[index]
    ):
        follower = msgspec.to_builtins(shown.then, enc_hook=bytes)
        assert (shown.state, follower["task"], "id" in follower) == ("cancelled", "next", False)
        assert follower["then"]["id"] == "own"


async def test_the_repeat_of_a_trigger_by_hand_whose_job_is_gone_makes_no_second_one() -> None:
    node = await OneNode().open()
    await node.proposer.run_one(RaiseMachineVersion(SCHEDULES_VERSION))
    body = {"every_seconds": 86400, "job": {"task": "t", "then": {"task": "next"}}}
    await node.service.schedules.put("s", msgspec.convert(body, wire.ScheduleRequest), None)
    made, created = await node.service.schedules.trigger("s", "own")
    assert (made.id, created) == ("s@manual-own", True)
    await node.service.cancel(made.id)
    await node.service.delete(made.id)
    again, created = await node.service.schedules.trigger("s", "own")
    assert (again.id, again.state, again.schedule_id, created) == (made.id, "cancelled", "s", False)
    assert again.then == made.then


async def test_a_requeue_that_a_unique_key_forbids_names_who_has_it() -> None:
    node = await OneNode().open()
    await node.submit(id="a", unique_key="k")
    await node.service.cancel("a")
    await node.submit(id="b", unique_key="k")
    await node.claim()
    with pytest.raises(Refused) as refused:
        await node.service.requeue("a")
    held = "an unfinished job of queue 'default' has its unique_key 'k': 'b', which is running; 'a' is cancelled"
    assert (refused.value.code, refused.value.detail) == ("conflict", held)


async def test_a_local_reading_is_as_old_as_the_last_word_of_a_leader() -> None:
    node = await OneNode().open()
    assert node.service.applied()[1] == 0
    node.raft.peers = {"n2": PeerStatus(True, 0, 1_000)}
    node.raft.follow("n2")
    assert 1_000 <= node.service.applied()[1] < 60_000
    node.raft.peers = {"n2": PeerStatus(True, 0, 3_000)}
    node.raft.follow(None)
    node.raft.peers = {"n2": PeerStatus(True, 0, 0)}  # heard, but no leader any more
    assert 3_000 <= node.service.applied()[1] < 60_000


async def test_a_node_that_led_was_current_until_then() -> None:
    node = await OneNode().open()
    node.raft.follow(None)
    assert node.service.applied()[1] < 60_000


async def test_before_any_leader_the_newest_entry_tells_the_age() -> None:
    node = OneNode()
    node.raft.follow(None)
    age_ms = node.service.applied()[1]
    node.clock.advance(5_000)
    assert node.service.applied()[1] == age_ms + 5_000


async def test_who_does_not_lead_refuses() -> None:
    node = await OneNode().open()
    node.raft.follow("n2")
    with pytest.raises(NotApplied, match="no_leader"):
        await node.submit()


@pytest.mark.parametrize(
    ("keys", "key"), [({"ttl_seconds": 0}, "/ttl_seconds"), ({"expires_at": "2001-01-01T00:00:00Z"}, "/expires_at")]
)
async def test_a_job_that_is_over_before_it_begins_is_refused_by_its_key(keys: dict[str, Any], key: str) -> None:
    node = await OneNode().open()
    request = msgspec.convert({"task": "t", **keys}, wire.SubmitRequest)
    with pytest.raises(Refused) as alone:
        await node.service.submit(request)
    with pytest.raises(Refused) as of_all:
        await node.service.submit_batch([wire.SubmitRequest(task="t"), request], atomic=True)
    made, of_some = await node.service.submit_batch([wire.SubmitRequest(task="t"), request], atomic=False)
    assert isinstance(made, tuple)
    assert isinstance(of_some, Refused)
    refused = (alone.value, of_all.value, of_some)
    assert [error.pointer for error in refused] == [key, f"/jobs/1{key}", key]
    assert {(error.code, error.detail.partition(":")[0]) for error in refused} == {("invalid", "is already past")}


async def test_who_waits_for_results_is_told_a_few_a_pass_that_the_node_leads_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twenty thousand may wait, and all were answered in one pass."""
    monkeypatch.setattr(service, "RELEASED_A_PASS", 2)
    node = await OneNode().open()
    for job_id in ("a", "b"):
        await node.submit(id=job_id)
    reads = [asyncio.create_task(node.service.job("ab"[n % 2], wait_ms=60_000)) for n in range(5)]
    await settle()
    waiting = [future for futures in node.service._finishes._waiting.values() for future in futures]
    assert len(waiting) == 5
    node.raft.lose_leadership()
    assert [future.done() for future in waiting] == [True] * 2 + [False] * 3
    for read in reads:
        with pytest.raises(NotApplied):
            await read


NOW_MS = ManualClock().wall_ms()


def text(after_ms: int) -> str:
    return reads.moment_text(NOW_MS + after_ms)


NEVER = [
    ({"run_at": text(3_600_000), "ttl_seconds": 60}, "/ttl_seconds"),
    ({"run_at": text(60_000), "ttl_seconds": 60}, "/ttl_seconds"),
    ({"delay_seconds": 3600, "expires_at": text(60_000)}, "/expires_at"),
    ({"delay_seconds": 60, "expires_at": text(60_000)}, "/expires_at"),
]
IN_TIME: list[dict[str, Any]] = [
    {"run_at": text(59_999), "ttl_seconds": 60},
    {"delay_seconds": 59.999, "expires_at": text(60_000)},
    {"run_at": text(-60_000), "ttl_seconds": 1},
    {"expires_at": text(1)},
]


@pytest.mark.parametrize(("keys", "pointer"), NEVER)
async def test_what_would_expire_before_it_is_due_is_refused(keys: dict[str, Any], pointer: str) -> None:
    """It was taken, and expired a minute later without a word."""
    node = await OneNode().open()
    with pytest.raises(Refused, match="would never run") as refused:
        await node.submit(**keys)
    assert (refused.value.code, refused.value.pointer) == ("invalid", pointer)
    jobs = [msgspec.convert({"task": "t", **more}, wire.SubmitRequest) for more in ({}, keys, {})]
    made = await node.service.submit_batch(jobs, atomic=False)
    assert [one.pointer if isinstance(one, Refused) else "" for one in made] == ["", pointer, ""]
    assert len(await node.service.submit_batch(jobs[1:2], atomic=False)) == 1
    with pytest.raises(Refused) as whole:
        await node.service.submit_batch(jobs, atomic=True)
    assert whole.value.pointer == f"/jobs/1{pointer}"
    assert len((await node.service.jobs(wire.JobsQuery())).jobs) == 2


@pytest.mark.parametrize("keys", IN_TIME)
async def test_what_has_a_millisecond_to_run_is_taken(keys: dict[str, Any]) -> None:
    assert (await (await OneNode().open()).submit(**keys)).state in ("pending", "ready")


@pytest.mark.parametrize("key", ["id", "unique_key"])
async def test_what_was_in_time_may_be_sent_again(key: str) -> None:
    node = await OneNode().open()
    keys = {"delay_seconds": 50, "expires_at": text(60_000), key: "k"}
    first = await node.submit(**keys)
    await node.pass_ms(20_000)
    assert (await node.submit(**keys)).id == first.id
