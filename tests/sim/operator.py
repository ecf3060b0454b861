"""An operator who replaces nodes while everything else goes on: adds a spare, waits until it counts, removes another.

One at a time, added before removed, so that those whose clocks may lie stay a minority of the voters. Every call is
repeated until it is answered, at whoever leads by then, as a person would. Which runs have one, and when it acts, comes
from dice of its own: other runs are what they were. Next to read: `cluster.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from tests.sim.world import SECOND, Handle

from horae import wire
from horae_node.errors import NotApplied, OutcomeUnknown, Refused
from horae_node.raft.port import Roster

if TYPE_CHECKING:
    from tests.sim.cluster import Cluster
    from tests.sim.machine import Life, Machine

CHANCE: Final = 0.35
"""Of a run to have one."""
SPARES_MAX: Final = 3
AGAIN_US: Final = SECOND
PACE_US: Final = 12 * SECOND

Ask = Callable[["Life"], Coroutine[Any, Any, Any]]


class Operator:
    """Of one run."""

    def __init__(self, cluster: Cluster, rng: random.Random, spares: list[Machine]) -> None:
        self._cluster = cluster
        self._rng = rng
        self.spares = spares
        self.busy = False
        """A replacement is under way: it is brought to its end after the heal, too."""

    def start(self) -> None:
        """Act now and then, while there are spares."""
        if self.spares:
            self._cluster.world.after(int(PACE_US * self._rng.expovariate(1.0)), None, self._begin)

    def rest(self) -> None:
        """Begin nothing more."""
        self.spares.clear()

    def _begin(self) -> None:
        leader = self._cluster.leader()
        if not self.spares:
            return
        if leader is None or leader.life is None:
            self.start()
            return
        self.busy = True
        spare = self.spares.pop()
        roster = leader.life.node.raft.roster
        spare.book = Roster(0, roster.voters, (spare.config.own,))
        self._cluster.order.append(spare)
        self._cluster.tell(f"operator: {spare.node_id} joins {[member.node_id for member in roster.voters]}")
        spare.start()
        self._add(spare)

    def _add(self, spare: Machine) -> None:
        own = spare.config.own
        request = wire.MemberRequest(node=own.node_id, raft_address=own.raft_address, http_url=own.http_url)
        self._until_done(
            lambda life: life.node.service.add_member(request),
            lambda life: life.node.raft.roster.standing(own.node_id) == "voter",
            lambda: self._remove(spare),
        )

    def _remove(self, spare: Machine) -> None:
        victim = self._rng.choice([machine for machine in self._cluster.order if machine is not spare])
        self._cluster.tell(f"operator: {spare.node_id} counts, {victim.node_id} leaves")
        self._until_done(
            lambda life: life.node.service.remove_member(victim.node_id),
            lambda life: life.node.raft.roster.standing(victim.node_id) == "removed",
            lambda: self._take_away(victim),
        )

    def _take_away(self, victim: Machine) -> None:
        cluster = self._cluster
        cluster.order.remove(victim)
        victim.gone = True
        victim.crash(power=False)
        cluster.judge.count("replaced")
        self.busy = False
        self.start()

    def _until_done(self, ask: Ask, is_done: Callable[[Life], bool], then: Callable[[], None]) -> None:
        """Ask whoever leads, again and again, until it is so at the leader of then."""
        leader = self._cluster.leader()
        life = leader.life if leader is not None else None
        if life is not None and is_done(life):
            then()
            return
        if life is not None:
            life.process.step(Handle(lambda: life.process.loop.create_task(_asked(ask(life))), ()))
        self._cluster.world.after(AGAIN_US, None, self._until_done, ask, is_done, then)


async def _asked(call: Coroutine[Any, Any, Any]) -> None:
    """Whatever the cluster says: it is looked at what it does."""
    try:
        await call
    except (Refused, NotApplied, OutcomeUnknown):
        return
