"""A crontab as data: which lines are schedules, what their commands need, and which cannot be taken, and why.

After crontab(5) as Debian's and cronie's cron read it. Only reads text: which expressions the cluster takes is its own
word. Not here: making the schedules (`cli_import.py`), running commands (`shell.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

_SETTING: Final = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z_]\w*))\s*=\s*(.*?)\s*""", re.DOTALL)
_WORD: Final = re.compile(r"\s*(\S+)")
_SLUG: Final = re.compile(r"[^A-Za-z0-9]+")
_SLUG_CHARS: Final = 30
REBOOT: Final = "@reboot names no moment: run it where the machine starts, by a systemd unit for one"
MAIL: Final = (
    "no mail is sent: a command that fails is a failed attempt, in the end a dead job, with what it last printed"
)
FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A line that names moments and a command. `zone`: what CRON_TZ says; None: that of the host."""

    line: int
    cron: str
    command: str
    zone: str | None = None
    stdin: str | None = None
    user: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The line, for people."""
        return f"{self.cron} {self.command}"

    def schedule_id(self, prefix: str) -> str:
        """The same for the same line, wherever it stands: an import may be repeated."""
        content = "\0".join([self.cron, self.zone or "", self.user or "", self.command, self.stdin or ""])
        digest = blake2b(content.encode(), digest_size=4).hexdigest()
        words = _SLUG.sub("-", self.command).strip("-")[:_SLUG_CHARS].strip("-").lower()
        return "-".join(part for part in (prefix, words, digest) if part)

    def payload(self) -> dict[str, object]:
        """What `horae.shell` runs."""
        said = {"command": self.command, "stdin": self.stdin, "env": self.env or None, "user": self.user}
        return {key: value for key, value in said.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Left:
    """A line that cannot be taken, or means something else here."""

    line: int
    text: str
    why: str
    taken: bool = False


def read_crontab(text: str, *, system: bool = False) -> tuple[list[Entry], list[Left]]:
    """The schedules of a crontab, and what must be said of it. `system`: as /etc/crontab, with a user before the
    command."""
    entries: list[Entry] = []
    left: list[Left] = []
    env: dict[str, str] = {}
    zone: str | None = None
    for number, line in _lines(text):
        setting = _SETTING.fullmatch(line)
        if setting is not None:
            name, value = next(filter(None, setting.groups()[:3]), ""), _unquoted(setting[4])
            if name == "CRON_TZ":
                zone = value or None
            elif name == "MAILTO":
                if value:
                    left.append(Left(number, line, MAIL, taken=True))
            else:
                env = {**env, name: value}
            continue
        found = _entry(number, line, zone, env, system=system)
        if isinstance(found, Entry):
            entries.append(found)
        else:
            left.append(found)
    return entries, left


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """With their numbers; without those that are empty, or comments."""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def _entry(number: int, line: str, zone: str | None, env: dict[str, str], *, system: bool) -> Entry | Left:
    words = 1 if line.startswith("@") else FIELDS
    cron, rest = _words(line, words)
    if cron.lower() == "@reboot":
        return Left(number, line, REBOOT)
    user = None
    if system:
        user, rest = _words(rest, 1)
    if len(cron.split()) < words or (system and not user) or not rest:
        wanted = "a user and a command" if system else "a command"
        return Left(number, line, f"it is no setting, and not {words} fields with {wanted} behind them")
    command, stdin = _command(rest)
    return Entry(number, cron.lower() if words == 1 else cron, command, zone, stdin, user, env)


def _words(text: str, count: int) -> tuple[str, str]:
    """The first words, with a blank between them, and the rest."""
    found: list[str] = []
    for _ in range(count):
        word = _WORD.match(text)
        if word is None:
            break
        found.append(word[1])
        text = text[word.end() :]
    return " ".join(found), text.strip()


def _command(text: str) -> tuple[str, str | None]:
    """What is run, and what it is given to read: an unescaped `%` begins that, and is a line break in it."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", text)]
    return parts[0].strip(), "\n".join(parts[1:]) + "\n" if len(parts) > 1 else None


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
