"""A call made once takes effect once, whatever is lost on the way; refusals come back as their own class."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import threading
import uuid
from datetime import UTC, datetime

import msgspec
import pytest
from aiohttp import web
from tests.helpers.fake_server import FakeServer, problem
from tests.helpers.loopback import free_port, listening

from horae import AsyncClient, Beat, Client, Ending, Failure, Job, NewJob, errors, wire
from horae.client import url_list
from horae.jobs import Claim
from horae.nodes import base_url
from horae.schedules import NextTime, Schedule, ScheduleRule, ScheduleTerms, Trigger
from horae.transport import Transport
from horae.trouble import Trouble


async def test_a_submit_makes_its_own_id_and_reads_back(server: FakeServer, client: AsyncClient) -> None:
    job = await client.submit("hello", {"name": "Ada", "at": datetime(2026, 1, 1, tzinfo=UTC)})
    assert uuid.UUID(job.id).version == 7
    assert job.payload == {"name": "Ada", "at": "2026-01-01T00:00:00Z"}
    assert await client.job(job.id) == job
    assert isinstance(job.created_at, datetime)


@pytest.mark.parametrize("kind", ["drop", "cut"])
async def test_a_lost_submit_is_repeated_with_its_id(server: FakeServer, client: AsyncClient, kind: str) -> None:
    server.fault("/v1/jobs", kind, kind)
    job = await client.submit("hello")
    assert {body["id"] for body in server.sent("/v1/jobs")} == {job.id}
    assert server.counts["/v1/jobs"] >= 3
    assert list(server.jobs) == [job.id]


async def test_the_callers_id_is_kept_and_a_conflict_is_final(server: FakeServer, client: AsyncClient) -> None:
    await client.submit("hello", 1, id="mine")
    assert (await client.submit("hello", 1, id="mine")).id == "mine"
    with pytest.raises(errors.Conflict) as caught:
        await client.submit("hello", 2, id="mine")
    assert caught.value.problem.code == "conflict"
    assert server.counts["/v1/jobs"] == 3


async def test_a_lost_claim_is_repeated_with_its_claim_id(server: FakeServer, client: AsyncClient) -> None:
    server.add("hello")
    server.fault("/v1/claims", "drop")
    claims = await client.claim("w", ["default"], wait_seconds=1)
    assert [claim.id for claim in claims] == ["job-1"]
    assert len({body["claim_id"] for body in server.sent("/v1/claims")}) == 1
    assert server.jobs["job-1"]["attempt"] == 1


async def test_a_lost_ending_is_repeated_with_its_token(server: FakeServer, client: AsyncClient) -> None:
    server.add("hello")
    (claim,) = await client.claim("w", ["default"])
    server.fault("/v1/jobs/job-1/complete", "drop")
    job = await client.complete(claim.id, claim.lease_token, [1, 2])
    assert (job.state, job.result) == ("succeeded", [1, 2])
    with pytest.raises(errors.LeaseLost):
        await client.fail(claim.id, claim.lease_token, Failure("E", "no"))


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
async def test_a_filter_that_came_out_empty_changes_nothing(server: FakeServer, client: AsyncClient, verb: str) -> None:
    path = f"/v1/jobs/{verb}"
    server.fault(path, *[web.json_response({"count": 2, "next_cursor": None}) for _ in range(2)])
    change = getattr(client, f"{verb}_many")
    for nothing in ({}, {"queue": None, "tag": None}):
        with pytest.raises(TypeError, match=rf"{verb}_many\(\) of no filter means every job .* or every=True"):
            await change(**nothing)
    with pytest.raises(TypeError, match="has queue and every=True: leave one out"):
        await change(every=True, queue="mail")
    with pytest.raises(TypeError, match="has no option 'tags': did you mean tag"):
        await change(tags="a:b")
    with Client(server.url) as blocking, pytest.raises(TypeError, match="of no filter"):
        await asyncio.to_thread(getattr(blocking, f"{verb}_many"))
    assert server.counts[path] == 0
    assert await change(every=True) == 2
    assert await change(queue="mail", tag=None) == 2
    assert [body["filter"] for body in server.sent(path)] == [{}, {"queue": "mail"}]


async def test_endings_in_bulk_answer_one_by_one(server: FakeServer, client: AsyncClient) -> None:
    server.add("hello"), server.add("hello")
    one, two = await client.claim("w", ["default"], max_jobs=2)
    endings = [
        Ending(job_id=one.id, lease_token=one.lease_token, outcome="complete"),
        Ending(job_id=two.id, lease_token=two.lease_token + 1, outcome="release"),
    ]
    done = await client.end_many("w", endings)
    assert [item.error and item.error.code for item in done] == [None, "lease_lost"]
    renewals = await client.heartbeat("w", [Beat(two.id, two.lease_token), Beat(one.id, one.lease_token)])
    assert [renewal.status for renewal in renewals] == ["ok", "lost"]


async def test_a_passing_problem_is_waited_out(server: FakeServer, client: AsyncClient) -> None:
    server.fault("/v1/jobs", problem("rate_limited", 429, headers={"Retry-After": "0.01"}))
    server.fault("/v1/jobs", problem("no_leader", 503, headers={"Retry-After": "0.01"}))
    server.fault("/v1/jobs", problem("outcome_unknown", 504), problem("shutting_down", 503))
    job = await client.submit("hello")
    assert {body["id"] for body in server.sent("/v1/jobs")} == {job.id}
    assert server.counts["/v1/jobs"] == 5


async def test_the_deadline_ends_with_the_last_problem(server: FakeServer, client: AsyncClient) -> None:
    server.fault("/v1/jobs", problem("rate_limited", 429, headers={"Retry-After": "60"}))
    with pytest.raises(errors.RateLimited):
        await client.submit("hello", deadline_seconds=0.5)


async def test_an_unknown_outcome_is_told_from_a_definite_one(server: FakeServer) -> None:
    async with AsyncClient(server.url, deadline_seconds=0.3) as client:
        server.fault("/v1/jobs", *["drop"] * 50)
        with pytest.raises(errors.OutcomeUnknown):
            await client.submit("hello")
    async with AsyncClient(f"http://127.0.0.1:{free_port()}", deadline_seconds=0.3) as client:
        with pytest.raises(errors.Unreachable):
            await client.submit("hello")


async def test_a_definite_reason_is_not_lost_to_a_last_try_that_was_cut_short(server: FakeServer) -> None:
    """A node waits for a leader before it says that there is none: a try with less time left would end unknown."""
    ticks = itertools.count()
    transport = Transport([server.url], now=lambda: float(next(ticks)))
    server.fault("/v1/jobs", problem("no_leader", 503, headers={"Retry-After": "0.01"}), *["hang"] * 9)
    try:
        with pytest.raises(errors.NoLeader):
            await transport.call("POST", "/v1/jobs", b"\x80", deadline=4.5)
    finally:
        await transport.close()
    assert server.counts["/v1/jobs"] == 1


async def test_an_unknown_outcome_names_the_job_and_the_last_definite_reason(server: FakeServer) -> None:
    server.fault("/v1/jobs", problem("no_leader", 503, headers={"Retry-After": "0.01"}), *["hang"] * 9)
    async with AsyncClient(server.url, deadline_seconds=0.5) as client:
        with pytest.raises(errors.OutcomeUnknown, match="no_leader") as caught:
            await client.submit("hello")
    assert caught.value.job_id == server.sent("/v1/jobs")[0]["id"]
    assert str(caught.value.job_id) in str(caught.value)


@pytest.mark.parametrize(
    ("first", "kind"), [(problem("no_leader", 503, headers={"Retry-After": "0.01"}), errors.NoLeader), (None, None)]
)
async def test_a_read_never_takes_effect(
    server: FakeServer, first: web.Response | None, kind: type[errors.HoraeError] | None
) -> None:
    server.fault("/v1/jobs/x", *([first] if first else []), *["hang"] * 9)
    async with AsyncClient(server.url, deadline_seconds=0.5) as client:
        with pytest.raises(kind or errors.Unreachable) as caught:
            await client.job("x")
    assert "take effect" not in str(caught.value)


async def test_a_silence_that_a_node_without_a_leader_keeps_is_told_as_such(server: FakeServer) -> None:
    """It says that it has none after 2 s: a shorter try cannot tell the two."""
    hint = "a node without a leader takes 2 s to say so: give it longer"
    port = "is that a node's HTTP port?"
    server.fault("/v1/jobs/x", "hang")
    server.fault("/v1/jobs", "hang")
    server.fault("/v1/cluster", "hang")
    async with AsyncClient(server.url, deadline_seconds=0.5) as client:
        with pytest.raises(errors.Unreachable, match=rf"no answer in [0-9.]+ s \({hint}; or {re.escape(port)}\)$"):
            await client.job("x")
        with pytest.raises(errors.OutcomeUnknown, match=rf"no answer in [0-9.]+ s \({hint}\)"):
            await client.submit("hello")
        with pytest.raises(errors.Unreachable, match=rf"no answer in [0-9.]+ s \({re.escape(port)}\)$"):
            await client.cluster(local=True)


async def test_what_is_no_horae_node_is_told_as_such(server: FakeServer, client: AsyncClient) -> None:
    server.fault("/v1/jobs", web.Response(status=404, text="<html>no</html>", content_type="text/html"))
    with pytest.raises(errors.RequestError, match=f"{server.url} answered 404 with text/html: no horae node"):
        await client.submit("hello")
    server.fault("/v1/jobs", web.Response(text="<html>hello</html>"))
    with pytest.raises(errors.RequestError, match=f"{server.url} is no horae node"):
        await client.submit("hello")

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with listening(speak) as url, AsyncClient(url) as astray:
        with pytest.raises(errors.RequestError, match="does not speak HTTP"):
            await astray.submit("hello")


async def test_a_refused_connection_is_told_in_plain_words() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with AsyncClient(url, deadline_seconds=0.2) as client:
        with pytest.raises(errors.Unreachable, match=f"{url}: connection refused$"):
            await client.job("x")


async def test_a_submit_tells_whether_the_job_is_new(server: FakeServer, client: AsyncClient) -> None:
    assert (await client.submit_job(NewJob(task="t", id="mine"))).created
    again = await client.submit_job(NewJob(task="t", id="mine"))
    assert (again.job.id, again.created) == ("mine", False)
    server.fault("/v1/jobs", "drop")  # the answer that was lost was that of our own success
    assert (await client.submit_job(NewJob(task="t", id="other"))).created


async def test_a_job_that_is_a_dictionary_is_refused_with_the_fix(server: FakeServer, client: AsyncClient) -> None:
    with pytest.raises(TypeError, match=r"NewJob\(\*\*job\)"):
        await client.submit_many([{"task": "t"}])  # type: ignore[list-item]
    assert not server.requests


async def test_what_is_wrong_is_said_once(server: FakeServer, client: AsyncClient) -> None:
    fields = [{"pointer": "/priority", "detail": "must be at most 100"}, {"pointer": "/id", "detail": "is too long"}]
    body = {"type": "x", "title": "x", "status": 422, "code": "invalid", "errors": fields}
    body["detail"] = "/priority must be at most 100"
    server.fault("/v1/jobs", web.Response(status=422, body=msgspec.json.encode(body), content_type="application/json"))
    with pytest.raises(errors.Invalid) as caught:
        await client.submit("t")
    assert str(caught.value) == "invalid: /priority must be at most 100 (/id: is too long)"


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid", 422, errors.Invalid),
        ("malformed", 400, errors.Malformed),
        ("unauthenticated", 401, errors.Unauthenticated),
        ("forbidden", 403, errors.Forbidden),
        ("too_large", 413, errors.TooLarge),
        ("storage_full", 507, errors.StorageFull),
        ("from_the_future", 418, errors.RequestError),
    ],
)
async def test_each_code_has_its_class(
    server: FakeServer, client: AsyncClient, code: str, status: int, kind: type[errors.RequestError]
) -> None:
    server.fault("/v1/jobs", problem(code, status, detail="why"))
    with pytest.raises(kind) as caught:
        await client.submit("hello")
    assert (type(caught.value), caught.value.code, caught.value.detail) == (kind, code, "why")
    assert server.counts["/v1/jobs"] == 1


async def test_an_answer_that_is_not_the_contracts_is_an_error_of_ours(server: FakeServer, client: AsyncClient) -> None:
    server.fault("/v1/jobs", web.Response(text="<html>hello</html>"))
    with pytest.raises(errors.RequestError) as caught:
        await client.submit("hello")
    assert caught.value.code == "bad_answer"


async def test_it_goes_to_the_leader_that_it_is_told_of(server: FakeServer) -> None:
    async with FakeServer() as other, AsyncClient(other.url) as client:
        other.leader = server.url
        await client.submit("first")
        await client.submit("second")
        assert [body["task"] for body in server.sent("/v1/jobs")] == ["second"]


async def test_no_leader_that_names_one_goes_straight_there(server: FakeServer) -> None:
    async with FakeServer() as other, AsyncClient(other.url) as client:
        headers = {"Horae-Leader": server.url, "Retry-After": "60"}
        other.fault("/v1/jobs", problem("no_leader", 503, headers=headers))
        job = await client.submit("hello")
        assert list(server.jobs) == [job.id]


async def test_a_dead_leader_is_left_for_the_other_nodes(server: FakeServer) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with AsyncClient([dead, server.url]) as client:
        server.leader = dead  # what a node says until it notices
        assert (await client.submit("hello")).state == "ready"
        assert (await client.submit("hello")).state == "ready"


async def test_two_that_name_each_other_are_not_asked_in_a_tight_loop(server: FakeServer) -> None:
    async with FakeServer() as other, AsyncClient([server.url, other.url], deadline_seconds=0.5) as client:
        for one, two in ((server, other), (other, server)):
            headers = {"Horae-Leader": two.url, "Retry-After": "0.1"}
            one.fault("/v1/jobs", *(problem("no_leader", 503, headers=headers) for _ in range(100)))
        with pytest.raises(errors.NoLeader):
            await client.submit("hello")
        assert server.counts["/v1/jobs"] + other.counts["/v1/jobs"] <= 12


async def test_submit_many_is_cut_into_requests_and_keeps_the_order(server: FakeServer, client: AsyncClient) -> None:
    jobs = await client.submit_many(NewJob(task="t", payload=number) for number in range(2300))
    assert [job.payload for job in jobs] == list(range(2300))
    assert [len(body["jobs"]) for body in server.sent("/v1/jobs/batch")] == [1000, 1000, 300]


async def test_submit_many_tells_which_were_refused(server: FakeServer, client: AsyncClient) -> None:
    with pytest.raises(errors.PartlyRefused) as caught:
        await client.submit_many([NewJob(task="t"), NewJob(task="refuse:invalid"), NewJob(task="t")])
    assert [type(result) for result in caught.value.results] == [Job, errors.Invalid, Job]


async def test_submit_many_sends_shed_items_again_with_their_ids(server: FakeServer, client: AsyncClient) -> None:
    with pytest.raises(errors.PartlyRefused):
        await client.submit_many([NewJob(task="t"), NewJob(task="refuse:rate_limited")], deadline_seconds=0.7)
    first, *later = server.sent("/v1/jobs/batch")
    assert later
    assert all([job["id"] for job in body["jobs"]] == [first["jobs"][1]["id"]] for body in later)


async def test_a_cancel_whose_answer_was_lost_is_no_conflict(server: FakeServer, client: AsyncClient) -> None:
    job = await client.submit("hello")
    server.fault(f"/v1/jobs/{job.id}/cancel", "drop")
    assert (await client.cancel(job.id)).state == "cancelled"
    with pytest.raises(errors.Conflict):
        await client.cancel(job.id)


async def test_a_delete_whose_answer_was_lost_is_done(server: FakeServer, client: AsyncClient) -> None:
    job = await client.submit("hello")
    server.fault(f"DELETE /v1/jobs/{job.id}", "drop")
    await client.delete(job.id)
    with pytest.raises(errors.NotFound):
        await client.delete(job.id)


async def test_wait_and_result(server: FakeServer, client: AsyncClient) -> None:
    job = await client.submit("hello")
    waiting = asyncio.ensure_future(client.result(job.id))
    await server.wait_until(lambda: server.counts[f"/v1/jobs/{job.id}"] > 0)
    (claim,) = await client.claim("w", ["default"])
    await client.complete(claim.id, claim.lease_token, "done")
    assert await waiting == "done"
    other = await client.submit("hello")
    await client.cancel(other.id)
    with pytest.raises(errors.JobFailed) as caught:
        await client.result(other.id)
    assert caught.value.job.state == "cancelled"


async def test_jobs_reads_page_by_page(server: FakeServer, client: AsyncClient) -> None:
    for _ in range(7):
        server.add("t")
    assert [job.id async for job in client.jobs(page=3)] == [f"job-{number}" for number in range(7, 0, -1)]
    assert server.counts["/v1/jobs"] == 3


async def test_what_cannot_be_sent_is_refused_here(server: FakeServer, client: AsyncClient) -> None:
    with pytest.raises(errors.TooLarge):
        await client.submit("t", "x" * wire.PAYLOAD_BYTES_MAX)
    with pytest.raises(errors.Invalid):
        await client.submit("t", 2**64)
    with pytest.raises(errors.Invalid):
        await client.submit("t", "\ud800")
    with pytest.raises(TypeError):
        await client.submit("t", object())
    assert not server.requests


def test_the_blocking_client_is_the_same_one() -> None:
    loop = asyncio.new_event_loop()
    fake = loop.run_until_complete(FakeServer().__aenter__())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with Client(fake.url) as client:
            job = client.submit("hello", {"a": 1}, queue="mail")
            assert client.job(job.id).queue == "mail"
            (claim,) = client.claim("w", ["mail"])
            assert client.complete(claim.id, claim.lease_token, 5).state == "succeeded"
            assert client.result(job.id) == 5
            assert [one.id for one in client.jobs()] == [job.id]
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.job(job.id)
    finally:
        asyncio.run_coroutine_threadsafe(fake.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_the_blocking_client_has_every_call_and_says_what_it_does() -> None:
    calls = {name for name, _ in inspect.getmembers(AsyncClient, inspect.isfunction) if not name.startswith("_")}
    assert calls == {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert [name for name in calls if not (getattr(Client, name).__doc__ and getattr(AsyncClient, name).__doc__)] == []


def test_the_shapes_have_the_keys_of_the_wire() -> None:
    assert set(Job.__struct_fields__) == set(wire.JobView.__struct_fields__)
    assert set(Schedule.__struct_fields__) == set(wire.ScheduleView.__struct_fields__)
    assert set(Trigger.__struct_fields__) == set(wire.TriggerView.__struct_fields__)
    assert set(NextTime.__struct_fields__) == set(wire.NextTime.__struct_fields__)
    assert set(ScheduleTerms.__optional_keys__) | {"job"} == set(wire.ScheduleRequest.__struct_fields__)
    assert set(ScheduleRule.__optional_keys__) == set(wire.ScheduleRule.__struct_fields__)
    assert set(Claim.__struct_fields__) == set(wire.ClaimedJob.__struct_fields__)
    assert set(NewJob.__struct_fields__) == set(wire.SubmitRequest.__struct_fields__)
    assert set(Ending.__struct_fields__) == set(wire.EndingRequest.__struct_fields__)
    assert set(Beat.__struct_fields__) == set(wire.LeaseBeat.__struct_fields__)


def test_what_the_client_sends_is_what_the_wire_accepts() -> None:
    ending = Ending(job_id="a", lease_token=1, outcome="fail", error=Failure("E", "m", "t"), retry=False)
    beat = Beat("a", 1, msgspec.Raw(msgspec.msgpack.encode(None)))
    body = msgspec.msgpack.encode({"worker": "w", "leases": [ending]})
    taken = msgspec.msgpack.decode(body, type=wire.EndingsRequest).leases[0]
    assert (taken.outcome, taken.retry, taken.result) == ("fail", False, msgspec.UNSET)
    body = msgspec.msgpack.encode({"worker": "w", "leases": [beat, Beat("b", 1)]})
    beats = msgspec.msgpack.decode(body, type=wire.HeartbeatRequest).leases
    assert [bytes(beats[0].progress), beats[1].progress] == [b"\xc0", msgspec.UNSET]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "better"),
    [
        ("localhost:7070", "http://localhost:7070"),
        ("127.0.0.1:7281", "http://127.0.0.1:7281"),
        ("http://", "http://127.0.0.1:7070"),
        ("http://a:99999", "http://127.0.0.1:7070"),
        ("http://a/?x=1", "http://127.0.0.1:7070"),
    ],
)
def test_a_url_that_is_none_is_refused_with_the_fix(url: str, better: str) -> None:
    with pytest.raises(ValueError, match=f"not a base URL: .*; write it as {better}$"):
        AsyncClient([url])


def test_urls_are_read_as_people_write_them() -> None:
    assert url_list("http://a:1, http://b:2/\thttp://c:3/v1,") == ["http://a:1", "http://b:2/", "http://c:3/v1"]
    assert [base_url(url) for url in ("http://a:1/", "http://a:1/v1", "http://a:1/v1/", " http://a:1/p ")] == [
        "http://a:1",
        "http://a:1",
        "http://a:1",
        "http://a:1/p",
    ]
    with pytest.raises(ValueError, match="at least one"):
        Transport([])
    with pytest.raises(TypeError, match="urls is a base URL"):
        AsyncClient(7070)  # type: ignore[arg-type]


def test_only_trouble_that_lasts_is_told() -> None:
    told: list[tuple[str | None, float]] = []
    trouble = Trouble(lambda why, seconds, _: told.append((why, seconds)), first_seconds=2, again_seconds=10)
    trouble.failed("short", due=0.0, now=1.9, kind="unreachable")
    trouble.over(2.0)
    assert told == []
    for now in (12.0, 13.0, 14.0, 23.0):
        trouble.failed(f"at {now}", due=10.5, now=now, kind="not_serving")
    trouble.over(24.0)
    trouble.over(25.0)
    assert told == [("at 13.0", 2.5), ("at 23.0", 12.5), (None, 13.5)]


def test_trouble_begins_when_an_answer_was_due_not_when_it_was_asked_for() -> None:
    told: list[float] = []
    trouble = Trouble(lambda why, seconds, _: told.append(seconds), first_seconds=0, again_seconds=0)
    trouble.failed("cut amid a long poll", due=20.0, now=4.8, kind="unreachable")
    trouble.failed("and again", due=5.0, now=5.3, kind="unreachable")
    assert told == [0.0, pytest.approx(0.5)]


async def test_a_long_poll_that_is_cut_was_no_trouble_before() -> None:
    """A leader that dies amid the poll of an idle worker is gone since then, not since the poll was begun."""
    clock, told, asked = [100.0], list[tuple[float, bool]](), asyncio.Event()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        clock[0] += 4.8
        writer.transport.abort()
        asked.set()

    trouble = Trouble(lambda why, seconds, kind: told.append((seconds, kind)), first_seconds=0, again_seconds=60)
    async with listening(cut) as url:
        transport = Transport([url], trouble=trouble, now=lambda: clock[0])
        calling = asyncio.create_task(transport.call("POST", "/v1/claims", b"", deadline=104.8, wait_seconds=20))
        async with asyncio.timeout(20):
            await asked.wait()
            with pytest.raises(errors.OutcomeUnknown):
                await calling
        await transport.close()
    assert told == [(0.0, "unreachable")]


async def test_a_claim_that_failed_is_asked_again_with_a_short_wait(server: FakeServer, client: AsyncClient) -> None:
    server.fault("/v1/claims", "cut", problem("no_leader", 503))
    server.add("t")
    (claim,) = await client.claim("w", ["default"], wait_seconds=20, again_wait_seconds=1)
    first, *later = server.sent("/v1/claims")
    assert claim.task == "t"
    assert first["wait_seconds"] == 20
    assert later == [first | {"wait_seconds": 1}] * len(later)
    assert len(later) >= 2


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"delay": 3}, "no option 'delay': did you mean delay_seconds?"),
        ({"max_retries": 3}, "did you mean max_attempts?"),
        ({"zzz": 3}, "no option 'zzz': there are after, concurrency_key, delay_seconds"),
    ],
)
def test_an_option_that_is_none_is_told_with_the_one_that_was_meant(given: dict[str, int], meant: str) -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(TypeError, match=re.escape(meant)):
        client.submit("hello", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["job", "wait", "result"])
def test_a_time_that_is_no_number_is_refused(call: str) -> None:
    """It passes every comparison, and no wait for it ends."""
    name = "deadline_seconds" if call == "job" else "wait_seconds"
    with Client("http://127.0.0.1:1") as client, pytest.raises(ValueError, match=f"{name} is a number of seconds"):
        getattr(client, call)("x", **{name: float("nan")})


@pytest.mark.parametrize("name", ["", ".", "..", "\udcff"])
def test_a_name_that_no_path_can_carry_is_refused_by_its_field(name: str) -> None:
    with Client("http://127.0.0.1:1") as client:
        for call, pointer in ((client.job, "/id"), (client.cancel, "/id"), (client.remove_member, "/id")):
            with pytest.raises(errors.Invalid) as refused:
                call(name)
            assert [field.pointer for field in refused.value.problem.errors] == [pointer]


def test_one_request_carries_one_way_in() -> None:
    with pytest.raises(ValueError, match=re.escape("http://...@h names a user, and there is a token")):
        Client("http://u:secret@h", token="t")
    with pytest.raises(ValueError, match="token: it has characters"):
        Client("http://h", token="t\n")
