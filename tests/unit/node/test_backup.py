"""A backup holds what it must, one at a time, and leaves nothing behind, also when its reader goes in the middle."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.helpers.one_node import OneNode

from horae_node.backup import FILE_NAME, Backups
from horae_node.errors import NotApplied
from horae_storage import snapshot


async def made(tmp_path: Path) -> tuple[OneNode, Backups]:
    node = await OneNode().open()
    await node.submit(id="kept")
    return node, Backups(node.applier, node.raft, tmp_path)


async def test_its_pieces_are_a_whole_snapshot_and_no_file_is_left(tmp_path: Path) -> None:
    node, backups = await made(tmp_path)
    backup = await backups.open(node.applier.applied_index)
    assert not os.listdir(tmp_path)
    pieces = []
    while piece := await backup.read():
        pieces.append(piece)
    backup.close()
    data = b"".join(pieces)
    assert len(data) == backup.size_bytes
    (tmp_path / "copy").write_bytes(data)
    assert snapshot.verify(tmp_path / "copy").last_index == backup.index == node.applier.applied_index


async def test_one_at_a_time_until_it_is_closed_or_forgotten(tmp_path: Path) -> None:
    _, backups = await made(tmp_path)
    first = await backups.open(0)
    with pytest.raises(NotApplied) as refused:
        await backups.open(0)
    assert refused.value.code == "rate_limited"
    first.close()
    first.close()
    second = await backups.open(0)
    del second
    await asyncio.sleep(0)  # the pass that delivered it holds it, too
    (await backups.open(0)).close()


async def test_a_caller_that_hangs_up_leaves_nothing_and_the_next_waits_for_the_thread(tmp_path: Path) -> None:
    node, backups = await made(tmp_path)
    for _ in range(3):
        asked = asyncio.create_task(backups.open(0))
        for _ in range(3):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        with pytest.raises(NotApplied):
            await backups.open(0)
        await node.applier.wait_copies()
        async with asyncio.timeout(10):
            while True:
                try:
                    backup = await backups.open(0)
                except NotApplied:
                    await asyncio.sleep(0.01)
                else:
                    break
        assert backup.size_bytes > 0
        backup.close()
        await asyncio.sleep(0)
    assert not os.listdir(tmp_path)


async def test_it_waits_for_what_it_must_hold(tmp_path: Path) -> None:
    node, backups = await made(tmp_path)
    wanted = node.applier.applied_index + 1
    waiting = asyncio.create_task(backups.open(wanted))
    await asyncio.sleep(0)
    assert not waiting.done()
    await node.submit(id="later")
    backup = await waiting
    assert backup.index >= wanted
    backup.close()


async def test_a_failed_one_leaves_room_for_the_next(tmp_path: Path) -> None:
    _, backups = await made(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"left by a crash")
    (await backups.open(0)).close()
    gone = Backups(backups._applier, backups._raft, tmp_path / "no such folder")
    for _ in range(2):
        with pytest.raises(Exception, match="no such folder"):
            await gone.open(0)
