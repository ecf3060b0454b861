"""Jobs that wait for others: who is told what, and in which order, when endings and requeues come in between."""

from __future__ import annotations

from tests.unit.core.world import HASH, World, submit

from horae_node.core.commands import AdvanceTime, CompleteJob, FailJob, RequeueJob, SubmitJob
from horae_node.core.decide import links
from horae_node.core.model import LINKS_VERSION, SCHEDULES_VERSION, Links, OnFailure, State
from horae_node.core.tables import linked

STEP = 4 * links.TOLD_WEIGHT
"""A budget that tells a few."""


def after(job_id: str, *others: str) -> SubmitJob:
    command = submit(job_id, hash=HASH)
    return command._replace(spec=linked(command.spec, Links(others, int(OnFailure.CANCEL), None)))


def dying(world: World, job_id: str) -> None:
    """The only ready job is taken, and fails for good."""
    ((_, token),) = world.claim("w")
    world.do(FailJob(job_id, token, "E", "", "", False, None))
    assert world.run(job_id).state == State.DEAD


def states(world: World, job_ids: list[str]) -> list[int]:
    return [world.run(job_id).state for job_id in job_ids]


def test_who_waited_when_it_died_hears_of_that_though_it_was_requeued_and_succeeded_meanwhile() -> None:
    world = World(version=LINKS_VERSION)
    world.do(submit("parent", max_attempts=1))
    waiting = [f"f{number}" for number in range(5)]
    for job_id in waiting:
        world.do(after(job_id, "parent"))
    dying(world, "parent")
    world.do(AdvanceTime(STEP))
    assert State.PENDING in states(world, waiting)
    world.do(RequeueJob("parent"))
    world.do(after("late", "parent"))
    ((_, token),) = world.claim("w")
    world.do(CompleteJob("parent", token, None))
    for _ in range(9):
        world.do(AdvanceTime(STEP))
    assert states(world, waiting) == [State.CANCELLED] * 5
    assert world.run("late").state == State.READY


def test_one_ending_without_a_new_job_in_between_takes_the_place_of_none() -> None:
    world = World(version=LINKS_VERSION)
    world.do(submit("parent", max_attempts=1))
    for number in range(3):
        world.do(after(f"f{number}", "parent"))
    dying(world, "parent")
    world.do(RequeueJob("parent"))
    ((_, token),) = world.claim("w")
    world.do(CompleteJob("parent", token, None))
    for _ in range(5):
        world.do(AdvanceTime(STEP))
    assert states(world, ["f0", "f1", "f2"]) == [State.CANCELLED] * 3


def test_a_job_with_many_dependants_holds_up_no_other() -> None:
    world = World(version=LINKS_VERSION)
    for parent in ("large", "small"):
        world.do(submit(parent, max_attempts=1))
    for number in range(50):
        world.do(after(f"f{number}", "large"))
    world.do(after("only", "small"))
    for parent in ("large", "small"):
        dying(world, parent)
    world.do(AdvanceTime(STEP))
    assert world.run("only").state == State.CANCELLED
    for _ in range(60):
        world.do(AdvanceTime(STEP))
    assert states(world, [f"f{number}" for number in range(50)]) == [State.CANCELLED] * 50


def test_those_who_wait_for_many_that_end_together_are_told_many_an_entry() -> None:
    """Each of a hundred parents has the same first dependant: it alone was told by an entry."""
    world = World(version=SCHEDULES_VERSION)
    parents = [f"p{number}" for number in range(50)]
    waiting = [f"f{number}" for number in range(60)]
    world.apply(*[submit(parent) for parent in parents])
    world.apply(*[after(job_id, *parents) for job_id in waiting])
    grants = world.claim("w", max_jobs=50)
    world.apply(*[CompleteJob(parents[seq - 1], token, None) for seq, token in grants])
    entries = 0
    while State.PENDING in states(world, waiting):
        world.do(AdvanceTime(1000))
        entries += 1
    assert states(world, waiting) == [State.READY] * 60
    assert entries <= 10, f"{entries}: a thousand words an entry, and three thousand to say"


def test_those_who_are_told_together_are_not_too_many() -> None:
    world = World(version=SCHEDULES_VERSION)
    world.apply(submit("large"), submit("other"))
    world.apply(*[after(f"f{number}", "large") for number in range(200)])
    world.apply(*[after(f"o{number}", "other") for number in range(200)])
    grants = world.claim("w", max_jobs=2)
    world.apply(*[CompleteJob(("large", "other")[seq - 1], token, None) for seq, token in grants])
    world.do(AdvanceTime(1000))
    told = [sum(world.run(f"{kind}{n}").state == State.READY for n in range(200)) for kind in "fo"]
    assert told == [1000 * 7 // 8 // links.TOLD_WEIGHT // 2] * 2, "an eighth is for housekeeping"
