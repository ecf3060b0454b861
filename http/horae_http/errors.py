"""The one table from the contract's codes to status and title, and problems (RFC 9457) made from whatever went wrong.

Not here: what is refused (the wire's types, the machine), how an answer is written (`answer.py`).
Next to read: `codec.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from horae import wire
from horae.wire import PATTERN_HINTS, Contradiction, FieldError, Problem
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.service import Refused


class Kind(NamedTuple):
    status: int
    title: str


KINDS: Final[dict[str, Kind]] = {
    "malformed": Kind(400, "The request cannot be parsed"),
    "unauthenticated": Kind(401, "A valid bearer token is needed"),
    "forbidden": Kind(403, "The token does not allow this"),
    "not_found": Kind(404, "Not found"),
    "method_not_allowed": Kind(405, "No such method here"),
    "conflict": Kind(409, "The state does not allow this"),
    "lease_lost": Kind(409, "The lease is no longer held"),
    "version": Kind(412, "It is of another version"),
    "too_large": Kind(413, "Too large"),
    "unsupported_media_type": Kind(415, "Unsupported media type"),
    "invalid": Kind(422, "The request is not valid"),
    "rate_limited": Kind(429, "Too much at once"),
    "internal": Kind(500, "Internal error"),
    "no_leader": Kind(503, "No leader"),
    "shutting_down": Kind(503, "This node is shutting down"),
    "removed": Kind(503, "This node was removed from the cluster"),
    "outcome_unknown": Kind(504, "The outcome is not known"),
    "storage_full": Kind(507, "The disk is full"),
}
"""Every code that an answer can carry."""

RETRY_AFTER_S: Final[dict[str, int]] = {"no_leader": 1, "shutting_down": 1, "rate_limited": 1}
"""`Retry-After` where the error names none: an election takes about a second, and shed load should spread."""

UNKNOWN_DETAIL: Final = (
    "the call may or may not take effect: repeat it, with the same id, claim id or lease token where it has one"
)


class Failure(Exception):
    """This room refuses the request, definitely: nothing was handed on."""

    def __init__(self, code: str, detail: str, errors: Sequence[FieldError] = (), *, header_lines: bytes = b"") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.errors = errors
        self.header_lines = header_lines


def field_failure(code: str, pointer: str, detail: str) -> Failure:
    """A failure that one place of the body (or one query parameter) is to blame for."""
    return Failure(code, f"{pointer} {detail}" if pointer else detail, [FieldError(pointer, detail)])


def problem(code: str, detail: str, errors: Sequence[FieldError] = ()) -> Problem:
    kind = KINDS[code]
    return Problem(f"urn:horae:problem:{code}", kind.title, kind.status, detail, code, list(errors))


def problem_of(error: Refused | NotApplied | OutcomeUnknown | Failure) -> Problem:
    """The problem that says what `error` says."""
    if isinstance(error, OutcomeUnknown):
        return problem("outcome_unknown", UNKNOWN_DETAIL)
    if isinstance(error, Refused) and error.pointer:
        return problem(error.code, f"{error.pointer}: {error.detail}", [FieldError(error.pointer, error.detail)])
    return problem(error.code, error.detail, error.errors if isinstance(error, Failure) else ())


def header_lines_of(error: Refused | NotApplied | OutcomeUnknown | Failure) -> bytes:
    """The header lines that go with the problem: `Retry-After`, in whole seconds, never too early."""
    lines = error.header_lines if isinstance(error, Failure) else b""
    if isinstance(error, NotApplied | Refused) and error.retry_after_ms is not None:
        return lines + b"Retry-After: %d\r\n" % max(1, math.ceil(error.retry_after_ms / 1000))
    if not isinstance(error, OutcomeUnknown) and error.code in RETRY_AFTER_S:
        return lines + b"Retry-After: %d\r\n" % RETRY_AFTER_S[error.code]
    return lines


# msgspec tells where and what in its message only; `tests/unit/http/test_errors.py` pins the forms read here.
_PLACE = re.compile(r"\A(?P<what>.*) - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`\Z", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\]")
_UNKNOWN = re.compile(r"\AObject contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"\AObject missing required field `(?P<name>.*)`\Z", re.DOTALL)
_HINTS: Final = {f"Expected `str` matching regex {pattern!r}": hint for pattern, hint in PATTERN_HINTS.items()}
_OTHER_TYPE = re.compile(r"\AExpected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`\Z")
_BOUND = re.compile(r"\AExpected `(?P<type>[^`]+)` (?P<length>of length )?(?P<sign><=|>=) (?P<limit>\S+)\Z")
_BOUND_OF_ITEMS = re.compile(
    r"\AExpected `array` of (?P<limit>at (?:most|least) )length (?P<number>[0-9]+)(?:, got [0-9]+)?\Z"
)
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "bytes": "binary",
    "datetime": "a time such as 2026-11-29T12:00:00Z",
}
_UNITS: Final = {"str": "character", "array": "item", "object": "key"}
_ENUM = re.compile(r"\AInvalid enum value (?P<got>.*)\Z", re.DOTALL)
_NAME_CHARS_MAX = 100


def field_error(error: msgspec.ValidationError, prefix: str = "", list_at: str = "") -> FieldError:
    """Where (an RFC 6901 pointer, below `prefix`) and what is wrong, in words that name the fix.

    `list_at` is where the one list is that may have too many items: msgspec does not say it of all kinds of lists.
    """
    what, path, of_key = str(error), "", False
    placed = _PLACE.match(what)
    if placed:
        what, path, of_key = placed["what"], placed["path"], placed["key"] is not None
    pointer = prefix + _pointer(path)
    if isinstance(error.__cause__, Contradiction):
        return FieldError(f"{pointer}/{error.__cause__.field}", what)
    if unknown := _UNKNOWN.match(what):
        name = unknown["name"][:_NAME_CHARS_MAX]
        return FieldError(f"{pointer}/{_escape(name)}", f"is not a known key: {name!r}; check the spelling")
    if missing := _MISSING.match(what):
        return FieldError(f"{pointer}/{_escape(missing['name'])}", "is required")
    if not path and list_at and _BOUND_OF_ITEMS.match(what):
        pointer = prefix + list_at
    if allowed := _ENUM.match(what):
        return FieldError(pointer, _one_of(path.rpartition(".")[2], allowed["got"]))
    within = "has a key that " if of_key else "has a value that " if path.endswith("[...]") else ""
    return FieldError(pointer, within + _in_words(what))


def invalid(error: msgspec.ValidationError, prefix: str = "", list_at: str = "") -> Failure:
    """The 422 for a body (or a query) of the wrong shape."""
    field = field_error(error, prefix, list_at)
    return Failure("invalid", f"{field.pointer or 'the body'} {field.detail}", [field])


def _in_words(what: str) -> str:
    hint = _HINTS.get(what)
    if hint is not None:
        return hint
    if what.startswith("Expected `datetime` with"):
        return "must have an offset, such as 2026-11-29T12:00:00Z"
    if what.startswith("Invalid RFC3339"):
        return "must be a time as RFC 3339 writes it, such as 2026-11-29T12:00:00.000Z"
    if other := _OTHER_TYPE.match(what):
        return f"must be {_types(other['wanted'])}, not {_types(other['got'])}"
    if bound := _BOUND.match(what):
        number = bound["limit"].removesuffix(".0")
        limit = f"{'at least' if bound['sign'] == '>=' else 'at most'} {number}"
        return f"must be {_types(bound['type'])} of {limit}{_unit(bound['type'], number) if bound['length'] else ''}"
    if items := _BOUND_OF_ITEMS.match(what):
        return f"must be a list of {items['limit']}{items['number']}{_unit('array', items['number'])}"
    return "must be " + what.removeprefix("Expected ") if what.startswith("Expected ") else what


def _unit(of_type: str, number: str) -> str:
    unit = _UNITS.get(of_type, "")
    return f" {unit}" if not unit or number == "1" else f" {unit}s"


def _one_of(field: str, got: str) -> str:
    """msgspec says only what it got."""
    words = _words_of().get(field)
    return f"must be one of {', '.join(words)}, not {got[:_NAME_CHARS_MAX]}" if words else f"may not be {got}"


@cache
def _words_of() -> dict[str, tuple[str, ...]]:
    """The words that a key of a request allows, where it allows some only. A key means the same everywhere."""
    found: dict[str, tuple[str, ...]] = {}
    for shape in (it for it in vars(wire).values() if isinstance(it, type) and issubclass(it, wire.Request)):
        described = msgspec.inspect.type_info(shape)
        assert isinstance(described, msgspec.inspect.StructType)
        for field in described.fields:
            kinds = field.type.types if isinstance(field.type, msgspec.inspect.UnionType) else (field.type,)
            for kind in kinds:
                if isinstance(kind, msgspec.inspect.LiteralType):
                    words = tuple(str(word) for word in kind.values)
                    assert found.setdefault(field.encode_name, words) == words
    return found


def _types(names: str) -> str:
    """`int | null` as people say it."""
    return " or ".join(_TYPES.get(name, name) for name in names.split(" | "))


def _pointer(path: str) -> str:
    """`.jobs[3].tags[...]` → `/jobs/3/tags`: msgspec does not name the keys of a free mapping."""
    steps = []
    at = 0
    while step := _STEP.match(path, at):
        steps.append(step[1] or step[2])
        at = step.end()
    return "".join(f"/{step}" for step in steps)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
