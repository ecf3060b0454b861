"""Events of real nodes: told anywhere in log order, resumed at another node by the same ids, with no gap untold."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from tests.helpers.cluster import Cluster, NodeProcess, clean_environ, poll, running_cluster
from tests.helpers.sse import Stream, open_stream
from tests.helpers.story import Queue, metric

from horae import AsyncClient

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

LIFE = ["submitted", "running", "succeeded"]
RARELY = {"state_commit_interval_ms": 60_000}
"""Who is killed then applies all entries anew."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """In place of the one that other files share: these tests kill its nodes, and bring them back."""
    async with running_cluster(tmp_path_factory.mktemp("events"), **RARELY) as cluster:
        yield cluster


async def listen(node: NodeProcess, queue: str, after: str | None = None) -> Stream:
    stream = await open_stream(node.http_port, f"?queue={queue}" + ("" if after is None else f"&after={after}"))
    assert stream.status == 200
    return stream


async def live(q: Queue, first: int, last: int) -> None:
    """Jobs of these numbers, each from its submit to its end, at any node that answers."""
    ask = q.api.call_until_answered
    for n in range(first, last + 1):
        key = f"{q.name}-{n}"
        (await ask("POST", "/v1/jobs", {"task": "t", "queue": q.name, "id": key})).expect(201)
        claim = {"worker": "w", "queues": [q.name], "wait_seconds": 20, "claim_id": key}
        (job,) = (await ask("POST", "/v1/claims", claim, wait_seconds=20)).expect(200)["jobs"]
        (await ask("POST", f"/v1/jobs/{key}/complete", {"lease_token": job["lease_token"]})).expect(200)


def others(cluster: Cluster, node: NodeProcess) -> list[NodeProcess]:
    return [other for other in cluster.living if other is not node]


async def test_a_follower_tells_what_the_leader_was_asked(cluster: Cluster, q: Queue) -> None:
    follower = await cluster.follower()
    stream = await listen(follower, q.name)
    await live(q, 0, 1)
    events = await stream.events(6)
    assert [frame.type for frame in events] == LIFE * 2
    assert [frame.data["job_id"] for frame in events] == [f"{q.name}-0"] * 3 + [f"{q.name}-1"] * 3
    indexes = [frame.data["index"] for frame in events]
    assert indexes == sorted(indexes)
    stream.hang_up()


async def test_a_cut_stream_goes_on_at_any_other_node(cluster: Cluster, q: Queue) -> None:
    first, second, third = cluster.nodes
    whole = await listen(first, q.name)
    cut = await listen(second, q.name)
    await live(q, 0, 1)
    seen = await cut.events(4)
    cut.abort()
    await live(q, 2, 3)
    rest = await listen(third, q.name, cut.last_id)
    assert seen + await rest.events(8) == await whole.events(12)
    whole.hang_up()
    rest.hang_up()


async def test_it_goes_on_over_the_death_of_the_leader_and_its_return(cluster: Cluster, q: Queue) -> None:
    leader = await cluster.leader()
    stream = await listen(leader, q.name)
    begin = await stream.frame()
    assert begin is not None
    await live(q, 0, 1)
    seen = await stream.events(4)
    cluster.kill(leader)
    assert await stream.ended()
    await live(q, 2, 3)
    witness, other = others(cluster, leader)
    rest = await listen(witness, q.name, seen[-1].id)
    told = seen + await rest.events(8)
    assert [frame.type for frame in told] == LIFE * 4
    assert await (await listen(other, q.name, begin.id)).events(12) == told
    cluster.start(leader)
    await cluster.wait_ready()
    again = await listen(leader, q.name, begin.id)
    assert await again.events(12) == told, "applied anew, each has its id"


async def test_a_client_reads_on_over_the_death_of_the_leader(cluster: Cluster, q: Queue) -> None:
    leader = await cluster.leader()
    urls = [leader.url, *[node.url for node in others(cluster, leader)]]
    begun = (await cluster.api.call_until_answered("GET", "/v1/cluster")).expect(200)["applied_index"]
    told: list[tuple[str, str | None]] = []
    async with (
        AsyncClient(urls, deadline_seconds=20) as client,
        aclosing(client.events(after=begun, queues=[q.name])) as events,
        asyncio.timeout(60),
    ):
        await live(q, 0, 1)
        async for event in events:
            told.append((event.type, event.job_id))
            if len(told) == 3:
                cluster.kill(leader)
                await live(q, 2, 3)
            if len(told) == 12:
                break
    assert told == [(kind, f"{q.name}-{n}") for n in range(4) for kind in LIFE]
    cluster.start(leader)
    await cluster.wait_ready()


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
async def test_the_command_line_shows_them_until_it_is_interrupted(cluster: Cluster, q: Queue, as_json: bool) -> None:
    begun = (await cluster.api.call_until_answered("GET", "/v1/cluster")).expect(200)["applied_index"]
    await live(q, 0, 0)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "horae_http", "tail", "--queue", q.name, "--after", str(begun)),
        *(["--json"] if as_json else []),
        env=clean_environ() | {"HORAE_URL": (await cluster.follower()).url},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = [(await process.stdout.readline()).decode() for _ in LIFE]
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    if as_json:
        assert [json.loads(line)["type"] for line in lines] == LIFE
    else:
        assert [line.split()[1:3] for line in lines] == [[kind, f"{q.name}-0"] for kind in LIFE]


async def test_a_node_that_stops_ends_its_streams(cluster: Cluster, q: Queue) -> None:
    node = await cluster.follower()
    stream = await listen(node, q.name)
    assert await cluster.stop(node) == 0
    assert await stream.ended()
    await live(q, 0, 0)
    (other, _) = others(cluster, node)
    rest = await listen(other, q.name, stream.last_id)
    assert [frame.type for frame in await rest.events(3)] == LIFE
    cluster.start(node)
    await cluster.wait_ready()


async def test_bad_input_is_refused_by_whoever_is_asked(cluster: Cluster) -> None:
    for node in cluster.nodes:
        answer = await cluster.api.send("GET", node.url + "/v1/events?types=submitted,nonsense")
        assert [error["pointer"] for error in answer.expect(422, "invalid")["errors"]] == ["/types"]
        answer = await cluster.api.send("GET", node.url + "/v1/events?after=yesterday")
        assert [error["pointer"] for error in answer.expect(422, "invalid")["errors"]] == ["/after"]


LARGE = "\U0001f552" * 190
"""A name that takes 760 bytes."""
JOBS, BATCH = 5000, 500


async def test_a_slow_reader_is_told_of_each_gap(tmp_path: Path) -> None:
    """What it does not read is not kept for it: it misses events, is told so, and goes on with the newest."""
    async with running_cluster(tmp_path, events_kept=100) as cluster:
        node = await cluster.follower()
        stream = await open_stream(node.http_port, "?types=submitted", slow=True)
        for n in range(0, JOBS, BATCH):
            jobs = [{"task": LARGE, "id": f"{LARGE}{n + k}"} for k in range(BATCH)]
            (await cluster.api.call_until_answered("POST", "/v1/jobs/batch", {"jobs": jobs})).expect(200)

        async def told() -> bool:
            return await metric(cluster, node, "horae_raft_lag_entries") == 0

        await poll("the follower has applied all", told)
        seen, gaps = await _read_to(stream, f"{LARGE}{JOBS - 1}")
        assert gaps, "a hundred events of eight megabytes"
        assert len(seen) < JOBS
        assert await metric(cluster, node, "horae_event_subscribers") == 1
        for before, after in pairwise(seen):
            if after != before + 1:
                assert before in gaps, (before, after)
        stream.hang_up()


async def _read_to(stream: Stream, last: str) -> tuple[list[int], set[int]]:
    """The numbers of the jobs that were told, and after which of them a gap was."""
    seen: list[int] = []
    gaps: set[int] = set()
    while not seen or seen[-1] != int(last[len(LARGE) :]):
        frame = await stream.frame()
        assert frame is not None
        if frame.type == "fell_behind":
            gaps.add(seen[-1] if seen else -1)
        elif frame.type:
            seen.append(int(frame.data["job_id"][len(LARGE) :]))
    return seen, gaps
