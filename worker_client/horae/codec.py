"""Values to the wire: plain JSON values, as MessagePack, within the contract's limits.

Whatever a user hands in (dataclasses, Structs, dates, UUIDs, sets) is first brought down to JSON's own types, so that a
value reads the same whichever encoding carried it. Next to read: `client.py`, `worker.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from horae.errors import made_here

_JSON_PER_MSGPACK_BYTES = 6
"""JSON text is at most so many times its MessagePack (a control character: 1 byte, as JSON a \\u escape of 6)."""

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


def encode(message: Any) -> bytes:
    """A request body. Raises: `Invalid` for what no encoding can carry (integers past 64 bits, lone surrogates)."""
    try:
        return _encode(message)
    except OverflowError as error:
        raise made_here("invalid", 422, "Invalid", f"an integer of more than 64 bits: {error}") from error
    except UnicodeEncodeError as error:
        raise made_here("invalid", 422, "Invalid", f"text that is not Unicode: {error}") from error


def plain(value: Any) -> Any:
    """`value` in JSON's types. Raises: TypeError when there is no such form."""
    return msgspec.to_builtins(value, str_keys=True)


def encode_value(value: Any, *, bytes_max: int, what: str) -> Raw:
    """`value` as MessagePack, to be set into a body. Raises: TypeError, `Invalid`, `TooLarge` (JSON over the limit)."""
    value = plain(value)
    data = encode(value)
    if len(data) * _JSON_PER_MSGPACK_BYTES > bytes_max and (size := len(_encode_json(value))) > bytes_max:
        detail = f"the {what} is {size} bytes as JSON, over the limit of {bytes_max}: store it elsewhere and pass where"
        raise made_here("too_large", 413, "Too large", detail)
    return Raw(data)
