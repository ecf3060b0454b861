"""What a route is, and from a method and a path to its route in at most two dictionary look-ups.

The same tables of routes register the handlers and yield `/openapi.json`, so the two cannot drift. Not here: the
handlers. Next to read: `jobs.py`, where the first table is.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec.structs import replace

from horae import wire
from horae.wire import Empty
from horae_http import codec, errors
from horae_http.answer import Answer
from horae_http.auth import Holder
from horae_http.bodies import Hold
from horae_http.codec import WHOLE_BYTES_MAX, BodyReader
from horae_http.errors import Failure
from horae_node.service import Service
from horae_node.shedding import Rank
from horae_node.turns import let_others

QUERY_FIELDS_MAX = 32
PASSED_ON_BY: Final = "Horae-Passed-On-By"
"""The header that names the node which passed a request on: it is not passed on again."""
ITEM: Final = "{id}"


_BLANK_FOR_PLUS: Final = re.compile(r"[0-9T:.-]+ [0-9]{2}:?[0-9]{2}").fullmatch
"""A moment whose offset had a plus."""


class Call:
    """One request in hand, its caller known."""

    __slots__ = (
        "_asked_s",
        "_hold",
        "_wait_s",
        "body",
        "headers",
        "holder",
        "item",
        "packed_in",
        "packed_out",
        "query",
        "raw",
        "settled",
        "spent",
        "stopping",
    )

    def __init__(
        self,
        item: str,
        query: Any,
        raw: bytes,
        holder: Holder,
        packed: tuple[bool, bool],
        headers: Mapping[str, str],
        *,
        stopping: bool,
        hold: Hold | None = None,
        asked_s: float = 0.0,
    ) -> None:
        """`hold`: what `raw` takes of all bodies; `asked_s`: when it came, on the loop's clock."""
        self.item = item
        """The id in the path, decoded; "" where the path has none."""
        self.query = query
        self.raw = raw
        self.body: Any = None
        """What the route's reader made of `raw`."""
        self.holder = holder
        self.packed_in, self.packed_out = packed
        self.headers = headers
        """Of the request; names in any case."""
        self.stopping = stopping
        """This node is on its way down."""
        self.settled = False
        """`raw` is gone: `body` is all that is left of it."""
        self.spent = False
        """A part of its `wait_seconds` is over, and `query` or `body` says what is left."""
        self._hold = hold
        self._asked_s = asked_s
        self._wait_s: float | None = None

    def settle(self) -> None:
        """`body` was made of `raw`, and it may wait for long now: `raw` is let go, with whatever padding it had."""
        if self.settled:
            return
        self.settled = True
        self.raw = b"" if not self.raw else codec.compact(Empty(), self.packed_in)
        if self._hold is not None:
            self._hold.release()

    def content(self) -> bytes:
        """The body as it is passed on: once settled, no more than it means, and what is left of its wait."""
        if not self.settled or not self.raw or isinstance(self.body, Empty):
            return self.raw
        return codec.compact(self.body, self.packed_in)

    def spend(self, now_s: float) -> None:
        """Before it is asked once more: so much of its wait is over by now."""
        for part in ("query", "body"):
            said = getattr(self, part)
            wait_s = getattr(said, "wait_seconds", None)
            if not wait_s:
                continue
            if self._wait_s is None:
                self._wait_s = wait_s
            left_s = round(max(0.0, self._wait_s - (now_s - self._asked_s)), 3)
            setattr(self, part, replace(said, wait_seconds=left_s))
            self.spent = True


Handler = Callable[[Service, Call], Awaitable[Answer]]


class Route(NamedTuple):
    """One call of the contract."""

    method: str
    path: str
    operation: str
    """A stable name, for documents and generated clients."""
    summary: str
    handler: Handler
    answers: dict[int, type | None]
    """Status to body of each answer that is no problem; None: no body, or one that is no Struct."""
    role: str | None
    """What the caller's token must allow; None: anybody may call, also while the node stops."""
    read: Callable[[bytes, bool], Any] = BodyReader(wire.Empty).read
    """Makes the call's body of the bytes and whether they are MessagePack. Raises: `Failure`."""
    request: type[wire.Request] = wire.Empty
    query: type[wire.Request] = wire.NoQuery
    body_required: bool = True
    """False: none is as an empty object."""
    leader: bool = True
    """Only the leader can serve it (unless the query asks for a local reading)."""
    body_bytes_max: int = wire.BODY_BYTES_MAX
    read_in_turns: Callable[[bytes, bool], Awaitable[Any]] | None = None
    """As `read`, for large bodies: it lets others have their turn."""
    from_leaders_index: bool = False
    """Any node can serve it, and none without knowing how far the leader had come when it was asked."""
    waits: bool = False
    """It may wait for long, whatever its query says: a claim."""
    grants: bool = False
    """Its answer holds leases: where it cannot be delivered, they go back."""
    repeats: Callable[[Any], bool] = lambda body: True
    """Whether this body may be sent again when the first sending's outcome is not known."""
    events: tuple[type, ...] = ()
    """Its answer (200) is a stream of server-sent events, whose data are these."""
    shed_last: bool = False
    """It ends or renews work in hand, or is how operators help: turned away under load after all others."""

    @property
    def rank(self) -> Rank:
        """When it is turned away under load."""
        if self.shed_last:
            return Rank.ENDING
        return Rank.READ if self.method == "GET" else Rank.NEW


async def read_body(route: Route, raw: bytes, packed: bool) -> Any:
    """The call's body made of its bytes. Raises: `Failure`."""
    if not raw and not route.body_required:
        return route.request()
    if len(raw) <= WHOLE_BYTES_MAX:
        return route.read(raw, packed)
    if route.read_in_turns is None:
        await let_others()
        return route.read(raw, packed)
    return await route.read_in_turns(raw, packed)


class Router:
    """Finds routes. Paths have their item, if any, as third part, `/v1/jobs/{id}/cancel`, or fourth."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._items: dict[str, dict[str, Route]] = {}
        for route in routes:
            fixed = ITEM not in route.path
            table = self._fixed if fixed else self._items
            methods = table.setdefault(route.path if fixed else route.path.replace(ITEM, ""), {})
            assert route.method not in methods, f"two routes for {route.method} {route.path}"
            methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, str]:
        """The route and the decoded item ("" for none).

        Raises: `Failure`: `not_found`, `method_not_allowed`, `malformed`.
        """
        fixed = self._fixed.get(path)
        if fixed is not None and method in fixed:
            return fixed[method], ""
        parts = path.split("/", 5)
        items = None
        for at in (3, 4):
            if items is None and len(parts) > at and parts[at]:
                items = self._items.get("/".join([*parts[:at], "", *parts[at + 1 :]]))
                if items is not None and method in items:
                    return items[method], decode_item(parts[at])
        if fixed is None and items is None:
            raise Failure("not_found", f"there is nothing at {path[:200]!r}: see /openapi.json")
        allowed = ", ".join(sorted({*(fixed or {}), *(items or {})}))
        lines = f"Allow: {allowed}\r\n".encode()
        raise Failure("method_not_allowed", f"this address takes {allowed}", header_lines=lines)


def decode_item(item: str) -> str:
    """The id that a part of a path names. Raises: `Failure("not_found")` for one that no job can have."""
    if "%" in item:
        try:
            item = unquote(item, errors="strict")
        except UnicodeDecodeError as error:
            raise Failure("malformed", "the id in the path is not percent-encoded UTF-8") from error
    if len(item) > 200 or not item.isprintable():
        _require_id(item)
    return item


def _require_id(item: str) -> None:
    try:
        item.encode()
        msgspec.convert(item, wire.JobId)
    except (UnicodeEncodeError, msgspec.ValidationError) as error:
        raise Failure("not_found", "nothing can have this name: no job, no queue, no node") from error


def read_query(text: str, shape: type[wire.Request]) -> Any:
    """The checked query. Raises: `Failure`: `malformed`, `invalid` (an unknown or doubled parameter too)."""
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError as error:
        raise Failure("malformed", f"the query cannot be parsed: {error}") from error
    given = dict(pairs)
    if len(given) < len(pairs):
        doubled = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise errors.field_failure("invalid", f"/{doubled}", "is given more than once")
    try:
        return msgspec.convert(given, shape, strict=False)
    except msgspec.ValidationError as error:
        failure = errors.invalid(error)
        place = failure.errors[0].pointer
        if _BLANK_FOR_PLUS(given.get(place.removeprefix("/"), "")):
            detail = "must be a time with an offset: a `+` in a query is read as a blank, so write `%2B`, or use `Z`"
            raise errors.field_failure("invalid", place, detail) from error
        raise failure from error
