"""The machine's rules as scripts that anybody can read: what was answered once is answered for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.golden.script import run_script

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_answers_as_recorded(path: Path, request: pytest.FixtureRequest):
    recorded = path.read_text("utf-8")
    answered = run_script(recorded)
    if request.config.getoption("--rewrite-golden", default=False):
        path.write_text(answered, "utf-8")
    else:
        assert answered == recorded


def test_a_wrong_expectation_is_seen():
    script = "open_epoch n1 previous=0\n----\n2 EpochOpened epoch=7\n"
    assert run_script(script) == "open_epoch n1 previous=0\n----\n2 EpochOpened epoch=1\n"
