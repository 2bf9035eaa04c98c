"""Which nodes a gang may use at all, before anybody asks what is free on them.

Pods are bound directly, so the default scheduler's checks are ours: readiness, cordon, taints,
node labels. Each node is refused for the first reason that applies, in the order of `Closed`, so
the counts in a message add up to the number of refused nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from drumline.scheduling.model import Gang, Node, Taint, TaintEffect, Toleration


class Closed(StrEnum):
    """Why a gang may not use a node; the values read as parts of a sentence."""

    NOT_READY = "not ready"
    CORDONED = "cordoned"
    DISTRUSTED = "refused a pod lately"
    DISRUPTED = "about to be disrupted"
    EXCLUDED = "excluded by the job"
    SELECTOR = "without the labels asked for"
    TAINT = "tainted"


_HARD: Final = frozenset({TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What decides which nodes a gang may use; equal admissions open equal nodes."""

    selector: tuple[tuple[str, str], ...]
    tolerations: tuple[Toleration, ...]
    excluded: frozenset[str]

    def refusal(self, node: Node) -> Closed | None:
        """Why `node` is closed, or None if it is open."""
        if not node.ready:
            return Closed.NOT_READY
        if node.unschedulable:
            return Closed.CORDONED
        if node.distrusted:
            return Closed.DISTRUSTED
        if node.closed:
            return Closed.DISRUPTED
        if node.name in self.excluded:
            return Closed.EXCLUDED
        if any(node.labels.get(name) != value for name, value in self.selector):
            return Closed.SELECTOR
        if any(self._stands(taint) for taint in node.taints):
            return Closed.TAINT
        return None

    def _stands(self, taint: Taint) -> bool:
        return taint.effect in _HARD and not any(t.tolerates(taint) for t in self.tolerations)


def admission_of(gang: Gang) -> Admission:
    """The part of a gang that decides which nodes are open to it."""
    return Admission(
        selector=tuple(sorted(gang.selector.items())),
        tolerations=gang.tolerations,
        excluded=gang.excluded_nodes,
    )
