"""The node's wiring: builds the parts, starts them in order, and stops them in the other order. Nothing else.

Order: data directory, state, log, consensus, leader. The one root of tasks is here: what ends a task unasked ends the
node. Not here: HTTP (the room above starts it), what any part does. Next to read: `service.py`, `leader/session.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from horae import wire
from horae_node import codec, logs, reads, zones
from horae_node.applier import Applier
from horae_node.backup import Backups
from horae_node.clock import Clock
from horae_node.config import NodeConfig
from horae_node.core import views
from horae_node.core.changes import TriggerNoted
from horae_node.core.model import KNOWN_VERSIONS, Versions
from horae_node.core.results import EntryOutcome
from horae_node.disk_room import DiskRoom
from horae_node.errors import ConfigError, Misfit, NotApplied, OutcomeUnknown
from horae_node.feed import Feed
from horae_node.host import Host, SystemHost
from horae_node.leader.session import LeaderSession
from horae_node.leader.upgrade import Upgrade
from horae_node.membership import Membership
from horae_node.metrics import Metrics
from horae_node.proposer import Proposer
from horae_node.queue_rates import QueueRates
from horae_node.raft.port import LogLimits, Member, Raft, Roster, Timing
from horae_node.raft.pysyncobj_adapter import PySyncObjRaft
from horae_node.service import Finishes, Service
from horae_node.shedding import Bounds

HOUSEKEEPING_MS = 50
"""How often the state's commit is considered and the loop's lateness is measured."""

ROOM_CHECK_MS = 1000
"""How often the room on the disk is looked at."""

RETIRE_MS = 500
"""How long an orderly stop, or a hand-over, waits for the entries under way: many rounds, and less than an election."""

REOPEN_MS = 100
"""Pause before a leader whose epoch could not be opened tries again."""

METRIC_QUEUES_MAX = 1000
"""Queues that a scrape shows at most; more would be more series than a monitor is glad of."""

log = logs.get_log("node")


class Node:
    """One node of the cluster, without its HTTP edge."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Clock,
        host: Host | None = None,
        known: Versions = KNOWN_VERSIONS,
        bounds: Bounds | None = None,
    ) -> None:
        """`host` is the machine it runs on; by default the real one. `known`: the machine versions of this build.
        `bounds`: how much may wait."""
        self._config = config
        self._bounds = bounds or Bounds()
        self._replayed_to = sys.maxsize
        """What the log held when this process began: told of by the one before, if by anybody."""
        self._clock = clock
        self._known = known
        self._host: Host = host or SystemHost(config, clock)
        self._opened = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: asyncio.Task[None] | None = None
        self._stopping = False
        self._retiring = False
        self._handing_over = False
        self._remembering: asyncio.Task[None] | None = None
        self._removed: asyncio.Event = asyncio.Event()
        self._took_part = False
        self._room_due = False
        """The room on the disk is to be looked at before its time: only who leads knows of others."""

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Open everything and take part. Raises: `ConfigError`, storage's refusals: the process ends then."""
        config, clock = self._config, self._clock
        self._fatal: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        self._host.open()
        self._opened = True
        own = codec.OwnEntries()
        self._open_state(own)
        self._metrics = Metrics(self._metric_families, lambda: views.all_counts(self._applier.view, METRIC_QUEUES_MAX))
        self._raft = self._build_raft()
        self._proposer = Proposer(self._raft, clock, self._metrics.observe_commit_ms, own, self._bounds)
        self._session = LeaderSession(
            node_id=config.node_id,
            raft=self._raft,
            applier=self._applier,
            proposer=self._proposer,
            clock=clock,
            advance_limit=config.advance_limit,
            on_change=self._on_session,
            observe_claim_ms=self._metrics.observe_claim_ms,
        )
        self._proposer.attach(self._session)
        self._upgrade = Upgrade(
            node_id=config.node_id,
            raft=self._raft,
            applier=self._applier,
            proposer=self._proposer,
            session=self._session,
            clock=clock,
        )
        self._finishes = Finishes()
        self._feed = self._build_feed()
        self._rates = QueueRates(self._clock)
        self._membership = Membership(
            node_id=config.node_id,
            raft=self._raft,
            proposer=self._proposer,
            session=self._session,
            hand_over=self._hand_over,
        )
        self._disk_room = self._build_disk_room()
        self._service = Service(
            node_id=config.node_id,
            members=(config.own, *self._book.members),
            raft=self._raft,
            applier=self._applier,
            proposer=self._proposer,
            session=self._session,
            finishes=self._finishes,
            metrics=self._metrics,
            cluster_view=self._cluster_view,
            backups=Backups(self._applier, self._raft, self._host.snapshot_dir),
            membership=self._membership,
            feed=self._feed,
            rates=self._rates,
            clock=clock,
            bounds=self._bounds,
        )
        self._listen()
        await self._raft.start()
        self._replayed_to = self._raft.status().last_index
        self._host.mark_initialised()
        self._spawn(self._keep_house())
        self._on_role()
        log.event("node_started", applied_index=self._applier.applied_index, term=self._raft.term)

    def _open_state(self, own: codec.OwnEntries) -> None:
        config, known = self._config, self._host.known_members()
        self._book = known or Roster(0, config.members)
        """The newest members known: where everybody is reached."""
        self._applier = Applier(
            self._host.store(),
            cluster=config.cluster,
            clock=self._clock,
            commit_interval_ms=config.state_commit_interval_ms,
            commit_commands=config.state_commit_commands,
            known=self._known,
            own=own,
        )
        if config.join and known is None and self._applier.roster is None:
            raise ConfigError(
                f"{config.data_dir} says nowhere who the members are: move it aside, and let this node join under "
                "a new id"
            )

    def _listen(self) -> None:
        self._applier.on_entry(self._on_entry)
        self._applier.on_install(self._on_install)
        self._raft.on_role(self._on_role)
        self._raft.on_fatal(self._on_fatal)
        self._raft.on_peer_clock(self._session.cluster_clock.observe)
        self._raft.on_roster(self._on_roster)
        self._raft.on_removed(self._on_removed)

    def _build_raft(self) -> Raft:
        config, host = self._config, self._host
        limits = LogLimits(tail_bytes=config.log_keep_bytes, tail_entries=config.log_keep_entries)
        raft_log = host.raft_log()
        self._applier.on_full(raft_log.hold)
        return PySyncObjRaft(
            own_id=config.node_id,
            book=self._book,
            configured=self._book if config.join else Roster(0, config.members),
            cluster=config.cluster,
            log=raft_log,
            machine=self._applier,
            snapshot_dir=host.snapshot_dir,
            transport=host.transport(),
            clock=self._clock,
            timing=Timing(config.heartbeat_ms, config.election_min_ms, config.election_max_ms, config.fallback_ms),
            limits=limits,
            rng=host.dice(),
        )

    def _build_feed(self) -> Feed:
        applier = self._applier
        return Feed(
            view=lambda: applier.view,
            kept=self._config.events_kept,
            applied_index=applier.applied_index,
            count_behind=self._metrics.count_fell_behind,
        )

    def _build_disk_room(self) -> DiskRoom:
        return DiskRoom(
            node_id=self._config.node_id,
            raft=self._raft,
            proposer=self._proposer,
            free_bytes=self._host.free_bytes,
            is_state_full=lambda: self._applier.full,
            begin_handover=lambda node_id: self._spawn(self._hand_on(node_id)),
        )

    async def retire(self) -> None:
        """Before an orderly stop: lead no more, so that another does while this node still passes requests on.

        Waiting claims are told at once; what is on its way into the log is waited for, that its outcome be known.
        """
        self._retiring = True
        if self._opening is not None:
            self._opening.cancel()
        self._session.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_MS / 1000):
                await self._proposer.wait_idle()
        self._session.close()
        if self._raft.is_leader:
            await self._membership.hand_over_to_any()
        self._raft.retire()

    async def _hand_over(self, node_id: str) -> bool:
        """Stop commanding, wait for what is under way, and let that node lead; else this one leads on."""
        self._handing_over = True
        try:
            if self._opening is not None:
                self._opening.cancel()
            self._session.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETIRE_MS / 1000):
                    await self._proposer.wait_idle()
            return await self._raft.hand_over(node_id)
        finally:
            self._handing_over = False
            self._on_role()

    async def _hand_on(self, node_id: str) -> None:
        await self._hand_over(node_id)

    async def stop(self) -> None:
        """Stop leading and taking part, make everything durable, free the directory. A second call does nothing."""
        if not self._opened or self._stopping:
            return
        self._stopping = self._retiring = True
        self._session.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._raft.stop()
        await self._applier.wait_copies()
        self._applier.close()
        self._host.close()
        log.event("node_stopped", applied_index=self._applier.applied_index)

    async def wait_fatal(self) -> BaseException:
        """Wait until the node must end; why."""
        return await asyncio.shield(self._fatal)

    async def wait_removed(self) -> None:
        """Wait until this node is told that it is a member no more."""
        await self._removed.wait()

    @property
    def took_part(self) -> bool:
        """It has known a leader since its start, be it itself."""
        return self._took_part

    @property
    def standing(self) -> str | None:
        """What this node is by its own state: `voter`, `learner`, `removed`; None while that names others only."""
        return self._raft.roster.standing(self._config.node_id)

    @property
    def service(self) -> Service:
        return self._service

    def metrics_text(self) -> bytes:
        return self._metrics.text()

    # ------------------------------------------------------------------ what the parts tell

    def _on_entry(self, index: int, outcome: EntryOutcome) -> None:
        self._finishes.on_entry(outcome)
        self._session.on_entry(outcome)
        self._feed.on_entry(index, outcome)
        self._rates.on_entry(outcome.changes)
        noted = [change.trigger.fate for change in outcome.changes if type(change) is TriggerNoted]
        if not (outcome.died or noted) or index <= self._replayed_to:
            return
        if self._applier.meta().epoch_node == self._config.node_id:
            self._count(outcome.died, noted)

    def _on_install(self) -> None:
        self._finishes.release_all()
        self._feed.on_install(self._applier.applied_index)

    def _count(self, died: tuple[tuple[int, str], ...], fates: list[int]) -> None:
        """By the node alone whose reign the entry is of, leading still or not: over all nodes each is counted once."""
        for seq, reason in died:
            spec = views.spec(self._applier.view, seq)
            if spec is not None:  # deleted in the same entry
                self._metrics.count_dead(spec.queue, spec.task, reason)
        for fate in fates:
            self._metrics.count_trigger(fate)

    def _on_session(self) -> None:
        self._membership.on_leadership()
        self._service.on_leadership()
        self._room_due = True

    def _on_roster(self, book: Roster) -> None:
        """Members changed here, or are known to have changed elsewhere."""
        self._book = book
        self._service.set_members(book.members)
        self._session.cluster_clock.resize([member.node_id for member in self._raft.roster.voters])
        self._membership.on_roster()
        self._service.on_leadership()
        if self._remembering is None:
            self._remembering = self._spawn(self._remember())

    async def _remember(self) -> None:
        """Write down who the members are: a restart must find them before it has read its state."""
        written: Roster | None = None
        try:
            while self._book is not written:
                written = self._book
                await asyncio.to_thread(self._host.remember_members, written)
        except OSError as error:  # the state has them too: what is lost is who could be reached before it is read
            log.warning("members_not_written", reason=str(error))
        finally:
            self._remembering = None

    def _on_removed(self) -> None:
        self._service.removed = True
        self._session.close()
        self._feed.close()
        self._removed.set()

    def _on_role(self) -> None:
        raft = self._raft
        self._took_part = self._took_part or raft.leader_id is not None
        if not raft.is_leader:
            self._session.close()
        elif not self._session.open and self._opening is None and not self._stepping_aside:
            self._opening = self._spawn(self._reign())
        self._service.on_leadership()

    @property
    def _stepping_aside(self) -> bool:
        return self._retiring or self._handing_over or self._service.removed

    async def _reign(self) -> None:
        """Open the epoch, as often as it takes while this node leads."""
        try:
            while self._raft.is_leader and not self._session.open:
                try:
                    await self._session.open_epoch(self._raft.term)
                    log.event("epoch_opened", epoch=self._session.epoch, term=self._raft.term)
                except (NotApplied, OutcomeUnknown) as error:
                    log.event("epoch_not_opened", reason=str(error), term=self._raft.term)
                    await asyncio.sleep(REOPEN_MS / 1000)
        finally:
            self._opening = None

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a callback raised, nobody else sees: it would leave its callers waiting and the node leading."""
        error = context.get("exception")
        if context.get("handle") is not None and error is not None:
            self._on_fatal(error)
        else:
            loop.default_exception_handler(context)

    def _on_fatal(self, error: BaseException) -> None:
        if isinstance(error, Misfit):
            self._forget_members()
        if not self._fatal.done():
            self._fatal.set_result(error)

    def _forget_members(self) -> None:
        """Consensus is silent already. The next start, with members that were mended, is a first one."""
        try:
            self._host.forget_members()
        except OSError as error:
            log.warning("members_not_written", reason=str(error))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_fatal(error)

    async def _keep_house(self) -> None:
        """Commit the state when its interval is over, and notice when the loop was held up."""
        room_checked_ms = 0
        while True:
            before_ms = self._clock.monotonic_ms()
            await asyncio.sleep(HOUSEKEEPING_MS / 1000)
            self._metrics.observe_stall_ms(self._clock.monotonic_ms() - before_ms - HOUSEKEEPING_MS)
            self._applier.maybe_commit()
            if self._membership.is_promotion_due(before_ms):
                self._spawn(self._membership.promote())
            due = before_ms - room_checked_ms >= ROOM_CHECK_MS
            if due or self._room_due:
                self._room_due = False
                self._disk_room.run_once(before_ms, commands=self._session.open and not self._stepping_aside)
            if due:
                room_checked_ms = before_ms
                self._upgrade.run_once()

    # ------------------------------------------------------------------ views of the whole

    def _cluster_view(self) -> wire.ClusterView:
        status, meta = self._raft.status(), self._applier.meta()
        leader = next((m for m in self._book.members if m.node_id == status.leader_id), None)
        return wire.ClusterView(
            cluster=self._config.cluster,
            node=self._config.node_id,
            leader=status.leader_id,
            leader_url=None if leader is None else leader.http_url,
            term=status.term,
            epoch=meta.epoch,
            role=status.role,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            durable_index=self._applier.durable_index,
            last_index=status.last_index,
            first_index=status.first_index,
            state_digest=f"{meta.digest:08x}",
            version=version("horae"),
            machine_version=meta.machine_version,
            # Without a session this host's clock is all there is to tell the time by, and it may be the wrong one.
            cluster_time=reads.moment_text(self._session.now_ms() if self._session.open else meta.now_ms),
            disk=self._disk(),
            members_index=self._raft.roster.at_index,
            origin=self._host.origin,
            members=[self._member_view(member) for member in self._raft.roster.members],
        )

    def _member_view(self, member: Member) -> wire.MemberView:
        status, node_id = self._raft.status(), member.node_id
        own = node_id == self._config.node_id
        counts = member in self._raft.roster.voters and node_id != self._membership.settling
        peer = status.peers.get(node_id)
        leading = status.role == "leader"
        match = status.durable_log_index if own else (peer.match_index if peer and leading else None)
        skew_ms = self._session.cluster_clock.skew_ms().get(node_id) if self._session.open else None
        heard_ms = None if peer is None else peer.last_heard_ms
        return wire.MemberView(
            node=node_id,
            url=member.http_url,
            raft_address=member.raft_address,
            standing="voter" if counts else "learner",
            role=status.role if own else ("leader" if node_id == status.leader_id else "follower"),
            connected=own or (peer is not None and peer.connected),
            match_index=match,
            lag=None if match is None else max(0, status.last_index - match),
            last_heard_seconds=None if heard_ms is None else heard_ms / 1000,
            clock_skew_seconds=None if skew_ms is None else skew_ms / 1000,
            incarnation=self._host.incarnation_of(node_id),
        )

    def _disk(self) -> dict[str, int]:
        return {"free_bytes": self._host.free_bytes(), "state_bytes": self._applier.size_bytes()}

    def _metric_families(self) -> Iterator[GaugeMetricFamily]:
        status = self._raft.status()
        yield _gauge("horae_raft_is_leader", "1 on the node that leads.", int(status.role == "leader"))
        yield _gauge("horae_raft_term", "Raft term.", status.term)
        yield _gauge("horae_raft_commit_index", "Highest committed log index known here.", status.commit_index)
        yield _gauge("horae_raft_applied_index", "Highest applied log index.", status.applied_index)
        known_commit = max(status.commit_index, status.leader_commit or 0)
        yield _gauge("horae_raft_lag_entries", "Entries committed and not applied here.", self._lag(known_commit))
        yield _gauge("horae_disk_free_bytes", "Room on the disk of the data directory.", self._host.free_bytes())
        yield _gauge("horae_state_bytes", "Bytes of the state on disk.", self._applier.size_bytes())
        yield _gauge("horae_machine_version", "Rules that the cluster runs by.", self._applier.meta().machine_version)
        yield _gauge("horae_machine_version_known", "Newest rules that this build knows.", self._known.newest)
        yield _gauge(
            "horae_proposals_queued", "Commands that wait for an entry (leader).", self._proposer.queued_commands
        )
        yield _gauge("horae_waiting_claims", "Claims that are parked (leader).", len(self._session.waiters))
        yield _gauge(
            "horae_schedules_unreckonable",
            "Schedules whose trigger has come, and which this node's zone data do not allow to reckon (leader).",
            self._session.scheduler.broken if self._session.open else 0,
        )
        data = GaugeMetricFamily("horae_tzdata_info", "1 for the release of the zone data here.", labels=["version"])
        data.add_metric([zones.version()], 1)
        yield data
        yield _gauge("horae_event_subscribers", "Who reads events here.", self._feed.subscribers)
        waiting = GaugeMetricFamily("horae_waiting_requests", "Requests that wait here, by kind.", labels=["kind"])
        for what, count in self._service.waiting().items():
            waiting.add_metric([what], count)
        yield waiting
        roles = GaugeMetricFamily("horae_raft_role", "1 for the role that this node has.", labels=["role"])
        for role in ("leader", "follower", "candidate"):
            roles.add_metric([role], int(status.role == role))
        yield roles
        lags = GaugeMetricFamily("horae_raft_peer_lag_entries", "Entries not yet on a peer's disk.", labels=["peer"])
        skews = GaugeMetricFamily("horae_clock_skew_seconds", "Wall clock less cluster time.", labels=["node"])
        if status.role == "leader":
            for peer, known in status.peers.items():
                lags.add_metric([peer], max(0, status.last_index - known.match_index))
        if self._session.open:
            for node, skew_ms in self._session.cluster_clock.skew_ms().items():
                skews.add_metric([node], skew_ms / 1000)
        yield lags
        yield skews

    def _lag(self, commit_index: int) -> int:
        return max(0, commit_index - self._applier.applied_index)


def _gauge(name: str, help_text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, value=value)


Refused = Callable[[], None]
