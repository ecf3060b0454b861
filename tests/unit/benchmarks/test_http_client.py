"""The load client reads an answer however it is cut into pieces, and refuses what it does not understand.

A server answers each request with scripted pieces; if a cut were mishandled, the benchmarks' figures would be wrong
without anybody's noticing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from benchmarks.http_client import AiohttpConnection, RawConnection, UnexpectedAnswer

ANSWER = b'HTTP/1.1 201 Created\r\nServer: x\r\nContent-Length: 11\r\nDate: now\r\n\r\n{"id":"j1"}'
DEADLINE_S = 10

Respond = Callable[[asyncio.StreamWriter], None]


@asynccontextmanager
async def serve(respond: Respond) -> AsyncIterator[int]:
    """The port of a server that reads one request after the other and leaves the answer to `respond`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                respond(writer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_an_answer_in_one_piece() -> None:
    async with serve(lambda writer: writer.write(ANSWER)) as port:
        connection = await RawConnection.open(port)
        for _ in range(3):
            assert await asyncio.wait_for(connection.post("/v1/jobs", b"{}"), DEADLINE_S) == (201, b'{"id":"j1"}')
        await connection.close()


async def test_a_put_is_one() -> None:
    heads = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        heads.append(await reader.readexactly(2))
        writer.write(ANSWER)

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        connection = await RawConnection.open(server.sockets[0].getsockname()[1])
        answer = await asyncio.wait_for(connection.put("/v1/schedules/s", b"{}"), DEADLINE_S)
        await connection.close()
    assert answer == (201, b'{"id":"j1"}')
    assert heads[0].startswith(b"PUT /v1/schedules/s HTTP/1.1\r\n")
    assert heads[1] == b"{}"


@pytest.mark.parametrize("cut", range(1, len(ANSWER)))
async def test_an_answer_cut_anywhere(cut: int) -> None:
    connection = RawConnection()
    answer = connection._answer = asyncio.get_running_loop().create_future()
    connection.data_received(ANSWER[:cut])
    assert not answer.done()
    connection.data_received(ANSWER[cut:])
    assert answer.result() == (201, b'{"id":"j1"}')


async def test_an_answer_byte_by_byte_and_the_next_one_after_it() -> None:
    connection = RawConnection()
    for _ in range(2):
        answer = connection._answer = asyncio.get_running_loop().create_future()
        for at in range(len(ANSWER)):
            connection.data_received(ANSWER[at : at + 1])
        assert answer.result() == (201, b'{"id":"j1"}')


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"nonsense of a server\r\n\r\n"]
)
async def test_an_answer_without_a_length_is_refused(answer: bytes) -> None:
    async with serve(lambda writer: writer.write(answer)) as port:
        connection = await RawConnection.open(port)
        with pytest.raises(UnexpectedAnswer):
            await asyncio.wait_for(connection.post("/v1/jobs", b"{}"), DEADLINE_S)


@pytest.mark.parametrize("kind", [RawConnection, AiohttpConnection])
async def test_a_connection_that_the_server_closes_fails_the_call(
    kind: type[RawConnection] | type[AiohttpConnection],
) -> None:
    async with serve(lambda writer: writer.close()) as port:
        connection = await kind.open(port)
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(connection.post("/v1/jobs", b"{}"), DEADLINE_S)
        await connection.close()
