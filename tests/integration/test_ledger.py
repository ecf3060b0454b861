"""The judge is judged: one lost job, one double ending, one token that did not rise, and the ledger must say so."""

from __future__ import annotations

import pytest
from tests.helpers.ledger import Grant, Ledger, Report, check_ledger


def good() -> Ledger:
    """Job a: claimed twice, completed once, the first's late report refused. Job b: its report was repeated."""
    return Ledger(
        acked=["a", "b"],
        grants=[
            Grant(asked_ns=10, answered_ns=20, job_id="a", token=5, attempt=1, claim_id="c1"),
            Grant(asked_ns=30, answered_ns=40, job_id="a", token=9, attempt=2, claim_id="c2"),
            Grant(asked_ns=30, answered_ns=40, job_id="b", token=9, attempt=1, claim_id="c2"),
        ],
        reports=[Report("a", 9, 200), Report("a", 5, 409), Report("b", 9, 200), Report("b", 9, 200)],
    )


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check_ledger(good()) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("lost", {"acked": ["a", "b", "c"]}),
        ("ended twice", {"reports": [Report("a", 9, 200), Report("a", 5, 200), Report("b", 9, 200)]}),
        ("never accepted", {"reports": [Report("a", 9, 409), Report("b", 9, 200)]}),
        ("odd answer", {"reports": [*good().reports, Report("b", 9, 404)]}),
    ],
)
def test_what_is_wrong_with_the_reports_is_found(kind: str, change: dict[str, object]) -> None:
    ledger = good()
    for name, value in change.items():
        setattr(ledger, name, value)
    assert len(check_ledger(ledger)) == 1, kind


@pytest.mark.parametrize(
    ("later", "found"),
    [
        (Grant(asked_ns=50, answered_ns=60, job_id="b", token=8, attempt=2, claim_id="c3"), 1),
        (Grant(asked_ns=50, answered_ns=60, job_id="b", token=9, attempt=2, claim_id="c3"), 1),
        (Grant(asked_ns=35, answered_ns=60, job_id="b", token=9, attempt=2, claim_id="c3"), 1),
        (Grant(asked_ns=35, answered_ns=60, job_id="b", token=8, attempt=2, claim_id="c3"), 0),
        (Grant(asked_ns=50, answered_ns=60, job_id="b", token=9, attempt=1, claim_id="c2"), 0),
        (Grant(asked_ns=50, answered_ns=60, job_id="b", token=10, attempt=2, claim_id="c3"), 0),
    ],
)
def test_tokens_rise_in_real_time(later: Grant, found: int) -> None:
    """Lower or equal after an answer is wrong; of two claims that overlap either may have been first."""
    ledger = good()
    ledger.grants.append(later)
    assert len(check_ledger(ledger)) == found
