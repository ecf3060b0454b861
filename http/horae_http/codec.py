"""Bodies in and out: which encoding, bytes to a checked Struct, an answer to bytes; opaque values made safe JSON text.

JSON is the default, MessagePack (`application/msgpack`) the alternative, with the same keys. A payload, result or
progress reaches the service as compact JSON text that was decoded once, so that it can be put into any answer as it
is; for a MessagePack caller it is turned there and back here. Not here: what a handler does. Next to read: `jobs.py`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, UnsetType

from horae import wire
from horae_http import errors
from horae_http.answer import JSON, MSGPACK, Answer
from horae_http.errors import Failure

T = TypeVar("T", bound=Struct)

JSON_TYPES: Final = frozenset({"application/json", "text/json"})
MSGPACK_TYPES: Final = frozenset({"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"})
CURL_DEFAULT_TYPE: Final = "application/x-www-form-urlencoded"
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_NEGOTIATED_MAX = 256

_json_decode = msgspec.json.Decoder().decode
_json_encode = msgspec.json.Encoder().encode
_pack_decode = msgspec.msgpack.Decoder().decode
_pack_encode = msgspec.msgpack.Encoder().encode
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

    def __init__(self, shape: type[T]) -> None:
        self._json = msgspec.json.Decoder(shape).decode
        self._pack = msgspec.msgpack.Decoder(shape).decode

    def read(self, body: bytes | Raw, packed: bool, prefix: str = "") -> T:
        """The checked body. Raises: `Failure` (`malformed`, or `invalid` with pointers below `prefix`)."""
        try:
            return self._pack(body) if packed else self._json(body)
        except msgspec.ValidationError as error:
            raise errors.invalid(error, prefix) from error
        except msgspec.DecodeError as error:
            raise malformed(error, body, packed) from error
        except RecursionError as error:
            raise Failure("malformed", "the body is nested too deep to be read") from error


def malformed(error: msgspec.DecodeError, body: bytes | Raw, packed: bool) -> Failure:
    """The 400 for a body that is no JSON (or MessagePack)."""
    if not body:
        return Failure("malformed", "the body is empty: this call needs an object")
    detail = f"the body is not valid {'MessagePack' if packed else 'JSON'}: {error}"
    if not packed and re.search(rb"\\u[dD][89a-fA-F]", bytes(body)):
        detail += " (a `\\ud800`-like escape must be one of a pair)"
    return Failure("malformed", detail)


# ---------------------------------------------------------------- opaque values in


def opaque(value: Raw, packed: bool, bytes_max: int, pointer: str) -> Raw:
    """A payload, result or progress as compact JSON text that any JSON or MessagePack reader can read.

    Raises: `Failure`: `too_large` past `bytes_max`; `malformed` for broken text; `invalid` for what JSON or MessagePack
    cannot say (integers past 64 bits, NaN, binary, a key that is no string) and for more than 100 levels.
    """
    if value is wire.NULL:
        return value
    try:
        text = _text_of_packed(value) if packed else _text_of_json(value)
    except msgspec.ValidationError as error:
        raise errors.field_failure("invalid", pointer, f"holds a number out of range: {error}") from error
    except msgspec.DecodeError as error:
        failure = malformed(error, value, packed)
        raise errors.field_failure(failure.code, pointer, failure.detail) from error
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


def _text_of_json(value: Raw) -> bytes:
    content = _json_decode(value)
    text = _json_encode(content)
    _pack_encode(content)  # proves that a MessagePack caller can be given it
    return text


def _text_of_packed(value: Raw) -> bytes:
    content = _pack_decode(value)
    text = _json_encode(content)
    if _json_decode(text) != content:  # as JSON it would come back as something else
        raise ValueError
    return text


_STRINGS = re.compile(rb'"(?:[^"\\]+|\\.)*"')
_SHAPE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _too_deep(text: bytes) -> bool:
    """Each pass takes the innermost lists and objects away: as many passes as levels, each at the speed of C."""
    shape = _STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS).translate(_SHAPE)
    for _ in range(wire.JSON_DEPTH_MAX):
        if not shape:
            return False
        shape = shape.replace(b"[]", b"")
    return bool(shape)


# ---------------------------------------------------------------- answers out


def answer(status: int, view: Any, packed: bool, header_lines: bytes = b"") -> Answer:
    """`view` as the body of an answer. The view stays as it is."""
    if packed:
        return Answer(status, MSGPACK, _pack_encode(_native(view)), header_lines)
    return Answer(status, JSON, _json_encode(view), header_lines)


def _native(view: Any) -> Any:
    """The view with its JSON texts replaced by what they say, in a copy: MessagePack then encodes it whole."""
    convert = _NATIVE.get(type(view))
    return view if convert is None else convert(view)


def _native_job(view: wire.JobView) -> wire.JobView:
    twin: Any = copy.copy(view)
    twin.payload = _json_decode(view.payload)
    twin.result = _json_decode(view.result)
    twin.progress = _json_decode(view.progress)
    job: wire.JobView = twin
    return job


def _native_claimed(view: wire.ClaimedJob) -> wire.ClaimedJob:
    twin: Any = copy.copy(view)
    twin.payload = _json_decode(view.payload)
    twin.progress = _json_decode(view.progress)
    job: wire.ClaimedJob = twin
    return job


def _native_batch_item(item: wire.BatchItem) -> wire.BatchItem:
    return item if item.job is None else wire.BatchItem(job=_native_job(item.job))


def _native_ending(result: wire.EndingResult) -> wire.EndingResult:
    if result.job is None:
        return result
    return wire.EndingResult(job_id=result.job_id, status=result.status, job=_native_job(result.job))


_NATIVE: Final[dict[type[Any], Callable[[Any], Any]]] = {
    wire.JobView: _native_job,
    wire.JobList: lambda page: wire.JobList([_native_job(job) for job in page.jobs], page.next_cursor),
    wire.ClaimAnswer: lambda view: wire.ClaimAnswer([_native_claimed(job) for job in view.jobs]),
    wire.BatchAnswer: lambda view: wire.BatchAnswer([_native_batch_item(item) for item in view.results]),
    wire.EndingsAnswer: lambda view: wire.EndingsAnswer([_native_ending(result) for result in view.leases]),
}


def settle(request: Any, field: str, packed: bool, bytes_max: int, prefix: str = "") -> None:
    """Make the opaque value in `request.field` safe, in place, unless it was left out. Raises: as `opaque`."""
    value = getattr(request, field)
    if value is wire.NULL or isinstance(value, UnsetType):
        return
    setattr(request, field, opaque(value, packed, bytes_max, f"{prefix}/{field}"))
