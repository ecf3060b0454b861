"""What the machine answers: one outcome a command. A refusal is a value, never an exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from horae_node.core.changes import Change, JobSubmitted
    from horae_node.core.tables import Tombstone


class Rejected(NamedTuple):
    """Refused by the rules; nothing changed. `code`: not_found | conflict | lease_lost | invalid | stale_epoch |
    rate_limited | version | due."""

    code: str
    detail: str
    position: int = -1  # of the offending job in a SubmitBatch
    field: str = ""  # of the job, where one is to blame: `after/3`


class Done(NamedTuple):
    """It is so. `seq` is the job's number (0 for commands without one job); `repeated` when it was so already."""

    seq: int = 0
    repeated: bool = False


class Submitted(NamedTuple):
    """The job that a submit stands for: `new` as it was made; None for one that was there already.

    `gone`: the same id with the same content was submitted, and has finished, and its record is gone.
    """

    seq: int
    new: JobSubmitted | None  # None: the same id with the same content, or the unique key's holder
    gone: Tombstone | None = None

    @property
    def created(self) -> bool:
        return self.new is not None


class BatchSubmitted(NamedTuple):
    jobs: tuple[Submitted, ...]


class Granted(NamedTuple):
    """The jobs of a claim, in the order to hand out: (seq, token). Empty: nothing was ready."""

    grants: tuple[tuple[int, int], ...]
    repeated: bool = False  # the same claim_id as before


class Heartbeat(NamedTuple):
    """Renewed. `lease_end` is on the lease clock."""

    seq: int
    lease_end: int
    cancel_requested: bool


class EpochOpened(NamedTuple):
    epoch: int


class Advanced(NamedTuple):
    """What was done; `more` when the limit cut it short."""

    items: int
    more: bool


class ScheduleChanged(NamedTuple):
    """`version` is what `If-Match` compares."""

    version: int
    created: bool = False
    repeated: bool = False


class TriggersRan(NamedTuple):
    """How many jobs the triggers of a command made."""

    jobs: int


Outcome = (
    ScheduleChanged
    | TriggersRan
    | Rejected
    | Done
    | Submitted
    | BatchSubmitted
    | Granted
    | Heartbeat
    | EpochOpened
    | Advanced
)


class EntryOutcome(NamedTuple):
    """What `machine.apply` returns for a whole entry."""

    outcomes: tuple[Outcome, ...]
    ready_queues: tuple[str, ...]
    """Queues that gained ready jobs by this entry, and still have some, sorted: whom the leader may wake."""
    finished: tuple[int, ...] = ()
    """Numbers of the jobs that reached a finished state, in order: whose waiting readers may be answered."""
    died: tuple[tuple[int, str], ...] = ()
    """Those of them that ended in the dead-letter state, each with the reason."""
    members_changed: bool = False
    """Who is a member, or where, is not what it was."""
    changes: Sequence[Change] = ()
    """All that was written, in order: the same on every node."""
    now_ms: int = 0
    """The machine's time by then."""
    unsettled: bool = False
    """It began what an `AdvanceTime` must carry on at once: jobs that wait for one that ended are to be told, groups of
    a queue whose limit has changed are to be looked at."""
