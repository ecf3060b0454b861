"""Back-off: exact, capped, spread within the jitter, and the same on every node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.core.world import make_spec

from horae_node.core.retry import backoff_ms


def test_it_grows_by_the_factor_up_to_the_cap():
    spec = make_spec("a", retry_initial_ms=1000, retry_factor_milli=2000, retry_max_ms=5000)
    assert [backoff_ms(spec, failures=n, attempt=n) for n in range(1, 6)] == [1000, 2000, 4000, 5000, 5000]


def test_a_small_fraction_is_not_rounded_away_at_each_step():
    spec = make_spec("a", retry_initial_ms=1, retry_factor_milli=1500)
    assert [backoff_ms(spec, failures=n, attempt=n) for n in range(1, 6)] == [1, 1, 2, 3, 5]


def test_the_jitter_is_recorded_for_ever():
    spec = make_spec("job", retry_initial_ms=10_000, retry_jitter_milli=200)
    assert [backoff_ms(spec, failures=1, attempt=n) for n in (1, 2, 3)] == RECORDED


@given(st.text(max_size=20), st.integers(1, 100), st.integers(1, 10**7), st.integers(1000, 10**6), st.integers(0, 1000))
def test_it_stays_within_the_jitter(job_id: str, failures: int, initial_ms: int, factor_milli: int, jitter_milli: int):
    spec = make_spec(
        job_id, retry_initial_ms=initial_ms, retry_factor_milli=factor_milli, retry_jitter_milli=jitter_milli
    )
    base = backoff_ms(spec._replace(retry_jitter_milli=0), failures=failures, attempt=1)
    assert base <= spec.retry_max_ms
    delay_ms = backoff_ms(spec, failures=failures, attempt=failures)
    assert base * (1000 - jitter_milli) <= delay_ms * 1000 <= base * (1000 + jitter_milli)


def test_jobs_that_failed_together_come_back_apart():
    specs = [make_spec(f"job-{n}", retry_initial_ms=100_000, retry_jitter_milli=200) for n in range(50)]
    delays = [backoff_ms(spec, failures=1, attempt=1) for spec in specs]
    assert min(delays) < 85_000
    assert max(delays) > 115_000


RECORDED = [9801, 11800, 9993]
