"""The commands that carry data in and out of a cluster: `horae backup`, `horae restore`, `horae node recover`.

Exit codes as the user commands': 0 done, 1 refused, 2 bad usage or surroundings, 3 not reachable. Each refusal is one
line with the next step; what the cluster says is told as by the user commands (`cli.py`).
Not here: what is done (`backup.py`, `horae_node/restore.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from horae_http import backup
from horae_node import restore
from horae_node.clock import SystemClock
from horae_node.config import NodeConfig
from horae_node.errors import ConfigError
from horae_storage import peer_book
from horae_storage.directory import is_new, open_directory
from horae_storage.errors import StorageError

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2


def run_backup(file: Path, *, source: backup.Source, force: bool) -> backup.Saved:
    """`horae backup FILE`. Raises: `BackupRefused`, `Unreachable`, for the command to tell."""
    if file.exists() and not force:
        _fail(EXIT_USAGE, f"{file} exists: choose another name, or --force to replace it once the new one is complete")
    try:
        return asyncio.run(backup.fetch(source, file))
    except StorageError as error:
        _fail(EXIT_REFUSED, str(error))
    except OSError as error:
        _fail(EXIT_USAGE, f"{file} cannot be written: {error.strerror or error}")


def run_restore(file: Path, *, data_dir: Path, node_id: str, cluster: str) -> None:
    """`horae restore FILE`."""
    try:
        meta = restore.restore(file, data_dir, cluster=cluster, node_id=node_id, clock=SystemClock())
    except (ConfigError, StorageError) as error:
        _fail(EXIT_USAGE, str(error))
    print(f"{data_dir}: node {node_id} of cluster {cluster}, from {meta.cluster} at entry {meta.last_index}")
    print("Restore the same file for every member of the new cluster before any of them is started.")


def run_recover(config: NodeConfig, *, sure: bool) -> None:
    """`horae node recover`."""
    try:
        if not sure:
            _print_survivor(config, restore.survey(config, SystemClock()))
            _fail(EXIT_REFUSED, "nothing was changed: give --yes-i-lose if the other members are gone for good")
        survivor = restore.recover(config, SystemClock())
    except (ConfigError, StorageError) as error:
        _fail(EXIT_USAGE, str(error))
    _print_survivor(config, survivor)
    print(f"Done: {config.node_id} is the only member now. Never start the others on their old directories again.")


def run_forget(config: NodeConfig, peer: str) -> None:
    """`horae node forget NODE`."""
    try:
        if is_new(config.data_dir):
            _fail(EXIT_USAGE, f"{config.data_dir} is no node's yet: it knows nobody")
        with contextlib.closing(open_directory(config.data_dir, config.cluster, config.node_id)) as directory:
            known = peer_book.PeerBook(config.data_dir).forget(peer)
            directory.give_to_owner()
    except StorageError as error:
        _fail(EXIT_USAGE, str(error))
    if not known:
        _fail(EXIT_REFUSED, f"{config.node_id} does not know {peer}: nothing was changed")
    print(f"{config.node_id} takes the next data directory of {peer} for the right one.")


def run_adopt(config: NodeConfig, origin: str) -> None:
    """`horae node adopt ORIGIN`."""
    if re.fullmatch(r"[0-9a-f]{64}", origin) is None:
        _fail(EXIT_USAGE, "ORIGIN is 64 hexadecimal digits: copy what GET /v1/cluster of the others says")
    try:
        if not is_new(config.data_dir):
            _fail(EXIT_USAGE, f"{config.data_dir} is a node's already: only an empty directory can be adopted")
        with contextlib.closing(open_directory(config.data_dir, config.cluster, config.node_id)) as directory:
            directory.adopt_origin(origin)
            directory.give_to_owner()
    except StorageError as error:
        _fail(EXIT_USAGE, str(error))
    print(f"{config.data_dir} is of the life of the cluster that began with {origin[:12]}.")


def _print_survivor(config: NodeConfig, found: restore.Survivor) -> None:
    moment = datetime.fromtimestamp(found.now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    print(f"{config.data_dir}: node {config.node_id} of cluster {config.cluster}, members {', '.join(found.voters)}")
    print(f"  applied up to entry {found.applied_index}, cluster time {moment}")
    print(f"  known to be committed up to entry {found.commit_index}, log ends at entry {found.last_index}")
    print("  LOST: whatever the cluster acknowledged after that entry and this node never got.")
    if found.last_index > found.commit_index:
        print(f"  IN DOUBT: entries {found.commit_index + 1} to {found.last_index} take effect, acknowledged or not.")


def _fail(code: int, line: str) -> NoReturn:
    print("horae: " + " ".join(line.split()), file=sys.stderr)
    sys.exit(code)
