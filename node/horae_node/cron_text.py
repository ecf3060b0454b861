"""A crontab line as text: read, refused with the fix, its `H` spread by a seed, and spelled so that croniter reads it.

Five fields, or six with seconds first, or `@hourly` and its kin. Pure text: knows no time and no zone. What croniter 7
would read differently from crontab(5) is spelled away here (each place says how); what differs from node to node (`R`,
chance) is refused. Evaluated in `cron.py`.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, NamedTuple

TEXTS_MAX: Final = 8192
"""Distinct lines kept read: some hundreds are usual, each under 1 KB."""

CRON_CHARS_MAX: Final = 400
"""Every second written out in a list has 170: nothing sensible is longer."""


class CronError(ValueError):
    """A schedule that cannot be: `field` is the key of the contract that is wrong, the message names the fix."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Field(NamedTuple):
    """One field's name and bounds; `spread_to` is the last value that `H` may take."""

    name: str
    low: int
    high: int
    spread_to: int


class Line(NamedTuple):
    """A line as read: names are numbers, letters lower case; `H` is still in it."""

    fields: tuple[str, ...]
    follows_elapsed: bool
    """The hour is a wildcard, range or step: triggers follow elapsed time, not fixed local times."""
    has_spread: bool


SECOND: Final = Field("second", 0, 59, 59)
DAY: Final = Field("day-of-month", 1, 31, 28)
"""`H` is a day that every month has: a monthly job never misses a month."""
MONTH: Final = Field("month", 1, 12, 12)
WEEKDAY: Final = Field("day-of-week", 0, 7, 6)
FIELDS: Final = (Field("minute", 0, 59, 59), Field("hour", 0, 23, 23), DAY, MONTH, WEEKDAY)

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_NAMES: Final = {
    MONTH: {name: str(number) for number, name in enumerate(_MONTHS, 1)},
    WEEKDAY: {name: str(number) for number, name in enumerate(_WEEKDAYS)},
}
_PLAIN: Final = re.compile(r"(?:\*|(?P<low>\d+)(?:-(?P<high>\d+))?)(?:/(?P<step>\d+))?", re.ASCII)
_SPREAD: Final = re.compile(r"h(?:\((?P<low>\d+)-(?P<high>\d+)\))?(?:/(?P<step>\d+))?", re.ASCII)
_NEAREST: Final = re.compile(r"w(?P<a>\d+)|(?P<b>\d+)w", re.ASCII)
_LAST: Final = re.compile(r"l(?P<a>\d)|(?P<b>\d)l", re.ASCII)
_NTH: Final = re.compile(r"(?P<low>\d)(?:-(?P<high>\d))?#(?P<nth>\d+)", re.ASCII)


@lru_cache(TEXTS_MAX)
def read(cron: str) -> Line:
    """The line's fields, checked one by one. Raises: `CronError`, naming the field and what it takes."""
    text = _unaliased(cron)
    parts = text.lower().split()
    if len(parts) not in (5, 6):
        raise CronError(
            "cron", f"{len(parts)} fields: write 5 (minute hour day month weekday), or 6 with seconds first"
        )
    kinds = FIELDS if len(parts) == 5 else (SECOND, *FIELDS)
    fields = tuple(_read_field(kind, part) for kind, part in zip(kinds, parts, strict=True))
    hour = re.sub(r"\(.*?\)", "", parts[-4])
    return Line(fields, any(sign in hour for sign in "*/-"), any("h" in field for field in fields))


def expressions(line: Line, seed: str) -> tuple[str, ...]:
    """One text for croniter, or two of which either matches: seconds first, without `H`.

    Day-of-month and day-of-week are or-ed if both are restricted, and restricted means, as in Vixie's and Debian's
    cron, that a field does not start with a star (`*/2` is and-ed). We take them apart because croniter, which would
    or them itself, forgets one of the two where the other is `#`, `L` or `W`.
    """
    kinds = FIELDS if len(line.fields) == 5 else (SECOND, *FIELDS)
    *clock, day, month, weekday = (
        _spread_field(seed, kind, field) for kind, field in zip(kinds, line.fields, strict=True)
    )
    if day.startswith("*") or weekday.startswith("*"):
        return (" ".join([*clock, day, month, weekday]),)
    return " ".join([*clock, day, month, "*"]), " ".join([*clock, "*", month, weekday])


def _unaliased(cron: str) -> str:
    if len(cron) > CRON_CHARS_MAX:
        raise CronError("cron", f"{len(cron)} characters: write at most {CRON_CHARS_MAX}, with ranges and steps")
    if not cron.isascii():
        raise CronError("cron", "has characters that are not ASCII: write digits, English names and * , - / # ?")
    if not cron.strip().startswith("@"):
        return cron
    if (alias := ALIASES.get(cron.strip().lower())) is None:
        raise CronError("cron", f"{cron.strip()!r} is unknown: write one of {', '.join(ALIASES)}, or 5 fields")
    return alias


def _read_field(kind: Field, text: str) -> str:
    if text == "?" and kind in (DAY, WEEKDAY):
        return "*"
    names = _NAMES.get(kind, {})
    numbered = re.sub("|".join(names), lambda name: names[name[0]], text) if names else text
    items = [_read_item(kind, item) for item in numbered.split(",")]
    if kind is DAY and len(items) > 1 and any("w" in item for item in items):
        raise CronError("cron", f"day-of-month {text!r}: W stands alone in its field; write a schedule for each")
    if kind is WEEKDAY and 0 < sum("#" in item or "l" in item for item in items) < len(items):
        raise CronError("cron", f"day-of-week {text!r}: plain days and # or L do not mix; write a schedule for each")
    return ",".join(items)


def _read_item(kind: Field, item: str) -> str:
    """One item of a list, as croniter reads it rightly."""
    if (plain := _PLAIN.fullmatch(item)) is not None:
        return _read_plain(kind, item, **plain.groupdict())
    if (spread := _SPREAD.fullmatch(item)) is not None:
        _read_plain(kind, item, **spread.groupdict())
        return item
    special = _read_day(item) if kind is DAY else _read_weekday(item) if kind is WEEKDAY else None
    if special is not None:
        return special
    if item.startswith("r"):
        raise CronError("cron", f"{kind.name} {item!r} is drawn anew on each node: write H, which stays")
    raise CronError("cron", f"{kind.name} {item!r} is not understood: {_help(kind)}")


def _read_plain(kind: Field, item: str, low: str | None, high: str | None, step: str | None) -> str:
    """Bounds and step are right. A range of one value becomes that value (croniter reads `5-5` as the whole field, and
    `7-0` as all week), and a weekday's `1/2` goes on to 7, which is Sunday."""
    for number in (low, high):
        if number is not None and not kind.low <= int(number) <= kind.high:
            raise CronError("cron", f"{kind.name} {item!r} is out of range: {_help(kind)}")
    if step is not None and int(step) == 0:
        raise CronError("cron", f"{kind.name} {item!r} has a step of 0: write 1 or more")
    if item.startswith("h") and low is not None and high is not None and int(low) > int(high):
        raise CronError("cron", f"{kind.name} {item!r} runs backwards: write H(from-to) with from before to")
    if kind is WEEKDAY and low is not None and high is None and step is not None:
        high, item = "7", f"{low}-7/{step}"
    if low is None or high is None or item.startswith("h"):
        return item
    is_one = int(low) == int(high) or (kind is WEEKDAY and (int(low), int(high)) == (7, 0))
    return low if is_one else item


def _read_day(item: str) -> str | None:
    """`L` is the month's last day, `15W` the weekday nearest to the 15th."""
    if item == "l":
        return item
    if (last := re.fullmatch(r"(\d+)-l(/\d+)?", item, re.ASCII)) is not None:
        return _read_item(DAY, f"{last[1]}-31{last[2] or ''}")
    if (nearest := _NEAREST.fullmatch(item)) is not None:
        day = _read_item(DAY, nearest["a"] or nearest["b"])
        return f"{day}w"
    return None


def _read_weekday(item: str) -> str | None:
    """`5L` (Quartz) and `L5` (croniter) are the month's last Friday, `5#2` its second one."""
    if (last := _LAST.fullmatch(item)) is not None:
        return "l" + _read_item(WEEKDAY, last["a"] or last["b"])
    if (nth := _NTH.fullmatch(item)) is None:
        return None
    if not 1 <= int(nth["nth"]) <= 5:
        raise CronError("cron", f"day-of-week {item!r}: write #1 to #5, or L for the month's last")
    _read_plain(WEEKDAY, item, nth["low"], nth["high"], None)
    first, last_day = int(nth["low"]), int(nth["high"] or nth["low"])
    if first > last_day:
        raise CronError("cron", f"day-of-week {item!r} runs backwards: write the earlier day first")
    return ",".join(f"{day}#{nth['nth']}" for day in range(first, last_day + 1))


def _help(kind: Field) -> str:
    extra = {DAY: ", L, 15W", MONTH: ", jan-dec", WEEKDAY: ", sun-sat, 5#2, L5"}.get(kind, "")
    return f"write {kind.low}-{kind.high}{extra}, *, a list, a range, a step, or H"


def _spread_field(seed: str, kind: Field, text: str) -> str:
    """Fills in `H`: the same seed and field give the same value on every node and in every process.

    Each field has a hash of its own (croniter shifts one CRC, so that its fields go together).
    """
    if "h" not in text:
        return text
    digest = hashlib.blake2b(f"{kind.name}\0{seed}".encode(), digest_size=8, person=b"horae cron").digest()
    number = int.from_bytes(digest, "big")
    return _SPREAD.sub(lambda found: _spread(kind, number, found), text)


def _spread(kind: Field, number: int, found: re.Match[str]) -> str:
    """`H` is one value of its range; `H/15` steps from one of the first 15, and stays in the range."""
    low = kind.low if found["low"] is None else int(found["low"])
    high = kind.spread_to if found["high"] is None else int(found["high"])
    if found["step"] is None:
        return str(low + number % (high - low + 1))
    first = low + number % min(int(found["step"]), high - low + 1)
    return str(first) if first == high else f"{first}-{high}/{found['step']}"
