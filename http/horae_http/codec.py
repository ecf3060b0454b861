"""Bodies in and out: which encoding, bytes to a checked Struct, an answer to bytes; opaque values made safe JSON text.

JSON is the default, MessagePack (`application/msgpack`) the alternative, with the same keys. A payload, result or
progress reaches the service as compact JSON text that was decoded once, so that it can be put into any answer as it
is; for a MessagePack caller it is turned there and back here. Not here: what a handler does. Next to read: `jobs.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate, takewhile
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, defstruct
from msgspec.structs import astuple, fields, replace

from horae import wire
from horae_http import errors
from horae_http.answer import JSON, MSGPACK, Answer
from horae_http.errors import Failure
from horae_node.garbage import uncollected
from horae_node.turns import let_others

T = TypeVar("T", bound=Struct)

JSON_TYPES: Final = frozenset({"application/json", "text/json"})
MSGPACK_TYPES: Final = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})
CURL_DEFAULT_TYPE: Final = "application/x-www-form-urlencoded"
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_NEGOTIATED_MAX = 256

WHOLE_BYTES_MAX: Final = 64 * 1024
"""A body that is read in one go, and how much of a larger one is read before others have their turn: some 10 ms."""
_SMALL_BYTES: Final = 1024
"""A text too short to hold anything that must be looked at with care."""
RAW_TIMES_MAX: Final = 4
"""A value is looked at only if its text is at most so many times what is allowed: escapes make it three times as long,
white space more. Whoever sends a larger one has it refused unread."""
PACKED_TIMES_MAX: Final = 3
"""The same for MessagePack, where half takes nine bytes and 0.5 three."""

_json_decode = msgspec.json.Decoder().decode
_json_encode = msgspec.json.Encoder().encode
_pack_decode = msgspec.msgpack.Decoder().decode
_pack_encode = msgspec.msgpack.Encoder().encode
_PACKED_NULL: Final = Raw(_pack_encode(None))
_negotiated: dict[tuple[str | None, str | None, bool], tuple[bool, bool]] = {}


# ---------------------------------------------------------------- negotiation


def declared_type(headers: Mapping[str, str]) -> str | None:
    """The body's type as the caller meant it: curl's default for `-d` says nothing, so it is JSON like a missing one.

    Not so when an Origin is there: a page in a browser can send that type across sites, and always adds the Origin.
    """
    declared = headers.get("Content-Type")
    return None if declared == CURL_DEFAULT_TYPE and "Origin" not in headers else declared


def negotiate(content_type: str | None, accept: str | None, *, has_body: bool) -> tuple[bool, bool]:
    """Whether the body is MessagePack, and whether the answer shall be.

    No Content-Type means JSON. An Accept that names neither encoding (`*/*`, a browser's) gets that of the request.
    Raises: `Failure("unsupported_media_type")` for any other kind of body.
    """
    key = (content_type, accept, has_body)
    found = _negotiated.get(key)
    if found is None:
        try:
            packed_in = _is_packed(content_type)
        except Failure:
            if has_body:
                raise
            packed_in = False
        found = packed_in, _wants_packed(accept, packed_in)
        if len(_negotiated) < _NEGOTIATED_MAX:  # the callers choose the keys: a bound, not an eviction
            _negotiated[key] = found
    return found


def _is_packed(content_type: str | None) -> bool:
    if content_type is None:
        return False
    kind, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if kind in MSGPACK_TYPES:
        return True
    if kind not in JSON_TYPES and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Failure(
            "unsupported_media_type",
            f"a body of {kind[:100]!r} is not understood: send JSON with `Content-Type: application/json` "
            "(curl: --json), or MessagePack with `Content-Type: application/msgpack`",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in _UTF8:
            raise Failure("unsupported_media_type", f"JSON is read as UTF-8 only, not as {value[:100]!r}")
    return False


def _wants_packed(accept: str | None, packed_in: bool) -> bool:
    """The better liked of the two; by their order where both are liked as much."""
    best, wants = 0.0, packed_in
    for part in (accept or "").lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        if kind not in MSGPACK_TYPES and kind not in JSON_TYPES:
            continue
        quality = _quality(parameters)
        if quality > best:
            best, wants = quality, kind in MSGPACK_TYPES
    return wants


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


# ---------------------------------------------------------------- bodies in


class BodyReader(Generic[T]):
    """The decoders of one type of body, built once."""

    def __init__(self, shape: type[T], list_at: str = "") -> None:
        """`list_at`: the place of the list that may have too many items, in a `loosened` shape."""
        self.shape = shape
        self._list_at = list_at
        self._json = msgspec.json.Decoder(shape).decode
        self._pack = msgspec.msgpack.Decoder(shape).decode

    def read(self, body: bytes | Raw, packed: bool, prefix: str = "") -> T:
        """The checked body. Raises: `Failure` (`malformed`, or `invalid` with pointers below `prefix`)."""
        try:
            return self._pack(body) if packed else self._json(body)
        except msgspec.ValidationError as error:
            raise errors.invalid(error, prefix, self._list_at) from error
        except msgspec.DecodeError as error:
            raise malformed(error, body, packed) from error
        except RecursionError as error:
            raise Failure("malformed", "the body is nested too deep to be read") from error


def items_struct(items_max: int) -> type[Struct]:
    """A list of at most so many values, none of them decoded. Unlike a `list` it is refused at the first one too many,
    not after all of them were made."""
    places = [(f"item{place}", Raw | UnsetType, UNSET) for place in range(items_max)]
    return defstruct("Items", places, array_like=True, forbid_unknown_fields=True)


def items_of(items: Struct) -> list[Raw]:
    return list(takewhile(lambda item: item is not UNSET, astuple(items)))


class BulkReader(BodyReader[T]):
    """Reads a body that holds a list of items: a large one item by item, while others have their turn."""

    def __init__(self, shape: type[T], field: str, items_max: int) -> None:
        super().__init__(shape)
        self._field = field
        self._loose = BodyReader(loosened(shape, field, items_max), f"/{field}")
        self._item: BodyReader[Any] = BodyReader(_type_of_items(shape, field))

    async def read_in_turns(self, body: bytes, packed: bool) -> T:
        """As `read`. Raises: also `Failure("too_large")` for an item that could not come alone."""
        loose = self._loose.read(body, packed)
        raws = items_of(getattr(loose, self._field))
        if not raws:
            return self.read(body, packed)
        await let_others()
        turn = Turn()
        items = []
        for position, raw in enumerate(raws):
            pointer = f"/{self._field}/{position}"
            require_bytes(raw, wire.BODY_BYTES_MAX, pointer)
            items.append(self._item.read(raw, packed, pointer))
            if turn.is_over(raw):
                await let_others()
        values = {key: getattr(loose, key) for key in loose.__struct_fields__} | {self._field: items}
        return self.shape(**values)


def loosened(shape: type[Struct], field: str, items_max: int) -> type[Struct]:
    """`shape` with its list `field` left undecoded."""
    items = items_struct(items_max)
    places = [
        (key.name, items if key.name == field else key.type, *(() if key.required else (key.default,)))
        for key in fields(shape)
    ]
    return defstruct(f"Loose{shape.__name__}", places, forbid_unknown_fields=True, kw_only=True)


def _type_of_items(shape: type[Struct], field: str) -> Any:
    described = msgspec.inspect.type_info(shape)
    assert isinstance(described, msgspec.inspect.StructType)
    listed = next(key.type for key in described.fields if key.name == field)
    assert isinstance(listed, msgspec.inspect.ListType)
    assert isinstance(listed.item_type, msgspec.inspect.StructType)
    return listed.item_type.cls


class Turn:
    """Counts what was read since others had their turn."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def is_over(self, value: Raw | UnsetType) -> bool:
        """Count `value`; True when it is time to `let_others`: the next turn begins then."""
        return self.took(0 if isinstance(value, UnsetType) else len(value))

    def took(self, more_bytes: int) -> bool:
        """As `is_over`."""
        self._bytes += more_bytes
        if self._bytes < WHOLE_BYTES_MAX:
            return False
        self._bytes = 0
        return True


def compact(body: Struct, packed: bool) -> bytes:
    """A body that was read, as short as it can be said: without what is as if it were left out."""
    said = {}
    for name, key, default in _places_of(type(body)):
        value = getattr(body, name)
        if value != default:
            said[key] = value
    return (_pack_encode if packed else _json_encode)(said)


@cache
def _places_of(shape: type[Struct]) -> list[tuple[str, str, Any]]:
    """Name, key and default of each; what is required equals no default."""
    return [(each.name, each.encode_name, each.default) for each in fields(shape)]


def require_bytes(value: Raw, bytes_max: int, pointer: str) -> None:
    """Raises: `Failure("too_large")`."""
    if len(memoryview(value)) > bytes_max:
        detail = f"has {len(memoryview(value))} bytes as it was sent: more than {bytes_max} are refused unread"
        raise errors.field_failure("too_large", pointer, detail)


def malformed(error: msgspec.DecodeError, body: bytes | Raw, packed: bool) -> Failure:
    """The 400 for a body that is no JSON (or MessagePack)."""
    if not body:
        return Failure("malformed", "the body is empty: this call needs an object")
    return Failure("malformed", f"the body {_why_malformed(error, body, packed)}")


def _why_malformed(error: msgspec.DecodeError, body: bytes | Raw, packed: bool) -> str:
    if not packed and re.search(rb"\\u[dD][89a-fA-F]", bytes(body)):
        return "is not valid JSON, probably for a `\\ud800`-like escape that is not one of a pair"
    return f"is not valid {'MessagePack' if packed else 'JSON'}: {error}"


# ---------------------------------------------------------------- opaque values in


def opaque(value: Raw, packed: bool, bytes_max: int, pointer: str) -> Raw:
    """A payload, result or progress as compact JSON text that any JSON or MessagePack reader can read.

    Raises: `Failure`: `too_large` past `bytes_max`; `malformed` for broken text; `invalid` for what JSON or MessagePack
    cannot say (integers past 64 bits, NaN, binary, a key that is no string) and for more than 100 levels.
    """
    if value is wire.NULL:
        return value
    require_bytes(value, bytes_max * (PACKED_TIMES_MAX if packed else RAW_TIMES_MAX), pointer)
    try:
        with uncollected(len(memoryview(value))):
            text = (_text_of_packed if packed else _text_of_json)(value, bytes_max)
    except msgspec.ValidationError as error:
        raise errors.field_failure("invalid", pointer, f"holds a number out of range: {error}") from error
    except msgspec.DecodeError as error:
        raise errors.field_failure("malformed", pointer, _why_malformed(error, value, packed)) from error
    except RecursionError as error:
        raise errors.field_failure("invalid", pointer, _TOO_DEEP) from error
    except OverflowError as error:
        raise errors.field_failure("invalid", pointer, "holds an integer of more than 64 bits: use a string") from error
    except (TypeError, ValueError) as error:
        raise errors.field_failure("invalid", pointer, _NOT_JSON) from error
    if len(text) > bytes_max:
        raise errors.field_failure("too_large", pointer, f"takes {len(text)} bytes of JSON, {bytes_max} are allowed")
    if text.count(b"[") + text.count(b"{") > wire.JSON_DEPTH_MAX and _too_deep(text):
        raise errors.field_failure("invalid", pointer, _TOO_DEEP)
    return Raw(text)


_TOO_DEEP: Final = f"is nested deeper than {wire.JSON_DEPTH_MAX} levels"
_NOT_JSON: Final = (
    "holds what JSON cannot say: binary, a timestamp, an extension, NaN, infinity or a key that is no text"
)


def _text_of_json(value: Raw, bytes_max: int) -> bytes:
    """A text that is too long comes back unproven."""
    content = _json_decode(value)
    text = _json_encode(content)
    if len(text) <= bytes_max:
        _pack_encode(content)  # proves that a MessagePack caller can be given it
    return text


def _text_of_packed(value: Raw, bytes_max: int) -> bytes:
    """A text that is too long comes back unproven."""
    content = _pack_decode(value)
    text = _json_encode(content)
    if len(text) <= bytes_max and _json_decode(text) != content:  # as JSON it would come back as something else
        raise ValueError
    return text


_STRINGS = re.compile(rb'"(?:[^"\\]+|\\.)*"')
_SHAPE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


_PASSES: Final = 4
_STEPS: Final = [0] * 256
_STEPS[ord("[")], _STEPS[ord("]")] = 1, -1


def _too_deep(text: bytes) -> bool:
    """Each pass takes the innermost lists and objects away: a few do for what people send, and at the speed of C.

    What is left is walked once: as many passes as levels would take ten times as long.
    """
    shape = _STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS).translate(_SHAPE)
    for _ in range(_PASSES):
        if not shape:
            return False
        shape = shape.replace(b"[]", b"")
    return max(accumulate(map(_STEPS.__getitem__, shape)), default=0) > wire.JSON_DEPTH_MAX - _PASSES


# ---------------------------------------------------------------- answers out


def answer(status: int, view: Any, packed: bool, header_lines: bytes = b"") -> Answer:
    """`view` as the body of an answer. The view stays as it is."""
    if packed:
        return Answer(status, MSGPACK, _pack_encode(_native(view)), header_lines)
    return Answer(status, JSON, _json_encode(view), header_lines)


async def answer_in_turns(view: Any, field: str, packed: bool, header_lines: bytes = b"") -> Answer:
    """As `answer`, 200, for a view with many items in its list `field`, which may be large: others have their turn."""
    items = getattr(view, field)
    if len(items) < 2 and not packed:
        return answer(200, view, packed, header_lines)
    encoded = []
    turn = Turn()
    for item in items:
        encoded.append(Raw(_pack_encode(_native(item)) if packed else _json_encode(item)))
        if turn.is_over(encoded[-1]):
            await let_others()
    twin = copy.copy(view)
    setattr(twin, field, encoded)
    kind, encode = (MSGPACK, _pack_encode) if packed else (JSON, _json_encode)
    return Answer(200, kind, encode(twin), header_lines)


def _native(view: Any) -> Any:
    """The view with its JSON texts said in MessagePack, in a copy."""
    convert = _NATIVE.get(type(view))
    return view if convert is None else convert(view)


def _repacked(text: Raw) -> Raw:
    """At once, so that no more than one value is there decoded."""
    if text == wire.NULL:
        return _PACKED_NULL
    with uncollected(len(memoryview(text))):
        return Raw(_pack_encode(_json_decode(text)))


def _native_job(view: wire.JobView) -> wire.JobView:
    twin: Any = copy.copy(view)
    twin.payload = _repacked(view.payload)
    twin.result = _repacked(view.result)
    twin.progress = _repacked(view.progress)
    if isinstance(view.then, wire.FollowerView):
        twin.then = _native_follower(view.then)
    job: wire.JobView = twin
    return job


def _native_follower(view: wire.FollowerView) -> wire.FollowerView:
    then = None if view.then is None else _native_follower(view.then)
    return replace(view, payload=_repacked(view.payload), then=then)


def _native_claimed(view: wire.ClaimedJob) -> wire.ClaimedJob:
    twin: Any = copy.copy(view)
    twin.payload = _repacked(view.payload)
    twin.progress = _repacked(view.progress)
    job: wire.ClaimedJob = twin
    return job


def _native_batch_item(item: wire.BatchItem) -> wire.BatchItem:
    return item if item.job is None else wire.BatchItem(job=_native_job(item.job))


def _native_schedule(view: wire.ScheduleView) -> wire.ScheduleView:
    then = None if view.job.then is None else _native_follower(view.job.then)
    return replace(view, job=replace(view.job, payload=_repacked(view.job.payload), then=then))


_NATIVE: Final[dict[type[Any], Callable[[Any], Any]]] = {
    wire.JobView: _native_job,
    wire.ClaimedJob: _native_claimed,
    wire.BatchItem: _native_batch_item,
    wire.ScheduleView: _native_schedule,
}


def settle(request: Any, field: str, packed: bool, bytes_max: int, prefix: str = "") -> None:
    """Make the opaque value in `request.field` safe, in place, unless it was left out. Raises: as `opaque`."""
    value = getattr(request, field)
    if value is wire.NULL or isinstance(value, UnsetType):
        return
    text = None if packed else _small_text(value, bytes_max)
    setattr(request, field, opaque(value, packed, bytes_max, f"{prefix}/{field}") if text is None else Raw(text))


def _small_text(value: Raw, bytes_max: int) -> bytes | None:
    """What `opaque` makes of a small and harmless JSON text, in half its time; None for what it must look at."""
    if len(value) > _SMALL_BYTES:
        return None
    try:
        text = _text_of_json(value, bytes_max)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    brackets = text.count(b"[") + text.count(b"{")
    return text if len(text) <= bytes_max and brackets <= wire.JSON_DEPTH_MAX else None
