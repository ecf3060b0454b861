"""The shapes of schedules as users hold them: how one reads, what its triggers came to, what may be said of one.

The keys are those of `wire` (a test compares them); times are `datetime` with an offset. Next to read:
`schedule_calls.py`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from msgspec import Struct

from horae.wire import GapPolicy, MissedPolicy, OverlapPolicy, RepeatPolicy, StateName, TriggerOutcome


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule as it was read (docs/contract.md, "Schedules").

    `job`: the template of its jobs, as the contract has it; `version` is what `if_version` compares; `error` is why the
    node that answered cannot reckon its triggers, where it cannot.
    """

    id: str
    version: int
    cron: str | None = None
    every_seconds: float | None = None
    timezone: str
    job: dict[str, Any]
    missed: MissedPolicy
    catch_up_seconds: float
    max_catch_up: int
    grace_seconds: float
    overlap: OverlapPolicy
    jitter_seconds: float
    dst_gap: GapPolicy
    dst_repeat: RepeatPolicy
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    paused: bool
    created_at: datetime
    updated_at: datetime
    next_nominal_time: datetime | None = None
    next_run_at: datetime | None = None
    last_nominal_time: datetime | None = None
    error: str | None = None


class Trigger(Struct, frozen=True, kw_only=True):
    """What one trigger came to. `state`: that of its job when it was read; None when it made none, or it is gone."""

    nominal_time: datetime
    outcome: TriggerOutcome
    job_id: str | None = None
    state: StateName | None = None
    why: str | None = None


class NextTime(Struct, frozen=True, kw_only=True):
    """A moment that a schedule names. `note`: what is odd about it, where its zone changes its clocks."""

    nominal_time: datetime
    local_time: str
    note: str | None = None


class Triggered(Struct, frozen=True):
    """What a backfill did: jobs that it made, of how many triggers.

    `more`: the window has more than `max_catch_up`; the same call again goes on.
    """

    count: int
    triggers: int
    more: bool = False


class ScheduleRule(TypedDict, total=False):
    """What may be said of when a schedule triggers; one of `cron` and `every_seconds` must be."""

    cron: str
    every_seconds: float
    timezone: str
    jitter_seconds: float
    dst_gap: GapPolicy
    dst_repeat: RepeatPolicy
    starts_at: datetime | str | None
    ends_at: datetime | str | None


class ScheduleTerms(ScheduleRule, total=False):
    """And of what becomes of its triggers. A key that is left out gets the cluster's default."""

    missed: MissedPolicy
    catch_up_seconds: float
    max_catch_up: int
    grace_seconds: float
    overlap: OverlapPolicy
    paused: bool
