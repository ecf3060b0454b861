"""A task's handle makes the jobs that its handler takes, and no others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.helpers.fake_server import FakeServer
from tests.unit.client.test_worker import make, serving

from horae import AsyncClient, Context, NewJob, RetryPolicy, Worker

REPOSITORY = Path(__file__).resolve().parents[3]


class Order(msgspec.Struct):
    number: int


def handles() -> dict[str, Any]:
    worker = Worker(name="w")

    @worker.task
    def plain(order: int, express: bool = False) -> str:
        return f"{order} {express}"

    @worker.task("with-context", queue="mail", max_attempts=3, retry=RetryPolicy(initial_seconds=5))
    async def with_context(context: Context, to: str, *, subject: str = "") -> str:
        return f"{context} {to} {subject}"

    @worker.task
    def whole(payload: Order) -> int:
        return payload.number

    @worker.task
    def open_ended(first: int, **rest: int) -> int:
        return first + sum(rest.values())

    @worker.task
    def unnamed(*numbers: int) -> int:
        return sum(numbers)

    made = (plain, with_context, whole, open_ended, unnamed)
    return {handle.__name__: handle for handle in made}


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "payload"),
    [
        ("plain", (7,), {}, {"order": 7}),
        ("plain", (), {"order": 7, "express": True}, {"order": 7, "express": True}),
        ("with_context", ("me",), {"subject": "hi"}, {"to": "me", "subject": "hi"}),
        ("whole", (Order(3),), {}, Order(3)),
        ("open_ended", (1,), {"b": 2, "c": 3}, {"first": 1, "b": 2, "c": 3}),
        ("unnamed", (), {}, None),
    ],
)
def test_a_call_becomes_the_payload_that_makes_it(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], payload: Any
) -> None:
    handle = handles()[name]
    assert handle.job(*args, **kwargs).payload == payload


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "says"),
    [
        ("plain", (), {}, "task 'plain' takes .*: missing a required argument: 'order'"),
        ("plain", (7,), {"fast": True}, "unexpected keyword argument 'fast'"),
        ("plain", (7, True, 1), {}, "too many positional arguments"),
        ("with_context", ("me", "hi"), {}, "too many positional arguments"),
        ("unnamed", (1, 2), {}, "'numbers' has no name in a payload"),
    ],
)
def test_what_its_handler_would_not_take_is_refused_here(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        handles()[name].job(*args, **kwargs)


def test_a_handle_is_the_function_as_well() -> None:
    plain = handles()["plain"]
    assert plain(7, express=True) == "7 True"
    assert (plain.name, plain.__name__, repr(plain)) == ("plain", "plain", "<task 'plain'>")


def test_options_are_those_of_the_task_until_a_call_says_otherwise() -> None:
    task = handles()["with_context"]
    assert task.job("me") == NewJob(
        task="with-context", payload={"to": "me"}, queue="mail", max_attempts=3, retry=RetryPolicy(initial_seconds=5)
    )
    hurried = task.options(priority=9, max_attempts=1)
    assert (hurried.job("me").priority, hurried.job("me").max_attempts, task.job("me").max_attempts) == (9, 1, 3)
    with pytest.raises(TypeError, match="delay_minutes"):
        task.options(delay_minutes=5)


def test_a_job_goes_where_the_worker_looks() -> None:
    worker = Worker(queues=["shop", "other"])
    assert worker.task("in-the-first")(lambda: None).job().queue == "shop"
    assert worker.task("in-its-own", queue="mail")(lambda: None).job().queue == "mail"
    assert worker.queues == ["shop", "other", "mail"]


async def test_jobs_are_made_on_the_workers_cluster_and_run_there(server: FakeServer) -> None:
    worker = make(server)

    @worker.task
    def double(n: int) -> int:
        return 2 * n

    async with serving(worker):
        one = await asyncio.to_thread(double.submit, 21)
        many = await asyncio.to_thread(double.map, [{"n": 1}, (2,)])
        results = [(await server.wait_finished(job.id))["result"] for job in (one, *many)]
    assert results == [42, 2, 4]
    with pytest.raises(TypeError, match="missing"):
        await asyncio.to_thread(double.map, [{"n": 1}, {}])


async def test_any_client_takes_its_jobs(server: FakeServer, client: AsyncClient) -> None:
    worker = make(server)

    @worker.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with serving(worker):
        job = (await client.submit_job(greet.job(name="you"))).job
        assert await client.result(job.id) == "hello you"


def test_a_type_checker_sees_what_a_task_takes() -> None:
    roots = os.pathsep.join(str(REPOSITORY / root) for root in ("node", "storage", "http", "worker_client"))
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/unit/client/typed_tasks.py"],
        cwd=REPOSITORY,
        env={**os.environ, "MYPYPATH": roots},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
