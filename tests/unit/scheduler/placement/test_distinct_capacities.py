"""Vectors that many nodes share, examined once."""

from __future__ import annotations

from random import Random

import pytest

from drumline_scheduler.placement.distinct_capacities import DistinctCapacities


@pytest.mark.parametrize("seed", range(50))
def test_replaced_vectors_are_grouped_as_by_a_new_count(seed: int) -> None:
    dice = Random(seed)
    amounts = [(dice.randrange(3), dice.randrange(2)) for _ in range(dice.randint(1, 12))]
    log: list[int] = []
    known = DistinctCapacities(amounts=amounts, log=log)
    for ordinal in range(len(amounts)):
        if dice.random() < 0.2:
            amounts[ordinal] = (9, ordinal)
            log.append(ordinal)
    other = list(amounts)
    changed = [ordinal for ordinal in range(len(other)) if dice.random() < 0.4]
    for ordinal in changed:
        other[ordinal] = (dice.randrange(3), 7)
    replaced, fresh = known.replaced(other, ordinals=changed), DistinctCapacities(amounts=other)
    for each, of in ((replaced, other), (fresh, other), (known, amounts)):
        each.catch_up()
        assert [tuple(row) for row in each.table[each.places].tolist()] == of
        inside = [ordinal for ordinal in range(len(of)) if ordinal % 2]
        counted = each.counts(inside)
        assert sorted(vector for vector, count in counted for _ in range(count)) == sorted(
            of[ordinal] for ordinal in inside
        )
