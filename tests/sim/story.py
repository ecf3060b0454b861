"""A run told line by line: the simulator's own words, and what the nodes wrote into their logs, on virtual time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str], None]


class _Teller(logging.Handler):
    """Lines of the nodes' logs in the place of their time of day."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, object] = getattr(record, "horae_fields", {})
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        error = record.exc_info[1] if record.exc_info else None
        self._tell(f"  {record.getMessage()} {text}" + (f" {error!r}" if error is not None else ""))


class Story:
    """Where a run tells itself; `stamp` says when and who, once a run has begun."""

    def __init__(self, write: Tell) -> None:
        self._write = write
        self.stamp: Callable[[], str] = lambda: ""

    def __call__(self, line: str) -> None:
        self._write(self.stamp() + line)


@contextmanager
def telling_logs(write: Tell) -> Iterator[Story]:
    """A story to hand to `cluster.run`; while this lasts, the nodes' logs go into it."""
    story = Story(write)
    logger = logging.getLogger("horae")
    handler, level, propagate = _Teller(story), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield story
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
