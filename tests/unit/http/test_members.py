"""The calls that change members and leader: status, bodies, roles; and what a removed node answers."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.unit.http.conftest import Node, StartNode

from horae_http.auth import Tokens
from horae_node.config import TokenRule
from horae_node.errors import Refused

N4 = {"node": "n4", "raft_address": "n4:7071", "http_url": "http://n4:7070"}
PLACE = {"raft_address": "n4:7071", "http_url": "http://n4:7070"}


@pytest.mark.parametrize(
    ("name", "query", "status", "standing"),
    [("n4", "", 200, "voter"), ("slow", "", 202, "learner"), ("n4", "?wait_seconds=0", 202, "learner")],
)
async def test_a_node_is_added(node: Node, name: str, query: str, status: int, standing: str) -> None:
    got = await node.send("POST", f"/v1/cluster/members{query}", N4 | {"node": name})
    assert (got.status, got.json) == (status, {"node": name, "standing": standing, "connected": True})
    assert node.service.last().raft_address == "n4:7071"


async def test_a_node_is_removed(node: Node) -> None:
    got = await node.send("DELETE", "/v1/cluster/members/n%34")
    assert (got.status, got.json) == (200, {"node": "n4", "standing": "removed", "connected": None})
    assert node.service.calls == [("remove_member", "n4")]


async def test_a_node_is_moved(node: Node) -> None:
    got = await node.send("PATCH", "/v1/cluster/members/n4", PLACE)
    assert (got.status, got.json) == (200, {"node": "n4", "standing": "voter", "connected": None})


async def test_the_lead_is_handed_over(node: Node) -> None:
    got = await node.send("POST", "/v1/cluster/leader", {"node": "n2"})
    assert (got.status, got.json) == (200, {"leader": "n2", "leader_url": None})


@pytest.mark.parametrize(
    ("method", "path", "body", "pointer"),
    [
        ("POST", "/v1/cluster/members", N4 | {"node": "-"}, "/node"),
        ("POST", "/v1/cluster/members", PLACE, "/node"),
        ("POST", "/v1/cluster/members", N4 | {"url": "x"}, "/url"),
        ("PATCH", "/v1/cluster/members/n4", N4, "/node"),
        ("POST", "/v1/cluster/leader", {}, "/node"),
    ],
)
async def test_a_wrong_body_is_refused_by_its_place(
    node: Node, method: str, path: str, body: dict[str, str], pointer: str
) -> None:
    got = await node.send(method, path, body)
    assert got.status == 422
    assert [error["pointer"] for error in got.json["errors"]] == [pointer]
    assert node.service.calls == []


async def test_a_refusal_says_why(node: Node) -> None:
    node.service.failures = [Refused("conflict", "another change is under way: n5 is being added")]
    got = await node.send("POST", "/v1/cluster/members", N4)
    assert (got.status, got.json["code"]) == (409, "conflict")
    assert "n5 is being added" in got.json["detail"]


async def test_other_methods_are_named(node: Node) -> None:
    got = await node.send("GET", "/v1/cluster/members/n4")
    assert (got.status, got.headers["Allow"]) == (405, "DELETE, PATCH")


async def test_a_token_held_to_queues_changes_nothing(start_node: StartNode) -> None:
    digest = sha256(b"secret").hexdigest()
    node = await start_node(tokens=Tokens((TokenRule(digest, ("admin",), ("mail",)),)))
    got = await node.send("DELETE", "/v1/cluster/members/n4", Authorization="Bearer secret")
    assert (got.status, got.json["code"]) == (403, "forbidden")


async def test_a_removed_node_serves_nothing_and_says_why(node: Node) -> None:
    node.service.removed = True
    node.service.ready_answer = (False, "this node was removed from the cluster")
    for method, path in (("GET", "/v1/jobs"), ("GET", "/v1/cluster?consistency=local"), ("POST", "/v1/claims")):
        got = await node.send(method, path)
        assert (got.status, got.json["code"]) == (503, "removed")
    got = await node.send("GET", "/readyz")
    assert (got.status, got.json["why"]) == (503, "this node was removed from the cluster")
    assert (await node.send("GET", "/healthz")).status == 200
