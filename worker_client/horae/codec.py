"""Values to the wire: plain JSON values, as MessagePack, within the contract's limits.

Whatever a user hands in (dataclasses, Structs, dates, UUIDs, sets) is first brought down to JSON's own types, so that a
value reads the same whichever encoding carried it. Next to read: `client.py`, `worker.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw

from horae.errors import RequestError, made_here
from horae.wire import JSON_DEPTH_MAX

_JSON_PER_MSGPACK_BYTES = 6
"""JSON text is at most so many times its MessagePack (a control character: 1 byte, as JSON a \\u escape of 6)."""

_NESTING = frozenset((dict, list, tuple))
"""What a plain value nests by: `plain` makes the types themselves, never their heirs."""

_HEIRS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (datetime, lambda value: datetime.combine(datetime.date(value), datetime.timetz(value))),
    (date, lambda value: date(value.year, value.month, value.day)),
)
"""Types that msgspec takes, but not their heirs (numpy's float, pandas' moment), and how an heir becomes one: by the
type's own method, where it is one, since what the heir makes of it may be anything.
"""

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


def encode(message: Any, what: str = "request") -> bytes:
    """A request body, or `what` of it. Raises: `Invalid` for what no encoding can carry (integers past 64 bits, lone
    surrogates)."""
    try:
        return _encode(message)
    except OverflowError as error:
        why = f"the {what} holds an integer of more than 64 bits: use a string"
        raise made_here("invalid", 422, "Invalid", why) from error
    except UnicodeEncodeError as error:
        raise made_here("invalid", 422, "Invalid", f"the {what} holds text that is not Unicode: {error}") from error


def plain(value: Any) -> Any:
    """`value` in JSON's types; an heir of one counts as that. Raises: TypeError when there is no such form."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_of_base_type)


def encode_value(value: Any, *, bytes_max: int, what: str) -> Raw:
    """`value` as MessagePack, to be set into a body.

    Raises: TypeError for what has no JSON form; `Invalid` for what the contract does not take (integers past 64 bits,
    lone surrogates, more than 100 levels, a value that contains itself); `TooLarge` (JSON over the limit).
    """
    try:
        value = plain(value)
        data = encode(value, what)
        # What is shorter than that can pass neither limit: most values end here.
        text = _encode_json(value) if len(data) > min(JSON_DEPTH_MAX, bytes_max // _JSON_PER_MSGPACK_BYTES) else b""
    except RecursionError as error:
        raise _nested(what) from error
    if len(text) > bytes_max:
        size = f"the {what} is {len(text)} bytes as JSON, over the limit of {bytes_max}"
        detail = f"{size}: store it elsewhere and pass where"
        raise made_here("too_large", 413, "Too large", detail)
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _too_deep(value):
        raise _nested(what)
    return Raw(data)


def _of_base_type(value: Any) -> Any:
    for base, convert in _HEIRS:
        if isinstance(value, base):
            return convert(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _too_deep(value: Any) -> bool:
    """Whether lists and objects lie in each other past the limit: level by level, as no recursion could be trusted."""
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [each for each in level if type(each) in _NESTING]
        if not level:
            return False
        level = list(chain.from_iterable([each.values() if type(each) is dict else each for each in level]))
    return True


def _nested(what: str) -> RequestError:
    return made_here(
        "invalid", 422, "Invalid", f"the {what} nests deeper than {JSON_DEPTH_MAX} levels, or holds itself"
    )
