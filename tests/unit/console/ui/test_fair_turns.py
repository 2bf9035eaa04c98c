"""Turns of callers: few at a time, one caller's after another's, and nobody's for ever."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from drumline_cli.errors import Busy
from drumline_console.ui.fair_turns import FairTurns


class Work:
    """Requests that hold their turn until they are ended, in the order of their turns."""

    def __init__(self, shares: FairTurns) -> None:
        self.shares = shares
        self.begun: list[str] = []
        self.ends: list[tuple[str, asyncio.Event]] = []

    async def ask(self, caller: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(caller))
        await settled()
        return task

    async def end(self, caller: str) -> None:
        number = [each for each, _ in self.ends].index(caller)
        self.ends.pop(number)[1].set()
        await settled()

    async def _run(self, caller: str) -> None:
        async with self.shares.turn(caller):
            ended = asyncio.Event()
            self.begun.append(caller)
            self.ends.append((caller, ended))
            await ended.wait()


async def settled() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def shares(**limits: int) -> FairTurns:
    return FairTurns(**{"at_once": 2, "at_once_each": 2, "waiting": 4, "waiting_each": 3} | limits)


async def test_a_caller_s_second_request_waits_behind_another_s_first() -> None:
    work = Work(shares())
    for caller in ("a", "a", "a", "a", "b", "c"):
        await work.ask(caller)
    assert work.begun == ["a", "a"]
    for caller in ("a", "a", "b", "c", "a", "a"):
        await work.end(caller)
    assert work.begun == ["a", "a", "a", "b", "c", "a"]


async def test_one_caller_never_holds_all_turns() -> None:
    work = Work(shares(at_once_each=1))
    for caller in ("a", "a", "b"):
        await work.ask(caller)
    assert work.begun == ["a", "b"]


async def test_too_many_requests_of_one_caller_are_refused() -> None:
    work = Work(shares())
    for _ in range(5):
        await work.ask("a")
    with pytest.raises(Busy):
        await (await work.ask("a"))


async def test_a_full_line_takes_the_place_of_who_has_most_in_it() -> None:
    work = Work(shares(waiting=3))
    asked = [await work.ask("a") for _ in range(5)]
    await work.ask("b")
    with pytest.raises(Busy):
        await asked[-1]
    await work.ask("c")
    with pytest.raises(Busy):
        await asked[-2]
    for caller in ("d", "a"):  # nobody waits with more than these would
        with pytest.raises(Busy):
            await (await work.ask(caller))


async def test_whatever_is_cancelled_the_turns_and_places_come_back() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        limits = shares(waiting=8, waiting_each=4)
        work = Work(limits)
        tasks: list[asyncio.Task[None]] = []
        for _ in range(40):
            act = chance.random()
            if act < 0.5:
                tasks.append(await work.ask(chance.choice("abc")))
            elif act < 0.7 and work.ends:
                work.ends.pop(chance.randrange(len(work.ends)))[1].set()
            elif tasks:
                chance.choice(tasks).cancel()
            if chance.random() < 0.7:
                await settled()
            assert limits._running.total() <= 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (limits._running, limits._lines) == (Counter(), {}), seed
