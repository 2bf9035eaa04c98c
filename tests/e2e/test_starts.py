"""Starts that real kubelets refuse or delay: what status says, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.site import Site
from tests.kube import Json, phase_is, reason_is

pytestmark = pytest.mark.extended(keep=2, of="commands in pods")

MOUNT = {"name": "volume", "mountPath": "/volume"}
ONE_START = {"maxFailedStarts": 1}


def template(**more: Any) -> Json:
    """A program that ends at once."""
    return {"image": "drumline/trainer:dev", "command": ["true"], **more}


@pytest.mark.parametrize("kind", ["secret", "configMap"])
def test_a_misspelt_volume_is_told_in_the_kubelets_words_and_fails_the_job(
    site: Site, kind: str
) -> None:
    volume = {"name": "volume", kind: {"name": "misspelt"}}
    mounts = template(volumes=[volume], volumeMounts=[MOUNT])
    name = f"mount-{kind.lower()}"
    site.submit(name, nodes=1, gpusPerNode=1, template=mounts, recovery=ONE_START)
    blocked = site.wait(name, reason_is("StartBlocked"))
    sentence = f'{kind.lower()} "misspelt" not found'
    assert sentence in blocked["status"]["message"]
    failed = site.wait(name, phase_is("Failed"))
    assert failed["status"]["reason"] == "StartFailed"
    assert sentence in failed["status"]["message"]


def test_a_misspelt_key_and_an_image_that_is_not_there(site: Site) -> None:
    source = {"secretKeyRef": {"name": "misspelt", "key": "token"}}
    for name, its_template, sentence in (
        (
            "key",
            template(env=[{"name": "TOKEN", "valueFrom": source}]),
            'CreateContainerConfigError: secret "misspelt" not found',
        ),
        (
            "image",
            template(image="drumline/misspelt:dev", imagePullPolicy="Never"),
            "ErrImageNeverPull",
        ),
    ):
        site.submit(name, nodes=1, gpusPerNode=1, template=its_template, recovery=ONE_START)
        failed = site.wait(name, phase_is("Failed"))
        assert failed["status"]["reason"] == "StartFailed"
        assert sentence in failed["status"]["message"]


def test_a_claim_that_waits_for_its_first_consumer_is_provisioned_and_mounted(site: Site) -> None:
    """The test is the provisioner: it makes the volume once the claim has its node."""
    site.kube.ensure(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "drumline-test-waits"},
            "provisioner": "drumline.test/none",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    capacity = {"storage": "1Gi"}
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "late", "namespace": site.namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": capacity},
                "storageClassName": "drumline-test-waits",
            },
        }
    )
    volume = {"name": "volume", "persistentVolumeClaim": {"claimName": "late"}}
    mounts = template(volumes=[volume], volumeMounts=[MOUNT])
    site.submit("consumer", nodes=1, gpusPerNode=1, template=mounts)

    def has_node(claim: Json | None) -> bool:
        annotations = (claim or {}).get("metadata", {}).get("annotations") or {}
        return "volume.kubernetes.io/selected-node" in annotations

    site.kube.wait("persistentvolumeclaims", "late", site.namespace, has_node)
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{site.namespace}-late"},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": capacity,
                "claimRef": {"namespace": site.namespace, "name": "late"},
                "hostPath": {"path": str(site.checkpoints)},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "drumline-test-waits",
            },
        }
    )
    site.finish("consumer")
