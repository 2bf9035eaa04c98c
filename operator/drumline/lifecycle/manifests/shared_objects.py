"""The objects that all jobs of a namespace share: a PodDisruptionBudget and a NetworkPolicy.

One of each, whatever the number of jobs: what they say of a pod is in the pod's labels. So a job
costs neither their writes nor their garbage collection, and the disruption controller, which goes
through all budgets of a namespace at each event of a pod, finds one.

They have no owner: the operator makes them before the first pod that needs them, and deletes them
once no pod does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from drumline_api.base import GROUP, LABEL_GANG_NETWORK, LABEL_PROTECTED
from drumline_contract import AGENT_PORT

Json = dict[str, Any]

SHARED_NAME: Final = "drumline-pods"
"""Name of both objects. No child of a job has it: their names contain eight digits of a uid."""
_NEVER_ENOUGH: Final = 2**31 - 1
"""Largest int32. A budget for pods of many owners must be a number."""


def shared_budget(namespace: str) -> Json:
    """Return the budget that denies the eviction of every protected pod.

    The eviction API asks `status.disruptionsAllowed`, which the disruption controller computes as
    healthy pods - minAvailable, and never below 0.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(namespace),
        "spec": {
            "minAvailable": _NEVER_ENOUGH,
            "selector": {"matchLabels": {LABEL_PROTECTED: "true"}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def shared_policy(
    namespace: str, *, operator_namespace: str, metrics_from: Sequence[Json] = ()
) -> Json:
    """Return the policy that admits the gang's own traffic, and the operator to the agents.

    Pods with agents reach each other on every port. The operator reaches the port of the agent. A
    NetworkPolicy does not cover host-network pods and RDMA. Policies add up: traffic
    that the policy of an earlier version's job allows stays allowed.

    Args:
        namespace: namespace whose pods the policy selects and admits.
        operator_namespace: namespace from which the operator connects.
        metrics_from: NetworkPolicyPeers that may scrape metrics from the agent's port.
    """
    # Pods of all gangs share one label, so one policy covers the namespace. The policy does not
    # separate jobs from each other: agents authenticate by a token.
    gangs = {"matchLabels": {LABEL_GANG_NETWORK: "true"}}
    operator = {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace),
        "spec": {
            "podSelector": gangs,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": gangs}]},
                {
                    "from": [{"namespaceSelector": operator}, *metrics_from],
                    "ports": [{"protocol": "TCP", "port": AGENT_PORT}],
                },
            ],
        },
    }


def _metadata(namespace: str) -> Json:
    labels = {"app.kubernetes.io/name": "drumline", f"{GROUP}/shared": "true"}
    return {"name": SHARED_NAME, "namespace": namespace, "labels": labels}
