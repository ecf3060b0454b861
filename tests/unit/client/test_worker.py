"""A worker runs each job it claims once, keeps or gives up its lease for good reasons, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.helpers.fake_server import FakeServer, _ok, problem

from horae import Context, Dead, Retry, Snooze, Worker, errors, wire


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """The worker at work; stopped at the end, at once if need be."""
    serve = asyncio.ensure_future(worker.serve())
    try:
        yield serve
    finally:
        worker.stop()
        worker.stop()
        async with asyncio.timeout(20):
            await asyncio.wait((serve,))


def make(server: FakeServer, *, task: str | None = None, **options: Any) -> Worker:
    """With a handler of `task` that does nothing."""
    worker = Worker(server.url, name="w", **options)
    if task is not None:
        worker.task(task)(lambda: None)
    return worker


def hanging(worker: Worker, task: str) -> asyncio.Event:
    """A handler of this task that never returns; set once one runs."""
    started = asyncio.Event()

    @worker.task(task)
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    return started


# ---------------------------------------------------------------- running


async def test_handlers_get_their_payload_as_they_ask_for_it(server: FakeServer) -> None:
    worker = make(server)

    @dataclasses.dataclass
    class Order:
        number: int

    @worker.task()
    async def spread(a: int, b: int = 2) -> int:
        return a + b

    @worker.task("whole")
    def whole(payload: Any) -> Any:
        return payload

    async def typed(ctx: Context, payload: Order) -> list[Any]:
        return [ctx.attempt, ctx.job_id, payload.number]

    typed.__annotations__ = {"ctx": Context, "payload": Order}
    worker.task("typed")(typed)
    ids = [
        server.add("spread", {"a": 1}),
        server.add("whole", [1, {"x": None}]),
        server.add("typed", {"number": 7}),
        server.add("spread", [1]),
    ]
    async with serving(worker):
        done = [await server.wait_finished(job_id) for job_id in ids[:3]]
        await server.wait_until(lambda: bool(server.jobs[ids[3]]["errors"]))
    assert [job["result"] for job in done] == [3, [1, {"x": None}], [1, ids[2], 7]]
    (error,) = server.jobs[ids[3]]["errors"]
    assert error["type"] == "TypeError"
    assert "must be an object" in error["message"]


async def test_a_plain_function_runs_in_a_thread(server: FakeServer) -> None:
    worker = make(server)

    @worker.task("where")
    def where() -> str:
        return threading.current_thread().name

    job_id = server.add("where")
    async with serving(worker):
        assert (await server.wait_finished(job_id))["result"].startswith("horae-task")


async def test_exceptions_are_failures_within_the_limits(server: FakeServer) -> None:
    worker = make(server)

    @worker.task("bad")
    async def bad() -> None:
        raise ValueError("\ud800\0" + "x" * 10_000)

    @worker.task("exit")
    def leave() -> None:
        raise SystemExit(3)

    ids = [server.add("bad"), server.add("exit")]
    async with serving(worker):
        await server.wait_until(lambda: all(server.jobs[job_id]["errors"] for job_id in ids))
    (error,) = server.jobs[ids[0]]["errors"]
    assert error["type"] == "ValueError"
    assert len(error["message"]) == wire.ERROR_MESSAGE_CHARS_MAX
    assert "in bad" in error["traceback"]
    assert "runner.py" not in error["traceback"]
    assert len(error["traceback"]) <= wire.ERROR_TRACEBACK_CHARS_MAX
    assert server.jobs[ids[1]]["errors"][0]["type"] == "SystemExit"
    assert server.jobs[ids[0]]["state"] == "pending"


class Abort(BaseException):
    """As pytest's and trio's own: no `Exception`."""


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise Abort


RAISED: list[BaseException] = [
    Abort("x"),
    BaseExceptionGroup("both", [Abort("x"), ValueError("y")]),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    asyncio.CancelledError(),
    Unspeakable(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("way", ["async", "thread"])
async def test_whatever_a_handler_raises_is_its_outcome(server: FakeServer, way: str, error: BaseException) -> None:
    worker = make(server)

    async def raise_on_the_loop() -> None:
        raise error

    def raise_in_a_thread() -> None:
        raise error

    worker.task("raise")(raise_on_the_loop if way == "async" else raise_in_a_thread)
    worker.task("next")(lambda: "alive")
    job_id = server.add("raise")
    async with serving(worker):
        async with asyncio.timeout(20):
            await server.wait_until(lambda: bool(server.jobs[job_id]["ending"]))
            assert (await server.wait_finished(server.add("next")))["result"] == "alive"
    job = server.jobs[job_id]
    assert (job["ending"], job["state"]) == ("fail", "pending")
    (told,) = job["errors"]
    assert told["type"].rpartition(".")[2] == type(error).__name__


async def test_stop_iteration_is_told_as_a_coroutine_tells_it(server: FakeServer) -> None:
    worker = make(server)

    @worker.task("stop")
    def stop() -> Any:
        return next(iter(()))

    job_id = server.add("stop")
    async with serving(worker):
        await server.wait_until(lambda: bool(server.jobs[job_id]["errors"]))
    (error,) = server.jobs[job_id]["errors"]
    assert (error["type"], error["message"]) == ("RuntimeError", "coroutine raised StopIteration")
    assert "in stop" in error["traceback"]


async def test_verdicts_steer_the_job(server: FakeServer) -> None:
    worker = make(server)

    @worker.task("verdict")
    async def verdict(kind: str) -> None:
        raise {"retry": Retry("r", in_seconds=7), "dead": Dead("d"), "snooze": Snooze(9)}[kind]

    retry, dead, snooze = (server.add("verdict", {"kind": kind}) for kind in ("retry", "dead", "snooze"))
    async with serving(worker):
        await server.wait_until(lambda: all(server.jobs[one]["ending"] for one in (retry, dead, snooze)))
    assert (server.jobs[retry]["state"], server.jobs[retry]["retry_in_seconds"]) == ("pending", 7)
    assert (server.jobs[dead]["state"], server.jobs[dead]["errors"][0]["type"]) == ("dead", "Dead")
    assert (server.jobs[snooze]["delay"], server.jobs[snooze]["attempt"]) == (9, 0)


@pytest.mark.parametrize(
    ("verdict", "seconds"),
    [
        (lambda: Retry(in_seconds=-0.2), 0),
        (lambda: Retry(in_seconds=-(10**400)), 0),
        (lambda: Retry(in_seconds=timedelta(minutes=1)), 60),
        (lambda: Snooze(timedelta(seconds=-3)), 0),
        (lambda: Snooze(1.5), 1.5),
    ],
)
async def test_a_moment_may_be_told_as_a_span_or_have_passed(
    server: FakeServer, verdict: Callable[[], Exception], seconds: float
) -> None:
    worker = make(server)

    @worker.task("t")
    def raises() -> None:
        raise verdict()

    job = server.jobs[server.add("t")]
    async with serving(worker):
        await server.wait_until(lambda: bool(job["ending"]))
    assert job["retry_in_seconds" if job["ending"] == "fail" else "delay"] == seconds


@pytest.mark.parametrize("verdict", [lambda at: Retry(in_seconds=at), Snooze], ids=["retry", "snooze"])
@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e9, 10**400, "5", True, object()])
async def test_a_moment_that_is_none_is_how_the_attempt_failed(
    server: FakeServer, verdict: Callable[[Any], Exception], seconds: Any
) -> None:
    """Not a report that the cluster refuses: the job would wait for its lease to run out."""
    worker = make(server)

    @worker.task("t")
    def raises() -> None:
        raise verdict(seconds)

    job = server.jobs[server.add("t")]
    async with serving(worker):
        await server.wait_until(lambda: bool(job["errors"]))
    (error,) = job["errors"]
    assert error["type"] in ("TypeError", "ValueError")
    assert "seconds is" in error["message"]


@pytest.mark.parametrize(("ending", "kind"), [("fail", "FailureRefused"), ("release", "ReleaseRefused")])
async def test_an_ending_that_the_cluster_refuses_is_told_as_a_failure(
    server: FakeServer, ending: str, kind: str
) -> None:
    """And that once: what is refused again is given up."""
    worker = make(server)

    @worker.task("t")
    def ends() -> None:
        raise Retry("why") if ending == "fail" else Snooze(1)

    server.fault("/v1/leases/complete", problem("invalid", 422, detail="too odd"))
    job = server.jobs[server.add("t")]
    async with serving(worker):
        await server.wait_until(lambda: bool(job["errors"]))
    (error,) = job["errors"]
    assert error["type"] == kind
    assert "(invalid): too odd" in error["message"]
    assert ("Retry: why" in error["message"]) == (ending == "fail")
    assert job["state"] == "pending"


async def test_an_unknown_task_fails_with_time_for_others(server: FakeServer) -> None:
    worker = make(server)
    worker.task("known")(lambda: None)
    job_id = server.add("nobody")
    async with serving(worker):
        await server.wait_until(lambda: bool(server.jobs[job_id]["errors"]))
    job = server.jobs[job_id]
    assert (job["state"], job["retry_in_seconds"], job["errors"][0]["type"]) == ("pending", 30, "UnknownTask")
    assert "it knows: known" in job["errors"][0]["message"]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def in_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        ("x" * wire.RESULT_BYTES_MAX, "ResultTooLarge"),
        (object(), "ResultInvalid"),
        (in_itself(), "ResultInvalid"),
        (nested(100_000), "ResultInvalid"),
        (nested(wire.JSON_DEPTH_MAX + 1), "ResultInvalid"),
    ],
    ids=["long", "no JSON form", "in itself", "past any stack", "past the limit"],
)
async def test_a_result_that_cannot_be_kept_fails_for_good(server: FakeServer, result: Any, kind: str) -> None:
    worker = make(server)
    worker.task("big")(lambda: result)
    job_id = server.add("big")
    async with serving(worker):
        job = await server.wait_finished(job_id)
    assert (job["state"], job["errors"][0]["type"]) == ("dead", kind)
    assert "result" in job["errors"][0]["message"]


async def test_a_result_that_the_cluster_refuses_spoils_no_other(server: FakeServer) -> None:
    worker = make(server, concurrency=2)
    both = asyncio.Barrier(2)

    @worker.task("t")
    async def together() -> str:
        async with both:
            return "fine"

    refusal = [problem("invalid", 422) for _ in range(2)]
    server.fault("/v1/leases/complete", *refusal)
    ids = [server.add("t"), server.add("t")]
    async with serving(worker):
        done = [await server.wait_finished(job_id) for job_id in ids]
    assert sorted(job["state"] for job in done) == ["dead", "succeeded"]
    assert [job["errors"][0]["type"] for job in done if job["errors"]] == ["ResultRefused"]


async def test_many_jobs_run_once_each_and_never_more_than_the_slots(server: FakeServer) -> None:
    worker = make(server, concurrency=16)
    ran: list[int] = []
    running = most = 0

    @worker.task("count")
    async def count(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        ran.append(number)
        running -= 1
        return number

    ids = [server.add("count", {"number": number}) for number in range(200)]
    async with serving(worker):
        for job_id in ids:
            await server.wait_finished(job_id)
    assert sorted(ran) == list(range(200))
    assert most <= 16
    assert [server.jobs[job_id]["result"] for job_id in ids] == list(range(200))
    assert max(body["max_jobs"] for body in server.sent("/v1/claims")) == 16
    assert server.counts["/v1/leases/complete"] < 200


# ---------------------------------------------------------------- lost answers


async def test_lost_answers_cost_nothing(server: FakeServer) -> None:
    worker = make(server)
    runs: list[int] = []

    @worker.task("once")
    async def once(ctx: Context) -> int:
        runs.append(ctx.lease_token)
        return ctx.lease_token

    server.fault("/v1/claims", "drop")
    server.fault("/v1/leases/complete", "drop", "drop")
    job_id = server.add("once")
    async with serving(worker):
        job = await server.wait_finished(job_id)
        await server.wait_until(lambda: server.counts["/v1/leases/complete"] >= 3)
    assert (runs, job["attempt"]) == ([1], 1)
    assert {body["leases"][0]["lease_token"] for body in server.sent("/v1/leases/complete")} == {1}
    first, second, *_ = [body["claim_id"] for body in server.sent("/v1/claims")]
    assert first == second


async def test_a_lost_lease_is_the_last_word(server: FakeServer) -> None:
    worker = make(server)
    started, go = asyncio.Event(), asyncio.Event()

    @worker.task("late")
    async def late() -> str:
        started.set()
        await go.wait()
        return "late"

    job_id = server.add("late")
    async with serving(worker):
        await started.wait()
        server.expire(job_id)
        go.set()
        await server.wait_until(lambda: server.counts["/v1/leases/complete"] == 1)
    assert server.counts["/v1/leases/complete"] == 1
    assert server.jobs[job_id]["result"] is None


async def test_a_token_that_is_not_known_ends_the_worker(server: FakeServer) -> None:
    server.fault("/v1/claims", problem("unauthenticated", 401))
    async with asyncio.timeout(20):
        with pytest.raises(errors.Unauthenticated):
            await make(server, task="t").serve()


# ---------------------------------------------------------------- leases


async def test_a_handler_that_blocks_the_loop_keeps_its_lease() -> None:
    beaten = threading.Event()
    served: list[bool] = []
    async with FakeServer() as server:
        server.lease_seconds = 1.0
        worker = make(server)

        @worker.task("block")
        async def block() -> bool:
            return beaten.wait(20)  # blocks the worker's loop; only a beat from elsewhere lets it go on

        def work() -> None:
            asyncio.run(worker.serve())
            served.append(True)

        job_id = server.add("block")
        thread = threading.Thread(target=work)
        thread.start()
        await server.wait_until(lambda: server.counts["/v1/leases/heartbeat"] >= 3)
        beaten.set()
        job = await server.wait_finished(job_id)
        worker.stop()
        await asyncio.to_thread(thread.join)
    assert (job["result"], job["token"], served) == (True, 1, [True])


async def test_a_lease_that_cannot_be_renewed_is_given_up_unreported(server: FakeServer) -> None:
    server.lease_seconds = 1.0
    server.hold_beats = True
    worker = make(server)
    cancelled = asyncio.Event()
    reasons: list[str] = []

    @worker.task("fenced")
    async def fenced(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
            cancelled.set()

    job_id = server.add("fenced")
    async with serving(worker):
        async with asyncio.timeout(20):
            await cancelled.wait()
    assert reasons == ["lease_expired"]
    assert server.jobs[job_id]["ending"] is None
    assert server.counts["/v1/leases/complete"] == 0


async def test_a_lease_that_the_cluster_calls_lost_stops_the_handler(server: FakeServer) -> None:
    server.lease_seconds = 1.0
    worker = make(server)
    started, cancelled = asyncio.Event(), asyncio.Event()

    @worker.task("lost")
    async def lost(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancel_reason == "lease_lost"
            cancelled.set()

    job_id = server.add("lost")
    async with serving(worker), asyncio.timeout(20):
        await started.wait()
        server.expire(job_id)
        await cancelled.wait()
    assert server.counts["/v1/leases/complete"] == 0


async def test_an_attempt_past_its_timeout_is_stopped(server: FakeServer) -> None:
    server.timeout_seconds = 0.2
    worker = make(server)
    cancelled = asyncio.Event()

    @worker.task("stuck")
    async def stuck(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            assert ctx.cancel_reason == "timeout"
            cancelled.set()

    server.add("stuck")
    async with serving(worker), asyncio.timeout(20):
        await cancelled.wait()
    assert server.counts["/v1/leases/complete"] == 0


async def test_a_cancel_request_cancels_the_handler_and_the_job(server: FakeServer) -> None:
    server.lease_seconds = 1.0
    worker = make(server)
    started, threaded = hanging(worker, "async"), threading.Event()

    @worker.task("thread")
    def in_thread(ctx: Context) -> None:
        while not ctx.cancelled:
            threaded.wait(0.01)
        ctx.raise_if_cancelled()

    ids = [server.add("async"), server.add("thread")]
    async with serving(worker):
        await started.wait()
        await server.wait_until(lambda: all(server.jobs[job_id]["state"] == "running" for job_id in ids))
        for job_id in ids:
            server._cancel(server.jobs[job_id])
        done = [await server.wait_finished(job_id) for job_id in ids]
    assert [job["state"] for job in done] == ["cancelled", "cancelled"]
    assert [job["errors"][0]["type"] for job in done] == ["Cancelled", "Cancelled"]


async def test_progress_travels_with_a_beat_and_before_a_failure(server: FakeServer) -> None:
    worker = make(server)
    seen = asyncio.Event()

    @worker.task("steps")
    async def steps(ctx: Context) -> None:
        ctx.progress({"step": 1})
        await seen.wait()
        ctx.progress({"step": 2})
        raise Retry("half way")

    job_id = server.add("steps")
    async with serving(worker):
        await server.wait_until(lambda: (job_id, {"step": 1}) in server.progress)
        seen.set()
        await server.wait_until(lambda: bool(server.jobs[job_id]["errors"]))
    assert server.jobs[job_id]["progress"] == {"step": 2}


async def test_a_progress_that_is_refused_costs_no_lease(server: FakeServer) -> None:
    worker = make(server)
    go = asyncio.Event()

    @worker.task("steps")
    async def steps(ctx: Context) -> str:
        ctx.progress("refused")
        await go.wait()
        return "done"

    server.fault("/v1/leases/heartbeat", problem("invalid", 422))
    job_id = server.add("steps")
    async with serving(worker):
        await server.wait_until(lambda: server.counts["/v1/leases/heartbeat"] >= 2)
        go.set()
        assert (await server.wait_finished(job_id))["result"] == "done"
    assert server.progress == []


# ---------------------------------------------------------------- stopping


async def test_a_stop_lets_running_jobs_finish(server: FakeServer) -> None:
    worker = make(server, concurrency=1)
    started, go = asyncio.Event(), asyncio.Event()

    @worker.task("slow")
    async def slow() -> str:
        started.set()
        await go.wait()
        return "finished"

    first, second = server.add("slow"), server.add("slow")
    serve = asyncio.ensure_future(worker.serve())
    await started.wait()
    worker.stop()
    go.set()
    async with asyncio.timeout(20):
        await serve
    assert server.jobs[first]["result"] == "finished"
    assert server.jobs[second]["state"] == "ready"


async def test_after_the_grace_the_rest_is_handed_back_not_counted(server: FakeServer) -> None:
    worker = make(server, grace_seconds=0.05)
    started = asyncio.Event()
    hold = threading.Event()

    @worker.task("async")
    async def asynchronous(ctx: Context) -> None:
        ctx.progress("half")
        await asyncio.Event().wait()

    @worker.task("thread")
    def in_thread() -> None:
        server_loop.call_soon_threadsafe(started.set)
        hold.wait(20)

    server_loop = asyncio.get_running_loop()
    ids = [server.add("async"), server.add("thread")]
    serve = asyncio.ensure_future(worker.serve())
    await started.wait()
    worker.stop()
    async with asyncio.timeout(20):
        await serve
    hold.set()
    assert [(server.jobs[job_id]["ending"], server.jobs[job_id]["attempt"]) for job_id in ids] == [("release", 0)] * 2
    assert server.jobs[ids[0]]["progress"] == "half"


async def test_a_second_stop_does_not_wait_for_the_grace(server: FakeServer) -> None:
    worker = make(server, grace_seconds=3600)
    started = hanging(worker, "hang")
    job_id = server.add("hang")
    serve = asyncio.ensure_future(worker.serve())
    await started.wait()
    worker.stop()
    worker.stop()
    async with asyncio.timeout(20):
        await serve
    assert server.jobs[job_id]["ending"] == "release"


@pytest.mark.parametrize(
    ("stops", "told"),
    [
        (1, 'jobs=1 grace_seconds=3600 then="a second signal (or stop) hands them back at once"'),
        (0, "jobs=1 grace_seconds=0"),
    ],
)
async def test_a_stop_is_told_at_once(
    server: FakeServer, caplog: pytest.LogCaptureFixture, stops: int, told: str
) -> None:
    """Before the grace, which is long. A `serve` that is cancelled has none."""
    worker = make(server, grace_seconds=3600)
    started = hanging(worker, "hang")
    server.add("hang")
    serve = asyncio.ensure_future(worker.serve())
    await started.wait()
    with caplog.at_level("INFO", logger="horae"):
        for _ in range(stops):
            worker.stop()
        assert caplog.messages == [f"worker_stopping worker=w {told}"] * stops
        serve.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serve
    assert [line for line in caplog.messages if "stopping" in line] == [f"worker_stopping worker=w {told}"]


async def test_signals_stop_it(server: FakeServer) -> None:
    worker = make(server, grace_seconds=3600)
    started = hanging(worker, "hang")
    job_id = server.add("hang")
    serve = asyncio.ensure_future(worker.serve(signals=True))
    await started.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(20):
        await serve
    assert server.jobs[job_id]["ending"] == "release"


async def test_a_grant_that_crosses_the_stop_goes_back(server: FakeServer) -> None:
    worker = make(server, task="t")
    server.claims_closed = True
    serve = asyncio.ensure_future(worker.serve())
    await server.wait_until(lambda: server.counts["/v1/claims"] == 1)
    claim_id = server.sent("/v1/claims")[0]["claim_id"]
    job_id = server.add("t")
    server.claims[claim_id] = [server._grant(server.ready.popleft())]  # granted, its answer still on the way
    worker.stop()
    async with asyncio.timeout(20):
        await serve
    assert (server.jobs[job_id]["ending"], server.jobs[job_id]["attempt"]) == ("release", 0)


async def test_cancelling_serve_hands_everything_back(server: FakeServer) -> None:
    worker = make(server)
    started = hanging(worker, "hang")
    job_id = server.add("hang")
    serve = asyncio.ensure_future(worker.serve())
    await started.wait()
    serve.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serve
    assert server.jobs[job_id]["ending"] == "release"


def test_a_task_is_registered_once() -> None:
    worker = Worker()
    worker.task("t", queue="mail")(lambda: None)
    assert worker.queues == ["default", "mail"]
    with pytest.raises(ValueError, match="twice"):
        worker.task("t")(lambda: None)


def _yields() -> Iterator[int]:
    yield 1


async def _yields_async() -> AsyncIterator[int]:
    yield 1


class _CalledYields:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("handler", [_yields, _yields_async, partial(_yields), _CalledYields()])
def test_a_generator_function_is_no_handler(handler: Callable[..., Any]) -> None:
    worker = Worker("http://a")
    with pytest.raises(TypeError, match=r"task 't' is a generator function .* return the result"):
        worker.task("t")(handler)
    assert worker.registry.names() == []


def test_a_decorator_needs_no_parentheses() -> None:
    worker = Worker()

    @worker.task
    def ship(payload: Any) -> Any:
        return payload

    assert worker.registry.names() == ["ship"]
    assert ship(3) == 3
    with pytest.raises(TypeError, match="task's name is text"):
        worker.task(7)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"queues": "shop"}, TypeError, r"queues=\['shop'\]"),
        ({"queues": 3}, TypeError, "queues is a list"),
        ({"queues": [3]}, TypeError, "queues: a queue's name is text, not 3"),
        ({"queues": ["a b"]}, ValueError, "queues: 'a b' is no queue's name: use 1 to 100"),
        ({"queues": [""]}, ValueError, "queues: ''"),
        ({"concurrency": "8"}, TypeError, "concurrency is a whole number, not '8'"),
        ({"concurrency": True}, TypeError, "concurrency"),
        ({"concurrency": 0}, ValueError, "concurrency is 1 to 1000, not 0"),
        ({"lease_seconds": 0.5}, ValueError, "lease_seconds is 1 to 3600"),
        ({"lease_seconds": "30"}, TypeError, "lease_seconds is a number of seconds"),
        ({"grace_seconds": float("nan")}, ValueError, "grace_seconds"),
        ({"name": "two\nlines"}, ValueError, "name: "),
        ({"urls": "127.0.0.1:7281"}, ValueError, "write it as http://127.0.0.1:7281"),
    ],
)
def test_a_wrong_argument_is_named_at_once(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Worker(**options)


async def test_a_worker_with_nothing_to_do_says_so_before_it_asks(server: FakeServer) -> None:
    with pytest.raises(errors.NothingToDo, match=r"@worker\.task"):
        await make(server).serve()
    with pytest.raises(errors.NothingToDo, match="queues="):
        await make(server, task="t", queues=[]).serve()
    assert not server.requests
    with pytest.raises(ValueError, match="'a b' is no queue's name"):
        Worker().task("t", queue="a b")


# ---------------------------------------------------------------- what it tells


def told_of(caplog: pytest.LogCaptureFixture, name: str) -> list[tuple[str, str]]:
    """Level and line of each event of this name."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.msg and record.getMessage().split()[0] == name
    ]


async def test_a_failed_attempt_is_told_with_what_became_of_the_job(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make(server)

    @worker.task("bad")
    async def bad() -> None:
        raise ValueError("one\ntwo")

    again, last = server.add("bad"), server.add("bad")
    server.jobs[last]["attempt"] = 4
    with caplog.at_level("INFO", logger="horae"):
        async with serving(worker):
            await server.wait_until(lambda: bool(server.jobs[again]["errors"] and server.jobs[last]["errors"]))
    told = dict(zip((again, last), told_of(caplog, "attempt_failed"), strict=True))
    for job_id, attempt, state in ((again, 1, "pending"), (last, 5, "dead")):
        level, text = told[job_id]
        line, _, below = text.partition("\n")
        expected = f"attempt_failed task=bad job_id={job_id} attempt={attempt} of=5 state={state} "
        assert (level, line) == ("WARNING", expected + 'error="ValueError: one\\ntwo"')
        assert below.startswith("Traceback")
        assert "in bad" in below


async def test_a_failure_that_came_too_late_says_so(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    worker = make(server)
    job_id = server.add("late")

    @worker.task("late")
    async def late() -> None:
        server.expire(job_id)
        raise Retry("no time")

    with caplog.at_level("INFO", logger="horae"):
        async with serving(worker):
            await server.wait_until(lambda: server.counts["/v1/leases/complete"] == 1)
    ((level, line),) = told_of(caplog, "attempt_failed")
    assert (level, "state=lease_lost" in line) == ("WARNING", True)


async def test_a_cancelled_attempt_is_no_failure(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    server.lease_seconds = 1.0
    worker = make(server)
    started = hanging(worker, "long")
    job_id = server.add("long")
    with caplog.at_level("INFO", logger="horae"):
        async with serving(worker):
            await started.wait()
            server._cancel(server.jobs[job_id])
            await server.wait_finished(job_id)
    assert told_of(caplog, "attempt_failed") == []
    error = 'error="Cancelled: cancelled on request"'
    assert told_of(caplog, "attempt_cancelled") == [
        ("INFO", f"attempt_cancelled task=long job_id={job_id} attempt=1 {error}")
    ]


async def test_a_failure_that_nobody_takes_is_told_at_the_end(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make(server)

    @worker.task("bad")
    async def bad() -> None:
        raise Dead("why")

    server.fault("/v1/leases/complete", *["hang"] * 9)
    server.add("bad")
    with caplog.at_level("INFO", logger="horae"):
        async with serving(worker):
            await server.wait_until(lambda: server.counts["/v1/leases/complete"] == 1)
    ((_, line),) = told_of(caplog, "attempt_failed")
    assert line.endswith('state=unknown error="Dead: why"')
    assert len(told_of(caplog, "outcomes_unreported")) == 1


@pytest.mark.parametrize(
    ("fault", "name"),
    [("cut", "cluster_unreachable"), ("no_leader", "cluster_not_serving"), ("rate_limited", "cluster_turned_away")],
)
async def test_a_cluster_that_is_away_and_back_is_told(
    server: FakeServer, caplog: pytest.LogCaptureFixture, fault: str, name: str
) -> None:
    """An idle worker too: its next claim is a short one, so that the answer need not wait for a job."""
    worker = make(server, task="t")
    worker.tell_seconds = 0
    server.fault(
        "/v1/claims",
        "cut" if fault == "cut" else problem(fault, 429 if fault == "rate_limited" else 503),
        _ok({"jobs": []}),
    )
    with caplog.at_level("INFO", logger="horae"):
        async with serving(worker):
            await server.wait_until(lambda: server.counts["/v1/claims"] >= 3)
    waits = [body["wait_seconds"] for body in server.sent("/v1/claims")]
    told = [record.getMessage() for record in caplog.records]
    away = [line.startswith(name) and server.url in line for line in told].index(True)
    back = [line.startswith("cluster_serves after_seconds=") for line in told].index(True)
    assert away < back
    assert waits[:3] == [20, 1, 20]


async def test_a_stop_without_a_cluster_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody was there to grant anything: a claim without an answer left nothing behind."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        worker = Worker(f"http://127.0.0.1:{sock.getsockname()[1]}")
        worker.task("t")(lambda: None)
        with caplog.at_level("INFO", logger="horae"):
            async with serving(worker):
                await asyncio.sleep(0)
    assert [line.split()[0] for line in caplog.messages] == ["worker_started", "worker_stopping", "worker_stopped"]


SHOP = """
import os, signal
from horae import Worker
worker = Worker({url!r})
{logging}
@worker.task
def last(payload):
    os.kill(os.getpid(), signal.SIGTERM)
worker.run()
"""


@pytest.mark.parametrize(
    ("logging", "shown"),
    [
        (
            "",
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info worker_started .* tasks=last .*\n"
            r".* info worker_stopping .* jobs=1 .*\n.* worker_stopped .*\n",
        ),
        ("import logging; logging.basicConfig(level=logging.ERROR)", ""),
    ],
)
async def test_a_worker_shows_what_it_does_if_logging_is_not_set_up(
    server: FakeServer, logging: str, shown: str
) -> None:
    server.add("last")
    program = SHOP.format(url=server.url, logging=logging)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    async with asyncio.timeout(30):
        _, told = await process.communicate()
    assert process.returncode == 0
    assert re.fullmatch(shown, told.decode()), told.decode()
