"""A backup on its way out, piece by piece, as fast as its reader takes it; and the other end, `horae backup FILE`.

Not here: how the copy is made (`horae_node/backup.py`), what is made of it (`horae_node/restore.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp
import msgspec

from horae.wire import Problem
from horae_http.answer import BUFFERED_BYTES_MAX, Answer
from horae_node.backup import Backup
from horae_storage import snapshot
from horae_storage.files import publish, temporary_of

OCTETS: Final = b"application/octet-stream"
PIECE_BYTES: Final = 256 * 1024
SILENCE_S: Final = 600.0
"""A node that sends nothing for so long is given up: copying a large state takes some seconds before the first byte."""


class BackupAnswer(Answer):
    """The copy as the body. Whatever ends the answer closes the copy."""

    def __init__(self, backup: Backup) -> None:
        name = f"horae-{backup.index}.backup"
        lines = f'Horae-Applied-Index: {backup.index}\r\nContent-Disposition: attachment; filename="{name}"\r\n'
        super().__init__(200, OCTETS, b"", lines.encode())
        self._backup = backup

    @property
    def body_bytes(self) -> int:
        return self._backup.size_bytes

    async def write_eof(self, data: bytes = b"") -> None:
        """Write it all. Raises: ConnectionResetError when the caller is gone, or reads too slowly."""
        request = self._request
        assert request is not None
        try:
            transport = request.transport
            if transport is None or transport.is_closing():
                raise ConnectionResetError("the caller hung up before its answer")
            transport.write(self._head(request))
            while request.method != "HEAD" and (piece := await self._backup.read()):
                if transport.is_closing():
                    raise ConnectionResetError("the caller hung up in the middle of a backup")
                transport.write(piece)
                if transport.get_write_buffer_size() > BUFFERED_BYTES_MAX:
                    await self._wait_read(transport, request.writer)
        finally:
            self._backup.close()


class BackupRefused(Exception):
    """The cluster said no, and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Unreachable(Exception):
    """No node answered, or it broke off, or the deadline came first."""


class Source(NamedTuple):
    """Whom to ask for a backup. `deadline_seconds`: how long it may take in all, `inf` for as long as it is sent."""

    urls: Sequence[str]
    token: str | None
    deadline_seconds: float


class Saved(NamedTuple):
    """What a file is a copy of. `applied_index`: the last log entry in it."""

    cluster: str
    applied_index: int
    size_bytes: int


async def fetch(source: Source, path: Path) -> Saved:
    """Download a backup that holds all that was acknowledged before this call, check it, and give it its name.

    A file at `path` is replaced. Raises: `BackupRefused`, `Unreachable`, `StorageError` for a file that is damaged or
    cannot be written; nothing is left then.
    """
    temporary = temporary_of(path)
    try:
        try:
            async with asyncio.timeout(source.deadline_seconds if isfinite(source.deadline_seconds) else None):
                await _download(source, temporary)
        except TimeoutError:
            raise Unreachable(f"no whole backup came in the {source.deadline_seconds:g} s of the deadline") from None
        meta = await asyncio.to_thread(snapshot.verify, temporary)
        await asyncio.to_thread(publish, temporary, path)
        return Saved(meta.cluster, meta.last_index, path.stat().st_size)  # noqa: ASYNC240 (once, at the end)
    finally:
        await asyncio.to_thread(temporary.unlink, missing_ok=True)


async def _download(source: Source, to: Path) -> None:
    """From the first node that gives it. What a node says tells more than that another one is silent."""
    headers = {"Authorization": f"Bearer {source.token}"} if source.token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_S)
    refusal: BackupRefused | None = None
    silence: Exception | None = None
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        for url in source.urls:
            try:
                return await _copy(session, url.rstrip("/"), to)
            except BackupRefused as error:
                refusal = error
            except (aiohttp.ClientError, TimeoutError) as error:
                silence = error
    raise refusal or Unreachable(f"no node gave a backup ({silence or 'none was named'})")


async def _copy(session: aiohttp.ClientSession, url: str, to: Path) -> None:
    async with session.get(f"{url}/v1/cluster") as answer:
        await _require_ok(answer)
        after = (await answer.json())["applied_index"]
    async with session.get(f"{url}/v1/backup", params={"after": after}) as answer:
        await _require_ok(answer)
        with open(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:  # noqa: ASYNC230
            async for piece in answer.content.iter_chunked(PIECE_BYTES):
                file.write(piece)


async def _require_ok(answer: aiohttp.ClientResponse) -> None:
    """Raises: `BackupRefused` with what the node says; where it says nothing that we know, with its status."""
    if answer.status == 200:
        return
    try:
        problem = msgspec.json.decode(await answer.read(), type=Problem)
    except msgspec.MsgspecError:
        detail = f"{answer.url.origin()} answered {answer.status} {answer.reason}: no horae node, or a proxy before it"
        problem = Problem("about:blank", "Foreign answer", answer.status, detail, "not_horae")
    raise BackupRefused(problem)
