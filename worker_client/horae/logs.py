"""Log lines with a stable event name and fields: `lease_lost job_id=… token=…`. No prose, no payloads, no secrets.

(A lease token is no secret: it fences, it does not authenticate.)
"""

from __future__ import annotations

import logging
from typing import Any

_log = logging.getLogger("horae")


def event(level: int, name: str, /, **fields: Any) -> None:
    """One line; formatted only when the level is on."""
    if _log.isEnabledFor(level):
        _log.log(level, "%s %s", name, " ".join(f"{key}={value!s}" for key, value in fields.items()))


def failure(name: str, /, **fields: Any) -> None:
    """An error with the traceback of the exception in hand."""
    _log.error("%s %s", name, " ".join(f"{key}={value!s}" for key, value in fields.items()), exc_info=True)
