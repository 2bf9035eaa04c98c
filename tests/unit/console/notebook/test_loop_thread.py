"""Work in a thread of its own: its result, its errors, and its end where the caller ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError
from threading import Event, current_thread

import pytest

from drumline_console.notebook.loop_thread import LoopThread
from tests.patience import HANG_SECONDS

TURNS = 50_000
"""Of the loop: some tenths of a second, in which a caller who does not wait is long gone."""


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


async def named() -> str:
    return current_thread().name


async def broken() -> None:
    raise ValueError("as it was raised")


def test_work_runs_in_the_thread_and_hands_its_result_over(loop: LoopThread) -> None:
    assert loop.run(named()) == "drumline-notebook"
    with pytest.raises(ValueError, match="as it was raised"):
        loop.run(broken())
    assert loop.run(named()) == "drumline-notebook"


def test_the_work_has_ended_when_an_interrupt_goes_on(loop: LoopThread) -> None:
    begun, ended = Event(), Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            ended.set()

    def interrupted() -> None:
        with loop.started(work()):
            assert begun.wait(HANG_SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended.is_set()
    assert loop.run(named()) == "drumline-notebook"


def test_what_still_runs_ends_with_it() -> None:
    """As after a second interrupt, which does not wait for what the first one ends."""
    loop, begun, ended = LoopThread(), Event(), Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            ended.set()

    with loop.started(work()) as result:
        assert begun.wait(HANG_SECONDS)
        loop.close()
        assert ended.is_set()
    assert isinstance(result.exception(), CancelledError)


def test_nothing_runs_after_the_end(loop: LoopThread) -> None:
    loop.close()
    with pytest.raises(RuntimeError, match="connect again"):
        loop.run(named())
