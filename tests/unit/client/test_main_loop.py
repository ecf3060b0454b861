"""A loop that runs what is not ours goes on after an exit that was not meant for it, and ends what was left on it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from horae import main_loop, transport

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(params=[asyncio.new_event_loop, transport.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    return partial(main_loop.run, loop_factory=request.param, left_seconds=0.01)


async def leave() -> None:
    sys.exit(3)


async def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("child", [leave, interrupt])
def test_an_exit_in_a_task_is_its_awaiters(
    run: Run[Any], child: Callable[[], Coroutine[Any, Any, None]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> list[str]:
        bystander = asyncio.create_task(asyncio.sleep(0.01, "done"))
        children = [asyncio.create_task(child()) for _ in range(3)]
        ends = await asyncio.gather(*children, return_exceptions=True)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
        return [type(end).__name__ for end in ends] + [await bystander]

    kind = "SystemExit" if child is leave else "KeyboardInterrupt"
    assert run(main()) == [kind] * 3 + ["done"]
    assert {line.split()[0] for line in caplog.messages} == {"exit_ignored"}
    assert kind in caplog.messages[0]


def test_a_stop_of_the_loop_does_nothing(run: Run[Any], caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "done"

    assert run(main()) == "done"
    assert [line.split()[0] for line in caplog.messages] == ["loop_stop_ignored"]


def test_its_own_exception_is_raised(run: Run[Any]) -> None:
    async def main() -> None:
        await asyncio.create_task(leave())

    with pytest.raises(SystemExit, match="3"):
        run(main())


def test_what_is_left_ends_and_holds_up_nothing(run: Run[Any]) -> None:
    """A task that exits as it ends, one that will not end, a call in a thread, a generator that is half read."""
    ended: list[str] = []
    kept: list[object] = []
    never = threading.Event()

    async def exits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("exits")
            sys.exit(4)

    async def refuses() -> None:
        while not never.is_set():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("refuses")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def main() -> str:
        kept.extend(asyncio.create_task(it()) for it in (exits, refuses))
        kept.append(asyncio.get_running_loop().run_in_executor(None, never.wait))
        kept.append(generator := numbers())
        await anext(generator)
        return "done"

    try:
        assert run(main()) == "done"
    finally:
        never.set()
    assert sorted(ended) == ["exits", "generator", "refuses"]
