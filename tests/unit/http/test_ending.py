"""How a server's process ends: each promise in a process of its own, since signals belong to the whole of one."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from horae_http import ending

LIMIT_S = 30
"""A bound against hanging, never a measure."""


def run(source: str, *, ignored: signal.Signals | None = None, stderr: str = "") -> subprocess.CompletedProcess[str]:
    ignore = f"trap '' {ignored.name.removeprefix('SIG')}; " if ignored is not None else ""
    args = ["sh", "-c", f'{ignore}exec "$0" "$@" {stderr}', sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(args, capture_output=True, text=True, timeout=LIMIT_S, check=False, preexec_fn=hear_hang_ups)


def hear_hang_ups() -> None:
    """In the child: the tests themselves may run under `nohup`, which is handed down."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_once_all_has_stopped_no_signal_changes_the_exit_code(loops: str):
    source = f"""
        import asyncio, os, signal, sys
        import {loops} as loops
        from horae_http import ending
        async def serve():
            heard = []
            for number in ending.STOP_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, heard.append, number)
            ending.ignore_signals()
        with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
            runner.run(serve())
        for number in ending.STOP_SIGNALS:
            os.kill(os.getpid(), number)
        sys.exit(3)
    """
    assert run(source).returncode == 3


def test_an_interrupt_before_anything_has_begun_ends_the_process_without_a_word():
    ended = run("""
        import os, signal
        from horae_http.ending import interrupt_kills
        with interrupt_kills():
            os.kill(os.getpid(), signal.SIGINT)
    """)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_an_interrupt_is_heard_again_when_nobody_handled_it_meanwhile():
    before = signal.getsignal(signal.SIGINT)
    with ending.interrupt_kills():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    source = """
        import os, signal
        from horae_http.ending import interrupt_kills
        with interrupt_kills():
            os.kill(os.getpid(), signal.SIGINT)
            print("lives")
    """
    assert run(source, ignored=signal.SIGINT).stdout == "lives\n"


@pytest.mark.parametrize(("ignored", "stops"), [(None, True), (signal.SIGHUP, False)])
def test_a_hang_up_stops_unless_it_was_ignored_before_the_start(ignored: signal.Signals | None, stops: bool):
    ended = run("from horae_http import ending\nprint(ending.hang_up_stops())", ignored=ignored)
    assert ended.stdout == f"{stops}\n"


def test_the_last_line_is_left_out_where_it_cannot_be_written():
    source = "from horae_http import ending\nending.say_last('why')\nprint('goes on')"
    assert run(source).stderr == "horae: why\n"
    assert run(source, stderr="2>/dev/full").stdout == "goes on\n"
