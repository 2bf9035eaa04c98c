"""The real Karpenter ends a real node under a job that trains, which loses no step.

`make test-all WHAT=karpenter-nodes`. Karpenter's kwok provider makes Node objects without kubelets.
Here it never makes one: its NodeClaim waits for a node to register with the claim's provider id,
and a node with a real kubelet is given that. From then on Karpenter takes the node for its own: it
labels it, puts its finalizer on it, and ends it as it ends any other: here as expired.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.rehearsals import REHEARSED, Outcome, Rehearsal, rehearse
from tests.e2e.site import OPERATOR_NODE, Site
from tests.integration.operator.karpenter.program import (
    ensure_karpenter,
    install_crds,
    instance_type,
    start_karpenter,
)
from tests.kube import Json, Kube
from tools.cluster import Cluster

pytestmark = pytest.mark.timeout(1800)  # the first test starts cluster, operator and Karpenter
NEVER = "8760h"
"""For the node that the kwok provider would make: this one waits for ours."""
EXPIRE_SECONDS = 20
GRACE_SECONDS = 120
PATIENCE_SECONDS = 240.0
POOL = "real"
CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "real"}
TYPE = instance_type(
    "real-2",
    {"cpu": "4", "memory": "8Gi", "pods": "110", "nvidia.com/gpu": "2"},
    price=1.0,
    zones=["zone-a"],
    capacities=["on-demand"],
)
TYPE_REQUIREMENT: Json = {
    "key": "node.kubernetes.io/instance-type",
    "operator": "In",
    "values": [TYPE["name"]],
}


@pytest.fixture(scope="module")
def karpenter(cluster: Cluster, drumline: Kube) -> Kube:
    """Karpenter runs beside the operator, with a NodePool that orders nothing by itself."""
    folder = ensure_karpenter(say=print)
    install_crds(drumline, folder)
    drumline.create(
        {
            "apiVersion": "karpenter.kwok.sh/v1alpha1",
            "kind": "KWOKNodeClass",
            "metadata": {"name": CLASS["name"]},
            "spec": {"nodeRegistrationDelay": NEVER},
        }
    )
    drumline.create(
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": POOL},
            "spec": {
                "template": {"spec": {"nodeClassRef": CLASS, "requirements": [TYPE_REQUIREMENT]}},
                "limits": {"cpu": "0"},
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            },
        }
    )
    start_karpenter(
        folder / "karpenter",
        folder=cluster.folder,
        kubeconfig=cluster.kubeconfig,
        types=[TYPE],
    )
    return drumline


def give_to_karpenter(kube: Kube, node: str) -> None:
    """A NodeClaim whose node this one is; it expires soon."""
    name = f"claim-{node}"
    kube.create(
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": name, "labels": {"karpenter.sh/nodepool": POOL}},
            "spec": {
                "nodeClassRef": CLASS,
                "requirements": [TYPE_REQUIREMENT],
                "resources": {"requests": {"nvidia.com/gpu": "2"}},
                "expireAfter": f"{EXPIRE_SECONDS}s",
                "terminationGracePeriod": f"{GRACE_SECONDS}s",
            },
        }
    )

    def is_launched(claim: Json | None) -> bool:
        return bool((claim or {}).get("status", {}).get("providerID"))

    claim = kube.wait("nodeclaims", name, None, is_launched, seconds=PATIENCE_SECONDS)
    assert claim is not None
    kube.patch("nodes", node, {"spec": {"providerID": claim["status"]["providerID"]}})


@pytest.fixture(scope="module")
def moved(stage: Site, karpenter: Kube) -> tuple[Rehearsal, str]:
    """A job whose node has expired and is gone, and the node."""
    job = rehearse(stage, "expired", pace_seconds=0.2, every_steps=1000, **REHEARSED)
    job.reach(5)
    node = min({pod["spec"]["nodeName"] for pod in job.members().values()} - {OPERATOR_NODE})
    give_to_karpenter(karpenter, node)

    def is_karpenters(json: Json | None) -> bool:
        labels = (json or {}).get("metadata", {}).get("labels", {})
        return json is None or "karpenter.sh/registered" in labels

    stage.kube.wait("nodes", node, None, is_karpenters, seconds=PATIENCE_SECONDS)
    stage.kube.wait("nodes", node, None, lambda each: each is None, seconds=PATIENCE_SECONDS)
    job.goes_on()
    job.hurry()
    job.finish()
    return job, node


def test_a_node_that_karpenter_ends_costs_no_step(
    moved: tuple[Rehearsal, str], undisturbed: Outcome
) -> None:
    job, _ = moved
    done = Counter(step for step, _ in job.written())
    assert {step: times for step, times in done.items() if times > 1} == {}
    assert job.outcome() == undisturbed


def test_the_job_saved_and_moved_before_karpenter_would_have_killed_its_pod(
    moved: tuple[Rehearsal, str],
) -> None:
    job, node = moved
    status = job.site.wait(job.name, lambda json: json is not None)["status"]
    incident = status["lastIncident"]
    assert incident["faultClass"] == "Preemption"
    assert f"of node {node}" in incident["cause"]
    assert status["restarts"] == 0
