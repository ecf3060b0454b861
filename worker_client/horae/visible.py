"""Text from elsewhere, made fit for a terminal: control characters are shown, so that they command nothing.

An error's message, a task's or a worker's name may hold what moves the cursor, sets the window's title or hides what
stands before it. Pure functions. Who prints: `show.py`, `cli.py`, `logs.py`.
"""

from __future__ import annotations

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""C0, DEL and C1: a C1 character is to some terminals what ESC and a letter are."""
_SHORT = {ord("\t"): r"\t", ord("\n"): r"\n", ord("\r"): r"\r"}
_IN_LINE = {code: _SHORT.get(code, f"\\x{code:02x}") for code in _CONTROLS}
_IN_LINES = {code: shown for code, shown in _IN_LINE.items() if chr(code) not in "\t\n"}
_IN_JSON = {code: f"\\u{code:04x}" for code in _CONTROLS}


def line(text: str) -> str:
    """On one line: each control character as `\\x1b`, or `\\n`."""
    return text if text.isprintable() else text.translate(_IN_LINE)


def lines(text: str) -> str:
    """A text of many lines, such as a traceback: line breaks and tabs stay."""
    return text if text.isprintable() else text.translate(_IN_LINES)


def json_line(text: str) -> str:
    """JSON without line breaks stays JSON: its writer leaves DEL and C1 as they are."""
    return text if text.isprintable() else text.translate(_IN_JSON)
