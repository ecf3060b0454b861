"""horae for its users: submit jobs (`Client`, `AsyncClient`), run them (`Worker`), and the contract itself (`wire`).

Imports nothing of the server. Names are loaded when first used: the server takes `horae.wire` from here and must not
pay for, or depend on, the client. Next to read: `client.py`, `worker.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horae.blocking import Client as Client
    from horae.client import AsyncClient as AsyncClient
    from horae.client import Submitted as Submitted
    from horae.errors import Conflict as Conflict
    from horae.errors import Dead as Dead
    from horae.errors import FellBehind as FellBehind
    from horae.errors import Forbidden as Forbidden
    from horae.errors import HoraeError as HoraeError
    from horae.errors import Invalid as Invalid
    from horae.errors import JobCancelled as JobCancelled
    from horae.errors import JobFailed as JobFailed
    from horae.errors import LeaseLost as LeaseLost
    from horae.errors import Malformed as Malformed
    from horae.errors import NoLeader as NoLeader
    from horae.errors import NotFinished as NotFinished
    from horae.errors import NotFound as NotFound
    from horae.errors import NothingToDo as NothingToDo
    from horae.errors import OutcomeUnknown as OutcomeUnknown
    from horae.errors import PartlyRefused as PartlyRefused
    from horae.errors import PreconditionFailed as PreconditionFailed
    from horae.errors import RateLimited as RateLimited
    from horae.errors import RequestError as RequestError
    from horae.errors import Retry as Retry
    from horae.errors import ShuttingDown as ShuttingDown
    from horae.errors import Snooze as Snooze
    from horae.errors import StorageFull as StorageFull
    from horae.errors import TooLarge as TooLarge
    from horae.errors import Unauthenticated as Unauthenticated
    from horae.errors import Unreachable as Unreachable
    from horae.events import Event as Event
    from horae.jobs import Beat as Beat
    from horae.jobs import Claim as Claim
    from horae.jobs import Ended as Ended
    from horae.jobs import Ending as Ending
    from horae.jobs import Failure as Failure
    from horae.jobs import Job as Job
    from horae.jobs import JobPage as JobPage
    from horae.jobs import NewJob as NewJob
    from horae.jobs import Renewal as Renewal
    from horae.jobs import RetryPolicy as RetryPolicy
    from horae.registry import Context as Context
    from horae.schedules import NextTime as NextTime
    from horae.schedules import Schedule as Schedule
    from horae.schedules import Trigger as Trigger
    from horae.schedules import Triggered as Triggered
    from horae.worker import Worker as Worker

_HOMES = {
    "horae.blocking": ("Client",),
    "horae.client": ("AsyncClient", "Submitted"),
    "horae.errors": (
        *(
            "Conflict",
            "Dead",
            "FellBehind",
            "Forbidden",
            "HoraeError",
            "Invalid",
            "JobCancelled",
            "JobFailed",
            "LeaseLost",
        ),
        *("Malformed", "NoLeader", "NothingToDo", "NotFinished", "NotFound", "OutcomeUnknown", "PartlyRefused"),
        *("PreconditionFailed", "RateLimited", "RequestError", "Retry", "ShuttingDown", "Snooze", "StorageFull"),
        *("TooLarge", "Unauthenticated", "Unreachable"),
    ),
    "horae.events": ("Event",),
    "horae.jobs": ("Beat", "Claim", "Ended", "Ending", "Failure", "Job", "JobPage", "NewJob", "Renewal", "RetryPolicy"),
    "horae.registry": ("Context",),
    "horae.schedules": ("NextTime", "Schedule", "Trigger", "Triggered"),
    "horae.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'horae' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    """What it is for, and what every module has; not what this file itself needs."""
    return sorted([*_HOME_OF, *(name for name in globals() if name.startswith("__"))])
