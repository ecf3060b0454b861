"""What a worker shows of what it does: hooks around attempts, a job's own log lines, what runs, who blocks the loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import re
import signal
import threading
from typing import Any

import pytest
from tests.helpers.fake_server import FakeServer
from tests.unit.client.test_worker import hanging, make, serving

from horae import Context, Dead, Retry, Snooze

# ---------------------------------------------------------------- hooks


async def test_hooks_are_called_around_an_attempt_in_order(server: FakeServer) -> None:
    worker = make(server)
    told: list[str] = []

    @worker.before
    def first(context: Context) -> None:
        told.append(f"first {context.job.task}")

    @worker.before
    async def second(context: Context) -> None:
        told.append(f"second {context.attempt}")

    @worker.after
    async def inner(context: Context, result: Any) -> None:
        told.append(f"inner {result}")

    @worker.after
    def outer(context: Context, result: Any) -> None:
        told.append(f"outer {result}")

    @worker.task("add")
    async def add(a: int, b: int) -> int:
        told.append("add")
        return a + b

    job_id = server.add("add", {"a": 1, "b": 2})
    async with serving(worker):
        job = await server.wait_finished(job_id)
    assert job["result"] == 3
    assert told == ["first add", "second 1", "add", "outer 3", "inner 3"]


async def test_what_a_hook_sets_is_there_in_the_thread_of_a_plain_handler(server: FakeServer) -> None:
    worker = make(server)
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")

    @worker.before
    def begin(context: Context) -> None:
        trace.set(context.job_id)

    @worker.task("plain")
    def plain() -> list[Any]:
        return [trace.get(), threading.current_thread() is not threading.main_thread()]

    jobs = [server.add("plain") for _ in range(5)]
    async with serving(worker):
        results = [(await server.wait_finished(job_id))["result"] for job_id in jobs]
    assert results == [[job_id, True] for job_id in jobs]


async def test_errors_are_told_and_what_is_no_error_is_not(server: FakeServer) -> None:
    worker = make(server)
    told: list[str] = []

    @worker.on_error
    async def tell(context: Context, error: BaseException) -> None:
        told.append(f"{context.job.task}: {error!r}")

    @worker.on_error
    def broken(context: Context, error: BaseException) -> None:
        raise RuntimeError("a hook of no use")

    for name, raised in {"bug": ValueError("no"), "dead": Dead("for good"), "retry": Retry("later")}.items():

        @worker.task(name)
        def handler(raised: str = name, error: Exception = raised) -> None:
            raise error

    @worker.task("snooze")
    async def snooze() -> None:
        raise Snooze(60)

    jobs = {name: server.add(name) for name in ("bug", "dead", "retry", "snooze")}
    async with serving(worker):
        await server.wait_until(lambda: all(server.jobs[job_id]["ending"] for job_id in jobs.values()))
    assert sorted(told) == ["bug: ValueError('no')", "dead: Dead('for good')", "retry: Retry('later')"]
    assert server.jobs[jobs["bug"]]["errors"][0]["type"] == "ValueError"


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_attempt_fails_with_what_its_hook_raises(server: FakeServer, moment: str) -> None:
    worker = make(server)
    ran: list[str] = []

    def refuse(context: Context, *result: Any) -> None:
        raise PermissionError("not today")

    getattr(worker, moment)(refuse)

    @worker.task("ship")
    async def ship() -> None:
        ran.append("ship")

    job_id = server.add("ship")
    async with serving(worker):
        await server.wait_until(lambda: bool(server.jobs[job_id]["errors"]))
    assert server.jobs[job_id]["errors"][0]["type"] == "PermissionError"
    assert ran == (["ship"] if moment == "after" else [])


@pytest.mark.parametrize("moment", ["before", "after", "on_error"])
def test_a_hook_that_cannot_be_called_is_named_at_once(server: FakeServer, moment: str) -> None:
    worker = make(server)
    with pytest.raises(TypeError, match=rf"a hook of @worker.{moment} is called with \(context"):
        getattr(worker, moment)(lambda: None)
    with pytest.raises(TypeError, match="is for a function"):
        getattr(worker, moment)("ship")


# ---------------------------------------------------------------- its lines


async def test_a_jobs_own_lines_name_it(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    worker = make(server)

    @worker.task("ship")
    async def ship(context: Context) -> None:
        context.log.info("half")
        context.log.warning("%d %% of %s", 50, "it", extra={"order": 7})
        assert context.fencing_token == context.lease_token

    with caplog.at_level("INFO", logger="horae.task"):
        job_id = server.add("ship")
        async with serving(worker):
            await server.wait_finished(job_id)
    lines = [record for record in caplog.records if record.name == "horae.task"]
    assert [record.getMessage() for record in lines] == [
        f"half job_id={job_id} task=ship attempt=1",
        f"50 % of it job_id={job_id} task=ship attempt=1",
    ]
    assert [(record.funcName, record.task) for record in lines] == [("ship", "ship")] * 2  # type: ignore[attr-defined]
    assert lines[1].order == 7  # type: ignore[attr-defined]


# ---------------------------------------------------------------- what runs


async def test_a_signal_shows_what_runs(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    worker = make(server, concurrency=3)
    started = hanging(worker, "hang")
    gate, in_thread = threading.Event(), threading.Event()

    @worker.task("plain")
    def plain() -> None:
        in_thread.set()
        gate.wait(20)

    hang_id, plain_id = server.add("hang"), server.add("plain")
    serve = asyncio.ensure_future(worker.serve(signals=True))
    await started.wait()
    await asyncio.to_thread(in_thread.wait, 20)
    caplog.clear()
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0)
    lines = {line.partition(" for_seconds")[0]: line for line in caplog.messages}
    assert set(lines) == {
        "running jobs=2 of=3",
        f"runs job_id={hang_id} task=hang attempt=1",
        f"runs job_id={plain_id} task=plain attempt=1",
    }
    assert re.search(
        r'at=".*test_worker\.py:\d+ hanging.<locals>.hang"', lines[f"runs job_id={hang_id} task=hang attempt=1"]
    )
    assert lines[f"runs job_id={plain_id} task=plain attempt=1"].endswith('at="a thread"')
    gate.set()
    worker.stop()
    worker.stop()
    async with asyncio.timeout(20):
        await serve


async def test_who_blocks_the_loop_is_named_and_until_when(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("loop_blocked"):
                told.set()

    handler = Heard()
    logging.getLogger("horae").addHandler(handler)
    worker = make(server)
    worker.blocked_seconds = 0.05

    @worker.task("block")
    async def block() -> bool:
        return told.wait(20)  # blocks the loop until it was told of

    job_id = ""

    def work() -> None:
        asyncio.run(worker.serve())

    thread = threading.Thread(target=work)
    try:
        job_id = server.add("block")
        thread.start()
        job = await server.wait_finished(job_id)
        worker.stop()
        await asyncio.to_thread(thread.join)
    finally:
        logging.getLogger("horae").removeHandler(handler)
    assert job["result"] is True
    blocked = next(line for line in caplog.messages if line.startswith("loop_blocked"))
    assert blocked.startswith(f"loop_blocked job_id={job_id} task=block at=")
    assert "threading.py" in blocked
    assert any(line.startswith("loop_runs_again blocked_seconds=") for line in caplog.messages)


async def test_a_loop_that_runs_is_not_told_of(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    worker = make(server, task="nothing")
    worker.blocked_seconds = 5.0
    async with serving(worker):
        await server.wait_finished(server.add("nothing"))
    assert not [line for line in caplog.messages if line.startswith("loop_")]
