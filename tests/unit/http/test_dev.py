"""`horae dev`: its directory, ports and flags, and what it refuses with the fix. A whole run: an integration test."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from horae_http import dev, dev_place
from horae_http.dev_place import DevOptions
from horae_node.config import load_config
from horae_node.errors import ConfigError
from horae_storage.directory import open_directory


def options(tmp_path: Path, **given: object) -> DevOptions:
    return DevOptions(**({"data_dir": tmp_path / ".horae"} | given))  # type: ignore[arg-type]


def held_port() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1)
    return sock


def test_the_flags_of_each_node_are_a_valid_configuration(tmp_path):
    chosen = options(tmp_path, nodes=3, port=17070)
    args = dev_place.node_args(chosen, [18071, 18072, 18073])
    assert list(args) == ["n1", "n2", "n3"]
    for name, (command, *flags) in args.items():
        assert command == "node"
        pairs = (flag.removeprefix("--").split("=", 1) for flag in flags)
        config = load_config(flags={key.replace("-", "_"): value for key, value in pairs})
        assert config.node_id == name
        assert [member.http_url for member in config.members] == list(chosen.urls.values())
        assert config.data_dir == tmp_path / ".horae" / name


def test_raft_ports_are_free_and_distinct(tmp_path):
    with held_port() as taken:
        port = taken.getsockname()[1]
        base = port - dev_place.RAFT_PORT_OFFSET
        ports = dev_place.choose_raft_ports(options(tmp_path, nodes=5, port=base))
    assert len(set(ports)) == 5
    assert port not in ports


def test_raft_ports_stay_in_range_for_a_high_port(tmp_path):
    ports = dev_place.choose_raft_ports(options(tmp_path, nodes=3, port=65533))
    assert max(ports) < 65533


def test_a_port_in_use_is_refused_with_the_fix(tmp_path):
    with held_port() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use: .* --port"):
            dev_place.require_free_ports(options(tmp_path, nodes=1, port=port))


def test_ports_past_the_last_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="leaves no room for 3 ports"):
        dev_place.require_free_ports(options(tmp_path, nodes=3, port=65535))


def test_a_directory_of_somebody_elses_is_refused_untouched(tmp_path):
    (tmp_path / ".horae").mkdir()
    (tmp_path / ".horae" / "thesis.tex").write_text("theirs")
    with pytest.raises(ConfigError, match=r"holds thesis\.tex, which is not of horae dev: choose another with --data"):  # noqa: SIM117
        with dev_place.own_data_dir(options(tmp_path)):
            pytest.fail("it was taken")
    assert [it.name for it in (tmp_path / ".horae").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("ours", [True, False])
def test_what_file_managers_leave_hidden_is_nobodys(tmp_path, ours):
    chosen = options(tmp_path)
    chosen.data_dir.mkdir()
    (chosen.data_dir / ".DS_Store").touch()
    if ours:
        (chosen.data_dir / "notes.txt").touch()
        (chosen.data_dir / "dev.json").touch()
    with dev_place.own_data_dir(chosen):
        dev_place.note_layout(chosen)


def begin(tmp_path: Path, *names: str) -> None:
    """What these nodes leave once they have begun."""
    for name in names:
        open_directory(tmp_path / ".horae" / name, "dev", name).close()


def test_the_same_number_of_nodes_may_start_again(tmp_path):
    chosen = options(tmp_path, nodes=3)
    for _ in range(2):
        with dev_place.own_data_dir(chosen):
            dev_place.note_layout(chosen)
            begin(tmp_path, "n1", "n2", "n3")
    assert dev_place.made_nodes(chosen) == ["n1", "n2", "n3"]
    assert sorted(path.name for path in (tmp_path / ".horae").iterdir() if path.is_file()) == ["dev.json", "dev.lock"]


def test_another_number_of_nodes_over_the_same_data_is_refused(tmp_path):
    with dev_place.own_data_dir(options(tmp_path, nodes=3)):
        dev_place.note_layout(options(tmp_path, nodes=3))
    begin(tmp_path, "n2")
    with pytest.raises(ConfigError, match="holds a cluster of 3 nodes, not 1: start it with --nodes 3"):  # noqa: SIM117
        with dev_place.own_data_dir(options(tmp_path, nodes=1)):
            pass


def test_a_second_run_over_the_same_data_is_refused(tmp_path):
    with dev_place.own_data_dir(options(tmp_path)), pytest.raises(ConfigError, match="in use by another horae dev"):  # noqa: SIM117
        with dev_place.own_data_dir(options(tmp_path)):
            pass


NO_LAYOUTS = [
    "",
    "{}",
    '{"nodes": "3"}',
    '{"nodes": 4}',
    '{"nodes": true}',
    '{"nodes": null}',
    "[1]",
    "\udcff",
    "[" * 9999,
]
"""What cannot have been written down: cut short, edited, damaged."""


@pytest.mark.parametrize("text", [*NO_LAYOUTS, None], ids=range(len(NO_LAYOUTS) + 1))
def test_a_number_of_nodes_that_is_not_known_is_asked_for_and_nothing_is_to_be_deleted(tmp_path, text):
    begin(tmp_path, "n1", "n2")
    if text is not None:
        (tmp_path / ".horae" / "dev.json").write_bytes(text.encode(errors="surrogateescape"))
    fix = (
        r'dev.json does not say how many .*: write {"nodes": 3} into it, since n1, n2 are beside it, or choose another'
    )
    with pytest.raises(ConfigError, match=fix) as refused, dev_place.own_data_dir(options(tmp_path)):
        pass
    assert "delete" not in str(refused.value)


@pytest.mark.parametrize("text", [*NO_LAYOUTS, '{"nodes": 3}'], ids=range(len(NO_LAYOUTS) + 1))
def test_what_was_written_down_before_any_node_began_binds_nobody(tmp_path, text):
    chosen = options(tmp_path, nodes=1)
    chosen.data_dir.mkdir()
    (chosen.data_dir / "dev.json").write_bytes(text.encode(errors="surrogateescape"))
    with dev_place.own_data_dir(chosen):
        dev_place.note_layout(chosen)
    assert (chosen.data_dir / "dev.json").read_text() == '{"nodes": 1}\n'


def test_a_refused_start_writes_no_number_of_nodes_down(tmp_path):
    with held_port() as taken:
        assert dev.run_dev(options(tmp_path, nodes=1, port=taken.getsockname()[1])) == 2
    assert not (tmp_path / ".horae" / "dev.json").exists()


def test_a_number_of_nodes_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    chosen = options(tmp_path)
    (chosen.data_dir / "dev.json.tmp").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"dev.json cannot be written: Is a directory; .* --data"):
        dev_place.note_layout(chosen)
    assert not (chosen.data_dir / "dev.json").exists()


def test_a_layout_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / ".horae" / "dev.json").mkdir(parents=True)
    begin(tmp_path, "n1")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"), dev_place.own_data_dir(options(tmp_path)):
        pass


def test_a_path_that_the_database_cannot_open_is_refused_by_both_commands(tmp_path, capsys):
    from horae_http.cli import dev as dev_command
    from horae_http.cli import node

    path = os.fsdecode(os.fsencode(tmp_path) + b"/x\xff")
    members = "n1=127.0.0.1:1@http://127.0.0.1:2"
    flags = [f"--data-dir={path}", "--node-id=n1", f"--members={members}", "--http-listen=127.0.0.1:2"]
    for command, args in ((dev_command, [f"--data={path}"]), (node, flags)):
        answer = CliRunner().invoke(command, args)
        assert answer.exit_code == 2
        assert re.fullmatch(r"horae: the path '.*/x\\udcff' is not UTF-8: .*\n", answer.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / ".horae").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"), dev_place.own_data_dir(options(tmp_path)):
        pass


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path, capsys):
    with held_port() as taken:
        code = dev.run_dev(options(tmp_path, nodes=1, port=taken.getsockname()[1]))
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_children_see_no_keys_of_the_environment():
    env = dev_place.child_env({"HORAE_TOKENS": "x", "HORAE_URL": "y", "PATH": "/bin"})
    assert env == {"PATH": "/bin", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}


def test_the_welcome_names_every_node_and_the_next_commands(tmp_path):
    text = dev.welcome(options(tmp_path, port=9000), "n2", {"n1": 11, "n2": 22, "n3": 33})
    for part in ("n1  http://127.0.0.1:9000  pid 11", "n2  http://127.0.0.1:9001  pid 22  leader", "kill -9 22"):
        assert part in text
    assert "export HORAE_URL=http://127.0.0.1:9000,http://127.0.0.1:9001,http://127.0.0.1:9002\n" in text
    assert "worker horae.demo:worker" not in text


def test_without_a_worker_one_is_suggested_before_a_job_that_is_waited_for(tmp_path):
    text = dev.welcome(options(tmp_path, worker=False), None, {})
    assert 0 < text.index("worker horae.demo:worker &") < text.index("--wait")


def test_a_node_has_the_same_colour_at_every_start():
    colours = {name: dev.colour_of(name) for name in ("n5", "n2", "dev", "n1", "worker", "n4", "n3")}
    assert len(set(colours.values())) == len(colours)
    assert colours == {name: dev.colour_of(name) for name in sorted(colours)}


def test_who_leads_is_told_by_the_newest_term():
    views = [{"term": 3, "leader": "n1"}, None, {"term": 4, "leader": "n2"}, {"term": 5, "leader": None}]
    assert dev.newest_leader(views) == (4, "n2")
    assert dev.newest_leader([None, {"term": 5, "leader": None}]) is None


def test_the_command_refuses_two_nodes():
    from horae_http.cli import dev as command

    answer = CliRunner().invoke(command, ["--nodes", "2"])
    assert answer.exit_code == 2
