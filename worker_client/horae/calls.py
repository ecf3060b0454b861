"""What the client's calls are made of: parts of a path, moments, jobs that are ready to send. Talks to nobody."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from horae import codec, errors, wire
from horae.ids import new_id
from horae.jobs import JobFilter, NewJob

_NO_PART = frozenset({"", ".", ".."})


def query(asked: Mapping[str, str | None]) -> str:
    """Of what was asked, without what was left open."""
    return urlencode({key: value for key, value in asked.items() if value is not None})


def part(name: str, pointer: str) -> str:
    """One part of a path. Raises: TypeError; `Invalid` for what no URL can carry there: it would be another path."""
    if not isinstance(name, str):
        raise TypeError(f"{pointer[1:]} is text, not {name!r}")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError:
        quoted = ""
    if quoted in _NO_PART:
        raise errors.invalid_here(pointer, f"{name!r} names nothing that there could be")
    return quoted


def require_known(call: str, given: Mapping[str, object], known: frozenset[str]) -> None:
    """Raises: TypeError for an option that is none, with the one that was meant."""
    unknown = given.keys() - known
    if unknown:
        name = min(unknown)
        close = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
        raise TypeError(f"{call}() has no option {name!r}: {meant}")


def wanted_jobs(call: str, which: JobFilter, every: bool) -> dict[str, object]:
    """The filters that are given. Raises: TypeError where none is, and nobody said that all jobs are meant: a filter
    that came out empty must not change every job of the cluster."""
    require_known(call, which, JobFilter.__optional_keys__)
    wanted = {key: value for key, value in which.items() if value is not None}
    if not wanted and not every:
        filters = ", ".join(sorted(JobFilter.__optional_keys__))
        raise TypeError(f"{call}() of no filter means every job of the cluster: give one of {filters}, or every=True")
    if wanted and every:
        raise TypeError(f"{call}() has {', '.join(sorted(wanted))} and every=True: leave one out")
    return wanted


def filled(job: NewJob) -> NewJob:
    """A copy that is ready to send, with an id, as has the job that follows it."""
    copy = settled(job)
    one: NewJob | None = copy
    while one is not None:
        if one.id is None:
            one.id = new_id()
        one = one.then
    return copy


def settled(job: NewJob) -> NewJob:
    """A copy that is ready to send: its payload encoded once, its moments as text; ids as they were given."""
    if not isinstance(job, NewJob):
        kind = type(job).__name__
        raise TypeError(f"a job to submit is a NewJob(task=..., payload=...), not a {kind}: write NewJob(**job)")
    copy: NewJob = msgspec.structs.replace(
        job,
        payload=codec.encode_value(job.payload, bytes_max=wire.PAYLOAD_BYTES_MAX, what="payload"),
        run_at=moment(job.run_at),
        expires_at=moment(job.expires_at),
        then=None if job.then is None else settled(job.then),
    )
    return copy


def moment(value: Any) -> Any:
    """RFC 3339. A time without an offset stays one, for the cluster to refuse by its field."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, datetime):
        raise TypeError(f"a moment is a datetime with an offset, or RFC 3339 text, not {value!r}")
    return value.isoformat()
