"""`python -m tests.sim`: many seeds, one seed told as a story, a shorter schedule, or the canaries. See README.md."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from tests.sim.canary import SEEDS_MAX, without
from tests.sim.cluster import Report, run
from tests.sim.faults import Fault
from tests.sim.story import telling_logs

FLOORS_PER_HOUR = {
    "leaders": 30,
    "kill": 5,
    "power": 5,
    "power_all": 1,
    "pause": 5,
    "clock": 5,
    "full_disk": 3,
    "submit ok": 500,
    "complete ok": 500,
    "read ok": 300,
    "lost leases": 50,
    "lease_lost": 20,
    "snapshots installed": 5,
    "submit info": 5,
    "granted after others": 50,
    "brought forth": 30,
    "trigger ran": 200,
    "trigger folded": 2,
    "trigger skipped_missed": 5,
    "trigger skipped_overlap": 50,
    "trigger paused": 20,
    "trigger dropped_limit": 15,
    "trigger backfilled": 5,
    "schedule edited": 20,
    "schedule rewound": 10,
    "schedule deleted": 5,
    "submits of jobs whose record may be gone": 50,
}
"""Less than this in an hour of a run of some hours proves nothing. Measured: several times as much."""

FLOOR_HOURS_MIN = 1.0
"""Chance may starve a shorter run."""

PROGRESS_HOURS = 5


@dataclass(slots=True)
class Total:
    """What many runs came to."""

    seeds: int = 0
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failed: list[Report] = field(default_factory=list)

    def add(self, report: Report) -> None:
        self.seeds += 1
        self.simulated_s += report.simulated_s
        self.cpu_s += report.cpu_s
        self.counts.update(report.counts)
        if report.findings:
            self.failed.append(report)

    @property
    def hours(self) -> float:
        return self.simulated_s / 3600

    def starved(self) -> list[str]:
        """What happened too seldom to prove anything."""
        if self.hours < FLOOR_HOURS_MIN:
            return []
        return [
            f"{what}: {self.counts[what]} in {self.hours:.1f} hours, at least {floor} an hour are wanted"
            for what, floor in FLOORS_PER_HOUR.items()
            if self.counts[what] < floor * self.hours
        ]


def run_many(
    base: int,
    hours: float,
    jobs: int,
    *,
    canary: str | None = None,
    seeds_max: int = 0,
    on_report: Callable[[Report, Total], None] = lambda report, total: None,
) -> Total:
    """Seeds from `base` on, until so many hours are simulated; with a canary, until it is found or the seeds are up.

    `on_report` hears of each as it is ready. Raises: `UnfitCanary`.
    """
    total = Total()
    for report in _reports(base, jobs, canary):
        total.add(report)
        if canary is not None:
            _require_fit(canary, report)
        on_report(report, total)
        if canary is not None and (total.failed or total.seeds >= seeds_max):
            break
        if canary is None and total.hours >= hours:
            break
    return total


class UnfitCanary(Exception):
    """It breaks nodes by itself, and not by the protection that it takes out."""


def _require_fit(canary: str, report: Report) -> None:
    for finding in report.findings:
        if any(f" broke: {kind.__name__}: " in finding for kind in (AttributeError, NameError, TypeError)):
            raise UnfitCanary(f"{canary} does not fit the product any more: {finding}")


def _reports(base: int, jobs: int, canary: str | None) -> Iterator[Report]:
    """Reports in whatever order they are ready; each is the same whatever the order."""
    if jobs == 1:
        seed = base
        while True:
            yield _run_quietly(seed, canary)
            seed += 1
    with ProcessPoolExecutor(jobs) as pool:
        seed = base
        waiting: set[Future[Report]] = set()
        try:
            while True:
                while len(waiting) < 2 * jobs:
                    waiting.add(pool.submit(_run_quietly, seed, canary))
                    seed += 1
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from [future.result() for future in done]
        finally:
            pool.shutdown(cancel_futures=True)


def _run_quietly(seed: int, canary: str | None, schedule: list[Fault] | None = None) -> Report:
    with _silence(), without(canary) if canary is not None else nullcontext():
        return run(seed, schedule)


@contextmanager
def _silence() -> Iterator[None]:
    """Faults are meant here: their log lines are no news."""
    logger = logging.getLogger("horae")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def shrink(seed: int, *, canary: str | None = None, tries_max: int = 200) -> list[Fault]:
    """A schedule of fewer faults with which the seed still fails: halves are left out, then smaller pieces."""
    schedule = _run_quietly(seed, canary).schedule
    tries, piece = 0, max(1, len(schedule) // 2)
    while piece and tries < tries_max:
        at = 0
        while at < len(schedule) and tries < tries_max:
            fewer = schedule[:at] + schedule[at + piece :]
            tries += 1
            if _run_quietly(seed, canary, fewer).findings:
                schedule = fewer
            else:
                at += piece
        piece //= 2
    return schedule


# ---------------------------------------------------------------------- commands


def command(seed: int, canary: str | None = None) -> str:
    """What replays a seed."""
    return f"python -m tests.sim --seed {seed}" + (f" --canary {canary}" if canary is not None else "")


def _tell_seed(seed: int, canary: str | None, schedule: list[Fault] | None = None) -> int:
    with telling_logs(print) as story, without(canary) if canary is not None else nullcontext():
        report = run(seed, schedule, story)
    print(f"seed {seed}: {report.nodes} nodes, {report.simulated_s:.1f} s, digest {report.digest:08x}")
    print(" ".join(f"{what}={count}" for what, count in report.counts.items()))
    for finding in report.findings:
        print("FOUND", finding)
    return 1 if report.findings else 0


def _shrink_seed(seed: int, canary: str | None) -> int:
    found = _run_quietly(seed, canary)
    if not found.findings:
        print(f"seed {seed} finds nothing: there is nothing to shrink")
        return 1
    schedule = shrink(seed, canary=canary)
    print(f"{len(schedule)} faults are left:")
    return _tell_seed(seed, canary, schedule)


def _tell_progress(report: Report, total: Total) -> None:
    """A finding at once; a line each `PROGRESS_HOURS`, for whoever waits for a long run."""
    if report.findings:
        print(f"FOUND {report.findings[0]}\n  replay: {command(report.seed)}", flush=True)
    if total.hours // PROGRESS_HOURS > (total.hours - report.simulated_s / 3600) // PROGRESS_HOURS:
        print(f"{total.hours:.1f} hours, {total.seeds} seeds, {len(total.failed)} found something", flush=True)


def _run_hours(base: int, hours: float, jobs: int) -> int:
    print(f"seed base {base}, {jobs} processes", flush=True)
    began = time.perf_counter()
    total = run_many(base, hours, jobs, on_report=_tell_progress)
    elapsed_s = time.perf_counter() - began
    print(
        f"{total.hours:.2f} hours in {total.seeds} seeds and {elapsed_s:.0f} s: "
        f"{total.simulated_s / total.cpu_s:.0f} times real time a core ({total.cpu_s:.0f} s of processor time)"
    )
    print(" ".join(f"{what}={count}" for what, count in sorted(total.counts.items())))
    print(f"{len(total.failed)} of {total.seeds} seeds found something")
    starved = total.starved()
    for line in starved:
        print("TOO LITTLE", line)
    return 1 if total.failed or starved else 0


def _run_canaries(names: list[str], base: int, jobs: int) -> int:
    missed = 0
    for name in names:
        total = run_many(base, 0, jobs, canary=name, seeds_max=SEEDS_MAX[name])
        found = total.failed[0].findings[0] if total.failed else "NOT FOUND"
        print(f"{name}: {found} ({total.seeds} of at most {SEEDS_MAX[name]} seeds)", flush=True)
        for report in total.failed[:1]:
            print(f"  replay: {command(report.seed, name)}")
        missed += not total.failed
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours to run")
    parser.add_argument("--seed-base", type=int, default=None, help="first seed (default: drawn and printed)")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, help="replay one seed and tell its story")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="find a shorter schedule of faults that still fails")
    parser.add_argument("--canary", choices=[*SEEDS_MAX, "all"], help="take a protection out: it must be noticed")
    asked = parser.parse_args()
    base = secrets.randbelow(10**9) if asked.seed_base is None else asked.seed_base
    one = asked.canary if asked.canary != "all" else None
    if asked.seed is not None:
        return _tell_seed(asked.seed, one)
    if asked.shrink is not None:
        return _shrink_seed(asked.shrink, one)
    if asked.canary is not None:
        return _run_canaries(list(SEEDS_MAX) if asked.canary == "all" else [asked.canary], base, asked.jobs)
    return _run_hours(base, asked.hours, asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
