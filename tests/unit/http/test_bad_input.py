"""Bad input of every kind is refused at the edge, by name, and never reaches the service."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import msgspec
import pytest
from tests.unit.http.conftest import Node

from horae import wire
from horae_http.bodies import NEW_BYTES_MAX

PACKED = "application/msgpack"


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"task": None}, "/task"),
        ({"task": ""}, "/task"),
        ({"task": "t" * 201}, "/task"),
        ({"task": 5}, "/task"),
        ({"queue": "a/b"}, "/queue"),
        ({"queue": "a\u0000b"}, "/queue"),
        ({"queue": "a\n"}, "/queue"),
        ({"queue": ""}, "/queue"),
        ({"queue": "q" * 101}, "/queue"),
        ({"queue": "schön"}, "/queue"),
        ({"queue": None}, "/queue"),
        ({"id": ""}, "/id"),
        ({"id": "."}, "/id"),
        ({"id": ".."}, "/id"),
        ({"id": "a\n"}, "/id"),
        ({"id": "a\u0000"}, "/id"),
        ({"id": "i" * 201}, "/id"),
        ({"run_at": "2026-11-29T12:00:00"}, "/run_at"),
        ({"run_at": "2026-11-29 noon"}, "/run_at"),
        ({"run_at": "2026-02-30T12:00:00Z"}, "/run_at"),
        ({"run_at": 1_700_000_000}, "/run_at"),
        ({"run_at": "1969-12-31T23:59:59Z"}, "/run_at"),
        ({"run_at": "9999-12-31T23:59:59-01:00"}, "/run_at"),
        ({"run_at": "0001-01-01T00:00:00+14:00"}, "/run_at"),
        ({"run_at": "9999-12-31T23:59:59.9995Z"}, "/run_at"),
        ({"expires_at": "9999-12-31T23:59:59.999001Z"}, "/expires_at"),
        ({"run_at": "2027-01-01T00:00:00Z", "expires_at": "2027-01-01T01:00:00+01:00"}, "/expires_at"),
        ({"delay_seconds": 60, "ttl_seconds": 60}, "/ttl_seconds"),
        ({"delay_seconds": 60, "ttl_seconds": 60.0004}, "/ttl_seconds"),
        ({"run_at": "2026-11-29T12:00:00.0001Z", "expires_at": "2026-11-29T12:00:00.0009Z"}, "/expires_at"),
        ({"then": {"task": "t", "ttl_seconds": 0.0004}}, "/then/ttl_seconds"),
        ({"then": {"task": "t", "then": {"task": "t", "ttl_seconds": 0.0004}}}, "/then/then/ttl_seconds"),
        ({"expires_at": "1969-12-31T23:59:59Z"}, "/expires_at"),
        ({"run_at": "2026-11-29T12:00:00Z", "delay_seconds": 1}, "/delay_seconds"),
        ({"expires_at": "2026-11-29T12:00:00Z", "ttl_seconds": 1}, "/ttl_seconds"),
        ({"delay_seconds": -0.001}, "/delay_seconds"),
        ({"delay_seconds": 1e300}, "/delay_seconds"),
        ({"delay_seconds": "5"}, "/delay_seconds"),
        ({"delay_seconds": 10**400}, "/delay_seconds"),
        ({"delay_seconds": True}, "/delay_seconds"),
        ({"priority": 101}, "/priority"),
        ({"priority": -101}, "/priority"),
        ({"priority": 1.5}, "/priority"),
        ({"priority": True}, "/priority"),
        ({"priority": 2**64}, "/priority"),
        ({"max_attempts": 0}, "/max_attempts"),
        ({"max_attempts": 101}, "/max_attempts"),
        ({"max_lost": -1}, "/max_lost"),
        ({"retry": {"factor": 0.5}}, "/retry/factor"),
        ({"retry": {"jitter": 2}}, "/retry/jitter"),
        ({"retry": {"initial_secs": 2}}, "/retry/initial_secs"),
        ({"retry": []}, "/retry"),
        ({"lease_seconds": 0.5}, "/lease_seconds"),
        ({"timeout_seconds": 0}, "/timeout_seconds"),
        ({"ttl_seconds": -1}, "/ttl_seconds"),
        ({"retention_seconds": 1e12}, "/retention_seconds"),
        ({"unique_key": ""}, "/unique_key"),
        ({"concurrency_key": ""}, "/concurrency_key"),
        ({"tags": {f"k{n}": "v" for n in range(17)}}, "/tags"),
        ({"tags": {"k": 1}}, "/tags"),
        ({"tags": {"k" * 101: "v"}}, "/tags"),
        ({"tags": {"a:b": "v"}}, "/tags"),
        ({"tags": {"": "v"}}, "/tags"),
        ({"tags": {"k": "v" * 201}}, "/tags"),
        ({"tags": {"k": "a\u0000"}}, "/tags"),
        ({"tags": ["k"]}, "/tags"),
        ({"after": "a"}, "/after"),
        ({"after": ["a", "a"]}, "/after/1"),
        ({"after": ["a", ""]}, "/after/1"),
        ({"after": [f"j{n}" for n in range(101)]}, "/after"),
        ({"id": "a", "after": ["b", "a"]}, "/after/1"),
        ({"on_failure": "run"}, "/on_failure"),
        ({"after": ["a"], "on_failure": "retry"}, "/on_failure"),
        ({"then": {}}, "/then/task"),
        ({"then": {"task": "t", "tsak": 1}}, "/then/tsak"),
        ({"then": {"task": "t", "run_at": "2027-01-01T00:00:00Z"}}, "/then/run_at"),
        ({"then": {"task": "t", "expires_at": "2027-01-01T00:00:00Z"}}, "/then/expires_at"),
        ({"then": {"task": "t", "after": ["a"]}}, "/then/after"),
        ({"then": {"task": "t", "ttl_seconds": 0}}, "/then/ttl_seconds"),
        ({"then": {"task": "t", "then": {"task": "t", "queue": "a/b"}}}, "/then/then/queue"),
        ({"then": {"task": "t", "then": {"task": "t", "after": ["a"]}}}, "/then/then/after"),
        ({"then": {"task": "t", "payload": 10**400}}, "/then/payload"),
        ({"id": "a", "then": {"task": "t", "id": "a"}}, "/then"),
        ({"id": "a", "then": {"task": "t", "then": {"task": "t", "id": "a"}}}, "/then"),
        ({"then": {"task": "t", "id": "b", "then": {"task": "t", "id": "b"}}}, "/then/then"),
        ({"Queue": "a"}, "/Queue"),
        ({"a/b~c": 1}, "/a~1b~0c"),
    ],
)
async def test_a_wrong_field_is_named(node: Node, changes: dict[str, Any], pointer: str) -> None:
    got = await node.send("POST", "/v1/jobs", {"task": "t"} | changes)
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", [pointer])
    assert got.headers["Content-Type"] == "application/problem+json"
    assert got.json["type"] == "urn:horae:problem:invalid"
    assert not node.service.calls


async def test_a_plus_that_a_query_made_a_blank_is_told(node: Node) -> None:
    got = await node.send("GET", "/v1/jobs?created_from=2026-01-01T00:00:00+02:00")
    assert (got.status, got.pointers) == (422, ["/created_from"])
    assert "a `+` in a query is read as a blank, so write `%2B`, or use `Z`" in got.json["detail"]
    assert (await node.send("GET", "/v1/jobs?created_from=2026-01-01T00:00:00%2B02:00")).status == 200
    got = await node.send("GET", "/v1/jobs?created_from=soon+enough")
    assert "%2B" not in got.json["detail"]


async def test_no_fix_is_offered_that_is_refused_in_turn(node: Node) -> None:
    """What follows a job cannot wait for others."""
    got = await node.send("POST", "/v1/jobs", {"task": "t", "then": {"task": "t", "on_failure": "run"}})
    assert got.json["detail"] == "/then/on_failure has no meaning without `after`: leave it out"
    got = await node.send(
        "POST", "/v1/jobs", {"task": "t", "then": {"task": "t", "delay_seconds": 2, "ttl_seconds": 1}}
    )
    assert got.pointers == ["/then/ttl_seconds"]
    assert "submit" not in got.json["detail"]


async def test_jobs_follow_one_another_ten_times_at_most(node: Node) -> None:
    ten: dict[str, Any] = {"task": "t"}
    for _ in range(10):
        ten = {"task": "t", "then": ten}
    assert (await node.send("POST", "/v1/jobs", ten)).status == 201
    got = await node.send("POST", "/v1/jobs", {"task": "t", "then": ten})
    assert (got.status, got.pointers) == (422, ["/then"])
    endless = b'{"task":"t","then":' * 20_000 + b"null" + b"}" * 20_000
    assert (await node.send("POST", "/v1/jobs", endless)).status in (400, 422)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"task":"t",}',
        b'{"task":"t"} x',
        b"\xef\xbb\xbf{}",
        b'{"task":"\xff"}',
        b'{"task":"t","payload":"\xff"}',
        b'{"task":"t","payload":"\xed\xa0\x80"}',
        b'{"task":"\\ud800"}',
        b'{"task":"t","payload":"\\ud800"}',
        b'{"task":"t","payload":"\\udc00\\ud800 and more"}',
        b'{"task":"t","payload":{"a":01}}',
        b'{"task":"t","payload":NaN}',
        b'{"task":"t","delay_seconds":NaN}',
        b'{"task":"t","payload":"a\nb"}',
        b"{'task':'t'}",
        b"[" * 100_000,
        b'{"task":"t","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
async def test_a_body_that_is_no_json_is_malformed(node: Node, body: bytes) -> None:
    got = await node.send("POST", "/v1/jobs", body)
    assert got.status in (400, 422)
    assert got.json["code"] == ("malformed" if got.status == 400 else "invalid")
    assert not node.service.calls


@pytest.mark.parametrize("body", [b"[]", b"5", b"null", b'"x"', b"true"])
async def test_a_body_that_is_no_object_is_invalid(node: Node, body: bytes) -> None:
    got = await node.send("POST", "/v1/jobs", body)
    assert (got.status, got.pointers) == (422, [""])


@pytest.mark.parametrize(
    ("payload", "status", "code"),
    [
        (b"9223372036854775808", 201, None),
        (b"18446744073709551615", 201, None),
        (b"18446744073709551616", 422, "invalid"),
        (b"-9223372036854775809", 422, "invalid"),
        (b"9" * 5000, 422, "invalid"),
        (b"[1e999]", 422, "invalid"),
        (b'"\\u0000"', 201, None),
        (b"[" * 100 + b"]" * 100, 201, None),
        (b"[" * 101 + b"]" * 101, 422, "invalid"),
        (b'{"a":' * 100 + b"[]" + b"}" * 100, 422, "invalid"),
        (b"[" + b'"[{[{[{",' * 200 + b"0]", 201, None),
        (b"[" + b"[],{}," * 200 + b"0]", 201, None),
        (b'"' + b"x" * (wire.PAYLOAD_BYTES_MAX - 2) + b'"', 201, None),
        (b'"' + b"x" * (wire.PAYLOAD_BYTES_MAX - 1) + b'"', 413, "too_large"),
        (b"[" + b" " * wire.PAYLOAD_BYTES_MAX + b"]", 201, None),
    ],
)
async def test_the_bounds_of_a_payload(node: Node, payload: bytes, status: int, code: str | None) -> None:
    got = await node.send("POST", "/v1/jobs", b'{"task":"t","payload":' + payload + b"}")
    assert got.status == status
    assert got.json.get("code") == code
    assert bool(node.service.calls) == (status == 201)
    if code is not None:
        assert got.pointers == ["/payload"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (msgspec.msgpack.encode({"task": "t", "delay_seconds": float("nan")}), "/delay_seconds"),
        (msgspec.msgpack.encode({"task": "t", "delay_seconds": float("inf")}), "/delay_seconds"),
        (msgspec.msgpack.encode({"task": "t", "delay_seconds": float("-inf")}), "/delay_seconds"),
        (msgspec.msgpack.encode({"task": b"t"}), "/task"),
        (msgspec.msgpack.encode({"task": "t", "payload": float("nan")}), "/payload"),
        (msgspec.msgpack.encode({"task": "t", "payload": [float("inf")]}), "/payload"),
        (msgspec.msgpack.encode({"task": "t", "payload": b"\xff"}), "/payload"),
        (msgspec.msgpack.encode({"task": "t", "payload": {1: 2}}), "/payload"),
        (msgspec.msgpack.encode({"task": "t", "payload": {None: 2}}), "/payload"),
        (msgspec.msgpack.encode({"task": "t", "payload": msgspec.msgpack.Ext(4, b"a")}), "/payload"),
        (b"\x82\xa4task\xa1t\xa7payload\xd6\xff\x00\x00\x00\x01", "/payload"),
        (b"\x82\xa4task\xa1t\xa7payload\x81\x91\x01\x02", "/payload"),
        (b"\x82\xa4task\xa1t\xa7payload" + b"\x91" * 101 + b"\x01", "/payload"),
        (b"\x81\x01\x02", ""),
    ],
)
async def test_messagepack_that_json_cannot_say_is_invalid(node: Node, body: bytes, pointer: str) -> None:
    got = await node.send("POST", "/v1/jobs", body, Content_Type=PACKED)
    assert got.headers["Content-Type"] == "application/problem+json"
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", [pointer])
    assert not node.service.calls


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa4task\xa3\xed\xa0\x80",
        b"\x82\xa4task\xa1t\xa7payload\xa3\xed\xa0\x80",
        b"\x82\xa4task\xa1t\xa7payload\xa1\xff",
        b"\x82\xa4task\xa1t\xa7payload\x81\x81\x01\x02\x03",
        b"\x82\xa4task\xa1t\xa7payload\xdd\xff\xff\xff\xff",
        b"\x82\xa4task\xa1t\xa7payload" + b"\x91" * 100_000 + b"\x01",
    ],
)
async def test_messagepack_that_is_none_is_malformed(node: Node, body: bytes) -> None:
    got = await node.send("POST", "/v1/jobs", body, Content_Type=PACKED)
    assert (got.status, got.json["code"]) == (400, "malformed")
    assert not node.service.calls


async def test_the_largest_integers_of_messagepack_are_kept(node: Node) -> None:
    payload = [2**64 - 1, -(2**63), 1.5, -0.0]
    body = msgspec.msgpack.encode({"task": "t", "payload": payload})
    got = await node.send("POST", "/v1/jobs", body, Content_Type=PACKED)
    assert msgspec.msgpack.decode(got.body)["payload"] == payload


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded; charset=utf-8",
        "multipart/form-data",
        "application/json; charset=utf-16",
    ],
)
async def test_another_kind_of_body_is_415(node: Node, kind: str) -> None:
    got = await node.send("POST", "/v1/jobs", b'{"task":"t"}', Content_Type=kind)
    assert (got.status, got.json["code"]) == (415, "unsupported_media_type")
    assert not node.service.calls


async def test_plain_curl_is_json_but_a_page_of_another_site_is_not(node: Node) -> None:
    form = "application/x-www-form-urlencoded"
    assert (await node.send("POST", "/v1/jobs", b'{"task":"t"}', Content_Type=form)).status == 201
    got = await node.send("POST", "/v1/jobs", b'{"task":"t"}', Content_Type=form, Origin="https://example.com")
    assert (got.status, got.json["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=UTF-8", "APPLICATION/JSON", "application/vnd.x+json"])
async def test_json_goes_by_several_names(node: Node, kind: str) -> None:
    assert (await node.send("POST", "/v1/jobs", b'{"task":"t"}', Content_Type=kind)).status == 201


async def test_a_body_without_a_type_is_json(node: Node) -> None:
    answer = await _raw(node, b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n" + b'{"task":"t"}')
    assert answer.startswith(b"HTTP/1.1 201 Created\r\n")


async def test_a_body_over_the_limit_is_413_before_it_is_read(node: Node) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    answer = await _raw(node, head % (wire.BODY_BYTES_MAX + 1))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"too_large"' in answer


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"])
async def test_an_encoded_body_is_415(node: Node, encoding: str) -> None:
    """One cut short, its checksum never seen, or one that grows without end cannot be sent at all."""
    whole = gzip.compress(b'{"task":"t"}')
    for body in (whole, whole[:-6]):
        got = await node.send("POST", "/v1/jobs", body, Content_Encoding=encoding)
        assert (got.status, got.json["code"]) == (415, "unsupported_media_type")
    assert not node.service.calls


async def test_identity_is_no_encoding(node: Node) -> None:
    assert (await node.send("POST", "/v1/jobs", b'{"task":"t"}', Content_Encoding="identity")).status == 201


@pytest.mark.parametrize(
    ("path", "body_bytes_max"),
    [
        ("/v1/jobs", wire.BODY_BYTES_MAX),
        ("/v1/claims", wire.BODY_BYTES_MAX),
        ("/v1/jobs/j/complete", wire.BODY_BYTES_MAX),
        ("/v1/jobs/j/cancel", wire.BODY_BYTES_MAX),
        ("/v1/jobs/batch", wire.BULK_BODY_BYTES_MAX),
        ("/v1/leases/heartbeat", wire.BULK_BODY_BYTES_MAX),
        ("/v1/leases/complete", wire.BULK_BODY_BYTES_MAX),
    ],
)
async def test_each_call_has_its_limit_by_length_and_in_chunks(node: Node, path: str, body_bytes_max: int) -> None:
    for body, code in [(b" " * (body_bytes_max - 1), "malformed"), (b" " * (body_bytes_max + 1), "too_large")]:
        assert (await node.send("POST", path, body)).json["code"] == code
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (path.encode(), len(body))
        assert f'"code":"{code}"'.encode() in await _raw(node, head + body + b"\r\n0\r\n\r\n")
    assert not node.service.calls


async def test_too_many_large_bodies_at_once_are_shed(node: Node) -> None:
    bodies = node.app.bodies
    with bodies.hold() as hold:
        hold.take(NEW_BYTES_MAX - 100_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
        # What comes at once is not held: so a part of it, and the rest never.
        writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 250000\r\n\r\n" + b" " * 150_000)
        answer = await _answer(reader)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"Retry-After: 1\r\n" in answer
        writer.close()
        assert (await node.send("POST", "/v1/jobs", {"task": "t"})).status == 201
    assert (await node.send("POST", "/v1/jobs", {"task": "t", "payload": "x" * 250_000})).status == 201
    assert bodies.held_bytes == 0


async def test_who_expects_100_gets_it(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
    writer.write(b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b'{"task":"t"}')
    assert (await reader.readline()) == b"HTTP/1.1 201 Created\r\n"
    writer.close()


async def test_a_body_that_breaks_its_own_framing_is_400(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    _require_malformed(node, await _raw(node, head + b"zz\r\n"))
    assert not node.service.calls
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00nonsense\r\n\r\n",
        b"GET /v1/jobs/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v1/jobs/sch\xc3\xb6n HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * 9000),
        b"GET / HTTP/1.1\r\nHost: a\r\nX: %s\r\n\r\n" % (b"a" * 9000),
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(200)) + b"\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"GET / HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_what_the_parser_refuses_is_a_problem(node: Node, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    _require_malformed(node, await _raw(node, sent))
    assert not node.service.calls
    assert not caplog.records


async def test_what_the_parser_refuses_behind_a_good_request_is_a_problem(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await _answer(reader)).startswith(b"HTTP/1.1 200 ")
    writer.write(b"\xff\r\n\r\n")
    _require_malformed(node, await _answer(reader))
    assert await reader.read() == b""
    writer.close()


def _require_malformed(node: Node, answer: bytes) -> None:
    assert answer.startswith(b"HTTP/1.1 400 ")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nContent-Type: application/problem+json" in head
    assert b"\r\nHorae-Node: n1" in head
    assert b"\r\nConnection: close" in head
    assert msgspec.json.decode(body, type=wire.Problem).code == "malformed"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/jobs/", 404, "not_found"),
        ("GET", "/v1/jobs/a/b", 404, "not_found"),
        ("GET", "/v1/jobs/a/cancel/b/c/d", 404, "not_found"),
        ("GET", "/v1/jobs/none", 404, "not_found"),
        ("GET", "/v1/jobs/" + "x" * 201, 404, "not_found"),
        ("GET", "/v1/jobs/a%00b", 404, "not_found"),
        ("GET", "/v1/jobs/a%0A", 404, "not_found"),
        ("GET", "/v1/jobs/%FF", 400, "malformed"),
        ("GET", "/v1/jobs/%ED%A0%80", 400, "malformed"),
        ("PUT", "/v1/jobs", 405, "method_not_allowed"),
        ("POST", "/v1/jobs/a", 405, "method_not_allowed"),
        ("GET", "/v1/claims", 405, "method_not_allowed"),
        ("GET", "/v1/jobs/a/cancel", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/jobs", 405, "method_not_allowed"),
    ],
)
async def test_a_wrong_address_is_a_problem_too(node: Node, method: str, path: str, status: int, code: str) -> None:
    got = await node.send(method, path)
    assert (got.status, got.json["code"]) == (status, code)
    assert got.headers["Content-Type"] == "application/problem+json"
    assert "Horae-Node" in got.headers


async def test_405_says_what_is_allowed(node: Node) -> None:
    assert (await node.send("PUT", "/v1/jobs")).headers["Allow"] == "GET, POST"
    assert (await node.send("DELETE", "/v1/jobs/batch")).status == 404  # a job of that name
    assert (await node.send("PUT", "/v1/jobs/batch")).headers["Allow"] == "DELETE, GET, POST"


async def _raw(node: Node, sent: bytes) -> bytes:
    """What the server answers to these very bytes, up to the end of one answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.running.port)
    writer.write(sent)
    answer = await _answer(reader)
    writer.close()
    return answer


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0)
    return head + await reader.readexactly(length)


@pytest.mark.parametrize("shape", [wire.ScheduleRequest, wire.PreviewRequest])
async def test_a_template_whose_jobs_end_at_once_is_refused(shape: type[wire.Request]) -> None:
    """To the millisecond, in which it is kept."""
    body = {"every_seconds": 60, "job": {"task": "t", "ttl_seconds": 0.0004}}
    with pytest.raises(msgspec.ValidationError, match="ends at once"):
        msgspec.convert(body, shape)
