"""One entry's working memory: the transaction, the moments, and the counts that are written once at its end.

Made and dropped by `machine.apply`. Decisions read it, `evolve` writes through it. Not here: any rule.
"""

from __future__ import annotations

from horae_node.core.model import KNOWN_VERSIONS, STATE_COUNT, Meta, QueueCounts, Versions
from horae_node.core.tables import S_READY, counts_key
from horae_storage.kv import Txn


class Context:
    """`now_ms` and `lease_clock` are the machine's; `index` is the entry's, and the token of every grant in it.

    `version` is the machine's: a rule that came after version 1 looks at it. `known` is what this build could be.
    """

    __slots__ = (
        "_counts",
        "_gained",
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
        "members_changed",
        "now_ms",
        "put",
        "txn",
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
        self.known = known
        self.finished: list[int] = []
        self.died: list[tuple[int, str]] = []
        self.members_changed = False
        self._counts: dict[str, list[int]] = {}
        self._gained: dict[str, None] = {}

    def counts(self, queue: str) -> list[int]:
        """The queue's jobs by state, to be changed in place; written by `flush_counts`."""
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
        if after == S_READY:
            self._gained[queue] = None

    def flush_counts(self) -> None:
        """Write the counts that changed. A queue without a job leaves no row: names may come and go without end."""
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
        return tuple(sorted(queue for queue in self._gained if self._counts[queue][S_READY]))
