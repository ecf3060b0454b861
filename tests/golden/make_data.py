"""Makes a golden data directory with the build whose files it shall keep: `python -m tests.golden.make_data PATH`.

The directory of a cluster of one after a scripted history with every command in it; the state ends some entries before
the log, so that opening it replays. `expected.json` says what must be found. A golden directory is made once, by the
version that it is named after, and never again. Not here: what today's build must find in them (`test_data.py`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.unit.core.world import make_schedule, make_spec

from horae_node import codec
from horae_node.applier import Applier
from horae_node.clock import ManualClock
from horae_node.core import commands as c
from horae_node.core import schedule_views, views
from horae_node.core.commands import ENTRY_VERSION, Command, Header
from horae_node.core.model import NO_SETTINGS, Follower, JobSpec, Links, Occurrence, OnFailure
from horae_node.core.tables import linked
from horae_node.raft.pysyncobj_journal import ENTRY_NOOP, ENTRY_REGULAR
from horae_node.voters import write_voters
from horae_storage.directory import open_directory
from horae_storage.environment import read_shape
from horae_storage.lmdb_kv import LmdbStore
from horae_storage.log_port import LogEntry
from horae_storage.raft_log import LmdbRaftLog

CLUSTER, NODE = "golden", "n1"
TERM = 3
NOW_MS = 1_700_000_000_000
REGION_BYTES = 4096
REPLAYED = 4
"""Entries of the log that the state does not hold yet."""


def history() -> list[tuple[Command, ...]]:
    """One entry each. Entry `i` of the list has the log index `i + 2`; a token is the index of its claim."""
    submit = c.SubmitJob
    return [
        (c.OpenEpoch(NODE, 0),),
        tuple(submit(make_spec(f"job-{n}", payload=b'{"n":%d}' % n), None, 0, b"") for n in range(1, 9)),
        (submit(make_spec("later", tags=(("a", "b"),), priority=5), NOW_MS + 3_600_000, 0, b"x" * 16),),
        (submit(make_spec("fades", ttl_ms=1000), None, 500, b""), submit(make_spec("gone"), None, 90_000, b"")),
        (c.SubmitBatch((submit(make_spec("both-1"), None, 0, b""), submit(make_spec("both-2"), None, 0, b""))),),
        (c.ClaimJobs("worker", ("default",), 6, None, "claim-1"),),  # index 7: job-1 to job-6
        (c.HeartbeatLease("job-1", 7, b'"half"'), c.CompleteJob("job-1", 7, b"1")),
        (c.FailJob("job-2", 7, "ValueError", "no", "", True, None), c.FailJob("job-3", 7, "Bad", "", "", False, None)),
        (c.ReleaseJob("job-4", 7, 0, None), c.CancelJob("job-5"), c.CancelJob("job-7"), c.CancelJob("gone")),
        (c.DeleteJob("gone"), c.RunJobNow("later"), c.RequeueJob("job-3"), c.Nothing()),
        (c.AdvanceTime(100),),
        (c.ClaimJobs("other", ("default", "mail"), 2, 5000, ""),),
        (c.AdvanceTime(100),),
        (c.SetMembers((_address(NODE, 1),)),),
        (c.AddMember(*_address("n2", 2)),),
        (c.MoveMember(*_address("n2", 3)),),
        (c.PromoteMember("n2"), c.RemoveMember("n2")),
        (submit(make_spec("last"), None, 0, b""),),
        (c.RaiseMachineVersion(2),),  # index 20
        (c.SetQueue("mail", (("rate_milli", 1500), ("burst", 4), ("max_running", 5), ("max_running_per_key", 2))),),
        (c.SetQueue("idle", (("paused", True), ("max_depth", 7))),),
        tuple(submit(_keyed(n), None, 0, b"") for n in range(8)),
        (c.ClaimJobs("keyed", ("mail",), 3, None, "claim-2"),),  # index 24
        (c.CompleteJob("keyed-0", 24, b"2"), c.CancelJobIn("keyed-6", 1), c.CancelJobIn("keyed-7", 0)),
        (c.SetQueue("mail", (("max_running_per_key", 1),)), c.RequeueJobIn("keyed-6", 5)),
        (c.ClaimJobs("keyed", ("mail",), 9, None, ""),),
        (c.AdvanceTime(100),),
        (submit(_keyed(9), None, 0, b""), c.ClaimJobs("keyed", ("mail", "idle"), 1, None, "")),
        (c.RaiseMachineVersion(3),),  # index 30
        (submit(make_spec("first", queue="chain"), None, 0, b"f" * 16), submit(_fleeting(), None, 0, b"g" * 16)),
        (submit(_linked("after-first", ("first", "job-1")), None, 0, b""),),
        (
            c.SubmitBatch(
                (submit(_linked("then", (), "follower"), None, 0, b""), submit(_linked("x", ("then",)), None, 0, b""))
            ),
        ),
        (c.ClaimJobs("chain", ("chain",), 3, None, ""),),  # index 34: first, fleeting, then
        (
            c.CompleteJob("then", 34, b"3"),
            c.CompleteJob("fleeting", 34, None),
            c.FailJob("first", 34, "E", "", "", False, None),
        ),
        (c.AdvanceTime(100), submit(_linked("too-late", ("first",)), None, 0, b"")),
        (c.AdvanceTime(100), submit(_fleeting(), None, 0, b"g" * 16)),
        (submit(_linked("waits", ("follower", "fleeting")), None, 0, b""),),
        (c.DeleteJob("first"), c.AdvanceTime(100)),
        (submit(make_spec("last-of-3", tags=(("a", "b"),)), None, 0, b""),),
        (c.RaiseMachineVersion(4),),  # index 42
        (c.PutSchedule(make_schedule("s", overlap=2, missed=1, job=_linked("", (), "")), False, _at(45_000), None),),
        (c.PutSchedule(make_schedule("t", cron=None, every_ms=1500), True, _at(46_500), 0),),
        (c.FireSchedule("s", (_at(45_000),), _at(46_000, 5), NOW_MS * 2), c.TriggerSchedule("t", "t@manual")),
        (c.FireSchedule("s", (_at(46_000, 5),), _at(60_000), NOW_MS * 2), c.PauseSchedule("s")),
        (c.FireSchedule("t", (_at(46_500),), _at(48_000), NOW_MS * 2), c.BackfillSchedule("s", (_at(40_000),))),
        (
            c.PutSchedule(make_schedule("gone"), False, _at(60_000), None),
            c.FireSchedule("s", (_at(9),), None, NOW_MS * 2),
        ),
        (c.ResumeSchedule("s", _at(46_000, 5)), c.DeleteSchedule("gone")),
        (c.FireSchedule("s", (_at(46_000, 5),), _at(70_000), NOW_MS * 2),),
        (c.ClaimJobs("chain", ("chain",), 9, None, ""), c.AdvanceTime(100)),
        (submit(make_spec("last-of-4"), None, 0, b""),),
    ]


def _at(ms: int, jitter_ms: int = 0) -> Occurrence:
    """A moment of the history, whose entries are a second apart."""
    return Occurrence(NOW_MS + ms, NOW_MS + ms + jitter_ms, "", 3_600_000)


def _whole(spec: JobSpec) -> c.SubmitJob:
    return c.SubmitJob(spec, None, 0, b"")


def _fleeting() -> JobSpec:
    return make_spec("fleeting", queue="chain", retention_ms=0)


def _linked(job_id: str, after: tuple[str, ...], then: str | None = None) -> JobSpec:
    follower = None if then is None else Follower(make_spec(then, queue="chain"), 0, b"")
    return linked(make_spec(job_id, queue="chain"), Links(after, int(OnFailure.CANCEL), follower))


def _keyed(n: int) -> JobSpec:
    """Some of three keys, some of none."""
    key = f"k{n % 4}" if n % 4 else None
    return make_spec(f"keyed-{n}", queue="mail", priority=n % 2, concurrency_key=key)


def _address(node_id: str, host: int) -> c.MemberAddress:
    return c.MemberAddress(node_id, f"10.0.0.{host}:7001", f"http://10.0.0.{host}:7070")


def entries() -> list[LogEntry]:
    """The whole log."""
    made = [LogEntry(ENTRY_NOOP, 1, 0)]
    for index, commands in enumerate(history(), 2):
        header = Header(ENTRY_VERSION, 0 if index == 2 else 1, NOW_MS + index * 1000, index * 1000)
        data = codec.join_entry(header, [codec.pack_command(command) for command in commands])
        made.append(LogEntry(ENTRY_REGULAR + data, index, TERM))
    return made


def described(applier: Applier) -> dict[str, dict[str, Any]]:
    """What is compared, as plain JSON: the machine's own record, each job as it stands, the counts of each queue."""
    view = applier.view
    numbers = range(1, applier.meta().job_seq + 1)
    records = {f"job {seq}": run for seq in numbers if (run := views.run(view, seq)) is not None}
    records |= {f"queue {queue}": counts for queue, counts in views.all_counts(view).items()}
    ids = schedule_views.ids(view, "", 1000)
    records |= {f"schedule {name}": schedule_views.schedule(view, name).run for name in ids}
    names = {queue: views.settings(view, queue) for queue in views.queue_names(view, "", 1000)}
    records |= {f"settings {queue}": kept for queue, kept in names.items() if kept is not NO_SETTINGS}
    return {name: _plain(record) for name, record in {"meta": applier.meta(), **records}.items()}


def _plain(record: Any) -> dict[str, Any]:
    return {key: _plain_value(value) for key, value in record._asdict().items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return list(value) if isinstance(value, tuple) else value


def open_applier(store: LmdbStore) -> Applier:
    return Applier(store, cluster=CLUSTER, clock=ManualClock(), commit_interval_ms=1000, commit_commands=10**6)


def replay(applier: Applier, log: list[LogEntry], until: int) -> None:
    for entry in log:
        if applier.applied_index < entry.log_index <= until:
            applier.apply(entry.log_index, entry.data[1:])


def make(path: Path) -> None:
    directory = open_directory(path, CLUSTER, NODE)
    log = entries()
    for entry in log:  # one by one: the first are folded into the database, the last lie in the tail
        raft_log = LmdbRaftLog(directory.log, lambda callback, *_: None, region_bytes=REGION_BYTES)
        raft_log.load()
        raft_log.append([entry])
        raft_log.set_vote(TERM, NODE)
        raft_log.set_commit(entry.log_index)
        raft_log.seal()
        raft_log.close()
    applier = open_applier(LmdbStore(directory.state))
    replay(applier, log, log[-1].log_index - REPLAYED)
    applier.commit()
    replay(applier, log, log[-1].log_index)
    expected = described(applier)
    # Not closed in order: that would commit the rest.
    applier._store.abort()  # type: ignore[attr-defined]
    applier._store.close()  # type: ignore[attr-defined]
    directory.mark_initialised()
    directory.close()
    write_voters(path, [NODE])
    (path / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    for file in path.rglob("*.mdb"):
        os.truncate(file, read_shape(file).used_bytes)
    for file in (*path.rglob("*-lock"), path / "lock"):
        file.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
