"""Golden scripts: commands in a readable form, and what the machine answers and keeps.

A script is a row of blocks, apart by an empty line. A block's lines down to `----` are one entry: a command each, as
`verb job key=value …`; before them `now MS`, `lease MS`, `epoch N` set what later headers say (`+MS` moves on), and
`knows N` upgrades the build to one that knows machine versions up to N.
Below `----` the expected: one line a command, `wakes` with the queues that gained work, and each job that changed, with
every field that is not at rest. A block without `----` is comment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.core.world import World, make_schedule, make_spec

from horae_node.core import lists, views
from horae_node.core.commands import (
    AddMember,
    AdvanceTime,
    BackfillSchedule,
    CancelJob,
    ClaimJobs,
    Command,
    CompleteJob,
    DeleteJob,
    DeleteSchedule,
    FailJob,
    FireSchedule,
    HeartbeatLease,
    MemberAddress,
    MoveMember,
    Nothing,
    OpenEpoch,
    PauseSchedule,
    PromoteMember,
    PutSchedule,
    RaiseMachineVersion,
    ReleaseJob,
    RemoveMember,
    RequeueJob,
    ResumeSchedule,
    RunJobNow,
    SetMembers,
    SetQueue,
    SubmitBatch,
    SubmitJob,
    TriggerSchedule,
)
from horae_node.core.model import (
    Ending,
    Fate,
    Follower,
    Links,
    MemberRecord,
    Missed,
    Occurrence,
    OnFailure,
    Overlap,
    Run,
    Standing,
    State,
    Versions,
)
from horae_node.core.results import BatchSubmitted, EntryOutcome, Outcome, Submitted
from horae_node.core.tables import LEDGER, SCHEDULE_RUN, linked, pair_range, schedule_run_of

RULE = "----"
SPEC_TEXTS = {"task", "queue", "unique_key", "concurrency_key", "schedule_id"}
NO_FIELD = ("field", "")
Options = dict[str, str]


def run_script(text: str) -> str:
    """The script with every expected part as the machine answers now."""
    world = World(open_epoch=False)
    world.now_ms = 0
    blocks = [block.strip("\n") for block in text.strip("\n").split("\n\n")]
    return "\n\n".join(_run_block(world, block) for block in blocks) + "\n"


def _run_block(world: World, block: str) -> str:
    asked, rule, _ = block.partition(RULE)
    if not rule:
        return block
    commands: list[Command] = []
    for line in asked.strip().splitlines():
        verb, *words = line.split()
        if verb == "knows":
            world.known = Versions(1, int(words[0]))
        elif verb in ("now", "lease", "epoch"):
            _set_header(world, verb, words[0])
        elif verb != "#":
            commands.append(_command(verb, words))
    before, members, schedules = _jobs(world), views.read_members(world.txn), _schedules(world)
    entry = world.apply(*commands)
    lines = [f"{world.index} {_outcome(outcome)}" for outcome in entry.outcomes]
    return "\n".join(
        [
            asked.strip(),
            RULE,
            *lines,
            *_effects(world, before, entry),
            *_moves(world, members),
            *_shifts(world, schedules),
        ]
    )


def _set_header(world: World, verb: str, value: str) -> None:
    name = {"now": "now_ms", "lease": "lease_clock", "epoch": "epoch"}[verb]
    setattr(world, name, (getattr(world, name) if value[0] == "+" else 0) + int(value))


# ---------------------------------------------------------------- commands


def _command(verb: str, words: list[str]) -> Command:
    if verb == "batch":
        return SubmitBatch(tuple(_submit(part.split()) for part in " ".join(words).split("|")))
    return _COMMANDS[verb](*_named(words)) if verb != "submit" else _submit(words)


def _named(words: list[str]) -> tuple[str, Options]:
    name = words.pop(0) if words and "=" not in words[0] else ""
    return name, dict(word.split("=", 1) for word in words)


def _submit(words: list[str]) -> SubmitJob:
    job_id, options = _named(words)
    run_at = options.pop("run_at_ms", None)
    delay_ms = int(options.pop("delay_ms", "0"))
    content = options.pop("content", "")
    links = _links(options)
    given: dict[str, Any] = {key: value if key in SPEC_TEXTS else int(value) for key, value in options.items()}
    run_at_ms = None if run_at is None else int(run_at)
    spec = make_spec(job_id, **given)
    content_hash = content.encode().ljust(16) if content else b""
    return SubmitJob(spec if links is None else linked(spec, links), run_at_ms, delay_ms, content_hash)


def _links(o: Options) -> Links | None:
    """`after=a,b`, `on_failure=run`, `then=ID` with `then_delay_ms`, `then_content`, `then_queue`, `then_then`."""
    if "after" not in o and "then" not in o:
        return None
    after = tuple(o.pop("after").split(",")) if "after" in o else ()
    on_failure = OnFailure[o.pop("on_failure", "cancel").upper()]
    then = o.pop("then", None)
    if then is None:
        return Links(after, int(on_failure), None)
    words = [then, *(f"{key[5:]}={o.pop(key)}" for key in list(o) if key.startswith("then_"))]
    follower = _submit(words)
    return Links(after, int(on_failure), Follower(follower.spec, follower.delay_ms, follower.content_hash))


def _claim(worker: str, o: Options) -> Command:
    lease_ms = int(o["lease_ms"]) if "lease_ms" in o else None
    queues = tuple(o.get("queues", "default").split(","))
    return ClaimJobs(worker, queues, int(o.get("max", "1")), lease_ms, o.get("id", ""))


def _fail(job_id: str, o: Options) -> Command:
    retry_in_ms = int(o["retry_in_ms"]) if "retry_in_ms" in o else None
    retry = o.get("retry", "yes") == "yes"
    return FailJob(job_id, int(o["token"]), o.get("type", "Error"), o.get("message", ""), "", retry, retry_in_ms)


def _bytes(o: Options, key: str) -> bytes | None:
    return o[key].encode() if key in o else None


def _set_queue(queue: str, o: Options) -> Command:
    words: dict[str, bool | None] = {"yes": True, "no": False, "none": None}
    return SetQueue(queue, tuple((key, words[word] if word in words else int(word)) for key, word in o.items()))


def _address(name: str, o: Options) -> MemberAddress:
    return MemberAddress(name, o.get("raft", f"{name}:7071"), o.get("http", f"http://{name}:7070"))


def _moment(word: str) -> Occurrence:
    """`NOMINAL`, `NOMINAL+JITTER` or `NOMINAL!`: a local time that did not exist."""
    nominal, _, jitter = word.rstrip("!").partition("+")
    return Occurrence(int(nominal), int(nominal) + int(jitter or 0), "no such time" if word[-1] == "!" else "")


def _moments(o: Options, key: str) -> tuple[Occurrence, ...]:
    return tuple(_moment(word) for word in o[key].split(",")) if key in o else ()


def _first(o: Options, key: str) -> Occurrence | None:
    return next(iter(_moments(o, key)), None)


def _put_schedule(name: str, o: Options) -> Command:
    first, paused = _first(o, "first"), o.pop("paused", "no") == "yes"
    if_version = int(o.pop("if_version")) if "if_version" in o else None
    job = {key[4:]: o.pop(key) for key in list(o) if key.startswith("job_")}
    given: dict[str, Any] = {"job": make_spec("", **{k: v if k in SPEC_TEXTS else int(v) for k, v in job.items()})}
    for key, value in o.items():
        if key in ("missed", "overlap"):
            given[key] = int({"missed": Missed, "overlap": Overlap}[key][value.upper()])
        elif key != "first":
            given[key] = int(value)
    return PutSchedule(make_schedule(name, **given), paused, first, if_version)


_COMMANDS: dict[str, Callable[[str, Options], Command]] = {
    "open_epoch": lambda name, o: OpenEpoch(name, int(o["previous"])),
    "claim": _claim,
    "heartbeat": lambda name, o: HeartbeatLease(name, int(o["token"]), _bytes(o, "progress")),
    "complete": lambda name, o: CompleteJob(name, int(o["token"]), _bytes(o, "result")),
    "fail": _fail,
    "release": lambda name, o: ReleaseJob(name, int(o["token"]), int(o.get("delay_ms", 0)), _bytes(o, "progress")),
    "cancel": lambda name, o: CancelJob(name),
    "requeue": lambda name, o: RequeueJob(name),
    "run_now": lambda name, o: RunJobNow(name),
    "delete": lambda name, o: DeleteJob(name),
    "put_schedule": _put_schedule,
    "delete_schedule": lambda name, o: DeleteSchedule(name),
    "pause_schedule": lambda name, o: PauseSchedule(name),
    "resume_schedule": lambda name, o: ResumeSchedule(name, _first(o, "rewind")),
    "fire": lambda name, o: FireSchedule(name, _moments(o, "at"), _first(o, "next"), int(o.get("seen", "1000000000"))),
    "trigger": lambda name, o: TriggerSchedule(name, o["job"]),
    "backfill": lambda name, o: BackfillSchedule(name, _moments(o, "at")),
    "advance": lambda name, o: AdvanceTime(int(o.get("limit", "100"))),
    "nothing": lambda name, o: Nothing(),
    "raise_machine_version": lambda name, o: RaiseMachineVersion(int(o["to"])),
    "set_queue": _set_queue,
    "set_members": lambda names, o: SetMembers(tuple(_address(name, o) for name in names.split(","))),
    "add_member": lambda name, o: AddMember(*_address(name, o)),
    "promote_member": lambda name, o: PromoteMember(name),
    "remove_member": lambda name, o: RemoveMember(name),
    "move_member": lambda name, o: MoveMember(*_address(name, o)),
}


# ---------------------------------------------------------------- answers


def _outcome(outcome: Outcome) -> str:
    if isinstance(outcome, Submitted):
        return f"Submitted {_submitted(outcome)}"
    if isinstance(outcome, BatchSubmitted):
        jobs = [f"Submitted({_submitted(job).replace(' ', ', ')})" for job in outcome.jobs]
        return f"BatchSubmitted jobs=({', '.join(jobs)}{',' if len(jobs) == 1 else ''})"
    shown = [(name, value) for name, value in zip(outcome._fields, outcome, strict=True) if (name, value) != NO_FIELD]
    fields = " ".join(f"{name}={value!r}" for name, value in shown)
    return f"{type(outcome).__name__} {fields}"


def _submitted(outcome: Submitted) -> str:
    """What was made shows among the effects."""
    gone = "" if outcome.gone is None else f" gone={State(outcome.gone.state).name.lower()}"
    return f"seq={outcome.seq} created={outcome.created}{gone}"


def _effects(world: World, before: dict[str, tuple[Run, int]], entry: EntryOutcome) -> list[str]:
    lines = [f"wakes {' '.join(entry.ready_queues)}"] if entry.ready_queues else []
    after = _jobs(world)
    lines += [_job_line(world, job_id, *job) for job_id, job in after.items() if before.get(job_id) != job]
    return lines + [f"{job_id}: gone" for job_id in before if job_id not in after]


def _moves(world: World, before: dict[str, MemberRecord]) -> list[str]:
    return [
        f"{name}: {Standing(member.standing).name.lower()} at {member.raft_address} {member.http_url}"
        for name, member in views.read_members(world.txn).items()
        if before.get(name) != member
    ]


def _schedules(world: World) -> dict[str, str]:
    """Each schedule, and each line of its ledger, as they are shown."""
    shown = {}
    for key, row in world.txn.scan(SCHEDULE_RUN, SCHEDULE_RUN + b"\xff", limit=100):
        run, name = schedule_run_of(row), key[1:].decode()
        following = "" if run.next is None else f" next={run.next.nominal_ms}"
        following += f" at={run.look_ms}" if run.next is not None and run.look_ms != run.next.nominal_ms else ""
        paused = "" if run.paused_ms is None else f" paused={run.paused_ms}"
        shown[name] = f"{name}: version={run.version}{paused}{following} lines={run.ledger_rows}"
        start, stop = pair_range(LEDGER, run.number, 2**64 - 1)
        for line, fields in world.txn.scan(start, stop, limit=1000):
            nominal_ms = int.from_bytes(line[-8:], "big")
            fate, why = Fate(fields[0]).name.lower(), f" ({fields[1]})" if fields[1] else ""
            shown[f"{name} {nominal_ms:020d}"] = f"  {nominal_ms}: {fate}{why}"
    return shown


def _shifts(world: World, before: dict[str, str]) -> list[str]:
    after = _schedules(world)
    lines = [after[name] for name in sorted(after) if before.get(name) != after[name]]
    return lines + [f"{name}: gone" for name in sorted(before) if name not in after]


def _jobs(world: World) -> dict[str, tuple[Run, int]]:
    found = {}
    for seq in sorted(lists.list_jobs(world.txn, None, None, None, 1000).seqs):
        spec, run = views.spec(world.txn, seq), views.run(world.txn, seq)
        assert spec is not None
        assert run is not None
        found[spec.id] = (run, seq)
    return found


def _job_line(world: World, job_id: str, run: Run, seq: int) -> str:
    fields = run._asdict()
    for hidden in ("state", "version", "content_hash", "first_due_ms", "watch"):
        del fields[hidden]
    fields["ending"] = "" if run.ending == Ending.NONE else Ending(run.ending).name.lower()
    shown = [f"{name}={value}" for name, value in fields.items() if value]
    for name, value in (("progress", views.progress(world.txn, seq)), ("result", views.result(world.txn, seq))):
        shown += [f"{name}={value.decode()}"] if value is not None else []
    errors = [f"{error.attempt}:{error.type}" for error in views.errors(world.txn, seq)]
    shown += [f"errors={','.join(errors)}"] if errors else []
    return f"{job_id}: {State(run.state).name.lower()} {' '.join(shown)}".rstrip()
