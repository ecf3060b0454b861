"""Log lines with a stable event name and fields: `lease_lost job_id=… token=…`. No prose, no payloads, no secrets.

(A lease token is no secret: it fences, it does not authenticate.) A line is a line, whatever its fields hold; only a
traceback stands below its own. Control characters are shown, never sent to a terminal (`visible.py`).
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

from horae import visible

_log = logging.getLogger("horae")
_BARE = re.compile(r"[A-Za-z0-9_.:/@%+,-]+")


def event(level: int, name: str, /, **fields: Any) -> None:
    """One line; formatted only when the level is on."""
    if _log.isEnabledFor(level):
        _log.log(level, "%s", _line(name, fields))


def failure(name: str, /, **fields: Any) -> None:
    """An error with the traceback of the exception in hand."""
    _log.error("%s", _line(name, fields), exc_info=True)


def event_over(level: int, name: str, text: str | None, /, **fields: Any) -> None:
    """One line, and below it a text of many, such as a traceback."""
    if _log.isEnabledFor(level):
        line = _line(name, fields)
        _log.log(level, "%s", f"{line}\n{visible.lines(text.rstrip())}" if text else line)


def show(logger: str) -> None:
    """Print lines of `logger` ("" for all), info and up, on stderr, if the program has not set up logging itself."""
    if logging.getLogger().handlers or _log.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    shown = logging.getLogger(logger)
    shown.addHandler(handler)
    _log.setLevel(logging.INFO)


class _Formatter(logging.Formatter):
    """`2026-11-29T12:00:00.000Z info worker_started …`, as the nodes write theirs."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = f"{moment.replace('+00:00', 'Z')} {record.levelname.lower()} {record.getMessage()}"
        return visible.lines(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def fields_text(fields: dict[str, Any]) -> str:
    """`key=value key="another value"`."""
    return " ".join(f"{key}={_value(str(value))}" for key, value in fields.items())


def _line(name: str, fields: dict[str, Any]) -> str:
    return f"{name} {fields_text(fields)}" if fields else name


def _value(text: str) -> str:
    return text if _BARE.fullmatch(text) else visible.json_line(json.dumps(text, ensure_ascii=False))
