"""Equivalence classes of gangs: a reason that rejects a gang in a cycle rejects all of its class.

Capacity and quota only shrink while gangs are admitted. So one of thousands of equal jobs is tried,
and its rejection is the answer of the others. Gangs of a class may differ in name, age, nominated
slots and maximum runtime, which do not decide whether there is room for them. Their user counts
only in queues with user limits. kube-scheduler has the same idea in its equivalence cache:
https://github.com/kubernetes/design-proposals-archive/blob/main/scheduling/scheduler-equivalence-class.md
"""

from __future__ import annotations

from collections.abc import Hashable

from drumline_scheduler.model import Gang
from drumline_scheduler.placement.resource_axis import requested_names
from drumline_scheduler.queueing.search_costs import cost_of


class EquivalenceClasses:
    """Numbers the equivalence classes of gangs.

    Args:
        capped: queues with user limits.
    """

    def __init__(self, capped: frozenset[str] = frozenset()) -> None:
        self.capped = capped
        self.examples: list[Gang] = []
        """A gang of each class, by number."""
        self.costs: list[int] = []
        """Cost of a search for a gang of each class, by number."""
        self.requested: set[str] = set()
        """Names of the resources that gangs of these classes request beside the plain ones."""
        self._numbers: dict[Hashable, int] = {}

    def number_of(self, gang: Gang) -> int:
        """Return the number of the gang's class."""
        key = _key(gang)
        if gang.queue in self.capped:
            key = (key, gang.user)
        # Numbers count up, so `examples` has the first gang of each
        # class at the index of its number.
        number = self._numbers.setdefault(key, len(self.examples))
        if number == len(self.examples):
            self.examples.append(gang)
            self.costs.append(cost_of(gang))
            self.requested |= requested_names((gang,))
        return number


def _key(gang: Gang) -> Hashable:
    # Every field that can decide about a start. A missing field here would give a gang the answer
    # of another one. Name, age, nomination and runtime are left out on purpose.
    return (
        gang.queue,
        gang.namespace,
        gang.priority,
        gang.nodes,
        gang.per_pod,
        gang.pool,
        gang.pools,
        gang.price_rule,
        gang.required_level,
        gang.preferred_level,
        gang.slices,
        gang.balanced_level,
        gang.roles,
        frozenset(gang.selector.items()),
        gang.affinity,
        gang.volumes,
        gang.tolerations,
        gang.excluded_nodes,
        gang.sizes,
        gang.sweep,
        gang.sweep_limit,
        gang.resizable,
        gang.may_share,
        gang.is_foreign,
        gang.no_eviction_reason,
        gang.obstacle,
        gang.override,
    )
