"""What a monitor is told: that series stay bounded, whatever names jobs have."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from horae_node import metrics
from horae_node.core.model import QueueCounts
from horae_node.metrics import Metrics


def test_the_text_is_what_a_monitor_reads() -> None:
    """The library's own reader, over what is written without it."""
    made = Metrics(lambda: iter(()), lambda: {"a.b": QueueCounts(1, 2, 3, 4, 5, 6, 7), "c": QueueCounts()})
    made.count_dead("mail", 'back\\slash "q"\nline', "failed")
    families = {family.name: family for family in text_string_to_metric_families(made.text().decode())}
    depths = families["horae_queue_jobs"]
    assert (depths.type, depths.documentation) == ("gauge", "Jobs by queue and state.")
    told = {(sample.labels["queue"], sample.labels["state"]): sample.value for sample in depths.samples}
    assert len(told) == 14
    assert (told["a.b", "pending"], told["a.b", "expired"], told["c", "ready"]) == (1, 7, 0)
    (sample,) = families["horae_dead_jobs"].samples
    assert families["horae_dead_jobs"].type == "counter"
    assert sample.labels == {"queue": "mail", "task": 'back\\slash "q"\nline', "reason": "failed"}
    assert sample.value == 1


def test_spans_read_as_the_librarys_own_histogram() -> None:
    made, registry = Metrics(lambda: iter(())), CollectorRegistry()
    own = Histogram("horae_commit_seconds", "x", buckets=metrics._BUCKETS, registry=registry)
    for span_ms in (0, 1, 1, 2, 3, 999, 1000, 1001, 60_000, 60_001, 10**7):
        made.observe_commit_ms(span_ms)
        own.observe(span_ms / 1000)

    def series(text: bytes) -> list[str]:
        lines = text.decode().splitlines()
        return [line for line in lines if line.startswith("horae_commit_seconds_") and "created" not in line]

    assert series(made.text()) == series(generate_latest(registry))


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
