"""Decide which nodes a gang may use, regardless of what is free on them.

Pods are bound directly, so the checks of the default scheduler are made here: readiness, cordon,
taints, node labels, required node affinity. A node is ineligible for the first reason that applies,
in the order of `Ineligibility`, so the counts in a message add up to the ineligible nodes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from drumline_scheduler.model import (
    Gang,
    Node,
    NodeOperator,
    NodeRequirement,
    Taint,
    TaintEffect,
    Toleration,
    VolumeReach,
)


class Ineligibility(StrEnum):
    """Why a gang may not use a node; the values read as parts of a sentence."""

    NOT_READY = "not ready"
    STARTING = "still being set up"
    CORDONED = "cordoned"
    DISTRUSTED = "recently refused a pod"
    CLOSED = "closed to new pods"
    QUARANTINED = "quarantined"
    EXCLUDED = "avoided because a GPU there failed the job"
    SELECTOR = "without the required labels"
    AFFINITY = "outside the job's node affinity"
    VOLUME = "out of reach of a volume"
    ATTACH_LIMIT = "at the limit of attached volumes"
    RUNTIME_CLASS = "without the labels of the pool's runtime class"
    TAINT = "tainted"
    SHARED = "with shared GPUs, on which two ranks of a job could share a GPU"


QUARANTINE: Final = "drumline.dev/quarantined"
"""Key of a toleration that also allows quarantined nodes, for node checks. No taint has it.

Only the platform's own jobs get this toleration.
"""
NODE_NAME: Final = "metadata.name"
"""Key of a requirement that compares the node's name, as `matchFields` does."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}")
"""Integers that Kubernetes parses. Python accepts underscores and other digits too."""
_MAX_INTEGER: Final = 2**63 - 1
_HARD: Final = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelVerdicts:
    """The nodes whose labels suit a filter: bit i stands for the node with ordinal i."""

    selected: int
    near: int
    """Nodes that meet the node affinity."""

    def flags(self, nodes: int) -> list[bool]:
        """Return for each node whether its labels suit the filter."""
        digits = f"{self.selected & self.near:0{nodes}b}" if nodes else ""
        return [digit == "1" for digit in reversed(digits)]


class LabelTable:
    """The labels of some nodes, by name and value: bit i of a number stands for node i.

    A tenant may write many conditions, each for all nodes. With the table a condition costs one
    operation on a number, and one about a label that no node has costs nothing.

    Args:
        nodes: the nodes by ordinal. Their labels must not change.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.every = (1 << len(nodes)) - 1
        self._names = set[str]().union(*(node.labels for node in nodes))
        self._holding: dict[str, Mapping[str, int]] = {}
        self._ordered: dict[str, tuple[list[int], list[int]]] = {}

    def holding(self, name: str) -> Mapping[str, int]:
        """Return the nodes with a label, by its value."""
        if name not in self._names and name != NODE_NAME:
            return {}
        if name not in self._holding:
            ordinals: dict[str, list[int]] = defaultdict(list)
            for ordinal, node in enumerate(self._nodes):
                value = node.name if name == NODE_NAME else node.labels.get(name)
                if value is not None:
                    ordinals[value].append(ordinal)
            self._holding[name] = {
                value: sum(1 << ordinal for ordinal in each) for value, each in ordinals.items()
            }
        return self._holding[name]

    def meeting(self, term: tuple[NodeRequirement, ...]) -> int:
        """Return the nodes that meet all requirements; none for a term without requirements."""
        meeting = self.every if term else 0
        for requirement in term:
            meeting &= self._meeting(requirement)
            if not meeting:
                break
        return meeting

    def _meeting(self, requirement: NodeRequirement) -> int:
        holding = self.holding(requirement.key)
        match requirement.operator:
            case NodeOperator.IN:
                return _union(holding.get(value, 0) for value in {*requirement.values})
            case NodeOperator.NOT_IN:
                out = _union(holding.get(value, 0) for value in {*requirement.values})
                return self.every & ~out
            case NodeOperator.EXISTS:
                return _union(holding.values())
            case NodeOperator.DOES_NOT_EXIST:
                return self.every & ~_union(holding.values())
            case NodeOperator.GREATER_THAN | NodeOperator.LESS_THAN:
                return self._beyond(requirement)

    def _beyond(self, requirement: NodeRequirement) -> int:
        """Return the nodes whose label is an integer above or below the value."""
        bound = _integer(requirement.values[0] if len(requirement.values) == 1 else "")
        if bound is None:
            return 0
        if requirement.key not in self._ordered:
            pairs = (
                (_integer(value), mask) for value, mask in self.holding(requirement.key).items()
            )
            sorted_pairs = sorted((number, mask) for number, mask in pairs if number is not None)
            below = [0]
            for _, mask in sorted_pairs:
                below.append(below[-1] | mask)
            self._ordered[requirement.key] = [number for number, _ in sorted_pairs], below
        numbers, below = self._ordered[requirement.key]
        if requirement.operator is NodeOperator.LESS_THAN:
            return below[bisect_left(numbers, bound)]
        return below[-1] & ~below[bisect_right(numbers, bound)]


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """Everything about a gang that decides which nodes it may use."""

    selector: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[NodeRequirement, ...], ...]
    tolerations: tuple[Toleration, ...]
    excluded: frozenset[str]
    volumes: tuple[VolumeReach, ...] = ()
    may_share: bool = False
    is_foreign: bool = False
    """True if its pods do not get the pool's RuntimeClass."""

    def ineligibility(
        self, node: Node, *, labels: LabelVerdicts | None = None, ordinal: int = 0
    ) -> Ineligibility | None:
        """Return the reason why a node is ineligible; None if it is eligible.

        Args:
            node: the node.
            labels: what `labelled` returned for the nodes of the pool. None: compute it.
            ordinal: the position of the node among these.
        """
        return self.out_of_service(node) or self._closed_to_gang(node, labels, ordinal)

    def labelled(self, table: LabelTable) -> LabelVerdicts:
        """Return the nodes whose labels meet the selector, and those that meet the affinity.

        O(labels that exist + conditions), whatever the number of nodes.
        """
        selected = table.every
        for name, value in self.selector:
            selected &= table.holding(name).get(value, 0)
        if not self.affinity:
            return LabelVerdicts(selected=selected, near=table.every)
        near = 0
        for term in self.affinity:
            near |= table.meeting(term)
        return LabelVerdicts(selected=selected, near=near)

    def out_of_service(self, node: Node) -> Ineligibility | None:
        """Return why a node is ineligible that can end without a change of the job, or None."""
        # No toleration overrides these conditions, quarantine excepted.
        why = out_of_service(node)
        return None if why is Ineligibility.QUARANTINED and self._accepts_quarantine else why

    def _closed_to_gang(
        self, node: Node, labels: LabelVerdicts | None, ordinal: int
    ) -> Ineligibility | None:
        if node.name in self.excluded:
            return Ineligibility.EXCLUDED
        if labels is None:
            if any(node.labels.get(name) != value for name, value in self.selector):
                return Ineligibility.SELECTOR
            if self.affinity and not _meets_any(node, self.affinity):
                return Ineligibility.AFFINITY
        elif not labels.selected >> ordinal & 1:
            return Ineligibility.SELECTOR
        elif not labels.near >> ordinal & 1:
            return Ineligibility.AFFINITY
        if self.volumes and self.unreachable(node):
            return Ineligibility.VOLUME
        if self.volumes and node.attached and self.full_driver(node):
            return Ineligibility.ATTACH_LIMIT
        if node.outside and not self.is_foreign:
            return Ineligibility.RUNTIME_CLASS
        ignored = () if self.is_foreign else node.tolerated
        if any(self._repels(taint) for taint in node.taints if taint not in ignored):
            return Ineligibility.TAINT
        if node.shares_gpus and not self.may_share:
            return Ineligibility.SHARED
        return None

    def eligible(self, nodes: Sequence[Node], *, table: LabelTable | None = None) -> list[bool]:
        """Return for each node whether it is eligible.

        Args:
            nodes: the nodes.
            table: the labels of the nodes. None: read them.
        """
        labels = None
        meets = [True] * len(nodes)
        if self.selector or self.affinity:
            labels = self.labelled(LabelTable(nodes) if table is None else table)
            meets = labels.flags(len(nodes))
        always = bool(self.excluded or self.volumes)
        # Most nodes pass on their flags alone, which saves the full check for thousands of nodes.
        return [
            yes
            and node.ready
            and not (node.starting or node.unschedulable or node.distrusted or node.closed)
            and not (
                (always or node.taints or node.quarantined or node.shares_gpus or node.outside)
                and self.ineligibility(node, labels=labels, ordinal=ordinal)
            )
            for ordinal, (node, yes) in enumerate(zip(nodes, meets, strict=True))
        ]

    def unreachable(self, node: Node) -> str:
        """Return the first volume that cannot be used from a node; '' if all can."""
        restricting = (volume for volume in self.volumes if volume.terms)
        return next((each.name for each in restricting if not _meets_any(node, each.terms)), "")

    def volumes_apart(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Return the volumes that restrict nodes, if each has its nodes but none reaches all."""
        restricting = [volume for volume in self.volumes if volume.terms]
        if len(restricting) < 2 or not all(map(self.unreachable, nodes)):
            return ()
        alone = (replace(self, volumes=(volume,)) for volume in restricting)
        if any(all(map(each.unreachable, nodes)) for each in alone):
            return ()
        return tuple(volume.name for volume in restricting)

    def full_driver(self, node: Node) -> str:
        """Return the first CSI driver that can attach no more of the volumes; '' if all can.

        Volumes that are attached already need no room. One pod of the gang must fit.
        """
        for attached in node.attached:
            mine = [each.volume for each in self.volumes if each.driver == attached.driver]
            shared = attached.volumes.union(filter(None, mine))
            # Pods that use nothing new may still join.
            needs = bool(shared - attached.volumes) or "" in mine
            if needs and len(shared) + mine.count("") > attached.limit:
                return attached.driver
        return ""

    @property
    def _accepts_quarantine(self) -> bool:
        return any(toleration.key == QUARANTINE for toleration in self.tolerations)

    def _repels(self, taint: Taint) -> bool:
        return taint.effect in _HARD and not any(t.tolerates(taint) for t in self.tolerations)


def out_of_service(node: Node) -> Ineligibility | None:
    """Return why no gang may use a node for now; None if it is in service."""
    if not node.ready:
        return Ineligibility.NOT_READY
    if node.starting:
        return Ineligibility.STARTING
    if node.unschedulable:
        return Ineligibility.CORDONED
    if node.distrusted:
        return Ineligibility.DISTRUSTED
    if node.closed:
        return Ineligibility.CLOSED
    return Ineligibility.QUARANTINED if node.quarantined else None


def node_filter_of(gang: Gang) -> NodeFilter:
    """Return the node filter of a gang."""
    return NodeFilter(
        selector=tuple(sorted(gang.selector.items())),
        affinity=gang.affinity,
        tolerations=gang.tolerations,
        excluded=gang.excluded_nodes,
        volumes=gang.volumes,
        may_share=gang.may_share,
        is_foreign=gang.is_foreign,
    )


def _meets_any(node: Node, terms: Iterable[tuple[NodeRequirement, ...]]) -> bool:
    """Return whether all requirements of a term hold."""
    labels = {**node.labels, NODE_NAME: node.name}
    return any(_meets(labels, term) for term in terms)


def _meets(labels: Mapping[str, str], term: tuple[NodeRequirement, ...]) -> bool:
    """Return whether all requirements hold. A term without requirements never holds (core/v1)."""
    # A loop, because generators take most of the time: there may be many short terms.
    for requirement in term:
        if not _holds(labels.get(requirement.key), requirement):
            return False
    return bool(term)


def _holds(value: str | None, requirement: NodeRequirement) -> bool:
    match requirement.operator:
        case NodeOperator.IN:
            return value is not None and value in requirement.values
        case NodeOperator.NOT_IN:
            return value is None or value not in requirement.values
        case NodeOperator.EXISTS:
            return value is not None
        case NodeOperator.DOES_NOT_EXIST:
            return value is None
        case NodeOperator.GREATER_THAN | NodeOperator.LESS_THAN:
            return _compares(value, requirement)


def _compares(value: str | None, requirement: NodeRequirement) -> bool:
    """Compare a label with one value as integers; False if either is not an integer."""
    have = _integer(value or "")
    bound = _integer(requirement.values[0] if len(requirement.values) == 1 else "")
    if have is None or bound is None:
        return False
    return have > bound if requirement.operator is NodeOperator.GREATER_THAN else have < bound


def _integer(text: str) -> int | None:
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_MAX_INTEGER - 1 <= number <= _MAX_INTEGER else None
