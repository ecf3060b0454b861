"""The published contract: valid, complete, and the same as what the server does."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tests.unit.http.conftest import Node

from horae import wire

# What docs/contract.md names of this version's calls.
SCHEDULE = "/v1/schedules/{id}"
PUBLISHED = {
    ("put", SCHEDULE),
    ("get", SCHEDULE),
    ("delete", SCHEDULE),
    ("get", "/v1/schedules"),
    ("post", "/v1/schedules/preview"),
    *(("post", f"{SCHEDULE}/{verb}") for verb in ("pause", "resume", "trigger", "backfill")),
    *(("get", f"{SCHEDULE}/{noun}") for noun in ("triggers", "next")),
    ("post", "/v1/jobs"),
    ("get", "/v1/jobs"),
    ("post", "/v1/jobs/batch"),
    ("get", "/v1/jobs/{id}"),
    ("delete", "/v1/jobs/{id}"),
    ("post", "/v1/jobs/{id}/cancel"),
    ("post", "/v1/jobs/cancel"),
    ("post", "/v1/jobs/requeue"),
    ("get", "/v1/queues"),
    ("get", "/v1/workers"),
    ("get", "/v1/events"),
    ("get", "/v1/queues/{id}"),
    ("patch", "/v1/queues/{id}"),
    ("post", "/v1/jobs/{id}/requeue"),
    ("post", "/v1/jobs/{id}/run_now"),
    ("post", "/v1/jobs/{id}/complete"),
    ("post", "/v1/jobs/{id}/fail"),
    ("post", "/v1/jobs/{id}/release"),
    ("post", "/v1/claims"),
    ("post", "/v1/leases/heartbeat"),
    ("post", "/v1/leases/complete"),
    ("get", "/v1/cluster"),
    ("get", "/v1/backup"),
    ("post", "/v1/cluster/snapshot"),
    ("post", "/v1/cluster/members"),
    ("delete", "/v1/cluster/members/{id}"),
    ("patch", "/v1/cluster/members/{id}"),
    ("post", "/v1/cluster/leader"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("get", "/openapi.json"),
}


@pytest.fixture
async def document(node: Node) -> Any:
    got = await node.send("GET", "/openapi.json")
    assert (got.status, got.headers["Content-Type"]) == (200, "application/json")
    return got.json


async def test_it_names_every_call(document: Any) -> None:
    assert {(method, path) for path, methods in document["paths"].items() for method in methods} == PUBLISHED
    operations = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(operations)) == len(operations)


async def test_it_is_valid(document: Any) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="a development dependency")
    validator.validate(document)


async def test_every_reference_leads_somewhere(document: Any) -> None:
    text = msgspec.json.encode(document).decode()
    names = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', text))
    assert names <= set(document["components"]["schemas"])
    assert {"SubmitRequest", "JobView", "ClaimRequest", "Problem"} <= names


async def test_the_limits_are_those_that_are_checked(document: Any) -> None:
    submit = document["components"]["schemas"]["SubmitRequest"]
    assert submit["additionalProperties"] is False
    assert submit["required"] == ["task"]
    assert submit["properties"]["priority"] == {"type": "integer", "minimum": -100, "maximum": 100, "default": 0}
    assert set(submit["properties"]) == set(wire.SubmitRequest.__struct_fields__)
    assert submit["properties"]["tags"]["maxProperties"] == wire.TAGS_MAX


async def test_a_stream_says_what_its_events_hold(document: Any) -> None:
    content = document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]
    shapes = [shape["$ref"].rpartition("/")[2] for shape in content["text/event-stream"]["schema"]["anyOf"]]
    assert shapes == ["Event", "FellBehind"]
    assert document["components"]["schemas"]["Event"]["properties"]["type"]["enum"] == sorted(wire.EVENT_TYPES)


async def test_why_a_job_is_dead_is_one_of_some_words(document: Any) -> None:
    for shape in ("JobView", "Event"):
        reason = document["components"]["schemas"][shape]["properties"]["dead_reason"]["anyOf"]
        assert {"enum": ["failed", "no_retry", "poison", "timeout"]} in reason


async def test_queries_and_paths_are_parameters(document: Any) -> None:
    listing = {parameter["name"]: parameter for parameter in document["paths"]["/v1/jobs"]["get"]["parameters"]}
    which = {"queue", "state", "task", "tag", "schedule_id", "created_from", "created_before"}
    assert set(listing) == which | {"limit", "cursor", "consistency"}
    assert listing["limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}
    reading = document["paths"]["/v1/jobs/{id}"]["get"]["parameters"]
    assert [(parameter["name"], parameter["in"]) for parameter in reading] == [
        ("id", "path"),
        ("consistency", "query"),
        ("wait_seconds", "query"),
    ]


async def test_every_published_call_is_served(node: Node, document: Any) -> None:
    for path, methods in document["paths"].items():
        for method in methods:
            got = await node.send(method.upper(), path.replace("{id}", "none"))
            assert got.status != 405, (method, path)
            assert got.status != 404 or "none" in path or got.json["detail"] == "no such job", (method, path)
