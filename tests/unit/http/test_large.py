"""Large bodies and large answers: refused unread, read in turns, and not kept for readers that do not read."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from tests.helpers.fake_service import FakeDelivery, FakeService, claimed_job, job_view
from tests.unit.http.conftest import Node, StartNode

from horae import wire
from horae_http import codec
from horae_http.auth import EVERYBODY
from horae_http.errors import Failure
from horae_http.jobs import BatchReader, submit_batch
from horae_http.routing import Call, read_body
from horae_http.workers import ROUTES

PACKED = "application/msgpack"
LEASES = {route.path: route for route in ROUTES}


class _Turns:
    """Counts how often others had their turn while the block ran."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> _Turns:
        self._task = asyncio.create_task(self._look())
        await asyncio.sleep(0)
        self.count = 0
        return self

    async def _look(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()


@pytest.mark.parametrize("task", ["t", "x" * 100])
@pytest.mark.parametrize("packed", [False, True])
async def test_too_many_items_are_refused_by_their_place(node: Node, packed: bool, task: str) -> None:
    """However large the body is, and in whatever encoding it came."""
    encode = msgspec.msgpack.encode if packed else msgspec.json.encode
    kind = {"Content_Type": PACKED if packed else "application/json"}
    many = {"jobs": [{"task": task}] * (wire.BATCH_JOBS_MAX + 1)}
    got = await node.send("POST", "/v1/jobs/batch", encode(many), **kind)
    assert (got.status, got.json["detail"]) == (422, f"/jobs must be a list of at most {wire.BATCH_JOBS_MAX} items")
    assert [error["pointer"] for error in got.json["errors"]] == ["/jobs"]
    beats = [{"job_id": task * 2, "lease_token": 1}] * (wire.CLAIM_JOBS_MAX + 1)
    got = await node.send("POST", "/v1/leases/heartbeat", encode({"worker": "w", "leases": beats}), **kind)
    assert (got.status, [error["pointer"] for error in got.json["errors"]]) == (422, ["/leases"])


@pytest.mark.parametrize("encode", [msgspec.json.encode, msgspec.msgpack.encode])
def test_a_value_far_over_its_limit_is_refused_undecoded(encode: Any) -> None:
    text = encode("x" * 4000)[:-1] + b"\xff"  # to decode it would be `malformed`
    with pytest.raises(Failure) as caught:
        codec.opaque(Raw(text), encode is msgspec.msgpack.encode, 900, "/payload")
    assert caught.value.code == "too_large"
    with pytest.raises(Failure) as caught:
        codec.opaque(Raw(text), encode is msgspec.msgpack.encode, 1400, "/payload")
    assert caught.value.code in ("malformed", "invalid")


async def test_escapes_and_spaces_do_not_count(node: Node) -> None:
    payload = "\\u00e9" * (wire.PAYLOAD_BYTES_MAX // 2 - 1)
    body = b'{"task":"t","payload":  "%s"   }' % payload.encode()
    assert (await node.send("POST", "/v1/jobs", body)).status == 201
    assert node.service.last().payload == Raw(msgspec.json.encode("é" * (wire.PAYLOAD_BYTES_MAX // 2 - 1)))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/leases/heartbeat", {"worker": "w", "leases": [{"job_id": "a", "lease_token": 1}] * 1001}),
        ("/v1/leases/complete", {"worker": "w", "leases": [1] * 1_000_000}),
        ("/v1/jobs/batch", {"jobs": [{"task": "t"}] * 600_000}),
    ],
)
async def test_too_many_items_are_refused_whatever_they_are(node: Node, path: str, body: Any, packed: bool) -> None:
    encode, kind = (msgspec.msgpack.encode, PACKED) if packed else (msgspec.json.encode, "application/json")
    got = await node.send("POST", path, encode(body), Content_Type=kind)
    assert (got.status, got.json["code"]) == (422, "invalid")
    assert "must be a list of at most 1000 items" in got.json["detail"]
    assert got.pointers[0] in ("/leases", "/jobs", "")
    assert not node.service.calls


async def test_very_many_tags_are_counted_and_not_checked(node: Node) -> None:
    tags = ",".join(f'"{n}\\n":""' for n in range(80_000))  # one of them checked would be another error
    got = await node.send("POST", "/v1/jobs", b'{"task":"t","tags":{%s}}' % tags.encode())
    assert (got.status, got.json["errors"][0]["detail"]) == (422, "must be an object of at most 16 keys")
    queues = ",".join('"a b"' for _ in range(100_000))
    got = await node.send("POST", "/v1/claims", b'{"worker":"w","queues":[%s]}' % queues.encode())
    assert (got.status, got.json["errors"][0]["detail"]) == (422, "must be a list of at most 1000 items")


@pytest.mark.parametrize(
    ("tags", "detail"),
    [
        ({"a:b": "v"}, "has a key that must be 1 to 100 characters"),
        ({"k": "v" * 201}, "has a value that must have at most 200 characters"),
        ({"k": "v\n"}, "has a value that must have no control characters"),
    ],
)
async def test_a_wrong_tag_is_told_in_words(node: Node, tags: dict[str, str], detail: str) -> None:
    got = await node.send("POST", "/v1/jobs", {"task": "t", "tags": tags})
    assert got.pointers == ["/tags"]
    assert got.json["errors"][0]["detail"].startswith(detail)


async def test_a_wrong_queue_is_pointed_at(node: Node) -> None:
    got = await node.send("POST", "/v1/claims", {"worker": "w", "queues": ["a", "b c"]})
    assert (got.status, got.pointers) == (422, ["/queues/1"])


def _batch(sizes: list[int], **more: Any) -> dict[str, Any]:
    return {"jobs": [{"task": "t", "id": str(n), "payload": "x" * size} for n, size in enumerate(sizes)], **more}


@pytest.mark.parametrize("packed", [False, True])
async def test_a_large_batch_is_read_in_turns_to_the_same(packed: bool) -> None:
    reader = BatchReader()
    body = (msgspec.msgpack.encode if packed else msgspec.json.encode)(_batch([50_000] * 20, atomic=True))
    async with _Turns() as turns:
        batch = await reader.read_in_turns(body, packed)
    assert turns.count >= 8
    assert batch == reader.read_jobs(body, packed)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("padding", [0, codec.WHOLE_BYTES_MAX])
async def test_a_batch_names_so_many_others_however_it_is_read(node: Node, atomic: bool, padding: int) -> None:
    """Each name costs two rows: a batch that is read job by job is bounded as one that is read whole."""
    parents = [str(n) for n in range(wire.AFTER_JOBS_MAX)]
    jobs: list[dict[str, Any]] = [{"task": "t", "after": parents} for _ in range(wire.BATCH_AFTER_MAX // len(parents))]
    jobs.append({"task": "t", "payload": "x" * padding})
    got = await node.send("POST", "/v1/jobs/batch", {"jobs": jobs, "atomic": atomic})
    assert (got.status, len(got.json["results"])) == (200, len(jobs))
    jobs[-1]["after"] = ["1"]
    got = await node.send("POST", "/v1/jobs/batch", {"jobs": jobs, "atomic": atomic})
    assert (got.status, got.json["code"], got.pointers) == (422, "invalid", ["/jobs"])
    assert "more than 5000 jobs in `after`" in got.json["detail"]
    assert node.service.names() == ["submit_batch"]


@pytest.mark.parametrize("padding", [0, codec.WHOLE_BYTES_MAX])
async def test_a_bulk_ending_contradicts_itself_no_more_than_a_single_one(node: Node, padding: int) -> None:
    failed: dict[str, Any] = {"lease_token": 1, "error": {}, "retry": False, "retry_in_seconds": 5}
    alone = await node.send("POST", "/v1/jobs/j/fail", failed)
    assert (alone.status, alone.pointers) == (422, ["/retry_in_seconds"])
    other = {"job_id": "k", "lease_token": 1, "outcome": "complete", "result": "x" * padding}
    leases = [other, {"job_id": "j", "outcome": "fail", **failed}]
    got = await node.send("POST", "/v1/leases/complete", {"worker": "w", "leases": leases})
    assert (got.status, got.pointers) == (422, ["/leases/1/retry_in_seconds"])
    leases[1] |= {"retry_in_seconds": None}
    assert (await node.send("POST", "/v1/leases/complete", {"worker": "w", "leases": leases})).status == 200


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("path", ["/v1/leases/heartbeat", "/v1/leases/complete"])
async def test_large_lists_of_leases_are_read_in_turns_to_the_same(path: str, packed: bool) -> None:
    route = LEASES[path]
    lease: dict[str, Any] = {"job_id": "j", "lease_token": 1, "progress": "x" * 50_000}
    if path == "/v1/leases/complete":
        lease |= {"outcome": "release", "delay_seconds": 2}
    body = (msgspec.msgpack.encode if packed else msgspec.json.encode)({"worker": "w", "leases": [lease] * 20})
    assert route.read_in_turns is not None
    async with _Turns() as turns:
        request = await route.read_in_turns(body, packed)
    assert turns.count >= 8
    assert request == route.read(body, packed)


@pytest.mark.parametrize("what", ["leases", "batch", "page"])
async def test_many_callers_with_large_bodies_get_no_more_of_a_pass_than_one(what: str) -> None:
    """Each went on in every pass: eight of the largest together held the loop eight times as long."""
    callers = 8
    leases = {"worker": "w", "leases": [{"job_id": "j", "lease_token": 1, "progress": "x" * 50_000}] * 20}
    beat = LEASES["/v1/leases/heartbeat"].read_in_turns
    assert beat is not None
    page = wire.JobList([job_view(str(n), payload=Raw(b'"%s"' % (b"x" * 50_000))) for n in range(20)], None)
    made = {
        "leases": lambda: beat(msgspec.json.encode(leases), False),
        "batch": lambda: BatchReader().read_in_turns(msgspec.json.encode(_batch([50_000] * 20)), False),
        "page": lambda: codec.answer_in_turns(page, "jobs", False),
    }[what]
    async with _Turns() as turns:
        await asyncio.gather(*(made() for _ in range(callers)))
    assert turns.count >= callers * 8


async def test_large_bodies_of_single_calls_are_read_one_a_pass(node: Node) -> None:
    callers, begun = 5, []

    def read(raw: bytes, packed: bool) -> None:
        begun.append(turns.count)

    route = LEASES["/v1/jobs/{id}/complete"]._replace(read=read)
    async with _Turns() as turns:
        await asyncio.gather(*(read_body(route, b" " * (codec.WHOLE_BYTES_MAX + 1), False) for _ in range(callers)))
    assert len({*begun}) == callers


async def test_what_is_to_follow_counts_in_a_batch_as_what_it_follows(node: Node) -> None:
    """A batch of small jobs with large ones after them was made safe in one pass."""
    jobs = [{"task": "t", "then": {"task": "u", "payload": "x" * 50_000}} for _ in range(20)]
    batch = BatchReader().read_jobs(msgspec.json.encode({"jobs": jobs}), False)
    call = Call("", wire.NoQuery(), b"", EVERYBODY, (False, False), {}, stopping=False)
    call.body = batch
    async with _Turns() as turns:
        await submit_batch(node.service, call)  # type: ignore[arg-type]
    assert turns.count >= 8


async def test_one_bad_job_of_a_large_batch_does_not_spoil_the_others(node: Node) -> None:
    batch = _batch([1000] * 100)
    batch["jobs"][3]["tusk"] = 1
    batch["jobs"][5]["payload"] = "x" * (wire.PAYLOAD_BYTES_MAX + 1)
    batch["jobs"][7]["payload"] = "x" * wire.BODY_BYTES_MAX
    got = await node.send("POST", "/v1/jobs/batch", batch)
    assert got.status == 200
    codes = {n: item["error"]["code"] for n, item in enumerate(got.json["results"]) if "error" in item}
    assert codes == {3: "invalid", 5: "too_large", 7: "too_large"}
    assert [len(jobs) for jobs, _ in [node.service.last()]] == [97]


async def test_one_bad_job_of_a_large_atomic_batch_spoils_it(node: Node) -> None:
    for place, change, pointer in [
        (3, {"tusk": 1}, "/jobs/3/tusk"),
        (5, {"payload": "x" * wire.BODY_BYTES_MAX}, "/jobs/5"),
        (5, {"payload": "x" * wire.PAYLOAD_BYTES_MAX}, "/jobs/5/payload"),
    ]:
        batch = _batch([1000] * 100, atomic=True)
        batch["jobs"][place] |= change
        assert (await node.send("POST", "/v1/jobs/batch", batch)).pointers == [pointer]
    assert not node.service.calls


async def test_a_wrong_lease_of_a_large_list_is_pointed_at(node: Node) -> None:
    leases: list[dict[str, Any]] = [{"job_id": "j" * 100, "lease_token": 1} for _ in range(900)]
    leases[800]["lease_token"] = 0
    got = await node.send("POST", "/v1/leases/heartbeat", {"worker": "w", "leases": leases})
    assert (got.status, got.pointers) == (422, ["/leases/800/lease_token"])


async def test_a_large_body_without_items_is_told_so(node: Node) -> None:
    for path, body in [("/v1/jobs/batch", b'{"jobs":[]}'), ("/v1/leases/complete", b'{"worker":"w","leases":[]}')]:
        assert (await node.send("POST", path, body + b" " * codec.WHOLE_BYTES_MAX)).status == 422


async def test_a_large_batch_is_passed_on(start_node: StartNode) -> None:
    leader = await start_node()
    follower = await start_node(FakeService("n2", leads=False, leader_url=leader.url))
    got = await follower.send("POST", "/v1/jobs/batch", _batch([50_000] * 100))
    assert len(got.json["results"]) == 100
    assert len(leader.service.stored) == 100


async def test_a_packed_page_is_made_in_turns(node: Node) -> None:
    text = Raw(b"[%s]" % b",".join(b"{}" for _ in range(20_000)))
    page = wire.JobList([job_view(str(n), payload=text) for n in range(20)], None)
    async with _Turns() as turns:
        packed = await codec.answer_in_turns(page, "jobs", True)
    assert turns.count >= 5
    jobs = msgspec.msgpack.decode(packed.content)["jobs"]
    assert [job["id"] for job in jobs] == [str(n) for n in range(20)]
    assert jobs[19]["payload"] == [{}] * 20_000
    assert (jobs[19]["result"], page.jobs[19].payload) == (None, text)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
async def test_an_answer_made_in_turns_says_what_one_made_at_once_would(packed: bool, count: int) -> None:
    page = wire.JobList([job_view(str(n), payload=Raw(b'"%d"' % n)) for n in range(count)], "c")
    async with _Turns() as turns:
        made = await codec.answer_in_turns(page, "jobs", packed, b"A: b\r\n")
    assert (turns.count >= 5) == (count == 1000)
    decode = msgspec.msgpack.decode if packed else msgspec.json.decode
    assert decode(made.content) == msgspec.json.decode(msgspec.json.encode(page))
    assert (made.header_lines, len(page.jobs)) == (b"A: b\r\n", count)


async def test_an_ending_whose_job_is_gone_is_ok_without_it(node: Node) -> None:
    leases = [{"job_id": job_id, "lease_token": 1, "outcome": "complete"} for job_id in ("gone", "lost")]
    for kind, decode in (("application/json", msgspec.json.decode), (PACKED, msgspec.msgpack.decode)):
        got = await node.send("POST", "/v1/leases/complete", {"worker": "w", "leases": leases}, Accept=kind)
        gone, lost = decode(got.body)["leases"]
        assert gone == {"job_id": "gone", "status": "ok"}
        assert lost["error"]["code"] == "lease_lost"


async def _ask_and_read_nothing(node: Node, sent: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", node.running.port, limit=1024)
    writer.write(sent)
    return writer


GET_JOBS = b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n"


def _fill(node: Node) -> None:
    node.service.stored["j"] = job_view("j", payload=Raw(b'"%s"' % (b"x" * 12_000_000)))


async def test_who_does_not_read_is_dropped(node: Node) -> None:
    node.app.unsent.read_wait_s = 0.05
    _fill(node)
    writer = await _ask_and_read_nothing(node, GET_JOBS)
    await asyncio.wait_for(_gone(node), 10)
    assert node.app.unsent.held_bytes == 0
    writer.close()


async def test_a_claim_that_is_not_read_goes_back(node: Node) -> None:
    node.app.unsent.read_wait_s = 0.05
    large = claimed_job(payload=Raw(b'"%s"' % (b"x" * 12_000_000)))
    node.service.claimed = FakeDelivery(wire.ClaimAnswer([large]))
    body = b'{"worker":"w","queues":["default"]}'
    head = b"POST /v1/claims HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer = await _ask_and_read_nothing(node, head + body)
    await asyncio.wait_for(node.service.claimed.given_back.wait(), 10)
    writer.close()


async def test_past_the_bound_of_all_the_longest_wait_ends(node: Node) -> None:
    node.app.unsent.bytes_max = 15_000_000
    _fill(node)
    first = await _ask_and_read_nothing(node, GET_JOBS)
    await asyncio.wait_for(_held(node, 1), 10)
    got = await node.send("GET", "/v1/jobs")
    assert got.status == 200  # the newer one is served whole
    await asyncio.wait_for(_gone(node, but=1), 10)  # the older one is gone
    first.close()


async def _held(node: Node, least_bytes: int) -> None:
    while node.app.unsent.held_bytes < least_bytes:  # noqa: ASYNC110 (the socket's buffer tells nobody)
        await asyncio.sleep(0)


async def _gone(node: Node, but: int = 0) -> None:
    """Until at most so many connections are left."""
    while not node.service.calls or len(node.running.connections.connections) > but:  # noqa: ASYNC110 (as above)
        await asyncio.sleep(0)
