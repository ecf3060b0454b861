"""The calls on schedules, for `AsyncClient`.

Not here: how calls are made and repeated (`client.py`, `transport.py`). Next to read: `schedules.py` for the shapes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack

from msgspec import Struct

from horae import codec, errors
from horae.calls import moment, part, query, require_known, settled
from horae.ids import new_id
from horae.jobs import Job, NewJob
from horae.schedules import NextTime, Schedule, ScheduleRule, ScheduleTerms, Trigger, Triggered
from horae.transport import Again, Answer, Refusal

_MOMENTS = ("starts_at", "ends_at")
_Page = TypeVar("_Page", bound=Struct)


class _Schedules(Struct):
    schedules: list[Schedule]
    next_cursor: str | None


class _Triggers(Struct):
    triggers: list[Trigger]
    next_cursor: str | None


class _NextTimes(Struct):
    times: list[NextTime]


class ScheduleCalls:
    """Each is safe to repeat and repeated until its deadline, as all of `AsyncClient`, which this is a part of."""

    @abstractmethod
    async def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        deadline_seconds: float | None = None,
        *,
        until: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer: ...

    @abstractmethod
    async def _refusable(
        self,
        method: str,
        path: str,
        body: bytes | None,
        until: float,
        wait_seconds: float = 0.0,
        try_seconds: float | None = None,
        again: Again | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer: ...

    @abstractmethod
    def _until(self, deadline_seconds: float | None) -> float: ...

    async def put_schedule(
        self,
        schedule_id: str,
        job: NewJob,
        *,
        if_version: int | None = None,
        deadline_seconds: float | None = None,
        **terms: Unpack[ScheduleTerms],
    ) -> Schedule:
        """Make a schedule, or replace it: `job` (without `id`, `run_at`, `delay_seconds`) at each of its triggers.

        `if_version`: replace that version only; 0: only make it. The same again changes nothing.

        Raises: `Invalid`, which names the field; `PreconditionFailed` for another version; `OutcomeUnknown` where that
        may be our own, after an answer that was lost: read it.
        """
        require_known("put_schedule", terms, ScheduleTerms.__optional_keys__)
        body = codec.encode({"job": settled(job), **_said(terms)})
        until = self._until(deadline_seconds)
        try:
            answer = await self._refusable("PUT", _path(schedule_id), body, until, headers=_condition(if_version))
        except Refusal as refusal:
            if refusal.repeated and isinstance(refusal.error, errors.PreconditionFailed):
                detail = f"schedule {schedule_id}: an answer was lost, and it is of another version by now: read it"
                raise errors.made_here("outcome_unknown", 504, "Outcome unknown", detail) from None
            raise refusal.error from None
        return answer.decode(Schedule)

    async def schedule(self, schedule_id: str, *, deadline_seconds: float | None = None) -> Schedule:
        """Read one. Raises: `NotFound`."""
        return (await self._call("GET", _path(schedule_id), None, deadline_seconds)).decode(Schedule)

    async def schedules(self, *, page: int = 200) -> AsyncIterator[Schedule]:
        """All schedules, by id, read a page at a time."""
        async for got in self._pages("/v1/schedules", {}, _Schedules, page):
            for schedule in got.schedules:
                yield schedule

    async def delete_schedule(self, schedule_id: str, *, deadline_seconds: float | None = None) -> None:
        """Nothing of it fires any more, and its ledger goes; its jobs live on. Raises: `NotFound`.

        It is read first: a `not_found` of the delete itself may be that of our own success, repeated.
        """
        until = self._until(deadline_seconds)
        await self._call("GET", _path(schedule_id), until=until)
        try:
            await self._call("DELETE", _path(schedule_id), until=until)
        except errors.NotFound:
            return

    async def pause_schedule(self, schedule_id: str, *, deadline_seconds: float | None = None) -> Schedule:
        """Let its triggers go by from now on. Raises: `NotFound`."""
        return (await self._call("POST", f"{_path(schedule_id)}/pause", None, deadline_seconds)).decode(Schedule)

    async def resume_schedule(
        self, schedule_id: str, *, missed: bool = False, deadline_seconds: float | None = None
    ) -> Schedule:
        """Let its triggers run again; with `missed` those of the pause count as missed ones. Raises: `NotFound`."""
        path = f"{_path(schedule_id)}/resume{'?missed=true' if missed else ''}"
        return (await self._call("POST", path, None, deadline_seconds)).decode(Schedule)

    async def trigger_schedule(
        self, schedule_id: str, *, own_id: str | None = None, deadline_seconds: float | None = None
    ) -> Job:
        """Make a job of it now, besides its triggers: `{schedule}@manual-{own_id}`. The same `own_id` makes no second
        one; without one it is made here, once for all retries.

        Raises: `NotFound`.
        """
        body = codec.encode({"id": own_id or new_id()})
        return (await self._call("POST", f"{_path(schedule_id)}/trigger", body, deadline_seconds)).decode(Job)

    async def backfill_schedule(
        self,
        schedule_id: str,
        from_: datetime | str,
        to: datetime | str,
        *,
        deadline_seconds: float | None = None,
    ) -> Triggered:
        """Run those triggers from `from_` on and before `to` that have come and have not run: at most `max_catch_up`,
        the oldest first.

        Raises: `NotFound`, `Invalid` for a window that has not begun.
        """
        body = codec.encode({"from": moment(from_), "to": moment(to)})
        return (await self._call("POST", f"{_path(schedule_id)}/backfill", body, deadline_seconds)).decode(Triggered)

    async def triggers(
        self,
        schedule_id: str,
        *,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        page: int = 200,
    ) -> AsyncIterator[Trigger]:
        """The ledger, oldest first: what became of each trigger from `from_` on and before `to`. Raises: `NotFound`."""
        window = {"from": moment(from_), "to": moment(to)}
        async for got in self._pages(f"{_path(schedule_id)}/triggers", window, _Triggers, page):
            for trigger in got.triggers:
                yield trigger

    async def next_times(
        self,
        schedule_id: str,
        n: int = 10,
        *,
        from_: datetime | str | None = None,
        deadline_seconds: float | None = None,
    ) -> list[NextTime]:
        """The next `n` moments that it names, from then on or from now. Raises: `NotFound`."""
        path = f"{_path(schedule_id)}/next?{query({'n': str(n), 'from': moment(from_)})}"
        return (await self._call("GET", path, None, deadline_seconds)).decode(_NextTimes).times

    async def preview(
        self,
        n: int = 10,
        *,
        schedule_id: str | None = None,
        from_: datetime | str | None = None,
        deadline_seconds: float | None = None,
        **rule: Unpack[ScheduleRule],
    ) -> list[NextTime]:
        """The same of a schedule that is not saved; `schedule_id`: what it would be called, by which `H` is spread.

        Raises: `Invalid`, with what is wrong with it.
        """
        require_known("preview", rule, ScheduleRule.__optional_keys__)
        said = {"id": schedule_id, "n": n, "from": moment(from_), **_said(rule)}
        body = codec.encode({key: value for key, value in said.items() if value is not None})
        return (await self._call("POST", "/v1/schedules/preview", body, deadline_seconds)).decode(_NextTimes).times

    async def _pages(
        self, path: str, asked: dict[str, str | None], shape: type[_Page], page: int
    ) -> AsyncIterator[_Page]:
        cursor: str | None = None
        while True:
            which = query({**asked, "limit": str(page), "cursor": cursor})
            got = (await self._call("GET", f"{path}?{which}")).decode(shape)
            yield got
            cursor = got.next_cursor  # type: ignore[attr-defined]
            if cursor is None:
                return


def _path(schedule_id: str) -> str:
    return f"/v1/schedules/{part(schedule_id, '/id')}"


def _condition(if_version: int | None) -> dict[str, str] | None:
    if if_version is None:
        return None
    return {"If-None-Match": "*"} if if_version == 0 else {"If-Match": f'"{if_version}"'}


def _said(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Ready to send: moments as text, and nothing that was left open."""
    said = {key: moment(value) if key in _MOMENTS else value for key, value in terms.items()}
    return {key: value for key, value in said.items() if value is not None}
