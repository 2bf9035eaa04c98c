"""Define the week's cluster: some nodes always exist, the others are spot nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drumline_scheduler import (
    CapacityType,
    Node,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    WithinQueue,
)
from drumline_simulator.cluster import Cluster, PoolTerms
from drumline_simulator.conditions.node_faults import NodeFaults, draw_node_faults
from drumline_simulator.parameters import conditions

WEEK_SECONDS: Final = 7 * 86_400.0
RESERVED: Final = "reserved"
SPOT: Final = "spot"
PRETRAINING: Final = "pretraining"
RESEARCH: Final = "research"
FINETUNING: Final = "finetuning"
INTERACTIVE: Final = "interactive"
NODE_GPUS: Final = 8
_POD_SLOTS: Final = 110
_COHORT: Final = "lab"
_RULE: Final = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY)
_PARTS: Final = {PRETRAINING: 0.4, RESEARCH: 0.4, FINETUNING: 0.15, INTERACTIVE: 0.05}
"""Nominal quota, as fractions of a pool's GPUs. The cohort has the rest, and lends it to all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Conditions of every side of a study."""

    nodes: int = 64
    reserved_nodes: int = 16
    """Number of nodes that always exist and are never reclaimed. The others are spot nodes."""
    large_on_spot: bool = True
    """True: pretraining may also use spot nodes."""
    seconds: float = WEEK_SECONDS
    seed: int = 1
    failures: float = 1.0
    """Factor on the assumed failure rates."""
    reclaims: float = 1.0
    """Factor on the assumed reclaim rates, above 0."""

    def __post_init__(self) -> None:
        """Reject a cluster without both kinds of nodes.

        Raises:
            ValueError: a kind of nodes is missing. The message contains the numbers.
        """
        if not 4 <= self.reserved_nodes <= self.nodes - 4:
            raise ValueError(
                f"want at least 4 reserved and 4 spot nodes, got {self.reserved_nodes} reserved"
                f" of {self.nodes}"
            )

    def cluster(self) -> Cluster:
        """Return nodes, queues and prices."""
        pools = {RESERVED: self.reserved_nodes, SPOT: self.nodes - self.reserved_nodes}
        queues = [self._queue(name, part=part, pools=pools) for name, part in _PARTS.items()]
        # No GPU is left without quota: a node with one less holds no job of a whole node.
        rest = {
            pool: count * NODE_GPUS - sum(queue.nominal.get(pool, 0) for queue in queues)
            for pool, count in pools.items()
        }
        return Cluster(
            nodes=tuple(
                _node(pool, number) for pool, count in pools.items() for number in range(count)
            ),
            # Without prices: what is reserved is paid for anyway, and is tried first by its name.
            pools=(
                Pool(name=RESERVED, capacity=CapacityType.RESERVED),
                Pool(name=SPOT, capacity=CapacityType.SPOT),
            ),
            queues=(Queue(name=_COHORT, nominal=rest), *queues),
            terms={
                RESERVED: PoolTerms(price_per_gpu_hour=conditions.PRICE.figure.value),
                SPOT: PoolTerms(
                    price_per_gpu_hour=conditions.SPOT_PRICE.figure.value,
                    price_swing=conditions.PRICE_SWING,
                    autoscaling=conditions.autoscaling(),
                ),
            },
        )

    def _queue(self, name: str, *, part: float, pools: Mapping[str, int]) -> Queue:
        nominal = {pool: int(count * NODE_GPUS * part) for pool, count in pools.items()}
        if name == PRETRAINING and not self.large_on_spot:
            del nominal[SPOT]
        return Queue(name=name, parent=_COHORT, nominal=nominal, preemption=_RULE)

    def node_faults(self) -> NodeFaults:
        """Return failures and reclaims."""
        return draw_node_faults(
            self.cluster(),
            failures=conditions.failure_rates(scale=self.failures),
            spot={SPOT: conditions.spot_rates(scale=self.reclaims)},
            seconds=self.seconds,
            seed=self.seed,
        )


def _node(pool: str, number: int) -> Node:
    whole = Resources(gpus=NODE_GPUS, pods=_POD_SLOTS)
    return Node(name=f"{pool}-{number:03}", pool=pool, allocatable=whole)
