"""Random schedules in which members come and go all the time, on top of all faults of `test_random.py`.

The one who leads proposes changes as the product does: the next one only when the one before, and the term's own first
entry, are applied. Nobody tells a removed node that it is one: it goes on as if it were, and may disturb nothing.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.raft.parts import roster_entry
from tests.unit.raft.script import Script, ScriptNode
from tests.unit.raft.test_random import STEPS, Chaos, run

from horae_node.raft.port import Member, Roster

IDS = "abcdefghijklmnopqr"
VOTERS = "abc"


class MemberChaos(Chaos):
    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory, seed, len(VOTERS))
        self.rng = random.Random(seed)
        self.script = Script(directory / "members", len(IDS), auto_sync=False, voters=VOTERS)
        for node in self.script.nodes.values():
            self.judge.watch(node.machine)
        self.changing: dict[tuple[str, int], int] = {}
        """Index of the change that a leader proposed in a term."""
        self.changes = 0

    def live(self, node_id: str, *, faults: bool) -> None:
        self.script.meet()
        super().live(node_id, faults=faults)
        node = self.script[node_id]
        node.maybe_take_seats()
        if node.leads and self.rng.random() < (0.03 if faults else 0.0):
            self.change(node)

    def change(self, node: ScriptNode) -> None:
        core, key = node.core, (node.node_id, node.core.term)
        if core.applied < max(core.noop_index, self.changing.get(key, 0)) or core.noop_index == 0:
            return
        following = self.next_roster(node.roster)
        if following is not None:
            node.propose(roster_entry(following))
            self.changing[key] = node.last
            self.changes += 1
            node.send()

    def next_roster(self, roster: Roster) -> Roster | None:
        voters, learners, rng = roster.voters, roster.learners, self.rng
        if learners:
            if rng.random() < 0.8:
                return roster._replace(voters=(*voters, *learners), learners=())
            return roster._replace(learners=(), removed=roster.removed | {learners[0].node_id})
        used = {member.node_id for member in voters} | roster.removed
        fresh = [name for name in IDS if name not in used]
        if fresh and (len(voters) < 3 or rng.random() < 0.5):
            return roster._replace(learners=(Member(rng.choice(fresh), "x:1", ""),))
        if len(voters) > 2 or (len(voters) == 2 and rng.random() < 0.1):
            leaves = rng.choice(voters)
            kept = tuple(member for member in voters if member != leaves)
            return roster._replace(voters=kept, removed=roster.removed | {leaves.node_id})
        return None

    def members(self) -> list[ScriptNode]:
        """The nodes that count in the newest roster that any node has applied."""
        newest = max((node.roster for node in self.script.nodes.values()), key=lambda roster: roster.at_index)
        return [self.script[member.node_id] for member in newest.voters]

    def settle(self) -> None:
        self.script.meet()
        super().settle()
        self.judge.look(self.script)


@pytest.mark.parametrize("seed", range(200, 216))
def test_members_that_come_and_go(tmp_path: Path, seed: int) -> None:
    run(MemberChaos(tmp_path, seed), seed, steps=2 * STEPS, steps_to_progress=4000, passes_to_agree=300)
