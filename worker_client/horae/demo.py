"""The demo worker that `horae dev` starts: three small tasks to submit by hand. `python -m horae.demo` runs it.

horae submit hello --payload '{"name": "Ada"}' --wait
"""

from __future__ import annotations

import os

from horae.client import DEFAULT_URL
from horae.errors import Retry
from horae.registry import Context
from horae.worker import Worker

worker = Worker(
    os.environ.get("HORAE_URL") or DEFAULT_URL,
    queues=["default"],
    concurrency=4,
    token=os.environ.get("HORAE_TOKEN") or None,
    grace_seconds=5,
)


@worker.task("hello")
async def hello(name: str = "world") -> str:
    """A greeting."""
    return f"Hello, {name}!"


@worker.task("add")
def add(a: float, b: float) -> float:
    """A sum. A plain function: it runs in a thread."""
    return a + b


@worker.task("flaky")
async def flaky(context: Context, failures: int = 2) -> str:
    """Fails its first attempts, to show retries."""
    if context.attempt <= failures:
        raise Retry(f"attempt {context.attempt} of a task that fails {failures} times")
    return f"succeeded at attempt {context.attempt}"


if __name__ == "__main__":
    worker.run()
