"""Jobs that wait for others, and jobs that the success of another brings forth.

A job that names others in `after` is pending until all of them are finished. When one of them ends, that is written
down (`SETTLE`), and those that wait for it are told in bounded steps, as time that has come is: a job with a million
dependants ends as fast as one with none. What ends in another state than `succeeded` cancels those that wait for it
with `on_failure: cancel`, whatever else they wait for.
Next to read: `submit.py` (what a new job may wait for), `finish.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from horae_node.core.changes import Change, JobChanged, JobSettled, JobSubmitted, NeedsMet
from horae_node.core.commands import SubmitJob
from horae_node.core.context import Context
from horae_node.core.decide.reading import read_run, read_spec
from horae_node.core.decide.submit import known_job, new_job
from horae_node.core.model import AttemptError, JobSpec, OnFailure, State
from horae_node.core.results import Rejected, Submitted
from horae_node.core.runs import finished, let_go
from horae_node.core.tables import (
    NEEDED,
    NEEDS,
    S_CANCELLED,
    S_SUCCEEDED,
    SETTLE,
    follower_of,
    handle_for,
    id_key,
    job_of_settle,
    links_of,
    pair_range,
    seq_bytes,
    terms_of,
)
from horae_storage.kv import Row

UNIQUE_KEY_HELD = Rejected("conflict", "an unfinished job has its unique_key")
TOLD_WEIGHT = 8
"""What telling one job counts of an entry's budget: it may drop up to a hundred rows."""
DEPENDENCY = "dependency"
"""The type of the error of a job that was cancelled for another."""
FOLLOWER = "then"
"""The type of the error of a job that succeeded, and whose `then` could not be made."""


def decide_settlements(ctx: Context, budget: int) -> list[Change]:
    """Tell those that wait how the jobs ended that they wait for: of each such job an equal share of the budget, so
    that one with a million dependants holds up none with few; and to those that are told anyway, all that there is to
    tell. Of several endings of one job the first comes first."""
    jobs = max(1, budget // TOLD_WEIGHT)
    endings = _first_endings(ctx, jobs)
    share = max(1, jobs // max(1, len(endings)))
    words = max(share, budget // max(1, len(endings)))
    told: dict[int, list[Told]] = {}
    settled: list[Change] = []
    for key, (state, up_to) in endings:
        other = job_of_settle(key)
        start, stop = pair_range(NEEDED, other, up_to)
        waiting = ctx.txn.scan(start, stop, limit=words + 1)
        new = 0
        for at, (needed, (place,)) in enumerate(waiting):
            seq = int.from_bytes(needed[-8:], "big")
            if at == words or (seq not in told and new == share):
                break
            new += seq not in told
            told.setdefault(seq, []).append(Told(other, place, state))
        else:
            settled.append(JobSettled(key))
    return [*[_tell(ctx, seq, its) for seq, its in told.items()], *settled]


def _first_endings(ctx: Context, limit: int) -> list[tuple[bytes, Row]]:
    """The rows of jobs of whose ending others are to be told: the first of each."""
    found: list[tuple[bytes, Row]] = []
    for key, row in ctx.txn.scan(SETTLE, SETTLE + b"\xff" * 17, limit=limit):
        if not found or job_of_settle(found[-1][0]) != job_of_settle(key):
            found.append((key, row))
    return found


class Told(NamedTuple):
    """One of the jobs that a job waits for has ended."""

    seq: int
    place: int
    state: int


def _tell(ctx: Context, seq: int, endings: list[Told]) -> Change:
    row = ctx.get(NEEDS + seq_bytes(seq))
    assert row is not None
    on_failure, needed = row
    failed = [told for told in endings if told.state != S_SUCCEEDED]
    if failed and on_failure == OnFailure.CANCEL:
        return _cancelled(ctx, seq, failed[0])
    if len(endings) < len(needed):
        return NeedsMet(seq, tuple([told.seq for told in endings]))
    run, spec = read_run(ctx, seq), read_spec(ctx, seq)
    return JobChanged(handle_for(seq, spec), run, let_go(run, ctx.now_ms, ctx.index), terms_of(spec))


def _cancelled(ctx: Context, seq: int, failed: Told) -> JobChanged:
    run, spec = read_run(ctx, seq), read_spec(ctx, seq)
    links = links_of(spec)
    assert links is not None
    message = f"{links.after[failed.place]!r}, which it was to run after, is {State(failed.state).name.lower()}"
    after = finished(run, S_CANCELLED, ending=run.ending, now_ms=ctx.now_ms, index=ctx.index)
    error = AttemptError(0, DEPENDENCY, message, "", ctx.now_ms, "")
    return JobChanged(handle_for(seq, spec), run, after, terms_of(spec), error)


def follow(ctx: Context, seq: int, spec: JobSpec) -> JobSubmitted | Rejected | None:
    """The job that the success of this one brings forth. None: it exists already, or there is none to be.

    A queue that is as deep as it may be takes it all the same: what was accepted with its parent is not lost.
    """
    follower = follower_of(spec)
    if follower is None:
        return None
    command = SubmitJob(follower.spec, None, follower.delay_ms, follower.content_hash)
    known = known_job(ctx, command)
    if isinstance(known, Submitted) and ctx.get(id_key(command.spec.id)) is not None:
        return None
    if isinstance(known, Submitted) and known.seq != seq:  # its own unique key is free once it is finished
        return UNIQUE_KEY_HELD
    return known if isinstance(known, Rejected) else new_job(ctx, command, ctx.job_seq + 1)
