"""Messages as nodes send them, and what a test reads of those under way.

`led` is always three nodes of which `a` leads in term 1 (`conftest.py`). Not here: any assertion about the guard.
"""

from __future__ import annotations

from tests.unit.raft.script import Script


def kinds(messages: list[dict[str, object]]) -> list[object]:
    return [message["type"] for message in messages]


def answers(messages: list[dict[str, object]]) -> list[tuple[object, object]]:
    """(success, acknowledged index) of each answer."""
    return [(m["success"], m["next_node_idx"] - 1) for m in messages if m["type"] == "next_node_idx"]  # type: ignore[operator]


def append(led: Script, *, prev: int, entries: list[tuple[bytes, int, int]], commit: int = 2) -> dict[str, object]:
    return {
        "type": "append_entries",
        "term": led["a"].core.term,
        "seq": 1000,
        "commit_index": commit,
        "prevLogIdx": prev,
        "prevLogTerm": led["a"].journal.term_at(prev),
        "entries": tuple(entries),
    }


def answer(**fields: object) -> dict[str, object]:
    plain = {"type": "next_node_idx", "term": 1, "seq": 10_000, "next_node_idx": 3, "reset": False, "success": True}
    return plain | fields


def matched(script: Script, peer: str) -> int:
    core = script["a"].core
    return core.match_index[core.peers[peer]]


def next_index(script: Script, peer: str) -> int:
    core = script["a"].core
    return core.next_index[core.peers[peer]]


def piece(**fields: object) -> dict[str, object]:
    data = b"snapshot"
    identity = {"index": 20, "term": 1, "previous_term": 1, "size": 8, "checksum": b"of all"}
    return identity | {"offset": 0, "data": data, "crc": 0, "last": True} | fields


def beat(serialized: object, term: int = 1) -> dict[str, object]:
    return {"type": "append_entries", "term": term, "seq": 1000, "commit_index": 900, "serialized": serialized}


def leave_behind(led: Script) -> None:
    """c is cut off, and a's state has what c lacks on its disk."""
    led.isolate("c")
    for number in range(30):
        led["a"].propose(b"%d" % number)
    led.run("ab", 200)
    led["a"].machine.commit()


def offer_snapshot(script: Script, here: str, there: str, *, first_index: int) -> None:
    """The one here has a log from that index on only, and sends the other, who is back, its snapshot."""
    script[here].journal.cut_below(first_index)
    script[here].give_snapshot()
    script.rejoin(there)
    script[here].rewind(there, 3)
    script[here].send()


def far_back(led: Script) -> Script:
    """c is behind the log of a, which has a snapshot for it."""
    leave_behind(led)
    offer_snapshot(led, "a", "c", first_index=20)
    led.deliver("a", "c")
    assert len(led["c"].installs) == 1
    return led
