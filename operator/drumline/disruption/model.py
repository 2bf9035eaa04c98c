"""What a node shows, and what it means.

A `Disruption` says that a node will stop to serve: why, until when its pods may stay, who said so
and how sure that is. The operator saves and moves the members on it when it is `CERTAIN`, keeps
new gangs away from it when it is at least `LIKELY`, and only tells of it otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from drumline.api.conditions import DisruptionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintFact:
    """One taint of a node."""

    key: str
    effect: str
    value: str = ""
    added_at: float | None = None
    """Seconds since the epoch, where whoever added it said when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionFact:
    """One condition of a node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None
    """When its status last changed (seconds since the epoch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of one node, as far as anybody uses it to announce a disruption."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[TaintFact, ...] = ()
    conditions: tuple[ConditionFact, ...] = ()
    """At least those that say something is wrong."""
    unschedulable: bool = False
    """Cordoned."""
    terminating: bool = False
    """The Node object is being deleted."""


class Confidence(IntEnum):
    """How sure it is that the node stops to serve."""

    POSSIBLE = 1
    """May well not happen: told, nothing else."""
    LIKELY = 2
    """No new gang is placed there; who is there stays."""
    CERTAIN = 3
    """Who is there saves and leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disruption:
    """One announcement that a node stops to serve."""

    node: str
    kind: DisruptionKind
    source: str
    """Who says so, in its own word: a taint's key, a condition's type."""
    deadline: float | None = None
    """Until then the node's pods may run (seconds since the epoch); None: until they are gone."""
    confidence: Confidence = Confidence.CERTAIN
