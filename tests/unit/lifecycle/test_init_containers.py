"""What a template runs before its command, and the volumes and variables it brings."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from drumline.controller.jobs.conversion import gang_of
from drumline.kube.pod_requests import pod_requests
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline_api.objects.builtin import PodSpec
from tests.builders import a_job, admitted, pod_manifest

Json = dict[str, Any]

SETTINGS = PodSettings(trainer_image="drumline/trainer:1", join_image="drumline/operator:1")
FETCH = {"name": "fetch", "command": ["sh", "-c"], "args": ["cp -r /in/. /out"]}
RESOURCES = {"cpu": "8", "memory": "64Gi", "rdma/hca": "1", "hugepages-2Mi": "1Gi"}


def spec_of(template: Json, **spec: Any) -> Json:
    job = admitted(a_job(template={"image": "mine:1", "command": ["train"], **template}, **spec))
    gpus = PoolGpus(resource="nvidia.com/gpu")
    return pod_manifest(job, index=0, gpus=gpus, settings=SETTINGS)["spec"]


@pytest.mark.parametrize(
    ("launch", "ours"), [("Direct", "drumline-join"), ("PerGpu", "drumline-agent")]
)
def test_what_a_template_fetches_is_there_before_the_gang_is_waited_for(
    launch: str, ours: str
) -> None:
    made = spec_of({"launch": launch, "initContainers": [FETCH]})
    assert [each["name"] for each in made["initContainers"]] == ["fetch", ours]


def test_a_command_on_a_terminal_keeps_it_when_whoever_is_connected_leaves() -> None:
    (plain,) = spec_of({})["containers"]
    (terminal,) = spec_of({"tty": True})["containers"]
    assert terminal == {**plain, "stdin": True, "tty": True}  # no stdinOnce


def test_an_init_container_is_as_restricted_as_the_command_and_has_its_home() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}}
    fetch = {**FETCH, "volumeMounts": [{"name": "data", "mountPath": "/in"}]}
    made = spec_of({"initContainers": [fetch], "volumes": [volume]}, resources=RESOURCES)
    (container,) = made["containers"]
    amounts = {"cpu": "8", "memory": "64Gi"}
    assert made["initContainers"][0] == {
        "name": "fetch",
        "image": "mine:1",
        "command": ["sh", "-c"],
        "args": ["cp -r /in/. /out"],
        "env": [{"name": "HOME", "value": "/home/drumline"}],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": container["securityContext"],
        "volumeMounts": [
            {"name": "drumline-home", "mountPath": "/home/drumline"},
            {"name": "data", "mountPath": "/in", "readOnly": False},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def test_an_image_and_a_home_of_its_own() -> None:
    fetch = {**FETCH, "image": "tools:1", "env": [{"name": "HOME", "value": "/tmp"}]}  # noqa: S108 - the pod's
    template = {"initContainers": [fetch], "imagePullPolicy": "Always", "runAsUser": 1000}
    first = spec_of(template)["initContainers"][0]
    assert (first["image"], first["env"]) == ("tools:1", fetch["env"])
    assert "imagePullPolicy" not in first
    again = {**template, "initContainers": [FETCH]}
    assert spec_of(again)["initContainers"][0]["imagePullPolicy"] == "Always"


def test_a_sidecar_starts_before_all_others_and_is_as_restricted_as_the_command() -> None:
    proxy: Json = {
        "name": "proxy",
        "image": "proxy:1",
        "args": ["--quiet"],
        "envFrom": [{"prefix": "PROXY_", "secretRef": {"name": "proxy", "optional": False}}],
        "resources": {"memory": "256Mi"},
        "volumeMounts": [{"name": "data", "mountPath": "/in"}],
    }
    volume = {"name": "data", "emptyDir": {}}
    made = spec_of({"sidecars": [proxy], "initContainers": [FETCH], "volumes": [volume]})
    (container,) = made["containers"]
    names = [each["name"] for each in made["initContainers"]]
    assert names == ["proxy", "fetch", "drumline-join"]
    assert made["initContainers"][0] == {
        "name": "proxy",
        "image": "proxy:1",
        "args": ["--quiet"],
        "env": [
            {"name": "HOME", "value": "/home/drumline"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        ],
        "envFrom": proxy["envFrom"],
        "restartPolicy": "Always",
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": container["securityContext"],
        "volumeMounts": [
            {"name": "drumline-home", "mountPath": "/home/drumline"},
            {"name": "data", "mountPath": "/in", "readOnly": False},
        ],
    }


@pytest.mark.parametrize("launch", ["Direct", "PerGpu"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("resources", [None, RESOURCES], ids=["none", "stated"])
@pytest.mark.parametrize("fetches", [[], [FETCH]], ids=["alone", "with-an-init-container"])
def test_the_scheduler_counts_sidecars_as_kubernetes_does(
    launch: str, nodes: int, resources: Json | None, fetches: list[Json]
) -> None:
    template = {
        "image": "mine:1",
        "command": ["train"],
        "launch": launch,
        "initContainers": fetches,
        "sidecars": [
            {"name": "a", "command": ["a"], "resources": {"cpu": "1500m", "memory": "1Gi"}},
            {"name": "b", "command": ["b"]},
        ],
    }
    job = admitted(a_job(nodes=nodes, template=template, resources=resources))
    gpus = PoolGpus(resource="nvidia.com/gpu")
    spec = pod_manifest(job, index=0, gpus=gpus, settings=SETTINGS)["spec"]
    counted = pod_requests(msgspec.json.decode(json.dumps(spec), type=PodSpec))
    per_pod = gang_of(job, priority=0).per_pod
    assert (per_pod.cpu_millis, per_pod.memory_bytes) == (counted["cpu"], counted["memory"])


@pytest.mark.parametrize("resources", [None, RESOURCES], ids=["none", "stated"])
def test_the_scheduler_counts_the_same_with_and_without_an_init_container(
    resources: Json | None,
) -> None:
    plain = {"image": "mine:1", "command": ["train"]}
    gangs = [
        gang_of(a_job(template={**plain, **more}, resources=resources), priority=0)
        for more in ({}, {"initContainers": [FETCH]})
    ]
    assert gangs[0].per_pod == gangs[1].per_pod


def test_variables_of_a_whole_secret_and_volumes_of_a_driver() -> None:
    source = {"prefix": "WANDB_", "secretRef": {"name": "wandb", "optional": False}}
    bucket: Json = {
        "name": "bucket",
        "csi": {
            "driver": "gcsfuse.csi.storage.gke.io",
            "readOnly": True,
            "volumeAttributes": {"bucketName": "corpus"},
            "nodePublishSecretRef": {"name": "bucket"},
        },
    }
    mount = {"name": "bucket", "mountPath": "/corpus"}
    made = spec_of({"envFrom": [source], "volumes": [bucket], "volumeMounts": [mount]})
    assert made["containers"][0]["envFrom"] == [source]
    assert bucket in made["volumes"]


def test_the_claim_of_a_pod_is_for_its_node() -> None:
    resources = {"requests": {"storage": "2Ti"}}
    spec: Json = {"storageClassName": "fast", "resources": resources}
    scratch = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    job = admitted(
        a_job(nodes=2, template={"image": "mine:1", "volumes": [scratch]}), nodes=("n1", "n2")
    )
    gpus = PoolGpus(resource="nvidia.com/gpu")
    for index, node in enumerate(("n1", "n2")):
        pod = pod_manifest(job, index=index, gpus=gpus, settings=SETTINGS)
        assert pod["spec"]["nodeName"] == node
        assert pod["spec"]["volumes"][0] == {
            "name": "scratch",
            "ephemeral": {
                "volumeClaimTemplate": {
                    "metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}},
                    "spec": {"accessModes": ["ReadWriteOnce"], **spec},
                }
            },
        }
