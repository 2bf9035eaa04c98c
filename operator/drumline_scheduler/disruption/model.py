"""Facts about a node and the disruptions that are announced for it.

A `Disruption` announces that a node will go out of service: the kind, the deadline for its pods,
the source and the confidence. Members on the node leave by the deadline if it is `CERTAIN`. They
leave only for another node if it is `LIKELY`. New gangs are placed there only if it is merely
`POSSIBLE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from drumline_api.conditions import DisruptionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintFact:
    """One taint of a node."""

    key: str
    effect: str
    value: str = ""
    added_at: float | None = None
    """Seconds since the epoch. None if the taint has no timeAdded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionFact:
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None
    """Time of the last change of its status, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """The parts of a Node object in which disruptions are announced."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[TaintFact, ...] = ()
    device_taints: tuple[TaintFact, ...] = ()
    """Taints of its GPUs as devices (resource.k8s.io), each once."""
    conditions: tuple[ConditionFact, ...] = ()
    """At least the conditions that report a problem."""
    unschedulable: bool = False
    """Cordoned."""
    terminating: bool = False
    """The Node object is being deleted."""


class Confidence(IntEnum):
    """Certainty that the node goes out of service."""

    POSSIBLE = 1
    """It may well not happen. It is only counted in a metric."""
    SUSPECT = 2
    """Bad for new pods. No new gang is placed there, but members on the node stay."""
    LIKELY = 3
    """A cordon. Members on the node save, and move if another node is found. Otherwise they stay.
    """
    CERTAIN = 4
    """Members on the node save, and leave for another node or at the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """One announcement that a node goes out of service."""

    node: str
    kind: DisruptionKind
    source: str
    """Key of the taint or label, or type of the condition, that announces it."""
    deadline: float | None = None
    """Time until which the node's pods may run, in seconds since the epoch. None: until they are
    gone."""
    confidence: Confidence = Confidence.CERTAIN
