"""Schedules: what people say of them, and what becomes of each trigger.

The leader reckons which moments a schedule names (calendars, zones, cron) and writes them into its commands; here is
decided, by the machine's time and state alone, what each of them comes to: a job, or a line of the ledger that says why
there is none. A firing names the trigger that the schedule has as its next (compare and set), and makes the jobs and
moves the schedule on in one command: no trigger fires twice, and none is passed over.
Next to read: `submit.py` (how a job is made), `horae_node/leader/scheduler.py` (who commands).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from horae_node.core.changes import (
    Change,
    Decision,
    LedgerErased,
    Needs,
    ScheduleDeleted,
    ScheduleMoved,
    SchedulePut,
    TriggerNoted,
)
from horae_node.core.commands import (
    BackfillSchedule,
    CancelJob,
    DeleteSchedule,
    FireSchedule,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    SubmitJob,
    TriggerSchedule,
)
from horae_node.core.context import Context
from horae_node.core.decide.operate import decide_cancel
from horae_node.core.decide.reading import read_run, read_spec
from horae_node.core.decide.submit import Batch, known_job, make_job
from horae_node.core.model import (
    Fate,
    JobSpec,
    Links,
    Missed,
    Occurrence,
    OnFailure,
    Overlap,
    ScheduleRun,
    ScheduleSpec,
    Trigger,
)
from horae_node.core.results import Rejected, ScheduleChanged, Submitted, TriggersRan
from horae_node.core.schedule_views import Schedule, find, live
from horae_node.core.tables import (
    ERASE,
    LEDGER,
    LEDGER_ROWS_MAX,
    LINKS_FIELD,
    S_READY,
    follower_of,
    id_key,
    live_prefix,
    pair_bytes,
    pair_range,
    seq_bytes,
    spec_of,
    trigger_id,
    trigger_of,
)

TOO_OLD_FOR_SCHEDULES = Rejected(
    "conflict",
    "the cluster runs by the rules of an older version, which know no schedules: it takes up the new ones by itself "
    "once every member was upgraded and is reachable",
)
NO_SCHEDULE = Rejected("not_found", "no schedule with this id")
OTHER_VERSION = Rejected("version", "the schedule is of another version by now")
DUE_FIRST = Rejected("due", "a trigger of the schedule is due, and is dealt with first")
STALE_FIRING = Rejected("conflict", "the schedule has another next trigger by now")
TRIGGER_CONTENT: Final = b"horae: a trigger"
"""In the place of a submit's hash: what a trigger made leaves a tombstone."""
_SCHEDULE_FIELD: Final = JobSpec._fields.index("schedule_id")
ANY_VERSION: Final = -1
"""Of a replace: whichever, but there must be one."""
LIVE_MAX: Final = 100
"""Unfinished jobs of a schedule that one trigger looks at."""


# ---------------------------------------------------------------- what people say


def decide_put_schedule(ctx: Context, command: PutSchedule) -> Decision:
    """What was due before by the old rule is dealt with first. The same content again changes nothing."""
    if not ctx.schedules:
        return TOO_OLD_FOR_SCHEDULES, ()
    spec, paused, first, if_version = command
    found = find(ctx.txn, spec.id)
    if found is None:
        if if_version:
            return OTHER_VERSION, ()
        return ScheduleChanged(ctx.index, created=True), (SchedulePut(spec, None, _begun(ctx, paused, first)),)
    run = found.run
    if if_version not in (None, ANY_VERSION, run.version):
        return OTHER_VERSION, ()
    if found.spec == spec and (run.paused_ms is not None) == paused:
        return ScheduleChanged(run.version, repeated=True), ()
    if _is_due(ctx, run) or _is_behind(ctx, run, first):
        return DUE_FIRST, ()
    from_ms = run.from_ms
    if first != run.next:
        from_ms = ctx.now_ms + 1 if first is None else first.nominal_ms
        first = _last_of_old(ctx, run, first) or first
    after = run._replace(
        version=ctx.index,
        changed_ms=ctx.now_ms,
        paused_ms=ctx.now_ms if paused else None,
        next=first,
        look_ms=0 if first is None else first.fire_ms,
        made_up=0,
        from_ms=from_ms,
    )
    return ScheduleChanged(ctx.index), (SchedulePut(spec, run, after),)


def _is_behind(ctx: Context, run: ScheduleRun, first: Occurrence | None) -> bool:
    """It was reckoned before a trigger that has come since, be it that its jitter is not over."""
    if first is None or first == run.next:
        return False
    come = run.next.nominal_ms if _has_waiting(ctx, run) else run.last_nominal_ms  # type: ignore[union-attr]
    return come is not None and first.nominal_ms <= come


def _has_waiting(ctx: Context, run: ScheduleRun) -> bool:
    """Its next trigger has had its time, and waits for its jitter."""
    return run.next is not None and run.next.nominal_ms <= ctx.now_ms


def _last_of_old(ctx: Context, run: ScheduleRun, first: Occurrence | None) -> Occurrence | None:
    """A trigger of the old rule that has had its time is still to come: before the first one of the new rule, since
    none's jitter reaches the next one."""
    waiting = run.next if _has_waiting(ctx, run) else None
    if waiting is None or first is None:
        return waiting
    return waiting._replace(fire_ms=min(waiting.fire_ms, first.nominal_ms - 1))


def _begun(ctx: Context, paused: bool, first: Occurrence | None) -> ScheduleRun:
    return ScheduleRun(
        number=ctx.job_seq + 1,
        version=ctx.index,
        created_ms=ctx.now_ms,
        changed_ms=ctx.now_ms,
        paused_ms=ctx.now_ms if paused else None,
        next=first,
        look_ms=0 if first is None else first.fire_ms,
        made_up=0,
        queued_seq=0,
        last_nominal_ms=None,
        ledger_rows=0,
    )


def _is_due(ctx: Context, run: ScheduleRun) -> bool:
    return run.next is not None and run.next.fire_ms <= ctx.now_ms


def decide_delete_schedule(ctx: Context, command: DeleteSchedule) -> Decision:
    """Nothing of it fires any more, be it due. Its jobs live on."""
    found = find(ctx.txn, command.schedule_id)
    if found is None:
        return NO_SCHEDULE, ()
    return ScheduleChanged(found.run.version), (ScheduleDeleted(command.schedule_id, found.run),)


def decide_pause_schedule(ctx: Context, command: PauseSchedule) -> Decision:
    """Triggers go by from now on, and are noted as such: also one that is due and was not dealt with yet."""
    found = find(ctx.txn, command.schedule_id)
    if found is None:
        return NO_SCHEDULE, ()
    run = found.run
    if run.paused_ms is not None:
        return ScheduleChanged(run.version, repeated=True), ()
    paused_ms = ctx.now_ms if run.next is None else min(ctx.now_ms, run.next.nominal_ms)
    after = run._replace(version=ctx.index, changed_ms=ctx.now_ms, paused_ms=paused_ms)
    return ScheduleChanged(ctx.index), (ScheduleMoved(command.schedule_id, run, after),)


def decide_resume_schedule(ctx: Context, command: ResumeSchedule) -> Decision:
    """What went by stays so, unless `rewind` says from where on it counts as missed. It never goes forward: a trigger
    that has its time, and whose jitter is not over, is still to come."""
    schedule_id, rewind = command
    found = find(ctx.txn, schedule_id)
    if found is None:
        return NO_SCHEDULE, ()
    run = found.run
    if run.paused_ms is None:
        return ScheduleChanged(run.version, repeated=True), ()
    if rewind is not None and rewind.nominal_ms < missed_from_ms(run):
        rewind = None  # by a rule that was replaced meanwhile
    if rewind is None and _is_due(ctx, run):
        return DUE_FIRST, ()
    after = run._replace(version=ctx.index, changed_ms=ctx.now_ms, paused_ms=None, made_up=0)
    if rewind is not None and (run.next is None or rewind.nominal_ms < run.next.nominal_ms):
        after = after._replace(next=rewind, look_ms=max(rewind.fire_ms, ctx.now_ms))
    return ScheduleChanged(ctx.index), (ScheduleMoved(schedule_id, run, after),)


def missed_from_ms(run: ScheduleRun) -> int:
    """Of a paused schedule: the moments that its rule names from here on count as missed, if anybody asks for them."""
    assert run.paused_ms is not None
    return max(run.paused_ms, run.from_ms)


def decide_trigger_schedule(ctx: Context, command: TriggerSchedule) -> Decision:
    """By hand, whatever its triggers do, paused or not. A repeat with the same job id makes no second one."""
    found = find(ctx.txn, command.schedule_id)
    if found is None:
        return NO_SCHEDULE, ()
    submit = submit_of(found.spec, command.job_id, None, ctx.now_ms)
    known = known_job(ctx, submit)
    if known is not None:
        return known, ()
    made = make_job(ctx, submit, ctx.job_seq + 1)
    return (made, ()) if isinstance(made, Rejected) else (Submitted(made.seq, made), (made,))


def decide_backfill_schedule(ctx: Context, command: BackfillSchedule) -> Decision:
    """Whatever overlaps: who asks for them wants them. What already ran does not again."""
    found = find(ctx.txn, command.schedule_id)
    if found is None:
        return NO_SCHEDULE, ()
    firing = _Firing(ctx, found, ctx.now_ms)
    for occurrence in command.occurrences:
        if occurrence.note:
            firing.settle(occurrence, None, None)
        elif not _has_run(ctx, found, occurrence.nominal_ms):
            firing.make(occurrence, "backfill")
    after = firing.run._replace(next=found.run.next, look_ms=found.run.look_ms)
    changes = [*firing.changes, ScheduleMoved(command.schedule_id, found.run, after)] if firing.changes else ()
    return TriggersRan(firing.made), changes


def _has_run(ctx: Context, schedule: Schedule, nominal_ms: int) -> bool:
    row = ctx.get(LEDGER + pair_bytes(schedule.run.number, nominal_ms))
    return row is not None and trigger_of(row).fate == Fate.RAN


# ---------------------------------------------------------------- what triggers do


def decide_fire_schedule(ctx: Context, command: FireSchedule) -> Decision:
    """Each of the occurrences has come. Refused when the schedule has another next one: dealt with, or edited."""
    schedule_id, occurrences, following, seen_ms = command
    found = find(ctx.txn, schedule_id)
    if found is None or found.run.next is None or found.run.next != occurrences[0]:
        return STALE_FIRING, ()
    if max(occurrence.fire_ms for occurrence in occurrences) > ctx.now_ms:
        return STALE_FIRING, ()
    firing = _Firing(ctx, found, min(seen_ms, ctx.now_ms))
    for place, occurrence in enumerate(occurrences):
        firing.settle(occurrence, _next_to_run(occurrences[place + 1 :]), following)
    look_ms = 0 if following is None else max(following.fire_ms, ctx.now_ms)
    after = firing.run._replace(next=following, look_ms=look_ms, last_nominal_ms=occurrences[-1].nominal_ms)
    return TriggersRan(firing.made), (*firing.changes, ScheduleMoved(schedule_id, found.run, after))


def _next_to_run(occurrences: Sequence[Occurrence]) -> Occurrence | None:
    return next((occurrence for occurrence in occurrences if not occurrence.note), None)


class _Firing:
    """The triggers of one command, one after the other: nothing is written before all are decided."""

    def __init__(self, ctx: Context, schedule: Schedule, seen_ms: int) -> None:
        self._ctx = ctx
        self._seen_ms = seen_ms
        self._schedule = schedule
        self._batch = Batch()
        self._live = live(ctx.txn, schedule.spec.id, LIVE_MAX)
        self._dropped: set[bytes] = set()
        self._noted: set[int] = set()
        self.run = schedule.run
        self.changes: list[Change] = []
        self.made = 0

    def settle(self, occurrence: Occurrence, later: Occurrence | None, following: Occurrence | None) -> None:
        """One trigger comes to one thing, and once. `later`: the next one of the command that would run; `following`:
        the first that has not come."""
        line = self._ctx.get(LEDGER + pair_bytes(self.run.number, occurrence.nominal_ms))
        if line is not None and trigger_of(line).fate != Fate.PAUSED:
            return
        if occurrence.note:
            self._note(occurrence, Fate.DST_SKIPPED, occurrence.note)
        elif self.run.paused_ms is not None:
            self._note(occurrence, Fate.PAUSED, "the schedule was paused")
        elif later is not None and self._schedule.spec.overlap == Overlap.CANCEL:
            self._note(occurrence, Fate.FOLDED, "a later one came at once, and would have cancelled it")
        elif not self._is_missed(occurrence):
            self.run = self.run._replace(made_up=0)
            self._overlap(occurrence, "")
        else:
            self._miss(occurrence, later or _next_to_run(() if following is None else (following,)))

    def _is_missed(self, occurrence: Occurrence) -> bool:
        return self._seen_ms - occurrence.fire_ms > self._schedule.spec.grace_ms

    def _miss(self, occurrence: Occurrence, later: Occurrence | None) -> None:
        spec = self._schedule.spec
        late_ms = self._seen_ms - occurrence.fire_ms
        late = f"it came {late_ms} ms late"
        if spec.missed == Missed.SKIP:
            self._note(occurrence, Fate.SKIPPED_MISSED, f"{late}, and the schedule skips what is missed")
        elif late_ms > spec.catch_up_ms:
            self._note(occurrence, Fate.SKIPPED_MISSED, f"{late}: more than catch_up_seconds")
        elif spec.missed == Missed.LATEST and later is not None and self._is_missed(later):
            self._note(occurrence, Fate.FOLDED, f"{late}, and a later one was missed as well")
        elif spec.missed == Missed.ALL and self.run.made_up >= spec.max_catch_up:
            self._note(
                occurrence, Fate.DROPPED_LIMIT, f"{late}, and {spec.max_catch_up} were made up for (max_catch_up)"
            )
        else:
            self.run = self.run._replace(made_up=self.run.made_up + 1)
            self._overlap(occurrence, late)

    def _overlap(self, occurrence: Occurrence, why: str) -> None:
        policy = self._schedule.spec.overlap
        if not self._live or policy == Overlap.ALLOW:
            self.make(occurrence, why)
        elif policy == Overlap.SKIP:
            self._note(occurrence, Fate.SKIPPED_OVERLAP, "an earlier job of the schedule is not finished")
        elif policy == Overlap.CANCEL:
            self._cancel_live()
            self.make(occurrence, why)
        elif self._one_waits():
            self._note(occurrence, Fate.SKIPPED_OVERLAP, "an earlier job of the schedule waits already")
        else:
            self.make(occurrence, why, Needs(OnFailure.RUN, tuple((seq, 0) for seq in self._live), ()))

    def make(self, occurrence: Occurrence, why: str, needs: Needs | None = None) -> None:
        """The job of a trigger, or why there is none."""
        spec = self._schedule.spec
        job_id = trigger_id(spec.id, occurrence.nominal_ms)
        submit = submit_of(spec, job_id, occurrence.nominal_ms, occurrence.fire_ms)
        if self._ctx.get(id_key(job_id)) is not None:
            self._note(occurrence, Fate.RAN, "")
            return
        if known_job(self._ctx, submit) is not None or self._batch.known(submit) is not None:
            self._note(occurrence, Fate.FOLDED, "an unfinished job has its unique_key")
            return
        made = make_job(self._ctx, submit, self._ctx.job_seq + 1 + self.made, self._batch, needs)
        if isinstance(made, Rejected):
            self._note(occurrence, Fate.DROPPED_LIMIT, made.detail)
            return
        self._batch.add(submit, made.seq)
        self.changes.append(made)
        self.made += 1
        self._live.append(made.seq)
        if needs is not None:
            self.run = self.run._replace(queued_seq=made.seq)
        self._note(occurrence, Fate.RAN, why)

    def _one_waits(self) -> bool:
        """The last one that was made to wait is not started yet."""
        seq = self.run.queued_seq
        if seq > self._ctx.job_seq:
            return True  # made by this very command
        if self._ctx.get(live_prefix(self._schedule.spec.id) + seq_bytes(seq)) is None:
            return False
        run = read_run(self._ctx, seq)
        return run.state <= S_READY and run.attempt == 0

    def _cancel_live(self) -> None:
        for seq in self._live:
            waits = read_run(self._ctx, seq).state <= S_READY
            spec = read_spec(self._ctx, seq)
            self.changes.extend(decide_cancel(self._ctx, CancelJob(spec.id))[1])
            if waits:
                self._batch.free(spec.queue)
        self._live = []

    def _note(self, occurrence: Occurrence, fate: Fate, why: str) -> None:
        number, nominal_ms = self.run.number, occurrence.nominal_ms
        key = LEDGER + pair_bytes(number, nominal_ms)
        drop = None
        if nominal_ms not in self._noted and self._ctx.get(key) is None:
            if self.run.ledger_rows < LEDGER_ROWS_MAX:
                self.run = self.run._replace(ledger_rows=self.run.ledger_rows + 1)
            else:
                drop = self._oldest()
                if drop > key:
                    return  # older than what a full ledger remembers
                self._dropped.add(drop)
        self._noted.add(nominal_ms)
        self.changes.append(TriggerNoted(self._schedule.spec.id, number, nominal_ms, Trigger(int(fate), why), drop))

    def _oldest(self) -> bytes:
        """The line that goes for a new one: none that this command writes, or has dropped already."""
        kept = {LEDGER + pair_bytes(self.run.number, nominal_ms) for nominal_ms in self._noted} | self._dropped
        start, stop = pair_range(LEDGER, self.run.number, 2**64 - 1)
        return next(key for key in self._ctx.txn.keys(start, stop, limit=len(kept) + 1) if key not in kept)


def submit_of(spec: ScheduleSpec, job_id: str, nominal_ms: int | None, due_ms: int) -> SubmitJob:
    """The template as a job; its id names those that are to follow it as well."""
    template = _named(spec.job, job_id)
    made = (*template[:_SCHEDULE_FIELD], spec.id, nominal_ms, *template[_SCHEDULE_FIELD + 2 :])
    return SubmitJob(spec_of(made), due_ms, 0, TRIGGER_CONTENT)


def _named(template: JobSpec, job_id: str) -> JobSpec:
    """With this id; what is to follow the job has it with a `.then` more."""
    follower = follower_of(template)
    plain = (job_id, *template[1:LINKS_FIELD])
    if follower is None:
        return spec_of(plain)
    then = follower._replace(spec=_named(follower.spec, f"{job_id}.then"))
    return spec_of((*plain, Links((), int(OnFailure.CANCEL), then)))


def decide_erasures(ctx: Context, budget: int) -> Sequence[Change]:
    """The ledger of a schedule that is gone."""
    found = ctx.txn.keys(ERASE, ERASE + b"\xff" * 9, limit=1)
    if not found:
        return ()
    number = int.from_bytes(found[0][-8:], "big")
    start, stop = pair_range(LEDGER, number, 2**64 - 1)
    keys = ctx.txn.keys(start, stop, limit=budget)
    return (LedgerErased(number, tuple(keys), len(keys) < budget),)
