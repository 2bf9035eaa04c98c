"""What Karpenter's NodeClaims and NodePools say of the nodes of a GpuPool -> a sentence.

A NodeClaim is a node that was ordered. It is Launched (the cloud has it), Registered (its kubelet
has joined) and then Initialized (Ready, without startup taints, with its resources). What is first
not so is what its node waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from drumline.kube.quantity import amount

_STAGES: Final = ("Launched", "Registered", "Initialized")
_NOT_LOOKED_AT: Final = "AwaitingReconciliation"
"""Karpenter's reason of a condition that it has not worked out yet."""
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
    """A node that was ordered."""

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
    """What kind of nodes may be ordered, and how many."""

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
    """What keeps nodes of a GpuPool from coming, by what Karpenter says; '' for nothing.

    Args:
        claims: all there are.
        pools: all there are.
        selector: labels of the GpuPool's nodes.
    """
    ours = [pool for pool in pools if _labels_of(pool).items() >= selector.items()]
    names = {pool.metadata.name for pool in ours}
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
    return next((text for pool in ours if (text := _pool_trouble(pool))), "")


def _labels_of(pool: NodePoolView) -> dict[str, str]:
    """Those that all its nodes have."""
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
    """`InsufficientCapacityError: no capacity of p5.48xlarge`."""
    if condition.message in ("", condition.reason):
        return condition.reason
    return f"{condition.reason}: {condition.message}" if condition.reason else condition.message


def _is_reached(resource: str, *, used: str | int, limit: str | int) -> bool:
    try:
        return amount(resource, str(used)) >= amount(resource, str(limit))
    except ValueError:
        return False
