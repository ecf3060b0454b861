"""The tasks a worker knows, how each wants its payload, and the `Context` that a handler may ask for.

Not here: running them (`runner.py`).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import typing
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from horae import codec, errors, logs, wire
from horae.hooks import Hooks
from horae.jobs import AttemptError, Claim
from horae.leases import Lease, LeaseKeeper

_log = logging.getLogger("horae.task")


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """A program's own lines about a job. A handler of logging finds the fields in the record, too."""

    def __init__(self, job: Claim) -> None:
        super().__init__(_log, {"job_id": job.id, "task": job.task, "attempt": job.attempt})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            fields = dict(self.extra or {})
            text = logs.fields_text(fields)
            if args:
                text = text.replace("%", "%%")
            kwargs["extra"] = fields | (kwargs.get("extra") or {})
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
            self.logger.log(level, f"{msg} {text}", *args, **kwargs)


class Context:
    """What a handler may know about its own attempt. Any thread may use it."""

    __slots__ = ("_keeper", "_lease", "_stopping", "job", "log")

    def __init__(self, job: Claim, lease: Lease, keeper: LeaseKeeper, stopping: Callable[[], str]) -> None:
        self.job = job
        self._lease = lease
        self._keeper = keeper
        self._stopping = stopping
        self.log = JobLog(job)
        """Lines of the logger `horae.task`, each with the job's id, task and attempt."""

    @property
    def job_id(self) -> str:
        return self.job.id

    @property
    def execution_id(self) -> str:
        """The same over all attempts: the key under which an effect happens once."""
        return self.job.execution_id

    @property
    def attempt(self) -> int:
        """1 at the first."""
        return self.job.attempt

    @property
    def fencing_token(self) -> int:
        """Grows with every attempt. A store that refuses lower ones is safe from late writers."""
        return self.job.lease_token

    @property
    def lease_token(self) -> int:
        """The fencing token, as the contract calls it."""
        return self.job.lease_token

    @property
    def deadline(self) -> datetime:
        """When the attempt is cut off, on the cluster's clock."""
        return self.job.timeout_at

    @property
    def last_progress(self) -> Any:
        """The last `progress` that an earlier attempt left; None if none did."""
        return self.job.progress

    @property
    def last_error(self) -> AttemptError | None:
        """How the last attempt failed."""
        return self.job.last_error

    def progress(self, value: Any) -> None:
        """Leave a mark for people and for the next attempt. Sent within a second or so, the newest one only.

        Raises: TypeError when it has no JSON form, `TooLarge` over 64 KiB.
        """
        raw = codec.encode_value(value, bytes_max=wire.PROGRESS_BYTES_MAX, what="progress")
        self._keeper.set_progress(self._lease, raw)

    @property
    def cancel_reason(self) -> str:
        """`cancel_requested`, `lease_lost`, `lease_expired`, `timeout`, `stopping`; empty while all is well."""
        return self._lease.stop_reason or self._stopping()

    @property
    def cancelled(self) -> bool:
        """The handler should stop. Async ones are cancelled anyway; a handler in a thread must look here."""
        return bool(self.cancel_reason)

    def raise_if_cancelled(self) -> None:
        """Raises: `JobCancelled`, to be let through, when the handler should stop."""
        reason = self.cancel_reason
        if reason:
            raise errors.JobCancelled(reason)


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A handler and how it is called."""

    name: str
    handler: Callable[..., Any]
    is_async: bool
    takes_context: bool
    whole: bool
    """One parameter named `payload`: it gets the payload as it is. Else the keys of an object payload are arguments."""
    shape: type | None
    """The type that a whole payload is converted to: a dataclass or a Struct."""

    def bind(self, context: Context, payload: Any) -> Callable[[], Any]:
        """The call, ready to be made. Raises: TypeError, msgspec.ValidationError when the payload does not fit."""
        first = (context,) if self.takes_context else ()
        if self.whole:
            value = payload if self.shape is None else msgspec.convert(payload, self.shape)
            return lambda: self.handler(*first, value)
        if payload is None:
            return lambda: self.handler(*first)
        if not isinstance(payload, dict):
            kind = type(payload).__name__
            raise TypeError(f"task {self.name!r} takes named values: its payload must be an object, not {kind}")
        return lambda: self.handler(*first, **payload)


class Registry:
    """Tasks by name, in the order of their registration."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self.hooks = Hooks()

    def add(self, name: str, handler: Callable[..., Any]) -> Task:
        """Raises: ValueError when the name is taken or not one, TypeError when the handler is a generator function."""
        if not 1 <= len(name) <= 200:
            raise ValueError(f"a task's name has 1 to 200 characters: {name!r}")
        if name in self._tasks:
            raise ValueError(f"task {name!r} is registered twice")
        _require_no_generator(name, handler)
        task = self._tasks[name] = _inspect(name, handler)
        return task

    def get(self, name: str) -> Task | None:
        return self._tasks.get(name)

    def names(self) -> list[str]:
        return list(self._tasks)


def _inspect(name: str, handler: Callable[..., Any]) -> Task:
    parameters = list(inspect.signature(handler).parameters.values())
    hints = _hints(handler)
    takes_context = bool(parameters) and _is_context(parameters[0], hints)
    rest = parameters[1:] if takes_context else parameters
    whole = len(rest) == 1 and rest[0].name == "payload" and rest[0].kind is not rest[0].VAR_KEYWORD
    hint = hints.get("payload") if whole else None
    shape = hint if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or _is_struct(hint)) else None
    is_async = _is(inspect.iscoroutinefunction, handler)
    return Task(name, handler, is_async, takes_context, whole, shape)


def _require_no_generator(name: str, handler: Callable[..., Any]) -> None:
    """A call of one runs nothing of it: each attempt would fail with a result that has no JSON form."""
    if _is(inspect.isgeneratorfunction, handler) or _is(inspect.isasyncgenfunction, handler):
        raise TypeError(
            f"task {name!r} is a generator function (it has a yield), and its body would never run: return the result "
            "instead, and tell what is done so far with context.progress(...)"
        )


def _is(kind: Callable[[Any], bool], handler: Callable[..., Any]) -> bool:
    """Of this kind, itself or as an object that is called."""
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004


def _is_struct(hint: type) -> bool:
    return issubclass(hint, msgspec.Struct)


def _is_context(parameter: inspect.Parameter, hints: dict[str, Any]) -> bool:
    hint = hints.get(parameter.name)
    return hint is Context or (hint is None and parameter.name in ("ctx", "context"))


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    """The annotations, resolved; those that cannot be (names known to type checkers only) count as none."""
    try:
        return typing.get_type_hints(handler)
    except (NameError, TypeError, AttributeError):
        return {}
