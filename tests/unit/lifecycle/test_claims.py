"""What is done about a claim before pods are created that mount it."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.plan.claims import (
    NO_PROVISIONER,
    ClaimFacts,
    ClaimReady,
    ClaimStep,
    ClaimUnusable,
    SelectNode,
    StorageClassFacts,
    claim_names,
    claim_step,
    missing_claim,
    pod_claim_classes,
    pod_claim_trouble,
)
from tests.builders import a_job, admitted
from tests.texts import missing

JOB = admitted(a_job(checkpoint={"claimName": "saves"}))
WAITS = StorageClassFacts(waits_for_consumer=True, provisioner="disks.example.com")
AT_ONCE = StorageClassFacts(waits_for_consumer=False, provisioner="disks.example.com")
BY_HAND = StorageClassFacts(waits_for_consumer=True, provisioner=NO_PROVISIONER)


@pytest.mark.parametrize(
    ("claim", "storage", "step"),
    [
        (ClaimFacts(name="saves", bound=True, storage_class="disks"), None, ClaimReady()),
        (ClaimFacts(name="saves", storage_class="disks"), AT_ONCE, ClaimReady()),
        (ClaimFacts(name="saves"), None, ClaimReady()),
        (ClaimFacts(name="saves", storage_class="disks"), WAITS, SelectNode(node="node-a")),
        (ClaimFacts(name="saves", selected_node="node-z"), WAITS, ClaimReady()),
    ],
    ids=["bound", "immediate", "without-a-class", "waits", "is-provisioned"],
)
def test_a_claim_is_bound_where_kube_scheduler_would_do_it(
    claim: ClaimFacts, storage: StorageClassFacts | None, step: ClaimStep
) -> None:
    assert claim_step(JOB, claim, storage) == step


def test_what_no_pod_can_use_is_named_with_its_remedy() -> None:
    local = claim_step(JOB, ClaimFacts(name="saves", storage_class="local"), BY_HAND)
    assert isinstance(local, ClaimUnusable)
    assert 'persistentvolumeclaim "saves" is not bound' in local.message
    assert "local (WaitForFirstConsumer, no provisioner)" in local.message
    assert not missing(local.remedy, "spec.volumeName")
    lost = claim_step(JOB, ClaimFacts(name="saves", lost=True, bound=True), None)
    assert isinstance(lost, ClaimUnusable)
    assert "lost its volume" in lost.message
    assert missing_claim("saves").message == 'persistentvolumeclaim "saves" not found'


def test_no_pod_starts_with_a_claim_that_is_being_deleted_or_is_for_another_pod() -> None:
    deleted = claim_step(JOB, ClaimFacts(name="saves", bound=True, deleting=True), None)
    assert isinstance(deleted, ClaimUnusable)
    assert not missing(deleted.message, "saves", "being deleted")
    block = claim_step(JOB, ClaimFacts(name="saves", bound=True, is_block=True), None)
    assert isinstance(block, ClaimUnusable)
    assert not missing(block.message, "saves", "volume mode Block")
    alone = ClaimFacts(name="saves", bound=True, for_one_pod=True)
    shared = claim_step(JOB, alone, None)
    assert isinstance(shared, ClaimUnusable)
    assert not missing(shared.message, "saves", "ReadWriteOncePod", "2 pods")
    single = admitted(a_job(nodes=1), nodes=("node-a",))
    assert claim_step(single, alone, None) == ClaimReady()


def test_a_claim_of_one_node_serves_no_job_on_several() -> None:
    alone = ClaimFacts(name="saves", bound=True, for_one_node=True)
    shared = claim_step(JOB, alone, None)
    assert isinstance(shared, ClaimUnusable)
    assert not missing(shared.message, "saves", "ReadWriteOnce", "2 nodes")
    assert not missing(shared.remedy, "ReadWriteMany")
    together = admitted(a_job(), nodes=("node-a", "node-a"))
    assert claim_step(together, alone, None) == ClaimReady()


def test_the_claims_that_a_job_names() -> None:
    data = {"model": "tiny", "data": {"claimName": "text", "path": "books"}}
    both = a_job(trainer=data, checkpoint={"claimName": "saves"})
    assert claim_names(both) == ("saves", "text")
    same = a_job(
        trainer={**data, "data": {"claimName": "saves", "path": "b"}},
        checkpoint={"claimName": "saves"},
    )
    assert claim_names(same) == ("saves",)
    assert claim_names(a_job(trainer=data, checkpoint={"bucket": "s3://saves"})) == ("text",)
    volumes: list[dict[str, Any]] = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "home"}},
        {"name": "b", "emptyDir": {}},
        {"name": "c", "secret": {"name": "keys"}},
    ]
    assert claim_names(a_job(template={"image": "any:1", "volumes": volumes})) == ("home",)
    assert claim_names(a_job()) == ()


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        (WAITS, None),
        (AT_ONCE, None),
        (BY_HAND, "no claim of volume scratch would be bound, because storage class local"),
        (None, 'storageclass "local" not found'),
    ],
    ids=["waits", "immediate", "without-provisioner", "unknown"],
)
def test_claims_of_pods_need_a_class_that_provisions(
    storage: StorageClassFacts | None, message: str | None
) -> None:
    trouble = pod_claim_trouble("scratch", "local", storage)
    if message is None:
        assert trouble is None
        return
    assert trouble is not None
    assert trouble.message.startswith(message)
    remedy = "name a StorageClass with a provisioner in volume scratch of the template"
    assert trouble.remedy == remedy


def test_the_classes_that_claims_of_pods_name() -> None:
    def claim(**spec: Any) -> dict[str, Any]:
        resources = {"requests": {"storage": "1Gi"}}
        return {"volumeClaimTemplate": {"spec": {**spec, "resources": resources}}}

    volumes: list[dict[str, Any]] = [
        {"name": "a", "ephemeral": claim()},
        {"name": "b", "ephemeral": claim(storageClassName="fast")},
        {"name": "c", "emptyDir": {}},
    ]
    job = a_job(template={"image": "any:1", "volumes": volumes})
    assert pod_claim_classes(job, default="") == (("b", "fast"),)
    assert pod_claim_classes(job, default="slow") == (("a", "slow"), ("b", "fast"))
    assert pod_claim_classes(a_job(), default="slow") == ()
