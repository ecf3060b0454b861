"""The test of the test: one protection of the node taken out, for as long as a `with` lasts. A run must find it.

Each is a small lie about a part that another part relies on. Nothing here is used but to see the judge wake up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from horae_node.clock import ClusterClock
from horae_node.core import machine
from horae_node.core.changes import Decision, SchedulePut
from horae_node.core.commands import PutSchedule
from horae_node.core.context import Context
from horae_node.core.decide import finish
from horae_node.core.decide.schedules import _Firing, decide_put_schedule
from horae_node.core.model import Missed, Occurrence, Overlap, ScheduleRun, ScheduleSpec
from horae_node.core.tables import RUN, handle_of, id_key, run_of, seq_bytes
from horae_node.leader import scheduler
from horae_node.leader.claim_book import ClaimBook
from horae_node.leader.scheduler import following_occurrence
from horae_node.leader.session import LeaderSession
from horae_node.raft.guard import Guard, Link
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.raft.pysyncobj_core import LEADER, Message
from horae_node.raft.pysyncobj_journal import Journal

SEEDS_MAX: Final = {"guard": 150, "gate": 100, "token": 20, "clock": 100, "reads": 100} | {
    "grace": 60,
    "overlap": 60,
    "made_up": 100,
    "max_catch_up": 100,
    "latest": 150,
    "timer": 60,
    "edit": 60,
    "floor": 150,
    "repeats": 60,
    "hung_up": 100,
}
"""How many seeds a run may need to find it: several times what it took when measured (see the README)."""


FAR_MS: Final = 10**9


@contextmanager
def without(name: str) -> Iterator[None]:
    """Take out the protection of this name."""
    owner, attribute, replacement = _CANARIES[name]()
    with patch.object(owner, attribute, replacement):
        yield


def _guard() -> tuple[object, str, object]:
    """Rule 7: a snapshot's message raises the commit index over a log that was never matched."""
    take_piece = Guard._take_piece

    def unguarded(self: Guard, link: Link, message: Message) -> None:
        last = self._journal.last
        self._core.receive(
            link.peer,
            {
                "type": "append_entries",
                "term": message["term"],
                "commit_index": message["commit_index"],
                "prevLogIdx": last.log_index,
                "prevLogTerm": last.term,
                "entries": (),
            },
        )
        take_piece(self, link, message)

    return Guard, "_take_piece", unguarded


def _gate() -> tuple[object, str, object]:
    """Rule 1: acks and votes leave before what they promise is on disk."""
    return Journal, "durable", property(lambda self: self.mark)


def _token() -> tuple[object, str, object]:
    """Whoever reports is believed, whatever its token."""
    held = finish._held

    def unfenced(ctx: Context, job_id: str, token: int, ending: int) -> Any:
        row = ctx.get(id_key(job_id))
        run_row = None if row is None else ctx.get(RUN + seq_bytes(handle_of(row).seq))
        return held(ctx, job_id, token if run_row is None else run_of(run_row).token, ending)

    return finish, "_held", unfenced


def _clock() -> tuple[object, str, object]:
    """Cluster time is the leader's own wall clock."""
    return ClusterClock, "now_ms", lambda self: self._clock.wall_ms()


def _reads() -> tuple[object, str, object]:
    """A node that believes it leads answers reads without asking anybody."""

    asked = PySyncObjRaft.read_barrier

    async def unasked(self: PySyncObjRaft) -> int:
        core = self._core
        knows_all_before = core.state == LEADER and core.applied >= core.noop_index
        return core.applied if knows_all_before else await asked(self)

    return PySyncObjRaft, "read_barrier", unasked


def _grace() -> tuple[object, str, object]:
    """A trigger that comes at all late is missed."""
    return _Firing, "_is_missed", lambda self, occurrence: self._seen_ms > occurrence.fire_ms


def _overlap() -> tuple[object, str, object]:
    """Of `overlap` `skip` nothing is left."""
    overlap = _Firing._overlap

    def unlooking(self: _Firing, occurrence: Occurrence, why: str) -> None:
        skips = self._schedule.spec.overlap == Overlap.SKIP
        self.make(occurrence, why) if skips else overlap(self, occurrence, why)

    return _Firing, "_overlap", unlooking


def _made_up() -> tuple[object, str, object]:
    """What was made up for is counted on for ever."""
    replace = ScheduleRun._replace

    def unforgetting(self: ScheduleRun, **fields: Any) -> ScheduleRun:
        made_up = max(self.made_up, fields.pop("made_up", 0))
        return replace(self, made_up=made_up, **fields)

    return ScheduleRun, "_replace", unforgetting


def _missing(**policy: int) -> tuple[object, str, object]:
    """Missed triggers are dealt with by another policy than the schedule's."""
    miss = _Firing._miss

    def missing(self: _Firing, occurrence: Occurrence, later: Occurrence | None) -> None:
        told = self._schedule
        changed = {name: value for name, value in policy.items() if told.spec.missed != Missed.SKIP}
        self._schedule = told._replace(spec=told.spec._replace(**changed))
        miss(self, occurrence, later)
        self._schedule = told

    return _Firing, "_miss", missing


def _timer() -> tuple[object, str, object]:
    """No leader wakes for triggers: they come with what else does."""
    arm = LeaderSession._arm

    def arm_otherwise(self: LeaderSession) -> None:
        with patch.object(self.scheduler, "next_firing", lambda view: None):
            arm(self)
        self._fire_ms = self.scheduler.next_firing(self._applier.view)

    return LeaderSession, "_arm", arm_otherwise


def _floor() -> tuple[object, str, object]:
    """A new rule goes on from the last trigger of the old one."""

    def following(spec: ScheduleSpec, come: Occurrence, from_ms: int) -> Occurrence | None:
        return following_occurrence(spec, come)

    return scheduler, "following_occurrence", following


def _edit() -> tuple[object, str, object]:
    """A replaced schedule triggers its last trigger again."""

    def put(ctx: Context, command: PutSchedule) -> Decision:
        outcome, changes = decide_put_schedule(ctx, command)
        for change in changes:
            assert isinstance(change, SchedulePut)
            last_ms = None if change.before is None else change.before.last_nominal_ms
            if last_ms is not None:
                after = change.after._replace(next=Occurrence(last_ms, last_ms, ""), look_ms=last_ms)
                return outcome, (change._replace(after=after),)
        return outcome, changes

    return machine, "_DECIDERS", machine._DECIDERS | {PutSchedule: put}


def _repeats() -> tuple[object, str, object]:
    """That an answer was delivered is forgotten: what a repeat that hung up was handed again is taken back."""
    return ClaimBook, "hand", lambda self, waiter: None


def _hung_up() -> tuple[object, str, object]:
    """What was granted to callers that are gone is left to its lease."""
    return ClaimBook, "lose", lambda self, serial, grants: ()


_CANARIES: Final[dict[str, Callable[[], tuple[object, str, object]]]] = {
    "guard": _guard,
    "gate": _gate,
    "token": _token,
    "clock": _clock,
    "reads": _reads,
    "grace": _grace,
    "overlap": _overlap,
    "made_up": _made_up,
    "max_catch_up": lambda: _missing(max_catch_up=10**9),
    "latest": lambda: _missing(missed=Missed.ALL),
    "timer": _timer,
    "edit": _edit,
    "floor": _floor,
    "repeats": _repeats,
    "hung_up": _hung_up,
}
