"""Where the time goes: a py-spy profile of collapsed stacks, as two ranked lists. Reads files, runs nothing.

`python benchmarks/hot.py profile-submit_1-n1.txt` prints the functions by their own samples, and by the samples of all
they call; each as a share of the samples of its thread's busy time (idle waits in the selector are left out by py-spy).
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.table import Table


def read(path: Path) -> list[tuple[list[str], int]]:
    """Each stack, outermost frame first, with its samples. Lines of one function are taken together."""
    stacks: list[tuple[list[str], int]] = []
    for text in path.read_text().splitlines():
        stack, _, samples = text.rpartition(" ")
        stacks.append(([frame.rpartition(":")[0] or frame for frame in stack.split(";")], int(samples)))
    return stacks


def rank(stacks: list[tuple[list[str], int]]) -> tuple[Counter[str], Counter[str]]:
    """Samples by function: its own, and with all it calls (a recursion counts once)."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for frames, samples in stacks:
        own[frames[-1]] += samples
        for frame in set(frames):
            whole[frame] += samples
    return own, whole


def show(console: Console, path: Path, lines: int) -> None:
    stacks = read(path)
    total = sum(samples for _, samples in stacks)
    own, whole = rank(stacks)
    table = Table(title=f"{path.name}: {total} samples", title_justify="left", box=None)
    for heading in ("own", "function", "with callees", "function "):
        table.add_column(heading, no_wrap=True)
    for (own_name, own_samples), (name, samples) in zip_longest(
        own.most_common(lines), whole.most_common(lines), fillvalue=("", 0)
    ):
        table.add_row(f"{own_samples / total:6.1%}", own_name, f"{samples / total:6.1%}", name)
    console.print(table, highlight=False, markup=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--lines", type=int, default=40, help="how many functions to list (40)")
    options = parser.parse_args()
    for file in options.files:
        show(Console(width=220), file, options.lines)
