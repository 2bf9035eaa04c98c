"""The objects beside the pods that are a job's own."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from drumline.lifecycle.manifests.children import (
    child_name,
    disruption_budget,
    job_token,
    owner_reference,
    token_secret,
)
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from tests.builders import a_job, admitted, pod_manifest

UID = "11111111-2222-3333-4444-555555555555"
METADATA = {
    "name": "llama-11111111",
    "namespace": "team",
    "labels": {"drumline.dev/job": "llama", "drumline.dev/job-uid": UID},
    "ownerReferences": [
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "llama",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ],
}


def test_the_job_owns_them_and_its_deletion_never_waits() -> None:
    assert [owner_reference(a_job())] == METADATA["ownerReferences"]


def test_a_namesakes_children_have_other_names() -> None:
    first, second = a_job(), replace(a_job(), uid="99999999-2222-3333-4444-555555555555")
    assert child_name(first) != child_name(second)


def test_the_token_secret() -> None:
    secret = token_secret(a_job(), b"the token")
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {**METADATA, "name": f"{METADATA['name']}-drumline-token"},
        "type": "Opaque",
        "immutable": True,
        "data": {"token": base64.b64encode(b"the token").decode()},
    }


def test_the_token_follows_from_key_and_job_alone() -> None:
    token = job_token(b"key", UID)
    assert token == job_token(b"key", UID)
    assert len({token, job_token(b"other key", UID), job_token(b"key", "another job")}) == 3
    assert b"key" not in token


def test_the_disruption_budget_lets_no_member_go() -> None:
    assert disruption_budget(a_job(nodes=4)) == {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {**METADATA, "name": "llama-11111111-4"},
        "spec": {
            "minAvailable": 4,
            "selector": {"matchLabels": {"drumline.dev/job-uid": UID, "drumline.dev/nodes": "4"}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


@pytest.mark.parametrize(("evictable", "available"), [(0, 4), (1, 3), (4, 0), (9, 0)])
def test_the_disruption_budget_lets_members_go_whose_nodes_announce_their_end(
    evictable: int, available: int
) -> None:
    job = admitted(a_job(nodes=4), nodes=("a", "b", "c", "d"))
    opened = disruption_budget(job, evictable=evictable)
    assert opened["spec"]["minAvailable"] == available
    assert opened["metadata"] == disruption_budget(job)["metadata"]


def test_the_budget_of_a_gang_that_runs_smaller_counts_the_members_it_has() -> None:
    job = admitted(a_job(nodes=4, minNodes=2, trainer={"globalBatchSize": 12}), nodes=("a", "b"))
    assert disruption_budget(job)["spec"]["minAvailable"] == 4
    assert disruption_budget(job, evictable=1)["spec"]["minAvailable"] == 1


def test_each_size_has_its_own_budget_and_each_pod_a_single_budget() -> None:
    small, large = (disruption_budget(a_job(nodes=nodes)) for nodes in (2, 4))
    assert small["metadata"]["name"] != large["metadata"]["name"]
    settings = PodSettings(trainer_image="t:1", join_image="j:1")
    pod = pod_manifest(
        admitted(a_job(nodes=2)),
        index=0,
        gpus=PoolGpus(resource="nvidia.com/gpu"),
        settings=settings,
    )
    labels = pod["metadata"]["labels"].items()
    selected = [
        budget["spec"]["selector"]["matchLabels"].items() <= labels for budget in (small, large)
    ]
    assert selected == [True, False]
