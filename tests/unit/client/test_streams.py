"""The standard streams of a command: none is missing, none fails for want of a character or of room at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LIMIT_S = 30
"""A bound against hanging, never a measure."""


def run(source: str, redirect: str = "", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """The source in a process of its own, its streams redirected as a shell does it."""
    args = ["sh", "-c", f'exec "$0" "$@" {redirect}', sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(args, capture_output=True, timeout=LIMIT_S, env=buffered() | environ, check=False)


def buffered() -> dict[str, str]:
    """The environment of a command whose output waits for a flush, as outside a test run."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("redirect", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_missing_stream(tmp_path: Path, redirect: str):
    found = tmp_path / "found"
    source = f"""
        import os, sys
        from horae import streams
        streams.prepare()
        streams.prepare()
        print("out")
        print("error", file=sys.stderr)
        with open({str(found)!r}, "w") as file:
            null = [fd for fd in range(3) if os.path.samestat(os.fstat(fd), os.stat(os.devnull))]
            kept = all(os.get_inheritable(fd) for fd in range(3))
            print(file.fileno() > 2, null, sys.stdin.read() == "", kept, file=file)
    """
    missing = [fd for fd, sign in enumerate(("<&-", " >&-", "2>&-")) if sign in f" {redirect}"]
    ended = run(source, f"{redirect} {'' if 0 in missing else '</dev/null'}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (b"" if 1 in missing else b"out\n")
    assert ended.stderr == (b"" if 2 in missing else b"error\n")
    assert found.read_text() == f"True {sorted({0, *missing})} True True\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1", "ascii:surrogateescape"])
def test_any_text_can_be_printed(encoding: str):
    source = r"""
        from horae import streams
        streams.prepare()
        print("\xe4 \u20ac \udcff \ud800")
    """
    ended = run(source, PYTHONIOENCODING=encoding)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(b" \\udcff \\ud800\n")


def test_a_way_that_was_asked_for_stays():
    ended = run("from horae import streams\nstreams.prepare()\nprint('\\xe4')", PYTHONIOENCODING="ascii:replace")
    assert (ended.returncode, ended.stdout) == (0, b"?\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("redirect", [">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"])
def test_what_cannot_be_written_at_the_end_does_not_change_the_exit_code(redirect: str):
    source = """
        import contextlib, sys
        from horae import streams
        streams.prepare()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                print("a line", file=stream, flush=True)
        {end}
        sys.exit(3)
    """
    assert run(source.format(end="pass"), redirect).returncode == 120
    assert run(source.format(end="streams.drop_unwritten()"), redirect).returncode == 3


def test_a_reader_that_went_does_not_change_the_exit_code_either():
    reading, writing = os.pipe()
    os.close(reading)
    source = "from horae import streams\nstreams.prepare()\nprint('x')\nstreams.drop_unwritten()\nraise SystemExit(3)"
    try:
        args = [sys.executable, "-c", source]
        ended = subprocess.run(args, stdout=writing, timeout=LIMIT_S, env=buffered(), check=False)
    finally:
        os.close(writing)
    assert ended.returncode == 3
