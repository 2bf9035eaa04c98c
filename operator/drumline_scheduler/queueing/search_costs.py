"""Estimate the cost of a search for a gang from its request alone. Pure: no I/O, no clock.

The unit is one search for an ordinary gang: at 500 nodes about one millisecond.
"""

from __future__ import annotations

from typing import Final

from drumline_scheduler.model import Gang
from drumline_scheduler.placement.frontier import MOST_PAIRS, pairs_of

_PAIRS_A_UNIT: Final = 100
"""Pairs of combinations of role pods that are joined in the time of one ordinary search."""
_PODS_A_UNIT: Final = 512
"""Pods that are placed in the time of one ordinary search."""
_EXACT_ROLE_UNITS: Final = 2
"""For each role of a gang whose roles are searched exactly: frontiers of all nodes and domains."""
_ROLE_UNITS: Final = 4
"""For each role of a gang whose roles are placed one after another."""
_SIZES_UNITS: Final = 8
"""For a gang with several sizes: they are bisected."""
_CONDITIONS_A_UNIT: Final = 16
"""Conditions on a node's labels and taints that are checked in the time of one ordinary search."""
_VALUES_A_UNIT: Final = 256
"""Values in such conditions."""


def cost_of(gang: Gang) -> int:
    """Return how many ordinary searches a gang costs."""
    conditions = len(gang.selector) + len(gang.tolerations) + sum(map(len, gang.affinity))
    values = sum(len(each.values) for term in gang.affinity for each in term)
    cost = 1 + conditions // _CONDITIONS_A_UNIT + values // _VALUES_A_UNIT
    cost += (gang.nodes + gang.extras) // _PODS_A_UNIT
    if gang.sizes:
        cost += _SIZES_UNITS
    if gang.roles:
        pairs = pairs_of(role.pods for role in gang.roles)
        is_exact = pairs <= MOST_PAIRS
        cost += (_EXACT_ROLE_UNITS if is_exact else _ROLE_UNITS) * len(gang.roles)
        cost += pairs // _PAIRS_A_UNIT if is_exact else 0
    return cost
