"""A node's inside for tests: the real service, session, proposer, applier and machine, over a fake consensus.

The clock is the caller's; timers are the loop's. Not here: HTTP, Raft, disks.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from tests.helpers.fake_raft import FakeRaft

from horae import wire
from horae_node import codec
from horae_node.applier import Applier
from horae_node.backup import Backups
from horae_node.clock import ManualClock
from horae_node.core.model import KNOWN_VERSIONS, Versions
from horae_node.feed import Feed
from horae_node.leader.session import LeaderSession
from horae_node.membership import Membership
from horae_node.metrics import Metrics
from horae_node.proposer import Proposer
from horae_node.queue_rates import QueueRates
from horae_node.raft.port import Member
from horae_node.service import Finishes, Service
from horae_node.shedding import Bounds
from horae_storage.memory import MemoryStore


class OneNode:
    """Leads from `open` on; `clock` moves when told to."""

    def __init__(
        self,
        *,
        advance_limit: int = 100,
        known: Versions = KNOWN_VERSIONS,
        bounds: Bounds | None = None,
        events_kept: int = 1000,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.store = MemoryStore()
        own = codec.OwnEntries()
        self.applier = Applier(
            self.store,
            cluster="test",
            clock=self.clock,
            commit_interval_ms=1000,
            commit_commands=10_000,
            known=known,
            own=own,
        )
        self.raft = FakeRaft(self.applier)
        self.metrics = metrics = Metrics(lambda: iter(()))
        self.proposer = Proposer(self.raft, self.clock, metrics.observe_commit_ms, own, bounds)
        self.session = LeaderSession(
            node_id="n1",
            raft=self.raft,
            applier=self.applier,
            proposer=self.proposer,
            clock=self.clock,
            advance_limit=advance_limit,
            on_change=lambda: None,
            observe_claim_ms=metrics.observe_claim_ms,
        )
        self.proposer.attach(self.session)
        self.membership = Membership(
            node_id="n1",
            raft=self.raft,
            proposer=self.proposer,
            session=self.session,
            hand_over=self.raft.hand_over,
        )
        finishes = Finishes()
        rates = QueueRates(self.clock)
        self.feed = feed = Feed(
            view=lambda: self.applier.view,
            kept=events_kept,
            applied_index=self.applier.applied_index,
            count_behind=metrics.count_fell_behind,
        )
        self.service = Service(
            node_id="n1",
            members=[Member("n1", "127.0.0.1:1", "http://n1"), Member("n2", "127.0.0.1:2", "http://n2")],
            raft=self.raft,
            applier=self.applier,
            proposer=self.proposer,
            session=self.session,
            finishes=finishes,
            metrics=metrics,
            cluster_view=_no_cluster,
            backups=Backups(self.applier, self.raft, Path()),
            membership=self.membership,
            feed=feed,
            rates=rates,
            clock=self.clock,
            bounds=bounds,
        )

        def on_entry(index: int, outcome: Any) -> None:
            finishes.on_entry(outcome)
            self.session.on_entry(outcome)
            feed.on_entry(index, outcome)
            rates.on_entry(outcome.changes)

        self.applier.on_entry(on_entry)
        self.raft.on_role(self._on_role)

    async def open(self) -> OneNode:
        await self.session.open_epoch(self.raft.term)
        return self

    def _on_role(self) -> None:
        if not self.raft.is_leader:
            self.session.close()
        self.service.on_leadership()

    async def pass_ms(self, span_ms: int) -> None:
        """Let time go by, and the leader look at it."""
        self.clock.advance(span_ms)
        self.proposer.kick()
        await settle()

    async def have_lines(self, schedule_id: str, count: int) -> None:
        """Until so many triggers of a schedule have come to something; no time goes by."""
        async with asyncio.timeout(10):
            while True:
                answer = await self.service.schedules.triggers(schedule_id, wire.TriggersQuery(consistency="local"))
                if len(answer.triggers) == count:
                    return
                await asyncio.sleep(0.001)

    async def submit(self, **keys: Any) -> wire.JobView:
        """Submit as the edge would: validated."""
        request = msgspec.convert({"task": "t", **keys}, wire.SubmitRequest)
        return (await self.service.submit(request))[0]

    def claim(self, *queues: str, via: str = "", **keys: Any) -> asyncio.Task[list[wire.ClaimedJob]]:
        """Begin to claim; the task ends with the jobs."""
        body = {"worker": "w", "queues": list(queues) or ["default"], "wait_seconds": 30, **keys}
        request = msgspec.convert(body, wire.ClaimRequest)

        async def jobs() -> list[wire.ClaimedJob]:
            return (await self.service.claim(request, via)).answer.jobs

        return asyncio.create_task(jobs())


def _no_cluster() -> wire.ClusterView:
    raise AssertionError("not asked for")


async def settle() -> None:
    """Let everything that can run without time run."""
    for _ in range(50):
        await asyncio.sleep(0)
