"""Random lives of small clusters with jobs over two pools (`scheduling_mixed_life`)."""

from __future__ import annotations

from tests.property.scale import many
from tests.property.scheduling_mixed_life import MixedLife
from tests.seeds import seed_of

LIVES = many(60, 4000)


def test_whatever_happens_to_jobs_over_two_pools_every_cycle_is_right() -> None:
    first = seed_of("LIFE_SEED") * LIVES % 100_000
    lives = [MixedLife(seed) for seed in range(first, first + LIVES)]
    for life in lives:
        life.live()
    assert sum(life.started for life in lives) > LIVES / 4
