"""Job -> pod manifests: metadata, scheduling and security. The containers are in `containers`.

Pods are bound at creation (`spec.nodeName`), restricted (non-root, no capabilities, RuntimeDefault
seccomp), carry no service-account token, and are never restarted by the kubelet: the agent or the
operator decides what a failure means.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from drumline.api.base import (
    LABEL_GENERATION,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_NODES,
    LABEL_QUEUE,
)
from drumline.api.podtemplate import PodTemplate, Volume
from drumline.lifecycle.manifests.children import child_name, owner_reference
from drumline.lifecycle.manifests.environment import launcher_variables
from drumline.lifecycle.manifests.trainer_config import (
    CHECKPOINT_FOLDER,
    DATA_FOLDER,
    checkpoint_folder,
    trainer_config,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline_trainer.contract import (
    AGENT_PORT,
    GANG_FOLDER,
    TOKEN_FILE,
    Env,
    host_name,
    pod_name,
)

Json = dict[str, Any]

TRAINER_CONTAINER = "trainer"
JOIN_CONTAINER = "drumline-join"
JOIN_REQUESTS = {"cpu": "100m", "memory": "64Mi"}
USER_ID = 65532
_SILENT_KUBELET = tuple(
    {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute"}
    for state in ("not-ready", "unreachable")
)
"""Without these Kubernetes evicts after five minutes. A kubelet may be dead while its pods train; if
the pods are dead too, their peers report it within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the operator's installation decides about every pod."""

    trainer_image: str
    join_image: str
    """The operator's own image: it contains the standard-library agent that waits for the gang."""
    priority_class: str = "drumline-training-pods"
    operator_namespace: str = "drumline-system"
    trainer_pod: Json = field(default_factory=dict[str, Any])
    """Platform additions to pods of the bundled trainer: volumes, volumeMounts, env, annotations,
    tolerations, imagePullSecrets. The last also where the join image is pulled."""
    metrics_from: list[Json] = field(default_factory=list[Json])
    """NetworkPolicyPeers that may read the agents' metrics."""


def image_of(job: Job, settings: PodSettings) -> str:
    """The main container's image; the image pinned in status at admission wins over a new default."""
    if job.status.image:
        return job.status.image
    if job.spec.template is not None:
        return job.spec.template.image
    assert job.spec.trainer is not None  # noqa: S101 - CEL and `InvalidConfig` keep one of the two
    return job.spec.trainer.image or settings.trainer_image


def pod_manifests(
    job: Job, *, indices: Collection[int], gpu_resource: str, settings: PodSettings
) -> list[Json]:
    """The pods of the members with these indices, each bound to its node. O(members)."""
    chosen = frozenset(indices)
    return [
        _manifest(job, member, gpu_resource=gpu_resource, settings=settings)
        for member in members_of(job.status)
        if member.index in chosen
    ]


def pod_manifest(job: Job, *, index: int, gpu_resource: str, settings: PodSettings) -> Json:
    """The pod of one member."""
    (manifest,) = pod_manifests(job, indices=(index,), gpu_resource=gpu_resource, settings=settings)
    return manifest


def _manifest(job: Job, member: GangMember, *, gpu_resource: str, settings: PodSettings) -> Json:
    template = job.spec.template
    extra = settings.trainer_pod if job.runs_trainer else {}
    annotations = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
        **((template.annotations if template else None) or {}),
        **extra.get("annotations", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(job.name, member.index, member.pod_generation),
            "namespace": job.namespace,
            "labels": {
                LABEL_JOB: job.name,
                LABEL_JOB_UID: job.uid,
                LABEL_INDEX: str(member.index),
                LABEL_GENERATION: str(member.pod_generation),
                LABEL_NODES: str(job.spec.nodes),
                LABEL_QUEUE: job.spec.queue,
            },
            "annotations": annotations,
            "ownerReferences": [owner_reference(job)],
        },
        "spec": {
            "nodeName": member.node,
            "hostname": host_name(job.name, member.index),
            "restartPolicy": "Never",
            "priorityClassName": settings.priority_class,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace_seconds(job),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": (template.run_as_user if template else None) or USER_ID,
                "runAsGroup": USER_ID,
                "fsGroup": USER_ID,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": _tolerations(job, extra),
            **_containers(job, member, gpu_resource=gpu_resource, settings=settings),
        },
    }


def _containers(job: Job, member: GangMember, *, gpu_resource: str, settings: PodSettings) -> Json:
    resources = _resources(job, gpu_resource)
    if job.spec.template is None:
        return _trainer_containers(job, member, resources=resources, settings=settings)
    return _template_containers(
        job, job.spec.template, member, resources=resources, settings=settings
    )


def _trainer_containers(
    job: Job, member: GangMember, *, resources: Json, settings: PodSettings
) -> Json:
    spec, extra = job.spec, settings.trainer_pod
    volumes: list[Json] = [_scratch("tmp"), _shared_memory(), _token_volume(job)]
    mounts: list[Json] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        {"name": "drumline-shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        _token_mount(),
    ]
    if spec.checkpoint is not None:
        volumes.append(_claim("checkpoints", spec.checkpoint.claim_name, read_only=False))
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_FOLDER})
    if spec.trainer is not None and spec.trainer.data is not None:
        volumes.append(_claim("data", spec.trainer.data.claim_name, read_only=True))
        mounts.append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
    config = json.dumps(trainer_config(spec).to_dict(), sort_keys=True, separators=(",", ":"))
    folder = checkpoint_folder(spec, name=job.name, uid=job.uid)
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": image_of(job, settings),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "drumline_trainer.agent", "run"],
        "env": [
            *_agent_environment(job, member),
            {"name": Env.CONFIG, "value": config},
            {"name": Env.CHECKPOINT_FOLDER, "value": folder},
            *extra.get("env", []),
        ],
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        # No liveness probe: the operator judges agents, and a busy agent must not lose its ranks.
        "readinessProbe": _readiness_probe(),
        "resources": resources,
        "securityContext": _container_security(read_only_root=True),
        "volumeMounts": [*mounts, *extra.get("volumeMounts", [])],
    }
    return {
        "containers": [container],
        "volumes": [*volumes, *extra.get("volumes", [])],
        **_pull_secrets(extra.get("imagePullSecrets", [])),
    }


def _template_containers(
    job: Job, template: PodTemplate, member: GangMember, *, resources: Json, settings: PodSettings
) -> Json:
    volumes: list[Json] = [_volume(volume) for volume in template.volumes or []]
    mounts = [
        mount.model_dump(by_alias=True, exclude_none=True) for mount in template.volume_mounts or []
    ]
    if not any(mount["mountPath"] == "/dev/shm" for mount in mounts):  # noqa: S108 - the pod's own
        volumes.append(_shared_memory())
        mounts.append({"name": "drumline-shm", "mountPath": "/dev/shm"})  # noqa: S108 - same
    user_env = [
        variable.model_dump(by_alias=True, exclude_none=True) for variable in template.env or []
    ]
    variables = launcher_variables(job, index=member.index)
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": image_of(job, settings),
        "env": [*({"name": k, "value": v} for k, v in variables.items()), *user_env],
        "resources": resources,
        "securityContext": _container_security(read_only_root=False),
        "volumeMounts": mounts,
    }
    for key, value in (
        ("imagePullPolicy", template.image_pull_policy),
        ("command", template.command),
        ("args", template.args),
        ("workingDir", template.working_dir),
    ):
        if value is not None:
            container[key] = value
    spec: Json = {"containers": [container], "volumes": volumes}
    pull_secrets: list[Json] = [{"name": name} for name in template.image_pull_secrets or []]
    if job.has_agents:
        mounts += [
            {"name": "drumline-gang", "mountPath": GANG_FOLDER, "readOnly": True},
            {
                "name": "drumline-gang",
                "mountPath": "/etc/hosts",
                "subPath": "hosts",
                "readOnly": True,
            },
        ]
        volumes += [_scratch("drumline-gang"), _token_volume(job)]
        spec["initContainers"] = [_join_container(job, member, settings=settings)]
        pull_secrets += settings.trainer_pod.get("imagePullSecrets", [])
    return {**spec, **_pull_secrets(pull_secrets)}


def _join_container(job: Job, member: GangMember, *, settings: PodSettings) -> Json:
    return {
        "name": JOIN_CONTAINER,
        "image": settings.join_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "drumline_trainer.agent", "join"],
        "env": _agent_environment(job, member),
        "resources": {"requests": dict(JOIN_REQUESTS), "limits": {"memory": "128Mi"}},
        "securityContext": _container_security(read_only_root=True),
        "volumeMounts": [
            {"name": "drumline-gang", "mountPath": GANG_FOLDER},
            _token_mount(),
        ],
    }


def _agent_environment(job: Job, member: GangMember) -> list[Json]:
    fixed = {
        Env.NAMESPACE: job.namespace,
        Env.JOB: job.name,
        Env.JOB_UID: job.uid,
        Env.INDEX: str(member.index),
        Env.NODES: str(job.spec.nodes),
        Env.GPUS_PER_NODE: str(job.spec.gpus_per_node),
        Env.GENERATION: str(member.pod_generation),
        Env.EPOCH: str(job.status.epoch or 0),
    }
    return [
        *({"name": str(name), "value": value} for name, value in fixed.items()),
        _field(Env.POD_UID, "metadata.uid"),
        _field(Env.POD_IP, "status.podIP"),
    ]


def _resources(job: Job, gpu_resource: str) -> Json:
    amounts = {str(k): str(v) for k, v in (job.spec.resources or {}).items()}
    amounts[gpu_resource] = str(job.spec.gpus_per_node)
    return {"requests": dict(amounts), "limits": dict(amounts)}


def _tolerations(job: Job, extra: Json) -> list[Json]:
    own = [
        toleration.model_dump(by_alias=True, exclude_none=True)
        for toleration in job.spec.tolerations or []
    ]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}  # any effect, as the scheduler assumes
    silent_kubelet = _SILENT_KUBELET if job.runs_trainer else ()
    return [gpu, *silent_kubelet, *own, *extra.get("tolerations", [])]


def _grace_seconds(job: Job) -> int:
    return job.spec.template.termination_grace_period_seconds if job.spec.template else 30


def _container_security(*, read_only_root: bool) -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }


def _readiness_probe() -> Json:
    return {
        "httpGet": {"path": "/readyz", "port": AGENT_PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }


def _pull_secrets(secrets: list[Json]) -> Json:
    """The pod's `imagePullSecrets` without duplicates; no field where the list is empty."""
    distinct = list({secret["name"]: secret for secret in secrets}.values())
    return {"imagePullSecrets": distinct} if distinct else {}


def _field(name: str, path: str) -> Json:
    return {"name": str(name), "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _scratch(name: str) -> Json:
    return {"name": name, "emptyDir": {}}


def _shared_memory() -> Json:
    """NCCL and data workers need more than a runtime's default 64 MiB; counts as pod memory."""
    return {"name": "drumline-shm", "emptyDir": {"medium": "Memory"}}


def _claim(name: str, claim: str, *, read_only: bool) -> Json:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": read_only}}


def _volume(volume: Volume) -> Json:
    manifest: Json = {"name": volume.name}
    if volume.persistent_volume_claim is not None:
        claim = volume.persistent_volume_claim
        return _claim(volume.name, claim.claim_name, read_only=claim.read_only)
    if volume.config_map is not None:
        manifest["configMap"] = {"name": volume.config_map.name}
    elif volume.secret is not None:
        manifest["secret"] = {"secretName": volume.secret.name}
    else:
        scratch = volume.empty_dir
        manifest["emptyDir"] = (
            scratch.model_dump(by_alias=True, exclude_none=True) if scratch else {}
        )
    return manifest


def _token_volume(job: Job) -> Json:
    return {
        "name": "drumline-token",
        "secret": {"secretName": child_name(job), "defaultMode": 0o440},
    }


def _token_mount() -> Json:
    return {
        "name": "drumline-token",
        "mountPath": TOKEN_FILE.rsplit("/", 1)[0],
        "readOnly": True,
    }
