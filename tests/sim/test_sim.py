"""Whole clusters from seeds: some new ones each time, the ones that once found something, and the canaries.

`SIM_HOURS` asks for more than the default; the seed base is printed, and a failing seed prints what replays it.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.__main__ import Total, run_many, shrink
from tests.sim.beside import HOURS, NewSeeds
from tests.sim.canary import SEEDS_MAX, without
from tests.sim.cluster import run

JOBS = 2
REPOSITORY = Path(__file__).parents[2]

FOUND: dict[int, str] = {
    709: "cluster time stood still while an honest node was away and another's clock lagged: jobs stayed pending",
    749: "of three clocks heard of five the middle one was a liar's: a job started early",
    821: "cluster time stood still, then jumped: a delay ended early",
    9001465: "a node all of whose known peers had left was never found by those that stayed: a majority of one too few",
    9001833: "the same, of a node that was connected to one follower and cut from all the others it knew",
    12000661: "a leader waited for ever for an install that the follower's own log had overtaken",
    700042: "a leader restarted in an outage lags by it (see README.md): allowed for, and by no more",
}
"""Seeds that found something, and what it was: they must pass now."""


@pytest.mark.timeout(120 + HOURS * 240)
def test_new_seeds_break_no_promise(new_seeds: NewSeeds, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = new_seeds.wait()
    with capsys.disabled():
        print(f"\nsimulator: {new_seeds.hours} hours from seed base {new_seeds.base}")
    assert code == 0, output


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(SEEDS_MAX))
def test_a_protection_taken_out_is_noticed(name: str) -> None:
    base = secrets.randbelow(10**9)
    total = run_many(base, 0, JOBS, canary=name, seeds_max=SEEDS_MAX[name])
    assert total.failed, f"{name} was not found in {total.seeds} seeds from {base} on"


def test_a_seed_gives_the_same_run_whatever_the_hash_seed() -> None:
    script = "from tests.sim.cluster import run; r = run(11); print(r.digest, r.events, r.counts)"
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(runs) == 1
    assert runs.pop().split()[0] != "0"


def test_a_run_is_told_by_its_schedule_alone() -> None:
    whole = run(12)
    assert run(12, whole.schedule).digest == whole.digest
    assert run(12, []).digest != whole.digest


def test_a_schedule_shrinks_to_faults_that_still_fail() -> None:
    seed = next(seed for seed in range(100, 200) if _fails_unfenced(seed))
    with without("token"):
        whole = run(seed)
        fewer = shrink(seed, canary="token", tries_max=8)
        assert len(fewer) < len(whole.schedule)
        assert run(seed, fewer).findings


def _fails_unfenced(seed: int) -> bool:
    with without("token"):
        report = run(seed)
    return len(report.schedule) > 4 and bool(report.findings)


def test_a_run_that_did_too_little_is_no_pass() -> None:
    total = Total(simulated_s=7200.0)
    assert any(line.startswith("power: 0 in 2.0 hours") for line in total.starved())


@pytest.mark.parametrize("seed", sorted(FOUND))
def test_what_a_seed_once_found_stays_mended(seed: int) -> None:
    assert run(seed).findings == []
