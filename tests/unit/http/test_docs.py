"""The page of the contract names what is built: every code that an answer can carry, no address that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from horae import wire
from horae_http import admin, events, jobs, members, queues, schedules, workers
from horae_http.errors import KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "contract.md").read_text(encoding="utf-8")
TABLES = (jobs.ROUTES, workers.ROUTES, queues.ROUTES, events.ROUTES, schedules.ROUTES, members.ROUTES)
ROUTES = (*(route for table in TABLES for route in table), *admin.routes(lambda: b"", lambda: b""))


def test_every_code_is_on_the_page_with_its_status():
    rows = {line for line in PAGE.splitlines() if line.startswith("|")}
    missing = [
        code
        for code, kind in KINDS.items()
        if not any(f"`{code}`" in row and str(kind.status) in row.split("|")[1] for row in rows)
    ]
    assert missing == []


def test_every_type_of_event_is_on_the_page():
    told = {word for line in PAGE.splitlines() if line.startswith("| `") for word in re.findall(r"`(\w+)`", line)}
    assert set(wire.EVENT_TYPES) - told == set()


def test_every_reason_why_a_job_is_dead_is_on_the_page():
    told = {word for line in PAGE.splitlines() if line.startswith("| `") for word in re.findall(r"`(\w+)`", line)}
    assert set(get_args(wire.DeadReason)) - told == set()


def test_every_address_on_the_page_is_served():
    named = set(re.findall(r"`(GET|POST|DELETE|PUT|PATCH) (/[^`?]+)`", PAGE))
    assert len(named) > 10
    assert named - {(route.method, route.path) for route in ROUTES} == set()
