"""One cluster for all tests of the contract, and the corners of it that a test gets."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.helpers.api import Api
from tests.helpers.cluster import Cluster, NodeProcess, running_cluster
from tests.helpers.story import Queue


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path_factory.mktemp("contract")) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="session")
async def leader(cluster: Cluster) -> NodeProcess:
    return await cluster.leader()


@pytest_asyncio.fixture(loop_scope="session")
async def follower(cluster: Cluster) -> NodeProcess:
    return await cluster.follower()


@pytest_asyncio.fixture(loop_scope="session")
async def q(cluster: Cluster, leader: NodeProcess) -> Queue:
    """At the leader, in JSON."""
    return Queue(cluster.api, f"q-{uuid.uuid4().hex[:8]}", leader.url)


@pytest_asyncio.fixture(
    loop_scope="session", params=["leader-json", "leader-msgpack", "follower-json", "follower-msgpack"]
)
async def any_q(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Queue]:
    """At either kind of node, in either encoding."""
    role, encoding = request.param.split("-")
    node = await (cluster.leader() if role == "leader" else cluster.follower())
    async with Api(cluster.urls, msgpack=encoding == "msgpack") as api:
        yield Queue(api, f"q-{uuid.uuid4().hex[:8]}", node.url)
