"""The worker: claims what it has a free slot for, runs it, reports it, and hands back what it cannot finish.

Each concern has its file: leases and self-fencing (`leases.py`), one attempt (`runner.py`), reports (`reporter.py`),
tasks and `Context` (`registry.py`). Here is how they play together: `serve` reads as the worker's life.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from horae import backoff, checks, clock, errors, logs, main_loop, wire
from horae.client import DEFAULT_URL, AsyncClient, url_list
from horae.handles import TaskHandle
from horae.hooks import Hook
from horae.ids import new_id
from horae.jobs import Claim, Ending, JobOptions
from horae.leases import Lease, LeaseKeeper
from horae.nodes import base_url, shown
from horae.registry import Context, Registry
from horae.reporter import Reporter, log_ending
from horae.runner import STOPPING, released, run_attempt, stopped
from horae.signals import asked, heard
from horae.stalls import BLOCKED_SECONDS, StallWatch, place_of
from horae.threads import ThreadPool
from horae.trouble import Kind, Trouble

if TYPE_CHECKING:
    from typing import Unpack

    from horae.blocking import Client

P = ParamSpec("P")
R = TypeVar("R")

WAIT_SECONDS = 20.0
"""One long poll: proxies on the way commonly cut silence at 30 s or 60 s."""
GRACE_SECONDS = 25.0
"""Running handlers may finish in this time after a stop: below the 30 s after which orchestrators kill."""
_UNWIND_SECONDS = 1.0
"""A cancelled handler gets this long to clean up before its job is handed back under it."""
_LAST_WORD_SECONDS = 3.0
"""At a stop, the last reports get this long to be answered; what is not then runs out with its lease."""
TELL_SECONDS = 5.0
"""A cluster that is away for so long is told of: longer than a fail-over takes, so that those are not."""
_TELL_AGAIN_SECONDS = 30.0
_SECOND_SIGNAL = "a second signal (or stop) hands them back at once"
_AGAIN_WAIT_SECONDS = 1.0
"""A claim's wait after a try that failed: its answer tells soon that the cluster is there again, jobs or not."""
_REFUSED = (errors.Unauthenticated, errors.Forbidden)
_HOPELESS = (errors.Invalid, errors.Malformed, errors.NotFound)


class _Registers(Protocol):
    """What `@worker.task("name")` applies to a handler."""

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R]) -> TaskHandle[P, R]: ...

    @overload
    def __call__(self, handler: Callable[P, R]) -> TaskHandle[P, R]: ...


class _Run:
    """One attempt in hand."""

    __slots__ = ("began", "cancellable", "claim", "interrupted", "lease", "proven", "task")

    def __init__(self, claim: Claim, lease: Lease, *, cancellable: bool) -> None:
        self.claim = claim
        self.lease = lease
        self.cancellable = cancellable
        self.interrupted = False
        self.began = clock.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.proven: asyncio.Event | None = None if lease.proven else asyncio.Event()

    def interrupt(self) -> None:
        """Cancel the handler; one in a thread can only be asked (`Context.cancelled`)."""
        self.interrupted = True
        if self.proven is not None:
            self.proven.set()
        elif self.cancellable and self.task is not None:
            self.task.cancel()


class Worker:
    """Runs the jobs of some queues. Register handlers with `task`, then `run()` (blocking) or `await serve()`.

    `concurrency`: how many jobs at a time. `lease_seconds`: overrides that of the jobs. `grace_seconds`: how long
    running jobs may take after a stop before they are handed back, the attempt not counted. One `serve` a worker.
    """

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 8,
        name: str | None = None,
        token: str | None = None,
        lease_seconds: float | None = None,
        grace_seconds: float = GRACE_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.urls = [base_url(url) for url in url_list(urls)]
        self.queues = checks.queue_names(queues)
        self.concurrency = checks.require_whole("concurrency", concurrency, 1, wire.CLAIM_JOBS_MAX)
        self.name = checks.worker_name(name or f"{socket.gethostname()}:{os.getpid()}")
        self.token = token
        self.lease_seconds = (
            None if lease_seconds is None else checks.require_seconds("lease_seconds", lease_seconds, 1, 3600)
        )
        self.grace_seconds = checks.require_seconds("grace_seconds", grace_seconds, 0, float("inf"))
        self.tell_seconds = TELL_SECONDS
        self.blocked_seconds = BLOCKED_SECONDS
        self._tls = tls
        self.registry = Registry()
        self._session: _Session | None = None
        self._client: Client | None = None
        self._stop_asked = 0

    @overload
    def task(self, name: Callable[Concatenate[Context, P], R]) -> TaskHandle[P, R]: ...

    @overload
    def task(self, name: Callable[P, R]) -> TaskHandle[P, R]: ...

    @overload
    def task(self, name: str | None = None, **options: Unpack[JobOptions]) -> _Registers: ...

    def task(self, name: Any = None, **options: Unpack[JobOptions]) -> Any:
        """Decorator: the handler of tasks of this name (default: the function's own).

        `options`: keys of each job that is made by the result, a `TaskHandle`. From a `queue` the worker also claims;
        without one jobs go to its first.
        Async functions run on the loop, plain ones in threads. A first parameter annotated `Context` gets one. A single
        parameter named `payload` gets the whole payload (converted when annotated with a dataclass or Struct);
        otherwise the keys of an object payload become keyword arguments. What is returned is the job's result.
        """
        if callable(name):  # without parentheses
            return self.task()(name)
        if name is not None and not isinstance(name, str):
            raise TypeError(f'a task\'s name is text, not {name!r}: write @worker.task("ship")')
        queue = options.get("queue")
        names = [] if queue is None else checks.queue_names([queue])

        def register(handler: Callable[..., R]) -> TaskHandle[..., R]:
            task = self.registry.add(name or handler.__name__, handler)
            self.queues += [added for added in names if added not in self.queues]
            own = options if queue is not None or not self.queues else {**options, "queue": self.queues[0]}
            return TaskHandle(task, self._calls, own, handler)

        return register

    def _calls(self) -> Client:
        """The client of its tasks' handles."""
        if self._client is None:
            from horae.blocking import Client  # with its thread, only where it is used

            self._client = Client(self.urls, token=self.token, tls=self._tls)
        return self._client

    def before(self, hook: Hook) -> Hook:
        """Decorator: call this with the `Context` before each handler. What it raises is how the attempt failed.

        Hooks run on the worker's loop, async or not, in the handler's own context: variables that they set are its own.
        """
        self.registry.hooks.add("before", hook)
        return hook

    def after(self, hook: Hook) -> Hook:
        """Decorator: call this with the `Context` and the result after each success, the last one first."""
        self.registry.hooks.add("after", hook)
        return hook

    def on_error(self, hook: Hook) -> Hook:
        """Decorator: call this with the `Context` and the exception after each failure, the last one first.

        A `Snooze`, a cancelled job and a lost lease are no failures.
        """
        self.registry.hooks.add("on_error", hook)
        return hook

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`. A second signal hands everything back at once; more change nothing.

        No handler ends it: `sys.exit` in a task that a handler made is an exception as any other, for whoever awaits
        that task; `stop()` of the loop does nothing.
        When the program has not set up logging, this worker's lines go to stderr. SIGUSR1 shows there what runs.
        """
        logs.show("horae")
        with heard(self.stop), asked(self.show_running):
            main_loop.run(self.serve(signals=True))
        self._stop_asked = 0  # what was heard after the end is not for the next time

    def _require_work(self) -> None:
        """Raises: `NothingToDo`."""
        if not self.registry.names():
            raise errors.NothingToDo("this worker has no tasks: decorate a function with @worker.task")
        if not self.queues:
            raise errors.NothingToDo('this worker has no queues: write Worker(url, queues=["default"])')

    async def serve(self, *, signals: bool = False) -> None:
        """Work until `stop()`; all leases are ended or handed back when this returns. Cancelled: stops at once.

        `signals`: SIGTERM and SIGINT mean `stop` (on the main thread only). Raises: `Unauthenticated`, `Forbidden`,
        `Invalid` when the cluster will not have this worker; `NothingToDo` when it has no tasks or no queues.
        """
        assert self._session is None, "a worker serves once at a time"
        self._require_work()
        session = self._session = _Session(self)
        told = partial(asyncio.get_running_loop().call_soon_threadsafe, session.stop)
        with heard(told) if signals else nullcontext(), asked(self.show_running) if signals else nullcontext():
            session.tell_started()
            life = asyncio.ensure_future(session.live())
            try:
                for _ in range(self._stop_asked):
                    session.stop()
                await asyncio.shield(life)
            except asyncio.CancelledError:
                session.hand_back()
                await life
                raise
            finally:
                self._session = None
                self._stop_asked = 0

    def show_running(self) -> None:
        """Log, as a warning so that it is seen, which jobs are in hand and where each one is."""
        if self._session is None:
            logs.event(logging.WARNING, "running", jobs=0)
        else:
            self._session.show_running()

    def stop(self) -> None:
        """Claim no more, finish what runs within the grace, hand back the rest; again: at once. Any thread."""
        session = self._session
        if session is None:
            self._stop_asked += 1
        else:
            session.stop_from_any_thread()


class _Session:
    """One `serve`: all its state, on one loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        trouble = Trouble(self._tell_trouble, first_seconds=worker.tell_seconds, again_seconds=_TELL_AGAIN_SECONDS)
        self._client = AsyncClient(worker.urls, token=worker.token, connections=8, tls=worker._tls, trouble=trouble)
        self._keeper = LeaseKeeper(
            worker.urls, worker=worker.name, notify=self._notify, token=worker.token, tls=worker._tls,
            beside=StallWatch(self._names_of, seconds=worker.blocked_seconds).run,
        )  # fmt: skip
        self._reporter = Reporter(self._client, self._keeper, worker.name)
        self._pool = ThreadPool(worker.concurrency, "horae-task")
        self._runs: dict[Lease, _Run] = {}
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._abandoning = False
        self._welcome = False
        self._open_claim = ""  # the id of the claim that has no answer yet

    # ------------------------------------------------------------ its life

    def tell_started(self) -> None:
        """Before anything else is told."""
        logs.event(
            logging.INFO, "worker_started", worker=self._worker.name, urls=",".join(map(shown, self._worker.urls)),
            queues=",".join(self._worker.queues),
            tasks=",".join(self._worker.registry.names()), concurrency=self._worker.concurrency,
        )  # fmt: skip

    async def live(self) -> None:
        """Claim until told to stop, then wind down. Raises what made the claiming end by itself.

        Cancelled (by whoever ends a loop that is not ours, with every task on it): reports what is in hand, then ends.
        """
        self._keeper.start()
        try:
            async with asyncio.TaskGroup() as group:
                reporting = group.create_task(self._reporter.run())
                stop = group.create_task(self._stopping.wait())
                failure = await self._claim_until(stop)
                stop.cancel()
                await self._finish_or_hand_back()
                reporting.cancel()
        except asyncio.CancelledError:
            await self._hand_back_cancelled()
            raise
        finally:
            self._pool.close()
            await self._loop.run_in_executor(None, self._keeper.stop)
            await self._client.close()
            logs.event(logging.INFO, "worker_stopped", worker=self._worker.name)
        if failure is not None:
            raise failure

    async def _claim_until(self, stop: asyncio.Task[Any]) -> BaseException | None:
        """Claim until `stop` is over or claiming is hopeless; in that case, why."""
        claiming = asyncio.ensure_future(self._claim_forever())
        try:
            await asyncio.wait((claiming, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not claiming.done():
                if not claiming.cancelling():  # a second time would cut short what it gives back
                    claiming.cancel()
                await asyncio.wait((claiming,))
        self.wind_down()
        return None if claiming.cancelled() else claiming.exception()

    async def _hand_back_cancelled(self) -> None:
        """The same for a worker whose every task was cancelled, its reporter's, too."""
        logs.event(logging.WARNING, "loop_ends", then="what is in hand is reported")
        self.hand_back()
        reporting = asyncio.ensure_future(self._reporter.run())
        try:
            await self._finish_or_hand_back()
        finally:
            reporting.cancel()

    async def _finish_or_hand_back(self) -> None:
        """The grace, then the release of what still runs, then the last reports."""
        await self._wait_idle(self._worker.grace_seconds, self._hurry)
        if self._runs:
            self._abandoning = True
            for run in list(self._runs.values()):
                run.interrupt()
            await self._wait_idle(_UNWIND_SECONDS, None, cancellable_only=True)
            for run in list(self._runs.values()):
                self._report(run.lease, released(run.claim))
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                await self._reporter.wait_answered(0)
        except TimeoutError:
            self._reporter.give_up()

    async def _wait_idle(self, seconds: float, cut: asyncio.Event | None, *, cancellable_only: bool = False) -> None:
        """Until nothing runs, at most so long, or until `cut`."""
        try:
            async with asyncio.timeout(seconds):
                while any(run.cancellable or not cancellable_only for run in self._runs.values()):
                    if cut is not None and cut.is_set():
                        return
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    # ------------------------------------------------------------ claiming

    async def _claim_forever(self) -> None:
        """Until cancelled, which gives back what an unanswered claim may have been granted."""
        try:
            await self._claim_loop()
        except asyncio.CancelledError:
            if self._open_claim:
                await asyncio.shield(self._give_back_lost_grant(self._open_claim))
            raise

    async def _claim_loop(self) -> None:
        failures = 0
        sent = 0.0
        while True:
            free = await self._wait_free()
            if self._stopping.is_set():
                return
            if not self._open_claim:
                # After a failure the id stays: jobs of a grant whose answer was lost come with the next answer.
                self._open_claim, sent = new_id(), clock.monotonic()
            try:
                claims = await self._claim(self._open_claim, free)
            except errors.HoraeError as error:
                failures += 1
                await self._after_refusal(error, failures)
                continue
            self._open_claim, self._welcome, failures = "", True, 0
            self._start(claims, sent)

    async def _claim(self, claim_id: str, free: int, wait_seconds: float | None = None) -> list[Claim]:
        lease_seconds = self._worker.lease_seconds
        if wait_seconds is None:
            # A wait as long as the lease would leave nothing of it that we could be sure of.
            wait_seconds = WAIT_SECONDS if lease_seconds is None else min(WAIT_SECONDS, lease_seconds / 2)
        return await self._client.claim(
            self._worker.name,
            self._worker.queues,
            max_jobs=free,
            wait_seconds=wait_seconds,
            lease_seconds=lease_seconds,
            claim_id=claim_id,
            deadline_seconds=None if wait_seconds else _LAST_WORD_SECONDS,
            again_wait_seconds=_AGAIN_WAIT_SECONDS,
        )

    async def _wait_free(self) -> int:
        """Free slots, at least one. Outcomes that nobody answers take slots too: they must not pile up."""
        await asyncio.sleep(0)  # attempts that end in the same pass of the loop make one claim, not one each
        while True:
            free = self._worker.concurrency - len(self._runs)
            if free > 0 and self._reporter.backlog < 2 * self._worker.concurrency:
                return free
            if free > 0:
                await self._reporter.wait_answered(2 * self._worker.concurrency - 1)
            else:
                self._changed.clear()
                await self._changed.wait()

    async def _give_back_lost_grant(self, claim_id: str) -> None:
        """Hanging up may cross a grant on its way: the same claim id tells what it held, and that goes back at once."""
        sent = clock.monotonic()
        try:
            claims = await self._claim(claim_id, 1, wait_seconds=0)
        except errors.HoraeError as error:
            if self._welcome:  # else no node has ever been there to grant anything
                then = "a job that it was granted, if any, goes to others when its lease runs out"
                logs.event(logging.WARNING, "last_claim_unanswered", then=then, error=error)
            return
        for claim in claims:
            lease = Lease(claim, sent=sent, received=clock.monotonic())
            self._keeper.add([lease])
            self._report(lease, released(claim))

    async def _after_refusal(self, error: errors.HoraeError, failures: int) -> None:
        """Raise what no retry mends, else wait a little."""
        if isinstance(error, _HOPELESS) or (isinstance(error, _REFUSED) and not self._welcome):
            raise error
        level = logging.ERROR if isinstance(error, _REFUSED) else logging.WARNING
        logs.event(level, "claim_failed", error=error, failures=failures)
        await asyncio.sleep(backoff.delay_seconds(failures))

    # ------------------------------------------------------------ running

    def _start(self, claims: list[Claim], sent: float) -> None:
        received = clock.monotonic()
        leases: list[Lease] = []
        for claim in claims:
            if self._keeper.holds(claim.id, claim.lease_token):
                continue  # a repeated answer
            lease = Lease(claim, sent=sent, received=received)
            task = self._worker.registry.get(claim.task)
            run = self._runs[lease] = _Run(claim, lease, cancellable=task is None or task.is_async)
            run.task = self._loop.create_task(self._run(run))
            # Not a `finally` in the task: one that is cancelled before its first step never gets there.
            run.task.add_done_callback(partial(self._ended, run))
            leases.append(lease)
        if leases:
            self._keeper.add(leases)

    async def _run(self, run: _Run) -> None:
        """One attempt, from lease to report. Never raises: the root of a job's task."""
        try:
            await self._attempt(run)
        except asyncio.CancelledError:
            return  # interrupted outside of the handler: there is no outcome
        except Exception:
            logs.failure("attempt_broken", job_id=run.claim.id)
            raise

    async def _attempt(self, run: _Run) -> None:
        if run.proven is not None:
            await run.proven.wait()
            run.proven = None
        context = Context(run.claim, run.lease, self._keeper, self._stop_reason)
        if context.cancelled and run.lease.lost:
            return
        ending = await run_attempt(run.claim, context, self._worker.registry, self._pool, lambda: run.interrupted)
        if ending is not None:
            self._report(run.lease, ending)

    def _ended(self, run: _Run, _task: asyncio.Task[None]) -> None:
        """The slot is free. What was interrupted before its handler began is told here."""
        self._runs.pop(run.lease, None)
        reason = run.lease.stop_reason or self._stop_reason()
        if not run.lease.done and reason and (run.interrupted or reason != STOPPING):
            ending = stopped(run.claim, reason, asyncio.CancelledError())
            if ending is not None:
                self._report(run.lease, ending)
        if not run.lease.done:
            self._keeper.drop(run.lease)
        self._changed.set()

    def _report(self, lease: Lease, ending: Ending) -> None:
        """Report it, unless the lease was given up: then the job is another worker's."""
        if self._keeper.finish(lease):
            self._reporter.put(lease, ending)
        elif not lease.done:
            log_ending(lease, ending, lease.lost or "lost")

    # ------------------------------------------------------------ being told

    def _tell_trouble(self, why: str | None, seconds: float, kind: Kind) -> None:
        if why is None:
            logs.event(logging.INFO, "cluster_serves", after_seconds=f"{seconds:.1f}")
        else:
            logs.event(logging.WARNING, f"cluster_{kind}", for_seconds=f"{seconds:.1f}", why=why)

    def _names_of(self, task: asyncio.Task[Any] | None) -> dict[str, object]:
        """Whose task it is. Any thread."""
        for run in tuple(self._runs.values()):
            if run.task is task:
                return {"job_id": run.claim.id, "task": run.claim.task}
        return {}

    def show_running(self) -> None:
        """Any thread, at any moment."""
        runs = tuple(self._runs.values())
        logs.event(logging.WARNING, "running", jobs=len(runs), of=self._worker.concurrency)
        now = clock.monotonic()
        for run in runs:
            claim, lease = run.claim, run.lease
            stops = lease.stop_reason or self._stop_reason()
            where = "a thread" if not run.cancellable else run.task is not None and place_of(run.task)
            logs.event(
                logging.WARNING, "runs", job_id=claim.id, task=claim.task, attempt=claim.attempt,
                for_seconds=f"{now - run.began:.1f}", lease_seconds_left=f"{lease.fence_at - now:.1f}",
                **({"stops": stops} if stops else {}), **({"at": where} if where else {}),
            )  # fmt: skip

    def _stop_reason(self) -> str:
        return STOPPING if self._abandoning else ""

    def _notify(self, lease: Lease) -> None:
        """On the keeper's thread: a lease was lost, proven, or its job is to be cancelled."""
        try:
            self._loop.call_soon_threadsafe(self._heed, lease)
        except RuntimeError:
            return  # the worker's loop has ended: there is nothing to stop any more

    def _heed(self, lease: Lease) -> None:
        run = self._runs.get(lease)
        if run is not None and not lease.done and (lease.stop_reason or run.proven is not None):
            run.interrupt()

    def stop_from_any_thread(self) -> None:
        """At once on the loop's own thread, so that no claim slips out between."""
        if threading.get_ident() == self._thread_id:
            self.stop()
        else:
            self._loop.call_soon_threadsafe(self.stop)

    def stop(self) -> None:
        """First call: wind down. Second: at once."""
        if self._stopping.is_set():
            self.hand_back()
        else:
            self.wind_down()

    def hand_back(self) -> None:
        """Stop without any grace."""
        self._abandoning = True
        self._hurry.set()
        self._changed.set()
        self.wind_down()

    def wind_down(self) -> None:
        """Claim no more. It is told at once: the grace is long for a person who waits."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        grace_seconds = 0 if self._hurry.is_set() else self._worker.grace_seconds
        waits = bool(self._runs) and grace_seconds > 0
        logs.event(
            logging.INFO, "worker_stopping", worker=self._worker.name, jobs=len(self._runs),
            grace_seconds=f"{grace_seconds:g}", **({"then": _SECOND_SIGNAL} if waits else {}),
        )  # fmt: skip
