"""A token that is held to queues meets nothing of another tenant's that came to be while its call was under way.

The inside is the real one, over a consensus that stores nothing until it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest
from tests.helpers.one_node import OneNode, settle
from tests.unit.http.conftest import Got, Node, StartNode

from horae_http.auth import Tokens
from horae_node.config import TokenRule
from horae_node.core.commands import RaiseMachineVersion
from horae_node.core.model import SCHEDULES_VERSION
from horae_node.core.tables import TOMBSTONE_MS

ROLES = ("read", "submit", "work")
TOKENS = Tokens(TokenRule(sha256(name.encode()).hexdigest(), ROLES, (name,)) for name in ("a", "b"))
SECRET = {"task": "t", "queue": "a", "id": "j", "payload": {"secret": 1}}
RULE = {"every_seconds": 3600, "job": {"task": "t", "queue": "a", "payload": "secret"}}
OTHERS = {"every_seconds": 3600, "job": {"task": "evil", "queue": "b"}}
LEASE = {"job_id": "j", "lease_token": 4}


class House:
    """One node for two tenants, whose tokens are called as their queues."""

    def __init__(self, inside: OneNode, node: Node) -> None:
        self.inside = inside
        self._node = node

    async def send(self, tenant: str, method: str, path: str, body: Any = None) -> Got:
        return await self._node.send(method, path, body, Authorization=f"Bearer {tenant}")

    async def stores(self) -> None:
        """What is under way is stored, and from now on all that comes."""
        self.inside.raft.hold = False
        self.inside.raft.commit_all()
        await settle()

    async def meet(self, first: Awaitable[Got], second: Awaitable[Got]) -> tuple[Got, Got]:
        """The second comes while the first is under way."""
        self.inside.raft.hold = True
        entries = len(self.inside.raft.entries)
        earlier = asyncio.ensure_future(first)
        while len(self.inside.raft.entries) == entries:  # noqa: ASYNC110 (the fake tells nobody)
            await asyncio.sleep(0)
        later = asyncio.ensure_future(second)
        while not later.done() and not self.inside.proposer.queued_commands:  # noqa: ASYNC110 (as above)
            await asyncio.sleep(0)
        await self.stores()
        return await earlier, await later


@pytest.fixture
async def house(start_node: StartNode) -> House:
    inside = await OneNode().open()
    inside.proposer.send([RaiseMachineVersion(SCHEDULES_VERSION)])
    await settle()
    return House(inside, await start_node(inside.service, TOKENS))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/jobs/j/cancel", None),
        ("POST", "/v1/jobs/j/requeue", None),
        ("POST", "/v1/jobs/j/run_now", None),
        ("DELETE", "/v1/jobs/j", None),
        ("POST", "/v1/jobs/j/complete", {"lease_token": 4}),
        ("POST", "/v1/jobs/j/fail", {"lease_token": 4, "error": {}}),
        ("POST", "/v1/jobs/j/release", {"lease_token": 4}),
    ],
)
async def test_a_job_that_comes_to_be_meanwhile_is_not_met(house: House, method: str, path: str, body: Any) -> None:
    """A cancel by its guessed id passed the check of the queue, and was answered 200 with the other's payload."""
    made, got = await house.meet(house.send("a", "POST", "/v1/jobs", SECRET), house.send("b", method, path, body))
    assert made.status == 201
    assert (got.status, got.json["code"]) == (404, "not_found")
    assert (await house.send("a", "GET", "/v1/jobs/j")).json["state"] == "ready"


async def test_many_jobs_are_missed_one_by_one(house: House) -> None:
    leases = {"worker": "w", "leases": [LEASE]}
    _, got = await house.meet(
        house.send("a", "POST", "/v1/jobs", SECRET), house.send("b", "POST", "/v1/leases/heartbeat", leases)
    )
    assert (got.status, [lease["status"] for lease in got.json["leases"]]) == (200, ["lost"])
    own = (await house.send("b", "POST", "/v1/jobs", {"task": "t", "queue": "b"})).json["id"]
    token = (await house.send("b", "POST", "/v1/claims", {"worker": "w", "queues": ["b"]})).json["jobs"][0][
        "lease_token"
    ]
    ends = [LEASE | {"job_id": "none", "outcome": "complete"}]
    ends.append({"job_id": own, "lease_token": token, "outcome": "complete"})
    got = await house.send("b", "POST", "/v1/leases/complete", {"worker": "w", "leases": ends})
    assert [lease.get("state", lease.get("error", {}).get("code")) for lease in got.json["leases"]] == [
        "not_found",
        "succeeded",
    ]


async def test_nothing_is_asked_after_that_is_not_known_to_be_ones_own(house: House) -> None:
    child = {"task": "t", "queue": "b", "after": ["j"]}
    _, got = await house.meet(house.send("a", "POST", "/v1/jobs", SECRET), house.send("b", "POST", "/v1/jobs", child))
    assert (got.status, got.pointers) == (422, ["/after/0"])
    got = await house.send("b", "POST", "/v1/jobs", child)
    assert (got.status, got.pointers) == (403, ["/after/0"])


@pytest.mark.parametrize("batch", [False, True])
async def test_nothing_is_asked_after_whose_record_is_gone(house: House, batch: bool) -> None:
    """Nobody knows any more whose it was: what became of another's job came out by whether the child ran."""
    await house.send("a", "POST", "/v1/jobs", SECRET)
    await house.send("a", "POST", "/v1/jobs/j/cancel")
    assert (await house.send("a", "DELETE", "/v1/jobs/j")).status == 204
    child = {"task": "t", "queue": "b", "after": ["j"]}
    if batch:
        jobs = {"jobs": [{"task": "t", "queue": "b", "id": "j"}, child], "atomic": False}
        results = (await house.send("b", "POST", "/v1/jobs/batch", jobs)).json["results"]
        assert [item["error"]["code"] for item in results] == ["conflict", "invalid"]
    else:
        got = await house.send("b", "POST", "/v1/jobs", child)
        assert (got.status, got.pointers) == (422, ["/after/0"])


async def test_the_repeat_of_a_submit_is_answered_though_all_records_are_gone(house: House) -> None:
    parent, child = ({"task": "t", "queue": "b", "id": name} for name in ("p", "c"))
    child |= {"after": ["p"], "on_failure": "run"}
    for job in (parent, child):
        assert (await house.send("b", "POST", "/v1/jobs", job)).status == 201
    for name in ("p", "c"):
        await house.send("b", "POST", f"/v1/jobs/{name}/cancel")
        assert (await house.send("b", "DELETE", f"/v1/jobs/{name}")).status == 204
    assert (await house.send("b", "POST", "/v1/jobs", child)).status == 200
    await house.inside.pass_ms(TOMBSTONE_MS - 1)
    got = await house.send("b", "POST", "/v1/jobs", child)
    assert (got.status, got.pointers) == (422, ["/after/0"]), "its id may be free in a moment"


async def test_jobs_of_one_batch_wait_for_each_other(house: House) -> None:
    jobs = [{"task": "t", "queue": "b", "id": "p"}, {"task": "t", "queue": "b", "after": ["p"]}]
    for atomic in (False, True):
        got = await house.send("b", "POST", "/v1/jobs/batch", {"jobs": jobs, "atomic": atomic})
        assert [item["job"]["queue"] for item in got.json["results"]] == ["b", "b"]


async def test_a_claim_id_is_its_tenants_own(house: House) -> None:
    """The jobs of the other tenant came back, with their payloads and tokens."""
    await house.send("a", "POST", "/v1/jobs", SECRET)
    claim = {"worker": "w", "claim_id": "c"}
    first = (await house.send("a", "POST", "/v1/claims", claim | {"queues": ["a"]})).json["jobs"]
    assert [job["id"] for job in first] == ["j"]
    assert (await house.send("b", "POST", "/v1/claims", claim | {"queues": ["b"]})).json["jobs"] == []
    again = (await house.send("a", "POST", "/v1/claims", claim | {"queues": ["a"]})).json["jobs"]
    assert [job["lease_token"] for job in again] == [job["lease_token"] for job in first]


# ---------------------------------------------------------------- schedules


async def test_a_schedule_that_comes_to_be_meanwhile_is_not_replaced(house: House) -> None:
    made, got = await house.meet(
        house.send("a", "PUT", "/v1/schedules/s", RULE), house.send("b", "PUT", "/v1/schedules/s", OTHERS)
    )
    assert (made.status, got.status, got.json["code"]) == (201, 403, "forbidden")
    assert (await house.send("a", "GET", "/v1/schedules/s")).json["job"]["task"] == "t"


async def test_a_held_token_replaces_what_is_its_own(house: House) -> None:
    made, got = await house.meet(
        house.send("b", "PUT", "/v1/schedules/s", OTHERS),
        house.send("b", "PUT", "/v1/schedules/s", OTHERS | {"every_seconds": 60}),
    )
    assert (made.status, got.status) == (201, 200), "it is looked at again, and is its own"
    assert (await house.send("b", "PUT", "/v1/schedules/s", OTHERS)).status == 200
    assert (await house.send("b", "PUT", "/v1/schedules/s", OTHERS)).json["version"]


@pytest.mark.parametrize(("header", "value"), [("If_Match", "*"), ("If_Match", '"7"'), ("If_None_Match", "*")])
async def test_the_callers_own_guard_holds_as_well(house: House, header: str, value: str) -> None:
    async def put() -> Got:
        node = house._node
        return await node.send("PUT", "/v1/schedules/s", OTHERS, **{header: value}, Authorization="Bearer b")

    made, got = await house.meet(house.send("a", "PUT", "/v1/schedules/s", RULE), put())
    assert (made.status, got.status, got.json["code"]) == (201, 412, "version")
    assert (await put()).status == 403


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/trigger", None),
        ("POST", "/backfill", {"from": "2023-01-01T00:00:00Z", "to": "2023-01-02T00:00:00Z"}),
        ("GET", "/triggers", None),
        ("GET", "/next", None),
    ],
)
async def test_a_schedule_that_is_not_there_yet_is_missed_at_once(
    house: House, method: str, path: str, body: Any
) -> None:
    path = f"/v1/schedules/s{path}"
    made, got = await house.meet(house.send("a", "PUT", "/v1/schedules/s", RULE), house.send("b", method, path, body))
    assert (made.status, got.status) == (201, 404)
    assert (await house.send("b", method, path, body)).status == 403


async def test_a_reading_looks_whose_it_is_once_it_is_read(house: House) -> None:
    """The ledger was asked for before the other's schedule was there, and read after."""
    calls: list[Callable[[], Awaitable[Got]]] = [
        lambda: house.send("b", "GET", "/v1/schedules/s/triggers"),
        lambda: house.send("b", "GET", "/v1/schedules/s/next"),
    ]
    barrier = house.inside.raft.read_barrier
    for call in calls:

        async def slow() -> int:
            """What comes while the leader makes sure that it leads."""
            await house.send("a", "PUT", "/v1/schedules/s", RULE)
            return await barrier()

        await house.send("a", "DELETE", "/v1/schedules/s")
        house.inside.raft.read_barrier = slow  # type: ignore[method-assign]
        got = await call()
        house.inside.raft.read_barrier = barrier  # type: ignore[method-assign]
        assert (got.status, got.json["code"]) == (403, "forbidden")
