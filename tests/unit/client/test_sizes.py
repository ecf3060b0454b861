"""What the worker sends in bulk fits the body of a bulk call, however large what it holds is."""

from __future__ import annotations

from msgspec import Raw
from tests.unit.client.test_parts import Bench, claim

from horae import codec, wire
from horae.client import AsyncClient
from horae.jobs import Beat, Ending, Failure
from horae.leases import Lease, LeaseKeeper, parts
from horae.reporter import Reporter

SMALL = 500


def _lease(progress_bytes: int) -> Lease:
    lease = Lease(claim(), sent=0.0, received=0.0)
    if progress_bytes:
        lease.progress = Raw(codec.encode("x" * (progress_bytes - 5)))
    return lease


def test_heartbeats_are_cut_by_number_and_by_progress() -> None:
    leases = [_lease(wire.PROGRESS_BYTES_MAX if n < 200 else 0) for n in range(2500)]
    runs = list(parts(leases))
    assert [lease for run in runs for lease in run] == leases
    assert max(map(len, runs)) == wire.CLAIM_JOBS_MAX
    for run in runs:
        beats = [Beat(lease.job_id, lease.token, lease.progress) for lease in run]
        assert len(codec.encode({"worker": "w", "leases": beats})) <= wire.BULK_BODY_BYTES_MAX


async def test_reports_are_cut_by_results_progress_and_errors() -> None:
    keeper: LeaseKeeper = Bench().keeper
    reporter = Reporter(AsyncClient("http://127.0.0.1:1"), keeper, "w")
    error = Failure("E", "é" * wire.ERROR_MESSAGE_CHARS_MAX, "é" * wire.ERROR_TRACEBACK_CHARS_MAX)
    result = Raw(codec.encode("x" * (wire.RESULT_BYTES_MAX - SMALL)))
    for n in range(300):
        lease = _lease(wire.PROGRESS_BYTES_MAX)
        ended = {"outcome": "fail", "error": error} if n % 2 else {"outcome": "complete", "result": result}
        reporter.put(lease, Ending(job_id="a", lease_token=1, **ended))  # type: ignore[arg-type]
    taken = 0
    while batch := reporter._take():
        taken += len(batch)
        endings = [report.ending for report in batch]
        beats = [Beat("a", 1, report.lease.progress) for report in batch]
        for leases in (endings, beats):
            assert len(codec.encode({"worker": "w", "leases": leases})) <= wire.BULK_BODY_BYTES_MAX
    assert taken == 300
