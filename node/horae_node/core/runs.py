"""How a `Run` becomes the next one: pure constructors, one a kind of transition.

Built field by field: `_replace` with many keywords costs more than the whole rest of a decision.
Not here: whether a transition is allowed (`decide/`), where it is written (`evolve.py`).
"""

from __future__ import annotations

from horae_node.core.model import Ending, Run
from horae_node.core.tables import S_PENDING, S_READY, S_RUNNING, run_of

NONE = int(Ending.NONE)
COMPLETE = int(Ending.COMPLETE)
FAIL = int(Ending.FAIL)
RELEASE = int(Ending.RELEASE)
TIMEOUT = int(Ending.TIMEOUT)


def waiting_state(due_ms: int, now_ms: int) -> int:
    return S_READY if due_ms <= now_ms else S_PENDING


def submitted(*, due_ms: int, now_ms: int, index: int, content_hash: bytes, held: bool = False) -> Run:
    """`held`: it waits for other jobs, whenever it is due."""
    state = S_READY if due_ms <= now_ms and not held else S_PENDING
    return run_of(
        (state, 0, 0, 0, 0, NONE, "", now_ms, due_ms, 0, 0, 0, 0, 0, 0, False, "", index, content_hash, due_ms)
    )  # fmt: skip


def let_go(run: Run, now_ms: int, index: int) -> Run:
    """pending -> ready or pending: it waits for no other job any more, and stands in line from now on."""
    due_ms = max(run.due_ms, now_ms)
    return Run._make((waiting_state(due_ms, now_ms), *run[1:8], due_ms, *run[9:17], index, *run[18:]))


def made_ready(run: Run, index: int) -> Run:
    """pending -> ready, its moment come."""
    return Run._make((S_READY, *run[1:17], index, *run[18:]))


def granted(
    run: Run, *, worker: str, index: int, now_ms: int, lease_ms: int, lease_end: int, timeout_end: int
) -> Run:  # fmt: skip
    watch = lease_end if lease_end < timeout_end else timeout_end
    _, attempt, failures, lost, _, _, _, created_ms, due_ms, _, _, _, _, _, _, _, _, _, content_hash, first_due_ms = run
    return Run(
        S_RUNNING, attempt + 1, failures, lost, index, NONE, worker, created_ms, due_ms, now_ms, 0,
        lease_ms, lease_end, timeout_end, watch, False, "", index, content_hash, first_due_ms,
    )  # fmt: skip


def renewed(run: Run, *, lease_end: int, index: int) -> Run:
    """The lease is longer; the watch row stays where it is, and moves when it is looked at."""
    return Run._make((*run[:12], lease_end, *run[13:17], index, *run[18:]))


def watched(run: Run, watch: int) -> Run:
    """The watch row lies elsewhere. Not a change that anybody sees: `version` stays."""
    return Run._make((*run[:14], watch, *run[15:]))


def finished(run: Run, state: int, *, ending: int, now_ms: int, index: int) -> Run:
    """The end as it was reported: counters as they are."""
    (
        _, attempt, failures, lost, token, _, worker, created_ms, due_ms, started_ms, _,
        lease_ms, _, _, _, cancel_requested, _, _, content_hash, first_due_ms,
    ) = run  # fmt: skip
    return Run(
        state, attempt, failures, lost, token, ending, worker, created_ms, due_ms, started_ms, now_ms,
        lease_ms, 0, 0, 0, cancel_requested, "", index, content_hash, first_due_ms,
    )  # fmt: skip


def died(
    run: Run, reason: str, *, failures: int, lost: int, ending: int, now_ms: int, index: int, state: int
) -> Run:  # fmt: skip
    """Finished after a failure or a lost lease: dead for `reason`, or cancelled (`reason` empty)."""
    (
        _, attempt, _, _, token, _, worker, created_ms, due_ms, started_ms, _,
        lease_ms, _, _, _, cancel_requested, _, _, content_hash, first_due_ms,
    ) = run  # fmt: skip
    return Run(
        state, attempt, failures, lost, token, ending, worker, created_ms, due_ms, started_ms, now_ms,
        lease_ms, 0, 0, 0, cancel_requested, reason, index, content_hash, first_due_ms,
    )  # fmt: skip


def waiting(
    run: Run, *, due_ms: int, now_ms: int, attempt: int, failures: int, lost: int, ending: int, index: int
) -> Run:  # fmt: skip
    """Waits for another attempt: ready when due, else pending. The token stays: it only grows.

    One whose only attempt was handed back stands as before its first: no worker, no start.
    """
    (
        _, _, _, _, token, _, worker, created_ms, _, started_ms, _,
        lease_ms, _, _, _, cancel_requested, _, _, content_hash, first_due_ms,
    ) = run  # fmt: skip
    if attempt == 0:
        worker, started_ms = "", 0
    return Run(
        waiting_state(due_ms, now_ms), attempt, failures, lost, token, ending, worker, created_ms, due_ms, started_ms,
        0, lease_ms, 0, 0, 0, cancel_requested, "", index, content_hash, first_due_ms,
    )  # fmt: skip


def requeued(run: Run, *, now_ms: int, index: int) -> Run:
    """finished -> ready, as if never tried; only the token is kept.

    An attempt whose ending was never reported is closed: a late report of it must not end the new life.
    """
    ending = TIMEOUT if run.ending == NONE and run.token else run.ending
    return Run(
        S_READY, 0, 0, 0, run.token, ending, "", run.created_ms, now_ms, 0, 0,
        run.lease_ms, 0, 0, 0, False, "", index, run.content_hash, run.first_due_ms,
    )  # fmt: skip
