"""Explain from Karpenter's NodeClaims and NodePools why nodes of a GpuPool do not come.

A NodeClaim is an ordered node. It becomes Launched (the cloud has it), Registered (its kubelet has
joined) and Initialized (Ready, without startup taints, with its resources). The first stage that it
has not reached is what the node waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from drumline.kube.quantity import amount

_STAGES: Final = ("Launched", "Registered", "Initialized")
_NOT_LOOKED_AT: Final = "AwaitingReconciliation"
"""Karpenter's reason of a condition that it has not computed yet."""
_POOL_LABEL: Final = "karpenter.sh/nodepool"


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""


class _NameAndLabels(msgspec.Struct, frozen=True):
    name: str = ""
    labels: dict[str, str] = {}


class _NodeClaimStatus(msgspec.Struct, frozen=True):
    conditions: list[_Condition] = []


class NodeClaimView(msgspec.Struct, frozen=True):
    """An ordered node."""

    metadata: _NameAndLabels
    status: _NodeClaimStatus = msgspec.field(default_factory=_NodeClaimStatus)


class _Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] = []


class _TemplateSpec(msgspec.Struct, frozen=True):
    requirements: list[_Requirement] = []


class _Template(msgspec.Struct, frozen=True):
    metadata: _NameAndLabels = msgspec.field(default_factory=_NameAndLabels)
    spec: _TemplateSpec = msgspec.field(default_factory=_TemplateSpec)


class _PoolSpec(msgspec.Struct, frozen=True):
    template: _Template
    limits: dict[str, str | int] = {}


class _PoolStatus(msgspec.Struct, frozen=True):
    conditions: list[_Condition] = []
    resources: dict[str, str | int] = {}


class NodePoolView(msgspec.Struct, frozen=True):
    """The kind of nodes that may be ordered, and their limits."""

    metadata: _NameAndLabels
    spec: _PoolSpec
    status: _PoolStatus = msgspec.field(default_factory=_PoolStatus)


decode_claim = msgspec.json.Decoder(NodeClaimView).decode
decode_pool = msgspec.json.Decoder(NodePoolView).decode


def trouble_of(
    *,
    claims: Iterable[NodeClaimView],
    pools: Iterable[NodePoolView],
    selector: Mapping[str, str],
) -> str:
    """Return why nodes of a GpuPool do not come, by Karpenter's objects, or ''.

    Args:
        claims: all NodeClaims.
        pools: all NodePools.
        selector: labels of the GpuPool's nodes.
    """
    # Phase 1: NodePools whose nodes have the labels of this GpuPool.
    ours = [pool for pool in pools if _labels_of(pool).items() >= selector.items()]
    names = {pool.metadata.name for pool in ours}
    # Phase 2: the most frequent problem of ordered nodes.
    late = Counter(
        text
        for claim in claims
        if claim.metadata.labels.items() >= selector.items()
        or claim.metadata.labels.get(_POOL_LABEL) in names
        if (text := _late(claim))
    )
    if late:
        (text, count), *_ = late.most_common(1)
        return f"{count} {'NodeClaim is' if count == 1 else 'NodeClaims are'} {text}"
    # Phase 3: no node is ordered. A NodePool may forbid it.
    return next((text for pool in ours if (text := _pool_trouble(pool))), "")


def _labels_of(pool: NodePoolView) -> dict[str, str]:
    """Return the labels that all nodes of a NodePool have."""
    requirements = {
        each.key: each.values[0]
        for each in pool.spec.template.spec.requirements
        if each.operator == "In" and len(each.values) == 1
    }
    labels = pool.spec.template.metadata.labels
    return {**requirements, **labels, _POOL_LABEL: pool.metadata.name}


def _late(claim: NodeClaimView) -> str:
    conditions = {each.type: each for each in claim.status.conditions}
    for stage in _STAGES:
        # The first stage that is not reached explains the later ones.
        condition = conditions.get(stage)
        if condition is not None and condition.status != "True":
            known = condition.reason not in ("", stage, _NOT_LOOKED_AT)
            return f"not {stage} yet ({_because(condition)})" if known else ""
    return ""


def _pool_trouble(pool: NodePoolView) -> str:
    for condition in pool.status.conditions:
        if condition.status == "False":
            name = pool.metadata.name
            return f"NodePool {name} is not {condition.type} ({_because(condition)})"
    for resource, limit in pool.spec.limits.items():
        used = pool.status.resources.get(resource, 0)
        if _is_reached(resource, used=used, limit=limit):
            return f"NodePool {pool.metadata.name} has used up its limit of {limit} {resource}"
    return ""


def _because(condition: _Condition) -> str:
    """Return `InsufficientCapacityError: no capacity of p5.48xlarge`."""
    if condition.message in ("", condition.reason):
        return condition.reason
    return f"{condition.reason}: {condition.message}" if condition.reason else condition.message


def _is_reached(resource: str, *, used: str | int, limit: str | int) -> bool:
    try:
        return amount(resource, str(used)) >= amount(resource, str(limit))
    except ValueError:
        return False
