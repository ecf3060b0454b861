"""Lists by what jobs have in common, and by when they were made: the same jobs as a look at each would find."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.core.world import World, submit

from horae_node.core import lists, views
from horae_node.core.commands import CancelJob, DeleteJob, RaiseMachineVersion
from horae_node.core.lists import Wanted
from horae_node.core.model import JobSpec, Run
from horae_node.core.tables import trait_of
from horae_storage.kv import Row

TASKS, TENANTS = ("mail", "bill", "rare"), ("acme", "zoo")


def made(raised_at: int) -> World:
    """60 jobs; from the `raised_at`th on the machine keeps rows of their traits."""
    rng = Random(7)
    world = World(version=2)
    for number in range(1, 61):
        if number == raised_at:
            world.do(RaiseMachineVersion(3))
        task = TASKS[min(2, rng.randrange(30) // 14)]
        tags = (("tenant", rng.choice(TENANTS)),) if rng.random() < 0.7 else ()
        world.do(
            submit(f"j{number}", task=task, tags=tags, queue=rng.choice("ab"), schedule_id=rng.choice([None, "s"]))
        )
        world.now_ms += rng.choice((0, 0, 10))
        if rng.random() < 0.3:
            world.do(CancelJob(f"j{number}"))
        if rng.random() < 0.1:
            world.do(CancelJob(f"j{number}"))
            world.do(DeleteJob(f"j{number}"))
    return world


def record(world: World, seq: int) -> tuple[JobSpec, Run]:
    spec, run = views.spec(world.txn, seq), views.run(world.txn, seq)
    assert spec is not None
    assert run is not None
    return spec, run


def fits(
    world: World, seq: int, task: str | None, tenant: str | None, state: int | None, span: tuple[int, int]
) -> bool:
    spec, run = record(world, seq)
    tagged = tenant is None or ("tenant", tenant) in spec.tags
    dated = span[0] <= run.created_ms < span[1]
    return tagged and dated and task in (None, spec.task) and state in (None, run.state)


@pytest.mark.parametrize("raised_at", [1, 30, 60])
@pytest.mark.parametrize("limit", [1, 7, 100])
def test_all_pages_together_have_each_job_once(raised_at: int, limit: int):
    world = made(raised_at)
    alive = [seq for seq in range(60, 0, -1) if views.run(world.txn, seq) is not None]
    begun = record(world, alive[-1])[1].created_ms
    for task in (None, *TASKS):
        for tenant in (None, *TENANTS):
            for state in (None, 1, 5):
                for span in ((0, 10**15), (begun + 20, begun + 90), (begun + 10**9, 10**15)):
                    traits = [trait_of("task", task)] if task else []
                    traits += [trait_of("tag", f"tenant:{tenant}")] if tenant else []
                    found = all_pages(world, Wanted(None, state, traits, *span), limit)
                    wanted = [seq for seq in alive if fits(world, seq, task, tenant, state, span)]
                    assert [seq for seq in found if fits(world, seq, task, tenant, state, span)] == wanted


def all_pages(world: World, wanted: Wanted, limit: int) -> list[int]:
    found: list[int] = []
    before: int | None = None
    while True:
        page = lists.find_jobs(world.txn, wanted, before, limit)
        assert len(page.seqs) <= limit
        found += page.seqs
        if page.next_before is None:
            return found
        assert before is None or page.next_before < before
        before = page.next_before


def test_a_rare_task_is_found_without_a_walk_over_the_others():
    world = World(version=3)
    for number in range(300):
        world.do(submit(f"j{number}", task="rare" if number == 3 else "common", tags=(("a", "b"),)))
    counted = Counting(world)
    traits = [trait_of("task", "rare"), trait_of("tag", "a:b")]
    assert lists.find_jobs(counted, Wanted(traits=traits), None, 100) == ([4], None)
    assert counted.rows <= 102


class Counting:
    """A view that counts the rows that it gave."""

    def __init__(self, world: World) -> None:
        self._view = world.txn
        self.rows = 0

    def get(self, key: bytes) -> Row | None:
        return self._view.get(key)

    def row_bytes(self, key: bytes) -> int:
        return self._view.row_bytes(key)

    def scan(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[tuple[bytes, Row]]:
        found = self._view.scan(start, stop, limit=limit, reverse=reverse)
        self.rows += len(found)
        return found

    def keys(self, start: bytes, stop: bytes, *, limit: int, reverse: bool = False) -> list[bytes]:
        found = self._view.keys(start, stop, limit=limit, reverse=reverse)
        self.rows += len(found)
        return found


def test_of_a_common_task_and_a_rare_state_the_state_is_walked():
    """The dead jobs of a task with a million jobs took a thousand calls to find."""
    world = World(version=3)
    for number in range(300):
        world.do(submit(f"j{number}", task="common", queue="q"))
    for number in (7, 120, 250):
        world.do(CancelJob(f"j{number}"))
    for queue in ("q", None):
        wanted = Wanted(queue, 5, [trait_of("task", "common")])
        assert lists.find_jobs(world.txn, wanted, None, 20) == ([251, 121, 8], None)
