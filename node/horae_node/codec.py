"""Log entries as bytes: `[version, epoch, now_ms, lease_clock, [[tag, field, …], …]]` in MessagePack.

Each command is packed once, when it arrives; an entry is a header and those bytes joined. An unknown version or tag,
or a command with another number of fields, is `Outdated`: this build must not guess what a newer one meant.
Next to read: `core/commands.py`, `proposer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from horae_node.core.commands import (
    ENTRY_VERSION,
    TAGS,
    BackfillSchedule,
    Command,
    FireSchedule,
    Header,
    PutSchedule,
    ResumeSchedule,
    SubmitBatch,
    SubmitJob,
)
from horae_node.core.model import Occurrence
from horae_node.core.tables import LINKS_FIELD, schedule_spec_of, spec_of
from horae_node.errors import Fatal, Outdated

_packer = msgpack.Packer(use_bin_type=True, autoreset=True)
_pack = _packer.pack
_TAG_OF: dict[type, int] = {command: tag for tag, command in TAGS.items()}

HEADER_BYTES_MAX = 64
"""More than any header and array prefix takes: what a proposer leaves free in an entry."""


def pack_command(command: Command) -> bytes:
    """One command as bytes, ready to be joined into an entry. Raises: ValueError for text that is not Unicode."""
    packed: bytes = _pack((_TAG_OF[type(command)], *command))
    return packed


def pack_value(value: object) -> bytes:
    """Plain data as bytes: equal values give equal bytes."""
    packed: bytes = _pack(value)
    return packed


def join_entry(header: Header, blobs: Sequence[bytes]) -> bytes:
    """An entry of packed commands."""
    head = b"\x95" + b"".join(map(_pack, header)) + _packer.pack_array_header(len(blobs))
    entry: bytes = head + b"".join(blobs)
    return entry


_Decoded = tuple[Header, tuple[Command, ...]]
_OWN_MAX = 32
_OWN_BYTES_MAX = 64 * 1024
_SIGN_BYTES = 64


class OwnEntries:
    """The entries of submits alone that one node has under way: its proposer puts them in, its applier takes them out.

    It spares the leader a decoding, which costs a twentieth of what it does for each submit. What was packed is what
    would be decoded, down to the types (`tests/unit/node/test_codec.py`).
    """

    def __init__(self) -> None:
        self._by_signature: dict[tuple[int, bytes], tuple[bytes, _Decoded]] = {}

    def remember(self, entry: bytes, header: Header, commands: tuple[SubmitJob, ...]) -> None:
        if len(entry) > _OWN_BYTES_MAX:
            return
        if len(self._by_signature) == _OWN_MAX:
            self._by_signature.clear()  # of a leadership that ended: what is under way is fewer
        self._by_signature[_signature(entry)] = entry, (header, commands)

    def split(self, entry: bytes) -> _Decoded:
        """What `split_entry` gives, and raises; an entry remembered is given once."""
        if self._by_signature:
            found = self._by_signature.pop(_signature(entry), None)
            if found is not None and found[0] == entry:
                return found[1]
        return split_entry(entry)


def _signature(entry: bytes) -> tuple[int, bytes]:
    """Cheaper than a hash of all of it; whoever finds a match compares the whole."""
    return len(entry), entry[:_SIGN_BYTES]


def split_entry(entry: bytes) -> _Decoded:
    """The header and the commands of an entry. Raises: `Outdated` for what this build does not know, `Fatal`."""
    try:
        version, epoch, now_ms, lease_clock, commands = msgpack.unpackb(entry, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Fatal(f"a log entry does not decode ({error}); run the version that wrote it") from error
    if version != ENTRY_VERSION:
        raise Outdated(
            f"log entry version {version} is not known to this build (knows {ENTRY_VERSION}); upgrade this node"
        )
    return Header(version, epoch, now_ms, lease_clock), tuple(map(_command, commands))


def _submit(fields: tuple[Any, ...]) -> SubmitJob:
    """Raises: TypeError for another shape. A spec may have its links as one field more (`links_of`)."""
    spec = fields[0]
    if len(spec) not in (LINKS_FIELD, LINKS_FIELD + 1):
        raise TypeError(f"a job's spec has {len(spec)} fields")
    return SubmitJob(spec_of(spec), *fields[1:])


def _occurrence(fields: tuple[Any, ...] | None) -> Occurrence | None:
    return None if fields is None else Occurrence(*fields)


def _occurrences(each: tuple[tuple[Any, ...], ...]) -> tuple[Occurrence, ...]:
    return tuple([Occurrence(*fields) for fields in each])


def _command(fields: tuple[Any, ...]) -> Command:
    command = TAGS.get(fields[0])
    if command is None:
        raise Outdated(f"command tag {fields[0]} is not known to this build; upgrade this node")
    try:
        if command is SubmitJob:
            return _submit(fields[1:])
        if command is SubmitBatch:
            return SubmitBatch(tuple(map(_submit, fields[1])))
        if command is PutSchedule:
            return PutSchedule(schedule_spec_of(fields[1]), fields[2], _occurrence(fields[3]), *fields[4:])
        if command is ResumeSchedule:
            return ResumeSchedule(fields[1], _occurrence(*fields[2:]))
        if command is FireSchedule:
            return FireSchedule(fields[1], _occurrences(fields[2]), _occurrence(fields[3]), *fields[4:])
        if command is BackfillSchedule:
            return BackfillSchedule(fields[1], _occurrences(*fields[2:]))
        return command._make(fields[1:])  # type: ignore[attr-defined, no-any-return]
    except TypeError as error:
        raise Outdated(
            f"command {command.__name__} has another shape in this log ({error}); upgrade this node"
        ) from error
