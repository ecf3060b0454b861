"""A task as its callers see it: what its handler takes, as a job to submit, by the thousand, or on a schedule.

`ship.submit(order=7)` beside `ship(order=7)`: the arguments are checked against the handler's own signature, by a type
checker and once more when the job is made, before anything is sent. Not here: how a handler gets its payload
(`registry.py`), the calls (`client.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from horae.calls import require_known
from horae.jobs import Job, JobOptions, NewJob
from horae.schedules import Schedule, ScheduleTerms

if TYPE_CHECKING:
    from typing import Unpack

    from horae.blocking import Client
    from horae.registry import Task

P = ParamSpec("P")
R = TypeVar("R")

_UNNAMED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class TaskHandle(Generic[P, R]):
    """A registered handler: called, it is the function itself; its other methods make jobs of it.

    `submit`, `map` and `schedule` block, and talk to the worker's own cluster. In async code, or with a client of your
    own: `await client.submit_job(ship.job(order=7))`, `await client.put_schedule("nightly", ship.job(order=7), …)`.
    """

    def __init__(
        self, task: Task, client: Callable[[], Client], options: JobOptions, handler: Callable[..., R]
    ) -> None:
        """`client`: where jobs go, asked for when one does; `options`: of each job, unless it says otherwise."""
        require_known("task", options, JobOptions.__optional_keys__)
        self._task = task
        self._client = client
        self._options = options
        self._handler = handler
        functools.update_wrapper(self, handler)

    @property
    def name(self) -> str:
        return self._task.name

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The handler, here and now; its `Context`, if it takes one, is the first argument."""
        return self._handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    def options(self, **options: Unpack[JobOptions]) -> TaskHandle[P, R]:
        """The same task, whose jobs have these keys of a submit: `ship.options(delay_seconds=60).submit(order=7)`."""
        return TaskHandle(self._task, self._client, {**self._options, **options}, self._handler)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """The job of such a call. Raises: TypeError when the handler would not take it."""
        payload = _payload(self._task, args, kwargs)
        return NewJob(task=self.name, payload=payload, **self._options)  # type: ignore[typeddict-item, unused-ignore]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Submit it; it is durable when this returns. Raises: as `job`, and as `Client.submit`."""
        return self._client().submit_job(self.job(*args, **kwargs)).job

    def map(self, calls: Iterable[Mapping[str, Any] | tuple[Any, ...]]) -> list[Job]:
        """One job for each: its named arguments, or a tuple of those in order. All are checked before any is sent.

        Raises: as `submit`; `PartlyRefused` as `Client.submit_many`.
        """
        made = [self.job(*call) if isinstance(call, tuple) else self.job(**call) for call in calls]  # type: ignore[call-arg]
        return self._client().submit_many(made)

    def schedule(
        self, schedule_id: str, arguments: Mapping[str, Any] | None = None, **terms: Unpack[ScheduleTerms]
    ) -> Schedule:
        """Make or replace a schedule whose triggers call it with these: `ship.schedule("nightly", cron="0 2 * * *")`.

        Raises: as `job`, and as `Client.put_schedule`.
        """
        return self._client().put_schedule(schedule_id, self.job(**arguments or {}), **terms)  # type: ignore[call-arg]


def _payload(task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    signature = _signature(task)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"task {task.name!r} takes {signature}: {error}") from None
    if task.whole:
        return bound.arguments.get("payload")
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind in _UNNAMED:
            raise TypeError(f"task {task.name!r}: {name!r} has no name in a payload: make it a keyword argument")
        named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return named or None


def _signature(task: Task) -> inspect.Signature:
    """Of the handler, less its context."""
    signature = inspect.signature(task.handler)
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[task.takes_context :])
