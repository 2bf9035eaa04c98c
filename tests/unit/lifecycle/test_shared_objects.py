"""The budget and the policy that all jobs of a namespace share, and which pods are in them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.pods import pod_manifests
from drumline.lifecycle.manifests.shared_objects import shared_budget, shared_policy
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from tests.builders import a_job, admitted, pod_manifest

GPUS = PoolGpus(resource="nvidia.com/gpu")
SETTINGS = PodSettings(trainer_image="t:1", join_image="j:1")
METADATA = {
    "name": "drumline-pods",
    "namespace": "team",
    "labels": {"app.kubernetes.io/name": "drumline", "drumline.dev/shared": "true"},
}


def labels_of(job: Job) -> dict[str, str]:
    job = admitted(job, nodes=tuple(f"node-{index}" for index in range(job.spec.nodes)))
    pod = pod_manifest(job, index=0, gpus=GPUS, settings=SETTINGS)
    return pod["metadata"]["labels"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() == {"matchLabels"}
    return selector["matchLabels"].items() <= labels.items()


def test_no_number_of_pods_satisfies_the_budget() -> None:
    assert shared_budget("team") == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": METADATA,
        "spec": {
            "minAvailable": 2147483647,
            "selector": {"matchLabels": {"drumline.dev/protected": "true"}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def test_the_policy_admits_pods_with_agents_and_on_the_agents_port_the_operator() -> None:
    gangs = {"matchLabels": {"drumline.dev/gang-network": "true"}}
    operator = {"matchLabels": {"kubernetes.io/metadata.name": "drumline-system"}}
    assert shared_policy("team", operator_namespace="drumline-system") == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": METADATA,
        "spec": {
            "podSelector": gangs,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": gangs}]},
                {
                    "from": [{"namespaceSelector": operator}],
                    "ports": [{"protocol": "TCP", "port": 29400}],
                },
            ],
        },
    }


def test_the_platform_names_further_peers_of_the_agents_port() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    policy = shared_policy("team", operator_namespace="drumline-system", metrics_from=[prometheus])
    gang, agent = policy["spec"]["ingress"]
    assert prometheus not in gang["from"]
    assert agent["from"][1:] == [prometheus]
    assert agent["ports"] == [{"protocol": "TCP", "port": 29400}]


@pytest.mark.parametrize("nodes", [1, 2, 8])
def test_the_budget_selects_the_pods_of_small_gangs(nodes: int) -> None:
    assert selects(shared_budget("team")["spec"]["selector"], labels_of(a_job(nodes=nodes)))


@pytest.mark.parametrize(("nodes", "own"), [(9, False), (2, True)])
def test_a_pod_that_has_a_budget_of_its_own_is_not_in_the_shared_one(nodes: int, own: bool) -> None:
    job = admitted(
        a_job(nodes=nodes, trainer={"globalBatchSize": 36}), nodes=tuple("abcdefghi"[:nodes])
    )
    (pod,) = pod_manifests(
        job,
        indices=[0],
        gpus=GPUS,
        settings=SETTINGS,
        own_budget=own,
    )
    labels = pod["metadata"]["labels"]
    assert not selects(shared_budget("team")["spec"]["selector"], labels)


def test_a_drain_may_take_a_pod_whose_label_says_so() -> None:
    labels = {**labels_of(a_job(nodes=2)), "drumline.dev/protected": "false"}
    assert not selects(shared_budget("team")["spec"]["selector"], labels)


def test_the_policy_shields_pods_with_agents_and_leaves_a_lone_template_alone() -> None:
    selector = shared_policy("team", operator_namespace="o")["spec"]["podSelector"]
    assert selects(selector, labels_of(a_job(nodes=2)))
    assert selects(selector, labels_of(a_job(nodes=1, trainer={"globalBatchSize": 12})))
    lone = a_job(nodes=1, template={"image": "any:1"}, trainer=None)
    assert not lone.has_agents
    assert not selects(selector, labels_of(lone))
