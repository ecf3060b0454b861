"""One entry's working memory: the transaction, the moments, and what of its queues is written once at its end.

Made and dropped by `machine.apply`. Decisions read it, `evolve` writes through it. Not here: any rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horae_node.core.limits import tokens
from horae_node.core.model import (
    KNOWN_VERSIONS,
    LIMITS_VERSION,
    LINKS_VERSION,
    NO_SETTINGS,
    SCHEDULES_VERSION,
    STATE_COUNT,
    Bucket,
    Lanes,
    Meta,
    QueueCounts,
    QueueSettings,
    Versions,
)
from horae_node.core.tables import (
    HELD,
    S_READY,
    S_RUNNING,
    bucket_key,
    bucket_of,
    counts_key,
    lanes_key,
    lanes_of,
    settings_key,
    settings_of,
)
from horae_storage.kv import Txn

if TYPE_CHECKING:
    from horae_node.core.changes import Change


class Context:
    """`now_ms` and `lease_clock` are the machine's; `index` is the entry's, and the token of every grant in it.

    `version` is the machine's: a rule that came after version 1 looks at it. `known` is what this build could be.
    """

    __slots__ = (
        "_buckets",
        "_counts",
        "_gained",
        "_held",
        "_held_before",
        "_lanes",
        "_lanes_set",
        "_settings",
        "changes",
        "delete",
        "died",
        "epoch",
        "epoch_node",
        "finished",
        "get",
        "index",
        "job_seq",
        "known",
        "lease_clock",
        "limits",
        "links",
        "members_changed",
        "now_ms",
        "put",
        "read_bytes",
        "schedules",
        "txn",
        "unsettled",
        "version",
    )

    def __init__(self, index: int, meta: Meta, txn: Txn, known: Versions = KNOWN_VERSIONS) -> None:
        self.txn = txn
        self.get = txn.get  # bound once: these three are called many times a command
        self.put = txn.put
        self.delete = txn.delete
        self.index = index
        self.now_ms = meta.now_ms
        self.lease_clock = meta.lease_clock
        self.epoch = meta.epoch
        self.epoch_node = meta.epoch_node
        self.job_seq = meta.job_seq
        self.version = meta.machine_version
        self.limits = meta.machine_version >= LIMITS_VERSION
        self.schedules = meta.machine_version >= SCHEDULES_VERSION
        self.links = meta.machine_version >= LINKS_VERSION
        self.known = known
        self.finished: list[int] = []
        self.died: list[tuple[int, str]] = []
        self.members_changed = False
        self.unsettled = False
        """As in `EntryOutcome`: whoever writes a row of `SETTLE` or `REGROUP` sets it."""
        self.changes: list[Change] = []
        self.read_bytes = 0
        """Payloads that were decoded with the specs that decisions have read."""
        self._held: int | None = None
        self._held_before = 0
        self._counts: dict[str, list[int]] = {}
        self._gained: dict[str, None] = {}
        self._settings: dict[str, QueueSettings] = {}
        self._lanes: dict[str, Lanes | None] = {}
        self._lanes_set: dict[str, None] = {}
        self._buckets: dict[str, Bucket] = {}

    def counts(self, queue: str) -> list[int]:
        """The queue's jobs by state, to be changed in place; written by `flush`."""
        counts = self._counts.get(queue)
        if counts is None:
            row = self.get(counts_key(queue))
            counts = self._counts[queue] = [0] * STATE_COUNT if row is None else list(row)
        return counts

    def count_new(self, queue: str, state: int) -> None:
        self.counts(queue)[state] += 1
        if state == S_READY:
            self._gained[queue] = None

    def count_move(self, queue: str, before: int, after: int) -> None:
        counts = self.counts(queue)
        counts[before] -= 1
        counts[after] += 1
        if after == S_READY or (before == S_RUNNING and self.limits and self._is_limited(queue)):
            self._gained[queue] = None

    def gained(self, queue: str) -> None:
        """More of the queue's ready jobs may be taken than before."""
        self._gained[queue] = None

    def settings(self, queue: str) -> QueueSettings:
        if not self.limits:
            return NO_SETTINGS
        found = self._settings.get(queue)
        if found is None:
            row = self.get(settings_key(queue))
            found = self._settings[queue] = NO_SETTINGS if row is None else settings_of(row)
        return found

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        """Write them; as good as none leave no row."""
        if settings._replace(version=0) == NO_SETTINGS:
            self._settings[queue] = NO_SETTINGS
            self.delete(settings_key(queue))
        else:
            self._settings[queue] = settings
            self.put(settings_key(queue), settings)

    def lanes(self, queue: str) -> Lanes | None:
        """None for a queue without groups."""
        if not self.limits:
            return None
        if queue not in self._lanes:
            row = self.get(lanes_key(queue))
            self._lanes[queue] = None if row is None else lanes_of(row)
        return self._lanes[queue]

    def set_lanes(self, queue: str, lanes: Lanes | None) -> None:
        """Written by `flush`."""
        self._lanes[queue] = lanes
        self._lanes_set[queue] = None

    def micro(self, queue: str) -> int | None:
        """Millionths of a token that the queue has by now; None for a queue without a rate."""
        settings = self.settings(queue)
        if settings.rate_milli is None:
            return None
        bucket = self._buckets.get(queue)
        if bucket is None:
            row = self.get(bucket_key(queue))
            assert row is not None
            bucket = bucket_of(row)
        return tokens(bucket, settings, self.lease_clock)

    def set_micro(self, queue: str, micro: int) -> None:
        """Written by `flush`."""
        self._buckets[queue] = Bucket(micro, self.lease_clock)

    def drop_bucket(self, queue: str) -> None:
        self._buckets.pop(queue, None)
        self.delete(bucket_key(queue))

    @property
    def held(self) -> int:
        """How many jobs wait for others; looked up when it is asked for first, written by `flush`."""
        if self._held is None:
            row = self.get(HELD) if self.links else None
            self._held = self._held_before = 0 if row is None else row[0]
        return self._held

    @held.setter
    def held(self, jobs: int) -> None:
        assert jobs >= 0
        self._held = jobs

    def _is_limited(self, queue: str) -> bool:
        return self.settings(queue) is not NO_SETTINGS or self.lanes(queue) is not None

    def flush(self) -> None:
        """Write what changed of the queues. One without a job leaves no count: names may come and go without end."""
        for queue in self._lanes_set:
            lanes = self._lanes[queue]
            if lanes is None:
                self.delete(lanes_key(queue))
            else:
                self.put(lanes_key(queue), lanes)
        if self._held is not None and self._held != self._held_before:
            if self._held:
                self.put(HELD, (self._held,))
            else:
                self.delete(HELD)
        for queue, bucket in self._buckets.items():
            self.put(bucket_key(queue), bucket)
        for queue, counts in self._counts.items():
            assert min(counts) >= 0, f"negative count in queue {queue!r}: {counts}"
            if any(counts):
                self.put(counts_key(queue), QueueCounts(*counts))
            else:
                self.delete(counts_key(queue))

    def ready_queues(self) -> tuple[str, ...]:
        """Queues that gained ready jobs and still have some, sorted."""
        if not self._gained:
            return ()
        return tuple(sorted(queue for queue in self._gained if self.counts(queue)[S_READY]))
