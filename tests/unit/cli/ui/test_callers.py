"""What the page in the cluster remembers of its callers: by digest, for a minute, of so many."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.cli.decide.cycle import read_policy
from drumline.cli.ui.callers import MEMORY_SECONDS, MOST_MEMORIES, ApiServer, TokenDoor


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(clock: Clock) -> TokenDoor:
    server = ApiServer(url="http://h", ca=Path("/ca"))
    return TokenDoor(server, policy=read_policy(None), clock=clock)


def test_a_caller_finds_his_own_again_and_nobody_elses(door: TokenDoor) -> None:
    mine = door._memory("team token-of-mine")
    assert door._memory("team token-of-mine") is mine
    assert door._memory("team token-of-yours") is not mine
    assert door._memory("other token-of-mine") is not mine
    assert "token" not in repr(door._memories)


def test_who_is_away_for_a_minute_is_forgotten(door: TokenDoor, clock: Clock) -> None:
    mine = door._memory("team token-of-mine")
    clock.now += MEMORY_SECONDS
    assert door._memory("team token-of-mine") is mine
    clock.now += MEMORY_SECONDS + 1
    door._memory("team token-of-yours")
    assert len(door._memories) == 1
    assert door._memory("team token-of-mine") is not mine


def test_of_many_callers_the_one_that_is_away_longest_is_forgotten(door: TokenDoor) -> None:
    first, second = door._memory("team 1"), door._memory("team 2")
    assert door._memory("team 1") is first
    for number in range(3, MOST_MEMORIES + 2):
        door._memory(f"team {number}")
    assert len(door._memories) == MOST_MEMORIES
    assert door._memory("team 1") is first
    assert door._memory("team 2") is not second
