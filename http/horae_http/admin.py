"""The calls of operators and machines: the cluster, health, readiness, metrics, and the contract itself.

Not here: what is measured (`horae_node.metrics`), how the contract's document is made (`openapi.py`).
Next to read: `app.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from horae import wire
from horae_http import codec
from horae_http.answer import JSON, Answer
from horae_http.backup import BackupAnswer
from horae_http.jobs import age_lines
from horae_http.routing import Call, Handler, Route
from horae_node.service import Service

METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


async def read_cluster(service: Service, call: Call) -> Answer:
    local = call.query.consistency == "local"
    view = await service.cluster(local=local)
    return codec.answer(200, view, call.packed_out, age_lines(service) if local else b"")


async def take_backup(service: Service, call: Call) -> Answer:
    """A copy of the answering node's state, of one moment, as a file that `horae restore` takes."""
    call.holder.require_all_queues()
    return BackupAnswer(await service.backup(call.query.after or 0))


async def snapshot(service: Service, call: Call) -> Answer:
    return codec.answer(200, service.compact(), call.packed_out)


async def health(service: Service, call: Call) -> Answer:
    """The process lives: its loop answers."""
    return codec.answer(200, wire.Health("ok", ""), call.packed_out)


async def readiness(service: Service, call: Call) -> Answer:
    """503 while a balancer should send nothing here: no leader known, not caught up, or on the way down."""
    ready, why = (False, "the node is shutting down") if call.stopping else service.ready()
    if ready:
        return codec.answer(200, wire.Health("ok", ""), call.packed_out)
    return codec.answer(503, wire.Health("unready", why), call.packed_out)


def _metrics(metrics_text: Callable[[], bytes]) -> Handler:
    async def metrics(service: Service, call: Call) -> Answer:
        call.holder.require_all_queues()
        return Answer(200, METRICS_TYPE, metrics_text())

    return metrics


def _contract(document: Callable[[], bytes]) -> Handler:
    async def contract(service: Service, call: Call) -> Answer:
        return Answer(200, JSON, document())

    return contract


_HEALTH: Final[dict[int, type | None]] = {200: wire.Health}
_READINESS: Final[dict[int, type | None]] = {200: wire.Health, 503: wire.Health}
_BYTES: Final[dict[int, type | None]] = {200: None}


READ_CLUSTER: Final = Route(
    "GET",
    "/v1/cluster",
    "readCluster",
    "Members, leader, indexes, versions.",
    read_cluster,
    {200: wire.ClusterView},
    "read",
    query=wire.ReadQuery,
)


def routes(metrics_text: Callable[[], bytes], document: Callable[[], bytes]) -> tuple[Route, ...]:
    """The table. Unlike the others it needs what the application was built with."""
    metrics, contract = _metrics(metrics_text), _contract(document)
    return (
        READ_CLUSTER,
        Route(
            "GET",
            "/v1/backup",
            "backup",
            "A copy of the answering node's state, for `horae restore`: all that was acknowledged before is in it.",
            take_backup,
            _BYTES,
            "admin",
            query=wire.BackupQuery,
            leader=False,
            from_leaders_index=True,
        ),
        Route(
            "POST",
            "/v1/cluster/snapshot",
            "snapshot",
            "Make the answering node's state durable now, and cut its log to what is still needed.",
            snapshot,
            {200: wire.SnapshotView},
            "admin",
            leader=False,
            shed_last=True,
        ),
        Route("GET", "/healthz", "health", "The process lives.", health, _HEALTH, None, leader=False),
        Route("GET", "/readyz", "readiness", "It can serve.", readiness, _READINESS, None, leader=False),
        Route("GET", "/metrics", "metrics", "Prometheus text.", metrics, _BYTES, "read", leader=False),
        Route("GET", "/openapi.json", "contract", "This document.", contract, _BYTES, None, leader=False),
    )
