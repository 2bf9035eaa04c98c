"""What a template's pods may bring is what the API server accepts, on nodes that the job wants."""

from __future__ import annotations

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Json, phase_is

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]

TEMPLATE: Json = {
    "image": "any:1",
    "command": ["train"],
    "initContainers": [{"name": "fetch", "command": ["fetch"]}],
    "sidecars": [{"name": "proxy", "image": "proxy:1", "resources": {"cpu": "1"}}],
    "envFrom": [{"prefix": "WANDB_", "secretRef": {"name": "wandb", "optional": True}}],
    "volumes": [
        {
            "name": "bucket",
            "csi": {"driver": "bucket.example.com", "volumeAttributes": {"bucketName": "corpus"}},
        }
    ],
    "volumeMounts": [{"name": "bucket", "mountPath": "/corpus"}],
}


def test_a_restricted_namespace_accepts_what_a_template_brings(site: Site) -> None:
    driver: Json = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver"}
    driver["metadata"] = {"name": "bucket.example.com"}
    site.kube.ensure({**driver, "spec": {"volumeLifecycleModes": ["Ephemeral"]}})
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.kube.patch("namespaces", site.namespace, {"metadata": {"labels": labels}})
    site.submit("own", gpusPerNode=8, template=TEMPLATE)
    site.wait("own", phase_is("Running"))
    (pod,) = site.pods("own")
    proxy, fetch = pod["spec"]["initContainers"]
    assert (proxy["name"], proxy["restartPolicy"], fetch["name"]) == ("proxy", "Always", "fetch")
    assert pod["spec"]["containers"][0]["envFrom"][0]["prefix"] == "WANDB_"


def test_a_gang_keeps_away_from_the_nodes_that_it_names(site: Site) -> None:
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(site.nodes[:2])}
    affinity = {"required": [{"matchExpressions": [away]}]}
    site.submit("nowhere", nodes=3, gpusPerNode=8, nodeAffinity=affinity)

    def says(job: Json | None) -> bool:
        return "2 outside the job's node affinity" in (job or {}).get("status", {}).get(
            "message", ""
        )

    site.wait("nowhere", says)
    site.submit("away", nodes=2, gpusPerNode=8, nodeAffinity=affinity)
    site.kube.wait_all(
        "pods",
        site.namespace,
        lambda pods: {pod["spec"]["nodeName"] for pod in pods} == set(site.nodes[2:]),
        labels="drumline.dev/job=away",
    )
