"""The calls on jobs over a real socket: what reaches the service, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from tests.helpers.fake_service import job_view
from tests.unit.http.conftest import Node

from horae import wire
from horae_node.service import Refused

PACKED = "application/msgpack"


async def test_a_new_job_is_201_with_its_location_and_an_old_one_200(node: Node) -> None:
    first = await node.send("POST", "/v1/jobs", {"task": "t", "id": "a/b ä", "payload": {"n": [1, 2.5, None, "x"]}})
    assert first.status == 201
    assert first.headers["Location"] == "/v1/jobs/a%2Fb%20%C3%A4"
    assert first.headers["Content-Type"] == "application/json"
    assert first.headers["Horae-Node"] == "n1"
    assert first.headers["Horae-Leader"] == "http://n1:7070"
    assert "Date" in first.headers
    assert first.json["payload"] == {"n": [1, 2.5, None, "x"]}
    again = await node.send("POST", "/v1/jobs", {"task": "t", "id": "a/b ä"})
    assert again.status == 200
    assert "Location" not in again.headers
    found = await node.send("GET", first.headers["Location"])
    assert found.status == 200
    assert node.service.last() == ("a/b ä", 0, False)


async def test_the_service_gets_compact_json_whatever_the_encoding(node: Node) -> None:
    await node.send("POST", "/v1/jobs", b'{"task": "t", "payload": { "a" : [ 1, "\\u00e9" ] }}')
    assert bytes(node.service.last().payload) == '{"a":[1,"é"]}'.encode()
    packed = msgspec.msgpack.encode({"task": "t", "payload": {"a": [1, "é"]}})
    got = await node.send("POST", "/v1/jobs", packed, Content_Type=PACKED)
    assert bytes(node.service.last().payload) == '{"a":[1,"é"]}'.encode()
    assert got.headers["Content-Type"] == PACKED
    assert msgspec.msgpack.decode(got.body)["payload"] == {"a": [1, "é"]}


async def test_a_payload_left_out_is_null_in_both_encodings(node: Node) -> None:
    await node.send("POST", "/v1/jobs", {"task": "t"})
    assert bytes(node.service.last().payload) == b"null"
    got = await node.send("POST", "/v1/jobs", msgspec.msgpack.encode({"task": "t"}), Content_Type=PACKED)
    assert bytes(node.service.last().payload) == b"null"
    assert msgspec.msgpack.decode(got.body)["payload"] is None


async def test_accept_decides_over_the_encoding_of_the_request(node: Node) -> None:
    got = await node.send("POST", "/v1/jobs", {"task": "t"}, Accept=PACKED)
    assert msgspec.msgpack.decode(got.body)["task"] == "t"
    body = msgspec.msgpack.encode({"task": "t"})
    got = await node.send("POST", "/v1/jobs", body, Content_Type=PACKED, Accept="application/json")
    assert got.json["task"] == "t"


async def test_reading_waits_and_reads_locally_when_asked(node: Node) -> None:
    node.service.stored["j"] = job_view("j")
    await node.send("GET", "/v1/jobs/j?wait_seconds=1.5")
    assert node.service.last() == ("j", 1500, False)
    got = await node.send("GET", "/v1/jobs/j?consistency=local")
    assert node.service.last() == ("j", 0, True)
    assert got.headers["Horae-Applied-Index"] == "42"
    assert got.headers["Horae-Staleness-Seconds"] == "1.500"


async def test_bulk_calls_hand_on_their_filter_and_answer_a_count_and_a_cursor(node: Node) -> None:
    got = await node.send("POST", "/v1/jobs/cancel", {"filter": {"queue": "mail", "tag": "a:b"}, "limit": 7})
    assert (got.status, got.json) == (200, {"count": 2, "next_cursor": "more"})
    sent = node.service.last()
    assert (sent.filter.queue, sent.filter.tag, sent.filter.state, sent.limit, sent.cursor) == (
        *("mail", "a:b", None, 7, None),
    )
    got = await node.send("POST", "/v1/jobs/requeue", {"filter": {"task": "t"}, "cursor": "x"})
    assert (got.status, got.json) == (200, {"count": 3, "next_cursor": None})
    sent = node.service.last()
    assert (sent.filter.task, sent.filter.state, sent.limit, sent.cursor) == ("t", "dead", 1000, "x")


@pytest.mark.parametrize(
    ("call", "body", "pointer"),
    [
        ("cancel", {}, "/filter"),
        ("cancel", {"filter": {"state": "dead"}}, "/filter/state"),
        ("requeue", {"filter": {"state": "succeeded"}}, "/filter/state"),
        ("requeue", {"filter": {"tag": "nocolon"}}, "/filter/tag"),
        ("requeue", {"filter": {"queue": "a/b"}}, "/filter/queue"),
        ("requeue", {"filter": {"tasks": "t"}}, "/filter/tasks"),
        ("requeue", {"filter": {}, "limit": 0}, "/limit"),
        ("requeue", {"filter": {}, "limit": 1001}, "/limit"),
    ],
)
async def test_a_wrong_filter_is_refused_by_name(node: Node, call: str, body: object, pointer: str) -> None:
    got = await node.send("POST", f"/v1/jobs/{call}", body)
    assert (got.status, [error["pointer"] for error in got.json["errors"]]) == (422, [pointer])
    assert not node.service.calls


async def test_a_queue_is_read_and_changed(node: Node) -> None:
    got = await node.send("GET", "/v1/queues/mail?consistency=local")
    assert (got.status, got.json["name"]) == (200, "mail")
    assert "Horae-Applied-Index" in got.headers
    got = await node.send("PATCH", "/v1/queues/mail", {"paused": True, "max_running": None, "rate_per_second": 2.5})
    assert (got.status, got.json["name"]) == (200, "mail")
    name, patch = node.service.last()
    assert (name, patch.paused, patch.max_running, patch.rate_per_second) == ("mail", True, None, 2.5)
    assert patch.burst is patch.max_depth is patch.max_running_per_key is UNSET


@pytest.mark.parametrize(
    ("name", "patch", "pointer"),
    [
        ("mail", {"paused": 1}, "/paused"),
        ("mail", {"max_running": 0}, "/max_running"),
        ("mail", {"max_running": 1.5}, "/max_running"),
        ("mail", {"max_running_per_key": -1}, "/max_running_per_key"),
        ("mail", {"rate_per_second": 0}, "/rate_per_second"),
        ("mail", {"rate_per_second": 1e9}, "/rate_per_second"),
        ("mail", {"burst": 0}, "/burst"),
        ("mail", {"max_depth": -1}, "/max_depth"),
        ("mail", {"pause": True}, "/pause"),
        ("a%20b", {"paused": True}, "/id"),
        ("x" * 101, {"paused": True}, "/id"),
    ],
)
async def test_a_setting_that_cannot_be_is_named(node: Node, name: str, patch: dict[str, Any], pointer: str) -> None:
    got = await node.send("PATCH", f"/v1/queues/{name}", patch)
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", [pointer])


async def test_queues_are_listed(node: Node) -> None:
    got = await node.send("GET", "/v1/queues?limit=3&cursor=c&consistency=local")
    assert node.service.last() == (3, "c", None, True)
    assert "Horae-Applied-Index" in got.headers
    depth = {"pending": 0, "ready": 2, "running": 0, "succeeded": 0, "dead": 1, "cancelled": 0, "expired": 0}
    queue = {"name": "mail", "depth": depth, "oldest_ready_seconds": 1.5, "paused": False, "max_running": None}
    queue |= {"max_running_per_key": 1, "rate_per_second": None, "burst": None, "max_depth": None, "rates": None}
    assert got.json == {"queues": [queue], "next_cursor": None}


async def test_a_job_may_be_called_as_a_bulk_call_is(node: Node) -> None:
    node.service.stored["cancel"] = job_view("cancel")
    assert (await node.send("GET", "/v1/jobs/cancel")).json["id"] == "cancel"
    assert (await node.send("POST", "/v1/jobs/cancel/cancel")).json["id"] == "cancel"


async def test_listing_hands_on_its_filters(node: Node) -> None:
    node.service.stored["j"] = job_view("j")
    asked = "/v1/jobs?queue=mail&state=dead&task=t&tag=a:b&schedule_id=s&limit=7&cursor=abc"
    got = await node.send("GET", asked)
    assert node.service.last() == wire.JobsQuery(
        queue="mail", state="dead", task="t", tag="a:b", schedule_id="s", limit=7, cursor="abc"
    )
    assert [job["id"] for job in got.json["jobs"]] == ["j"]
    assert got.json["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("limit=-1", "/limit"),
        ("limit=x", "/limit"),
        ("limit=1e999", "/limit"),
        ("state=done", "/state"),
        ("queue=a%2Fb", "/queue"),
        ("queue=a%0A", "/queue"),
        ("consistency=eventual", "/consistency"),
        ("limits=5", "/limits"),
        ("limit=5&limit=6", "/limit"),
        ("a%2Fb~=1", "/a~1b~0"),
    ],
)
async def test_a_wrong_query_is_named(node: Node, query: str, pointer: str) -> None:
    got = await node.send("GET", f"/v1/jobs?{query}")
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", [pointer])
    assert not node.service.calls


@pytest.mark.parametrize("query", ["wait_seconds=61", "wait_seconds=nan", "wait_seconds=inf", "wait_seconds=-1"])
async def test_a_wait_that_cannot_be_is_refused(node: Node, query: str) -> None:
    got = await node.send("GET", f"/v1/jobs/j?{query}")
    assert (got.status, got.pointers) == (422, ["/wait_seconds"])


async def test_a_query_that_is_none_is_malformed(node: Node) -> None:
    for query in ("=%FF", "a=%FF", "novalue"):
        got = await node.send("GET", f"/v1/jobs?{query}")
        assert (got.status, got.json["code"]) == (400, "malformed"), query
    assert (await node.send("POST", "/v1/jobs?dry=1", {"task": "t"})).pointers == ["/dry"]


@pytest.mark.parametrize("action", ["cancel", "requeue", "run_now"])
async def test_a_change_by_id_takes_no_body_or_an_empty_one(node: Node, action: str) -> None:
    node.service.stored["a/b"] = job_view("a/b")
    for body in (None, {}):
        got = await node.send("POST", f"/v1/jobs/a%2Fb/{action}", body)
        assert (got.status, got.json["id"]) == (200, "a/b")
        assert node.service.calls[-1] == (action, "a/b")
    assert (await node.send("POST", f"/v1/jobs/a%2Fb/{action}", {"why": 1})).pointers == ["/why"]


async def test_deleting_answers_204_and_then_404(node: Node) -> None:
    node.service.stored["j"] = job_view("j")
    gone = await node.send("DELETE", "/v1/jobs/j")
    assert (gone.status, gone.body) == (204, b"")
    assert "Content-Length" not in gone.headers
    assert (await node.send("DELETE", "/v1/jobs/j")).json["code"] == "not_found"


async def test_a_job_called_like_a_call_can_be_read(node: Node) -> None:
    node.service.stored["batch"] = job_view("batch")
    assert (await node.send("GET", "/v1/jobs/batch")).json["id"] == "batch"


async def test_a_batch_answers_each_job_in_order(node: Node) -> None:
    jobs = [{"task": "t", "id": "a"}, {"task": "refuse"}, {"task": "t", "queue": "x/y"}, {"task": "t", "id": "d"}]
    got = await node.send("POST", "/v1/jobs/batch", {"jobs": jobs})
    assert got.status == 200
    first, refused, invalid, last = got.json["results"]
    assert first["job"]["id"] == "a"
    assert (refused["error"]["code"], refused["error"]["status"]) == ("conflict", 409)
    assert refused["error"]["errors"][0]["pointer"] == "/id"
    assert (invalid["error"]["code"], invalid["error"]["errors"][0]["pointer"]) == ("invalid", "/queue")
    assert last["job"]["id"] == "d"
    assert [job.task for job in node.service.last()[0]] == ["t", "refuse", "t"]


async def test_a_packed_batch_answers_packed(node: Node) -> None:
    jobs = [{"task": "t", "payload": [1]}, {"task": ""}, {"task": "t", "payload": b"x"}]
    body = msgspec.msgpack.encode({"jobs": jobs})
    got = await node.send("POST", "/v1/jobs/batch", body, Content_Type=PACKED)
    good, empty, binary = msgspec.msgpack.decode(got.body)["results"]
    assert good["job"]["payload"] == [1]
    assert empty["error"]["errors"][0]["pointer"] == "/task"
    assert binary["error"]["errors"][0]["pointer"] == "/payload"


async def test_an_atomic_batch_is_refused_whole(node: Node) -> None:
    bad: list[tuple[dict[str, Any], int, str]] = [
        ({"task": "t", "queue": "x/y"}, 422, "/jobs/1/queue"),
        ({"task": "t", "payload": "x" * 262_144}, 413, "/jobs/1/payload"),
        ({"task": "t", "tsk": 1}, 422, "/jobs/1/tsk"),
    ]
    for job, status, pointer in bad:
        got = await node.send("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"}, job], "atomic": True})
        assert (got.status, got.pointers) == (status, [pointer])
    assert not node.service.calls
    node.service.failures = [Refused("conflict", "another job has this id", "/jobs/1/id")]
    got = await node.send("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"}], "atomic": True})
    assert (got.status, got.pointers) == (409, ["/jobs/1/id"])


async def test_a_batch_of_none_or_too_many_is_refused(node: Node) -> None:
    assert (await node.send("POST", "/v1/jobs/batch", {"jobs": []})).pointers == ["/jobs"]
    got = await node.send("POST", "/v1/jobs/batch", {"jobs": [{"task": "t"}] * 1001})
    assert (got.status, got.pointers) == (422, ["/jobs"])
    only_bad = await node.send("POST", "/v1/jobs/batch", {"jobs": [{}]})
    assert only_bad.json["results"][0]["error"]["errors"][0]["pointer"] == "/task"
    assert not node.service.calls


async def test_workers_are_listed(node: Node) -> None:
    got = await node.send("GET", "/v1/workers?limit=3&cursor=c")
    assert node.service.last() == (3, "c", None)
    shown = {"worker": "w", "queues": ["mail"], "running": 2, "last_seen_at": "2026-11-29T12:00:00.000Z"}
    assert got.json == {"workers": [shown], "next_cursor": "more"}
