"""What the node tells a monitor: Prometheus metrics, in one registry a node.

Latencies are observed as they happen; everything that has a present value (depths, role, lag) is read when asked for.
The two families that have thousands of series are written here: the library takes as long for each as for a job.
Next to read: `docs/operations` for what to watch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from horae_node.core.model import Fate, QueueCounts
from horae_node.shedding import Rank

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_BOUNDS_MS = [round(bound * 1000) for bound in _BUCKETS]

DEAD_KINDS_MAX = 1000
"""Series of `horae_dead_jobs_total`, but for those of the others."""
OTHERS = "(others)"
"""No queue can be called so."""

Families = Callable[[], Iterator[GaugeMetricFamily]]


class _Present:
    """A collector over a function: values are read at the moment of the scrape."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[GaugeMetricFamily]:
        return self._families()


class _Spans:
    """How long something took, by buckets: what is observed with each entry costs one call, not the library's ten."""

    def __init__(self, name: str, what: str) -> None:
        self._name, self._what = name, what
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._total_ms = 0

    def observe_ms(self, span_ms: int) -> None:
        self._counts[bisect_left(_BOUNDS_MS, span_ms)] += 1
        self._total_ms += span_ms

    def collect(self) -> Iterator[HistogramMetricFamily]:
        up_to = zip((*map(str, _BUCKETS), "+Inf"), accumulate(self._counts), strict=True)
        family = HistogramMetricFamily(self._name, self._what)
        family.add_metric([], list(up_to), self._total_ms / 1000)
        yield family


class Metrics:
    """The node's own observations, and the text that a scrape gets."""

    def __init__(self, families: Families, depths: Callable[[], Mapping[str, QueueCounts]] = dict) -> None:
        """`families` are few series each, `depths` those of each queue."""
        self._depths = depths
        self._registry = CollectorRegistry()
        self._registry.register(_Present(families))
        self._commit = _Spans(
            "horae_commit_seconds", "From the proposal of a log entry to its application here (leader)."
        )
        self._claim = _Spans(
            "horae_claim_seconds",
            "From when a claim and a job for it were both there to the grant (leader; claims that got any).",
        )
        self._registry.register(self._commit)
        self._registry.register(self._claim)
        self._stall = Gauge(
            "horae_loop_stall_max_seconds",
            "Longest time that the event loop did not run since the node started.",
            registry=self._registry,
        )
        self.commands = Counter(
            "horae_commands_total", "Commands by kind, as accepted here (leader).", ["kind"], registry=self._registry
        )
        self._shed = Counter(
            "horae_shed_requests_total",
            "Requests turned away because too much waits here, by rank: new, read, ending.",
            ["rank"],
            registry=self._registry,
        )
        for rank in Rank:
            self._shed.labels(rank.name.lower())
        self._dead: dict[tuple[str, str, str], int] = {}
        self._triggers = Counter(
            "horae_triggers_total",
            "Triggers of schedules by what they came to, as they did while this node led.",
            ["outcome"],
            registry=self._registry,
        )
        for fate in Fate:
            self._triggers.labels(fate.name.lower())
        self._fell_behind = Counter(
            "horae_events_fell_behind_total",
            "Times that a reader of events was told that some it had not seen are not kept any more.",
            registry=self._registry,
        )
        self._stall_max_ms = 0

    def observe_commit_ms(self, span_ms: int) -> None:
        self._commit.observe_ms(span_ms)

    def observe_claim_ms(self, span_ms: int) -> None:
        self._claim.observe_ms(span_ms)

    def observe_stall_ms(self, span_ms: int) -> None:
        """Keep the longest."""
        if span_ms > self._stall_max_ms:
            self._stall_max_ms = span_ms
            self._stall.set(span_ms / 1000)

    def count_shed(self, rank: Rank) -> None:
        self._shed.labels(rank.name.lower()).inc()

    def count_dead(self, queue: str, task: str, reason: str) -> None:
        """Names are their submitters' choice, and may come without end: past a bound they are counted as others."""
        kind = queue, task, reason
        if kind not in self._dead and len(self._dead) >= DEAD_KINDS_MAX:
            kind = OTHERS, OTHERS, reason
        self._dead[kind] = self._dead.get(kind, 0) + 1

    def count_trigger(self, fate: int) -> None:
        self._triggers.labels(Fate(fate).name.lower()).inc()

    def count_fell_behind(self) -> None:
        self._fell_behind.inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry) + "".join((*self._dead_lines(), *self._depth_lines())).encode()

    def _dead_lines(self) -> Iterator[str]:
        yield from _head(
            "horae_dead_jobs_total",
            "counter",
            "Jobs that ended in the dead-letter state, as they did while this node led.",
        )
        for (queue, task, reason), count in self._dead.items():
            yield f'horae_dead_jobs_total{{queue="{queue}",reason="{reason}",task="{_escaped(task)}"}} {count}.0\n'

    def _depth_lines(self) -> Iterator[str]:
        yield from _head("horae_queue_jobs", "gauge", "Jobs by queue and state.")
        for queue, counts in self._depths().items():
            for state, count in zip(QueueCounts._fields, counts, strict=True):
                yield f'horae_queue_jobs{{queue="{queue}",state="{state}"}} {count}.0\n'


def _head(name: str, kind: str, what: str) -> tuple[str, str]:
    return f"# HELP {name} {what}\n", f"# TYPE {name} {kind}\n"


def _escaped(value: str) -> str:
    """As the text format has it. Names of queues, of reasons and of states have nothing to escape."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
