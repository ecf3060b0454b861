"""A node or a command that ends by itself, and the one line with which it refuses.

Not here: nodes that run on (`cluster.py`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.helpers.cluster import NodeProcess, clean_environ, command

REFUSED = 2
END_SECONDS = 60


def run_command(*args: str, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `horae ARGS` to its end, which must come by itself. `before` runs in the child, before the command."""
    return subprocess.run(
        command(*args),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=END_SECONDS,
        check=False,
        preexec_fn=before,
    )


def run_node(node: NodeProcess, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return run_command("node", "--config", str(node.config_path), before=before)


def require_refusal(done: subprocess.CompletedProcess[str], *words: str, code: int = REFUSED) -> None:
    """This exit code, and one line on standard error with each of the words, after what was logged of joining."""
    assert done.returncode == code, done
    lines = [line for line in done.stderr.splitlines() if " info joining " not in line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("horae: "), lines
    for word in words:
        assert word in lines[0], lines
