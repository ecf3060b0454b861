"""What a monitor is told: that series stay bounded, whatever names jobs have."""

from __future__ import annotations

import pytest

from horae_node import metrics
from horae_node.metrics import Metrics


def dead(made: Metrics) -> dict[str, float]:
    """The series of dead jobs by their labels."""
    lines = [line for line in made.text().decode().splitlines() if line.startswith("horae_dead_jobs_total{")]
    return {line.partition("{")[2].partition("}")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_dead_jobs_are_counted_by_queue_task_and_reason() -> None:
    made = Metrics(lambda: iter(()))
    for reason in ("failed", "failed", "poison"):
        made.count_dead("mail", 'send "it"', reason)
    assert dead(made) == {
        'queue="mail",reason="failed",task="send \\"it\\""': 2.0,
        'queue="mail",reason="poison",task="send \\"it\\""': 1.0,
    }


def test_names_without_end_are_counted_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "DEAD_KINDS_MAX", 2)
    made = Metrics(lambda: iter(()))
    for task in ("a", "b", "c", "d", "a"):
        made.count_dead("q", task, "failed")
    assert dead(made) == {
        'queue="q",reason="failed",task="a"': 2.0,
        'queue="q",reason="failed",task="b"': 1.0,
        'queue="(others)",reason="failed",task="(others)"': 2.0,
    }
