"""What must hold, judged from outside: by what nodes applied, and by what callers were told. Nothing here acts.

While the run goes on: one leader a term, one digest an index, tokens that rise, nothing granted before its true time,
no read that misses what was applied before it began. At the end: the history against the final state. The marks in
brackets (S5, L3) are those of the table of properties in README.md.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final
from zlib import crc32

from tests.sim.calls import FAIL, INFO, OK, REFUSED, Call
from tests.sim.clients import PER_KEY_MAX, Job
from tests.sim.fates import Fates
from tests.sim.world import MILLISECOND, SECOND, World

from horae.wire import Event
from horae_node.core import views
from horae_node.core.changes import ClaimRecorded, JobChanged
from horae_node.core.digest import every_row
from horae_node.core.invariants import check_invariants
from horae_node.core.model import FINISHED, LINKS_VERSION, Fate, JobSpec, Run, State
from horae_node.core.results import EntryOutcome, Granted, Rejected, Submitted
from horae_node.core.tables import RUN, SPEC, group_id, group_row_of, queue_keys, run_of, spec_of, trigger_id
from horae_node.events import Told
from horae_node.feed import LAST, Feed, Ring
from horae_storage.kv import View

if TYPE_CHECKING:
    from tests.sim.machine import Life

HONEST_MS: Final = 20
"""How far the wall clock of a machine that does not lie may be off."""

AHEAD_MS: Final = HONEST_MS + 10
"""How far cluster time may be ahead: an honest clock's error, what a reading drifts while it is kept, and rounding."""

DELAY_SLACK_MS: Final = 2500
"""A delay counts from cluster time, which may lag by as much as the answers that carried it were under way."""

SILENCE_MS: Final = 500
"""Between two entries of a cluster that is at work there is less."""

GONE_US: Final = 50 * MILLISECOND
"""After so long a node knows that a caller hung up."""

ENTRIES_AFTER: Final = 4
"""What is given back leaves with the next entry or the one after it."""

EVENTS_SHOWN: Final = 2000
"""Of each node, at the end."""

DRIFT: Final = 0.002
"""Above what two machines' monotonic clocks may differ by, as a share."""


class Judge:
    def __init__(
        self,
        world: World,
        book: dict[str, Job],
        schedules: dict[str, list[Call]],
        triggered: list[Call],
        claims: dict[bytes, list[Call]],
    ) -> None:
        self.world = world
        self.claims = claims
        self.book = book
        self.schedules = schedules
        self.triggered = triggered
        self.findings: list[str] = []
        self.digest = 0
        """Of everything that happened: equal for equal runs."""
        self.max_applied = 0
        self.counts: dict[str, int] = {}
        self._leaders: dict[int, str] = {}
        self._digests: dict[int, int] = {}
        self._told: dict[int, list[Told]] = {}
        """The events of each entry."""
        self._tokens: dict[int, int] = {}
        self._granted_us: dict[str, list[tuple[int, int]]] = {}
        """By job: (token, when first applied)."""
        self._claimed: dict[tuple[int, int], tuple[bytes, int]] = {}
        """By job and token: the claim's key, and the epoch in which it was granted."""
        self._entries_us: deque[int] = deque(maxlen=ENTRIES_AFTER)
        """When the last entries were first applied."""
        self._entry_us = 0
        self._silences_ms = 0
        """How long the cluster has written nothing since its time was last right."""
        self._early: set[str] = set()
        """Jobs made before the cluster had taken up the rules by which their ids are remembered."""
        self._lags_ms: dict[str, int] = {}
        """By job: how far cluster time lagged when it was made."""
        self.fates = Fates(self.report, self.count)

    def report(self, what: str) -> None:
        self.findings.append(f"[{self.world.now_us / SECOND:.3f} s] {what}")

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    # ------------------------------------------------------------------ what nodes do

    def on_leader(self, life: Life, term: int) -> None:
        leader = self._leaders.setdefault(term, life.node_id)
        if leader != life.node_id:
            self.report(f"{leader} and {life.node_id} both lead in term {term} [S19]")

    def on_entry(self, life: Life, index: int, outcome: EntryOutcome) -> None:
        """After each entry that some node applied."""
        view = life.node.applier.view
        digest = views.meta(view).digest
        known = self._digests.get(index)
        if known is None:
            self._digests[index] = digest
            self._on_first(life, index, outcome)
        elif known != digest:
            self.report(f"{life.node_id} has another state at index {index}: {digest:08x}, not {known:08x} [S18, S20]")
        self.digest = crc32(b"%d %d %d %s" % (self.world.now_us, index, digest, life.node_id.encode()), self.digest)

    def on_told(self, life: Life, index: int) -> None:
        """After its events were kept: they are those that any other node keeps, or kept."""
        ring: Ring = life.node.feed.ring
        events = [ring.at(number) for number in range(ring.first_after((index - 1, LAST)), ring.end)]
        known = self._told.setdefault(index, events)
        if known != events:
            self.report(f"{life.node_id} tells other events of entry {index}: {events}, not {known} [S23]")

    def _on_first(self, life: Life, index: int, outcome: EntryOutcome) -> None:
        """The first time that this entry was applied anywhere."""
        node = life.node
        view = node.applier.view
        if index != self.max_applied + 1 and self.max_applied:
            self.report(f"entry {index} was applied after {self.max_applied} [S20]")
        self.max_applied = max(self.max_applied, index)
        lag_ms = self._check_time(views.meta(view).now_ms)
        self._check_claims(views.meta(view).epoch, outcome)
        self._entries_us.append(self.world.now_us)
        self.fates.on_entry(index, self.world.true_wall_ms(), outcome, lambda: node.entry(index))
        for one in outcome.outcomes:
            if isinstance(one, Granted):
                if not one.repeated:
                    for seq, token in one.grants:
                        self._on_granted(view, seq, token)
            elif isinstance(one, Submitted):
                if one.created and (spec := views.spec(view, one.seq)) is not None:
                    self._lags_ms[spec.id] = lag_ms
                    if views.meta(view).machine_version < LINKS_VERSION:
                        self._early.add(spec.id)
            elif isinstance(one, Rejected):
                self.count(one.code)

    def _check_claims(self, epoch: int, outcome: EntryOutcome) -> None:
        """By the contract: what a claim was granted does not wait for its lease when no call of it was answered."""
        for change in outcome.changes:
            if isinstance(change, ClaimRecorded):
                self._claimed.update(dict.fromkeys(change.record.grants, (change.key, epoch)))
            elif isinstance(change, JobChanged) and change.after.lost > change.before.lost:
                key, granted_in = self._claimed.get((change.handle.seq, change.before.token), (b"", 0))
                calls = self.claims.get(key, [])
                if not calls or granted_in != epoch or any(call.written for call in calls):
                    continue
                left_us = max(call.end_us or self.world.now_us for call in calls) + GONE_US
                if len(self._entries_us) == ENTRIES_AFTER and self._entries_us[0] > left_us:
                    self.report(f"the lease of job {change.handle.seq} ran out, and all calls of {key!r} hung up")

    def _check_time(self, cluster_ms: int) -> int:
        """How far cluster time lags, ms. A leader that was restarted cannot know how long an outage was, if of all whom
        it reaches a lying clock is the earliest: by so much it may lag then, and by no more."""
        now_us = self.world.now_us
        silence_ms, self._entry_us = (now_us - self._entry_us) // MILLISECOND, now_us
        if silence_ms > SILENCE_MS:
            self._silences_ms += silence_ms
        lag_ms = max(0, self.world.true_wall_ms() - cluster_ms)
        if cluster_ms and lag_ms > self._silences_ms + DELAY_SLACK_MS:
            self.report(f"cluster time lags by {lag_ms} ms [L8]")
        if lag_ms < SILENCE_MS:
            self._silences_ms = 0
        return lag_ms

    def _on_granted(self, view: View, seq: int, token: int) -> None:
        before = self._tokens.get(seq, 0)
        if token <= before:
            self.report(f"job {seq}: token {token} granted after {before} [S5]")
        self._tokens[seq] = token
        self.count("granted")
        spec = views.spec(view, seq)
        assert spec is not None
        self._granted_us.setdefault(spec.id, []).append((token, self.world.now_us))
        if spec.concurrency_key is not None:
            row = view.get(queue_keys(spec.queue).group + group_id(spec.concurrency_key))
            if row is None or group_row_of(row).running > PER_KEY_MAX:
                self.report(f"{spec.id} was granted beside others of its key: {row} [S21]")
            self.count("granted by key")
        if spec.nominal_ms is not None and self.world.true_wall_ms() < spec.nominal_ms - AHEAD_MS:
            self.report(f"{spec.id} was granted before its time [S11]")
        job = self.book.get(spec.id)
        if job is not None and not job.hurried and not job.was_requeued:
            self._check_due(job)
            self._check_after(view, job)

    def _check_after(self, view: View, job: Job) -> None:
        """[S11]: what it was to run after is finished, and has succeeded if it must."""
        for other in job.request.after:
            seq = views.job_seq(view, other)
            run = None if seq is None else views.run(view, seq)
            if run is None or self.book[other].was_requeued:
                continue
            self.count("granted after others")
            may = FINISHED if job.request.on_failure == "run" else {State.SUCCEEDED}
            if run.state not in may:
                self.report(f"{job.job_id} was granted, and {other} is {State(run.state).name.lower()} [S11]")

    def _check_due(self, job: Job) -> None:
        now_ms = self.world.true_wall_ms()
        if job.due_ms is not None and now_ms < job.due_ms - AHEAD_MS:
            self.report(f"{job.job_id} was granted {job.due_ms - now_ms} ms before its time [S11]")
        if job.delay_ms:
            began_ms = self.world.true_wall_ms() - (self.world.now_us - _first_begin(job)) // MILLISECOND
            if now_ms < began_ms + job.delay_ms - DELAY_SLACK_MS - self._lags_ms.get(job.job_id, 0):
                self.report(f"{job.job_id} was granted before its delay was over [S11]")

    # ------------------------------------------------------------------ what callers are told

    def on_answer(self, call: Call) -> None:
        self.digest = crc32(f"{self.world.now_us} {call.number} {call.how}".encode(), self.digest)
        self.count(f"{call.kind} {call.how}")
        if call.kind == "read" and call.how in (OK, REFUSED):
            self._check_read(call)

    def _check_read(self, call: Call) -> None:
        if call.served_index < call.seen_index:
            self.report(
                f"a read at {call.served_by} saw index {call.served_index}, {call.seen_index} was applied before [S15]"
            )
        job = self.book[call.job_id]
        if job.fleeting and job.job_id in self._early:
            return
        acknowledged = job.acknowledged
        kept = acknowledged is not None and acknowledged.end_us < call.begin_us and not job.fleeting
        if kept and call.how == REFUSED:
            self.report(f"a read of {call.job_id} did not find it [S15]")
        for ending in job.endings:
            done = ending.kind == "complete" and ending.how == OK and ending.end_us < call.begin_us
            if done and call.how == OK and call.value.state != "succeeded":
                self.report(f"a read of {call.job_id} says {call.value.state} after its complete was answered [S15]")

    # ------------------------------------------------------------------ the end

    def is_drained(self, view: View) -> bool:
        """No job waits or runs."""
        return not any(counts.pending or counts.ready or counts.running for counts in views.all_counts(view).values())

    def check_end(self, states: dict[str, View]) -> None:
        """All nodes that are left have settled: their states against each other and against the history."""
        for node_id, view in states.items():
            for finding in check_invariants(view):
                self.report(f"{node_id}: {finding}")
        node_id, view = next(iter(states.items()))
        reached = views.meta(view).applied_index
        if reached < self.max_applied:
            self.report(f"{node_id} is at index {reached}, {self.max_applied} was applied once [S1, S20]")
        jobs = _jobs_of(view)
        self.count("lost leases", sum(run.lost for _, run in jobs.values()))
        for job_id, (spec, _) in jobs.items():
            if job_id not in self.book and spec.schedule_id not in self.schedules:
                self.report(f"{job_id} is there, nobody submitted it [S2]")
        self._check_schedules(view, jobs)
        for job in self.book.values():
            found = jobs.get(job.job_id)
            self._check_job(job, found)
            if job.parent is not None:
                parent = jobs.get(job.parent.job_id)
                self._check_follower(job, None if parent is None else parent[1], found is not None)

    def check_events(self, feeds: dict[str, Feed]) -> None:
        """The newest events read the same on all nodes, and each can be named [S23]."""
        shown: dict[str, Event] = {}
        for node_id, feed in feeds.items():
            ring = feed.ring
            for number in range(max(0, ring.end - EVENTS_SHOWN, ring.first_after(ring.floor)), ring.end):
                event = feed.show(ring.at(number))[0]
                if shown.setdefault(event.id, event) != event:
                    self.report(f"{node_id} tells {event}, another node {shown[event.id]} [S23]")
        self.count("events", len(shown))

    def _check_schedules(self, view: View, jobs: dict[str, tuple[JobSpec, Run]]) -> None:
        """[S1, S10]: what was acknowledged is in the log; a line that says so has its job, and no trigger else."""
        self.fates.check_end(view, self.world.true_wall_ms())
        for schedule_id, calls in self.schedules.items():
            seen = self.fates.versions.get(schedule_id, ())
            for call in calls:
                if call.how == OK and call.value not in seen:
                    self.report(f"version {call.value} of schedule {schedule_id} was acknowledged, and never was [S1]")
        for call in self.triggered:
            if call.how == OK and call.value not in jobs and not self._may_be_gone(call.value):
                self.report(f"{call.value} was triggered by hand, and is not there [S1]")
        for schedule_id, course in self.fates.courses.items():
            ran = {trigger_id(schedule_id, nominal_ms) for nominal_ms, fate in course.lines.items() if fate == Fate.RAN}
            if missing := sorted(ran - jobs.keys()):
                self.report(f"{missing} are said to have run, and are not there [S10]")

    def _may_be_gone(self, job_id: str) -> bool:
        """The answer named it because it had the unique key; its record is kept no longer than it runs."""
        job = self.book.get(job_id)
        return job is not None and job.fleeting

    def _check_job(self, job: Job, found: tuple[JobSpec, Run] | None) -> None:
        if job.job_id in self._early and job.fleeting:
            return
        self._check_fences(job)
        if job.fleeting:
            self._check_fleeting(job)
        if found is None:
            if job.acknowledged is not None and not job.fleeting:
                self.report(f"{job.job_id} was acknowledged and is gone [S1]")
            return
        if (
            job.parent is None
            and not job.scheduled
            and all(call.how in (FAIL, REFUSED) and call.end_us for call in job.submits)
        ):
            self.report(f"{job.job_id} is there, though its submit surely failed [S2]")
        run = found[1]
        if run.state not in FINISHED:
            self.report(f"{job.job_id} is still {State(run.state).name.lower()} [L3]")
        self._check_endings(job, run)
        self._check_cancels(job, run)
        self._check_leases(job)
        self._check_progress(job)

    def _check_fleeting(self, job: Job) -> None:
        """[S2]: an id makes one job, also when the record of that has gone."""
        made = [call for call in job.submits if call.how == OK and call.value[1]]
        self.count("submits of jobs whose record may be gone", len(job.submits))
        if len(made) > 1:
            self.report(f"{job.job_id} was made {len(made)} times [S2]")

    def _check_follower(self, job: Job, parent: Run | None, found: bool) -> None:
        """[S1, S2]: it is there exactly when its parent has succeeded."""
        succeeded = parent is not None and parent.state == State.SUCCEEDED
        if found:
            self.count("brought forth")
        if found != succeeded and not (job.parent is not None and job.parent.fleeting):
            self.report(f"{job.job_id} is {'' if found else 'not '}there: its parent {parent} [S1, S2]")

    def _check_endings(self, job: Job, run: Run) -> None:
        accepted = sorted({call.token for call in job.endings if call.kind == "complete" and call.how == OK})
        if len(accepted) > 1:
            self.report(f"{job.job_id}: complete was accepted with the tokens {accepted} [S8]")
        if accepted and (run.state != State.SUCCEEDED or run.token != accepted[0]):
            self.report(f"{job.job_id}: complete was accepted, but it is {State(run.state).name.lower()} [S3]")
        if run.state == State.SUCCEEDED:
            may = {call.token for call in job.endings if call.kind == "complete" and call.how in (OK, INFO)}
            if run.token not in may:
                self.report(f"{job.job_id} succeeded with token {run.token}, nobody completed it so [S2]")

    def _check_cancels(self, job: Job, run: Run) -> None:
        for call in job.cancels:
            if call.how != OK or call.value.state != "cancelled" or job.was_requeued:
                continue
            if run.state != State.CANCELLED:
                self.report(f"{job.job_id} was cancelled, and is {State(run.state).name.lower()} [S12]")
            for grant in job.grants:
                if grant.call.begin_us > call.end_us:
                    self.report(f"{job.job_id} was granted after its cancel was answered [S12]")

    def _check_progress(self, job: Job) -> None:
        """[S2]: what an attempt is shown, an earlier one has said: its token."""
        granted = {grant.token for grant in job.grants}
        for token, shown in job.shown:
            if shown != b"null" and not (int(shown) in granted and int(shown) <= token):
                self.report(f"{job.job_id}: token {token} was shown the progress {shown!r}, nobody said so [S2]")
            self.count("progress shown", shown != b"null")

    def _check_fences(self, job: Job) -> None:
        """[S6]: once a newer token was known to anybody, no older one is accepted."""
        for call in job.endings:
            if call.how != OK:
                continue
            for grant in job.grants:
                if grant.token > call.token and grant.call.end_us < call.begin_us:
                    self.report(f"{job.job_id}: {call.kind} with token {call.token} accepted after {grant.token}")
                if call.kind == "complete" and grant.call.begin_us > call.end_us:
                    self.report(f"{job.job_id} was granted after it was completed [S3]")

    def _check_leases(self, job: Job) -> None:
        """[L5, S7]: nobody else gets the job while a lease that was renewed in time runs, by elapsed time."""
        if job.was_requeued:
            return
        granted_us = dict(self._granted_us.get(job.job_id, []))
        ended = {call.token for call in job.endings}
        for grant in job.grants:
            later = min((when_us for token, when_us in granted_us.items() if token > grant.token), default=None)
            if later is None or grant.token in ended:
                continue
            renewed_us = max([grant.asked_us, *(c.begin_us for c in job.beats if c.token == grant.token)])
            if later < renewed_us + grant.lease_us * (1 - DRIFT):
                self.report(f"{job.job_id}: granted anew while the lease of token {grant.token} ran [S7]")


def _first_begin(job: Job) -> int:
    return min((call.begin_us for call in job.submits), default=0)


def _jobs_of(view: View) -> dict[str, tuple[JobSpec, Run]]:
    """Every job of a state, by id."""
    specs: dict[bytes, JobSpec] = {}
    runs: dict[bytes, Run] = {}
    for key, row in every_row(view):
        if key[:1] == SPEC:
            specs[key[1:]] = spec_of(row)
        elif key[:1] == RUN:
            runs[key[1:]] = run_of(row)
    return {spec.id: (spec, runs[seq]) for seq, spec in specs.items()}
