"""What a pool's administrator adds to its pods, and what stays whatever he says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.model.hardware import PoolGpus
from drumline_api.base import LABEL_JOB
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from tests.builders import a_job, admitted, pod_manifest

Json = dict[str, Any]

SETTINGS = PodSettings(trainer_image="drumline/trainer:1", join_image="drumline/operator:1")
EXAMPLES = Path(__file__).parents[3] / "examples"
TEMPLATE = {"image": "mine:1", "command": ["train"]}
FORMS: list[Json] = [{}, {"template": TEMPLATE}, {"template": {**TEMPLATE, "launch": "PerGpu"}}]
each_form = pytest.mark.parametrize("form", FORMS, ids=["trainer", "direct", "supervised"])


def pod(profile: Json | None, **spec: Any) -> Json:
    said = {"nodeSelector": {"a": "b"}, **({"podProfile": profile} if profile else {})}
    gpus = PoolGpus.of(parse(GpuPoolSpec, said))
    return pod_manifest(admitted(a_job(**spec)), index=0, gpus=gpus, settings=SETTINGS)


def profile_of(example: str) -> Json:
    return yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())["spec"]["podProfile"]


@each_form
def test_an_empty_profile_changes_nothing(form: Json) -> None:
    assert pod({}, **form) == pod(None, **form)


@each_form
def test_the_daemon_of_a_network_starts_before_the_gang_is_waited_for(form: Json) -> None:
    plain, made = pod(None, **form), pod(profile_of("gpupool-a3-mega"), **form)
    daemon, *rest = made["spec"]["initContainers"]
    assert rest == plain["spec"].get("initContainers", [])
    script = daemon.pop("args")
    assert "entrypoint_rxdm_container.sh" in script[0]
    assert daemon == {
        "name": "tcpxo-daemon",
        "image": "registry.example.com/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21",
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "command": ["/bin/sh", "-c"],
        "env": [{"name": "LD_LIBRARY_PATH", "value": "/usr/local/nvidia/lib64"}],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": False,
            "capabilities": {"add": ["NET_ADMIN", "NET_BIND_SERVICE"]},
        },
        "volumeMounts": [
            {"name": f"drumline-pool-{name}", "mountPath": path, "readOnly": False}
            for name, path in (
                ("libraries", "/usr/local/nvidia"),
                ("sys", "/hostsysfs"),
                ("proc-sys", "/hostprocsysfs"),
            )
        ],
    }


@each_form
def test_the_training_container_gets_devices_capabilities_and_variables(form: Json) -> None:
    plain, made = pod(None, **form)["spec"], pod(profile_of("gpupool-a3-mega"), **form)["spec"]
    (before,), (after,) = plain["containers"], made["containers"]
    assert after["env"][2:] == before["env"]
    assert [variable["name"] for variable in after["env"][:2]] == [
        "LD_LIBRARY_PATH",
        "NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY",
    ]
    assert after["volumeMounts"] == [
        *before["volumeMounts"],
        {
            "name": "drumline-pool-aperture-devices",
            "mountPath": "/dev/aperture_devices",
            "readOnly": False,
        },
    ]
    assert after["securityContext"] == {
        **before["securityContext"],
        "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
    }
    assert made["volumes"][: len(plain["volumes"])] == plain["volumes"]
    assert made["volumes"][-1] == {
        "name": "drumline-pool-aperture-devices",
        "hostPath": {"path": "/dev/aperture_devices", "type": "Directory"},
    }
    user = {"runAsUser": 0, "runAsNonRoot": False}
    assert made["securityContext"] == {**plain["securityContext"], **user}


@each_form
def test_what_a_profile_says_of_the_pod_as_a_whole(form: Json) -> None:
    spec = pod(
        {
            "serviceAccountName": "training",
            "runtimeClassName": "nvidia",
            "imagePullSecrets": ["site"],
            "runAsUser": 1000,
        },
        **form,
    )["spec"]
    assert (spec["serviceAccountName"], spec["runtimeClassName"]) == ("training", "nvidia")
    assert spec["imagePullSecrets"] == [{"name": "site"}]
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (
        1000,
        True,
    )
    assert spec["automountServiceAccountToken"] is False


def test_annotations_and_labels_of_the_pool_go_before_those_of_a_job_but_not_before_ours() -> None:
    template = {
        **TEMPLATE,
        "annotations": {"example.com/networks": "all", "mine": "a"},
        "labels": {"cost": "theirs", "mine": "b"},
    }
    profile = {
        "annotations": {"example.com/networks": "rdma"},
        "labels": {"cost": "pool", LABEL_JOB: "another"},
    }
    metadata = pod(profile, template=template)["metadata"]
    annotations, labels = metadata["annotations"], metadata["labels"]
    assert (annotations["example.com/networks"], annotations["mine"]) == ("rdma", "a")
    assert (labels["cost"], labels["mine"], labels[LABEL_JOB]) == ("pool", "b", "llama")


def test_a_job_s_own_variable_counts_instead_of_the_pool_s() -> None:
    profile = {"env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}, {"name": "A", "value": "1"}]}
    template = {**TEMPLATE, "env": [{"name": "NCCL_IB_HCA", "value": "mlx5_0"}]}
    (container,) = pod(profile, template=template)["spec"]["containers"]
    values = [each["value"] for each in container["env"] if each["name"] == "NCCL_IB_HCA"]
    assert values == ["mlx5_0"]
    assert container["env"][0] == {"name": "A", "value": "1"}


def test_a_job_that_names_a_volume_as_the_pool_does_has_its_own() -> None:
    profile = {"volumes": [{"name": "data", "hostPath": {"path": "/mnt/nvme"}}]}
    template: Json = {**TEMPLATE, "volumes": [{"name": "data", "emptyDir": {}}]}
    names = [volume["name"] for volume in pod(profile, template=template)["spec"]["volumes"]]
    assert len(names) == len(set(names))
    assert {"data", "drumline-pool-data"} <= set(names)


@pytest.mark.parametrize("example", ["gpupool-a3-mega", "gpupool-efa", "gpupool-infiniband"])
def test_the_profiles_of_the_examples_are_read(example: str) -> None:
    made = pod(profile_of(example))
    (container,) = made["spec"]["containers"]
    assert {variable["name"] for variable in container["env"]} >= {
        variable["name"] for variable in profile_of(example)["env"]
    }
