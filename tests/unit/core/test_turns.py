"""Whose turn it is, against a plain reckoning of the stated rule, whatever is submitted, claimed and ended between."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.core.world import World, submit

from horae_node.core.commands import AdvanceTime, CompleteJob


@dataclass
class Rule:
    """Lists instead of indexes. `line`: groups that may run one more, by their place."""

    per_key: int
    ready: dict[str | None, list[tuple[int, int, str]]] = field(default_factory=dict)  # (-priority, number, id)
    running: dict[str, str | None] = field(default_factory=dict)
    turn: dict[str | None, int] = field(default_factory=dict)
    turns: int = 0

    def submit(self, job_id: str, key: str | None, priority: int, number: int) -> None:
        before = self.may_run(key)
        self.ready.setdefault(key, []).append((-priority, number, job_id))
        self.came(key, before)

    def end(self, job_id: str) -> None:
        key = self.running[job_id]
        before = self.may_run(key)
        del self.running[job_id]
        self.came(key, before)

    def claim(self, most: int) -> list[str]:
        granted: list[str] = []
        while len(granted) < most and (waiting := [key for key in self.ready if self.may_run(key)]):
            key = min(waiting, key=lambda each: (min(self.ready[each])[0], self.turn.get(each, 0)))
            job = min(self.ready[key])
            self.ready[key].remove(job)
            self.running[job[2]] = key
            self.to_the_end(key)
            granted.append(job[2])
        return granted

    def may_run(self, key: str | None) -> bool:
        if not self.ready.get(key):
            return False
        return key is None or sum(each == key for each in self.running.values()) < self.per_key

    def came(self, key: str | None, before: bool) -> None:
        if key is not None and not before and self.may_run(key):
            self.to_the_end(key)

    def to_the_end(self, key: str | None) -> None:
        self.turns += 1
        self.turn[key] = self.turns


steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([None, "a", "b", "c", "d"]), st.sampled_from([0, 0, 0, 7])),
        st.tuples(st.just("claim"), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(0, 9)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), steps)
def test_turns_are_as_the_rule_says(per_key: int, steps: list[tuple[object, ...]]):
    world, rule = World(version=2), Rule(per_key)
    world.set_queue(max_running_per_key=per_key)
    # A group is there for the whole test, so that turns are counted from its beginning to its end.
    world.do(submit("stays", concurrency_key="stays", priority=-100))
    rule.submit("stays", "stays", -100, 0)
    for number, step in enumerate(steps, 1):
        if step[0] == "submit":
            _, key, priority = step
            world.do(submit(f"j{number}", concurrency_key=key, priority=priority))
            rule.submit(f"j{number}", key, priority, number)  # type: ignore[arg-type]
        elif step[0] == "claim":
            most = step[1]
            assert isinstance(most, int)
            expected = rule.claim(most)
            assert world.ids(world.claim("w", max_jobs=most)) == expected
        else:
            running = sorted(job_id for job_id in rule.running if job_id != "stays")
            if running:
                job_id = running[step[1] % len(running)]  # type: ignore[operator]
                world.do(CompleteJob(job_id, world.run(job_id).token, None))
                rule.end(job_id)
        world.pass_ms(1)
        world.do(AdvanceTime(10))
