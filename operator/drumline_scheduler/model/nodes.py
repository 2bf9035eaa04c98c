"""Nodes and pools: the capacity that gangs are placed on.

Every pod counts exactly once: `Node.used` holds every pod that is bound to the node, foreign and
terminating ones too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Final

from drumline_scheduler.model.capacity import CapacityType
from drumline_scheduler.resources import NOTHING, Resources

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")


class TaintEffect(StrEnum):
    """The effects Kubernetes knows; only the last two keep a pod off a node."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's mark that keeps pods without a matching toleration off the node."""

    key: str
    value: str = ""
    effect: TaintEffect


class TolerationOperator(StrEnum):
    """Comparison of a toleration's value with a taint's value."""

    EQUAL = "Equal"
    EXISTS = "Exists"
    GREATER_THAN = "Gt"
    """The taint's value is a larger integer."""
    LESS_THAN = "Lt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Permission of a pod to ignore taints. An empty key with `Exists` matches every key."""

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None
    """None matches every effect."""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers `taint` (the rules of Kubernetes' core/v1)."""
        if self.effect not in (None, taint.effect):
            return False
        # An empty key with `Exists` tolerates every taint.
        if self.operator is TolerationOperator.EXISTS:
            return self.key in ("", taint.key)
        if self.key != taint.key:
            return False
        if self.operator is TolerationOperator.EQUAL:
            return self.value == taint.value
        bound, value = _integer(self.value), _integer(taint.value)
        if bound is None or value is None:
            return False
        return value > bound if self.operator is TolerationOperator.GREATER_THAN else value < bound


def _integer(text: str) -> int | None:
    """Return an int64 in the only form that Kubernetes compares: no zeros before it, no plus."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedVolumes:
    """The volumes of a CSI driver that pods of a node use, and how many may be attached."""

    driver: str
    limit: int
    volumes: frozenset[str] = frozenset()
    """Identities of the volumes. Two pods that use one volume count once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a pool."""

    name: str
    pool: str
    allocatable: Resources
    used: Resources = NOTHING
    """Requests of all pods bound to it: of jobs, foreign and terminating ones."""
    domains: tuple[str, ...] = ()
    """Its topology domain at each level of the pool, broadest first. '' if the label is missing. A
    domain is identified by its whole path: rack `r1` of block `b1` is not rack `r1` of block `b2`.
    """
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()
    tolerated: tuple[Taint, ...] = ()
    """Taints among `taints` that pods of jobs tolerate by the pool's RuntimeClass."""
    outside: str = ""
    """The pool's RuntimeClass, whose node selector the node does not meet; '' if it does."""
    unschedulable: bool = False
    """Cordoned. No toleration overrides it, because a drain must come to an end."""
    ready: bool = True
    starting: bool = False
    """The node was added and is still being set up. It has no slots yet, whatever a gang tolerates.
    It counts as a node that is to come."""
    distrusted: bool = False
    """Its kubelet rejected a pod that fitted here. It is not used before its next update."""
    quarantined: bool = False
    """Evidence against it keeps new pods off. Pods that run there stay."""
    suspicion: int = 0
    """Amount of evidence against it. Among otherwise equal nodes, those with less are used first.
    """
    closed: str = ""
    """Reason why it takes no new pods although it runs (`spot reclaim`, `pod a/b cannot be read`).
    '' if it takes new pods."""
    attached: tuple[AttachedVolumes, ...] = ()
    """Its drivers with a limit of attached volumes."""
    hides_gpus: bool = False
    """Its GPUs are devices that only claims get (Dynamic Resource Allocation), so none are counted.
    """
    shares_gpus: bool = False
    """Several of its counted GPUs may be one device, by time-slicing or MPS."""
    terminating: Resources = NOTHING
    """The part of `used` whose pods are being deleted. It becomes free later."""
    overdue: Resources = NOTHING
    """The part of `terminating` that should have been free a while ago. No gang waits for it."""
    hanging: tuple[str, ...] = ()
    """Pods that should have left a while ago and what holds them, for messages: `team/old
    (finalizer example.com/keeps)`."""

    @property
    def ending(self) -> Resources:
        """The part of `used` that gangs may wait for: pods that are expected to end soon."""
        if self.overdue is NOTHING:
            return self.terminating
        return self.terminating - self.overdue


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes of one kind, in which quota is counted."""

    name: str
    levels: tuple[str, ...] = ()
    """Names of its topology levels, broadest first, such as ("block", "rack", "host")."""
    level_labels: tuple[str, ...] = ()
    """Node labels of these levels, in the same order; for messages. Empty: not known."""
    selector: str = ""
    """Its nodeSelector as `key=value,key=value`; for messages. Empty: not known."""
    capacity: CapacityType = CapacityType.ON_DEMAND
    price: int | None = None
    """Price of a whole GPU for an hour, in millionths (`api.money`). None: not known."""
    gpu_resource: str = ""
    """Resource name of its GPUs. '' if not stated."""
    device_driver: str = ""
    """DRA driver whose devices its GPUs are, for messages. '' if kubelets count them."""
    gpu_model: str = ""
    """Model of its GPUs. '' if not stated. A job uses surplus only on GPUs like its other ones."""
    lost_percent: int = 0
    """Work that is lost when its nodes are taken back, in percent of the work that is kept."""
    partitions: tuple[str, ...] = ()
    """Resources that are parts of a GPU. If there are any, `gpus` of its nodes, gangs and queues
    counts parts. Then only gangs that name it as their `pool` are placed there."""
    parts_per_gpu: int = 1
    """Number of its `gpus` that make one GPU. Sums over pools divide by it first."""
    share_weight: int = 1
    """Weight of one of its GPUs in fair shares, which add GPUs over pools."""

    auxiliary: frozenset[str] = frozenset()
    """Devices of its nodes that gangs may request beside GPUs, and that no quota counts."""

    def in_gpus(self, amount: int) -> Fraction:
        """Return an amount of this pool's `gpus` as whole GPUs."""
        return Fraction(amount, self.parts_per_gpu)

    @property
    def expected_price(self) -> int | None:
        """Price of a GPU-hour of work that is kept, by which pools are compared.

        None: not known.
        """
        return None if self.price is None else self.price * (100 + self.lost_percent) // 100
