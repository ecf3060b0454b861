"""A fake server and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.helpers.fake_server import FakeServer

from horae import AsyncClient


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as fake:
        yield fake


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, deadline_seconds=10) as one:
        yield one
