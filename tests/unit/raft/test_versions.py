"""Every node says in its answers which machine versions it knows; that holds for as long as the connection."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.raft.messages import answer
from tests.unit.raft.parts import Cluster, wait_until
from tests.unit.raft.script import Script


def known(led: Script, peer: str) -> tuple[int, int] | None:
    return led["a"].guard.links[peer].known_versions


def test_the_leader_hears_what_each_knows(led: Script) -> None:
    assert (known(led, "b"), known(led, "c")) == ((1, 1), (1, 1))
    led.inject("b", "a", answer(versions=(1, 3)))
    assert (known(led, "b"), known(led, "c")) == ((1, 3), (1, 1))


def test_what_was_said_on_an_older_connection_is_forgotten(led: Script) -> None:
    led.disconnect("a", "b")
    assert known(led, "b") is None
    led.connect("a", "b")
    assert known(led, "b") is None
    led.run("abc", 200)
    assert known(led, "b") == (1, 1)


@pytest.mark.parametrize("said", [None, 2, (1,), (1, 2, 3), ("1", "2"), {"newest": 2}])
def test_what_is_no_range_is_taken_for_silence(led: Script, said: object) -> None:
    led.inject("b", "a", answer(versions=said))
    assert known(led, "b") is None


async def test_the_status_tells_of_each_peer(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.machines["n2"].known_versions = (1, 2)
    await cluster.start()
    leader_id = await cluster.leader()
    expected = {node_id: (1, 2) if node_id == "n2" else (1, 1) for node_id in cluster.nodes if node_id != leader_id}

    def told() -> dict[str, object]:
        return {node_id: peer.known_versions for node_id, peer in cluster.nodes[leader_id].status().peers.items()}

    await wait_until(lambda: None not in told().values())
    assert told() == expected
    await cluster.stop()
