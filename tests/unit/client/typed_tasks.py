"""What a type checker makes of task handles: each line that is wrong says so (`test_handles.py` runs mypy on this)."""

from __future__ import annotations

from typing import assert_type

from horae import Context, NewJob, Worker

worker = Worker(queues=["shop"])


@worker.task
def ship(order: int, express: bool = False) -> str:
    return f"{order} {express}"


@worker.task("charge", max_attempts=3, timeout_seconds=60)
async def charge(context: Context, amount: float) -> None:
    context.log.info("%s", amount)


assert_type(ship.job(7, express=True), NewJob)
assert_type(ship(7), str)
ship.submit(order=7)
ship.submit(order="seven")  # type: ignore[arg-type]
ship.submit(7, fast=True)  # type: ignore[call-arg]
charge.options(delay_seconds=5).submit(amount=3.5)
charge.submit()  # type: ignore[call-arg]
charge.options(delay_minutes=5)  # type: ignore[call-arg]
