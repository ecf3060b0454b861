"""Who may begin to join: nobody who was met with a directory that is gone, whether it counts already or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from horae import wire
from horae_http.join import _require_place
from horae_node.config import NodeConfig, load_config
from horae_node.errors import ConfigError
from horae_storage.directory import open_directory


def config_of(data_dir: Path) -> NodeConfig:
    flags = {
        "node_id": "n4",
        "cluster": "c",
        "data_dir": str(data_dir),
        "join": "http://127.0.0.1:7070",
        "http_listen": "127.0.0.1:7170",
        "raft_listen": "127.0.0.1:7171",
    }
    return load_config(None, flags=flags, environ={})


def view_with(**member: Any) -> wire.ClusterView:
    kept = {"node": "n4", "url": "", "raft_address": "", "role": "", "connected": True}
    unknown = dict.fromkeys(("match_index", "lag", "last_heard_seconds", "clock_skew_seconds"))
    indexes = dict.fromkeys(("commit_index", "applied_index", "durable_index", "last_index", "first_index"), 9)
    view = {"cluster": "c", "node": "n1", "leader": "n1", "leader_url": None, "term": 7, "epoch": 1, **indexes}
    view |= {"role": "leader", "state_digest": "", "version": "0", "machine_version": 1, "cluster_time": ""}
    members = [kept | unknown | member] if member else []
    return msgspec.convert(view | {"disk": {}, "members": members}, wire.ClusterView)


def test_who_is_not_there_yet_or_was_never_met_may_join(tmp_path: Path) -> None:
    config = config_of(tmp_path / "d")
    for view in (view_with(), view_with(standing="learner"), view_with(node="n3", standing="voter")):
        _require_place(config, view)
    assert not config.data_dir.exists()


@pytest.mark.parametrize("member", [{"standing": "voter"}, {"standing": "learner", "incarnation": "lost"}])
def test_who_was_met_with_a_directory_that_is_gone_needs_a_new_id(tmp_path: Path, member: dict[str, Any]) -> None:
    config = config_of(tmp_path / "d")
    with pytest.raises(ConfigError, match=r"n4 is a member already, and .* take a new node_id \(`horae cluster remove"):
        _require_place(config, view_with(**member))
    assert not config.data_dir.exists()


def test_who_was_broken_off_while_it_joined_goes_on(tmp_path: Path) -> None:
    config = config_of(tmp_path / "d")
    directory = open_directory(config.data_dir, "c", "n4")
    incarnation = directory.incarnation
    directory.close()
    _require_place(config, view_with(standing="learner", incarnation=incarnation))
    with pytest.raises(ConfigError):
        _require_place(config, view_with(standing="learner", incarnation="another"))
