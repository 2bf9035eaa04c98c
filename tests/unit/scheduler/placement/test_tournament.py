"""Parts of wholes that change, and the joins that this takes."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import pytest

from drumline_scheduler.placement.tournament import Tournament, play_again

Part = tuple[int, ...]


class Joins:
    """The best of each entry of two parts, and the pairs that were asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, pairs: Collection[tuple[Part, Part]]) -> dict[tuple[Part, Part], Part]:
        self.asked += len(pairs)
        return {pair: tuple(map(max, *pair)) for pair in pairs}


def random_part(random: Random) -> Part:
    return random.randrange(9), random.randrange(9)


@pytest.mark.parametrize("seed", range(60))
def test_wholes_are_those_of_their_parts_whatever_changes(seed: int) -> None:
    random = Random(seed)
    parts_of = [
        [random_part(random) for _ in range(random.randrange(12))]
        for _ in range(random.randrange(1, 4))
    ]
    tournaments = [Tournament(parts) for parts in parts_of]
    for _ in range(8):
        wholes = play_again(tournaments, parts_of=parts_of, join=Joins())
        best = [tuple(map(max, *parts, (0, 0))) if parts else None for parts in parts_of]
        assert wholes == best
        for parts in parts_of:
            for number in range(len(parts)):
                if random.random() < 0.3:
                    parts[number] = random_part(random)


def test_one_change_takes_one_join_in_each_round() -> None:
    parts = [(number, -number) for number in range(500)]
    tournament, joins = Tournament(parts), Joins()
    play_again([tournament], parts_of=[parts], join=joins)
    assert joins.asked == 499
    parts[77], joins.asked = (1000, 0), 0
    (whole,) = play_again([tournament], parts_of=[parts], join=joins)
    assert whole == (1000, 0)
    assert joins.asked == 9


def test_nothing_is_joined_again_without_a_change() -> None:
    parts, joins = [(number,) for number in range(9)], Joins()
    tournament = Tournament(parts)
    play_again([tournament], parts_of=[parts], join=joins)
    joins.asked = 0
    assert play_again([tournament], parts_of=[parts], join=joins) == [(8,)]
    assert joins.asked == 0
