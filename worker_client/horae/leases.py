"""The leases of the jobs in hand: renewed from a thread of its own, and given up by our own clock when they cannot be.

The thread has its own loop and connections, so that a handler that blocks the worker's loop keeps its lease. A lease is
measured from before the request that granted or renewed it was sent: it ends here no later than at the cluster, whose
clock we do not know. Not here: running handlers, reporting outcomes. Next to read: `runner.py`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from msgspec import Raw

from horae import clock, errors, logs, wire
from horae.client import AsyncClient
from horae.jobs import Beat, Claim, Renewal
from horae.transport import TRY_SECONDS, new_event_loop

BEATS_PER_LEASE = 3
"""Two beats may be lost in a row before a lease is."""
FENCE_MARGIN = 0.05
"""Share of a lease (1 s at most) kept for the handler to be stopped in, before the cluster may hand the job on."""
PROGRESS_SECONDS = 1.0
"""Progress is sent at most so often: each report is an entry in the cluster's log."""
_BEAT_BYTES_MAX = wire.BULK_BODY_BYTES_MAX // 2
"""Progress of one heartbeat: what surrounds it is not measured."""
_FAR = 3600.0

CANCEL_REQUESTED = "cancel_requested"
LEASE_LOST = "lease_lost"
LEASE_EXPIRED = "lease_expired"
TIMEOUT = "timeout"


class Lease:
    """One job in hand. Moments are monotonic seconds. Shared by two threads: change it through its keeper."""

    __slots__ = (
        "attempt", "attempts_max", "beat_at", "beaten_at", "cancel_requested", "done", "fence_at", "job_id", "lost",
        "progress", "proven", "seconds", "task", "timeout_at", "token",
    )  # fmt: skip

    def __init__(self, claim: Claim, *, sent: float, received: float) -> None:
        """`sent`: before the claim's first request left; `received`: when its answer came."""
        self.job_id = claim.id
        self.task = claim.task
        self.attempt = claim.attempt
        self.attempts_max = claim.max_attempts
        self.token = claim.lease_token
        self.seconds = claim.lease_seconds
        self.done = False
        self.lost = ""
        self.cancel_requested = False
        self.progress: Raw | None = None
        self.beaten_at = received
        self.timeout_at = received + _timeout_seconds(claim)
        self.beat_at = sent + self.seconds / BEATS_PER_LEASE
        self.fence_at = _fence_at(sent, self.seconds)
        # The claim waited longer than the lease lasts: it may be young or over; only a beat can tell.
        self.proven = self.fence_at > received
        if not self.proven:
            self.beat_at = received
            self.fence_at = received + self.seconds

    @property
    def stop_reason(self) -> str:
        """Why the handler should stop; empty while it should not."""
        return self.lost or (CANCEL_REQUESTED if self.cancel_requested else "")


class LeaseKeeper:
    """Renews every lease it holds each third of it, and tells when one is lost or its job is to be cancelled.

    `notify(lease)` is called on the keeper's thread after a change of `stop_reason` or `proven`.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        worker: str,
        notify: Callable[[Lease], None],
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        """`beside`: what else goes on in the thread, on its loop, until the end."""
        self._client = AsyncClient(urls, token=token, connections=2, tls=tls)
        self._worker = worker
        self._notify = notify
        self._beside = beside
        self._now = now
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, int], Lease] = {}
        self._planned = 0.0
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="horae-leases", daemon=True)

    def start(self) -> None:
        self._loop = new_event_loop()
        self._thread.start()

    def stop(self) -> None:
        """End the thread. No lease is renewed any more; none is given up either. Blocks for a moment."""
        self._stopping = True
        self._call_wake()
        self._thread.join()

    def add(self, leases: Sequence[Lease]) -> None:
        """Renew these from now on."""
        with self._lock:
            for lease in leases:
                self._leases[lease.job_id, lease.token] = lease
            soonest = min((lease.beat_at for lease in leases), default=self._planned)
        self._wake_by(soonest)

    def drop(self, lease: Lease) -> None:
        """Renew it no more: its outcome is known to the cluster, or is nobody's any more."""
        with self._lock:
            self._leases.pop((lease.job_id, lease.token), None)

    def holds(self, job_id: str, token: int) -> bool:
        """This very lease is in hand."""
        return (job_id, token) in self._leases

    def finish(self, lease: Lease) -> bool:
        """The handler is over: True, once, when its outcome may be reported. From then on the lease is not given up."""
        with self._lock:
            if lease.done or lease.lost or self._now() >= min(lease.fence_at, lease.timeout_at):
                return False
            lease.done = True
            return True

    def set_progress(self, lease: Lease, progress: Raw) -> None:
        """Send this with the next beat, which comes soon. Any thread."""
        with self._lock:
            lease.progress = progress
            lease.beat_at = soonest = min(lease.beat_at, lease.beaten_at + PROGRESS_SECONDS)
        self._wake_by(soonest)

    # ------------------------------------------------------------ the thread

    def _wake_by(self, moment: float) -> None:
        """Most leases change nothing about when the thread must wake next: leave it asleep then (it costs a switch)."""
        if moment < self._planned:
            self._planned = moment
            self._call_wake()

    def _call_wake(self) -> None:
        if self._loop is None:
            return  # not started: its first pass sees all there is
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:
            return  # the loop is closed: nothing is to be woken any more

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None, "the thread is started by start()"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._watch())

    async def _watch(self) -> None:
        beside = None if self._beside is None else asyncio.ensure_future(self._beside())
        try:
            while not self._stopping:
                self._wake.clear()
                await self._wait(self.run_once(self._now()))
        finally:
            for task in (self._beating, beside):
                if task is not None:
                    task.cancel()
            await self._client.close()

    async def _wait(self, until: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, until - self._now())):
                await self._wake.wait()
        except TimeoutError:
            return

    def run_once(self, now: float) -> float:
        """Give up what is over, start a beat of what is due; the moment of the next pass. On the keeper's loop only."""
        with self._lock:
            leases = list(self._leases.values())
            over = [lease for lease in leases if _give_up(lease, now)]
            beating = self._beating is not None
            due = [] if beating else _due(leases, now)
            live = [lease for lease in leases if not lease.lost]
            beats = [] if beating or due else [lease.beat_at for lease in live]
            ends = [min(lease.fence_at, lease.timeout_at) for lease in live if not lease.done]
            self._planned = min(beats + ends, default=now + _FAR)
        for lease in over:
            self._tell(lease)
        if due:
            self._beating = asyncio.ensure_future(self._beat_all(due))
        return self._planned

    async def _beat_all(self, leases: list[Lease]) -> None:
        try:
            for part in parts(leases):
                await self._beat(part)
        except Exception:  # the root of a pass: the thread must live on, or every lease is lost
            logs.failure("heartbeat_broken", leases=len(leases))
            self._try_again(leases)
        finally:
            self._beating = None
            self._wake.set()

    async def _beat(self, leases: list[Lease]) -> None:
        """One heartbeat, repeated within a third of the shortest lease; then the next pass takes a fresh list."""
        shortest = min(lease.seconds for lease in leases)
        sent = self._now()
        beats = [Beat(lease.job_id, lease.token, lease.progress) for lease in leases]
        try:
            renewals = await self._client.heartbeat(
                self._worker,
                beats,
                deadline_seconds=max(0.3, shortest / BEATS_PER_LEASE),
                try_seconds=max(0.2, min(TRY_SECONDS, shortest / (2 * BEATS_PER_LEASE))),
            )
        except (errors.Invalid, errors.TooLarge, errors.Malformed) as error:
            self._drop_progress(leases, error)
        except errors.HoraeError as error:
            logs.event(logging.WARNING, "heartbeat_failed", leases=len(leases), error=error)
            self._try_again(leases)
        else:
            for lease, beat, renewal in zip(leases, beats, renewals, strict=True):
                self._renew(lease, beat, renewal, sent)

    def _renew(self, lease: Lease, beat: Beat, renewal: Renewal, sent: float) -> None:
        with self._lock:
            reason, proven = lease.stop_reason, lease.proven
            if renewal.status == "ok":
                lease.proven = True
                lease.beaten_at = sent
                lease.beat_at = sent + lease.seconds / BEATS_PER_LEASE
                lease.fence_at = _fence_at(sent, lease.seconds)
                lease.cancel_requested |= renewal.cancel_requested
                if lease.progress is beat.progress:
                    lease.progress = None
                else:  # a newer one came meanwhile
                    lease.beat_at = min(lease.beat_at, sent + PROGRESS_SECONDS)
            elif not lease.lost:
                lease.lost = LEASE_LOST
                lease.proven = True
            changed = (lease.stop_reason, lease.proven) != (reason, proven)
        if changed:
            self._tell(lease)

    def _drop_progress(self, leases: list[Lease], error: errors.RequestError) -> None:
        """A progress that the cluster refuses must not cost the leases that travel with it."""
        logs.event(logging.ERROR, "heartbeat_refused", error=error, leases=len(leases))
        if all(lease.progress is None for lease in leases):
            self._try_again(leases)
        for lease in leases:
            lease.progress = None

    def _try_again(self, leases: list[Lease]) -> None:
        now = self._now()
        for lease in leases:
            lease.beat_at = now + min(0.5, lease.seconds / 10)

    def _tell(self, lease: Lease) -> None:
        if lease.lost and not lease.done:
            logs.event(logging.WARNING, lease.lost, job_id=lease.job_id, token=lease.token)
        self._notify(lease)


def _due(leases: list[Lease], now: float) -> list[Lease]:
    """When one is due, all that are past half their way travel with it: fewer requests, fewer log entries."""
    if not any(lease.beat_at <= now and not lease.lost for lease in leases):
        return []
    return [
        lease for lease in leases if not lease.lost and lease.beat_at - lease.seconds / (2 * BEATS_PER_LEASE) <= now
    ]


def _give_up(lease: Lease, now: float) -> bool:
    """Self-fencing: mark a lease that could not be renewed in time, or an attempt that ran too long. True: just now."""
    if lease.done or lease.lost:
        return False
    if lease.fence_at <= now:
        lease.lost = LEASE_EXPIRED
    elif lease.timeout_at <= now:
        lease.lost = TIMEOUT
    if lease.lost:
        lease.proven = True
    return bool(lease.lost)


def _fence_at(sent: float, seconds: float) -> float:
    return sent + seconds - min(1.0, seconds * FENCE_MARGIN)


def _timeout_seconds(claim: Claim) -> float:
    """How long the attempt may run, from two moments of the cluster's clock: ours is not asked."""
    return max(0.0, (claim.timeout_at - claim.lease_expires_at).total_seconds() + claim.lease_seconds)


def parts(leases: list[Lease]) -> Iterator[list[Lease]]:
    """The leases in runs that fit one heartbeat, by number and by their progress."""
    part: list[Lease] = []
    total = 0
    for lease in leases:
        progress = lease.progress
        size = 0 if progress is None else len(memoryview(progress))
        if len(part) == wire.CLAIM_JOBS_MAX or (part and total + size > _BEAT_BYTES_MAX):
            yield part
            part, total = [], 0
        part.append(lease)
        total += size
    yield part
