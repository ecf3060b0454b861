"""The facade that `http` calls: every call of the contract, in its own shapes, as one coroutine.

Runs on the node's loop. Reads are linearizable unless told otherwise. Errors: `NotApplied` (definite, carries the
contract's code), `OutcomeUnknown` (504), `Refused` (the rules said no). Payloads, results and progress are JSON text in
both directions. Not here: HTTP, the wire's encodings, Raft. Next to read: `translate.py`, `reads.py`, `proposer.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TypeVar

from horae import wire
from horae_node import bulk, reads, translate
from horae_node.applier import Applier
from horae_node.backup import Backup, Backups
from horae_node.clock import Clock
from horae_node.config import parse_name, parse_peer_address, parse_url
from horae_node.core import views
from horae_node.core.commands import (
    CancelJob,
    CancelJobIn,
    CompleteJob,
    DeleteJob,
    FailJob,
    ReleaseJob,
    RequeueJob,
    RequeueJobIn,
    RunJobNow,
    SubmitBatch,
    SubmitJob,
)
from horae_node.core.decide.operate import UNIQUE_KEY_HELD
from horae_node.core.decide.queues import TOO_OLD
from horae_node.core.decide.schedules import TOO_OLD_FOR_SCHEDULES
from horae_node.core.decide.submit import EXPIRED_BEFORE, TOO_OLD_FOR_LINKS
from horae_node.core.model import FINISHED, LIMITS_VERSION, LINKS_VERSION, SCHEDULES_VERSION
from horae_node.core.results import BatchSubmitted, Done, EntryOutcome, Heartbeat, Outcome, Rejected, Submitted
from horae_node.core.tables import S_RUNNING, TOMBSTONE_MS, id_key, is_tombstone, tombstone_of
from horae_node.errors import NotApplied, OutcomeUnknown, Refused
from horae_node.events import Place
from horae_node.feed import Feed, Subscription, Wanted
from horae_node.leader.session import LeaderSession
from horae_node.leader.waiters import Grants, Waiter
from horae_node.membership import CAUGHT_UP_ENTRIES, Membership
from horae_node.metrics import Metrics
from horae_node.pace import Pace
from horae_node.proposer import Proposer
from horae_node.queue_rates import QueueRates
from horae_node.raft.port import Member, Raft, RaftStatus
from horae_node.schedules import Schedules
from horae_node.shedding import RETRY_AFTER_S_MAX, Bounds, Crowd, Rank
from horae_node.turns import Turns
from horae_node.worker_book import WorkerBook

__all__ = ["Delivery", "Refused", "Service"]

REMOVED = "this node was removed from the cluster"
NOT_CAUGHT_UP_ENTRIES = 1000
VERSION_LOOKS, VERSION_LOOK_S = 100, 0.05
"""A follower that had caught up and is further behind than this is not ready any more: less is a moment's load."""
SMALL_BATCH_JOBS = 100
"""A millisecond of the loop. Larger batches come one a pass: twenty that were read side by side held it for 0.2 s."""
RELEASED_A_PASS = 100
"""Readings that are answered in one pass when all are: some 0.1 ms each, and 20,000 may wait."""
TAKEN_MS = 60_000
"""Longer than a submit takes from the look at its id to the log."""
CLAIM_BYTES_MAX = 16 * 1024 * 1024
"""One claim's answer: the machine grants 8 MiB of payloads at most, but weighs no progress and no errors of attempts
before, which may come to ten times that. What has no room is given straight back."""


_TOO_OLD = {LIMITS_VERSION: TOO_OLD, LINKS_VERSION: TOO_OLD_FOR_LINKS, SCHEDULES_VERSION: TOO_OLD_FOR_SCHEDULES}

Failure = Refused | NotApplied | OutcomeUnknown
JobCommand = CancelJob | RequeueJob | RunJobNow | CompleteJob | FailJob | ReleaseJob
OutcomeT = TypeVar("OutcomeT", Submitted, BatchSubmitted, Done)


class Delivery:
    """A claim's answer on its way out."""

    __slots__ = ("_grants", "_session", "_waiter", "answer")

    def __init__(self, answer: wire.ClaimAnswer, grants: Grants, waiter: Waiter, session: LeaderSession) -> None:
        self.answer = answer
        self._grants = grants
        self._waiter = waiter
        self._session = session

    @property
    def mark(self) -> str:
        """What `Service.claim_undelivered` knows this call by."""
        return self._session.mark(self._waiter)

    def undeliverable(self) -> None:
        """The caller was gone before the answer could be written: give the jobs straight back, not counted."""
        self._session.undelivered(self._waiter, self._grants)


class Finishes:
    """Who waits for which job to finish: answered by the entry that finishes it."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}
        self._released: deque[asyncio.Future[None]] = deque()

    def on_entry(self, outcome: EntryOutcome) -> None:
        if not self._waiting:
            return
        for seq in outcome.finished:
            for future in self._waiting.pop(seq, ()):
                if not future.done():
                    future.set_result(None)

    def release_all(self) -> None:
        """Wake everybody, some a pass: the state was replaced, or this node no longer leads."""
        waking = bool(self._released)
        for futures in self._waiting.values():
            self._released.extend(futures)
        self._waiting.clear()
        if not waking:
            self._wake_released()

    def _wake_released(self) -> None:
        for _ in range(min(len(self._released), RELEASED_A_PASS)):
            future = self._released.popleft()
            if not future.done():
                future.set_result(None)
        if self._released:
            asyncio.get_running_loop().call_soon(self._wake_released)

    async def wait(self, seq: int, wait_ms: int) -> None:
        """Until the job finishes, or the wait is over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(seq, []).append(future)
        try:
            await asyncio.wait_for(future, wait_ms / 1000)
        except TimeoutError:
            pass
        finally:
            waiting = self._waiting.get(seq)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[seq]


class Service:
    """One for a node."""

    def __init__(
        self,
        *,
        node_id: str,
        members: Sequence[Member],
        raft: Raft,
        applier: Applier,
        proposer: Proposer,
        session: LeaderSession,
        finishes: Finishes,
        metrics: Metrics,
        cluster_view: Callable[[], wire.ClusterView],
        backups: Backups,
        membership: Membership,
        feed: Feed,
        rates: QueueRates,
        clock: Clock,
        bounds: Bounds | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self._node_id = node_id
        self._urls: dict[str, str] = {}
        self.set_members(members)
        self._raft = raft
        self._applier = applier
        self._proposer = proposer
        self._session = session
        self._finishes = finishes
        self._counter = cache(metrics.commands.labels)
        self._cluster_view = cluster_view
        self._backups = backups
        self._metrics = metrics
        self._turns = Turns(clock, "readings of lists", bounds.turns)
        self._batches = Turns(clock, "large batches", bounds.turns)
        self._reckonings = Turns(clock, "reckonings of schedules", bounds.turns)
        self._pace = Pace()
        self._parked = Crowd("claims", bounds.claims)
        self._waiting = Crowd("readings of jobs that are not finished", bounds.finish_waits)
        self._reading = Crowd("readings", bounds.reads)
        self._book = WorkerBook(self._is_running)
        self._membership = membership
        self._feed = feed
        self._rates = rates
        self.schedules = Schedules(
            applier=applier,
            proposer=proposer,
            session=session,
            wait_current=self._wait_current,
            turn=self._turns.one,
            pace=self._pace,
            wait_for_rules=self._wait_for_rules,
            reckonings=self._reckonings,
            clock=clock,
        )
        self._caught_up = False
        self.removed = False
        """This node is a member no more: it serves nothing."""
        self._leader_known: list[asyncio.Future[None]] = []
        self._followed: str | None = None
        """Whose word this node last took, itself included."""
        self._current_at_s: float | None = None
        """On the loop's clock: when this node's state was last surely current."""
        self._on_leader: Callable[[], None] = _nothing

    @property
    def node_id(self) -> str:
        return self._node_id

    def require_room(self, rank: Rank) -> None:
        """As each call of that rank does by itself: before its body is read, which may cost more than the call.

        Raises: `NotApplied` (`rate_limited`, `storage_full`).
        """
        self._proposer.require_room(rank)

    def count_shed(self, rank: Rank) -> None:
        """A request was turned away because too much waits."""
        self._metrics.count_shed(rank)

    def waiting(self) -> dict[str, int]:
        """How many callers wait here, by what they wait for."""
        return {
            "claim": self._parked.waiting,
            "finish": self._waiting.waiting,
            "read": self._reading.waiting,
            "list": self._turns.waiting,
            "batch": self._batches.waiting,
            "reckoning": self._reckonings.waiting,
        }

    def set_members(self, members: Sequence[Member]) -> None:
        """Who may lead, and where it is reached; this node's own URL stays known."""
        own = {node_id: url for node_id, url in self._urls.items() if node_id == self._node_id}
        self._urls = own | {member.node_id: member.http_url for member in members}

    # ------------------------------------------------------------------ leadership

    def leading(self) -> bool:
        """This node leads and its epoch is open: it may serve. False: pass the request on to `leader_url()`."""
        return self._session.open

    def leader_url(self) -> str | None:
        """The leader's advertised URL, or None while there is none (a leader whose epoch is not open yet is none)."""
        if self._session.open:
            return self._urls[self._node_id]
        leader = self._raft.leader_id
        return None if leader is None or leader == self._node_id else self._urls.get(leader)

    async def wait_for_leader(self, timeout_ms: int) -> str | None:
        """The leader's id once this node knows one (itself only once it may serve); None at the end of the wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while (url := self.leader_url()) is None:
            left = deadline - loop.time()
            if left <= 0:
                return None
            future: asyncio.Future[None] = loop.create_future()
            self._leader_known.append(future)
            try:
                await asyncio.wait_for(future, left)
            except TimeoutError:
                return None
        return next(node for node, known in self._urls.items() if known == url)

    def watch_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever `leader_url()` may have changed. One callback."""
        self._on_leader = callback

    def on_leadership(self) -> None:
        """Role, leader or session changed: look again."""
        self._note_currency(self._raft.status())
        self._on_leader()
        waiting, self._leader_known = self._leader_known, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        if not self._session.open:
            self._finishes.release_all()

    def ready(self) -> tuple[bool, str]:
        """Whether this node can serve (knows a leader and has caught up), and if not, why."""
        if self.removed:
            return False, REMOVED
        if self.leading():
            return True, "leading"
        if self.leader_url() is None:
            return False, "no leader is known"
        status = self._raft.status()
        if status.leader_commit is None:
            return False, "the leader has not said yet how far it is"
        if status.installs:
            return False, "a snapshot is on its way"
        behind = max(status.commit_index, status.leader_commit) - status.applied_index
        self._caught_up = behind <= (NOT_CAUGHT_UP_ENTRIES if self._caught_up else CAUGHT_UP_ENTRIES)
        if not self._caught_up:
            return False, f"{behind} committed entries are not applied yet"
        return True, "following"

    def applied(self) -> tuple[int, int]:
        """Applied index, and how old this node's state is: ms since it was surely current (0 on the leader).

        That is since a leader was last heard; before the first one, since the newest entry's cluster time.
        """
        status = self._raft.status()
        if self.leading():
            return status.applied_index, 0
        self._note_currency(status)
        if self._current_at_s is None:
            return status.applied_index, max(0, self._session.now_ms() - self._applier.meta().now_ms)
        return status.applied_index, round((asyncio.get_running_loop().time() - self._current_at_s) * 1000)

    def _note_currency(self, status: RaftStatus) -> None:
        """Remember when a leader was last heard, which no status tells once it is no leader any more."""
        followed, self._followed = self._followed or status.leader_id, status.leader_id
        if followed is None:
            return
        peer = status.peers.get(followed)
        heard_ms = peer.last_heard_ms if peer is not None else None
        if followed == self._node_id:
            heard_ms = 0
        if heard_ms is not None:
            self._current_at_s = asyncio.get_running_loop().time() - heard_ms / 1000

    # ------------------------------------------------------------------ jobs

    async def submit(self, request: wire.SubmitRequest) -> tuple[wire.JobView, bool]:
        """The job and whether it is new. Raises: `Refused` (`conflict`, `invalid`), `NotApplied`, `OutcomeUnknown`."""
        await self._wait_for_rules(_version_of(request))
        self._proposer.require_room(Rank.NEW)
        now_ms = self._session.now_ms()
        command = translate.submit_command(request, now_ms)
        if (never := self._never_runs(command, now_ms)) is not None:
            raise never
        outcome = await self._proposer.run_one(command, _due_now((command,), now_ms))
        self._counter("submit").inc()
        if isinstance(outcome, Rejected):
            raise self._refused_submit(outcome, command)
        assert isinstance(outcome, Submitted)
        if outcome.new is None and outcome.gone is None:
            return await self._show(outcome.seq), False
        return self._submitted_job(outcome, command)

    async def submit_batch(
        self, requests: Sequence[wire.SubmitRequest], *, atomic: bool
    ) -> list[tuple[wire.JobView, bool] | Failure]:
        """One result a job, in order. Atomic: raises `Refused` (pointer `/jobs/3`): none is made.

        Jobs that were there already are shown briefly once they have taken `ANSWER_BYTES_MAX`.
        """
        await self._wait_for_rules(max(map(_version_of, requests)))
        if len(requests) > SMALL_BATCH_JOBS:
            async with self._batches.one():
                pass  # the next has its turn a pass later
        self._proposer.require_room(Rank.NEW)
        now_ms = self._session.now_ms()
        commands = []
        for request in requests:
            commands.append(translate.submit_command(request, now_ms))
            await self._pace.took(wire.payload_bytes(request))  # each was read once more, to know it by its content
        self._counter("submit").inc(len(commands))
        never = {
            place: refused
            for place, command in enumerate(commands)
            if (refused := self._never_runs(command, now_ms, f"/jobs/{place}" if atomic else "")) is not None
        }
        if atomic and never:
            raise next(iter(never.values()))
        commands = [command for place, command in enumerate(commands) if place not in never]
        due_now = _due_now(commands, now_ms)
        if atomic:
            outcome = await self._proposer.run_one(SubmitBatch(tuple(commands)), due_now)
            if isinstance(outcome, Rejected):
                at = outcome.position
                raise _refused(outcome) if at < 0 else self._refused_submit(outcome, commands[at], f"/jobs/{at}")
            assert isinstance(outcome, BatchSubmitted)
            results: Sequence[Outcome | NotApplied | OutcomeUnknown] = outcome.jobs
        else:
            results = await self._proposer.run(commands, due_now) if commands else ()
        made = iter(await self._submitted_all(results, commands))
        return [never[place] if place in never else next(made) for place in range(len(requests))]

    def _never_runs(self, command: SubmitJob, now_ms: int, pointer: str = "") -> Refused | None:
        """Why a new job of this command would expire before it is due. None for what may be there already: what was in
        time once has less time left when it is sent again."""
        spec, run_at_ms, delay_ms, _ = command
        if spec.ttl_ms is not None and run_at_ms is not None and run_at_ms >= now_ms + spec.ttl_ms:
            why = "ttl_seconds", "counts from now, and ends before `run_at`: the job would never run"
        elif run_at_ms is None and spec.expires_at_ms is not None and now_ms < spec.expires_at_ms <= now_ms + delay_ms:
            why = "expires_at", "is not after the end of `delay_seconds`: the job would never run"
        else:
            return None
        view = self._applier.view
        if view.get(id_key(spec.id)) is not None:
            return None
        if spec.unique_key is not None and views.holder(view, spec.queue, spec.unique_key) is not None:
            return None
        return Refused("invalid", why[1], f"{pointer}/{why[0]}")

    async def _submitted_all(
        self, results: Sequence[Outcome | NotApplied | OutcomeUnknown], commands: Sequence[SubmitJob]
    ) -> list[tuple[wire.JobView, bool] | Failure]:
        """New jobs hold what came with the request. Those that were there may hold any number of times as much, be it
        one job a thousand times: others have their turn, and so much is shown of them."""
        found: list[tuple[wire.JobView, bool] | Failure] = []
        left_bytes = wire.ANSWER_BYTES_MAX
        for result, command in zip(results, commands, strict=True):
            item = self._submitted(result, command)
            found.append(item)
            if isinstance(item, tuple) and not item[1]:
                held_bytes = reads.content_bytes(item[0])
                if left_bytes <= 0:
                    reads.make_brief(item[0])
                left_bytes -= held_bytes
                await self._pace.took(held_bytes)
        return found

    def _submitted(
        self, result: Outcome | NotApplied | OutcomeUnknown, command: SubmitJob
    ) -> tuple[wire.JobView, bool] | Failure:
        """A job whose record is gone already is its own item's `not_found`."""
        if isinstance(result, Rejected):
            return self._refused_submit(result, command)
        if not isinstance(result, Submitted):
            return _failure(result)
        try:
            return self._submitted_job(result, command)
        except Refused as gone:
            return gone

    def _refused_submit(self, rejected: Rejected, command: SubmitJob, pointer: str = "") -> Refused:
        """As `_refused`, below `pointer`, with the key that is to blame, or the moment at which to ask again."""
        if rejected.code == "rate_limited":
            queue = command.spec.queue
            seconds = self._seconds_to_place(queue)
            detail = f"{reads.too_deep(self._applier.view, queue)}: try again in {seconds} s"
            return Refused(rejected.code, detail, pointer, retry_after_ms=seconds * 1000)
        if rejected[:2] != EXPIRED_BEFORE[:2]:
            return Refused(rejected.code, rejected.detail, f"{pointer}/{rejected.field}" if rejected.field else pointer)
        key = "expires_at" if command.spec.ttl_ms is None else "ttl_seconds"
        return Refused("invalid", "is already past: the job would expire before it could run", f"{pointer}/{key}")

    def _seconds_to_place(self, queue: str) -> int:
        """How soon a queue that is as deep as it may be can have one place again, by its own settings: not while it is
        paused or may hold none, and no sooner than its rate lets one job out. How fast its workers come for them,
        nobody can promise."""
        kept = views.settings(self._applier.view, queue)
        if kept.paused or kept.max_depth == 0:
            return RETRY_AFTER_S_MAX
        if kept.rate_milli is None:
            return 1
        return min(max(1, -(-1000 // kept.rate_milli)), RETRY_AFTER_S_MAX)

    def _submitted_job(self, submitted: Submitted, command: SubmitJob) -> tuple[wire.JobView, bool]:
        """A new job as it was made, whatever has become of it since. Raises: `Refused("not_found")` for an old one."""
        new = submitted.new
        if submitted.gone is not None:
            return reads.gone_job_view(command.spec, submitted.gone), False
        if new is None:
            return self._render(submitted.seq, self._clocks()), False
        return reads.new_job_view(new.spec, new.run), True

    async def job(self, job_id: str, *, wait_ms: int = 0, local: bool = False) -> wire.JobView:
        """Read one; with `wait_ms`, once it is finished or the wait is over. Raises: `Refused("not_found")`."""
        if not local:
            await self._wait_current()
        seq = self._find(job_id)
        if wait_ms and not self._is_finished(seq):
            with self._waiting.one():
                await self._finishes.wait(seq, wait_ms)
            if not local and not self._session.open:
                raise NotApplied("no_leader", "this node no longer leads; ask the new leader")
            seq = self._find(job_id)
        return await self._show(seq)

    async def queues_of(self, job_ids: Sequence[str]) -> list[str | None]:
        """The queue of each job, which never changes; None where there surely is no such job.

        Not shed for the commands that wait: endings ask for it. Raises: `NotApplied` (`no_leader`, `rate_limited`).
        """
        found = [await self._queue_of(job_id) for job_id in job_ids]
        if None in found:  # it may have come to be at a leader that this node does not know of yet
            with self._reading.one():
                await self._raft.read_barrier()
            for position, job_id in enumerate(job_ids):
                if found[position] is None:
                    found[position] = await self._queue_of(job_id)
        return found

    async def _queue_of(self, job_id: str) -> str | None:
        seq = views.job_seq(self._applier.view, job_id)
        spec = None if seq is None else views.spec(self._applier.view, seq)
        if spec is None:
            return None
        await self._pace.took(len(spec.payload))
        return spec.queue

    def is_taken(self, job_id: str) -> bool:
        """Whether this id surely names a job, or the rest of one, for a minute more: a submit under it makes none."""
        row = self._applier.view.get(id_key(job_id))
        if row is None or not is_tombstone(row):
            return row is not None
        return self._clocks().now_ms < tombstone_of(row).finished_ms + TOMBSTONE_MS - TAKEN_MS

    def is_gone(self, job_id: str) -> bool:
        """Whether a job had this id whose record is gone: nobody knows its queue any more."""
        row = self._applier.view.get(id_key(job_id))
        return row is not None and is_tombstone(row)

    async def jobs(self, query: wire.JobsQuery) -> wire.JobList:
        """Newest first. Raises: `Refused("invalid", …, "/cursor")`."""
        if query.consistency != "local":
            await self._wait_current()
        async with self._turns.one():
            with reads.cursors_named():
                return reads.job_page(self._applier.view, self._clocks(), query)

    async def queues(
        self, *, limit: int, cursor: str | None, only: Collection[str] | None = None, local: bool = False
    ) -> wire.QueueList:
        """Queues that hold jobs or have settings, by name; of `only` these, where given.

        Raises: `Refused("invalid", …, "/cursor")`.
        """
        if not local:
            await self._wait_current()
        async with self._turns.one():
            with reads.cursors_named():
                page = reads.queue_page(
                    self._applier.view, self._clocks().now_ms, limit=limit, cursor=cursor, only=only
                )
        for queue in page.queues:
            queue.rates = self._queue_rates(queue.name)
        return page

    async def queue(self, name: str, *, local: bool = False) -> wire.QueueView:
        """One queue, whether or not it holds jobs: every name is one."""
        if not local:
            await self._wait_current()
        return self._queue_view(name)

    def _queue_view(self, name: str) -> wire.QueueView:
        queue, _ = reads.queue_view(self._applier.view, self._clocks().now_ms, name)
        queue.rates = self._queue_rates(name)
        return queue

    def _queue_rates(self, name: str) -> wire.QueueRates:
        return wire.QueueRates(*self._rates.of(name))

    async def _wait_current(self) -> None:
        """Until this node has surely led after the call began. Raises: `NotApplied` (`no_leader`, `rate_limited`)."""
        self._proposer.require_room(Rank.READ)
        with self._reading.one():
            await self._raft.read_barrier()

    async def set_queue(self, name: str, patch: wire.QueuePatch) -> wire.QueueView:
        """Change settings, and the queue as it is then. Under overload too: it is how load is taken off.

        Raises: `Refused("conflict")` while the cluster runs by older rules; `NotApplied`, `OutcomeUnknown`.
        """
        await self._wait_for_rules(LIMITS_VERSION)
        self._proposer.require_room(Rank.ENDING)
        _accepted(await self._proposer.run_one(translate.queue_command(name, patch), ending=True), Done)
        self._counter("set_queue").inc()
        return self._queue_view(name)

    async def _wait_for_rules(self, version: int) -> None:
        """A new cluster takes up its newest rules within a second or two: what needs them waits so long.

        What members of an older build do not know must not get into the log: they would do something else, or end.
        Raises: `Refused("conflict")`.
        """
        for _ in range(VERSION_LOOKS):
            if version == 1 or self._applier.meta().machine_version >= version:
                return
            await asyncio.sleep(VERSION_LOOK_S)
        raise _refused(_TOO_OLD[version])

    async def cancel_many(self, request: wire.CancelManyRequest) -> wire.BulkAnswer:
        return await self._change_many("cancel", request, CancelJob, CancelJobIn)

    async def requeue_many(self, request: wire.RequeueManyRequest) -> wire.BulkAnswer:
        return await self._change_many("requeue", request, RequeueJob, RequeueJobIn)

    async def _change_many(
        self,
        kind: str,
        request: wire.CancelManyRequest | wire.RequeueManyRequest,
        plain: Callable[[str], CancelJob | RequeueJob],
        within: Callable[[str, int], CancelJobIn | RequeueJobIn],
    ) -> wire.BulkAnswer:
        """Raises: `Refused("invalid", …, "/cursor")`, `NotApplied`, `OutcomeUnknown`."""
        self._proposer.require_room(Rank.NEW)
        await self._wait_current()
        async with self._turns.one():
            with reads.cursors_named():
                ids, next_cursor = bulk.page(self._applier.view, request)
        state = request.filter.state
        commands: list[JobCommand | CancelJobIn | RequeueJobIn]
        if state is None or self._applier.meta().machine_version < LIMITS_VERSION:
            commands = [plain(job_id) for job_id in ids]
        else:  # a job may move on between the look at it and the command: it is meant in the state that is named
            commands = [within(job_id, int(reads.STATE_BY_NAME[state])) for job_id in ids]
        results = await self._proposer.run(commands) if commands else []
        count = bulk.count_changed(results)
        self._counter(kind).inc(count)
        return wire.BulkAnswer(count, next_cursor)

    async def cancel(self, job_id: str) -> wire.JobView:
        return await self._change("cancel", CancelJob(job_id))

    async def requeue(self, job_id: str) -> wire.JobView:
        return await self._change("requeue", RequeueJob(job_id))

    async def run_now(self, job_id: str) -> wire.JobView:
        return await self._change("run_now", RunJobNow(job_id))

    async def delete(self, job_id: str) -> None:
        self._proposer.require_room(Rank.NEW)
        await self._commit("delete", DeleteJob(job_id))

    async def _change(self, kind: str, command: JobCommand) -> wire.JobView:
        """One command about one job; the job as it is then."""
        self._proposer.require_room(Rank.NEW)
        return await self._show(await self._commit(kind, command))

    async def _commit(self, kind: str, command: JobCommand | DeleteJob, *, ending: bool = False) -> int:
        """The number of the job that the command changed."""
        done = self._changed(await self._proposer.run_one(command, ending=ending), command.job_id)
        self._counter(kind).inc()
        return done.seq

    def _changed(self, outcome: Outcome, job_id: str) -> Done:
        """What came of a command about this job. Raises: `Refused`, which names the job, and says how it stands."""
        if isinstance(outcome, Rejected):
            seq = views.job_seq(self._applier.view, job_id)
            state = None if seq is None else reads.state_name(self._applier.view, seq)
            if outcome.code == "not_found":
                raise Refused(outcome.code, f"there is no job {job_id!r}")
            if outcome == UNIQUE_KEY_HELD and seq is not None:
                raise Refused(outcome.code, reads.unique_key_held(self._applier.view, seq))
            if outcome.code == "conflict" and state is not None:
                raise Refused(outcome.code, f"{outcome.detail}: {job_id!r} is {state}")
        return _accepted(outcome, Done)

    # ------------------------------------------------------------------ workers

    async def claim(self, request: wire.ClaimRequest, via: str = "") -> Delivery:
        """Wait for jobs. A cancelled caller (hung up) gives its jobs back by itself, the attempt not counted.

        `via`: the node that passed it on: nothing is granted there while that hangs, or is cut off.
        """
        self._proposer.require_room(Rank.NEW)
        if not self._session.granting:
            raise NotApplied("no_leader", "this node does not lead")
        with self._parked.one():
            wait_ms = translate.span_ms(request.wait_seconds)
            waiter = self._session.park(translate.claim_command(request), wait_ms, via)
            names = waiter.command.queues
            request.queues = [*names]  # the same, but shared by all who ask for them, while it is kept for the answer
            self._book.saw(request.worker, self._now_s(), names)
            try:
                grants = await waiter.future
            except asyncio.CancelledError:
                self._session.abandon(waiter)
                raise
        if grants:
            self._counter("claim").inc(len(grants))
            self._book.holds(request.worker, [seq for seq, _ in grants])
        try:
            jobs, taken = await self._pace.show(lambda: self._claimed(grants), _claimed_bytes)
        except asyncio.CancelledError:
            self._session.undelivered(waiter, grants)
            raise
        if taken < len(grants):
            self._session.no_room(waiter, grants[taken:])
        return Delivery(wire.ClaimAnswer(jobs=jobs), grants[:taken], waiter, self._session)

    def claim_undelivered(self, mark: str, leases: Sequence[wire.EndingRequest]) -> bool:
        """The answer to that call, which had a claim id and granted these, surely did not reach its caller. Whether
        they are to be ended now: this leader knows the call, and nobody else may have its jobs, or get them yet."""
        return self._session.undelivered_elsewhere(mark, [(lease.job_id, lease.lease_token) for lease in leases])

    def _claimed(self, grants: Grants) -> tuple[list[wire.ClaimedJob], int]:
        """The first of the granted jobs, up to the one that takes them past `CLAIM_BYTES_MAX`, and how many grants."""
        view, clocks = self._applier.view, self._clocks()
        jobs: list[wire.ClaimedJob] = []
        left_bytes = CLAIM_BYTES_MAX
        for taken, (seq, token) in enumerate(grants):
            if left_bytes <= 0:
                return jobs, taken
            job = reads.claimed_job(view, seq, token, clocks)
            if job is not None:
                jobs.append(job)
                left_bytes -= reads.content_bytes(job)
        return jobs, len(grants)

    async def heartbeat(self, request: wire.HeartbeatRequest) -> wire.HeartbeatAnswer:
        """One status a lease, in order; a lease that another holds, or that ended, is `lost`."""
        self._proposer.require_room(Rank.ENDING)
        self._book.saw(request.worker, self._now_s())
        if not request.leases:
            return wire.HeartbeatAnswer(leases=[])
        results = await self._proposer.run([translate.heartbeat_command(beat) for beat in request.leases], ending=True)
        self._counter("heartbeat").inc(len(results))
        self._book.holds(request.worker, [result.seq for result in results if isinstance(result, Heartbeat)])
        clocks = self._clocks()
        statuses = [
            _lease_status(beat.job_id, result, clocks) for beat, result in zip(request.leases, results, strict=True)
        ]
        return wire.HeartbeatAnswer(leases=statuses)

    async def complete(self, job_id: str, request: wire.CompleteRequest) -> wire.JobView:
        return await self._end("complete", translate.complete_command(job_id, request.lease_token, request.result))

    async def fail(self, job_id: str, request: wire.FailRequest) -> wire.JobView:
        command = translate.fail_command(
            job_id,
            request.lease_token,
            request.error,
            retry=request.retry,
            retry_in_seconds=request.retry_in_seconds,
        )
        return await self._end("fail", command)

    async def release(self, job_id: str, request: wire.ReleaseRequest) -> wire.JobView:
        command = translate.release_command(job_id, request.lease_token, request.delay_seconds, request.progress)
        return await self._end("release", command)

    async def _end(self, kind: str, command: JobCommand) -> wire.JobView:
        self._proposer.require_room(Rank.ENDING)
        seq = await self._commit(kind, command, ending=True)
        self._book.ended(seq)
        return await self._show(seq)

    async def end_many(self, request: wire.EndingsRequest) -> list[wire.StateName | Failure | None]:
        """One result an item, in order: the job's state now; None: accepted, and its record is gone already."""
        self._proposer.require_room(Rank.ENDING)
        results = await self._proposer.run([translate.ending_command(item) for item in request.leases], ending=True)
        self._counter("end_many").inc(len(results))
        for result in results:
            if isinstance(result, Done):
                self._book.ended(result.seq)
        view = self._applier.view
        return [
            reads.state_name(view, result.seq) if isinstance(result, Done) else _failure(result) for result in results
        ]

    async def workers(self, *, limit: int, cursor: str | None, only: Collection[str] | None = None) -> wire.WorkerList:
        """Who claimed or sent a heartbeat in the last five minutes, by name; with `only` those of these queues.

        Raises: `Refused("invalid", …, "/cursor")`, `NotApplied("no_leader")`.
        """
        await self._wait_current()
        with reads.cursors_named():
            after = "" if cursor is None else reads.read_cursor(b"w", cursor).decode(errors="replace")
        async with self._turns.one():
            now_ms = self._clocks().now_ms
            seen, last = self._book.page(self._now_s(), after, limit, only)
        workers = []
        for worker, queues, running, silent_s in seen:
            seen_at = reads.moment_text(now_ms - round(silent_s * 1000))
            workers.append(wire.WorkerView(worker, list(queues), running, seen_at))
        return wire.WorkerList(workers, None if last is None else reads.make_cursor(b"w", last.encode()))

    def _is_running(self, seq: int, worker: str) -> bool:
        run = views.run(self._applier.view, seq)
        return run is not None and run.state == S_RUNNING and run.worker == worker

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ events

    def events(self, after: Place | None, wanted: Wanted) -> Subscription:
        """What this node applies after that place, as it does; None: from now on. The caller closes it.

        Raises: `NotApplied` (`rate_limited`, `shutting_down`).
        """
        return self._feed.subscribe(after, wanted)

    def end_events(self) -> None:
        """Tell all who read events that this node goes down."""
        self._feed.close()

    # ------------------------------------------------------------------ the cluster

    async def cluster(self, *, local: bool = False) -> wire.ClusterView:
        """As the leader sees it; `local`: as this node does. Not shed for the commands that wait: who looks into it
        must see."""
        if not local:
            with self._reading.one():
                await self._raft.read_barrier()
        return self._cluster_view()

    async def add_member(self, request: wire.MemberRequest, wait_ms: int = 30_000) -> wire.MemberStanding:
        """A new node; `learner` when it needs longer to catch up than this call waits, or is not reached.

        Raises: `Refused` (`conflict`), `NotApplied`, `OutcomeUnknown`.
        """
        standing = await self._membership.add(_member(request.node, request), wait_ms / 1000)
        connected = self._membership.is_connected(request.node)
        return wire.MemberStanding(request.node, "voter" if standing == "voter" else "learner", connected)

    async def remove_member(self, node_id: str) -> wire.MemberStanding:
        """Raises: `Refused` (`not_found`, `conflict`), `NotApplied`, `OutcomeUnknown`."""
        await self._membership.remove(node_id)
        return wire.MemberStanding(node_id, "removed")

    async def move_member(self, node_id: str, request: wire.MoveRequest) -> wire.MemberStanding:
        """Raises: as `remove_member`."""
        await self._membership.move(_member(node_id, request, "/id"))
        standing = self._raft.roster.standing(node_id)
        return wire.MemberStanding(node_id, "learner" if standing == "learner" else "voter")

    async def hand_over(self, node_id: str) -> wire.LeaderView:
        """That node leads from now on. Raises: `Refused` (`not_found`, `conflict`): then this one leads on."""
        await self._membership.hand_over(node_id)
        return wire.LeaderView(node_id, self._urls.get(node_id))

    async def backup(self, after_index: int) -> Backup:
        """A copy of this node's state with at least the entry `after_index` in it. The caller closes it.

        Raises: `NotApplied` (`rate_limited`, `storage_full`, `no_leader`).
        """
        return await self._backups.open(after_index)

    def compact(self) -> wire.SnapshotView:
        """Make this node's state durable, and cut its log to what is still needed. Raises: `NotApplied`."""
        durable_index, first_index = self._backups.compact()
        return wire.SnapshotView(self._node_id, durable_index, first_index)

    # ------------------------------------------------------------------ inside

    def _clocks(self) -> reads.Clocks:
        if self._session.open:
            return reads.Clocks(self._session.now_ms(), self._session.lease_clock())
        meta = self._applier.meta()
        return reads.Clocks(meta.now_ms, meta.lease_clock)

    def _is_finished(self, seq: int) -> bool:
        run = views.run(self._applier.view, seq)
        return run is not None and run.state in FINISHED

    def _find(self, job_id: str) -> int:
        seq = views.job_seq(self._applier.view, job_id)
        if seq is None:
            raise Refused("not_found", f"there is no job {job_id!r}")
        return seq

    async def _show(self, seq: int) -> wire.JobView:
        """The job as it is when its turn has come. Raises: `Refused("not_found")`."""
        return await self._pace.show(lambda: self._render(seq, self._clocks()), reads.content_bytes)

    def _render(self, seq: int, clocks: reads.Clocks) -> wire.JobView:
        try:
            return reads.job_view(self._applier.view, seq, clocks)
        except reads.Gone as error:
            raise Refused("not_found", "the job's record is gone: its retention is over or it was deleted") from error


def _member(node_id: str, request: wire.MemberRequest | wire.MoveRequest, id_at: str = "/node") -> Member:
    """Checked as the configuration checks its own; `id_at`: where the id was said. Raises: `Refused("invalid")`."""
    try:
        parse_name(node_id)
    except ValueError as error:
        raise Refused("invalid", str(error), id_at) from error
    try:
        address = str(parse_peer_address(request.raft_address))
    except ValueError as error:
        raise Refused("invalid", str(error), "/raft_address") from error
    try:
        return Member(node_id, address, parse_url(request.http_url))
    except ValueError as error:
        raise Refused("invalid", str(error), "/http_url") from error


def _claimed_bytes(claimed: tuple[list[wire.ClaimedJob], int]) -> int:
    return sum(map(reads.content_bytes, claimed[0]))


def _nothing() -> None:
    """Nobody watches."""


def _version_of(request: wire.SubmitRequest) -> int:
    """The oldest machine version that can keep what this asks for."""
    if request.then is not None or request.after:
        return LINKS_VERSION
    return 1 if request.concurrency_key is None else LIMITS_VERSION


def _due_now(commands: Sequence[SubmitJob], now_ms: int) -> dict[str, int]:
    """How many of these jobs are ready at once, by queue."""
    due: dict[str, int] = {}
    for command in commands:
        if command.delay_ms == 0 and (command.run_at_ms is None or command.run_at_ms <= now_ms):
            queue = command.spec.queue
            due[queue] = due.get(queue, 0) + 1
    return due


def _accepted(outcome: Outcome, kind: type[OutcomeT]) -> OutcomeT:
    """The outcome of the expected kind. Raises: `Refused` when the rules said no."""
    if isinstance(outcome, Rejected):
        raise _refused(outcome)
    assert isinstance(outcome, kind)
    return outcome


def _refused(rejected: Rejected) -> Refused:
    return Refused(rejected.code, rejected.detail)


def _failure(result: Outcome | NotApplied | OutcomeUnknown) -> Failure:
    if isinstance(result, (NotApplied, OutcomeUnknown)):
        return result
    assert isinstance(result, Rejected)
    return _refused(result)


def _lease_status(job_id: str, result: Outcome | NotApplied | OutcomeUnknown, clocks: reads.Clocks) -> wire.LeaseStatus:
    if isinstance(result, Heartbeat):
        return wire.LeaseStatus(job_id, "ok", clocks.text(result.lease_end), result.cancel_requested)
    if isinstance(result, Rejected):
        return wire.LeaseStatus(job_id, "lost", None, False)
    assert isinstance(result, (NotApplied, OutcomeUnknown))
    raise result
