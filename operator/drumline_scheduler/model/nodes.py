"""Nodes and pools: what there is to be placed on.

Capacity is counted twice over nothing and forgotten for nothing: `Node.used` holds every pod that
is bound to the node, foreign and terminating ones too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from drumline_scheduler.model.capacity import CapacityType
from drumline_scheduler.resources import NOTHING, Resources


class TaintEffect(StrEnum):
    """The effects Kubernetes knows; only the last two keep a pod off a node."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's mark that only pods with a matching toleration may ignore."""

    key: str
    value: str = ""
    effect: TaintEffect


class TolerationOperator(StrEnum):
    """How a toleration compares its value with a taint's."""

    EQUAL = "Equal"
    EXISTS = "Exists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A pod's leave to ignore taints; an empty key with `Exists` matches every key."""

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None
    """None matches every effect."""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers `taint` (the rules of Kubernetes' core/v1)."""
        if self.effect not in (None, taint.effect):
            return False
        if self.operator is TolerationOperator.EXISTS:
            return self.key in ("", taint.key)
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a pool."""

    name: str
    pool: str
    allocatable: Resources
    used: Resources = NOTHING
    """The requests of all pods bound to it: ours, foreign ones, terminating ones."""
    domains: tuple[str, ...] = ()
    """Its topology domain at each level of the pool, broadest first; '' where the label is missing.
    A domain is known by its whole path: rack `r1` of block `b1` is not rack `r1` of block `b2`."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """Cordoned. No toleration overrides it: a drain has to come to an end."""
    ready: bool = True
    starting: bool = False
    """It was added and is still being set up: no place yet, whatever a gang tolerates. It is one of
    the nodes that are to come, not of those that are there."""
    distrusted: bool = False
    """Its kubelet rejected a pod that fitted here: not used before its next update."""
    quarantined: bool = False
    """What is known against it keeps new pods off; those that run there stay."""
    suspicion: int = 0
    """Among nodes that are equal otherwise those with less are taken first."""
    closed: str = ""
    """Why it takes no new pods although it runs (`spot reclaim`, `maintenance`); '' if it does."""
    hides_gpus: bool = False
    """Its GPUs are devices that only claims get (Dynamic Resource Allocation): none are counted."""
    shares_gpus: bool = False
    """Several of its GPUs may be one, by time-slicing or MPS."""
    terminating: Resources = NOTHING
    """The part of `used` whose pods are being deleted: free later, not now."""
    overdue: Resources = NOTHING
    """The part of `terminating` that should have been free a while ago: no gang waits for it."""
    hanging: tuple[str, ...] = ()
    """Pods that should have left a while ago, with what holds them, for messages:
    `team/old (finalizer example.com/keeps)`."""

    @property
    def ending(self) -> Resources:
        """The part of `used` that gangs may wait for: pods that are expected to end soon."""
        if self.overdue is NOTHING:
            return self.terminating
        return self.terminating - self.overdue


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A kind of nodes that quota is counted in."""

    name: str
    levels: tuple[str, ...] = ()
    """Names of its topology levels, broadest first, such as ("block", "rack", "host")."""
    capacity: CapacityType = CapacityType.ON_DEMAND
    price: int | None = None
    """Of a whole GPU for an hour, in millionths (`api.money`); None: not known."""
    gpu_resource: str = ""
    """What its GPUs are asked for as; '' where nobody said."""
    gpu_model: str = ""
    """What they are, likewise: a job takes surplus only where GPUs are like its others."""
    lost_percent: int = 0
    """How much of the work is lost as its nodes are taken back, in percent of what is kept."""
    partitions: tuple[str, ...] = ()
    """Resources that are parts of a GPU. Where there are any, `gpus` of its nodes, gangs and queues
    are parts of GPUs, so only gangs that name it as their `pool` are placed there."""
    parts_per_gpu: int = 1
    """How many of its `gpus` a GPU is: what is added up over pools is divided by it first."""

    auxiliary: frozenset[str] = frozenset()
    """Devices of its nodes that gangs may request beside GPUs, and that no quota counts."""

    def in_gpus(self, amount: int) -> Fraction:
        """So many `gpus` of this pool in GPUs."""
        return Fraction(amount, self.parts_per_gpu)

    @property
    def expected_price(self) -> int | None:
        """What a GPU-hour costs whose work is kept: pools are compared by it. None: not known."""
        return None if self.price is None else self.price * (100 + self.lost_percent) // 100
