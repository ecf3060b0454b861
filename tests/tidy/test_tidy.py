"""The repository keeps its own habits; and each rule refuses a bad sample, so that none of them is asleep."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tidy import rules
from tests.tidy.rules import Module

REPOSITORY = Path(__file__).parents[2]
MODULES = [m for package, folder in rules.ROOMS.items() for m in rules.modules_of(REPOSITORY, package, folder)]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".service", ".yml", ".yaml", ".sh", ""}
SKIPPED = {".git", ".venv", ".horae", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"}

Rule = Callable[[Module], list[str]]


@pytest.fixture(autouse=True, scope="module")
def _nothing_to_collect() -> None:
    """A task of an earlier test that is destroyed while Python parses is told of by a traceback, which parses too:
    then the outer parse fails (a fault of CPython 3.11)."""
    gc.collect()


@pytest.mark.parametrize("rule", rules.MODULE_RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule):
    assert [finding for module in MODULES for finding in rule(module)] == []


def test_there_are_modules_in_every_room():
    assert {module.room for module in MODULES} == set(rules.ROOMS)
    assert any(module.within(("horae_node.core",)) for module in MODULES)


def test_no_file_speaks_of_where_it_was_written():
    files = [path for path in _own_files("*") if path.suffix in TEXT_SUFFIXES]
    assert len(files) > len(MODULES)
    found = [rules.check_words(str(path.relative_to(REPOSITORY)), path.read_text("utf-8", "replace")) for path in files]
    assert [line for lines in found for line in lines] == []


def test_every_file_that_is_named_is_there():
    files = frozenset(str(path.relative_to(REPOSITORY)) for path in _own_files("*"))
    tests = [Module(str(path), path.read_text("utf-8")) for path in _own_files("*.py") if "tests" in path.parts]
    told = {module.name: rules.docstrings_of(module) for module in [*MODULES, *tests]}
    told |= {str(path.relative_to(REPOSITORY)): path.read_text("utf-8") for path in _own_files("*.md")}
    assert sum(".md" in text for text in told.values()) > 10
    found = [rules.check_file_names(where, text, files) for where, text in told.items()]
    assert [line for lines in found for line in lines] == []


def test_a_file_that_is_not_there_is_found():
    files = frozenset({"docs/design.md", "node/horae_node/runtime.py"})
    assert rules.check_file_names("x", "see docs/design.md, `runtime.py` and node.toml", files) == []
    assert rules.check_file_names("x", "see DESIGN.md.", files) == [
        "x: names DESIGN.md, which is not in the repository"
    ]
    module = Module("x", '"""See a.py."""\nLIMIT = 3\n"""As in b.py."""\n# c.py\ntext = "d.py"\n')
    named = [line.split()[2] for line in rules.check_file_names("x", rules.docstrings_of(module), files)]
    assert named == ["a.py,", "b.py,", "c.py,"]


def _own_files(pattern: str) -> list[Path]:
    return [
        path
        for path in REPOSITORY.rglob(pattern)
        if path.is_file() and not SKIPPED & set(path.relative_to(REPOSITORY).parts)
    ]


def test_no_folder_hides_a_module_of_the_standard_library():
    names = [path.parent.name for path in REPOSITORY.glob("*/__init__.py")]
    assert [name for name in names if name in sys.stdlib_module_names] == []
    assert not (REPOSITORY / "http" / "__init__.py").exists()


BAD: list[tuple[Rule, str, str]] = [
    (rules.check_room_imports, "horae_storage.x", "from horae_node.core import model"),
    (rules.check_room_imports, "horae_node.x", "import horae_http.app"),
    (rules.check_room_imports, "horae_node.x", "def f():\n    from horae_http import app"),
    (rules.check_room_imports, "horae_node.x", "from horae import Client"),
    (rules.check_room_imports, "horae_http.x", "from horae.cli import main_group"),
    (rules.check_room_imports, "horae.x", "from horae_node import config"),
    (rules.check_room_imports, "horae.x", "import horae_storage"),
    (rules.check_homes, "horae_node.leader.x", "import pysyncobj"),
    (rules.check_homes, "horae_node.x", "from lmdb import Environment"),
    (rules.check_homes, "horae.worker", "import aiohttp"),
    (rules.check_homes, "horae_node.raft.x", "import croniter"),
    (rules.check_homes, "horae_node.cron", "from cronsim import CronSim"),
    (rules.check_homes, "horae.x", "from zoneinfo import ZoneInfo"),
    (rules.check_homes, "horae_http.x", "from prometheus_client import Counter"),
    (rules.check_clock, "horae_node.leader.x", "import time"),
    (rules.check_clock, "horae_node.logs", "import time\ntime.time()"),
    (rules.check_clock, "horae_http.x", "from time import monotonic"),
    (rules.check_clock, "horae_http.x", "from datetime import datetime\ndatetime.now()"),
    (rules.check_clock, "horae.x", "import datetime\ndatetime.datetime.utcnow()"),
    (rules.check_core_imports, "horae_node.core.x", "import random"),
    (rules.check_core_imports, "horae_node.core.x", "import msgspec"),
    (rules.check_core_imports, "horae_node.core.x", "from horae_node.clock import Clock"),
    (rules.check_core_imports, "horae_node.core.x", "from horae_storage.memory import MemoryStore"),
    (rules.check_core_imports, "horae_node.core.decide.x", "from ...errors import Fatal"),
    (rules.check_core_imports, "horae_node.core.x", "from datetime import datetime"),
    (rules.check_core_purity, "horae_node.core.x", "def f(a):\n    return hash(a)"),
    (rules.check_core_purity, "horae_node.core.x", "x = 1.5"),
    (rules.check_core_purity, "horae_node.core.x", "def f(a):\n    return float(a)"),
    (rules.check_core_purity, "horae_node.core.x", "def f(a):\n    return a / 2"),
    (rules.check_core_purity, "horae_node.core.x", "def f(a):\n    a /= 2"),
    (rules.check_core_purity, "horae_node.core.x", "async def f():\n    pass"),
    (rules.check_core_purity, "horae_node.core.x", "for a in {1, 2}:\n    pass"),
    (rules.check_core_purity, "horae_node.core.x", "b = [a for a in set(c)]"),
    (rules.check_core_purity, "horae_node.core.x", "for a in set(b) - set(c):\n    pass"),
    (rules.check_core_purity, "horae_node.core.x", "def f(datetime):\n    return datetime.now()"),
    (rules.check_docstring, "horae_node.x", "import enum"),
    (rules.check_function_length, "horae_node.x", "def f():\n" + "    pass\n" * 70),
    (rules.check_broad_except, "horae_node.x", "try:\n    f()\nexcept Exception:\n    pass"),
    (rules.check_broad_except, "horae_node.x", "try:\n    f()\nexcept:\n    pass"),
    (rules.check_broad_except, "horae_node.x", "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
    (rules.check_log_fields, "horae_node.x", "log.event('joined', node=1)"),
    (rules.check_log_fields, "horae_http.x", "log.warning('gone', room='x')"),
]


@pytest.mark.parametrize(("rule", "name", "text"), BAD, ids=[f"{r.__name__}-{i}" for i, (r, _, _) in enumerate(BAD)])
def test_a_bad_sample_is_refused(rule: Rule, name: str, text: str):
    assert len(rule(Module(name, text))) >= 1


GOOD: list[tuple[Rule, str, str]] = [
    (rules.check_room_imports, "horae_http.cli", "from horae.cli import main_group"),
    (rules.check_room_imports, "horae_node.x", "from horae import wire\nfrom horae.wire import JobView"),
    (rules.check_room_imports, "horae_http.x", "from horae_node import config\nfrom horae_storage import errors"),
    (rules.check_homes, "horae_node.raft.adapter", "from pysyncobj import SyncObj"),
    (rules.check_clock, "horae_node.clock", "import time\ntime.monotonic()"),
    (rules.check_core_imports, "horae_node.core.x", "import hashlib\nfrom horae_storage.kv import Txn"),
    (rules.check_core_imports, "horae_node.core.decide.x", "from ..model import Job"),
    (rules.check_core_purity, "horae_node.core.x", "for a in sorted(set(b)):\n    c = a // 2"),
    (rules.check_function_length, "horae_node.x", "def f():\n" + "    pass\n" * 69),
    (rules.check_log_fields, "horae_node.x", "log.event('joined', peer=1)\nview(node=1)"),
    (rules.check_broad_except, "horae_node.x", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    (rules.check_broad_except, "horae_node.x", "try:\n    f()\nexcept Exception:  # root: ends it\n    end()"),
    (
        rules.check_broad_except,
        "horae.x",
        "def f():\n    'The root of a task.'\n    try:\n        g()\n    except Exception:\n        h()",
    ),
]


@pytest.mark.parametrize(("rule", "name", "text"), GOOD, ids=[f"{r.__name__}-{i}" for i, (r, _, _) in enumerate(GOOD)])
def test_a_good_sample_passes(rule: Rule, name: str, text: str):
    assert rule(Module(name, text)) == []


@pytest.mark.parametrize("word", [*rules.WORKPLACE_WORDS, "TO" + "DO"])
def test_a_forbidden_word_is_found(word: str):
    assert rules.check_words("x.py", f"# see {word}here") == [f"x.py:1: has the word {word!r}"]
