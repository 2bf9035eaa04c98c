"""Random lives of small clusters under all policies (`scheduling_policy_life`)."""

from __future__ import annotations

from tests.property.scale import many
from tests.property.scheduling_policy_life import PolicyLife
from tests.seeds import seed_of

LIVES = many(60, 4000)


def test_under_all_policies_every_cycle_is_right_and_the_cluster_calms_down() -> None:
    first = seed_of("LIFE_SEED") * LIVES % 100_000
    lives = [PolicyLife(seed) for seed in range(first, first + LIVES)]
    for life in lives:
        life.live()
    assert sum(life.hung for life in lives) > 0
