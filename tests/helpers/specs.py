"""Job specs for tests: complete, with every field to be set by name."""

from __future__ import annotations

from typing import Any

from horae_node.core.model import JobSpec

_DEFAULTS: dict[str, Any] = {
    "id": "job-1",
    "task": "task",
    "queue": "default",
    "payload": b"null",
    "priority": 0,
    "max_attempts": 5,
    "retry_initial_ms": 1000,
    "retry_factor_milli": 2000,
    "retry_max_ms": 3_600_000,
    "retry_jitter_milli": 200,
    "lease_ms": 30_000,
    "timeout_ms": 3_600_000,
    "max_lost": 3,
    "expires_at_ms": None,
    "ttl_ms": None,
    "unique_key": None,
    "concurrency_key": None,
    "tags": (),
    "retention_ms": 86_400_000,
    "schedule_id": None,
    "nominal_ms": None,
}


def job_spec(**fields: Any) -> JobSpec:
    """A spec as a plain submit makes it, with these fields instead."""
    return JobSpec(**{**_DEFAULTS, **fields})
