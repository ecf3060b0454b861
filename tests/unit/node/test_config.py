"""The configuration: precedence, defaults, and that everything wrong is refused by name with the fix."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from horae_node import config as config_module
from horae_node.config import KEYS, Address, NodeConfig, load_config, parse_address, parse_url
from horae_node.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]
SHA = hashlib.sha256(b"secret").hexdigest()

THREE = """
node_id = "n1"
data_dir = "/var/lib/horae"
[members]
n1 = { raft = "10.0.0.1:7071", http = "http://10.0.0.1:7070" }
n2 = { raft = "10.0.0.2:7071", http = "http://10.0.0.2:7070" }
n3 = { raft = "10.0.0.3:7071", http = "http://10.0.0.3:7070" }
"""
ONE = {"node_id": "n1", "data_dir": "d", "members": "n1=127.0.0.1:7071"}


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refusal(
    path: Path | None = None, flags: dict[str, str] | None = None, environ: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, flags=flags or {}, environ=environ or {})
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_of_three_members_is_read_whole(write):
    config = load_config(write(THREE))
    assert [member.node_id for member in config.members] == ["n1", "n2", "n3"]
    assert config.members[1].raft_address == "10.0.0.2:7071"
    assert config.members[1].http_url == "http://10.0.0.2:7070"
    assert config.data_dir == Path("/var/lib/horae")
    assert config.raft_listen == Address("10.0.0.1", 7071)
    assert config.http_advertise == "http://10.0.0.1:7070"
    assert config.own.node_id == "n1"


def test_one_node_needs_three_keys_and_the_rest_has_defaults():
    config = load_config(flags=ONE)
    assert config.http_listen == Address("127.0.0.1", 7070)
    assert config.http_advertise == config.own.http_url == "http://127.0.0.1:7070"
    assert (config.heartbeat_ms, config.state_commit_interval_ms, config.state_commit_commands) == (60, 1000, 5000)
    assert config.tokens == ()


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(write):
    path = write("heartbeat_ms = 70\nelection_min_ms = 500\nadvance_limit = 7\n" + THREE)
    environ = {"HORAE_ELECTION_MIN_MS": "510", "HORAE_ADVANCE_LIMIT": "8", "PATH": "/bin"}
    config = load_config(path, flags={"advance_limit": "9"}, environ=environ)
    assert (config.heartbeat_ms, config.election_min_ms, config.advance_limit) == (70, 510, 9)
    assert config.election_max_ms == 800


def test_every_key_can_be_given_in_the_environment_alone():
    environ = {
        "HORAE_NODE_ID": "n2",
        "HORAE_DATA_DIR": "/d",
        "HORAE_MEMBERS": "n1=a:1@http://a:2, n2=b:1@http://b:2,n3=c:1@http://c:2",
        "HORAE_TOKENS": f'[{{"token_sha256": "{SHA}", "roles": ["submit", "read"], "queues": ["mail"]}}]',
        "HORAE_HTTP_LISTEN": "0.0.0.0:2",
        "HORAE_RAFT_LISTEN": "0.0.0.0:1",
        "HORAE_URL": "the client's own",
        "HORAE_TOKEN": "the client's own",
    }
    config = load_config(environ=environ)
    assert config.own.http_url == "http://b:2"
    assert config.tokens[0].roles == ("submit", "read")
    assert config.tokens[0].queues == ("mail",)
    assert str(config.raft_listen) == "0.0.0.0:1"


def test_the_configuration_is_frozen():
    config = load_config(flags=ONE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.heartbeat_ms = 1  # type: ignore[misc]


@pytest.mark.parametrize("missing", ["node_id", "data_dir", "members"])
def test_a_missing_required_key_says_how_to_give_it(missing):
    text = refusal(flags={key: value for key, value in ONE.items() if key != missing})
    assert text.startswith(f"{missing} is missing")
    assert f"HORAE_{missing.upper()}" in text


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest(write):
    assert "unknown key heartbeat: did you mean heartbeat_ms?" in refusal(write("heartbeat = 5\n" + THREE))


def test_an_unknown_variable_is_refused_with_the_nearest():
    text = refusal(flags=ONE, environ={"HORAE_HEARTBEATS_MS": "5"})
    assert text == "unknown environment variable HORAE_HEARTBEATS_MS: did you mean HORAE_HEARTBEAT_MS?"


@pytest.mark.parametrize("name", ["HORAE_BOGUS", "HORAE_PORT", "HORAE_X"])
def test_a_variable_that_is_near_to_none_gets_no_guess(name):
    text = refusal(flags=ONE, environ={name: "5"})
    assert text == f"unknown environment variable {name}; the keys are in docs/generated/config.md"


def test_the_place_of_a_wrong_value_is_named(write):
    path = write("heartbeat_ms = 5\n" + THREE)
    assert refusal(path).startswith(f"{path}: heartbeat_ms: must be a whole number between 10 and 10000, not 5")
    assert refusal(flags=ONE | {"heartbeat_ms": "soon"}).startswith("--heartbeat-ms: must be a whole number")
    assert refusal(flags=ONE, environ={"HORAE_HEARTBEAT_MS": "-1"}).startswith("HORAE_HEARTBEAT_MS: must be a whole")


@pytest.mark.parametrize("text", ["heartbeat_ms = 60.0\n", "heartbeat_ms = true\n", 'heartbeat_ms = "x"\n'])
def test_an_integer_is_an_integer(write, text):
    assert "heartbeat_ms: must be a whole number" in refusal(write(text + THREE))


def test_a_broken_or_missing_file_is_one_line(write, tmp_path):
    assert "is not valid TOML" in refusal(write("node_id = "))
    assert "cannot be read: No such file" in refusal(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('node_id = "n1"', 'node_id = "n9"', "members has no entry for this node, n9"),
        ('n2 = { raft = "10.0.0.2:7071", ', "n2 = { ", "n2 has no raft address"),
        (', http = "http://10.0.0.2:7070"', "", "n2 has no http URL"),
        ("10.0.0.2:7071", "10.0.0.1:7071", "n1 and n2 have one address, 10.0.0.1:7071"),
        ("http://10.0.0.2:7070", "http://10.0.0.1:7070", "n1 and n2 have one address, http://10.0.0.1:7070"),
        ("10.0.0.2:7071", "10.0.0.2:0", "raft of n2 the port must be between 1 and 65535, not 0"),
        ("10.0.0.2:7071", "10.0.0.2:65536", "raft of n2 the port must be between 1 and 65535"),
        ("10.0.0.2:7071", "0.0.0.0:7071", "raft of n2 must be an address that others reach"),
        ("10.0.0.2:7071", "255.255.255.255:7071", "raft of n2 must be an address that others reach"),
        ("10.0.0.2:7071", "0:7071", "raft of n2 must be an address that others reach"),
        ("10.0.0.2:7071", "0.0.0.0.:7071", "raft of n2 must be an address that others reach"),
        ("10.0.0.2:7071", "[::ffff:0.0.0.0]:7071", "raft of n2 must be an address that others reach"),
        ("http://10.0.0.2:7070", "http://a,b:7070", "http of n2 must name a host, and 'a,b' cannot be one"),
        ("http://10.0.0.2:7070", "http://[::]:7070", "http of n2 must be an address that others reach"),
        ("http://10.0.0.2:7070", "http://n\u00f6:7070", "must name its host in ASCII: write 'n\u00f6' as xn--n-1ga"),
        ("10.0.0.2:7071", "n\u00f6:7071", "must name its host in ASCII: write 'n\u00f6' as xn--n-1ga"),
        ('"10.0.0.2:7071"', "7071", "raft of n2 must be host:port"),
        ("http://10.0.0.2:7070", "10.0.0.2:7070", "http of n2 must be a URL"),
        ("n2 = { raft", 'n2 = { role = "x", raft', "n2 has the unknown key 'role'"),
        (
            'n2 = { raft = "10.0.0.2:7071", http = "http://10.0.0.2:7070" }',
            "",
            "members has 2 nodes: it must be 1, 3, 5 or 7, since an even one adds no safety; a further node of a "
            "running cluster is started with join",
        ),
        ("n2 =", '"n 2" =', "must be a name"),
    ],
)
def test_impossible_members_are_refused_by_name(write, old, new, says):
    assert old in THREE
    assert says in refusal(write(THREE.replace(old, new)))


def test_more_than_seven_members_are_refused():
    text = ",".join(f"n{i}=h{i}:1@http://h{i}:2" for i in range(1, 10))
    assert "members has 9 nodes" in refusal(flags=ONE | {"members": text})


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"members": "n1"}, "--members: must be written as n1="),
        ({"members": "n1=a:1,n1=b:1"}, "--members: names n1 twice"),
        ({"members": ""}, "--members: must be a table"),
        ({"election_min_ms": "120"}, "election_min_ms is 120: it must exceed twice heartbeat_ms (60)"),
        ({"election_max_ms": "400"}, "election_max_ms is 400: it must exceed election_min_ms (400)"),
        ({"fallback_ms": "100"}, "fallback_ms is 100: it must exceed twice heartbeat_ms (60)"),
        ({"http_listen": "127.0.0.1:0"}, "--http-listen: the port must be between 1 and 65535, not 0"),
        ({"http_listen": "127.0.0.1:99999"}, "--http-listen: the port must be between 1 and 65535"),
        ({"http_listen": "7070"}, "--http-listen: must be host:port"),
        ({"http_listen": "::1:7070"}, "--http-listen: an IPv6 address is written in brackets"),
        ({"http_listen": "10.0.0.1:7070"}, "open to others, and there are no tokens"),
        ({"http_listen": "myhost:7070"}, "open to others, and there are no tokens"),
        ({"http_listen": "0.0.0.0:7070"}, "http_advertise is missing: others cannot reach 0.0.0.0"),
        ({"http_listen": "127.0.0.1:7071"}, "http_listen and raft_listen are both 127.0.0.1:7071"),
        ({"http_advertise": "http://h:1/path"}, "--http-advertise: must be a URL"),
        ({"http_advertise": "http://h:1", "members": "n1=a:1@http://h:2"}, "leave one of them out"),
        ({"node_id": "../n1"}, "--node-id: must be a name"),
        ({"cluster": ""}, "--cluster: must be a name"),
        ({"data_dir": ""}, "--data-dir: must be the path of a directory"),
        ({"log_level": "loud"}, "--log-level: must be one of debug, info"),
        ({"tokens": "nonsense"}, "--tokens: must be JSON"),
        ({"tokens": "{}"}, "--tokens: must be a list of tables"),
        ({"tokens": '[{"token_sha256": "secret", "roles": ["read"]}]'}, "token_sha256 must be 64 lower-case hex"),
        ({"tokens": f'[{{"token_sha256": "{SHA}", "roles": ["root"]}}]'}, "roles must be a list of read, submit"),
        ({"tokens": f'[{{"token_sha256": "{SHA}", "roles": ["read"], "queues": []}}]'}, "queues must be a list"),
        ({"tokens": f'[{{"token_sha256": "{SHA}", "token": "x"}}]'}, "entry 1 has the unknown key 'token'"),
        ({"tokens": "[%s, %s]" % ((f'{{"token_sha256": "{SHA}", "roles": ["read"]}}',) * 2)}, "one token_sha256 twice"),
    ],
)
def test_impossible_values_are_refused_by_name(flags, says):
    assert says in refusal(flags=ONE | flags)


def test_with_tokens_a_node_may_be_open():
    tokens = f'[{{"token_sha256": "{SHA}", "roles": ["admin"]}}]'
    flags = ONE | {"tokens": tokens, "http_listen": "0.0.0.0:7070", "http_advertise": "http://h:7070/"}
    assert load_config(flags=flags).own.http_url == "http://h:7070"


def test_addresses_and_urls_of_ipv6():
    assert str(parse_address("[::1]:7070")) == "[::1]:7070"
    assert parse_url("http://[::1]:7070/") == "http://[::1]:7070"
    with pytest.raises(ValueError, match="must be a URL"):
        parse_url("http://h:port")


def test_each_key_is_a_field_and_has_a_reason():
    assert {key.name for key in KEYS} == {field.name for field in dataclasses.fields(NodeConfig)}
    assert all(len(key.reason) > 20 or key.default is None for key in KEYS)


def test_the_page_of_the_keys_is_what_the_code_says():
    page = REPOSITORY / "docs" / "generated" / "config.md"
    assert page.read_text(encoding="utf-8") == config_module.render_docs()


def test_the_example_of_deploy_starts_with_a_token_of_ones_own_only(write):
    text = (REPOSITORY / "deploy" / "node.toml").read_text(encoding="utf-8")
    assert "there are no tokens" in refusal(write(text))
    own = (
        text.replace("# [[tokens]]", "[[tokens]]").replace("# token_sha256", "token_sha256").replace("# roles", "roles")
    )
    assert "token_sha256 must be 64 lower-case hex digits" in refusal(write(own))
    config = load_config(write(own.replace("…", SHA)))
    assert len(config.members) == 3
    assert config.tokens[0].token_sha256 == SHA


@pytest.mark.parametrize(("word", "name"), [(b"change-me", "the word change-me"), (b"", "an empty text")])
def test_a_token_that_everybody_knows_is_refused_by_name(write, word: bytes, name: str):
    digest = hashlib.sha256(word).hexdigest()
    text = THREE + f'[[tokens]]\ntoken_sha256 = "{digest}"\nroles = ["read"]\n'
    assert f"entry 1: token_sha256 is that of {name}, which everybody knows" in refusal(write(text))


def test_a_number_in_quotes_is_refused_in_a_file(write):
    path = write('heartbeat_ms = "70"\n' + THREE)
    assert refusal(path) == f"{path}: heartbeat_ms: must be a whole number without quotes, not '70'"


JOINING = {"node_id": "n4", "data_dir": "/d", "join": "http://10.0.0.1:7070, http://10.0.0.2:7070"}


def test_a_node_that_joins_needs_no_members():
    config = load_config(flags=JOINING | {"raft_listen": "127.0.0.1:7071"})
    assert config.join == ("http://10.0.0.1:7070", "http://10.0.0.2:7070")
    assert config.members == (config.own,)
    assert config.own == ("n4", "127.0.0.1:7071", "http://127.0.0.1:7070")


def test_a_node_that_joins_may_name_its_own_addresses():
    own = "n4=10.0.0.4:7071@http://10.0.0.4:7070"
    config = load_config(flags=JOINING | {"members": own, "raft_listen": "0.0.0.0:7071"})
    assert config.own == ("n4", "10.0.0.4:7071", "http://10.0.0.4:7070")
    assert config.raft_listen == ("0.0.0.0", 7071)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({}, "raft_listen must be the address at which the other nodes reach this one"),
        ({"raft_listen": "0.0.0.0:7071"}, "raft_listen must be the address at which the other nodes reach this one"),
        ({"members": "n1=a:1@http://a"}, "members of a node that joins may name itself, n4, only"),
        ({"join": "n1:7070"}, "--join: must be a URL such as"),
    ],
)
def test_an_impossible_join_is_refused_by_name(flags, says):
    assert says in refusal(flags=JOINING | flags)
