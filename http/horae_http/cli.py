"""The command `horae`: the user commands of `horae.cli`, those that run a server (`node`, `dev`), and those that carry
its data (`backup`, `restore`, `node recover`).

The server's modules are imported inside those only, so that `horae submit` starts fast and needs none of them.
Not here: what the commands do (`horae/cli.py`, `main.py`, `dev.py`, `offline.py`).
"""

from __future__ import annotations

import os
import signal
import sys
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from horae import cli_import as cli_import  # mounts itself
from horae import cli_schedules as cli_schedules  # mounts itself
from horae import streams
from horae.cli import AS_JSON, WHOM, Target, deadline_option, fail, main_group, with_target
from horae_http.ending import interrupt_kills, say_last

if TYPE_CHECKING:
    from horae_node.config import Key, NodeConfig

DEV_PORT = 7070
EXIT_REFUSED = 2
_BACKUP_DEADLINE = deadline_option(inf, "How long it may take in all. Default: as long as a node sends.")


class NodeCommand(click.Command):
    """One flag for each key of the configuration, asked for only when this command is used."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not any(param.name == "config" for param in self.params):
            self.params += _node_params()
        return super().get_params(ctx)


class NodeGroup(NodeCommand, click.Group):
    """`horae node` runs one; below it is what is done to a node that does not run."""


def _node_params() -> list[click.Parameter]:
    with interrupt_kills():
        from horae_node.config import KEYS

    path = click.Path(path_type=Path)
    config = click.Option(["--config"], type=path, envvar="HORAE_CONFIG", help="the file (TOML); also HORAE_CONFIG")
    return [config, *(click.Option([key.flag, key.name], metavar=_metavar(key), help=key.reason) for key in KEYS)]


def _metavar(key: Key) -> str:
    """How the key's value is written as text."""
    text = key.form.rpartition("as text ")[2]
    return text.upper() if text.isalpha() else text


@click.pass_context
def _run_node(ctx: click.Context, /, config: Path | None, **flags: str | None) -> None:
    if ctx.invoked_subcommand is not None:
        ctx.obj = (config, flags)
        return
    with interrupt_kills():
        loaded = _load(config, flags)
        from horae_http.main import run_node

        _exit(run_node(loaded))


@click.pass_context
def _recover(ctx: click.Context, /, config: Path | None, yes_i_lose: bool, **flags: str | None) -> None:
    loaded = _load_below(ctx, config, flags)
    from horae_http.offline import run_recover

    run_recover(loaded, sure=yes_i_lose)


@click.pass_context
def _forget(ctx: click.Context, /, peer: str, config: Path | None, **flags: str | None) -> None:
    loaded = _load_below(ctx, config, flags)
    from horae_http.offline import run_forget

    run_forget(loaded, peer)


@click.pass_context
def _adopt(ctx: click.Context, /, origin: str, config: Path | None, **flags: str | None) -> None:
    loaded = _load_below(ctx, config, flags)
    from horae_http.offline import run_adopt

    run_adopt(loaded, origin)


def _load_below(ctx: click.Context, config: Path | None, flags: dict[str, str | None]) -> NodeConfig:
    """Of a command below `node`: its own flags, else those before it."""
    outer_config, outer_flags = ctx.obj
    merged = {name: flags[name] if flags[name] is not None else outer_flags[name] for name in flags}
    return _load(config or outer_config, merged)


def _load(config: Path | None, flags: dict[str, str | None]) -> NodeConfig:
    from horae_http.paths import require_utf8
    from horae_node.config import load_config
    from horae_node.errors import ConfigError

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        loaded = load_config(config, flags=given, environ=os.environ)
        require_utf8(loaded.data_dir)
        return loaded
    except ConfigError as error:
        say_last(error)
        _exit(EXIT_REFUSED)


node = NodeGroup(
    "node",
    callback=_run_node,
    invoke_without_command=True,
    help="Run one node until SIGTERM or Ctrl-C. Each key: a flag, else its HORAE_ variable, else the file.",
)
node.add_command(
    NodeCommand(
        "recover",
        callback=_recover,
        params=[click.Option(["--yes-i-lose"], is_flag=True, help="The other members are gone for good.")],
        help="Make a stopped node a cluster of its own, when the majority is lost for good. Without --yes-i-lose it "
        "only says what would be lost. The configuration's members name this node alone.",
    )
)


node.add_command(
    NodeCommand(
        "forget",
        callback=_forget,
        params=[click.Argument(["peer"], metavar="NODE")],
        help="Let a stopped node take the next data directory of NODE for the right one: see 'A node whose disk was "
        "lost' in docs/operations.md, without which it can lose acknowledged jobs.",
    )
)


node.add_command(
    NodeCommand(
        "adopt",
        callback=_adopt,
        params=[click.Argument(["origin"])],
        help="Make the empty directory of a lost member, which is to be taken in again under its old id, one of the "
        "cluster's present life: ORIGIN as GET /v1/cluster tells it. See 'A node whose disk was lost' in "
        "docs/operations.md, without which it can lose acknowledged jobs.",
    )
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE.")
@with_target(*WHOM, _BACKUP_DEADLINE, AS_JSON)
def backup(target: Target, file: Path, force: bool) -> None:
    """Save the cluster's whole state as FILE: of one moment, with all that was acknowledged before, checked.

    It takes a token with the role admin.
    """
    from horae_http.backup import BackupRefused, Source, Unreachable
    from horae_http.offline import run_backup

    try:
        saved = run_backup(
            _backup_file(file), source=Source(target.urls, target.token, target.deadline_seconds), force=force
        )
    except BackupRefused as error:
        target.refuse(error.problem)
    except Unreachable as error:
        target.not_reached(str(error))
    words = f"cluster {saved.cluster} at entry {saved.applied_index}, {saved.size_bytes} bytes, checked"
    target.tell({"file": str(file)} | saved._asdict(), f"{file}: {words}")


def _backup_file(file: Path) -> Path:
    """Where a backup's file will stand, links followed: a name is given to it, which would replace a link itself, or a
    device. What is there must be a regular file.
    """
    if str(file) == "-":
        fail(EXIT_REFUSED, "a backup goes into a file, which is checked and then named: - is none")
    try:
        real = Path(os.path.realpath(file))
        if real.is_symlink() or (file.exists() and not file.is_file()):
            fail(EXIT_REFUSED, f"{file} is no regular file: name one, or one that is yet to be made")
    except OSError as error:
        fail(EXIT_REFUSED, f"{file} cannot be written: {error.strerror or error}")
    return real


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", "data_dir", type=click.Path(path_type=Path), required=True, help="Empty, or yet to be made.")
@click.option("--node-id", required=True, metavar="NAME", help="Whose it will be.")
@click.option("--cluster", required=True, metavar="NAME", help="The new cluster's name.")
def restore(file: Path, data_dir: Path, node_id: str, cluster: str) -> None:
    """Make a data directory for a node of a new cluster from a backup. Do it for every member, from the same FILE."""
    from horae_http.offline import run_restore

    run_restore(file, data_dir=data_dir, node_id=node_id, cluster=cluster)


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
    with interrupt_kills():
        from horae_http.dev import run_dev
        from horae_http.dev_place import DevOptions

        _exit(run_dev(DevOptions(nodes=int(nodes), **options)))


def _exit(code: int) -> NoReturn:
    """What a server could not print is no reason for another exit code than its own."""
    streams.drop_unwritten()
    sys.exit(code)


main_group.add_command(node)
main_group.add_command(backup)
main_group.add_command(restore)
main_group.add_command(dev)


def main() -> None:
    """Run the command line that this process was started with."""
    streams.prepare()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `__main__.py` leaves it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main_group(prog_name="horae")
