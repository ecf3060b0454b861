"""The judge is judged: one lost job, one double ending, one token that did not rise, and the ledger must say so."""

from __future__ import annotations

import pytest
from tests.helpers.ledger import Grant, Ledger, Report, check_ledger


def report(job_id: str, token: int, status: int, *, asked_ns: int = 100, answered_ns: int = 110) -> Report:
    return Report(asked_ns, answered_ns, job_id, token, status)


def grant(asked_ns: int, answered_ns: int, job_id: str, token: int, claim_id: str) -> Grant:
    return Grant(asked_ns, answered_ns, job_id, token, 1, claim_id)


def good() -> Ledger:
    """Job a: claimed twice, completed once, the first's late report refused. Job b: its report was repeated."""
    return Ledger(
        acked=["a", "b"],
        grants=[grant(10, 20, "a", 5, "c1"), grant(30, 40, "a", 9, "c2"), grant(30, 40, "b", 9, "c2")],
        reports=[report("a", 9, 200), report("a", 5, 409), report("b", 9, 200), report("b", 9, 200)],
    )


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check_ledger(good()) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("lost", {"acked": ["a", "b", "c"]}),
        ("ended twice", {"reports": [report("a", 9, 200), report("a", 5, 200, asked_ns=35), report("b", 9, 200)]}),
        ("never accepted", {"reports": [report("a", 9, 409), report("b", 9, 200)]}),
        ("odd answer", {"reports": [*good().reports, report("b", 9, 404)]}),
        ("not fenced", {"reports": [report("a", 5, 200), report("b", 9, 200)]}),
        ("granted after its end", {"reports": [report("a", 9, 200), report("b", 9, 200, asked_ns=1, answered_ns=2)]}),
    ],
)
def test_what_is_wrong_with_the_reports_is_found(kind: str, change: dict[str, object]) -> None:
    ledger = good()
    for name, value in change.items():
        setattr(ledger, name, value)
    assert len(check_ledger(ledger)) == 1, kind


def test_an_ending_that_overlaps_the_next_claim_may_have_been_first() -> None:
    ledger = good()
    ledger.reports = [report("a", 5, 200, asked_ns=35, answered_ns=50), report("b", 9, 200)]
    assert check_ledger(ledger) == []


@pytest.mark.parametrize(
    ("later", "found"),
    [
        (grant(50, 60, "b", 8, "c3"), 1),
        (grant(50, 60, "b", 9, "c3"), 1),
        (grant(35, 60, "b", 9, "c3"), 1),
        (grant(35, 60, "b", 8, "c3"), 0),
        (grant(50, 60, "b", 9, "c2"), 0),
        (grant(50, 105, "b", 10, "c3"), 0),
    ],
)
def test_tokens_rise_in_real_time(later: Grant, found: int) -> None:
    """Lower or equal after an answer is wrong; of two claims that overlap either may have been first."""
    ledger = good()
    ledger.grants.append(later)
    assert len(check_ledger(ledger)) == found
