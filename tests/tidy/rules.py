"""The house's own habits as functions over source text: each takes a module and gives back findings, one line each.

Not here: which files exist (`test_tidy.py` walks them, and shows each rule a bad sample that it must refuse).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOMS: Final = {
    "horae_storage": "storage/horae_storage",
    "horae_node": "node/horae_node",
    "horae_http": "http/horae_http",
    "horae": "worker_client/horae",
}
MAY_IMPORT: Final = {
    "horae_storage": {"horae_storage"},
    "horae_node": {"horae_node", "horae_storage"},
    "horae_http": {"horae_http", "horae_node", "horae_storage"},
    "horae": {"horae"},
}
OPEN_TO_ALL: Final = "horae.wire"
COMMAND_LINE: Final = ("horae_http.cli", ("horae.cli", "horae.streams"))
"""The one other import of the client by the server: the command mounts the user commands, and starts as they do."""

HOMES: Final = {
    "pysyncobj": ("horae_node.raft",),
    "lmdb": ("horae_storage",),
    "aiohttp": ("horae_http", "horae.transport"),
    "croniter": ("horae_node.cron",),
    "cronsim": (),
    "zoneinfo": ("horae_node.zones",),
    "prometheus_client": ("horae_node.metrics", "horae_node.runtime"),
    "uvloop": ("horae_http.main", "horae.transport"),
    "rich": ("horae.cli", "horae.show"),
}
"""None: a second opinion, for the tests. The standard library's `zoneinfo` is here because on its own it reads the
machine's files, which differ between nodes."""

CLOCKS: Final = ("horae_node.clock", "horae.clock")
LOG_TIME: Final = ("horae_node.logs",)
"""May format the moment that the logging library stamped on a record; reads no clock."""

CLOCK_CALLS: Final = frozenset(
    {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns"}
    | {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
    | {"datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"}
)
LOG_CALLS: Final = frozenset(
    f"{log}.{level}" for log in ("log", "_events") for level in ("debug", "event", "warning", "error")
)
CORE_BANNED_IMPORTS: Final = frozenset(
    {"time", "random", "uuid", "os", "secrets", "logging", "locale", "asyncio", "threading", "socket", "datetime"}
)
CORE_BANNED_NAMES: Final = frozenset({"hash", "float", "id", "open", "print", "input", "globals"})
CORE_MAY_IMPORT: Final = ("horae_node.core", "horae_storage.kv")
STANDARD_LIBRARY_OF_CORE: Final = frozenset(
    {"__future__", "typing", "collections", "dataclasses", "enum", "struct", "hashlib", "itertools", "functools"}
    | {"operator", "bisect", "heapq", "collections.abc", "abc"}
)
WORKPLACE_WORDS: Final = tuple("".join(pair) for pair in (("/wo", "rk/"), ("/ro", "ot/"), ("/tmp", "/bash_jobs")))
OF_OTHERS: Final = frozenset({"node.toml", "shop.py", "syncobj.py"})
"""Files that readers make themselves, and one of a library's."""

_FILE_NAME: Final = re.compile(r"(?<![\w./{}<>*-])(?:[\w-]+/)*[\w-]+\.(?:md|py|toml|txt|sh)\b(?![\w(])")
LINES_MAX: Final = 70
_ROOT: Final = re.compile(r"\b(root|handler|as above)\b")
"""A task's root, or the border to a user's handler, which may raise anything."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file: its dotted name and its text."""

    name: str
    text: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]

    def within(self, homes: tuple[str, ...]) -> bool:
        return any(self.name == home or self.name.startswith(home + ".") for home in homes)


def modules_of(root: Path, package: str, folder: str) -> Iterator[Module]:
    """Every module of one room."""
    for path in sorted((root / folder).rglob("*.py")):
        parts = path.relative_to(root / folder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join([package, *(parts[:-1] if is_package else parts)])
        yield Module(name, path.read_text(encoding="utf-8"), is_package)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of each import, at whatever depth; `from a import b` gives `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    up = node.level - (1 if module.is_package else 0)
    parts = module.name.split(".")
    return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))


def check_room_imports(module: Module) -> list[str]:
    """`horae_http → horae_node → horae_storage`, never up; `horae.wire` is open to all; `horae` knows no server."""
    found = []
    for line, name in imports_of(module):
        target = name.partition(".")[0]
        if target not in ROOMS or target in MAY_IMPORT[module.room]:
            continue
        if name == OPEN_TO_ALL or name.startswith(OPEN_TO_ALL + "."):
            continue
        if module.name == COMMAND_LINE[0] and name.startswith(COMMAND_LINE[1]):
            continue
        found.append(f"{module.name}:{line}: imports {name}, which its room may not")
    return found


def check_homes(module: Module) -> list[str]:
    """Each third party has one home."""
    return [
        f"{module.name}:{line}: imports {name}, whose home is {' or '.join(HOMES[library]) or 'the tests'}"
        for line, name in imports_of(module)
        if (library := name.partition(".")[0]) in HOMES and not module.within(HOMES[library])
    ]


def check_clock(module: Module) -> list[str]:
    """The clock is read in two modules only."""
    if module.within(CLOCKS):
        return []
    found = [
        f"{module.name}:{node.lineno}: reads the clock: {name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and (name := _dotted(node)) in CLOCK_CALLS
    ]
    if not module.within(LOG_TIME):
        found += [
            f"{module.name}:{line}: imports {name}: ask a clock"
            for line, name in imports_of(module)
            if name == "time" or name.startswith("time.")
        ]
    return found


def check_core_imports(module: Module) -> list[str]:
    """The machine stands on a few modules of the standard library, the store's port, and itself."""
    if not module.within(("horae_node.core",)):
        return []
    found = []
    for line, name in imports_of(module):
        top = name.partition(".")[0]
        own = any(name == home or name.startswith(home + ".") for home in CORE_MAY_IMPORT)
        if top in CORE_BANNED_IMPORTS or not (own or top in STANDARD_LIBRARY_OF_CORE):
            found.append(f"{module.name}:{line}: the machine may not import {name}")
    return found


def check_core_purity(module: Module) -> list[str]:
    """No chance, clock, float, environment, waiting or loop over a set in the machine."""
    if not module.within(("horae_node.core",)):
        return []
    return [
        f"{module.name}:{getattr(node, 'lineno', 0)}: {why}"
        for node in ast.walk(module.tree)
        if (why := _impurity(node)) is not None
    ]


def _impurity(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in CORE_BANNED_NAMES:
        return f"uses {node.id}"
    if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
        return f"has the float {node.value}"
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
        return "divides into a float: use //"
    if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith):
        return "waits"
    if isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter):
        return "loops over a set"
    if isinstance(node, ast.Attribute) and _dotted(node) in CLOCK_CALLS:
        return "reads the clock"
    return None


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.BinOp):  # a union or difference of sets
        return _is_set(node.left) or _is_set(node.right)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


def check_docstring(module: Module) -> list[str]:
    """Every module says its role."""
    if not module.text.strip() or ast.get_docstring(module.tree):
        return []
    return [f"{module.name}: has no docstring"]


def check_function_length(module: Module) -> list[str]:
    """Ten lines are a normal function; more than seventy are split."""
    return [
        f"{module.name}:{node.lineno}: {node.name} has {lines} lines, more than {LINES_MAX}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > LINES_MAX
    ]


def check_broad_except(module: Module) -> list[str]:
    """`except Exception` (or wider) only to raise it again, or at a root or a user's handler, where that is said."""
    lines = module.text.splitlines()
    roots = {
        handler
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and _ROOT.search(ast.get_docstring(function) or "")
        for handler in _line_numbers_of_handlers(function)
    }
    return [
        f"{module.name}:{node.lineno}: catches everything: name the error, or say of what it is the root"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and _is_broad(node.type)
        and not _raises_again(node)
        and node.lineno not in roots
        and not _ROOT.search(lines[node.lineno - 1].partition("#")[2])
    ]


def _line_numbers_of_handlers(function: ast.AST) -> Iterator[int]:
    return (node.lineno for node in ast.walk(function) if isinstance(node, ast.ExceptHandler))


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in ("Exception", "BaseException") for name in names)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def check_words(where: str, text: str) -> list[str]:
    """No path of the machine on which it was written, and no promise instead of code."""
    words = [*WORKPLACE_WORDS, "TO" + "DO", "FIX" + "ME", "NotImplemented" + "Error"]
    return [
        f"{where}:{number}: has the word {word!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for word in words
        if word in line
    ]


def check_file_names(where: str, text: str, files: frozenset[str]) -> list[str]:
    """A file that a page or a docstring sends its reader to is there. `files`: all paths of the repository."""
    return [
        f"{where}: names {name}, which is not in the repository"
        for name in sorted(set(_FILE_NAME.findall(text)) - OF_OTHERS)
        if not any(path == name or path.endswith("/" + name) for path in files)
    ]


def docstrings_of(module: Module) -> str:
    """What a module tells its reader: the docstrings, those of constants too, and the comments."""
    told = [
        node.value.value
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments = [line.strip() for line in module.text.splitlines() if line.strip().startswith("#")]
    return "\n".join([*told, *comments])


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def check_log_fields(module: Module) -> list[str]:
    """A node's log line has its node and room already: a field of that name would say it twice, or something else."""
    return [
        f"{module.name}:{node.lineno}: the field {keyword.arg} repeats what each line has"
        for node in ast.walk(module.tree)
        if module.room != "horae" and isinstance(node, ast.Call) and _dotted(node.func) in LOG_CALLS
        for keyword in node.keywords
        if keyword.arg in ("node", "room")
    ]


MODULE_RULES: Final = (
    check_room_imports,
    check_homes,
    check_clock,
    check_core_imports,
    check_core_purity,
    check_docstring,
    check_function_length,
    check_broad_except,
    check_log_fields,
)
