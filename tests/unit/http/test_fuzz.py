"""Whatever a caller sends: an answer of the contract, never a 500, never a value the service must not see."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.fake_service import FakeService, job_view
from yarl import URL

from horae import wire
from horae_http.app import build_app
from horae_http.server import start_server

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["2026-11-29T12:00:00Z", "2026-11-29T12:00:00", "complete", "fail", "default", "a/b", "\x00"])
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner), max_leaves=12
)
CALLS: list[tuple[str, type]] = [
    ("/v1/jobs", wire.SubmitRequest),
    ("/v1/jobs/batch", wire.BatchRequest),
    ("/v1/claims", wire.ClaimRequest),
    ("/v1/leases/heartbeat", wire.HeartbeatRequest),
    ("/v1/leases/complete", wire.EndingsRequest),
    ("/v1/jobs/j/complete", wire.CompleteRequest),
    ("/v1/jobs/j/fail", wire.FailRequest),
    ("/v1/jobs/j/release", wire.ReleaseRequest),
    ("/v1/jobs/j/cancel", wire.Empty),
]
PLAUSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "task": st.just("t"),
    "worker": st.just("w"),
    "queues": st.just(["default"]),
    "lease_token": st.integers(-1, 3),
    "outcome": st.sampled_from(["complete", "fail", "release"]),
    "payload": VALUES,
    "error": st.just({}),
}


def _bodies(shape: type) -> st.SearchStrategy[Any]:
    """Objects with the shape's keys, right and wrong values mixed; and anything at all."""
    keys: dict[str, st.SearchStrategy[Any]] = {}
    for name in shape.__struct_fields__:  # type: ignore[attr-defined]
        keys[name] = PLAUSIBLE[name] | VALUES if name in PLAUSIBLE else VALUES
    if "leases" in keys:
        item = {"job_id": st.just("j"), "lease_token": st.integers(1, 3), "outcome": PLAUSIBLE["outcome"]}
        keys["leases"] = st.lists(
            st.fixed_dictionaries(item, optional={"result": VALUES, "progress": VALUES}), max_size=3
        )
    if "jobs" in keys:
        keys["jobs"] = st.lists(_bodies(wire.SubmitRequest), max_size=3)
    return st.fixed_dictionaries({}, optional=keys) | VALUES


class Server:
    """A server on a thread of its own, so that each example is one plain call."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service = FakeService()
        self._call(self._start())

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> None:
        self._session = aiohttp.ClientSession()
        app = build_app(self.service, metrics_text=lambda: b"")
        self._running = await start_server(app, "127.0.0.1", 0)

    async def _stop(self) -> None:
        await self._session.close()
        await self._running.stop(0)

    def stop(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        return self._call(self._send(method, path, body, kind))  # type: ignore[no-any-return]

    async def _send(self, method: str, path: str, body: bytes | None, kind: str) -> tuple[int, bytes]:
        self.service.calls.clear()
        self.service.stored = {"j": job_view("j")}
        url = URL(f"http://127.0.0.1:{self._running.port}{path}", encoded=True)
        async with self._session.request(method, url, data=body, headers={"Content-Type": kind}) as response:
            return response.status, await response.read()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def _check(server: Server, status: int, body: bytes) -> None:
    assert status in (200, 201, 204, 400, 404, 405, 409, 413, 415, 422), (status, body)
    if status >= 400:
        problem = msgspec.json.decode(body, type=wire.Problem)
        assert problem.status == status
        assert not server.service.calls or problem.code in ("not_found", "lease_lost")
    for name, argument in server.service.calls:
        for value in _opaque_values(name, argument):
            assert msgspec.json.encode(msgspec.json.decode(value)) == bytes(value)


def _opaque_values(name: str, argument: Any) -> list[msgspec.Raw]:
    holders: list[Any] = [argument]
    if name == "submit_batch":
        holders = argument[0]
    elif name in ("heartbeat", "end_many"):
        holders = argument.leases
    elif name in ("complete", "release", "fail"):
        holders = [argument[1]]
    found = [getattr(holder, key, None) for holder in holders for key in ("payload", "result", "progress")]
    return [value for value in found if isinstance(value, msgspec.Raw)]


COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=150, **COMMON)
@given(data=st.data())
def test_objects_of_any_kind(server: Server, data: st.DataObject) -> None:
    path, shape = data.draw(st.sampled_from(CALLS))
    content = data.draw(_bodies(shape))
    _check(server, *server.send("POST", path, msgspec.json.encode(content), "application/json"))
    try:
        packed = msgspec.msgpack.encode(content)
    except OverflowError:
        return
    _check(server, *server.send("POST", path, packed, "application/msgpack"))


@settings(max_examples=150, **COMMON)
@given(call=st.sampled_from(CALLS), body=st.binary(max_size=60), packed=st.booleans())
def test_bytes_of_any_kind(server: Server, call: tuple[str, type], body: bytes, packed: bool) -> None:
    if packed:
        body = b"\x82\xa4task\xa1t\xa7payload" + body
    kind = "application/msgpack" if packed else "application/json"
    _check(server, *server.send("POST", call[0], body, kind))


ADDRESS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=30)


@settings(max_examples=150, **COMMON)
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD"]),
    start=st.sampled_from(["/", "/v1/", "/v1/jobs/", "/v1/jobs?", "/v1/jobs/j?", "/v1/cluster?"]),
    rest=ADDRESS,
)
def test_addresses_of_any_kind(server: Server, method: str, start: str, rest: str) -> None:
    status, body = server.send(method, start + rest, None, "application/json")
    if method == "HEAD":
        assert status != 500
    elif not (status == 200 and start == "/"):
        _check(server, status, body)
