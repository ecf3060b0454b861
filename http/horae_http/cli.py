"""The command `horae`: the user commands of `horae.cli`, and the two that run a server, `node` and `dev`.

The server's modules are imported inside those two only, so that `horae submit` starts fast and needs none of them.
Not here: what the commands do (`horae/cli.py`, `main.py`, `dev.py`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from horae.cli import main_group

if TYPE_CHECKING:
    from horae_node.config import Key

DEV_PORT = 7070
EXIT_REFUSED = 2


class NodeCommand(click.Command):
    """`horae node`: one flag for each key of the configuration, asked for only when this command is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            self.params = _node_params()
        return super().get_params(ctx)


def _node_params() -> list[click.Parameter]:
    from horae_node.config import KEYS

    path = click.Path(path_type=Path)
    config = click.Option(["--config"], type=path, envvar="HORAE_CONFIG", help="the file (TOML); also HORAE_CONFIG")
    return [config, *(click.Option([key.flag, key.name], metavar=_metavar(key), help=key.reason) for key in KEYS)]


def _metavar(key: Key) -> str:
    """How the key's value is written as text."""
    text = key.form.rpartition("as text ")[2]
    return text.upper() if text.isalpha() else text


def _run_node(config: Path | None, **flags: str | None) -> None:
    from horae_node.config import load_config
    from horae_node.errors import ConfigError

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        loaded = load_config(config, flags=given, environ=os.environ)
    except ConfigError as error:
        click.echo(f"horae: {error}", err=True)
        sys.exit(EXIT_REFUSED)
    from horae_http.main import run_node

    sys.exit(run_node(loaded))


node = NodeCommand(
    "node",
    callback=_run_node,
    help="Run one node until SIGTERM or Ctrl-C. Each key: a flag, else its HORAE_ variable, else the file.",
)


@click.command()
@click.option("--nodes", type=click.Choice(["1", "3", "5"]), default="3", show_default=True, help="How many.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=DEV_PORT,
    show_default=True,
    help="HTTP port of the first node; the others take the next ones.",
)
@click.option(
    "--data", "data_dir", type=click.Path(path_type=Path), default=".horae", show_default=True, help="Data directory."
)
@click.option("--worker/--no-worker", default=True, help="Run the demo worker, and one job through it.")
def dev(nodes: str, **options: Any) -> None:
    """Run a whole cluster on this machine, with a demo worker, until Ctrl-C. Its data stays."""
    from horae_http.dev import run_dev
    from horae_http.dev_place import DevOptions

    sys.exit(run_dev(DevOptions(nodes=int(nodes), **options)))


main_group.add_command(node)
main_group.add_command(dev)


def main() -> None:
    """The console script."""
    main_group(prog_name="horae")
