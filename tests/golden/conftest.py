"""`pytest tests/golden --rewrite-golden` writes what the machine answers now: read the difference before keeping it."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="rewrite the golden scripts' expected lines")
