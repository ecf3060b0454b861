"""A small in-memory server of the contract, on loopback, that fails on command. For tests of the client alone.

It knows submit, batch, read, claim, heartbeat and the endings; time does not pass in it: a lease ends by `expire`.
Every request is recorded; `signals` let a test wait for what it needs to see. Not here: rules beyond those.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import msgspec
from aiohttp import web

MSGPACK = "application/msgpack"
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)


def moment(seconds: float = 0) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def problem(code: str, status: int, *, headers: dict[str, str] | None = None, detail: str = "") -> web.Response:
    body = {"type": f"about:blank#{code}", "title": code, "status": status, "detail": detail or code, "code": code}
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/problem+json", headers=headers
    )


class FakeServer:
    """Use as `async with`. `fault` says what to do to the next requests of a path, in order.

    `drop`: apply it, then cut the connection; `cut`: do not apply it; `hang`: never answer; a response: answer that, do
    not apply it.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.ready: deque[str] = deque()
        self.claims: dict[str, list[tuple[str, int]]] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, deque[str | web.Response]] = {}
        self.leader: str | None = None
        self.hold_beats = False
        self.claims_closed = False
        self.lease_seconds: float | None = None
        self.timeout_seconds = 3600.0
        self.progress: list[tuple[str, Any]] = []
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    # ------------------------------------------------------------ for tests

    def fault(self, path: str, *kinds: str | web.Response) -> None:
        self.faults.setdefault(path, deque()).extend(kinds)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until the server's state is so; a failure after 20 s."""
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_finished(self, job_id: str) -> dict[str, Any]:
        await self.wait_until(lambda: self.jobs[job_id]["state"] in ("succeeded", "dead", "cancelled", "expired"))
        return self.jobs[job_id]

    def add(self, task: str, payload: Any = None, *, job_id: str | None = None, **keys: Any) -> str:
        job_id = job_id or f"job-{len(self.jobs) + 1}"
        self._make({"task": task, "payload": payload, "id": job_id, **keys})
        return job_id

    def expire(self, job_id: str) -> None:
        """End the lease and make the job ready for another claim; the old token is superseded at once."""
        job = self.jobs[job_id]
        job["token"] += 1
        job["state"] = "pending"
        self._tell()

    def sent(self, path: str) -> list[dict[str, Any]]:
        return [body for where, body in self.requests if where == path]

    # ------------------------------------------------------------ requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = msgspec.msgpack.decode(raw) if raw else {}
        path = request.path
        self.requests.append((path, body))
        self.counts[path] += 1
        self._tell()
        faults = self.faults.get(path) or self.faults.get(f"{request.method} {path}")
        fault = faults.popleft() if faults else None
        if isinstance(fault, web.Response):
            return fault
        if fault == "cut":
            return self._cut(request)
        if fault == "hang":
            await asyncio.Event().wait()
        answer = await self._answer(request, path, body)
        if fault == "drop":
            return self._cut(request)
        answer.headers["Horae-Leader"] = self.leader or self.url
        return answer

    def _cut(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _answer(self, request: web.Request, path: str, body: dict[str, Any]) -> web.Response:
        parts = path.strip("/").split("/")
        if path == "/v1/jobs" and request.method == "POST":
            return self._submit(body)
        if path == "/v1/jobs":
            return self._list(request)
        if path == "/v1/jobs/batch":
            return _ok({"results": [self._batch_item(job) for job in body["jobs"]]})
        if path == "/v1/claims":
            return await self._claim(body)
        if path == "/v1/leases/heartbeat":
            return await self._beat(body)
        if path == "/v1/leases/complete":
            return _ok({"leases": [self._end(ending) for ending in body["leases"]]})
        if parts[:2] == ["v1", "jobs"] and len(parts) >= 3:
            return await self._one(request, parts, body)
        return problem("not_found", 404)

    async def _one(self, request: web.Request, parts: list[str], body: dict[str, Any]) -> web.Response:
        job = self.jobs.get(parts[2])
        if job is None:
            return problem("not_found", 404)
        if request.method == "DELETE":
            del self.jobs[parts[2]]
            return web.Response(status=204)
        verb = parts[3] if len(parts) > 3 else ""
        if verb == "cancel":
            if job["state"] == "cancelled":
                return problem("conflict", 409)
            self._cancel(job)
        elif verb in ("complete", "fail", "release"):
            result = self._end({"job_id": parts[2], "outcome": verb, **body})
            if result["status"] == "error":
                return problem(result["error"]["code"], result["error"]["status"])
        elif request.query.get("wait_seconds"):
            await self.wait_until(lambda: job["state"] in ("succeeded", "dead", "cancelled"))
        return _ok(_view(job))

    def _cancel(self, job: dict[str, Any]) -> None:
        if job["state"] == "running":
            job["cancel_requested"] = True
        else:
            job["state"] = "cancelled"
        self._tell()

    def _submit(self, body: dict[str, Any]) -> web.Response:
        old = self.jobs.get(body["id"])
        if old is not None and old["payload"] != body.get("payload"):
            return problem("conflict", 409)
        return _ok(_view(old), 200) if old is not None else _ok(_view(self._make(body)), 201)

    def _batch_item(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["task"].startswith("refuse:"):
            code = body["task"].removeprefix("refuse:")
            return {"error": {"type": "x", "title": "x", "status": 422, "detail": "no", "code": code}}
        return {"job": _view(self.jobs.get(body["id"]) or self._make(body))}

    def _make(self, body: dict[str, Any]) -> dict[str, Any]:
        job = {"payload": None, "queue": "default", "state": "ready", "attempt": 0, "token": 0, "result": None} | body
        job |= {"ending": None, "errors": [], "cancel_requested": False, "progress": None}
        self.jobs[body["id"]] = job
        self.ready.append(body["id"])
        self._tell()
        return job

    def _list(self, request: web.Request) -> web.Response:
        start, limit = int(request.query.get("cursor", 0)), int(request.query["limit"])
        found = list(self.jobs.values())[::-1]
        more = str(start + limit) if start + limit < len(found) else None
        return _ok({"jobs": [_view(job) for job in found[start : start + limit]], "next_cursor": more})

    async def _claim(self, body: dict[str, Any]) -> web.Response:
        granted = self.claims.get(body["claim_id"])
        if granted is None:
            if body["wait_seconds"]:
                await self.wait_until(lambda: bool(self.ready) and not self.claims_closed)
            granted = []
            while self.ready and len(granted) < body["max_jobs"]:
                granted.append(self._grant(self.ready.popleft()))
            if granted:
                self.claims[body["claim_id"]] = granted
        self._tell()
        jobs = [self._claimed(job_id, body) for job_id, token in granted if self.jobs[job_id]["token"] == token]
        return _ok({"jobs": jobs})

    def _grant(self, job_id: str) -> tuple[str, int]:
        job = self.jobs[job_id]
        job |= {"state": "running", "attempt": job["attempt"] + 1, "token": job["token"] + 1, "ending": None}
        return job_id, job["token"]

    def _claimed(self, job_id: str, body: dict[str, Any]) -> dict[str, Any]:
        job = self.jobs[job_id]
        lease_seconds = self.lease_seconds or body.get("lease_seconds") or 30.0
        return {
            **{key: job[key] for key in ("id", "task", "payload", "queue", "attempt", "progress")},
            "execution_id": job_id,
            "max_attempts": 5,
            "lease_token": job["token"],
            "tags": {},
            "lease_seconds": lease_seconds,
            "lease_expires_at": moment(lease_seconds),
            "timeout_at": moment(self.timeout_seconds),
            "schedule_id": None,
            "nominal_time": None,
            "run_at": moment(),
            "last_error": None,
        }

    async def _beat(self, body: dict[str, Any]) -> web.Response:
        if self.hold_beats:
            await asyncio.Event().wait()
        statuses = []
        for lease in body["leases"]:
            job = self.jobs[lease["job_id"]]
            held = job["token"] == lease["lease_token"] and job["state"] == "running"
            if "progress" in lease:
                job["progress"] = lease["progress"]
                self.progress.append((lease["job_id"], lease["progress"]))
            statuses.append(
                {
                    "job_id": lease["job_id"],
                    "status": "ok" if held else "lost",
                    "lease_expires_at": moment(30) if held else None,
                    "cancel_requested": job["cancel_requested"],
                }
            )
        self._tell()
        return _ok({"leases": statuses})

    def _end(self, ending: dict[str, Any]) -> dict[str, Any]:
        job = self.jobs[ending["job_id"]]
        if job["token"] != ending["lease_token"] or job["ending"] not in (None, ending["outcome"]):
            error = {"type": "x", "title": "x", "status": 409, "detail": "lost", "code": "lease_lost"}
            return {"job_id": job["id"], "status": "error", "error": error}
        if job["ending"] is None:
            self._apply(job, ending)
        self._tell()
        return {"job_id": job["id"], "status": "ok", "state": job["state"]}

    def _apply(self, job: dict[str, Any], ending: dict[str, Any]) -> None:
        job["ending"] = ending["outcome"]
        if ending["outcome"] == "complete":
            job |= {"state": "succeeded", "result": ending.get("result")}
        elif ending["outcome"] == "fail":
            job["errors"].append(ending["error"])
            job["state"] = "pending" if ending.get("retry", True) and job["attempt"] < 5 else "dead"
            job["state"] = "cancelled" if job["cancel_requested"] else job["state"]
            job["retry_in_seconds"] = ending.get("retry_in_seconds")
        else:
            job |= {"state": "pending", "attempt": job["attempt"] - 1, "delay": ending.get("delay_seconds", 0)}
            job["progress"] = ending.get("progress", job["progress"])

    def _tell(self) -> None:
        self._changed.set()


def _ok(value: Any, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.msgpack.encode(value), content_type=MSGPACK)


def _view(job: dict[str, Any]) -> dict[str, Any]:
    """A job as it reads: what the client needs of it."""
    return {
        **{key: job[key] for key in ("id", "task", "payload", "queue", "state", "attempt", "result", "progress")},
        "execution_id": job["id"],
        "lost": 0,
        "priority": 0,
        "max_attempts": 5,
        "max_lost": 3,
        "retry": {"initial_seconds": 1.0, "factor": 2.0, "max_seconds": 3600.0, "jitter": 0.2},
        "lease_seconds": 30.0,
        "timeout_seconds": 3600.0,
        "retention_seconds": 86400.0,
        "tags": {},
        "created_at": moment(),
        "run_at": moment(),
        "cancel_requested": job["cancel_requested"],
    }
