"""Describe the positions of the ranks of a hung gang in one sentence."""

from __future__ import annotations

import pytest

from drumline_agent.leader.rank_whereabouts import whereabouts
from drumline_agent.protocol.rank_stacks import RankStack


def at(rank: int, operation: str = "", *, line: int = 31) -> RankStack:
    return RankStack(rank=rank, operation=operation, place=f"train.py, line {line}")


@pytest.mark.parametrize(
    ("places", "ranks", "sentence"),
    [
        ([], 4, ""),
        (
            [at(2, "all_reduce"), at(1, line=12), at(0, "all_reduce")],
            3,
            (
                "ranks 0, 2 wait in all_reduce (train.py, line 31); rank 1 has not entered it"
                " (train.py, line 12)"
            ),
        ),
        (
            [at(0, "all_reduce"), at(1, "barrier", line=40), at(2, line=12), at(3, line=12)],
            4,
            (
                "rank 0 waits in all_reduce (train.py, line 31); rank 1 waits in barrier (train.py,"
                " line 40); ranks 2, 3 have not entered any of them (train.py, line 12); they call"
                " different collectives"
            ),
        ),
        ([at(0), at(1)], 3, "ranks 0, 1 are at train.py, line 31; 1 of 3 ranks showed no stack"),
        (
            [at(rank, "barrier") for rank in range(512)],
            512,
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 504 more wait in barrier (train.py, line 31)",
        ),
    ],
)
def test_ranks_in_a_collective_come_first(
    places: list[RankStack], ranks: int, sentence: str
) -> None:
    assert whereabouts(places, ranks=ranks) == sentence


def test_the_sentence_is_bounded() -> None:
    places = [at(rank, line=rank) for rank in range(512)]
    assert whereabouts(places, ranks=512).endswith("; 508 more ranks are elsewhere")
