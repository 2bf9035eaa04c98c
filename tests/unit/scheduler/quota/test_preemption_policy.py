"""The law of preemption, victim by victim, and back again."""

from __future__ import annotations

import pytest

from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree
from drumline_scheduler.quota.preemption_policy import FairShareWeights, PreemptionClaim
from tests.unit.scheduler.builders import queue

POOL = "h100"


class Court:
    """Two queues in one cohort, and what they hold."""

    def __init__(
        self, *, a: int = 0, b: int = 0, quota: tuple[int, int] = (4, 4), org: int = 0
    ) -> None:
        self.tree = QueueTree(
            [
                queue("org", org),
                *(queue(n, q, parent="org") for n, q in zip("ab", quota, strict=True)),
            ]
        )
        self.cohorts = CohortQuota(tree=self.tree, pool=POOL)
        for name, gpus in (("a", a), ("b", b)):
            self.cohorts.add(leaf=self.tree.leaf_of[name], gpus=gpus)

    @property
    def b(self) -> int:
        return self.tree.leaf_of["b"]

    def claim(self, gpus: int, **changes: object) -> PreemptionClaim:
        """Of a gang of queue a."""
        wanted = {"cohorts": self.cohorts, "leaf": self.tree.leaf_of["a"], "gpus": gpus, **changes}
        return PreemptionClaim(**wanted)  # pyright: ignore[reportArgumentType]

    def fair(self) -> FairShareWeights:
        count = len(self.tree.branches)
        return FairShareWeights(weights=[1.0] * count, past=[0.0] * count)


def verdict(claim: PreemptionClaim) -> tuple[bool, bool]:
    return claim.within_reach, claim.holds()


def test_what_was_borrowed_may_be_taken_and_no_gang_beyond_it() -> None:
    """b has borrowed 2 of a's: with two gangs of 1 they are back, a third would be b's own."""
    court = Court(a=2, b=6)
    claim = court.claim(2)
    assert verdict(claim) == (True, False)
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (True, False)
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (True, True)
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (False, False)
    claim.give_back(leaf=court.b, gpus=1)
    assert verdict(claim) == (True, True)


def test_the_last_gang_may_be_larger_than_what_is_left_of_the_borrowed() -> None:
    court = Court(a=2, b=6)
    claim = court.claim(2)
    claim.take(leaf=court.b, gpus=1)
    claim.take(leaf=court.b, gpus=4)
    assert verdict(claim) == (True, True)
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (False, False)


def test_by_fair_share_the_smaller_side_takes_until_both_are_equal() -> None:
    """b has all 8 of the cohort, a asks for 4: once it has them both have borrowed as much."""
    court = Court(b=8, quota=(0, 0), org=8)
    claim = court.claim(4, scales=court.fair())
    for _ in range(4):
        claim.take(leaf=court.b, gpus=1)
        assert claim.within_reach
    assert claim.holds()
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (False, False)


def test_where_nobody_is_taken_room_is_all_it_needs() -> None:
    """It would borrow; that is no question of law as long as nobody leaves for it."""
    court = Court(a=4)
    assert court.claim(2).holds()
    assert not court.claim(5).holds()
    assert not court.claim(2, user_room=1).holds()


@pytest.mark.parametrize(
    ("court", "gpus", "why"),
    [
        (Court(b=5), 1, VictimReason.BORROWED),
        (Court(b=4), 1, None),
        (Court(b=5), 0, None),
    ],
    ids=["borrows", "is within its quota", "has no GPUs"],
)
def test_only_who_borrows_may_be_asked_for_something(
    court: Court, gpus: int, why: VictimReason | None
) -> None:
    assert court.claim(1).reason(leaf=court.b, gpus=gpus, lower_priority=True) is why


def test_what_may_be_reclaimed_at_most_is_the_borrowed_and_the_rest_of_the_last_gang() -> None:
    court = Court(b=6)
    assert court.claim(2).reclaimable(leaf=court.b, largest=3) == 4
    assert Court(b=3).claim(2).reclaimable(leaf=court.b, largest=1) == 0


def test_while_victims_are_picked_the_gang_need_not_be_entitled_yet() -> None:
    """It is once a gang of its own queue has gone too."""
    court = Court(a=4, b=6, org=2)
    claim = court.claim(2)
    claim.take(leaf=court.b, gpus=1)
    assert verdict(claim) == (True, False)
    claim.take(leaf=court.tree.leaf_of["a"], gpus=2)
    assert verdict(claim) == (True, True)


def test_what_is_borrowed_weighs_less_the_larger_the_weight_is() -> None:
    scales = FairShareWeights(weights=[1.0, 3.0], past=[0.0, 0.0])
    assert not scales.is_at_least(1, 4, 0, 2)
    assert scales.is_at_least(1, 6, 0, 2)
    assert scales.is_at_least(0, 2, 1, 6)
