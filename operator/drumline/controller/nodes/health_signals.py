"""Node health in a GpuPool's status, where it survives changes of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from drumline.controller.nodes.nodes import NodeCache
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import ApiError, parse
from drumline_api.nodehealth import NodeEvidenceStatus, NodeHealthSpec, NodeHealthStatus
from drumline_contract import plain
from drumline_scheduler.disruption.node_scores import (
    Evidence,
    EvidenceKind,
    HealthByNode,
    News,
    NodeHealth,
    NodeStanding,
    PoolRules,
    sentence,
    standing,
)

HEALTH_FIELD = "nodeHealth"
QUARANTINED_FIELD = "quarantinedNodes"
_MAX_MESSAGE_CHARS = 1024


def health_of(status: Mapping[str, Any]) -> HealthByNode:
    """Return the health of nodes in a pool's status. Unreadable entries are skipped."""
    raw = status.get(HEALTH_FIELD)
    health: dict[str, NodeHealth] = {}
    for item in cast("list[Any]", raw) if isinstance(raw, list) else []:
        try:
            entry = parse(NodeHealthStatus, item, at=HEALTH_FIELD)
            health[entry.node] = NodeHealth(
                evidence=tuple(_evidence(each, node=entry.node) for each in entry.evidence),
                quarantined_at=(
                    None if entry.quarantined_at is None else parse_timestamp(entry.quarantined_at)
                ),
            )
        except (ApiError, ValueError):
            continue
    return health


def health_fields(health: HealthByNode) -> dict[str, Any]:
    """Return the fields of a pool's status, or none without evidence against any node."""
    if not health:
        return {}
    entries = [
        NodeHealthStatus(
            node=node,
            quarantined_at=(
                None if known.quarantined_at is None else timestamp(known.quarantined_at)
            ),
            message=sentence(known)[:_MAX_MESSAGE_CHARS],
            evidence=[
                NodeEvidenceStatus(
                    kind=each.kind.value, by=each.by, at=timestamp(each.at), detail=each.detail
                )
                for each in known.evidence
            ],
        ).model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for node, known in health.items()
    ]
    out = sum(known.quarantined_at is not None for known in health.values())
    return {HEALTH_FIELD: entries, **({QUARANTINED_FIELD: out} if out else {})}


def standings(healths: Iterable[HealthByNode], *, now: float) -> dict[str, NodeStanding]:
    """Return the standing of each node with evidence. Other nodes are trusted."""
    return {node: standing(known, now=now) for health in healths for node, known in health.items()}


def set_standings(nodes: NodeCache, standings: Mapping[str, NodeStanding]) -> bool:
    """Store the verdicts and return whether the scheduler may decide differently now.

    Args:
        nodes: the cache.
        standings: verdicts on all nodes with evidence against them.
    """
    before, nodes.standings = nodes.standings, standings
    changed = {
        name for name in before.keys() | standings.keys() if before.get(name) != standings.get(name)
    }
    nodes.recount(changed)
    return bool(changed)


def rules_of(spec: GpuPoolSpec, *, nodes: Iterable[str]) -> PoolRules:
    """Return the administrator's rules about the health of a pool's nodes."""
    rules = spec.node_health or NodeHealthSpec()
    return PoolRules(
        nodes=frozenset(nodes),
        quarantine_percent=rules.quarantine_percent,
        trusted=frozenset(rules.trusted_nodes or ()),
    )


def news_of_checks(spec: GpuPoolSpec) -> News:
    """Return the results of checks on the nodes of a pool."""
    rules = spec.node_health or NodeHealthSpec()
    checked = rules.checked or ()
    return News(
        evidence=[
            Evidence(
                node=each.node,
                kind=EvidenceKind.CHECK_FAILED,
                at=parse_timestamp(each.at),
                detail=plain(each.failed),
            )
            for each in checked
            if each.failed is not None
        ],
        passed={each.node: parse_timestamp(each.at) for each in checked if each.failed is None},
    )


def _evidence(entry: NodeEvidenceStatus, *, node: str) -> Evidence:
    return Evidence(
        node=node,
        kind=EvidenceKind(entry.kind),
        at=parse_timestamp(entry.at),
        by=entry.by,
        detail=entry.detail,
    )
