"""The estimated cost of a search, in searches for an ordinary gang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Role
from drumline_scheduler.queueing.deferral import COSTLY, TRY_BUDGET
from drumline_scheduler.queueing.search_costs import cost_of
from tests.unit.scheduler.builders import gang, pod


@pytest.mark.parametrize(
    ("pods", "least", "most"),
    [
        ((), 1, 1),
        ((1,), 2, COSTLY),
        ((1, 1, 1), COSTLY + 1, 2 * COSTLY),
        ((30,), COSTLY + 1, 2 * COSTLY),
        ((2, 11), COSTLY + 1, 3 * COSTLY),
        ((11, 11), TRY_BUDGET + 1, 3 * TRY_BUDGET),
        ((256, 256), COSTLY + 1, 3 * COSTLY),
    ],
)
def test_several_roles_and_many_role_pods_are_costly(
    pods: tuple[int, ...], least: int, most: int
) -> None:
    """Their frontiers are computed for all nodes and domains."""
    roles = tuple(Role(name=f"r{i}", pods=count, per_pod=pod(1)) for i, count in enumerate(pods))
    assert least <= cost_of(replace(gang("a"), roles=roles)) <= most
