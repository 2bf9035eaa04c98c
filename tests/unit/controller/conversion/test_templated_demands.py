"""Demands as ProvisioningRequests and CapacityBuffers, and what their conditions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline.controller.pools.autoscaling import demand_name, recorded_demand
from drumline.controller.pools.templated_demands import (
    answer_in,
    capacity_buffers_of,
    provisioning_request_of,
    templates_of,
)
from drumline_api.autoscaling import PoolAutoscaling
from tests.unit.controller.conversion.test_autoscaling import DEMAND, GANG, SHARE, a_spec

METADATA: dict[str, Any] = {"namespace": "ours"}
SMALL = replace(SHARE, gpus=4)
MIXED = replace(DEMAND, shares=(SHARE, SHARE, SMALL))


def asking(**changes: Any) -> PoolAutoscaling:
    spec = a_spec(**changes).autoscaling
    assert spec is not None
    return spec


def test_nodes_of_one_share_are_one_template_and_a_count() -> None:
    templates = templates_of(MIXED, gang=GANG, spec=a_spec(), metadata=METADATA, image="any:1")
    assert [count for _, count in templates] == [2, 1]
    first = templates[0][0]["template"]["spec"]
    (container,) = first["containers"]
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert first["nodeSelector"]["pool"] == "h100"


def test_one_request_asks_for_all_and_ends_by_itself() -> None:
    (request,) = provisioning_request_of(
        MIXED, counts=[2, 1], autoscaling=asking(timeoutSeconds=60), metadata=METADATA
    )
    name = demand_name(MIXED)
    assert request["spec"] == {
        "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "parameters": {"ValidUntilSeconds": "60"},
        "podSets": [
            {"podTemplateRef": {"name": f"{name}-0"}, "count": 2},
            {"podTemplateRef": {"name": f"{name}-1"}, "count": 1},
        ],
    }
    known = recorded_demand(request["metadata"]["annotations"], uid=MIXED.uid)
    assert known is not None
    assert demand_name(known) == name
    cloud = asking(mode="ProvisioningRequest", provisioningClassName="queued-provisioning.gke.io")
    (queued,) = provisioning_request_of(MIXED, counts=[3], autoscaling=cloud, metadata=METADATA)
    assert queued["spec"]["provisioningClassName"] == "queued-provisioning.gke.io"
    assert queued["spec"]["parameters"] == {}


def test_the_buffer_of_which_the_record_is_comes_last() -> None:
    buffers = capacity_buffers_of(
        MIXED, counts=[2, 1], autoscaling=asking(mode="CapacityBuffer"), metadata=METADATA
    )
    assert [buffer["spec"]["replicas"] for buffer in buffers] == [1, 2]
    records = [recorded_demand(buffer["metadata"]["annotations"], uid="u") for buffer in buffers]
    assert [record is not None for record in records] == [False, True]


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def test_what_is_final_is_said_before_what_was_granted() -> None:
    granted = condition("Provisioned", "True", "CapacityIsProvisioned", "found")
    accepted = condition("Accepted", "True", "Accepted")
    assert answer_in({}) == ""
    assert answer_in({"conditions": [accepted]}) == "Accepted=True, Accepted"
    both = [accepted, granted]
    assert answer_in({"conditions": both}) == "Provisioned=True, CapacityIsProvisioned: found"
    for kind in ("Failed", "CapacityRevoked", "BookingExpired"):
        final = condition(kind, "True", "Gone")
        assert answer_in({"conditions": [*both, final]}) == f"{kind}=True, Gone"
        not_yet = condition(kind, "False", "NotYet")
        assert answer_in({"conditions": [granted, not_yet]}).startswith("Provisioned=True")
