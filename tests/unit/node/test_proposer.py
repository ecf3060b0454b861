"""Commands that wait leave in one entry; each call gets its own outcomes; what is refused or unknown says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.helpers.fake_raft import FakeRaft
from tests.helpers.one_node import settle

from horae_node import codec, proposer
from horae_node.clock import ManualClock
from horae_node.core.commands import ENTRY_VERSION, AdvanceTime, Command, CompleteJob, Header, Nothing
from horae_node.core.results import Advanced, Done, EntryOutcome, Outcome, Rejected
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.proposer import Plan, Proposer
from horae_node.raft.port import ENTRY_BYTES_MAX, SnapshotInfo


class Echo:
    """A state machine whose outcome names the command's number."""

    applied_index = 1
    durable_index = 1
    roster = None
    known_versions = (1, 1)

    def apply(self, index: int, entry: bytes) -> EntryOutcome:
        self.applied_index = index
        _, commands = codec.split_entry(entry)
        return EntryOutcome(tuple(map(self.outcome, commands)), (), ())

    def outcome(self, command: Command) -> Outcome:
        return Advanced(command.limit, False) if isinstance(command, AdvanceTime) else Done(7)

    async def take_snapshot(self, path: Path, term_of: Callable[[int], int]) -> SnapshotInfo:
        raise AssertionError("not asked for")

    async def check_snapshot(self, snapshot: SnapshotInfo) -> None:
        raise AssertionError("not asked for")

    def install_snapshot(self, snapshot: SnapshotInfo) -> None:
        raise AssertionError("not asked for")


class Stale(Echo):
    def outcome(self, command: Command) -> Outcome:
        return Rejected("stale_epoch", "epoch 2 has begun")


class PlainSession:
    """Leads, adds nothing."""

    open = True
    moved: Mapping[str, int] = {}

    def header(self) -> Header:
        return Header(ENTRY_VERSION, 1, 0, 0)

    def moved_bytes(self, command: Command) -> int:
        return self.moved.get(command.job_id, 0) if isinstance(command, CompleteJob) else 0

    def plan(self, header: Header, due_now: dict[str, int]) -> Plan:
        return Plan([], [])


def make(machine: Echo | None = None, *, hold: bool = False) -> tuple[Proposer, FakeRaft, PlainSession]:
    raft = FakeRaft(machine or Echo(), hold=hold)
    made = Proposer(raft, ManualClock(), lambda span_ms: None, codec.OwnEntries())
    session = PlainSession()
    made.attach(session)
    return made, raft, session


def numbers(entry: bytes) -> list[int]:
    return [command.limit for command in codec.split_entry(entry)[1] if isinstance(command, AdvanceTime)]


async def test_what_waits_leaves_in_one_entry_and_each_call_gets_its_own() -> None:
    made, raft, _ = make()
    calls = [made.run([AdvanceTime(10 * i), AdvanceTime(10 * i + 1)]) for i in range(5)]
    results = await asyncio.gather(*calls)
    assert len(raft.entries) == 1
    assert results == [[Advanced(10 * i, False), Advanced(10 * i + 1, False)] for i in range(5)]


async def test_what_comes_while_an_entry_is_under_way_gathers_for_the_next() -> None:
    made, raft, _ = make(hold=True)
    calls: list[asyncio.Task[Outcome]] = []
    for i in range(6):
        calls.append(asyncio.create_task(made.run_one(AdvanceTime(i))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(raft.entries) == 1
    raft.hold = False
    raft.commit_all()
    assert await asyncio.gather(*calls) == [Advanced(i, False) for i in range(6)]
    assert numbers(raft.entries[1]) == [1, 2, 3, 4, 5]


async def test_endings_leave_before_what_else_waits() -> None:
    """Behind thousands of submits a heartbeat waited four seconds, and its lease might have run out."""
    made, raft, _ = make(hold=True)
    under_way = asyncio.create_task(made.run_one(AdvanceTime(0)))
    await settle()
    submits = asyncio.create_task(made.run([AdvanceTime(1), AdvanceTime(2)]))
    await settle()
    ending = asyncio.create_task(made.run([AdvanceTime(3), AdvanceTime(4)], ending=True))
    await settle()
    raft.hold = False
    raft.commit_all()
    assert await ending == [Advanced(3, False), Advanced(4, False)]
    assert await submits == [Advanced(1, False), Advanced(2, False)]
    assert await under_way == Advanced(0, False)
    assert numbers(raft.entries[1]) == [3, 4, 1, 2]


async def test_when_leadership_is_lost_endings_that_wait_are_told_too() -> None:
    made, raft, _ = make(hold=True)
    under_way = asyncio.create_task(made.run_one(AdvanceTime(0)))
    await settle()
    ending = asyncio.create_task(made.run_one(AdvanceTime(1), ending=True))
    await settle()
    made.fail_queued(NotApplied("no_leader", "gone"))
    with pytest.raises(NotApplied):
        await ending
    assert made.queued_commands == 0
    raft.commit_all()
    await under_way


async def test_large_calls_do_not_wait_for_each_other_up_to_a_bound() -> None:
    made, raft, _ = make(hold=True)
    calls: list[asyncio.Task[Outcome]] = []
    for _ in range(proposer.IN_FLIGHT_MAX + 2):
        calls.append(asyncio.create_task(made.run_one(CompleteJob("j", 1, b"x" * proposer.ALONE_BYTES_MAX))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(raft.entries) == proposer.IN_FLIGHT_MAX
    raft.hold = False
    raft.commit_all()
    assert await asyncio.gather(*calls) == [Done(7)] * len(calls)
    assert len(raft.entries) == proposer.IN_FLIGHT_MAX + 1


async def test_an_entry_is_bounded_by_the_specs_that_its_commands_move() -> None:
    """A thousand completions of 11 KB made followers of 250 MiB in one entry, and cost the lead."""
    made, raft, session = make()
    session.moved = {"large": proposer.GATHERED_BYTES_MAX * proposer.MOVED_PER_BYTE // 3}
    results = await made.run([CompleteJob("large", 1, None) for _ in range(20)])
    assert results == [Done(7)] * 20
    sizes = [len(codec.split_entry(entry)[1]) for entry in raft.entries]
    assert sizes == [2] * 10
    await made.run([CompleteJob("small", 1, None) for _ in range(20)])
    assert len(raft.entries) == 11


async def test_a_large_call_is_cut_and_its_outcomes_stay_in_order() -> None:
    made, raft, _ = make()
    text = b"x" * 200_000
    commands: list[Command] = [CompleteJob("j", 1, text) for _ in range(12)]
    results = await made.run([*commands, AdvanceTime(99)])
    assert results == [Done(7)] * 12 + [Advanced(99, False)]
    assert all(len(entry) <= 1 << 20 for entry in raft.entries)
    assert len(raft.entries) > 2


async def test_loss_of_leadership_is_unknown_for_what_left_and_definite_for_what_did_not() -> None:
    made, raft, session = make(hold=True)
    left = [asyncio.create_task(made.run_one(AdvanceTime(i))) for i in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    blocked = [asyncio.create_task(made.run_one(Nothing())) for _ in range(3)]
    await asyncio.sleep(0)
    assert len(raft.entries) == 1
    session.open = False
    made.fail_queued(NotApplied("no_leader", "gone"))
    raft.lose_leadership()
    ends = await asyncio.gather(*left, *blocked, return_exceptions=True)
    assert [type(end) for end in ends] == [OutcomeUnknown] * 2 + [NotApplied] * 3
    with pytest.raises(NotApplied):
        await made.run_one(Nothing())


async def test_an_entry_of_a_past_epoch_is_definitely_not_applied() -> None:
    made, _, _ = make(Stale())
    with pytest.raises(NotApplied) as caught:
        await made.run_one(Nothing())
    assert caught.value.code == "no_leader"


async def test_a_caller_that_hung_up_disturbs_nobody_in_its_entry() -> None:
    made, raft, _ = make(hold=True)
    gone = asyncio.create_task(made.run_one(AdvanceTime(1)))
    stays = asyncio.create_task(made.run_one(AdvanceTime(2)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    raft.commit_all()
    assert await stays == Advanced(2, False)
    assert gone.cancelled()


class Greedy(PlainSession):
    """Adds a large claim to every entry that has something in it."""

    def __init__(self, made: Proposer) -> None:
        self._made = made

    def plan(self, header: Header, due_now: dict[str, int]) -> Plan:
        claims = [self._made.chunk(CompleteJob("j", 1, b"y" * 100_000)) for _ in range(12)] if due_now else []
        return Plan([], claims)


async def test_what_a_session_adds_never_makes_an_entry_too_long() -> None:
    made, raft, _ = make()
    made.attach(Greedy(made))
    results = await made.run([CompleteJob("j", 1, b"x" * 500_000) for _ in range(4)])
    assert results == [Done(7)] * 4
    outcome = await made.run_one(CompleteJob("j", 1, b"x" * (proposer.DATA_BYTES_MAX - 100)), {"q": 1})
    assert outcome == Done(7)
    assert all(len(entry) <= ENTRY_BYTES_MAX for entry in raft.entries)
    assert sum(len(codec.split_entry(entry)[1]) for entry in raft.entries) == 4 + 1 + 12


async def test_a_command_beyond_an_entry_is_refused_wherever_it_stands() -> None:
    made, raft, _ = make()
    huge = CompleteJob("j", 1, b"x" * ENTRY_BYTES_MAX)
    for commands in ([huge], [Nothing(), huge], [huge, Nothing()]):
        with pytest.raises(NotApplied) as caught:
            await made.run(commands)
        assert caught.value.code == "too_large"
    assert raft.entries == []


async def test_while_no_majority_stores_anything_every_call_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "COMMIT_DEADLINE_MS", 5)
    made, raft, _ = make(hold=True)
    under_way = asyncio.create_task(made.run_one(Nothing()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    behind = asyncio.create_task(made.run_one(Nothing()))
    ends = await asyncio.gather(under_way, behind, return_exceptions=True)
    assert [type(end) for end in ends] == [OutcomeUnknown, NotApplied], "what left is unknown, what did not is definite"
    with pytest.raises(NotApplied) as caught:
        await made.run_one(Nothing())
    assert caught.value.code == "rate_limited"
    made.send([Nothing()])  # by the leader's own tasks, which must outlive it
    raft.commit_all()
    raft.hold = False
    await asyncio.sleep(0)
    assert await made.run_one(Nothing()) == Done(7)


async def test_what_is_kept_waits_out_an_entry_that_is_overdue_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposer, "COMMIT_DEADLINE_MS", 5)
    monkeypatch.setattr(proposer, "KEPT_COMMANDS_MAX", 3)
    made, raft, _ = make(hold=True)
    under_way = asyncio.create_task(made.run_one(Nothing()))
    await settle()
    behind = asyncio.create_task(made.run_one(AdvanceTime(9)))
    await settle()
    made.send_kept([AdvanceTime(0), AdvanceTime(1)])
    ends = await asyncio.gather(under_way, behind, return_exceptions=True)
    assert [type(end) for end in ends] == [OutcomeUnknown, NotApplied]
    assert made.queued_commands == 2
    made.send_kept([AdvanceTime(2), AdvanceTime(3)])
    made.send_kept([AdvanceTime(4)])
    assert len(raft.entries) == 1
    raft.hold = False
    raft.commit_all()
    await made.wait_idle()
    assert numbers(raft.entries[1]) == [0, 1, 4]
    assert made.queued_commands == 0


async def test_nothing_is_kept_for_a_leader_that_lost_the_lead() -> None:
    made, raft, session = make(hold=True)
    under_way = asyncio.create_task(made.run_one(Nothing()))
    await settle()
    made.send_kept([AdvanceTime(0)])
    session.open = False
    made.fail_queued(NotApplied("no_leader", "gone"))
    made.send_kept([AdvanceTime(1)])
    raft.commit_all()
    await under_way
    await made.wait_idle()
    assert (len(raft.entries), made.queued_commands) == (1, 0)
