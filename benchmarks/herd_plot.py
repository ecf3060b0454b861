"""The picture of a herd: due, made, ready and started over time, as a PNG. matplotlib's only home, and optional.

Not here: what was measured (`herd.py`).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from herd_loads import Seen

MISSING: Final = "--plot needs matplotlib: pip install -c constraints.txt -e '.[bench]'"
BEFORE_S: Final = 1.0


def is_possible() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(seen: Seen, title: str, path: Path) -> None:
    """Write the picture, over what was there."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    end_s = max(seen.samples[-1].at_s, seen.started[-1][0])
    at_s = [sample.at_s for sample in seen.samples]
    axes.step([-BEFORE_S, 0, end_s], [0, seen.schedules, seen.schedules], where="post", label="due", color="0.6")
    axes.plot([0, *at_s], [0, *(sample.made for sample in seen.samples)], label="fired: its job is made")
    started_s, started = zip((0.0, 0), *seen.started, strict=True)
    axes.step(started_s, started, where="post", label="started")
    axes.plot([0, *at_s], [0, *(sample.ready for sample in seen.samples)], label="ready, not started")
    axes.set_xlabel("seconds after the instant")
    axes.set_ylabel("jobs")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
