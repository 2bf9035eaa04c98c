"""Job -> pod manifests: whole manifests of both forms, then what varies."""

# ruff: noqa: S108 - folders of the pods

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of
from drumline.lifecycle.manifests.compute_domains import compute_domain
from drumline.lifecycle.manifests.containers import with_limits
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.model.hardware import PoolGpus, largest_hardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import has_channel
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.variables import RESERVED_ENV
from drumline_contract import BUCKET_VARIABLES
from drumline_contract.config import TrainerConfig
from tests.builders import a_job, admitted, pod_manifest, with_status

UID = "11111111-2222-3333-4444-555555555555"
SETTINGS = PodSettings(trainer_image="drumline/trainer:1", join_image="drumline/operator:1")
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
GPU_TOLERATIONS = [
    {"key": taint, "operator": "Exists"}
    for taint in ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
]
SILENT_KUBELET = [
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
]
"""A zombie node's pods train on; the gang finds dead ones itself."""
TEMPLATE = {"image": "mine:1", "command": ["train"]}

Json = dict[str, Any]


def manifest(
    job: Job, *, index: int = 0, settings: PodSettings = SETTINGS, gpu: str = "nvidia.com/gpu"
) -> Json:
    return pod_manifest(job, index=index, gpus=PoolGpus(resource=gpu), settings=settings)


def container(job: Job, *, settings: PodSettings = SETTINGS) -> Json:
    (only,) = manifest(job, settings=settings)["spec"]["containers"]
    return only


def security(*, read_only_root: bool) -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def agent_variables(*, index: int) -> dict[str, str]:
    return {
        "DRUMLINE_NAMESPACE": "team",
        "DRUMLINE_JOB": "llama",
        "DRUMLINE_JOB_UID": UID,
        "DRUMLINE_INDEX": str(index),
        "DRUMLINE_GPUS_PER_NODE": "2",
        "DRUMLINE_GENERATION": "1",
    }


def agent_addresses() -> list[Json]:
    fields = {"DRUMLINE_POD_UID": "metadata.uid", "DRUMLINE_POD_IP": "status.podIP"}
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]


def agent_environment(*, index: int) -> list[Json]:
    plain = agent_variables(index=index).items()
    return [{"name": name, "value": value} for name, value in plain] + agent_addresses()


def metadata(*, index: int, **annotations: str) -> Json:
    return {
        "name": f"llama-{index}-g1",
        "namespace": "team",
        "labels": {
            "drumline.dev/job": "llama",
            "drumline.dev/job-uid": UID,
            "drumline.dev/index": str(index),
            "drumline.dev/generation": "1",
            "drumline.dev/nodes": "2",
            "drumline.dev/queue": "research",
            "drumline.dev/protected": "true",
            "drumline.dev/gang-network": "true",
        },
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            **annotations,
        },
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


def test_a_pod_of_the_bundled_trainer() -> None:
    job = admitted(
        a_job(
            trainer={"model": "tiny", "data": {"claimName": "text", "path": "books"}},
            checkpoint={"claimName": "saves"},
            resources={"cpu": "4", "memory": "8Gi"},
        )
    )
    made = manifest(job, index=1)
    (trainer,) = made["spec"]["containers"]
    config = trainer["env"][8]
    assert TrainerConfig.from_dict(json.loads(config["value"])).data.source == "/data/books"
    amounts = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    assert made == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata(index=1),
        "spec": {
            "nodeName": "node-b",
            "hostname": "llama-1",
            "restartPolicy": "Never",
            "priorityClassName": "drumline-training-pods",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": POD_SECURITY,
            "tolerations": [*GPU_TOLERATIONS, *SILENT_KUBELET],
            "containers": [
                {
                    "name": "trainer",
                    "image": "trainer:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", "drumline_agent", "run"],
                    "env": [
                        *agent_environment(index=1),
                        {"name": "DRUMLINE_CONFIG", "value": config["value"]},
                        {
                            "name": "DRUMLINE_CHECKPOINT_FOLDER",
                            "value": "/checkpoints/llama-11111111",
                        },
                    ],
                    "ports": [{"name": "agent", "containerPort": 29400}],
                    "readinessProbe": {
                        "httpGet": {"path": "/readyz", "port": 29400},
                        "periodSeconds": 1,
                        "timeoutSeconds": 5,
                        "failureThreshold": 3,
                    },
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": security(read_only_root=True),
                    "volumeMounts": [
                        {"name": "tmp", "mountPath": "/tmp"},
                        {"name": "drumline-shm", "mountPath": "/dev/shm"},
                        {
                            "name": "drumline-token",
                            "mountPath": "/var/run/drumline/token",
                            "readOnly": True,
                        },
                        {"name": "checkpoints", "mountPath": "/checkpoints"},
                        {"name": "data", "mountPath": "/data", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}},
                {
                    "name": "drumline-token",
                    "secret": {"secretName": "llama-11111111-drumline-token", "defaultMode": 0o440},
                },
                {
                    "name": "checkpoints",
                    "persistentVolumeClaim": {"claimName": "saves", "readOnly": False},
                },
                {
                    "name": "data",
                    "persistentVolumeClaim": {"claimName": "text", "readOnly": True},
                },
            ],
        },
    }


def test_a_pod_of_a_template_in_a_gang() -> None:
    template = {
        "image": "mine:1",
        "imagePullPolicy": "Always",
        "imagePullSecrets": ["registry"],
        "command": ["mpirun"],
        "args": ["./train"],
        "workingDir": "/work",
        "env": [
            {"name": "MODE", "value": "fast"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
        ],
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "keys", "secret": {"name": "keys"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        ],
        "volumeMounts": [{"name": "home", "mountPath": "/home/me", "subPath": "a"}],
        "runAsUser": 1000,
        "terminationGracePeriodSeconds": 90,
        "annotations": {"example.com/team": "vision"},
        "labels": {"team": "vision"},
        "supplementalGroups": [2000, 3000],
    }
    tolerations = [{"key": "team", "operator": "Equal", "value": "vision"}]
    job = admitted(a_job(template=template, tolerations=tolerations))
    made = manifest(job)
    variables = made["spec"]["containers"][0].pop("env")
    assert variables[-2:] == [
        {"name": "MODE", "value": "fast"},
        {
            "name": "KEY",
            "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k", "optional": False}},
        },
    ]
    gpus = {"nvidia.com/gpu": "2"}
    gang = "/var/run/drumline/gang"
    assert made == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **(described := metadata(index=0, **{"example.com/team": "vision"})),
            "labels": {**described["labels"], "team": "vision"},
        },
        "spec": {
            "nodeName": "node-a",
            "hostname": "llama-0",
            "restartPolicy": "Never",
            "priorityClassName": "drumline-training-pods",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 90,
            "securityContext": {
                **POD_SECURITY,
                "runAsUser": 1000,
                "supplementalGroups": [2000, 3000],
            },
            "tolerations": [*GPU_TOLERATIONS, *tolerations],
            "imagePullSecrets": [{"name": "registry"}],
            "initContainers": [
                {
                    "name": "drumline-join",
                    "image": "drumline/operator:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": [
                        *("python3", "-m", "drumline_agent", "join"),
                        *("=".join(pair) for pair in agent_variables(index=0).items()),
                    ],
                    "env": agent_addresses(),
                    "resources": {
                        "requests": {"cpu": "500m", "memory": "128Mi"},
                        "limits": {"cpu": "500m", "memory": "128Mi"},
                    },
                    "securityContext": security(read_only_root=True),
                    "volumeMounts": [
                        {"name": "drumline-gang", "mountPath": gang},
                        {
                            "name": "drumline-token",
                            "mountPath": "/var/run/drumline/token",
                            "readOnly": True,
                        },
                    ],
                }
            ],
            "containers": [
                {
                    "name": "trainer",
                    "image": "mine:1",
                    "imagePullPolicy": "Always",
                    "command": ["mpirun"],
                    "args": ["./train"],
                    "workingDir": "/work",
                    "resources": {
                        "requests": {"cpu": "200m", "memory": "256Mi", **gpus},
                        "limits": gpus,
                    },
                    "securityContext": security(read_only_root=False),
                    "volumeMounts": [
                        {
                            "name": "home",
                            "mountPath": "/home/me",
                            "subPath": "a",
                            "readOnly": False,
                        },
                        {"name": "drumline-shm", "mountPath": "/dev/shm"},
                        {"name": "drumline-gang", "mountPath": gang, "readOnly": True},
                        {
                            "name": "drumline-gang",
                            "mountPath": "/etc/hosts",
                            "subPath": "hosts",
                            "readOnly": True,
                        },
                    ],
                }
            ],
            "volumes": [
                {
                    "name": "home",
                    "persistentVolumeClaim": {"claimName": "home", "readOnly": False},
                },
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "keys", "secret": {"secretName": "keys"}},
                {"name": "scratch", "emptyDir": {"medium": "", "sizeLimit": "1Gi"}},
                {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}},
                {"name": "drumline-gang", "emptyDir": {}},
                {
                    "name": "drumline-token",
                    "secret": {"secretName": "llama-11111111-drumline-token", "defaultMode": 0o440},
                },
            ],
        },
    }


def test_a_single_template_pod_waits_for_no_record() -> None:
    job = admitted(a_job(template=TEMPLATE, nodes=1), nodes=("node-a",))
    spec = manifest(job)["spec"]
    assert "initContainers" not in spec
    assert spec["volumes"] == [
        {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}},
        {"name": "drumline-home", "emptyDir": {}},
    ]
    assert spec["containers"][0]["volumeMounts"] == [
        {"name": "drumline-shm", "mountPath": "/dev/shm"},
        {"name": "drumline-home", "mountPath": "/home/drumline"},
    ]


def test_the_namespace_may_assign_the_user_of_pods() -> None:
    settings = dataclasses.replace(SETTINGS, user=None)
    unaffected = {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}
    for job in (a_job(), a_job(template=TEMPLATE)):
        spec = manifest(admitted(job), settings=settings)["spec"]
        assert spec["securityContext"].keys() == unaffected
    named = admitted(a_job(template={**TEMPLATE, "runAsUser": 1000}))
    security = manifest(named, settings=settings)["spec"]["securityContext"]
    assert security.keys() == unaffected | {"runAsUser"}
    another = manifest(admitted(a_job()), settings=dataclasses.replace(SETTINGS, user=70000))
    security = another["spec"]["securityContext"]
    assert [security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [70000] * 3


def test_a_users_own_shared_memory_is_not_covered() -> None:
    template = {
        **TEMPLATE,
        "volumes": [{"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        "volumeMounts": [{"name": "mem", "mountPath": "/dev/shm"}],
    }
    job = admitted(a_job(template=template, nodes=1), nodes=("node-a",))
    mounts = [mount["name"] for mount in container(job)["volumeMounts"]]
    assert mounts == ["mem", "drumline-home"]


def test_a_job_without_a_claim_has_no_checkpoint_folder() -> None:
    trainer = container(admitted(a_job()))
    assert {"name": "DRUMLINE_CHECKPOINT_FOLDER", "value": ""} in trainer["env"]
    assert "checkpoints" not in {mount["name"] for mount in trainer["volumeMounts"]}


def test_one_claim_can_hold_the_data_and_the_checkpoints() -> None:
    job = a_job(
        trainer={"data": {"claimName": "shared", "path": "texts"}},
        checkpoint={"claimName": "shared", "everySteps": 10},
    )
    spec = manifest(admitted(job))["spec"]
    claims = [
        each["persistentVolumeClaim"] for each in spec["volumes"] if "persistentVolumeClaim" in each
    ]
    assert [claim.get("readOnly", False) for claim in claims] == [False, False]
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert mounts["data"]["readOnly"]
    assert not mounts["checkpoints"].get("readOnly", False)


def test_a_template_reads_and_writes_one_claim() -> None:
    def claim(name: str, *, of: str, read_only: bool) -> Json:
        return {
            "name": name,
            "persistentVolumeClaim": {"claimName": of, "readOnly": read_only},
        }

    template = {
        **TEMPLATE,
        "volumes": [
            claim("in", of="shared", read_only=True),
            claim("out", of="shared", read_only=False),
            claim("other", of="other", read_only=True),
        ],
        "volumeMounts": [
            {"name": name, "mountPath": f"/{name}"} for name in ("in", "out", "other")
        ],
        "initContainers": [
            {
                "name": "first",
                "command": ["true"],
                "volumeMounts": [{"name": "in", "mountPath": "/in"}],
            }
        ],
    }
    spec = manifest(admitted(a_job(template=template, nodes=1), nodes=("node-a",)))["spec"]
    volumes = {
        each["name"]: each["persistentVolumeClaim"]["readOnly"]
        for each in spec["volumes"]
        if "persistentVolumeClaim" in each
    }
    assert volumes == {"in": False, "out": False, "other": True}
    for container in (*spec["initContainers"], *spec["containers"]):
        mounts = {each["name"]: each.get("readOnly", False) for each in container["volumeMounts"]}
        assert mounts.get("in", True)
        assert not mounts.get("out", False)


def test_a_job_with_a_bucket_mounts_no_claim_and_gets_its_credentials() -> None:
    spec = {"bucket": "s3://saves/team-a", "path": "runs/a"}
    trainer = container(admitted(a_job(checkpoint={**spec, "secretName": "keys"})))
    place = {"name": "DRUMLINE_CHECKPOINT_FOLDER", "value": "s3://saves/team-a/runs/a"}
    assert place in trainer["env"]
    key = {"name": "keys", "key": "AWS_SECRET_ACCESS_KEY", "optional": True}
    secret = {"name": "AWS_SECRET_ACCESS_KEY", "valueFrom": {"secretKeyRef": key}}
    assert secret in trainer["env"]
    assert "checkpoints" not in {mount["name"] for mount in trainer["volumeMounts"]}
    assert secret not in container(admitted(a_job(checkpoint=spec)))["env"]


def test_of_a_secret_only_a_buckets_credentials_become_variables() -> None:
    """A key that nobody named could be NVIDIA_VISIBLE_DEVICES: all GPUs of the node."""
    checkpoint = {"bucket": "s3://saves", "secretName": "keys"}
    trainer = container(admitted(a_job(checkpoint=checkpoint)))
    assert "envFrom" not in trainer
    named = [each["valueFrom"]["secretKeyRef"] for each in trainer["env"] if _of_secret(each)]
    assert [ref["key"] for ref in named] == list(BUCKET_VARIABLES)
    assert not {ref["key"] for ref in named} & set(RESERVED_ENV)


def test_what_the_installation_sets_is_set_once() -> None:
    region = {"name": "AWS_REGION", "value": "eu-central-1"}
    settings = dataclasses.replace(SETTINGS, trainer_pod={"env": [region]})
    job = admitted(a_job(checkpoint={"bucket": "s3://saves", "secretName": "keys"}))
    env = container(job, settings=settings)["env"]
    assert [each for each in env if each["name"] == "AWS_REGION"] == [region]


def _of_secret(variable: Json) -> bool:
    return "secretKeyRef" in variable.get("valueFrom", {})


def test_the_pools_own_gpu_resource_is_asked_for() -> None:
    spec = manifest(admitted(a_job()), gpu="nvidia.com/mig-1g.10gb")["spec"]
    resources = spec["containers"][0]["resources"]
    for amounts in (resources["requests"], resources["limits"]):
        assert [name for name in amounts if "/" in name] == ["nvidia.com/mig-1g.10gb"]


def test_a_job_on_a_partition_asks_for_that_and_guesses_no_memory() -> None:
    pool = parse(
        GpuPoolSpec, {"nodeSelector": {"a": "b"}, "hardware": {"gpu": "H100-80GB"}}, at="spec"
    )
    job = admitted(a_job(gpuPool="h100", gpuPartition="nvidia.com/mig-1g.10gb", gpusPerNode=1))
    (container,) = pod_manifest(job, index=0, gpus=PoolGpus.of(pool), settings=SETTINGS)["spec"][
        "containers"
    ]
    assert container["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": "1"}
    assert "H100" not in json.dumps(container["env"])
    assert largest_hardware(job.spec, {"h100": pool}) is None


def test_a_pod_that_gets_its_gpus_by_a_claim_is_not_bound_before() -> None:
    devices = {"driver": "gpu.nvidia.com", "deviceClassName": "gpu.nvidia.com"}
    pool = parse(GpuPoolSpec, {"nodeSelector": {"a": "b"}, "devices": devices}, at="spec")
    pod = pod_manifest(admitted(a_job()), index=1, gpus=PoolGpus.of(pool), settings=SETTINGS)
    assert "nodeName" not in pod["spec"]
    assert pod["spec"]["schedulerName"] == "drumline.dev/devices"
    assert pod["metadata"]["annotations"]["drumline.dev/node"] == "node-b"
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "2"


def test_a_pod_of_a_compute_domain_claims_a_channel_and_is_not_bound_before() -> None:
    job = admitted(a_job(computeDomain={}))
    pod = manifest(job)
    domain = compute_domain(job)
    template = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    claim = {"name": "drumline-channel", "resourceClaimTemplateName": template}
    assert pod["spec"]["resourceClaims"] == [claim]
    assert pod["spec"]["containers"][0]["resources"]["claims"] == [{"name": "drumline-channel"}]
    assert "nodeName" not in pod["spec"]
    assert pod["spec"]["schedulerName"] == "drumline.dev/devices"
    assert domain["metadata"]["ownerReferences"][0]["uid"] == job.uid
    assert "resourceClaims" not in manifest(admitted(a_job()))["spec"]


def test_a_role_without_gpus_needs_no_channel() -> None:
    evaluator = {"name": "evaluator", "nodes": 1, "gpusPerNode": 0, "command": ["true"]}
    spec = a_job(computeDomain={}, trainer=None, template={"image": "any:1"}, roles=[evaluator])
    assert [has_channel(spec.spec, index) for index in (0, 1, 2)] == [True, True, False]


def qos_class(pod: Json) -> str:
    """As the kubelet computes it: init containers count, GPUs do not."""
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    amounts = [
        (each["resources"]["requests"].get(name), each["resources"]["limits"].get(name))
        for each in containers
        for name in ("cpu", "memory")
    ]
    if all(request is not None and request == limit for request, limit in amounts):
        return "Guaranteed"
    return "Burstable" if any(request or limit for request, limit in amounts) else "BestEffort"


@pytest.mark.parametrize("form", [{}, {"template": TEMPLATE}], ids=["trainer", "template"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"cpu": "8", "memory": "64Gi"}, "Guaranteed"),
        ({"cpu": "8"}, "Burstable"),
        ({"memory": "64Gi"}, "Burstable"),
        (None, "Burstable"),
    ],
    ids=["both", "cpu", "memory", "none"],
)
def test_pods_are_guaranteed_where_cpu_and_memory_are_stated_and_never_best_effort(
    form: Json, nodes: int, resources: Json | None, expected: str
) -> None:
    names = ("node-a", "node-b")[:nodes]
    job = admitted(a_job(nodes=nodes, resources=resources, **form), nodes=names)
    assert qos_class(manifest(job)) == expected


def test_every_container_has_limits_where_the_job_states_its_own() -> None:
    """A ResourceQuota of `limits.cpu` and `limits.memory` rejects pods that lack one of them."""
    resources = {"cpu": "8", "memory": "64Gi"}
    pod = manifest(admitted(a_job(resources=resources, template=TEMPLATE)))["spec"]
    for each in (*pod["containers"], *pod["initContainers"]):
        assert {"cpu", "memory"} <= each["resources"]["limits"].keys()
    (join,) = pod["initContainers"]
    assert not float(
        Fraction(join["resources"]["requests"]["cpu"].replace("m", "/1000"))
    ).is_integer()


def test_the_platforms_additions_reach_the_bundled_trainer_only() -> None:
    additions = {
        "volumes": [{"name": "site", "persistentVolumeClaim": {"claimName": "site"}}],
        "volumeMounts": [{"name": "site", "mountPath": "/opt/site"}],
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "annotations": {"example.com/rdma": "on"},
        "tolerations": [{"key": "rdma", "operator": "Exists"}],
    }
    settings = PodSettings(trainer_image="t:1", join_image="j:1", trainer_pod=additions)
    made = manifest(admitted(a_job()), settings=settings)
    (trainer,) = made["spec"]["containers"]
    assert made["spec"]["volumes"][-1:] == additions["volumes"]
    assert trainer["volumeMounts"][-1:] == additions["volumeMounts"]
    assert trainer["env"][-1:] == additions["env"]
    assert made["metadata"]["annotations"]["example.com/rdma"] == "on"
    assert made["spec"]["tolerations"] == [
        *GPU_TOLERATIONS,
        *SILENT_KUBELET,
        *additions["tolerations"],
    ]

    own = admitted(a_job(template=TEMPLATE))
    assert manifest(own, settings=settings) == manifest(
        own, settings=PodSettings(trainer_image="t:1", join_image="j:1")
    )


@pytest.mark.parametrize(
    ("spec", "nodes", "secrets"),
    [
        ({}, 2, ["site", "mirror"]),
        ({"template": TEMPLATE}, 2, ["site", "mirror"]),
        (
            {"template": {**TEMPLATE, "imagePullSecrets": ["mirror", "mine"]}},
            2,
            ["mirror", "mine", "site"],
        ),
        ({"template": {**TEMPLATE, "imagePullSecrets": ["mine"]}}, 1, ["mine"]),
        ({"template": TEMPLATE}, 1, None),
    ],
    ids=["trainer", "joined", "joined-with-its-own", "lone-with-its-own", "lone"],
)
def test_the_platforms_pull_secrets_go_where_its_images_are_pulled(
    spec: Json, nodes: int, secrets: list[str] | None
) -> None:
    settings = PodSettings(
        trainer_image="t:1",
        join_image="j:1",
        trainer_pod={"imagePullSecrets": [{"name": "site"}, {"name": "mirror"}]},
    )
    job = admitted(a_job(nodes=nodes, **spec), nodes=("node-a", "node-b")[:nodes])
    made = manifest(job, settings=settings)["spec"].get("imagePullSecrets")
    assert made == (None if secrets is None else [{"name": name} for name in secrets])


def test_the_scheduler_places_gangs_by_the_tolerations_their_pods_carry() -> None:
    own = {"key": "team", "operator": "Equal", "value": "vision", "effect": "NoExecute"}
    job = admitted(a_job(tolerations=[own]))
    gang = gang_of(job, priority=0)
    carried = manifest(job)["spec"]["tolerations"]
    assert [each for each in carried if each not in SILENT_KUBELET] == [
        {
            name: value
            for name, value in (
                ("key", toleration.key),
                ("operator", toleration.operator.value),
                ("value", toleration.value),
                ("effect", toleration.effect and toleration.effect.value),
            )
            if value
        }
        for toleration in gang.tolerations
    ]


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        ({}, "drumline/trainer:1"),
        ({"trainer": {"image": "fork:2"}}, "fork:2"),
        ({"template": TEMPLATE}, "mine:1"),
    ],
)
def test_the_image_is_pinned_at_admission(spec: Json, image: str) -> None:
    job = a_job(**spec)
    assert image_of(job, SETTINGS) == image
    pinned = f"{image}@sha256:1"
    kept = with_status(job, job.status.model_copy(update={"image": pinned}))
    assert image_of(kept, SETTINGS) == pinned
    assert container(admitted(job, image=pinned))["image"] == pinned


def test_a_new_default_image_is_for_new_jobs_and_a_new_image_of_a_job_is_used() -> None:
    assert image_of(admitted(a_job(), image="drumline/trainer:0"), SETTINGS) == "drumline/trainer:0"
    changed = admitted(a_job(template={"image": "mine:2"}), image="mine:1@sha256:1")
    assert image_of(changed, SETTINGS) == "mine:2"


def test_every_value_is_what_json_makes_of_it() -> None:
    job = admitted(a_job(checkpoint={"claimName": "saves"}))
    assert json.loads(json.dumps(manifest(job))) == manifest(job)


@pytest.mark.parametrize(("wanted", "given"), [(20, 20), (120, 120), (3600, 120)])
def test_no_template_outlasts_the_time_that_a_preemption_gives(wanted: int, given: int) -> None:
    template = {**TEMPLATE, "terminationGracePeriodSeconds": wanted}
    job = admitted(a_job(trainer=None, template=template))
    settings = PodSettings(trainer_image="t", join_image="j", max_grace_seconds=120)
    assert manifest(job, settings=settings)["spec"]["terminationGracePeriodSeconds"] == given


HOME = {"name": "HOME", "value": "/home/drumline"}
HOME_MOUNT = {"name": "drumline-home", "mountPath": "/home/drumline"}


@pytest.mark.parametrize(
    ("template", "variables", "mounts"),
    [
        ({}, [HOME], [HOME_MOUNT]),
        (
            {"env": [{"name": "HOME", "value": "/work"}]},
            [{"name": "HOME", "value": "/work"}],
            [],
        ),
        ({"runAsUser": 1000}, [], []),
        (
            {
                "volumes": [{"name": "mine", "emptyDir": {}}],
                "volumeMounts": [{"name": "mine", "mountPath": "/home/drumline"}],
            },
            [HOME],
            [{"name": "mine", "mountPath": "/home/drumline", "readOnly": False}],
        ),
    ],
)
def test_a_template_s_default_user_has_a_home_that_it_can_write(
    template: dict[str, Any], variables: list[Any], mounts: list[Any]
) -> None:
    made = manifest(admitted(a_job(template={"image": "mine:1", **template})))["spec"]
    (container,) = made["containers"]
    assert [each for each in container["env"] if each["name"] == "HOME"] == variables
    assert [each for each in container["volumeMounts"] if "home" in each["mountPath"]] == mounts
    volumes = {volume["name"] for volume in made["volumes"]}
    assert volumes >= {each["name"] for each in mounts}
    assert ("drumline-home" in volumes) == (HOME_MOUNT in mounts)


def test_pods_get_what_their_pool_says_about_its_gpus() -> None:
    said = GpuPoolSpec.model_validate(
        {"nodeSelector": {"a": "b"}, "hardware": {"gpu": "GB200", "domainGpus": 72}}
    )
    pod = pod_manifest(admitted(a_job()), index=0, gpus=PoolGpus.of(said), settings=SETTINGS)
    environment = pod["spec"]["containers"][0]["env"]
    (text,) = [entry["value"] for entry in environment if entry["name"] == "DRUMLINE_CONFIG"]
    assert json.loads(text)["hardware"] == {"gpu": "GB200", "domain_gpus": 72}


def test_a_pod_gets_limits_where_it_states_none() -> None:
    stated = {"requests": {"cpu": "1", "memory": "1Gi", "x/y": "2"}, "limits": {"cpu": "4"}}
    free = {"requests": {"cpu": "100m", "memory": "128Mi"}}
    spec = {
        "containers": [{"name": "main", "resources": stated}],
        "initContainers": [{"name": "side", "resources": free}, {"name": "bare"}],
    }
    made = with_limits({"kind": "Pod", "spec": spec})["spec"]
    (main,), (side, bare) = made["containers"], made["initContainers"]
    assert main["resources"]["limits"] == {"cpu": "4", "memory": "1Gi"}
    assert main["resources"]["requests"] == stated["requests"]
    assert side["resources"]["limits"] == free["requests"]
    assert bare == {"name": "bare"}
