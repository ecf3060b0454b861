"""A node that cannot start says why in one line, with the fix, and exits with code 2; nothing it found is harmed."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from tests.helpers.api import Api
from tests.helpers.cluster import HOST, Cluster, NodeProcess, clean_environ, command, make_nodes, poll
from tests.helpers.refusal import require_refusal, run_node

pytestmark = pytest.mark.cluster

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1


@pytest.fixture
def node(tmp_path: Path) -> NodeProcess:
    """A cluster of one, configured and not started."""
    return make_nodes(tmp_path, ["n1"])[0]


async def run_and_stop(home: Path) -> NodeProcess:
    """A node that has run and was stopped: its directory is its own."""
    async with Cluster(home, 1) as cluster:
        (await cluster.api.call("POST", "/v1/jobs", {"id": "kept", "task": "noop"})).expect(201)
        await cluster.stop_all()
        return cluster.nodes[0]


async def test_stop_is_orderly_and_the_next_start_finds_its_jobs(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        (await cluster.api.call("POST", "/v1/jobs", {"id": "kept", "task": "noop"})).expect(201)
        await cluster.stop_all()
        cluster.start(cluster.nodes[0])
        await cluster.wait_ready()
        assert (await cluster.api.call("GET", "/v1/jobs/kept")).expect(200)["state"] == "ready"
        assert "open_to_this_machine" in cluster.nodes[0].log_text()
        await cluster.stop_all()
        assert cluster.check_logs() == []
        assert cluster.check_states() == []


async def test_directory_of_another_node(tmp_path: Path) -> None:
    owner = await run_and_stop(tmp_path)
    other = make_nodes(tmp_path, ["n9"])[0]
    other.write_config([other], data_dir=str(owner.data_dir))
    require_refusal(run_node(other), str(owner.data_dir), "n1", "n9")


async def test_directory_of_another_cluster(tmp_path: Path) -> None:
    owner = await run_and_stop(tmp_path)
    owner.write_config([owner], cluster="elsewhere")
    require_refusal(run_node(owner), str(owner.data_dir), "test", "elsewhere")


async def test_a_refused_start_harms_nothing(tmp_path: Path) -> None:
    owner = await run_and_stop(tmp_path)
    owner.write_config([owner], cluster="elsewhere")
    require_refusal(run_node(owner))
    owner.write_config([owner])
    async with Cluster(tmp_path, 1) as cluster:  # same home, new ports: a name, not an address
        assert (await cluster.api.call("GET", "/v1/jobs/kept")).expect(200)["id"] == "kept"


@pytest.mark.parametrize(
    ("name", "at", "damage"),
    [
        ("identity.json", 0, b"\xff"),
        ("state/00000001.mdb", 0, None),
        ("state/00000001.mdb", 4096, bytes(4096)),
        ("log/log.mdb", 0, None),
        ("log/log.mdb", 0, b"\xff" * 4096),
        ("log/tail", 0, None),
        ("log/tail", 0, b"\xff" * 4096),
    ],
    ids=["identity", "state emptied", "state damaged", "log emptied", "log damaged", "tail emptied", "tail damaged"],
)
async def test_damaged_data(tmp_path: Path, name: str, at: int, damage: bytes | None) -> None:
    owner = await run_and_stop(tmp_path)
    path = owner.data_dir / name
    data = b"" if damage is None else path.read_bytes()
    path.write_bytes(data[:at] + (damage or b"") + data[at + len(damage or b"") :])
    require_refusal(run_node(owner), str(path), "damaged", "keep the files", "docs/operations.md")


async def test_data_whose_identity_is_missing(tmp_path: Path) -> None:
    """An empty directory under the old id is what must not be advised: it would have forgotten its votes."""
    owner = await run_and_stop(tmp_path)
    (owner.data_dir / "identity.json").unlink()
    done = run_node(owner)
    require_refusal(done, "identity.json is missing", "keep the files", "'A node whose disk was lost'")
    assert "empty" not in done.stderr


def test_a_new_directory_that_holds_somebodys_files(node: NodeProcess) -> None:
    node.data_dir.mkdir()
    (node.data_dir / "thesis.tex").write_text("theirs", encoding="utf-8")
    require_refusal(run_node(node), str(node.data_dir), "holds thesis.tex", "a directory of its own")
    assert [it.name for it in node.data_dir.iterdir()] == ["thesis.tex"]


async def test_directory_in_use(tmp_path: Path) -> None:
    async with Cluster(tmp_path, 1) as cluster:
        first = cluster.nodes[0]
        second = make_nodes(tmp_path / "second", ["n1"])[0]
        second.write_config([second], data_dir=str(first.data_dir))
        require_refusal(await asyncio.to_thread(run_node, second), str(first.data_dir), "in use")
        assert first.alive


def test_directory_that_is_a_file(node: NodeProcess) -> None:
    node.data_dir.write_text("not a directory", encoding="utf-8")
    require_refusal(run_node(node), str(node.data_dir))


def test_directory_that_cannot_be_made(node: NodeProcess) -> None:
    blocker = node.home / "blocker"
    blocker.write_text("not a directory", encoding="utf-8")
    node.write_config([node], data_dir=str(blocker / "data"))
    require_refusal(run_node(node), str(blocker))


def obey_modes() -> None:
    """In the child: root without the right to write where the mode forbids it; anybody else has none to lose."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0):
        os._exit(77)


def test_directory_not_writable(node: NodeProcess) -> None:
    node.data_dir.mkdir()
    node.data_dir.chmod(0o500)
    try:
        done = run_node(node, obey_modes)
    finally:
        node.data_dir.chmod(0o700)
    if done.returncode == 77:
        pytest.skip("root here may not give up its right to write anywhere: this case was NOT tested")
    require_refusal(done, str(node.data_dir))


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
        sock.listen(1)
        yield


def test_http_port_in_use(node: NodeProcess) -> None:
    with listening(node.http_port):
        require_refusal(run_node(node), f"{HOST}:{node.http_port}", "in use")
    assert not node.data_dir.exists()


def test_raft_port_in_use(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path, ["n1", "n2", "n3"])
    with listening(nodes[0].raft_port):
        require_refusal(run_node(nodes[0]), f"{HOST}:{nodes[0].raft_port}", "in use")


async def test_a_join_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """Its name and its cluster's may be what is to be mended: neither may be written down by then."""
    async with Cluster(tmp_path, 1) as cluster:
        joining = cluster.new_node("n2")
        text = joining.config_path.read_text()
        joining.config_path.write_text(f'{text}http_advertise = "{cluster.nodes[0].url}"\n')
        require_refusal(await asyncio.to_thread(run_node, joining), "the cluster refuses this node", "n1 has the URL")
        assert not joining.data_dir.exists()
        joining.config_path.write_text(text.replace('cluster = "test"', 'cluster = "prod2"'))
        require_refusal(await asyncio.to_thread(run_node, joining), "'prod2'", 'set cluster = "test"')
        assert not joining.data_dir.exists()


TOKEN = "an admin's, of this test"
TOKENS = f'tokens = [{{ token_sha256 = "{sha256(TOKEN.encode()).hexdigest()}", roles = ["admin"] }}]\n'


async def test_a_join_to_a_cluster_with_tokens_needs_them_twice(tmp_path: Path) -> None:
    """To ask in, and to let nobody in for nothing afterwards: without its own it would be the open door of the rest."""
    cluster = Cluster(tmp_path, 1)
    first = cluster.nodes[0]
    first.config_path.write_text(TOKENS + first.config_path.read_text())
    joining = cluster.new_node("n2")
    text = joining.config_path.read_text()
    async with Api(cluster.urls) as api:
        cluster.api = api
        try:
            cluster.start(first)
            await cluster.wait_ready()
            for token in (None, TOKEN):
                done = await asyncio.to_thread(run_joining, joining, token)
                require_refusal(done, "the cluster has tokens, and this node's configuration has none", "[[tokens]]")
            joining.config_path.write_text(TOKENS + text)
            for token, words in ((None, "no bearer token was sent"), ("another", "the bearer token is not known")):
                done = await asyncio.to_thread(run_joining, joining, token)
                require_refusal(done, "refuses this node", f"{words}: put a token with the role admin into HORAE_TOKEN")
            assert not joining.data_dir.exists()
            start_joining(joining, TOKEN)
            cluster.nodes.append(joining)
            await cluster.wait_ready([joining])
            assert (await api.call("GET", "/v1/cluster", url=joining.url)).status == 401
            await cluster.stop_all()
            assert cluster.check_logs() == []
        finally:
            cluster.kill_all()


def with_token(token: str | None) -> dict[str, str]:
    return clean_environ() | ({} if token is None else {"HORAE_TOKEN": token})


def run_joining(node: NodeProcess, token: str | None) -> subprocess.CompletedProcess[str]:
    words = command("node", "--config", str(node.config_path))
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=with_token(token), timeout=60, check=False
    )


def start_joining(node: NodeProcess, token: str) -> None:
    words = ["horae_http.children", str(os.getpid()), "horae_http", "node", "--config", str(node.config_path)]
    with node.log_path.open("ab") as log:
        node.process = subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.PIPE, stdout=log, stderr=log, env=with_token(token)
        )


async def test_who_still_looks_for_its_cluster_stops_when_told(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1)  # not started
    joining = cluster.new_node("n2")
    cluster.start(joining)
    try:

        async def looks() -> bool:
            assert joining.alive
            return " joining " in joining.log_text()

        await poll("it looks for its cluster", looks)
        assert await cluster.stop(joining) == 0
    finally:
        cluster.kill(joining)
    assert "horae: " not in joining.log_text(), "told to stop is no refusal"
    assert not joining.data_dir.exists()


def test_a_join_to_nobody_makes_nothing_where_it_may_not(node: NodeProcess) -> None:
    node.write_joining_config(["http://127.0.0.1:1"])
    node.data_dir.write_text("not a directory", encoding="utf-8")
    require_refusal(run_node(node), str(node.data_dir), "cannot be used")


def test_one_peer_missing(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path, ["n1", "n2", "n3"])
    nodes[0].write_config(nodes[:2])
    require_refusal(run_node(nodes[0]), "members", "2 nodes")
    assert not nodes[0].data_dir.exists()


def test_itself_missing(tmp_path: Path) -> None:
    nodes = make_nodes(tmp_path, ["n1", "n2", "n3", "n4"])
    nodes[0].write_config(nodes[1:])
    require_refusal(run_node(nodes[0]), "members", "n1")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"heartbeat_msec": 60}, ("unknown key heartbeat_msec", "heartbeat_ms")),
        ({"heartbeat_ms": -1}, ("heartbeat_ms", "between")),
        ({"heartbeat_ms": "soon"}, ("heartbeat_ms", "soon")),
        ({"election_min_ms": 800, "election_max_ms": 400}, ("election_max_ms", "election_min_ms")),
        ({"http_listen": "127.0.0.1"}, ("http_listen", "host:port")),
        ({"node_id": "n 1"}, ("node_id", "name")),
    ],
)
def test_impossible_values(node: NodeProcess, keys: dict[str, object], words: tuple[str, ...]) -> None:
    node.write_config([node], **keys)
    require_refusal(run_node(node), *words)


def test_no_configuration_file(node: NodeProcess) -> None:
    node.config_path.unlink()
    require_refusal(run_node(node), str(node.config_path))
