"""A backup on its way out, piece by piece, as fast as its reader takes it; and the other end, `horae backup FILE`.

Not here: how the copy is made (`horae_node/backup.py`), what is made of it (`horae_node/restore.py`).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import aiohttp

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
    """The cluster or the file said no: one line, with the next step."""


class Unreachable(Exception):
    """No node answered, or it broke off."""


async def fetch(urls: list[str], token: str | None, path: Path) -> tuple[snapshot.SnapshotMeta, int]:
    """Download a backup that holds all that was acknowledged before this call, check it, and give it its name.

    What it is a copy of, and its size in bytes. A file at `path` is replaced. Raises: `BackupRefused`, `Unreachable`,
    `StorageError` for a file that is damaged or cannot be written; nothing is left then.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=SILENCE_S)
    temporary = temporary_of(path)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            last: Exception | None = None
            for url in urls:
                try:
                    await _download(session, url.rstrip("/"), temporary)
                    break
                except (aiohttp.ClientError, TimeoutError) as error:
                    last = error
            else:
                raise Unreachable(f"no node gave a backup ({last or 'none was named'}); is the cluster up?")
        meta = await asyncio.to_thread(snapshot.verify, temporary)
        await asyncio.to_thread(publish, temporary, path)
        return meta, path.stat().st_size  # noqa: ASYNC240 (once, at the end)
    finally:
        await asyncio.to_thread(temporary.unlink, missing_ok=True)


async def _download(session: aiohttp.ClientSession, url: str, to: Path) -> None:
    async with session.get(f"{url}/v1/cluster") as answer:
        after = (await _require_ok(answer).json())["applied_index"]
    async with session.get(f"{url}/v1/backup", params={"after": after}) as answer:
        with to.open("wb") as file:
            async for piece in _require_ok(answer).content.iter_chunked(PIECE_BYTES):
                file.write(piece)


def _require_ok(answer: Any) -> Any:
    if answer.status != 200:
        raise BackupRefused(
            f"{answer.url.origin()} answered {answer.status} {answer.reason}: see its log, or try again"
        )
    return answer
