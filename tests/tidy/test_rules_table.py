"""docs/consensus.md names the tests of each rule of the guard: the table and the tests must not drift apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = range(1, 22)
"""The rules that docs/consensus.md numbers."""


def named_tests() -> dict[int, list[str]]:
    """Rule -> the tests that the table names for it."""
    text = (ROOT / "docs/consensus.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*`test_.*) \|$", text, re.MULTILINE)
    return {int(rule): re.findall(r"`(test_\w+)`", tests) for rule, tests in rows}


def written_tests() -> set[str]:
    sources = [path.read_text() for path in (ROOT / "tests/unit/raft").glob("test_*.py")]
    return set(re.findall(r"^(?:async )?def (test_\w+)", "\n".join(sources), re.MULTILINE))


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_of_the_guard_has_its_tests(rule: int) -> None:
    tests = named_tests()[rule]
    assert tests
    assert set(tests) <= written_tests()


def test_a_numbered_test_belongs_to_a_rule() -> None:
    numbers = {int(number) for test in written_tests() for number in re.findall(r"^test_(\d+)_", test)}
    assert numbers <= set(RULES)
    assert set(named_tests()) == set(RULES)
