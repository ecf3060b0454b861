"""New seeds in a process of their own, beside the other tests and at the lowest priority.

Those wait for disks, sockets and sleeps half of their time: what they leave of the cores is enough. Who begins and ends
it: `conftest.py`.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HOURS = float(os.environ.get("SIM_HOURS", "1.5"))
JOBS = 2
REPOSITORY = Path(__file__).parents[2]
NICE = ("nice", "-n", "19")


class NewSeeds:
    """So many hours from a seed base that is drawn here; they begin at once."""

    def __init__(self, hours: float = HOURS) -> None:
        self.hours, self.base = hours, secrets.randbelow(10**9)
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed by `end`)
        simulate = ("-m", "tests.sim", "--hours", str(hours), "--jobs", str(JOBS), "--seed-base", str(self.base))
        self._process = subprocess.Popen(
            [*NICE, sys.executable, *simulate],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> tuple[int, str]:
        """Exit code and all that it printed, when it has ended."""
        code = self._process.wait()
        self._output.seek(0)
        return code, self._output.read()

    def end(self) -> None:
        """Nothing of it goes on, whether or not anybody waited."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
