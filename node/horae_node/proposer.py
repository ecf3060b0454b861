"""Many commands, one log entry: everything that waits leaves together, and one sync serves all of it.

While entries are in flight, new commands gather; the next entry takes them all, up to its size. The leader's session
adds what belongs in the same entry (time that has come, grants that follow). Bounded: beyond the bounds submits and
claims are turned away first, then reads, endings last. Runs on the loop. Not here: what commands mean.
Next to read: `shedding.py`, `leader/session.py`, `raft/port.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from horae_node import codec
from horae_node.clock import Clock
from horae_node.core.commands import (
    CancelJob,
    CancelJobIn,
    Command,
    CompleteJob,
    DeleteJob,
    FailJob,
    Header,
    ReleaseJob,
    RequeueJob,
    RequeueJobIn,
    RunJobNow,
    SubmitJob,
)
from horae_node.core.results import EntryOutcome, Outcome, Rejected
from horae_node.errors import NotApplied, OutcomeUnknown
from horae_node.raft.port import ENTRY_BYTES_MAX, Raft
from horae_node.shedding import FLOORS, SHARES, Bounds, Drain, Rank, shed

GATHERED_BYTES_MAX = 48 * 1024
"""Commands gathered into one entry, unless a single one is larger: some three milliseconds of work for each node.
Larger ones make the nodes wait for each other (docs/decisions/0010-small-entries.md)."""

MOVED_PER_BYTE = 64
"""An entry may have 3 MiB of specs read or written anew on each node: so many bytes of them weigh as one of a command.
Bulk completions of jobs with large followers were 10 KB of commands, and half a second of work."""

IN_FLIGHT_MAX = 8
"""Entries proposed and not yet applied, when much waits: network, disks and machine then work on different ones."""

ALONE_BYTES_MAX = 16 * 1024
"""While less than this waits, it waits for the entry under way: an entry costs as much processor time as some twenty
single submits, so that gathering them serves more callers than sending each at once."""

DATA_BYTES_MAX = ENTRY_BYTES_MAX - codec.HEADER_BYTES_MAX
"""Commands in one entry, and so the largest single one."""

COMMIT_DEADLINE_MS = 10_000
"""How long a caller waits for an entry: far above any healthy round, below what callers wait for by themselves."""

NO_ROOM_RETRY_MS = 1000
"""As often as the room on disks is looked at."""

STUCK_RETRY_S = 5
"""While no majority stores anything nobody knows for how long: soon enough for a lease of usual length to be kept."""

KEPT_COMMANDS_MAX = 10_000
"""What waits out such a time: as many releases as entries under way may have granted jobs, and more."""

_STUCK = shed("no majority of the nodes stores anything at the moment: nothing was done", STUCK_RETRY_S)

_SUBMITS = {SubmitJob}
_MOVERS = frozenset(
    (CompleteJob, FailJob, ReleaseJob, CancelJob, CancelJobIn, RequeueJob, RequeueJobIn, RunJobNow, DeleteJob)
)
"""Commands that a job's spec may have to be read for."""


def _too_large(size_bytes: int) -> str:
    return (
        f"this takes {size_bytes} bytes as one command, and at most {DATA_BYTES_MAX} fit: send less at once "
        "(a batch that is not atomic may be as large as a body)"
    )


Result = Outcome | NotApplied | OutcomeUnknown


class Chunk:
    """Commands that travel together, and who waits for their outcomes. `size_bytes`: what they weigh, with the specs
    that they move."""

    __slots__ = ("blobs", "commands", "due_now", "future", "late", "size_bytes")

    def __init__(
        self, commands: Sequence[Command], blobs: list[bytes], size_bytes: int, due_now: dict[str, int] | None
    ) -> None:
        self.commands = commands
        self.blobs = blobs
        self.size_bytes = size_bytes
        self.due_now = due_now
        self.late: Callable[[Sequence[Outcome]], None] | None = None
        """Told of outcomes that come after those who waited were told that they are unknown."""
        self.future: asyncio.Future[Sequence[Outcome]] = asyncio.get_running_loop().create_future()


class Plan(NamedTuple):
    """What the session adds to an entry: before the commands that wait, and after them."""

    first: list[Chunk]
    last: list[Chunk]


class Session(Protocol):
    """What the proposer asks of the leader's session."""

    @property
    def open(self) -> bool:
        """This node leads and its epoch is open."""
        ...

    def header(self) -> Header:
        """The stamp of an entry that leaves now."""
        ...

    def moved_bytes(self, command: Command) -> int:
        """Bytes of specs that a node reads, or makes, to apply the command."""
        ...

    def plan(self, header: Header, due_now: dict[str, int]) -> Plan:
        """What to add to an entry; `due_now`: jobs per queue that its own commands make ready."""
        ...


def _cut(chunks: list[Chunk]) -> list[list[Chunk]]:
    """The chunks as entries, in order: what a session adds comes on top of what filled one already."""
    parts: list[list[Chunk]] = [[]]
    size = 0
    for chunk in chunks:
        if size + chunk.size_bytes > DATA_BYTES_MAX and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(chunk)
        size += chunk.size_bytes
    return parts


class Proposer:
    """Gathers commands into entries. One for a node; idle while the node does not lead."""

    def __init__(
        self,
        raft: Raft,
        clock: Clock,
        observe_commit_ms: Callable[[int], None],
        own: codec.OwnEntries,
        bounds: Bounds | None = None,
    ) -> None:
        self._bounds = bounds or Bounds()
        self._raft = raft
        self._own = own
        self._clock = clock
        self._observe_commit_ms = observe_commit_ms
        self._session: Session | None = None
        self._kept: deque[Chunk] = deque()
        """What leaves first, and waits where nothing is stored: nobody else would send it again."""
        self._endings: deque[Chunk] = deque()
        """What leaves next: behind thousands of submits a heartbeat would come after its lease."""
        self._queue: deque[Chunk] = deque()
        self._queued_commands = 0
        self._queued_bytes = 0
        self._in_flight = 0
        self._commands_drain, self._bytes_drain = Drain(clock), Drain(clock)
        self._idle = asyncio.Event()
        self._idle.set()
        self._scheduled = False
        self.no_room: str | None = None
        """Why new work is refused for want of room on disks, and where; None while it is taken."""
        self._stuck = False
        """The entry under way is overdue: no majority stores anything at the moment."""
        self._loop = asyncio.get_running_loop()

    def attach(self, session: Session) -> None:
        """The session that stamps and plans; set once, before the first command."""
        self._session = session

    @property
    def queued_commands(self) -> int:
        return self._queued_commands

    def require_room(self, rank: Rank) -> None:
        """Refuse a call of this rank while too much waits; new work also while disks are low.

        Raises: `NotApplied`: `rate_limited`, `storage_full`.
        """
        if self.no_room is not None and rank is Rank.NEW:
            raise NotApplied("storage_full", self.no_room, retry_after_ms=NO_ROOM_RETRY_MS)
        bounds, share = self._bounds, SHARES[rank]
        commands, size_bytes = self._queued_commands * 100, self._queued_bytes * 100
        if commands < bounds.commands * share and size_bytes < bounds.command_bytes * share:
            return
        raise shed(
            f"{self._queued_commands} commands of {self._queued_bytes} bytes wait already, and of late "
            f"{self._commands_drain.per_second():.0f} a second were stored",
            self._seconds_until(FLOORS[rank]),
        )

    def _seconds_until(self, percent: int) -> int:
        """Whole seconds until no more than so much of the bounds waits, if nothing is added."""
        bounds = self._bounds
        commands = max(0, self._queued_commands - bounds.commands * percent // 100)
        size_bytes = max(0, self._queued_bytes - bounds.command_bytes * percent // 100)
        return max(self._commands_drain.seconds_for(commands), self._bytes_drain.seconds_for(size_bytes))

    async def run(
        self, commands: Sequence[Command], due_now: dict[str, int] | None = None, *, ending: bool = False
    ) -> list[Result]:
        """The outcome of each command, in order; an error stands in the place of each command that it befell.

        Endings leave before whatever else waits.

        Raises: `NotApplied("no_leader")` when this node does not lead; `ValueError` for text that is not Unicode.
        """
        chunks = self._add(commands, due_now, ending=ending)
        results: list[Result] = []
        for chunk in chunks:
            try:
                results.extend(await chunk.future)
            except (NotApplied, OutcomeUnknown) as error:
                results.extend([error] * len(chunk.blobs))
        return results

    async def run_one(
        self, command: Command, due_now: dict[str, int] | None = None, *, ending: bool = False
    ) -> Outcome:
        """The outcome of one command. Raises: `NotApplied`, `OutcomeUnknown`."""
        return (await self._add((command,), due_now, ending=ending)[0].future)[0]

    def send(self, commands: Sequence[Command]) -> None:
        """Propose without waiting for the outcomes, before what others wait for; nothing happens when this node does
        not lead, or nothing is stored at the moment."""
        if self._session is not None and self._session.open and not self._stuck:
            self._add(commands, None, ending=True)

    def send_kept(self, commands: Sequence[Command]) -> None:
        """As `send`, before all else; while nothing is stored they are kept, `KEPT_COMMANDS_MAX` of them at most."""
        if self._session is None or not self._session.open:
            return
        if self._stuck and sum(len(chunk.blobs) for chunk in self._kept) + len(commands) > KEPT_COMMANDS_MAX:
            return
        self._gather(self._kept, commands, None)

    def chunk(self, command: Command) -> Chunk:
        """One command as a chunk of its own (for the session's plans)."""
        blob = codec.pack_command(command)
        return Chunk((command,), [blob], len(blob), None)

    def kick(self) -> None:
        """Look again, before the loop's next pass, whether an entry can leave."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    async def wait_idle(self) -> None:
        """Until the outcome of every entry is known, and of what came of them."""
        while self._in_flight or self._queue or self._endings or self._kept:
            await self._idle.wait()
            for _ in range(3):  # those who waited for an outcome may have more to say
                await asyncio.sleep(0)

    def fail_queued(self, error: NotApplied) -> None:
        """Leadership is gone: what has not left never will."""
        self._fail((self._kept, self._endings, self._queue), error)

    # ------------------------------------------------------------------ inside

    def _add(self, commands: Sequence[Command], due_now: dict[str, int] | None, *, ending: bool) -> list[Chunk]:
        if self._session is None or not self._session.open:
            raise NotApplied("no_leader", "this node does not lead")
        if self._stuck:
            raise _STUCK
        return self._gather(self._endings if ending else self._queue, commands, due_now)

    def _gather(self, queue: deque[Chunk], commands: Sequence[Command], due_now: dict[str, int] | None) -> list[Chunk]:
        assert self._session is not None
        chunks: list[Chunk] = []
        blobs: list[bytes] = []
        begun = size = 0
        for command in commands:
            blob = codec.pack_command(command)
            weight = len(blob)
            if weight > DATA_BYTES_MAX:
                raise NotApplied("too_large", _too_large(weight))
            if type(command) in _MOVERS:
                weight += self._session.moved_bytes(command) // MOVED_PER_BYTE
            if blobs and size + weight > GATHERED_BYTES_MAX:
                chunks.append(Chunk(commands[begun : begun + len(blobs)], blobs, size, None))
                begun += len(blobs)
                blobs, size = [], 0
            blobs.append(blob)
            size += weight
        chunks.append(Chunk(commands[begun:], blobs, size, due_now))
        for chunk in chunks:
            queue.append(chunk)
            self._queued_commands += len(chunk.blobs)
            self._queued_bytes += chunk.size_bytes
        self.kick()
        return chunks

    def _flush(self) -> None:
        self._scheduled = False
        while self._may_propose() and self._session is not None and self._session.open:
            header = self._session.header()
            taken, due_now = self._take()
            plan = self._session.plan(header, due_now)
            chunks = [*plan.first, *taken, *plan.last]
            if not chunks:
                break
            for part in _cut(chunks):
                self._propose(header, part)
        self._note_backlog()

    def _note_backlog(self) -> None:
        """How fast commands are stored counts while some wait: what comes one by one says nothing of how many can."""
        if self._queued_commands:
            self._commands_drain.begin()
            self._bytes_drain.begin()
        elif self._commands_drain.busy:
            self._commands_drain.pause()
            self._bytes_drain.pause()

    def _may_propose(self) -> bool:
        return not self._in_flight or (
            self._in_flight < IN_FLIGHT_MAX and self._queued_bytes >= ALONE_BYTES_MAX and not self._stuck
        )

    def _take(self) -> tuple[list[Chunk], dict[str, int]]:
        """Chunks for one entry, in order, and the jobs per queue that they make ready."""
        room = GATHERED_BYTES_MAX
        taken: list[Chunk] = []
        for waiting in (self._kept, self._endings, self._queue):
            while waiting and (not taken or waiting[0].size_bytes <= room):
                taken.append(waiting.popleft())
                room -= taken[-1].size_bytes
        due_now: dict[str, int] = {}
        for chunk in taken:
            self._queued_commands -= len(chunk.blobs)
            self._queued_bytes -= chunk.size_bytes
            for queue, count in (chunk.due_now or {}).items():
                due_now[queue] = due_now.get(queue, 0) + count
        return taken, due_now

    def _propose(self, header: Header, chunks: list[Chunk]) -> None:
        entry = codec.join_entry(header, [blob for chunk in chunks for blob in chunk.blobs])
        commands = tuple([command for chunk in chunks for command in chunk.commands])
        if {*map(type, commands)} == _SUBMITS:
            self._own.remember(entry, header, commands)  # type: ignore[arg-type]
        try:
            committed = self._raft.propose(entry)
        except NotApplied as error:
            for chunk in chunks:
                self._settle(chunk, error)
            return
        self._in_flight += 1
        self._idle.clear()
        begun_ms = self._clock.monotonic_ms()
        timer = self._loop.call_later(COMMIT_DEADLINE_MS / 1000, self._on_overdue, chunks)
        committed.add_done_callback(lambda done: self._on_committed(done, chunks, begun_ms, timer))

    def _on_overdue(self, chunks: list[Chunk]) -> None:
        """No majority has it on disk yet: the callers are told what is known, the entry stays under way."""
        overdue = OutcomeUnknown("no majority of the nodes has stored the command in time; it may still take effect")
        for chunk in chunks:
            self._settle(chunk, overdue)
        self._stuck = True
        self._fail((self._endings, self._queue), _STUCK)

    def _fail(self, queues: Sequence[deque[Chunk]], error: NotApplied) -> None:
        for queue in queues:
            while queue:
                chunk = queue.popleft()
                self._queued_commands -= len(chunk.blobs)
                self._queued_bytes -= chunk.size_bytes
                self._settle(chunk, error)

    def _on_committed(
        self, done: asyncio.Future[object], chunks: list[Chunk], begun_ms: int, timer: asyncio.TimerHandle
    ) -> None:
        timer.cancel()
        self._stuck = False
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()
        error = None if done.cancelled() else done.exception()
        if done.cancelled() or error is not None:
            lost = error if isinstance(error, (NotApplied, OutcomeUnknown)) else OutcomeUnknown(str(error))
            for chunk in chunks:
                self._settle(chunk, lost)
        else:
            entry = done.result()
            assert isinstance(entry, EntryOutcome)
            self._observe_commit_ms(self._clock.monotonic_ms() - begun_ms)
            self._commands_drain.took(len(entry.outcomes))
            self._bytes_drain.took(sum(chunk.size_bytes for chunk in chunks))
            self._share_out(entry.outcomes, chunks)
        self.kick()

    def _share_out(self, outcomes: tuple[Outcome, ...], chunks: list[Chunk]) -> None:
        first = outcomes[0]
        if isinstance(first, Rejected) and first.code == "stale_epoch":
            error = NotApplied("no_leader", "another leader has taken over")
            for chunk in chunks:
                self._settle(chunk, error)
            return
        start = 0
        for chunk in chunks:
            end = start + len(chunk.blobs)
            if not chunk.future.done():
                chunk.future.set_result(outcomes[start:end])
            elif chunk.late is not None:
                chunk.late(outcomes[start:end])
            start = end

    @staticmethod
    def _settle(chunk: Chunk, error: NotApplied | OutcomeUnknown) -> None:
        if not chunk.future.done():
            chunk.future.set_exception(error)
            chunk.future.exception()  # a caller that hung up leaves it unread: no error to log
