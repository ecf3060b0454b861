"""What a worker or a client is given, checked at once: a wrong argument is named before anything is sent.

Pure functions. Not here: base URLs (`nodes.py`), handlers (`registry.py`), payloads (`codec.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from horae import wire
from horae.nodes import shown


def queue_names(queues: Any) -> list[str]:
    """The names, in order. Raises: TypeError, ValueError."""
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise TypeError(f"queues is a list of names: write queues=[{queues!r}]")
    names = list(queues)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"queues: a queue's name is text, not {name!r}")
        if not _is(name, wire.QueueName):
            raise ValueError(f"queues: {name!r} is no queue's name: use 1 to 100 of the characters A-Z a-z 0-9 _ . -")
    return names


def worker_name(name: Any) -> str:
    """Raises: TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"name is text, not {name!r}")
    if not _is(name, wire.WorkerName):
        raise ValueError(f"name: {name!r} is no worker's name: use 1 to 200 characters on one line")
    return name


def require_whole(argument: str, given: Any, least: int, most: int) -> int:
    """Raises: TypeError, ValueError."""
    if type(given) is not int:
        raise TypeError(f"{argument} is a whole number, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{argument} is {least} to {most}, not {given}")
    return given


def require_seconds(argument: str, given: Any, least: float, most: float) -> float:
    """Raises: TypeError, ValueError."""
    if type(given) not in (int, float):
        raise TypeError(f"{argument} is a number of seconds, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{argument} is {least:g} to {most:g} seconds, not {given:g}")
    return float(given)


def credentials(urls: Iterable[str], token: str | None) -> None:
    """Raises: ValueError when the token is none, or another way in stands in a URL: one request carries one."""
    if token and not token.isprintable():
        raise ValueError("token: it has characters that no token has, a line break perhaps")
    for url in urls if token else ():
        if urlsplit(url).username is not None:
            raise ValueError(f"{shown(url)} names a user, and there is a token: give one of them")


def require_no_nan(argument: str, given: float) -> float:
    """Not a number is neither early nor late: what waits for it waits for ever. Raises: TypeError, ValueError."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError(f"{argument} is a number of seconds, not {given!r}")
    if given != given:
        raise ValueError(f"{argument} is a number of seconds, not nan")
    return given


def _is(value: str, shape: Any) -> bool:
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError:
        return False
    return True
