"""Random schedules of a whole cluster: delays, cuts, crashes that lose unsynced writes, compaction, snapshots, pauses.

Safety: no two nodes, nor two lives of one, apply different entries at one index; one leader a term; what was
acknowledged stays. Then all heals, and the cluster must converge. A failing seed replays exactly.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.raft.parts import ListMachine
from tests.unit.raft.script import Script, ScriptNode

from horae_node.raft import snapshots
from horae_node.raft.port import SnapshotInfo
from horae_node.raft.pysyncobj_core import SUCCESS
from horae_node.raft.snapshots import Transfer

STEPS = 1500

PIECE_BYTES, AHEAD_PIECES = 64, 2
"""Of a snapshot: small and few, so that cuts fall into transfers."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", PIECE_BYTES)
    monkeypatch.setattr(snapshots, "AHEAD_PIECES", AHEAD_PIECES)


class Judge:
    """What must never be contradicted, over all nodes and all their lives."""

    def __init__(self) -> None:
        self.applied: dict[int, bytes] = {}
        self.leaders: dict[int, str] = {}
        self.acknowledged: set[bytes] = set()

    def look(self, script: Script) -> None:
        for node_id, node in script.nodes.items():
            if node.leads:
                assert self.leaders.setdefault(node.core.term, node_id) == node_id, "two leaders in one term"
            for entry, reason in node.reasons.items():
                if reason == SUCCESS:
                    self.acknowledged.add(entry)

    def watch(self, machine: ListMachine) -> None:
        """Compare each entry as it is applied, whoever applies it."""
        apply = machine.apply

        def compared(index: int, entry: bytes) -> object:
            assert self.applied.setdefault(index, entry) == entry, f"different entries at index {index}"
            return apply(index, entry)

        install = machine.install_snapshot

        def compared_whole(snapshot: SnapshotInfo) -> None:
            install(snapshot)
            for index, entry in machine.applied:
                assert self.applied[index] == entry, f"a snapshot with a different entry at index {index}"

        machine.apply = compared  # type: ignore[method-assign]
        machine.install_snapshot = compared_whole  # type: ignore[method-assign]


class Chaos:
    def __init__(self, directory: Path, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.script = Script(directory, size, auto_sync=False)
        self.judge = Judge()
        self.down: dict[str, tuple[object, ListMachine]] = {}
        self.paused: set[str] = set()
        self.number = 0
        for node in self.script.nodes.values():
            self.judge.watch(node.machine)

    # ------------------------------------------------------------------ steps

    def step(self, *, faults: bool) -> None:
        script, rng = self.script, self.rng
        script.clock.advance(rng.choice((0, 1, 2, 5, 10)))
        for node_id in list(script.nodes):
            if node_id not in self.paused:
                self.live(node_id, faults=faults)
        if faults and rng.random() < 0.04:
            rng.choice((self.cut, self.cut, self.crash, self.pause, self.compact, self.compact))()
        if faults and rng.random() < 0.06:
            rng.choice((self.heal, self.restart, self.resume))()
        self.judge.look(script)

    def live(self, node_id: str, *, faults: bool) -> None:
        script, rng = self.script, self.rng
        node = script[node_id]
        node.shelf.feed = self.feed if faults else Transfer.fill
        for other in script.ids:
            waiting = len(script.links.get((other, node_id), ()))
            if waiting and rng.random() < (0.5 if faults else 0.9):
                script.deliver(other, node_id, rng.randint(1, waiting))
        if rng.random() < 0.5:
            script.tick(node_id)
        if node.leads and rng.random() < 0.3:
            self.number += 1
            node.propose(b"%d " % self.number + bytes(rng.choice((1, 10, 100))))
            node.send()
        node.journal.seal()
        if rng.random() < (0.3 if faults else 0.9):
            node.log.sync()
        if rng.random() < 0.05:
            node.machine.commit()
        if node.wanted and rng.random() < 0.2:
            node.wanted = 0
            node.give_snapshot()
        if node.guard.installing is not None and rng.random() < 0.3:
            node.note.write(node.guard.installing.last_index, node.guard.installing.last_term)
            node.core.enter()
            node.guard.finish_install(node.machine.install_snapshot)

    def feed(self, transfer: Transfer) -> None:
        if self.rng.random() < 0.3:
            transfer.fill()

    def compact(self) -> None:
        for node in self.script.nodes.values():
            allowed = min(node.machine.durable_index, node.journal.durable_index, node.last - self.rng.randint(0, 8))
            node.journal.cut_below(max(allowed, node.journal.first_index))

    # ------------------------------------------------------------------ faults

    def cut(self) -> None:
        one, other = self.rng.sample(self.script.ids, 2)
        if self.rng.random() < 0.5:
            self.script.isolate(one)
        else:
            self.script.disconnect(one, other)

    def heal(self) -> None:
        for one in self.script.nodes:
            for other in self.script.nodes:
                if one < other:
                    self.script.connect(one, other)

    def crash(self) -> None:
        if len(self.down) < len(self.script.ids) - 1:
            node_id = self.rng.choice(sorted(self.script.nodes))
            self.paused.discard(node_id)
            self.judge.look(self.script)
            self.script.crash(node_id, keep_groups=self.rng.choice((0, 0, 1, 3)))
            self.down[node_id] = self.script._crashed

    def restart(self) -> None:
        if self.down:
            node_id = self.rng.choice(sorted(self.down))
            self.script._crashed = self.down.pop(node_id)  # type: ignore[assignment]
            self.judge.watch(self.script._crashed[1])
            self.script.restart(node_id)

    def pause(self) -> None:
        self.paused.add(self.rng.choice(self.script.ids))

    def resume(self) -> None:
        self.paused.clear()

    # ------------------------------------------------------------------ the end

    def recover(self) -> None:
        self.paused.clear()
        while self.down:
            self.restart()
        self.heal()

    def members(self) -> list[ScriptNode]:
        """The nodes that must agree in the end."""
        return list(self.script.nodes.values())

    def converged(self) -> bool:
        nodes = self.members()
        lasts = {(node.last, node.journal.last.term, node.machine.applied_index) for node in nodes}
        leads = [node for node in self.script.nodes.values() if node.leads]
        return len(leads) == 1 and leads[0] in nodes and len(lasts) == 1 and nodes[0].machine.applied_index > 2

    def settle(self) -> None:
        self.script.run("".join(self.script.ids), 20)
        for node in self.script.nodes.values():
            finish(node)


def run(
    chaos: Chaos, seed: int, *, steps: int = STEPS, steps_to_progress: int = 3000, passes_to_agree: int = 200
) -> list[bytes]:
    """Faults for so many steps, then none. What all hold in the end, in order; all that was acknowledged is in it."""
    for _ in range(steps):
        chaos.step(faults=True)
    chaos.recover()
    number = chaos.number
    for _ in range(steps_to_progress):
        chaos.step(faults=False)
        if chaos.number > number + 20:
            break
    else:
        pytest.fail(f"seed {seed}: no progress after the heal")
    for _ in range(passes_to_agree):
        chaos.settle()
        if chaos.converged():
            break
    assert chaos.converged(), f"seed {seed}: not converged"
    held = [entry for _, entry in chaos.members()[0].machine.applied]
    assert chaos.judge.acknowledged <= set(held), f"seed {seed}: acknowledged and lost"
    assert chaos.judge.acknowledged, f"seed {seed}: nothing happened"
    return held


def finish(node: ScriptNode) -> None:
    node.sync()
    if node.wanted:
        node.wanted = 0
        node.give_snapshot()
    if node.guard.installing is not None:
        node.install_now()


def require_each_once(held: list[bytes]) -> None:
    assert len(set(held)) == len(held)


@pytest.mark.parametrize("seed", range(12))
def test_three_nodes(tmp_path: Path, seed: int) -> None:
    require_each_once(run(Chaos(tmp_path, seed, 3), seed))


@pytest.mark.parametrize("seed", range(100, 106))
def test_five_nodes(tmp_path: Path, seed: int) -> None:
    require_each_once(run(Chaos(tmp_path, seed, 5), seed))
