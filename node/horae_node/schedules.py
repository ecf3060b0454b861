"""The facade's half for schedules: every call of the contract about them, as one coroutine.

Which moments a rule names is reckoned here, where a call asks for it, or by the leader when they have come
(`leader/scheduler.py`); what becomes of them is the machine's. Errors as of `service.py`.
Not here: HTTP, calendars (`cron.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final

from horae import wire
from horae_node import cron, ids, reads, translate
from horae_node.applier import Applier
from horae_node.clock import Clock
from horae_node.core import schedule_views
from horae_node.core.commands import (
    BackfillSchedule,
    Command,
    DeleteSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    TriggerSchedule,
)
from horae_node.core.decide.schedules import missed_from_ms, submit_of
from horae_node.core.model import SCHEDULES_VERSION, Fate, Occurrence, ScheduleSpec
from horae_node.core.results import Outcome, Rejected, ScheduleChanged, Submitted, TriggersRan
from horae_node.core.tables import LEDGER_ROWS_MAX, trigger_id
from horae_node.errors import NotApplied, Refused
from horae_node.leader.scheduler import next_occurrence
from horae_node.leader.session import LeaderSession
from horae_node.pace import Pace
from horae_node.proposer import Proposer
from horae_node.shedding import Rank
from horae_node.turns import Turns

DUE_LOOKS, DUE_LOOK_S = 200, 0.01
"""How long a change waits for what was due before it: a firing takes a few milliseconds."""
RECKON_MS_MAX: Final = 5
"""What callers have reckoned in one pass of the loop, all of them together. A moment takes 50 µs, a rare one two ms."""
BACKFILL_PART: Final = 100
"""Triggers that one command backfills."""
FOREVER_MS: Final = 2**62

_FATES: Final[tuple[wire.TriggerOutcome, ...]] = (
    "ran",
    "skipped_overlap",
    "skipped_missed",
    "folded",
    "dropped_limit",
    "paused",
    "dst_skipped",
)


Own = Callable[[str], None]
"""Asked with the queue of a schedule's jobs each time that it is looked at: it raises where that is not the caller's.
Between two looks it may have been deleted, and another one made."""


class Schedules:
    """One for a node."""

    def __init__(
        self,
        *,
        applier: Applier,
        proposer: Proposer,
        session: LeaderSession,
        wait_current: Callable[[], Awaitable[None]],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        pace: Pace,
        wait_for_rules: Callable[[int], Awaitable[None]],
        reckonings: Turns,
        clock: Clock,
    ) -> None:
        """The service's own: `wait_current` before a reading that must not be stale, `turn` for a long look,
        `pace` for what may be large, `wait_for_rules` of a machine version before what needs them, `reckonings` for
        what a caller has reckoned."""
        self._applier = applier
        self._proposer = proposer
        self._session = session
        self._wait_current = wait_current
        self._turn = turn
        self._pace = pace
        self._wait_for_rules = wait_for_rules
        self._reckonings = reckonings
        self._clock = clock

    # ------------------------------------------------------------------ changes

    async def put(
        self, schedule_id: str, request: wire.ScheduleRequest, if_version: int | None
    ) -> tuple[wire.ScheduleView, bool]:
        """The schedule, and whether it is new. `if_version` 0: only if there is none; None: whatever there is.

        Raises: `Refused` (`invalid` by field, `version`), `NotApplied`, `OutcomeUnknown`.
        """
        await self._wait_for_rules(SCHEDULES_VERSION)
        self._proposer.require_room(Rank.NEW)
        async with self._reckonings.one():
            require_rule(translate.schedule_rule(schedule_id, request))
        spec = translate.schedule_spec(schedule_id, request)

        def command() -> Command:
            first = self._first(spec)
            if not self._is_stored(spec):
                self._require_ahead(first, spec.job.expires_at_ms)
            return PutSchedule(spec, request.paused, first, if_version)

        changed = self._changed(await self._when_nothing_is_due(schedule_id, command), schedule_id)
        return await self._view(schedule_id), changed.created

    def _first(self, spec: ScheduleSpec) -> Occurrence | None:
        """Where its times stay what they were, the one that is in the log: this node's zone data may be others."""
        found = schedule_views.find(self._applier.view, spec.id)
        if found is not None and translate.times_of(found.spec) == translate.times_of(spec):
            return found.run.next
        return next_occurrence(spec, self._session.now_ms())

    def _require_ahead(self, first: Occurrence | None, expires_ms: int | None) -> None:
        if first is None:
            raise _over()
        if expires_ms is not None:
            _require_unexpired(expires_ms, self._session.now_ms())

    def _is_stored(self, spec: ScheduleSpec) -> bool:
        found = schedule_views.find(self._applier.view, spec.id)
        return found is not None and found.spec == spec

    def version_of(self, schedule_id: str) -> int | None:
        """As this node has applied it; None for no schedule."""
        found = schedule_views.find(self._applier.view, schedule_id)
        return None if found is None else found.run.version

    async def delete(self, schedule_id: str) -> None:
        """Its jobs live on. Raises: `Refused("not_found")`, `NotApplied`, `OutcomeUnknown`."""
        self._proposer.require_room(Rank.NEW)
        self._find(schedule_id)  # so that nothing is proposed that older members do not know
        self._changed(await self._proposer.run_one(DeleteSchedule(schedule_id)), schedule_id)

    async def pause(self, schedule_id: str) -> wire.ScheduleView:
        self._proposer.require_room(Rank.NEW)
        self._find(schedule_id)
        self._changed(await self._proposer.run_one(PauseSchedule(schedule_id)), schedule_id)
        return await self._view(schedule_id)

    async def resume(self, schedule_id: str, *, missed: bool, own: Own = lambda queue: None) -> wire.ScheduleView:
        """With `missed` the triggers of the pause are dealt with now, as missed ones."""
        self._proposer.require_room(Rank.NEW)

        def command() -> Command:
            found = self._find(schedule_id, own)
            rewind = None
            if missed and found.run.paused_ms is not None:
                with _stored_rule():
                    rewind = next_occurrence(found.spec, missed_from_ms(found.run) - 1)
            return ResumeSchedule(schedule_id, rewind)

        self._changed(await self._when_nothing_is_due(schedule_id, command), schedule_id)
        return await self._view(schedule_id)

    async def trigger(self, schedule_id: str, own_id: str | None = None) -> tuple[wire.JobView, bool]:
        """A job of it now, besides its triggers; or, not new, the one of the caller's own id, or of its `unique_key`.

        One whose record is gone is shown by the template as it is now. Raises: `Refused` (`not_found`, `rate_limited`).
        """
        self._proposer.require_room(Rank.NEW)
        self._find(schedule_id)
        job_id = f"{schedule_id}@manual-{own_id or ids.uuid7(self._session.now_ms())}"
        outcome = await self._proposer.run_one(TriggerSchedule(schedule_id, job_id))
        if isinstance(outcome, Rejected):
            if outcome.code == "rate_limited":
                raise Refused(outcome.code, reads.too_deep(self._applier.view, self._find(schedule_id).spec.job.queue))
            raise _refused(outcome, schedule_id)
        assert isinstance(outcome, Submitted)
        if outcome.gone is not None:
            template = self._find(schedule_id).spec
            spec = submit_of(template, job_id, None, outcome.gone.first_due_ms).spec
            return reads.gone_job_view(spec, outcome.gone), False
        if outcome.new is not None:
            return reads.new_job_view(outcome.new.spec, outcome.new.run), True
        return await self._pace.show(lambda: self._job(outcome.seq), reads.content_bytes), False

    def _job(self, seq: int) -> wire.JobView:
        meta = self._applier.meta()
        try:
            return reads.job_view(self._applier.view, seq, reads.Clocks(meta.now_ms, meta.lease_clock))
        except reads.Gone as error:
            raise Refused("not_found", "the job's record is gone: its retention is over or it was deleted") from error

    async def backfill(
        self, schedule_id: str, request: wire.BackfillRequest, *, own: Own = lambda queue: None
    ) -> wire.BackfillAnswer:
        """Those triggers of the window that have come and have not run, at most `max_catch_up`, the oldest first.

        Raises: `Refused` (`not_found`, `invalid` for a window that has not begun, or is older than the ledger).
        """
        self._proposer.require_room(Rank.NEW)
        found = self._find(schedule_id)
        now_ms = self._session.now_ms()
        from_ms, to_ms = translate.moment_ms(request.from_), min(translate.moment_ms(request.to), now_ms)
        if from_ms >= now_ms:
            raise Refused("invalid", "lies in the future: those triggers will come by themselves", "/from")
        self._require_remembered(found, from_ms)
        count = triggers = looked = 0
        left = found.spec.max_catch_up
        with _stored_rule(), self._reckonings.place():
            rule = translate.rule_of(found.spec)
            while named := await self._reckoned(rule, from_ms, to_ms, min(BACKFILL_PART, left + 1)):
                part = named[:left]
                self._find(schedule_id, own)
                count += await self._run_again(schedule_id, part)
                runs = sum(one.kind == "run" for one in part)
                triggers += runs
                left = found.spec.max_catch_up - count
                looked += len(part)
                from_ms = part[-1].nominal_ms + 1
                if not left or looked >= found.spec.max_catch_up + LEDGER_ROWS_MAX:
                    break
            more = bool(await self._reckoned(rule, from_ms, to_ms, 1))
        return wire.BackfillAnswer(count, triggers, more)

    async def _run_again(self, schedule_id: str, named: list[cron.Occurrence]) -> int:
        """How many of them had not run. What clocks jumped over is noted as such."""
        part = [Occurrence(one.nominal_ms, one.nominal_ms, "" if one.kind == "run" else one.note) for one in named]
        outcome = await self._proposer.run_one(BackfillSchedule(schedule_id, tuple(part)))
        if isinstance(outcome, Rejected):
            raise _refused(outcome, schedule_id)
        assert isinstance(outcome, TriggersRan)
        return outcome.jobs

    def _require_remembered(self, found: schedule_views.Schedule, from_ms: int) -> None:
        """What ran before the first line of a full ledger would run again."""
        if found.run.ledger_rows >= LEDGER_ROWS_MAX:
            oldest = schedule_views.ledger(self._applier.view, found.run, 0, FOREVER_MS, 1)[0][0]
            if from_ms < oldest:
                raise Refused(
                    "invalid", f"lies before what the ledger remembers ({reads.moment_text(oldest)})", "/from"
                )

    async def _when_nothing_is_due(self, schedule_id: str, command: Callable[[], Command]) -> Outcome:
        """What was due before the change is dealt with first: the leader is at it, if it can reckon what comes then."""
        outcome: Outcome = await self._proposer.run_one(command())
        for _ in range(DUE_LOOKS):
            if not isinstance(outcome, Rejected) or outcome.code != "due":
                return outcome
            why = cron.trouble(translate.rule_of(self._find(schedule_id).spec))
            if why is not None:
                raise Refused("conflict", f"a trigger is due first, but what follows it is not known here: {why}")
            await asyncio.sleep(DUE_LOOK_S)
            outcome = await self._proposer.run_one(command())
        raise NotApplied("rate_limited", "triggers of the schedule are still being dealt with", retry_after_ms=1000)

    # ------------------------------------------------------------------ readings

    async def read(self, schedule_id: str, *, local: bool) -> wire.ScheduleView:
        if not local:
            await self._wait_current()
        return await self._view(schedule_id)

    async def page(
        self, *, limit: int, cursor: str | None, only: Collection[str] | None, local: bool
    ) -> wire.ScheduleList:
        """By id; `only`: those whose jobs go to these queues. A page may then have fewer, as where what they hold
        comes to `ANSWER_BYTES_MAX`: the cursor goes on."""
        with reads.cursors_named():
            after = "" if cursor is None else reads.read_cursor(b"s", cursor).decode(errors="replace")
        if not local:
            await self._wait_current()
        async with self._turn():
            found, last = reads.schedule_page(self._applier.view, after, limit)
        shown = [view for view in found if only is None or view.job.queue in only]
        return wire.ScheduleList(shown, None if last is None else reads.make_cursor(b"s", last.encode()))

    async def triggers(
        self, schedule_id: str, query: wire.TriggersQuery, *, own: Own = lambda queue: None
    ) -> wire.TriggerList:
        """The ledger, oldest first: what became of each moment that the schedule named."""
        from_ms = 0 if query.from_ is None else translate.moment_ms(query.from_)
        to_ms = FOREVER_MS if query.to is None else translate.moment_ms(query.to)
        if query.cursor is not None:
            with reads.cursors_named():
                from_ms = max(from_ms, int.from_bytes(reads.read_cursor(b"t", query.cursor, 8), "big") + 1)
        if query.consistency != "local":
            await self._wait_current()
        async with self._turn():
            found = self._find(schedule_id, own)
            view = self._applier.view
            lines = schedule_views.ledger(view, found.run, from_ms, to_ms, query.limit)
            shown = [self._line(schedule_id, nominal_ms, *trigger) for nominal_ms, trigger in lines]
        more = len(lines) == query.limit
        return wire.TriggerList(shown, reads.make_cursor(b"t", lines[-1][0].to_bytes(8, "big")) if more else None)

    def _line(self, schedule_id: str, nominal_ms: int, fate: int, why: str) -> wire.TriggerView:
        line = wire.TriggerView(reads.moment_text(nominal_ms), _FATES[fate], why=why or None)
        if fate == Fate.RAN:
            line.job_id = trigger_id(schedule_id, nominal_ms)
            state = schedule_views.job_state(self._applier.view, line.job_id)
            line.state = None if state is None else reads.state_called(state)
        return line

    async def next_times(
        self, schedule_id: str, query: wire.NextQuery, *, own: Own = lambda queue: None
    ) -> wire.NextTimes:
        """The moments that it names from then on, or from now."""
        if query.consistency != "local":
            await self._wait_current()
        rule = translate.rule_of(self._find(schedule_id, own).spec)
        from_ms = self._now_ms() if query.from_ is None else translate.moment_ms(query.from_)
        with _stored_rule(), self._reckonings.place():
            return await self._next_times(rule, from_ms, query.n)

    async def preview(self, request: wire.PreviewRequest) -> wire.NextTimes:
        """The same of a schedule that is not saved. Raises: `Refused("invalid")` with what is wrong with it."""
        rule = translate.schedule_rule(request.id, request)
        with self._reckonings.place():
            now_ms = self._now_ms()
            async with self._reckonings.part():
                require_rule(rule)
                if request.from_ is None and cron.after(rule, now_ms) is None:
                    raise _over()
            if request.job is not None and request.job.expires_at is not None:
                _require_unexpired(translate.moment_ms(request.job.expires_at), now_ms)
            from_ms = now_ms if request.from_ is None else translate.moment_ms(request.from_)
            return await self._next_times(rule, from_ms, request.n or wire.NextQuery().n)

    # ------------------------------------------------------------------ inside

    async def _next_times(self, rule: cron.Rule, from_ms: int, count: int) -> wire.NextTimes:
        """Those that come: what the clocks jump over, and the rule skips, is not among them."""
        times: list[wire.NextTime] = []
        while len(times) < count:
            part = await self._part(rule, from_ms, FOREVER_MS, count - len(times))
            if not part:
                break
            times += [_shown(rule, one) for one in part if one.kind == "run"]
            from_ms = part[-1].nominal_ms + 1
        return wire.NextTimes(times)

    async def _reckoned(self, rule: cron.Rule, from_ms: int, to_ms: int, limit: int) -> list[cron.Occurrence]:
        """As `cron.between`, in turns with others. The caller has a place."""
        found: list[cron.Occurrence] = []
        while len(found) < limit and (part := await self._part(rule, from_ms, to_ms, limit - len(found))):
            found += part
            from_ms = part[-1].nominal_ms + 1
        return found

    async def _part(self, rule: cron.Rule, from_ms: int, to_ms: int, limit: int) -> list[cron.Occurrence]:
        """The first of them, as many as one turn has time for; empty: there is none."""
        found: list[cron.Occurrence] = []
        async with self._reckonings.part():
            begun_ms = self._clock.monotonic_ms()
            for occurrence in cron.each(rule, from_ms, to_ms):
                found.append(occurrence)
                if len(found) == limit or self._clock.monotonic_ms() - begun_ms >= RECKON_MS_MAX:
                    break
        return found

    def queue_of(self, schedule_id: str) -> str | None:
        """Where its jobs go; None: there is no such schedule."""
        found = schedule_views.find(self._applier.view, schedule_id)
        return None if found is None else found.spec.job.queue

    def _now_ms(self) -> int:
        return self._session.now_ms() if self._session.open else self._applier.meta().now_ms

    def _find(self, schedule_id: str, own: Own = lambda queue: None) -> schedule_views.Schedule:
        found = schedule_views.find(self._applier.view, schedule_id)
        if found is None:
            raise Refused("not_found", f"there is no schedule {schedule_id!r}")
        own(found.spec.job.queue)
        return found

    async def _view(self, schedule_id: str) -> wire.ScheduleView:
        return await self._pace.show(
            lambda: reads.schedule_view(*self._find(schedule_id)), lambda view: reads.template_bytes(view.job)
        )

    @staticmethod
    def _changed(outcome: Outcome, schedule_id: str) -> ScheduleChanged:
        if isinstance(outcome, Rejected):
            raise _refused(outcome, schedule_id)
        assert isinstance(outcome, ScheduleChanged)
        return outcome


def _shown(rule: cron.Rule, one: cron.Occurrence) -> wire.NextTime:
    return wire.NextTime(reads.moment_text(one.nominal_ms), cron.local_text(rule, one.nominal_ms), one.note or None)


def require_rule(rule: cron.Rule) -> None:
    """Raises: `Refused("invalid")` naming the field."""
    try:
        cron.check(rule)
    except cron.CronError as error:
        raise Refused("invalid", str(error), f"/{error.field}") from error


def _over() -> Refused:
    return Refused("invalid", "is over: the schedule would never trigger", "/ends_at")


def _require_unexpired(expires_ms: int, now_ms: int) -> None:
    """Raises: `Refused("invalid")`."""
    if expires_ms <= now_ms:
        raise Refused("invalid", "is already past: each job would expire before it could run", "/job/expires_at")


@contextmanager
def _stored_rule() -> Iterator[None]:
    """What another node could reckon may be beyond this one's zone data. Raises: `Refused("conflict")`."""
    try:
        yield
    except cron.CronError as error:
        raise Refused("conflict", f"the schedule cannot be reckoned on this node: {error}") from error


def _refused(rejected: Rejected, schedule_id: str) -> Refused:
    if rejected.code == "not_found":
        return Refused("not_found", f"there is no schedule {schedule_id!r}")
    return Refused(rejected.code, rejected.detail)
