"""How callers reach a node, and what they learn: a small edge in the place of HTTP, and the history of every call.

A call ends as `ok`, as `refused` by the rules, as `fail` (surely nothing happened) or as `info` (it may have taken
effect, or may yet). A node that does not lead hands a call on to the leader it knows, once, as the real edge does.
Callers reach every node whatever the nodes' own wires do; an answer may get lost. Next to read: `clients.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.sim.machine import Life, Machine
from tests.sim.world import MILLISECOND, SECOND, Handle, World

from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Delivery, Refused, Service

OK: Final = "ok"
REFUSED: Final = "refused"
FAIL: Final = "fail"
INFO: Final = "info"

LEADER_WAIT_MS: Final = 2000
"""How long a node that knows no leader waits for one, as the contract says."""

PATIENCE_US: Final = 8 * SECOND
"""How long a caller waits for an answer, a claim's own wait not counted."""

Ask = Callable[[Service], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class Call:
    """One operation of one caller, as the history keeps it. Times are true microseconds; `end_us` 0: still open."""

    number: int
    caller: str
    kind: str
    job_id: str
    token: int
    begin_us: int
    seen_index: int
    """Highest index that any node had applied when the call began."""
    end_us: int = 0
    how: str = INFO
    value: Any = None
    served_by: str = ""
    served_index: int = 0
    """Applied index of the serving node when it answered."""
    written: bool = False
    """A node has written an answer, which its caller may have got."""


class Edge:
    """Carries calls to machines and answers back."""

    def __init__(self, world: World, rng: random.Random, machines: dict[str, Machine]) -> None:
        self.world = world
        self.rng = rng
        self.machines = machines
        self.loss = 0.002
        """Of answers, and of requests."""
        self.history: list[Call] = []
        self.max_applied: Callable[[], int] = lambda: 0
        self.on_answer: Callable[[Call], None] = lambda call: None

    def call(
        self,
        caller: str,
        node_id: str,
        kind: str,
        ask: Ask,
        *,
        job_id: str = "",
        token: int = 0,
        patience_us: int,
        done: Callable[[Call], None],
    ) -> Call:
        """Begin; `done(call)` is told once, when it is answered or the caller's patience is over."""
        call = Call(len(self.history), caller, kind, job_id, token, self.world.now_us, self.max_applied())
        self.history.append(call)
        visit = _Visit(self, call, ask, done)
        visit.limit = self.world.after(patience_us, None, visit.hang_up)
        if self.rng.random() < self.loss:
            return call  # the request is lost: the caller finds out by its patience
        self.world.after(self._delay_us(), None, visit.arrive, self.machines[node_id], True)
        return call

    def _delay_us(self) -> int:
        return int(200 + 2000 * self.rng.random())


class _Visit:
    """A call on its way through the nodes."""

    def __init__(self, edge: Edge, call: Call, ask: Ask, done: Callable[[Call], None]) -> None:
        self._edge = edge
        self._call = call
        self._ask = ask
        self._done = done
        self._life: Life | None = None
        self._task: asyncio.Task[Any] | None = None
        self._over = False
        self.limit: Handle

    def arrive(self, machine: Machine, may_forward: bool) -> None:
        life = machine.life
        if self._over:
            return
        if life is None:
            self._answer(FAIL, "connection refused")
            return
        self._life = life
        life.calls[self] = self._lost
        self._edge.world.after(0, life.process, self._serve, life, may_forward)

    # ------------------------------------------------------------------ in the node's process

    def _serve(self, life: Life, may_forward: bool) -> None:
        if self._over:
            self._leave()
        elif not life.started:
            self._reply(FAIL, "starting")
        else:
            self._task = life.process.loop.create_task(self._handle(life, may_forward))
            self._task.add_done_callback(self._on_error)

    async def _handle(self, life: Life, may_forward: bool) -> None:
        """What the edge of a node does with one request."""
        service = life.node.service
        try:
            if not service.leading():
                leader = await service.wait_for_leader(LEADER_WAIT_MS)
                if leader is None or (leader != life.node_id and not may_forward):
                    raise NotApplied("no_leader", "no leader is known")
                if leader != life.node_id:
                    self._forward(life, leader)
                    return
            self._reply(OK, await self._ask(service))
        except Refused as error:
            self._reply(REFUSED, error.code)
        except NotApplied as error:
            self._reply(FAIL, error.code)
        except OutcomeUnknown:
            self._reply(INFO, "unknown")

    def _on_error(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._life is not None
            self._life.machine.on_broken(self._life, error)

    def _forward(self, life: Life, leader: str) -> None:
        edge = self._edge
        self._leave()
        network = life.machine.network
        if network.is_cut(life.node_id, leader) or network.is_cut(leader, life.node_id):
            edge.world.after(edge._delay_us(), None, self._answer, INFO, "forward timed out")
        else:
            edge.world.after(edge._delay_us(), None, self.arrive, edge.machines[leader], False)

    def _reply(self, how: str, value: Any) -> None:
        life = self._life
        assert life is not None
        self._leave()
        if self._over:
            if isinstance(value, Delivery):
                value.undeliverable()
            return
        call = self._call
        call.written = True
        call.served_by, call.served_index = life.node_id, life.node.applier.applied_index
        if self._edge.rng.random() < self._edge.loss:
            return
        if isinstance(value, Delivery):
            value = value.answer
        self._edge.world.after(self._edge._delay_us(), None, self._answer, how, value)

    def _leave(self) -> None:
        if self._life is not None:
            self._life.calls.pop(self, None)

    # ------------------------------------------------------------------ at the caller

    def _answer(self, how: str, value: Any) -> None:
        if self._over:
            return
        self._over = True
        self.limit.cancel()
        call = self._call
        call.end_us, call.how, call.value = self._edge.world.now_us, how, value
        self._edge.on_answer(call)
        self._done(call)

    def _lost(self) -> None:
        """The node's life ended under the call."""
        self._life = None
        self._edge.world.after(self._edge._delay_us(), None, self._answer, INFO, "connection lost")

    def hang_up(self) -> None:
        """The caller waits no longer: the node notices, and stops what it does for it."""
        if self._over:
            return
        life, task = self._life, self._task
        self._leave()
        self._answer(INFO, "timed out")
        if life is not None and task is not None and not task.done():
            self._edge.world.after(MILLISECOND, life.process, task.cancel)
