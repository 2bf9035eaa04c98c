"""Random lives of small clusters with all features (`scheduling_lifetime`); more: `make soak`."""

from __future__ import annotations

import pytest

from tests.property.scale import many
from tests.property.scheduling_lifetime import Life

LIVES = many(1800, 6000)
"""Beside the 200 sequences of test_scheduling_sequences."""
AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, LIVES, AT_ONCE))
def test_whatever_happens_every_cycle_is_right_and_the_cluster_calms_down(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        Life(seed).live()
