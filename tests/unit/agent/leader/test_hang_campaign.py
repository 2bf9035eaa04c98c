"""From what agents report to the rank that is killed: right in 95 of 100 injected hangs."""

from __future__ import annotations

import pytest

from tests.unit.agent.leader.gpu_gang import Trouble
from tests.unit.agent.leader.hang_campaign import RIGHT, troubled_gangs, verdict_on

EACH = 20
"""Of a kind; `make test-all WHAT=hangs` runs a thousand."""


@pytest.mark.parametrize("trouble", Trouble)
def test_who_hangs_is_killed_and_nobody_else(trouble: Trouble) -> None:
    verdicts = [verdict_on(gang) for gang in troubled_gangs(trouble, count=EACH, seed=7)]
    assert verdicts.count(RIGHT) >= 0.95 * EACH, verdicts
