"""Log lines of the node: a stable event name and fields, one line each, no prose, no payloads, no tokens.

`get_log("raft").event("leader_elected", term=3)` writes
`2026-11-29T12:00:00.000Z info leader_elected node=n1 room=raft term=3`. Warning: somebody may have to act; error: a
promise is at risk. Lines of libraries come out as the event `library`. Not here: metrics, any choice of what to log.
Next to read: `metrics.py`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Final, TextIO

_ROOT: Final = "horae"
_BARE = re.compile(r"[A-Za-z0-9_.:/@%+-]+")


class Log:
    """One room's log. Cheap when the level is off: a comparison, the fields are not rendered."""

    __slots__ = ("_logger", "_room")

    def __init__(self, room: str) -> None:
        self._room = room
        self._logger = logging.getLogger(f"{_ROOT}.{room}")

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def event(self, event: str, **fields: object) -> None:
        """What changed, at level info."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, *, exc: BaseException | None = None, **fields: object) -> None:
        """A promise is at risk. `exc` adds its traceback below the line."""
        self._write(logging.ERROR, event, fields, exc)

    def _write(self, level: int, event: str, fields: dict[str, object], exc: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, exc_info=exc, extra={"horae_fields": {"room": self._room} | fields})


def get_log(room: str) -> Log:
    """The log of a room (`raft`, `leader`, `http` …). Writes nothing below a warning until `configure` was called."""
    return Log(room)


def configure(level: str, node_id: str, stream: TextIO | None = None) -> None:
    """Send every line to `stream` (standard error by default). A second call replaces the first."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Formatter(node_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))  # of libraries: warnings at least
    logging.getLogger(_ROOT).setLevel(level.upper())


class _Formatter(logging.Formatter):
    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] | None = getattr(record, "horae_fields", None)
        event = record.msg
        if fields is None:
            event, fields = "library", {"logger": record.name, "message": record.getMessage()}
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} {event} node={self._node_id}"
        line = " ".join([head, *(f"{name}={_render(value)}" for name, value in fields.items())])
        if record.exc_info and record.exc_info[0]:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _render(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
