"""What the tests of the guard begin with: three nodes without a loop, and the same with a leader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.raft.script import Script


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.fixture
def led(script: Script) -> Script:
    """Three nodes, `a` leads in term 1, its first entry (index 2) is applied everywhere."""
    script.elect("a", "b", "c")
    script.settle()
    script.run("abc", 100)
    assert [node.machine.applied_index for node in script.nodes.values()] == [2, 2, 2]
    return script
