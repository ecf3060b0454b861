"""The contract of schedules (docs/contract.md), from outside, on three real nodes."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.helpers.api import Answer
from tests.helpers.cluster import Cluster
from tests.helpers.story import Queue, metric, require_problem

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

FAR = "2200-01-01T00:00:00Z"


async def put(q: Queue, **keys: Any) -> Answer:
    """The schedule that is called as the queue is."""
    job = {"task": "t", "queue": q.name} | keys.pop("job", {})
    return await q.call("PUT", f"/v1/schedules/{q.name}", {"job": job} | keys)


async def put_if(q: Queue, header: str, value: str) -> Answer:
    """Another rule for it, on a condition."""
    body = json.dumps({"cron": "0 4 * * *", "job": {"task": "t", "queue": q.name}}).encode()
    headers = {"Content-Type": "application/json", header: value}
    return await q.api.send("PUT", f"{q.url}/v1/schedules/{q.name}", body, headers)


async def get(q: Queue, path: str = "") -> Any:
    return (await q.call("GET", f"/v1/schedules/{q.name}{path}")).expect(200)


async def post(q: Queue, verb: str, body: Any = None) -> Answer:
    return await q.call("POST", f"/v1/schedules/{q.name}/{verb}", body)


async def ledger(q: Queue, at_least: int) -> list[Any]:
    """The lines of the ledger, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            lines: list[Any] = (await get(q, "/triggers?limit=1000"))["triggers"]
            if len(lines) >= at_least:
                return lines
            await asyncio.sleep(0.1)


def text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_each_trigger_makes_one_job_over_a_change_of_leader(any_q: Queue, cluster: Cluster) -> None:
    q = any_q
    made = (await put(q, every_seconds=1, job={"payload": {"n": [1]}, "tags": {"k": "v"}})).expect(201)
    assert (made["paused"], made["missed"], made["job"]["payload"]) == (False, "skip", {"n": [1]})
    await ledger(q, 2)
    follower = await cluster.follower()
    (await q.call("POST", "/v1/cluster/leader", {"node": follower.name})).expect(200)
    seen = len(await ledger(q, 2))
    lines = await ledger(q, seen + 2)
    moments = [datetime.fromisoformat(line["nominal_time"]) for line in lines]
    assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(seconds=1)}
    assert all(moment.microsecond == 0 for moment in moments)
    assert {line["outcome"] for line in lines} == {"ran"}
    assert [line["job_id"] for line in lines] == [f"{q.name}@{line['nominal_time']}" for line in lines]
    jobs = (await q.call("GET", f"/v1/jobs?schedule_id={q.name}&limit=1000")).expect(200)["jobs"]
    found = {job["id"]: job for job in jobs}
    assert {line["job_id"] for line in lines} <= found.keys()
    for line in lines:
        job = found[line["job_id"]]
        assert (job["nominal_time"], job["run_at"]) == (line["nominal_time"], line["nominal_time"])
        assert job["created_at"] >= line["nominal_time"] > made["created_at"]
    (claimed,) = await q.claim()
    assert (claimed["schedule_id"], claimed["nominal_time"]) == (q.name, lines[0]["nominal_time"])
    (await q.call("DELETE", f"/v1/schedules/{q.name}")).expect(204)
    require_problem(await q.call("GET", f"/v1/schedules/{q.name}"), 404, "not_found")
    count = len((await q.call("GET", f"/v1/jobs?schedule_id={q.name}&limit=1000")).expect(200)["jobs"])
    canary = Queue(q.api, f"{q.name}-later", q.url)
    (await put(canary, every_seconds=1)).expect(201)
    await ledger(canary, 2)  # by then the one that is gone would have had its time
    (await q.call("DELETE", f"/v1/schedules/{canary.name}")).expect(204)
    assert len((await q.call("GET", f"/v1/jobs?schedule_id={q.name}&limit=1000")).expect(200)["jobs"]) == count


async def test_a_version_guards_a_replace_and_a_repeat_changes_nothing(any_q: Queue) -> None:
    q = any_q
    first = await put(q, cron="0 3 * * *", timezone="Europe/Berlin")
    made = first.expect(201)
    assert first.headers["Etag"] == f'"{made["version"]}"'
    assert (await put(q, cron="0 3 * * *", timezone="Europe/Berlin")).expect(200)["version"] == made["version"]
    require_problem(await put_if(q, "If-Match", f'"{made["version"] - 1}"'), 412, "version")
    require_problem(await put_if(q, "If-None-Match", "*"), 412, "version")
    for other in ("new", '"nope"', 'W/"1"', f'"{made["version"] - 1}", "x"'):
        require_problem(await put_if(q, "If-Match", other), 412, "version")
    require_problem(await put_if(q, "If-None-Match", '"1"'), 422, "invalid")
    changed = (await put_if(q, "If-Match", f'"x", "{made["version"]}"')).expect(200)
    require_problem(await put_if(q, "If-Match", f'"{made["version"]}"'), 412, "version")
    assert (await put_if(q, "If-Match", f'W/"{changed["version"]}"')).expect(200)["version"] == changed["version"]
    assert changed["version"] > made["version"]
    assert (changed["cron"], changed["timezone"], changed["created_at"]) == ("0 4 * * *", "UTC", made["created_at"])
    listed = (await q.call("GET", "/v1/schedules?limit=1000")).expect(200)["schedules"]
    assert q.name in [schedule["id"] for schedule in listed]


async def test_a_pause_lets_triggers_go_by_and_says_so(any_q: Queue) -> None:
    q = any_q
    (await put(q, every_seconds=1, paused=True, missed="all", grace_seconds=0)).expect(201)
    lines = await ledger(q, 2)
    assert {line["outcome"] for line in lines} == {"paused"}
    assert (await post(q, "resume?missed=true")).expect(200)["paused"] is False
    made_up = await ledger(q, len(lines) + 1)
    assert {line["outcome"] for line in made_up} == {"ran"}
    assert (await post(q, "pause")).expect(200)["paused"] is True
    assert (await post(q, "pause")).expect(200)["paused"] is True
    again = await ledger(q, len(made_up) + 2)
    assert again[-1]["outcome"] == "paused"
    assert (await post(q, "resume")).expect(200)["paused"] is False
    (await q.call("DELETE", f"/v1/schedules/{q.name}")).expect(204)


async def test_overlap_is_kept(any_q: Queue) -> None:
    q = any_q
    (await put(q, every_seconds=1, overlap="queue")).expect(201)
    first = await q.claim_one()
    lines = await ledger(q, 4)
    assert [line["outcome"] for line in lines[:3]] == ["ran", "ran", "skipped_overlap"]
    assert lines[1]["state"] == "pending"
    assert lines[2]["why"]
    await q.end("complete", first)
    assert (await q.claim_one())["id"] == lines[1]["job_id"]
    (await q.call("DELETE", f"/v1/schedules/{q.name}")).expect(204)


async def test_a_job_by_hand_and_triggers_after_the_fact(any_q: Queue) -> None:
    q = any_q
    (await put(q, cron="0 * * * *", job={"then": {"task": "after", "queue": q.name}})).expect(201)
    job = (await post(q, "trigger")).expect(201)
    assert (job["schedule_id"], job["nominal_time"], job["state"]) == (q.name, None, "ready")
    claimed = await q.claim_one()
    assert claimed["id"] == job["id"]
    await q.end("complete", claimed)
    follower = await q.claim_one()
    assert (follower["task"], follower["id"]) == ("after", f"{job['id']}.then")
    await q.end("complete", follower)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    window = {"from": text(now - timedelta(hours=3)), "to": text(now - timedelta(minutes=1))}
    assert (await post(q, "backfill", window)).expect(200) == {"count": 3, "triggers": 3, "more": False}
    assert (await post(q, "backfill", window)).expect(200) == {"count": 0, "triggers": 3, "more": False}
    lines = (await get(q, f"/triggers?from={window['from']}&to={window['to']}"))["triggers"]
    assert [(line["outcome"], line["why"]) for line in lines] == [("ran", "backfill")] * 3
    jobs = await q.claim(max_jobs=10)
    assert [job["id"] for job in jobs] == [line["job_id"] for line in lines]
    future = {"from": text(now + timedelta(hours=1)), "to": FAR}
    require_problem(await post(q, "backfill", future), 422, "invalid")
    late = {"from": text(now), "to": FAR}  # what has not come is no part of it
    assert (await post(q, "backfill", late)).expect(200)["triggers"] <= 2


async def test_a_backfill_of_more_than_may_be_goes_on_by_the_same_call_again(any_q: Queue) -> None:
    q = any_q
    (await put(q, cron="30 2 * * *", timezone="Europe/Berlin", dst_gap="skip", max_catch_up=2)).expect(201)
    window = {"from": "2026-03-27T00:00:00Z", "to": "2026-04-01T00:00:00Z"}
    said = [(await post(q, "backfill", window)).expect(200) for _ in range(3)]
    assert [(answer["count"], answer["more"]) for answer in said] == [(2, True), (2, False), (0, False)]
    lines = (await get(q, f"/triggers?from={window['from']}&to={window['to']}"))["triggers"]
    assert [line["outcome"] for line in lines] == ["ran", "ran", "dst_skipped", "ran", "ran"]
    assert len({line["nominal_time"] for line in lines}) == 5
    times = (await get(q, f"/next?n=3&from={window['from']}"))["times"]
    assert [time["nominal_time"][:10] for time in times] == ["2026-03-27", "2026-03-28", "2026-03-30"]


async def test_the_ledger_comes_in_pages(any_q: Queue) -> None:
    q = any_q
    (await put(q, cron="0 * * * *")).expect(201)
    window = {"from": "2026-11-01T00:00:00Z", "to": "2026-11-01T05:00:00Z"}
    assert (await post(q, "backfill", window)).expect(200)["count"] == 5
    pages, cursor = [], ""
    while cursor is not None:
        page = await get(q, f"/triggers?from={window['from']}&to={window['to']}&limit=2{cursor}")
        pages.append([line["nominal_time"][11:13] for line in page["triggers"]])
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert pages == [["00", "01"], ["02", "03"], ["04"]]


async def test_a_preview_is_for_the_id_that_it_names(any_q: Queue) -> None:
    q = any_q
    rule = {"cron": "H H * * *", "from": "2027-01-01T00:00:00Z", "n": 1}
    (await put(q, cron="H H * * *")).expect(201)
    (saved,) = (await get(q, f"/next?n=1&from={rule['from']}"))["times"]
    shown = [
        (await q.call("POST", "/v1/schedules/preview", rule | {"id": name})).expect(200)["times"][0]
        for name in (q.name, "another", "a third", "a fourth")
    ]
    assert shown[0] == saved
    assert len({time["nominal_time"] for time in shown}) > 1


async def test_a_job_by_hand_whose_unique_key_is_held_is_the_one_that_has_it(any_q: Queue) -> None:
    q = any_q
    (await put(q, cron="0 * * * *", job={"unique_key": "one"})).expect(201)
    first = (await post(q, "trigger", {})).expect(201)
    assert (await post(q, "trigger")).expect(200)["id"] == first["id"]
    require_problem(await put_if(q, "If-Match", '"0"'), 412, "version")
    (await q.call("DELETE", f"/v1/schedules/{q.name}")).expect(204)
    require_problem(await put_if(q, "If-Match", "*"), 412, "version")
    for verb in ("pause", "resume", "trigger"):
        require_problem(await post(q, verb), 404, "not_found")


async def test_a_job_by_hand_of_the_callers_own_id_is_made_once(any_q: Queue) -> None:
    q = any_q
    (await put(q, cron="0 * * * *")).expect(201)
    first = (await post(q, "trigger", {"id": "today"})).expect(201)
    assert first["id"] == f"{q.name}@manual-today"
    assert (await post(q, "trigger", {"id": "today"})).expect(200)["id"] == first["id"]
    assert (await post(q, "trigger", {"id": "other"})).expect(201)["id"] != first["id"]
    for wrong in ("", "a b", "a@b", "x" * 61, "a\n", 1):
        require_problem(await post(q, "trigger", {"id": wrong}), 422, "invalid")
    require_problem(await post(q, "trigger", {"ID": "today"}), 422, "invalid")


async def test_what_comes_next_is_shown_with_what_is_odd(any_q: Queue) -> None:
    q = any_q
    spec = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    (await put(q, **spec)).expect(201)
    query = "?n=3&from=2027-03-27T00:00:00Z"
    times = (await get(q, f"/next{query}"))["times"]
    assert [time["nominal_time"] for time in times] == [
        "2027-03-27T01:30:00.000Z",
        "2027-03-28T01:00:00.000Z",
        "2027-03-29T00:30:00.000Z",
    ]
    assert [bool(time.get("note")) for time in times] == [False, True, False]
    body = spec | {"n": 3, "from": "2027-03-27T00:00:00Z"}
    assert (await q.call("POST", "/v1/schedules/preview", body)).expect(200)["times"] == times


async def test_a_preview_shows_what_a_put_would_say(any_q: Queue) -> None:
    q = any_q
    preview = "/v1/schedules/preview"
    spec = {"cron": "0 4 * * *", "job": {"task": "t", "queue": q.name}}
    in_query = (await q.call("POST", f"{preview}?n=2&from=2027-01-01T00:00:00Z", spec)).expect(200)["times"]
    in_body = (await q.call("POST", preview, spec | {"n": 2, "from": "2027-01-01T00:00:00Z"})).expect(200)["times"]
    assert in_query == in_body
    assert [time["local_time"] for time in in_body] == [
        "2027-01-01T04:00:00.000+00:00",
        "2027-01-02T04:00:00.000+00:00",
    ]
    assert len((await q.call("POST", preview, {"cron": "0 4 * * *"})).expect(200)["times"]) == 10
    past = {"ends_at": "2020-01-01T00:00:00Z", "every_seconds": 3600}
    require_problem(await q.call("POST", preview, past), 422, "invalid")
    assert len((await q.call("POST", f"{preview}?from=2019-12-31T23:00:00Z", past)).expect(200)["times"]) == 2
    for keys, pointer in (
        ({"overlap": "queue", "job": {"task": "t", "unique_key": "k"}}, "/job/unique_key"),
        ({"job": {"task": "t", "expires_at": "2020-01-01T00:00:00Z"}}, "/job/expires_at"),
        ({"job": {"task": "t", "payload": "x" * 300_000}}, "/job/payload"),
        ({"id": "x" * 121}, "/id"),
        ({"n": 0}, "/n"),
        ({"timezone": "Mars/Olympus"}, "/timezone"),
    ):
        refused = await q.call("POST", preview, {"cron": "0 4 * * *"} | keys)
        assert (refused.status, refused.body["errors"][0]["pointer"]) in ((422, pointer), (413, pointer))


async def test_a_template_may_have_a_last_moment(any_q: Queue, cluster: Cluster) -> None:
    q = any_q
    soon = datetime.now(UTC) + timedelta(seconds=2.5)
    made = (await put(q, every_seconds=1, job={"expires_at": text(soon)})).expect(201)
    assert made["job"]["expires_at"] == text(soon)
    lines = await ledger(q, 4)
    assert [line["outcome"] for line in lines][-1] == "dropped_limit"
    assert "expires_at" in lines[-1]["why"]
    assert {line["outcome"] for line in lines if line["nominal_time"] >= text(soon)} == {"dropped_limit"}
    assert (await q.read(lines[0]["job_id"]))["expires_at"] == text(soon)
    leader = await cluster.leader()
    assert await metric(cluster, leader, 'horae_triggers_total{outcome="dropped_limit"}') >= 1
    assert await metric(cluster, leader, 'horae_triggers_total{outcome="ran"}') >= 1
    (await q.call("DELETE", f"/v1/schedules/{q.name}")).expect(204)
    refused = await put(q, every_seconds=1, job={"expires_at": text(soon)})
    require_problem(refused, 422, "invalid")
    assert refused.body["errors"][0]["pointer"] == "/job/expires_at"


@pytest.mark.parametrize(
    ("keys", "pointer"),
    [
        ({}, "/cron"),
        ({"cron": "* * * * *", "every_seconds": 5}, "/cron"),
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"every_seconds": 0.5}, "/every_seconds"),
        ({"cron": "@hourly", "timezone": "Mars/Olympus"}, "/timezone"),
        ({"cron": "@hourly", "missed": "all", "overlap": "skip"}, "/overlap"),
        ({"cron": "@hourly", "missed": "sometimes"}, "/missed"),
        ({"cron": "@hourly", "starts_at": FAR, "ends_at": "2199-01-01T00:00:00Z"}, "/ends_at"),
        ({"cron": "@hourly", "job": {"id": "x"}}, "/job/id"),
        ({"cron": "@hourly", "job": {"run_at": FAR}}, "/job/run_at"),
        ({"cron": "@hourly", "job": {"priority": 101}}, "/job/priority"),
        ({"cron": "@hourly", "overlap": "cancel", "job": {"unique_key": "k"}}, "/job/unique_key"),
        ({"cron": "@hourly", "ends_at": "2020-01-01T00:00:00Z"}, "/ends_at"),
        ({"cron": "@hourly", "jitter": 3}, "/jitter"),
    ],
)
async def test_what_could_never_work_is_refused_by_name(q: Queue, keys: dict[str, Any], pointer: str) -> None:
    refused = await put(q, **keys)
    require_problem(refused, 422, "invalid")
    assert re.sub("/errors.*", "", refused.body["errors"][0]["pointer"]) == pointer
    require_problem(await q.call("GET", f"/v1/schedules/{q.name}"), 404, "not_found")
