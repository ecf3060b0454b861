"""The command `horae`, also as `python -m horae_http`. Next to read: `cli.py`.

Ctrl-C while the imports run ends it without a word: by the signal itself, as a shell expects it (130).
"""

from __future__ import annotations

import signal


def main() -> None:
    """The console script. `cli.main` hears Ctrl-C again."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from horae_http.cli import main as run

    run()


if __name__ == "__main__":
    main()
