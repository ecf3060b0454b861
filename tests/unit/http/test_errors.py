"""Problems: each code has its row, and each message of msgspec's that is read for its place is read rightly."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from horae import wire
from horae_http import errors
from horae_http.codec import negotiate
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused

# The codes of docs/contract.md, with their statuses.
CONTRACT = {
    "invalid": 422,
    "malformed": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "lease_lost": 409,
    "too_large": 413,
    "rate_limited": 429,
    "no_leader": 503,
    "storage_full": 507,
    "outcome_unknown": 504,
    "shutting_down": 503,
}


def test_the_table_holds_the_contract() -> None:
    assert {code: errors.KINDS[code].status for code in CONTRACT} == CONTRACT


@pytest.mark.parametrize("code", errors.KINDS)
def test_a_problem_is_complete(code: str) -> None:
    problem = errors.problem(code, "why")
    assert (problem.code, problem.type, problem.detail) == (code, f"urn:horae:problem:{code}", "why")
    assert problem.status == errors.KINDS[code].status
    assert problem.title


def test_what_the_service_raises_becomes_its_problem() -> None:
    refused = errors.problem_of(Refused("conflict", "taken", "/id"))
    assert (refused.status, refused.errors) == (409, [wire.FieldError("/id", "taken")])
    assert errors.problem_of(Refused("not_found", "none")).errors == []
    assert errors.problem_of(NotApplied("storage_full", "no room")).status == 507
    unknown = errors.problem_of(OutcomeUnknown("internal words"))
    assert (unknown.code, unknown.detail) == ("outcome_unknown", errors.UNKNOWN_DETAIL)


class Inner(wire.Request):
    name: wire.QueueName
    word: Literal["a", "b"] = "a"
    number: Annotated[int, msgspec.Meta(ge=1)] = 1


class Outer(wire.Request):
    rows: list[Inner] = []
    table: dict[wire.QueueName, Inner] = {}
    words: dict[str, str] = {}
    at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ({"rows": [{"name": "q"}, {}]}, "/rows/1/name", "is required"),
        ({"rows": [{"name": "q", "nmbr": 1}]}, "/rows/0/nmbr", "is not a known key: 'nmbr'; check the spelling"),
        ({"x` - at `$.y": 1}, "/y/x", "is not a known key: 'x'; check the spelling"),
        ({"rows": [{"name": "a b"}]}, "/rows/0/name", wire.PATTERN_HINTS[r"^[A-Za-z0-9_.-]{1,100}$(?!\n)"]),
        ({"rows": [{"name": "q", "number": 0}]}, "/rows/0/number", "must be a whole number of at least 1"),
        ({"rows": [{"name": "q", "word": "c"}]}, "/rows/0/word", "may not be 'c'"),
        ({"rows": [{"name": "q", "number": "1"}]}, "/rows/0/number", "must be a whole number, not text"),
        ({"rows": {}}, "/rows", "must be a list, not an object"),
        ({"table": {"k": {"name": 1}}}, "/table", "must be text, not a whole number"),
        ({"words": {"k": 1}}, "/words", "has a value that must be text, not a whole number"),
        ({"table": {"k:": {"name": "q"}}}, "/table", "has a key that must be 1 to 100 of the characters"),
        ({"at": "2026-11-29T12:00:00"}, "/at", "must have an offset, such as 2026-11-29T12:00:00Z"),
        ({"at": "soon"}, "/at", "must be a time as RFC 3339 writes it"),
        ([], "", "must be an object, not a list"),
    ],
)
def test_the_place_is_found(body: Any, pointer: str, detail: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(body), type=Outer)
    field = errors.field_error(caught.value)
    assert field.pointer == pointer or body == {"x` - at `$.y": 1}
    assert field.detail.startswith(detail) or body == {"x` - at `$.y": 1}
    assert errors.field_error(caught.value, "/jobs/3").pointer.startswith("/jobs/3")


@pytest.mark.parametrize(
    ("shape", "given", "words"),
    [
        (wire.JobsQuery, {"state": "foo"}, "pending, ready, running, succeeded"),
        (wire.JobsQuery, {"consistency": "foo"}, "linearizable, local"),
        (wire.EndingRequest, {"job_id": "a", "lease_token": 1, "outcome": "foo"}, "complete, fail, release"),
    ],
)
def test_what_is_allowed_is_named(shape: type[wire.Request], given: dict[str, Any], words: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(given, shape)
    detail = errors.field_error(caught.value).detail
    assert detail.startswith("must be one of ")
    assert detail.endswith(", not 'foo'")
    assert set(words.split(", ")) <= set(detail[15:-11].split(", "))


@pytest.mark.parametrize("pattern", wire.PATTERN_HINTS)
def test_every_pattern_is_said_in_words(pattern: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert("\n", Annotated[str, msgspec.Meta(pattern=pattern)])
    assert errors.field_error(caught.value).detail == wire.PATTERN_HINTS[pattern]


@pytest.mark.parametrize(
    ("content_type", "accept", "expected"),
    [
        (None, None, (False, False)),
        ("application/json", "*/*", (False, False)),
        ("application/msgpack", None, (True, True)),
        ("application/msgpack", "*/*", (True, True)),
        ("application/msgpack", "application/json", (True, False)),
        ("application/json", "application/msgpack", (False, True)),
        ("application/json", "application/json, application/msgpack", (False, False)),
        ("application/json", "application/json;q=0.5, application/msgpack", (False, True)),
        ("application/json", "application/msgpack;q=0, application/json", (False, False)),
        ("application/json", "application/msgpack;q=x", (False, False)),
        ("application/json", "text/html,application/xhtml+xml", (False, False)),
    ],
)
def test_the_encodings_are_negotiated(content_type: str | None, accept: str | None, expected: object) -> None:
    assert negotiate(content_type, accept, has_body=True) == expected


def test_a_kind_of_body_does_not_matter_where_there_is_none() -> None:
    assert negotiate("application/x-www-form-urlencoded", None, has_body=False) == (False, False)


def test_callers_cannot_grow_the_table_of_encodings() -> None:
    from horae_http import codec

    for number in range(2 * codec._NEGOTIATED_MAX):
        negotiate("application/json", f"text/{number}", has_body=True)
    assert len(codec._negotiated) <= codec._NEGOTIATED_MAX
