"""What holds for all tests: minutes of work only when asked for (`--slow`), random tests without a clock's verdict."""

from __future__ import annotations

import signal

import hypothesis
import pytest

# A shared machine is slow at times: a deadline per example would fail for that alone.
hypothesis.settings.register_profile("horae", deadline=None, print_blob=True)
hypothesis.settings.load_profile("horae")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well (minutes)")


def pytest_configure() -> None:
    """What is ignored here, all children would ignore too: a shell starts what is to run in the background without
    SIGINT, nohup without SIGHUP. A handler is not inherited, and lets this process live on as before."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="takes minutes: run with --slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
