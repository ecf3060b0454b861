"""The blocking client: `AsyncClient` behind a loop thread of its own, method by method, so that there is one code.

Nothing is decided here. What each call promises in full stands in `client.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import ssl
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, wait
from contextlib import suppress
from datetime import datetime
from typing import Any, Self, TypeVar, Unpack

from msgspec import Raw

from horae import wire
from horae.client import DEADLINE_SECONDS, DEFAULT_URL, AsyncClient, Submitted, disown
from horae.events import Event
from horae.jobs import (
    Beat,
    Claim,
    Ended,
    Ending,
    Failure,
    Job,
    JobFilter,
    JobOptions,
    JobPage,
    JobsWanted,
    NewJob,
    QueueSettings,
    Renewal,
)
from horae.schedules import NextTime, Schedule, ScheduleRule, ScheduleTerms, Trigger, Triggered
from horae.transport import new_event_loop
from horae.trouble import Trouble

T = TypeVar("T")


_CLOSED = "this client is closed"
_FORKED = "this client was made before a fork, and its thread stayed behind: make one in each process"
_LOOK_SECONDS = 0.5
"""How long Ctrl-C may be left waiting that comes just before a wait: the interpreter hears it after that only."""
_END_SECONDS = 2.0
"""At the interpreter's end the connections get so long to be closed: it must not hang for them."""


class _Home:
    """The loop of one client, and the thread that runs it until `end`, then closes all that lives on it."""

    def __init__(self, client: AsyncClient) -> None:
        disown(client)
        self.forked = False
        self._client = client
        self._ended = asyncio.Event()
        self.loop = new_event_loop()
        self.thread = threading.Thread(target=self._live, name="horae-client", daemon=True)
        self.thread.start()
        _homes.add(self)

    def end(self) -> None:
        """Ask the thread to end. Never waits and takes no lock: a collection may call it wherever it happens."""
        if self.forked:
            return
        with suppress(RuntimeError):  # it has ended, at the interpreter's end
            self.loop.call_soon_threadsafe(self._ended.set)

    def _live(self) -> None:
        try:
            self.loop.run_until_complete(self._until_ended())
        finally:
            self.loop.close()
            _homes.discard(self)

    async def _until_ended(self) -> None:
        await self._ended.wait()
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._client.close()


_homes: set[_Home] = set()
"""Those with a thread."""
_exiting = threading.Event()


def _after_fork() -> None:
    """In the child no client has its thread. Their loops are the parent's still, and stay here, unused."""
    for home in _homes:
        home.forked = True


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _end_all() -> None:
    """A thread that the interpreter takes down with itself leaves its connections open, and aiohttp complains of it."""
    _exiting.set()
    homes = list(_homes)
    for home in homes:
        home.end()
    for home in homes:
        home.thread.join(_END_SECONDS)


class Client:
    """The blocking client: as `AsyncClient`, method by method. Threads may share one. Use as `with`, or `close()` it.

    Its calls run on the loop of a thread of its own. Never use it on an event loop's thread: that is `AsyncClient`'s.
    One that is forgotten closes itself, when it is collected or at the interpreter's end.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
        trouble: Trouble | None = None,
    ) -> None:
        self._client = AsyncClient(
            urls, token=token, deadline_seconds=deadline_seconds, connections=connections, tls=tls, trouble=trouble
        )
        self._home = _Home(self._client)
        # Nothing but this object may refer to itself: the thread knows the home alone.
        self._ending = weakref.finalize(self, self._home.end)
        self._ending.atexit = False
        # No call may come behind the end: nobody would ever answer it.
        self._handing_on = threading.Lock()

    def close(self) -> None:
        """Drop the connections and end the thread; what other threads wait for fails. A second close does nothing."""
        with self._handing_on:
            self._ending()
        if not self._home.forked:
            self._home.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        home = self._home
        if home.forked:  # the lock may have been forked while another thread held it
            call.close()
            raise RuntimeError(_FORKED)
        with self._handing_on:
            if not self._ending.alive:
                call.close()
                raise RuntimeError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(call, home.loop)
        try:
            # Not for ever at a time: a signal that comes just before the wait is seen after it.
            while not wait((future,), _LOOK_SECONDS).done:
                pass
            return future.result()
        except CancelledError:
            if _exiting.is_set():
                threading.Event().wait()  # in a daemon thread, which ends with the interpreter and has nobody to tell
            raise RuntimeError(_CLOSED) from None
        except BaseException:
            future.cancel()  # Ctrl-C in the caller must not leave the call running
            raise

    def submit(
        self,
        task: str,
        payload: Any = None,
        *,
        deadline_seconds: float | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Submit one job; it is durable when this returns. Without an `id` one is made, once for all retries.

        `payload`: any JSON value. Raises: `Conflict` when the `id` belongs to a job with another content; TypeError
        when the payload has no JSON form; `OutcomeUnknown`, with the `job_id` to repeat with.
        """
        return self._run(self._client.submit(task, payload, deadline_seconds=deadline_seconds, **options))

    def submit_job(self, job: NewJob, *, deadline_seconds: float | None = None) -> Submitted:
        """As `submit`, and tells whether the job is new."""
        return self._run(self._client.submit_job(job, deadline_seconds=deadline_seconds))

    def submit_many(self, jobs: Iterable[NewJob], *, deadline_seconds: float | None = None) -> list[Job]:
        """Submit many, each with its own outcome; the jobs in the order given. Raises: `PartlyRefused` at the end."""
        return self._run(self._client.submit_many(jobs, deadline_seconds=deadline_seconds))

    def events(
        self, *, after: str | int | None = None, queues: Sequence[str] = (), types: Sequence[wire.EventType] = ()
    ) -> Iterator[Event]:
        """Every change of state, in order, without an end. Raises: `FellBehind`. Close the iterator when done."""
        told = _Told(self._client.events(after=after, queues=queues, types=types))
        try:
            while True:
                yield self._run(told.next())
        finally:
            self._run(told.close())

    def job(self, job_id: str, *, deadline_seconds: float | None = None) -> Job:
        """Read one job. Raises: `NotFound`."""
        return self._run(self._client.job(job_id, deadline_seconds=deadline_seconds))

    def jobs_page(self, *, limit: int = 50, cursor: str | None = None, **wanted: Unpack[JobsWanted]) -> JobPage:
        """One page of jobs, newest first; hand its `next_cursor` back for the next."""
        return self._run(self._client.jobs_page(limit=limit, cursor=cursor, **wanted))

    def jobs(self, *, page: int = 200, **wanted: Unpack[JobsWanted]) -> Iterator[Job]:
        """All jobs that match, newest first, read a page at a time."""
        cursor: str | None = None
        while True:
            got = self.jobs_page(limit=page, cursor=cursor, **wanted)
            yield from got.jobs
            cursor = got.next_cursor
            if cursor is None:
                return

    def wait(self, job_id: str, *, wait_seconds: float | None = None) -> Job:
        """The job as soon as it is finished. Raises: `NotFound`, `NotFinished` at the end of `wait_seconds`."""
        return self._run(self._client.wait(job_id, wait_seconds=wait_seconds))

    def result(self, job_id: str, *, wait_seconds: float | None = None) -> Any:
        """What the job's handler returned, once it has. Raises: as `wait`, and `JobFailed` when it did not succeed."""
        return self._run(self._client.result(job_id, wait_seconds=wait_seconds))

    def cluster(self, *, local: bool = False) -> wire.ClusterView:
        """The members and how far each is; `local`: as the asked node itself sees them."""
        return self._run(self._client.cluster(local=local))

    def add_member(self, node: str, *, raft_address: str, http_url: str) -> wire.MemberStanding:
        """Take a node in; as `AsyncClient.add_member`."""
        return self._run(self._client.add_member(node, raft_address=raft_address, http_url=http_url))

    def remove_member(self, node: str) -> wire.MemberStanding:
        """Remove a node for good; as `AsyncClient.remove_member`."""
        return self._run(self._client.remove_member(node))

    def move_member(self, node: str, *, raft_address: str, http_url: str) -> wire.MemberStanding:
        """The same node is reached elsewhere; as `AsyncClient.move_member`."""
        return self._run(self._client.move_member(node, raft_address=raft_address, http_url=http_url))

    def hand_over(self, node: str) -> wire.LeaderView:
        """Make this node the leader; as `AsyncClient.hand_over`."""
        return self._run(self._client.hand_over(node))

    def cancel(self, job_id: str) -> Job:
        """Cancel: at once if it is not running, else its worker is asked to. Raises: `Conflict` when finished."""
        return self._run(self._client.cancel(job_id))

    def requeue(self, job_id: str) -> Job:
        """Run a `dead`, `cancelled` or `expired` job anew. Raises: `Conflict` in any other state."""
        return self._run(self._client.requeue(job_id))

    def cancel_many(self, *, every: bool = False, **which: Unpack[JobFilter]) -> int:
        """Cancel all jobs that match: how many; `every`: all there are; as `AsyncClient.cancel_many`."""
        return self._run(self._client.cancel_many(every=every, **which))

    def requeue_many(self, *, every: bool = False, **which: Unpack[JobFilter]) -> int:
        """Run all jobs that match anew: how many; `every`: all there are; as `AsyncClient.requeue_many`."""
        return self._run(self._client.requeue_many(every=every, **which))

    def queues(self) -> list[wire.QueueView]:
        """All queues that hold jobs or have settings, by name; as `AsyncClient.queues`."""
        return self._run(_all(self._client.queues()))

    def workers(self) -> list[wire.WorkerView]:
        """Who claimed or sent a heartbeat in the last five minutes, by name; as `AsyncClient.workers`."""
        return self._run(_all(self._client.workers()))

    def queue(self, name: str) -> wire.QueueView:
        """One queue: its depths and settings."""
        return self._run(self._client.queue(name))

    def set_queue(self, name: str, **settings: Unpack[QueueSettings]) -> wire.QueueView:
        """Change settings of a queue; as `AsyncClient.set_queue`."""
        return self._run(self._client.set_queue(name, **settings))

    def put_schedule(
        self, schedule_id: str, job: NewJob, *, if_version: int | None = None, **terms: Unpack[ScheduleTerms]
    ) -> Schedule:
        """Make a schedule, or replace it; as `AsyncClient.put_schedule`."""
        return self._run(self._client.put_schedule(schedule_id, job, if_version=if_version, **terms))

    def schedule(self, schedule_id: str) -> Schedule:
        """Read a schedule. Raises: `NotFound`."""
        return self._run(self._client.schedule(schedule_id))

    def schedules(self) -> list[Schedule]:
        """All schedules, by id; as `AsyncClient.schedules`."""
        return self._run(_all(self._client.schedules()))

    def delete_schedule(self, schedule_id: str) -> None:
        """Nothing of it fires any more; its jobs live on. Raises: `NotFound`."""
        self._run(self._client.delete_schedule(schedule_id))

    def pause_schedule(self, schedule_id: str) -> Schedule:
        """Let its triggers go by from now on. Raises: `NotFound`."""
        return self._run(self._client.pause_schedule(schedule_id))

    def resume_schedule(self, schedule_id: str, *, missed: bool = False) -> Schedule:
        """Let its triggers run again; as `AsyncClient.resume_schedule`."""
        return self._run(self._client.resume_schedule(schedule_id, missed=missed))

    def trigger_schedule(self, schedule_id: str, *, own_id: str | None = None) -> Job:
        """Make a job of it now, besides its triggers; as `AsyncClient.trigger_schedule`."""
        return self._run(self._client.trigger_schedule(schedule_id, own_id=own_id))

    def backfill_schedule(self, schedule_id: str, from_: datetime | str, to: datetime | str) -> Triggered:
        """Run the triggers of a window that have not run; as `AsyncClient.backfill_schedule`."""
        return self._run(self._client.backfill_schedule(schedule_id, from_, to))

    def triggers(
        self, schedule_id: str, *, from_: datetime | str | None = None, to: datetime | str | None = None
    ) -> list[Trigger]:
        """The ledger, oldest first; as `AsyncClient.triggers`."""
        return self._run(_all(self._client.triggers(schedule_id, from_=from_, to=to)))

    def next_times(self, schedule_id: str, n: int = 10, *, from_: datetime | str | None = None) -> list[NextTime]:
        """The next moments that a schedule names; as `AsyncClient.next_times`."""
        return self._run(self._client.next_times(schedule_id, n, from_=from_))

    def preview(
        self,
        n: int = 10,
        *,
        schedule_id: str | None = None,
        from_: datetime | str | None = None,
        **rule: Unpack[ScheduleRule],
    ) -> list[NextTime]:
        """The same of a schedule that is not saved; as `AsyncClient.preview`."""
        return self._run(self._client.preview(n, schedule_id=schedule_id, from_=from_, **rule))

    def run_now(self, job_id: str) -> Job:
        """Make a pending job ready. Raises: `Conflict` in any other state."""
        return self._run(self._client.run_now(job_id))

    def delete(self, job_id: str) -> None:
        """Forget a finished job. Raises: `Conflict` when it is not finished, `NotFound`."""
        self._run(self._client.delete(job_id))

    def claim(
        self,
        worker: str,
        queues: Sequence[str],
        *,
        max_jobs: int = 1,
        wait_seconds: float = 0,
        lease_seconds: float | None = None,
        claim_id: str | None = None,
    ) -> list[Claim]:
        """Take up to `max_jobs`; empty at the end of the wait. A repeat with the same `claim_id` gets the same jobs."""
        return self._run(
            self._client.claim(
                worker,
                queues,
                max_jobs=max_jobs,
                wait_seconds=wait_seconds,
                lease_seconds=lease_seconds,
                claim_id=claim_id,
            )
        )

    def heartbeat(self, worker: str, leases: Sequence[Beat]) -> list[Renewal]:
        """Renew leases: one result each, in order."""
        return self._run(self._client.heartbeat(worker, leases))

    def complete(self, job_id: str, lease_token: int, result: Any = None) -> Job:
        """The attempt succeeded. A repeat of an accepted call is accepted again. Raises: `LeaseLost`, `TooLarge`."""
        return self._run(self._client.complete(job_id, lease_token, result))

    def fail(
        self,
        job_id: str,
        lease_token: int,
        error: Failure,
        *,
        retry: bool = True,
        retry_in_seconds: float | None = None,
    ) -> Job:
        """The attempt failed; `retry` False: for good. Raises: `LeaseLost`."""
        return self._run(self._client.fail(job_id, lease_token, error, retry=retry, retry_in_seconds=retry_in_seconds))

    def release(self, job_id: str, lease_token: int, *, delay_seconds: float = 0, progress: Raw | None = None) -> Job:
        """Hand the job back, not counted. `progress`: MessagePack, for the next attempt. Raises: `LeaseLost`."""
        return self._run(self._client.release(job_id, lease_token, delay_seconds=delay_seconds, progress=progress))

    def end_many(self, worker: str, endings: Sequence[Ending]) -> list[Ended]:
        """Report the outcomes of many attempts (at most 1000) in one request: one result each, in order."""
        return self._run(self._client.end_many(worker, endings))


async def _all(found: AsyncIterator[T]) -> list[T]:
    return [item async for item in found]


class _Told:
    """Events, asked for one by one. A call that was cut short, as by Ctrl-C, may wait still when the close comes."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._events = events
        self._asked = asyncio.Lock()
        self._asking: asyncio.Task[Any] | None = None

    async def next(self) -> Event:
        async with self._asked:
            self._asking = asyncio.current_task()
            try:
                return await anext(self._events)
            finally:
                self._asking = None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        async with self._asked:
            await self._events.aclose()
