"""The simulated hours begin with the tests and run beside them (`beside.py`); whoever waits for them comes last."""

from __future__ import annotations

import pytest
from tests.sim.beside import NewSeeds

NEW_SEEDS = pytest.StashKey[NewSeeds]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_waits_for_new_seeds)


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(map(_waits_for_new_seeds, session.items)) and not session.config.option.collectonly:
        session.config.stash[NEW_SEEDS] = NewSeeds()


def pytest_sessionfinish(session: pytest.Session) -> None:
    begun = session.config.stash.get(NEW_SEEDS, None)
    if begun is not None:
        begun.end()


@pytest.fixture
def new_seeds(request: pytest.FixtureRequest) -> NewSeeds:
    return request.config.stash[NEW_SEEDS]


def _waits_for_new_seeds(item: pytest.Item) -> bool:
    return "new_seeds" in getattr(item, "fixturenames", ())
