"""Work that goes on when its browser has gone."""

from __future__ import annotations

import asyncio

import pytest

from drumline_cli.errors import BadInput
from drumline_console.ui.cancellation import finish


async def test_who_is_cancelled_meanwhile_is_so_once_the_work_has_ended() -> None:
    begun, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await goes_on.wait()
        ended.set()

    task = asyncio.create_task(finish(work()))
    await begun.wait()
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_an_error_is_its_own() -> None:
    async def work() -> None:
        raise BadInput("no")

    with pytest.raises(BadInput, match="no"):
        await finish(work())
