"""Of what Karpenter says, what keeps a pool's nodes from coming."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline.controller.pools.karpenter import decode_claim, decode_pool, trouble_of

SELECTOR = {"example.com/pool": "h100"}
Json = dict[str, Any]


def condition(type_: str, status: str, reason: str = "", message: str = "") -> Json:
    return {"type": type_, "status": status, "reason": reason, "message": message}


def a_claim(*conditions: Json, **labels: str) -> Json:
    metadata = {"name": "gpu-1", "labels": labels or SELECTOR}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": list(conditions)}}


def a_pool(*conditions: Json, labels: Json = SELECTOR, limit: str = "16", used: str = "8") -> Json:
    return {
        "metadata": {"name": "gpu"},
        "spec": {
            "template": {"metadata": {"labels": labels}, "spec": {"requirements": []}},
            "limits": {"nvidia.com/gpu": limit, "cpu": "1k"},
        },
        "status": {"conditions": list(conditions), "resources": {"nvidia.com/gpu": used}},
    }


def trouble(*, claims: tuple[Json, ...] = (), pools: tuple[Json, ...] = ()) -> str:
    return trouble_of(
        claims=[decode_claim(json.dumps(each)) for each in claims],
        pools=[decode_pool(json.dumps(each)) for each in pools],
        selector=SELECTOR,
    )


LAUNCHED = condition("Launched", "True")
NO_CAPACITY = condition("Launched", "Unknown", "InsufficientCapacityError", "no p5.48xlarge left")
TAINTED = condition("Initialized", "Unknown", "StartupTaintsExist", "Taint a/b still exists")


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        (
            (a_claim(NO_CAPACITY),),
            "1 NodeClaim is not Launched yet (InsufficientCapacityError: no p5.48xlarge left)",
        ),
        (
            (a_claim(NO_CAPACITY), *[a_claim(LAUNCHED, TAINTED)] * 2),
            "2 NodeClaims are not Initialized yet (StartupTaintsExist: Taint a/b still exists)",
        ),
        ((a_claim(LAUNCHED, condition("Registered", "Unknown", "AwaitingReconciliation")),), ""),
        ((a_claim(LAUNCHED, condition("Registered", "True")),), ""),
        ((a_claim(NO_CAPACITY, other="pool"),), ""),
        ((a_claim(),), ""),
    ],
)
def test_the_first_stage_that_a_claim_has_not_reached_is_said(
    claims: tuple[Json, ...], said: str
) -> None:
    assert trouble(claims=claims) == said


def test_a_claim_is_known_by_its_node_pool_before_the_cloud_has_labelled_it() -> None:
    claim = a_claim(NO_CAPACITY, **{"karpenter.sh/nodepool": "gpu"})
    assert "InsufficientCapacityError" in trouble(claims=(claim,), pools=(a_pool(),))
    assert trouble(claims=(claim,), pools=(a_pool(labels={}),)) == ""


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (a_pool(used="16"), "NodePool gpu has used up its limit of 16 nvidia.com/gpu"),
        (a_pool(used="15"), ""),
        (a_pool(limit="many"), ""),
        (
            a_pool(condition("NodeClassReady", "False", "NodeClassNotFound")),
            "NodePool gpu is not NodeClassReady (NodeClassNotFound)",
        ),
        (a_pool(used="16", labels={"other": "pool"}), ""),
    ],
)
def test_what_a_node_pool_lacks_is_said(pool: Json, said: str) -> None:
    assert trouble(pools=(pool,)) == said
