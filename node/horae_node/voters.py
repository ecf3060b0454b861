"""Who the members are, written down beside the data: what a node must know before it has read its state.

At the first start the configured ids, so that a node cannot come back with other voters and outvote its old peers with
them. Once members were changed by a command, the newest roster that the node knows, addresses and all: from then on
the configuration's members are not obeyed. Not here: who counts (the state says, `raft/members.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from horae_node.config import parse_address
from horae_node.errors import ConfigError
from horae_node.raft.port import Member, Roster
from horae_storage.files import write_atomically

VOTERS_FILE: Final = "voters.json"


class _Book(msgspec.Struct, forbid_unknown_fields=True):
    at_index: int
    voters: list[Member]
    learners: list[Member]
    removed: list[str]
    crc32: int | None = None
    """Of the others; none in a file of before there was one. A number that a flipped bit made great would be newer than
    any that the cluster writes, and be told to all others."""

    @property
    def sum(self) -> int:
        return crc32(msgspec.json.encode((self.at_index, self.voters, self.learners, self.removed)))


def read_voters(data_dir: Path) -> list[str] | None:
    """The ids of the voters as last written down; None before the first start. Raises: `ConfigError`."""
    found = _read(data_dir)
    if isinstance(found, _Book):
        return [member.node_id for member in found.voters]
    return found


def read_members(data_dir: Path) -> Roster | None:
    """The newest roster known; None while the members are those of the configuration. Raises: `ConfigError`."""
    found = _read(data_dir)
    if not isinstance(found, _Book):
        return None
    return Roster(found.at_index, tuple(found.voters), tuple(found.learners), frozenset(found.removed))


def write_voters(data_dir: Path, ids: list[str]) -> None:
    """The members are these, as configured. Whole or not at all, also after a power cut."""
    write_atomically(data_dir / VOTERS_FILE, msgspec.json.encode(ids) + b"\n")


def forget_voters(data_dir: Path) -> None:
    """As before the first start. Only for a node that has acknowledged nothing. Raises: `OSError`."""
    (data_dir / VOTERS_FILE).unlink(missing_ok=True)


def write_members(data_dir: Path, book: Roster) -> None:
    """The members are these, whatever is configured. Whole or not at all."""
    kept = _Book(book.at_index, list(book.voters), list(book.learners), sorted(book.removed))
    kept.crc32 = kept.sum
    write_atomically(data_dir / VOTERS_FILE, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def _require_sense(book: _Book) -> None:
    """Raises: ValueError."""
    if not 0 <= book.at_index < 2**63:
        raise ValueError(f"at_index is {book.at_index}")
    for member in (*book.voters, *book.learners):
        parse_address(member.raft_address)


def _read(data_dir: Path) -> _Book | list[str] | None:
    path = data_dir / VOTERS_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Book | list[str])
        if isinstance(found, _Book) and found.crc32 not in (None, found.sum):
            raise ValueError("its checksum is another")
        if isinstance(found, _Book):
            _require_sense(found)
        return found
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): remove it, once `members` in the configuration are sure to be "
            "those that the cluster began with (a node that joined has them in its state)"
        ) from error
