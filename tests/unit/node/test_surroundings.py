"""Before anything is opened: whose directory, which voters, free ports; nothing stays held, nothing is harmed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.loopback import free_ports

from horae_node.config import NodeConfig, load_config
from horae_node.errors import ConfigError
from horae_node.surroundings import require_surroundings
from horae_node.voters import VOTERS_FILE
from horae_storage.directory import open_directory
from horae_storage.errors import DirectoryInUse, ForeignDirectory


def config_of(data_dir: Path, ids: tuple[str, ...] = ("n1", "n2", "n3"), **flags: str) -> NodeConfig:
    http_port, *ports = free_ports(len(ids) + 1)
    members = ",".join(f"{name}=127.0.0.1:{port}@http://{name}:7070" for name, port in zip(ids, ports, strict=True))
    given = {
        "node_id": ids[0],
        "data_dir": str(data_dir),
        "members": members,
        "http_listen": f"127.0.0.1:{http_port}",
    }
    return load_config(flags=given | {"http_advertise": f"http://{ids[0]}:7070"} | flags)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(1)
        yield sock.getsockname()[1]


def test_a_second_check_of_the_same_passes_and_nothing_stays_held(tmp_path):
    config = config_of(tmp_path / "d")
    require_surroundings(config)
    require_surroundings(config)
    open_directory(tmp_path / "d", config.cluster, config.node_id).close()
    assert json.loads((tmp_path / "d" / VOTERS_FILE).read_text()) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("ids", [("n1",), ("n1", "n2", "n4"), ("n1", "n2", "n3", "n4", "n5")])
def test_other_voters_are_refused_and_the_first_stay_written(tmp_path, ids):
    require_surroundings(config_of(tmp_path / "d"))
    with pytest.raises(ConfigError, match="belongs to a cluster of n1, n2, n3: members are changed by"):
        require_surroundings(config_of(tmp_path / "d", ids))
    require_surroundings(config_of(tmp_path / "d"))


def test_addresses_may_change(tmp_path):
    first, second = config_of(tmp_path / "d"), config_of(tmp_path / "d")
    assert first.members != second.members
    require_surroundings(first)
    require_surroundings(second)


def test_a_broken_record_of_the_voters_is_refused_with_the_fix(tmp_path):
    config = config_of(tmp_path / "d")
    require_surroundings(config)
    (tmp_path / "d" / VOTERS_FILE).write_text("[")
    with pytest.raises(ConfigError, match="remove it, once `members` in the configuration"):
        require_surroundings(config)


@pytest.mark.parametrize("text", ["7", "null", '"n1"', '{"n1": 1}'])
def test_a_record_that_is_no_list_is_refused(tmp_path, text):
    config = config_of(tmp_path / "d")
    require_surroundings(config)
    (tmp_path / "d" / VOTERS_FILE).write_text(text)
    with pytest.raises(ConfigError, match="remove it, once `members` in the configuration"):
        require_surroundings(config)


def test_http_port_in_use(tmp_path, taken):
    with pytest.raises(ConfigError, match=f"http_listen 127.0.0.1:{taken} cannot be used: Address already in use"):
        require_surroundings(config_of(tmp_path / "d", http_listen=f"127.0.0.1:{taken}"))


@pytest.mark.parametrize("members", [("n1",), ("n1", "n2", "n3")])
def test_raft_port_in_use_is_refused(tmp_path, taken, members):
    """Also for a node alone: others may be added to it while it runs."""
    with pytest.raises(ConfigError, match=f"raft_listen 127.0.0.1:{taken} cannot be used"):
        require_surroundings(config_of(tmp_path / "d", members, raft_listen=f"127.0.0.1:{taken}"))


@pytest.mark.parametrize("key", ["http_listen", "raft_listen"])
def test_a_port_in_use_leaves_no_new_directory_behind(tmp_path, taken, key):
    with pytest.raises(ConfigError, match=f"{key} 127.0.0.1:{taken} cannot be used"):
        require_surroundings(config_of(tmp_path / "d", **{key: f"127.0.0.1:{taken}"}))
    assert not (tmp_path / "d").exists()


def test_who_joins_makes_no_directory_before_it_is_taken_in(tmp_path):
    flags = {"node_id": "n9", "data_dir": str(tmp_path / "d"), "join": "http://n1:7070"}
    http_port, raft_port = free_ports(2)
    ports = {"http_listen": f"127.0.0.1:{http_port}", "raft_listen": f"127.0.0.1:{raft_port}"}
    require_surroundings(load_config(flags=flags | ports))
    assert not (tmp_path / "d").exists()


def test_an_address_of_another_machine(tmp_path):
    with pytest.raises(ConfigError, match=r"raft_listen 192\.0\.2\.1:7071 cannot be used"):
        require_surroundings(config_of(tmp_path / "d", raft_listen="192.0.2.1:7071"))


def test_the_directory_comes_before_the_ports(tmp_path, taken):
    require_surroundings(config_of(tmp_path / "d"))
    with pytest.raises(ForeignDirectory):
        require_surroundings(config_of(tmp_path / "d", cluster="other", http_listen=f"127.0.0.1:{taken}"))
    held = open_directory(tmp_path / "d", "horae", "n1")
    try:
        with pytest.raises(DirectoryInUse):
            require_surroundings(config_of(tmp_path / "d", http_listen=f"127.0.0.1:{taken}"))
    finally:
        held.close()
