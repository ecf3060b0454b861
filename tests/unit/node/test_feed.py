"""Events: which change is told as what, how long it is kept, and that every kept one can be named."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import msgspec
import pytest
from tests.unit.core.world import World, make_spec, submit

from horae import wire
from horae_node import events
from horae_node import feed as feeds
from horae_node.core.changes import Change
from horae_node.core.commands import (
    AddMember,
    AdvanceTime,
    CancelJob,
    ClaimJobs,
    Command,
    CompleteJob,
    DeleteJob,
    FailJob,
    HeartbeatLease,
    MemberAddress,
    PromoteMember,
    ReleaseJob,
    RemoveMember,
    RequeueJob,
    RunJobNow,
    SetMembers,
    SetQueue,
    SubmitBatch,
)
from horae_node.core.model import LIMITS_VERSION, LINKS_VERSION, Ending, Follower, Links, State
from horae_node.core.tables import linked
from horae_node.errors import NotApplied
from horae_node.events import SILENT, TELLERS
from horae_node.feed import LAST, Feed, Page, Wanted, id_of, place_of

ALL = Wanted()
START = (0, LAST)


class Node:
    """A machine and its feed, without a loop's timers."""

    def __init__(self, kept: int = 1000, version: int = 1) -> None:
        self.behind = 0
        self.world = World(version=version)
        self.feed = self._new_feed(kept, 0)
        self.tokens: dict[str, int] = {}

    def _new_feed(self, kept: int, applied_index: int) -> Feed:
        return Feed(
            view=lambda: self.world.txn, kept=kept, applied_index=applied_index, count_behind=self._count_behind
        )

    def _count_behind(self) -> None:
        self.behind += 1

    def apply(self, *commands: Command) -> int:
        """The entry's index."""
        self.feed.on_entry(self.world.index + 1, self.world.apply(*commands))
        return self.world.index

    def claim(self, worker: str = "w") -> int:
        """Of one job; its token."""
        return self.apply(ClaimJobs(worker, ("default",), 1, None, ""))

    def pass_ms(self, span_ms: int) -> None:
        self.world.pass_ms(span_ms)
        self.apply(AdvanceTime(100))

    async def read(self, after: tuple[int, int] | None = START, wanted: Wanted = ALL) -> list[wire.Event]:
        """All that is there."""
        subscription = self.feed.subscribe(after, wanted)
        found: list[wire.Event] = []
        self.feed.silence_s = 0
        while (page := await subscription.page()) is not None and page.events:
            assert page.behind is None
            found += page.events
        subscription.close()
        return found

    async def told(self, *keys: str) -> list[tuple[Any, ...]]:
        """Type and these keys of all events."""
        return [(event.type, *[getattr(event, key) for key in keys]) for event in await self.read()]


def fail(job_id: str, token: int, *, retry: bool = True) -> FailJob:
    return FailJob(job_id, token, "Error", "it broke", "", retry, None)


def test_every_change_is_told_or_named_as_silent():
    kinds = set(get_args(Change))
    assert kinds == set(TELLERS) | SILENT
    assert not set(TELLERS) & SILENT


def test_every_end_of_a_change_has_its_event():
    """A state or an ending that is new would else end the node at its first apply."""
    assert set(events._BY_STATE) == set(State) - {State.PENDING, State.READY}
    assert set(events._BY_ENDING) == set(Ending) - {Ending.COMPLETE}
    assert set(wire.EVENT_TYPES) >= {*events._BY_STATE.values(), *events._BY_ENDING.values()}


async def test_a_life_that_succeeds():
    node = Node()
    index = node.apply(submit("j"))
    token = node.claim("host-1")
    node.apply(HeartbeatLease("j", token, b"1"))
    node.apply(CompleteJob("j", token, b'"done"'))
    first, second, third = await node.read()
    assert msgspec.to_builtins(first) == {
        "id": f"{index}.0",
        "type": "submitted",
        "at": "1970-01-01T00:16:40.000Z",
        "index": index,
        "job_id": "j",
        "queue": "default",
        "task": "mail.send",
        "state": "ready",
        "attempt": 0,
        "run_at": "1970-01-01T00:16:40.000Z",
    }
    assert (second.type, second.state, second.attempt, second.worker) == ("running", "running", 1, "host-1")
    assert (third.type, third.state, third.attempt, third.worker) == ("succeeded", "succeeded", 1, "host-1")
    assert third.run_at is None


async def test_attempts_that_end_otherwise():
    node = Node()
    node.apply(submit("j", max_attempts=3, timeout_ms=40_000, lease_ms=30_000, max_lost=1))
    node.apply(fail("j", node.claim()))
    node.pass_ms(1000)
    node.apply(ReleaseJob("j", node.claim("gives-back"), 0, None))
    lost = node.claim("dies")
    node.pass_ms(31_000)
    node.apply(fail("j", lost))  # late, and taken
    node.pass_ms(2000)
    token = node.claim("stuck")
    node.pass_ms(20_000)
    node.apply(HeartbeatLease("j", token, None))
    node.pass_ms(20_000)
    node.pass_ms(10_000)
    told = await node.told("state", "attempt", "worker", "dead_reason")
    assert told == [
        ("submitted", "ready", 0, None, None),
        ("running", "running", 1, "w", None),
        ("retrying", "pending", 1, "w", None),
        ("ready", "ready", 1, "w", None),
        ("running", "running", 2, "gives-back", None),
        ("released", "ready", 1, "gives-back", None),
        ("running", "running", 2, "dies", None),
        ("lost", "ready", 2, "dies", None),
        ("retrying", "pending", 2, "dies", None),
        ("ready", "ready", 2, "dies", None),
        ("running", "running", 3, "stuck", None),
        ("dead", "dead", 3, "stuck", "timeout"),
    ]


async def test_an_attempt_that_times_out_waits_for_another():
    node = Node()
    node.apply(submit("j", timeout_ms=1000, lease_ms=30_000))
    node.claim()
    node.pass_ms(2000)
    assert (await node.told("state", "attempt"))[-1] == ("timed_out", "pending", 1)


async def test_a_first_attempt_that_is_handed_back_names_who_did():
    node = Node()
    node.apply(submit("j"))
    node.apply(ReleaseJob("j", node.claim("w1"), 5000, None))
    assert (await node.told("state", "attempt", "worker"))[-1] == ("released", "pending", 0, "w1")


async def test_what_operators_do():
    node = Node()
    node.apply(submit("j", delay_ms=60_000), submit("k", delay_ms=1000), submit("x", expires_at_ms=1_000_500))
    node.apply(RunJobNow("j"))
    token = node.claim()
    node.apply(CancelJob("j"))
    node.apply(CancelJob("j"))  # once more: nothing changes
    node.apply(fail("j", token))
    node.apply(CancelJob("k"))
    node.apply(RequeueJob("k"))
    node.apply(fail("k", node.claim(), retry=False))
    node.apply(DeleteJob("k"))
    node.pass_ms(1000)
    told = await node.told("job_id", "state")
    assert [one for one in told if one[0] != "submitted"] == [
        ("ready", "j", "ready"),
        ("running", "j", "running"),
        ("cancel_requested", "j", "running"),
        ("cancelled", "j", "cancelled"),
        ("cancelled", "k", "cancelled"),
        ("requeued", "k", "ready"),
        ("running", "k", "running"),
        ("dead", "k", "dead"),
        ("removed", "k", "dead"),
        ("expired", "x", "expired"),
    ]


async def test_jobs_after_others_and_a_job_that_a_success_brings_forth():
    node = Node(version=LINKS_VERSION)
    first = submit("a")
    node.apply(first._replace(spec=linked(first.spec, Links((), 0, Follower(make_spec("then"), 0, b"")))))
    for job_id, delay_ms in (("b", 0), ("c", 60_000)):
        job = submit(job_id, delay_ms=delay_ms)
        node.apply(job._replace(spec=linked(job.spec, Links(("a",), 0, None))))
    node.apply(CompleteJob("a", node.claim(), None))
    node.pass_ms(1)
    told = await node.told("job_id", "state")
    assert told[-4:] == [
        ("succeeded", "a", "succeeded"),
        ("submitted", "then", "ready"),
        ("ready", "b", "ready"),
        ("freed", "c", "pending"),
    ]


async def test_queues_and_members():
    node = Node(version=LIMITS_VERSION)
    node.apply(SetQueue("mail", (("paused", True),)))
    node.apply(SetMembers(tuple(MemberAddress(name, f"{name}:1", f"http://{name}:2") for name in ("n1", "n2", "n3"))))
    node.apply(AddMember("n4", "n4:1", "http://n4:2"))
    node.apply(PromoteMember("n4"))
    node.apply(RemoveMember("n1"))
    told = await node.told("queue", "node", "standing", "job_id", "state")
    assert told[0] == ("queue_changed", "mail", None, None, None, None)
    assert [one[2:4] for one in told[1:]] == [
        ("n1", "voter"),
        ("n2", "voter"),
        ("n3", "voter"),
        ("n4", "learner"),
        ("n4", "voter"),
        ("n1", "removed"),
    ]
    assert {one[0] for one in told[1:]} == {"members_changed"}


async def test_ids_are_the_entry_and_the_place_in_it():
    node = Node()
    index = node.apply(SubmitBatch(tuple(submit(f"j{n}") for n in range(3))), submit("k"))
    assert [(event.id, event.job_id) for event in await node.read()] == [
        (f"{index}.0", "j0"),
        (f"{index}.1", "j1"),
        (f"{index}.2", "j2"),
        (f"{index}.3", "k"),
    ]
    assert [event.job_id for event in await node.read((index, 1))] == ["j2", "k"]
    assert await node.read((index, LAST)) == []
    assert place_of(f"{index}.1") == (index, 1)
    assert (place_of("12"), id_of((12, LAST))) == ((12, LAST), "12")


async def test_the_ring_is_bounded_and_tells_what_is_not_there_any_more():
    node = Node(kept=3)
    indexes = [node.apply(submit(f"j{n}")) for n in range(8)]
    subscription = node.feed.subscribe(START, ALL)
    page = await subscription.page()
    assert isinstance(page, Page)
    assert page.behind == wire.FellBehind(f"{indexes[4]}.0", "fell_behind", "0", f"{indexes[5]}.0")
    assert [event.job_id for event in page.events] == ["j5", "j6", "j7"]
    assert node.behind == 1
    for n in range(4):  # and once more, while it was not read
        node.apply(submit(f"k{n}"))
    page = await subscription.page()
    assert page is not None
    assert page.behind is not None
    assert page.behind.after == f"{indexes[7]}.0"
    assert [event.job_id for event in page.events] == ["k1", "k2", "k3"]
    assert node.behind == 2
    assert [event.job_id for event in await node.read((indexes[7] + 1, 0))] == ["k1", "k2", "k3"], "that is enough"


async def test_what_is_kept_can_be_named_though_its_job_is_gone():
    node = Node(kept=7)
    for n in range(20):
        job_id = f"j{n}"
        node.apply(submit(job_id, task=f"t{n}"))
        node.apply(CompleteJob(job_id, node.claim(), None))
        node.apply(DeleteJob(job_id))
        subscription = node.feed.subscribe(START, ALL)
        page = await subscription.page()
        subscription.close()
        assert page is not None
        assert [(event.job_id, event.task) for event in page.events[-4:]] == [(job_id, f"t{n}")] * 4
        assert all(event.job_id and event.task for event in page.events)
    assert len(node.feed.ring.names) == 2, "no more names than removals"


async def test_nothing_large_is_kept():
    node = Node()
    node.apply(submit("j", payload=b'"' + b"x" * 100_000 + b'"'))
    token = node.claim()
    node.apply(CompleteJob("j", token, b'"' + b"y" * 100_000 + b'"'))
    for number in range(node.feed.ring.end):
        values = node.feed.ring.at(number)
        assert type(values) is tuple
        assert all(isinstance(value, int | str) and len(str(value)) <= 200 for value in values)


async def test_an_installed_snapshot_is_a_gap():
    node = Node()
    node.apply(submit("j"))
    subscription = node.feed.subscribe(START, ALL)
    node.feed.on_install(50)
    page = await subscription.page()
    assert page == Page(wire.FellBehind("50", "fell_behind", "0", None), [], "50")


async def test_a_node_that_starts_with_a_state_tells_what_comes_after_it():
    node = Node()
    assert node._new_feed(10, 1).ring.floor == START, "an empty log: nothing was missed"
    later = node._new_feed(10, 20)
    subscription = later.subscribe((19, LAST), ALL)
    page = await subscription.page()
    assert page is not None
    assert page.behind == wire.FellBehind("20", "fell_behind", "19", None)
    assert subscription.resume == "20"


async def test_filters():
    node = Node(version=LIMITS_VERSION)
    node.apply(submit("a", queue="mail"), submit("b"))
    node.apply(SetMembers((MemberAddress("n1", "n1:1", "http://n1:2"),)))
    node.apply(CancelJob("a"), CancelJob("b"))
    of_mail = await node.read(START, Wanted(None, frozenset({"mail", "other"})))
    assert [(event.type, event.job_id) for event in of_mail] == [("submitted", "a"), ("cancelled", "a")]
    ends = await node.read(START, Wanted(frozenset({"cancelled", "dead"}), None))
    assert [event.job_id for event in ends] == ["a", "b"]


async def test_without_a_place_it_begins_now_and_a_place_to_come_is_waited_for():
    node = Node()
    node.apply(submit("before"))
    now = node.feed.subscribe(None, ALL)
    ahead = node.feed.subscribe((node.world.index + 2, 0), ALL)
    for name in ("one", "two", "three"):
        node.apply(submit(name))
    pages = await now.page(), await ahead.page()
    assert [[event.job_id for event in page.events] for page in pages if page] == [["one", "two", "three"], ["three"]]


async def test_who_waits_is_woken_once_for_many_entries():
    node = Node()
    subscription = node.feed.subscribe(None, ALL)
    reading = asyncio.create_task(subscription.page())
    await asyncio.sleep(0)
    assert node.feed._news is not None
    for n in range(100):
        node.apply(submit(f"j{n}"))
    assert node.feed._news is None, "nobody else is to be woken"
    page = await reading
    assert page is not None
    assert len(page.events) == 100


async def test_an_entry_without_events_wakes_nobody():
    node = Node()
    reading = asyncio.create_task(node.feed.subscribe(None, ALL).page())
    await asyncio.sleep(0)
    news = node.feed._news
    node.apply(AdvanceTime(10))
    assert node.feed._news is news
    reading.cancel()


async def test_in_silence_the_reader_is_given_its_place():
    node = Node()
    node.feed.silence_s = 0.01
    subscription = node.feed.subscribe(None, ALL)
    index = node.apply(AdvanceTime(10))
    page = await subscription.page()
    assert page == Page(None, [], str(index)), "though it had no event"


async def test_who_wants_nothing_of_much_is_given_its_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "MARK_LOOKS", 50)
    node = Node()
    subscription = node.feed.subscribe(START, Wanted(frozenset({"dead"})))
    for n in range(60):
        node.apply(submit(f"j{n}"))
    page = await subscription.page()
    assert page == Page(None, [], f"{node.world.index}.0")


async def test_large_payloads_and_many_events_are_read_in_pages():
    node = Node()
    node.apply(*[submit(f"j{n}", payload=b'"' + b"x" * 250_000 + b'"') for n in range(8)])
    node.apply(*[submit(f"k{n}") for n in range(feeds.PAGE_EVENTS_MAX)])
    subscription = node.feed.subscribe(START, ALL)
    pages = [page for _ in range(3) if (page := await subscription.page()) is not None]
    assert [len(page.events) for page in pages] == [5, feeds.PAGE_EVENTS_MAX, 3]


async def test_subscribers_are_bounded_and_end_with_the_feed():
    node = Node()
    held = [node.feed.subscribe(None, ALL) for _ in range(feeds.SUBSCRIBERS_MAX)]
    with pytest.raises(NotApplied, match="rate_limited"):
        node.feed.subscribe(None, ALL)
    held[0].close()
    held[0].close()
    node.feed.subscribe(None, ALL)
    reading = asyncio.create_task(held[1].page())
    await asyncio.sleep(0)
    node.feed.close()
    assert await reading is None
    assert await held[2].page() is None
    with pytest.raises(NotApplied, match="shutting_down"):
        node.feed.subscribe(None, ALL)
