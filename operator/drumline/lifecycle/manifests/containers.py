"""Containers of a pod: the bundled trainer, or a template's container and its join container."""

from __future__ import annotations

import json
from typing import Any

from drumline.api.podtemplate import PodTemplate
from drumline.lifecycle.manifests.environment import launcher_variables
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.manifests.trainer_config import (
    CHECKPOINT_FOLDER,
    DATA_FOLDER,
    checkpoint_folder,
    trainer_config,
)
from drumline.lifecycle.manifests.volumes import (
    claim_volume,
    scratch_volume,
    shared_memory_volume,
    template_volume,
    token_mount,
    token_volume,
)
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember
from drumline_trainer.config import TrainerConfig
from drumline_trainer.contract import (
    AGENT_PORT,
    GANG_FOLDER,
    Env,
)

Json = dict[str, Any]

TRAINER_CONTAINER = "trainer"
HOME_FOLDER = "/home/drumline"
JOIN_CONTAINER = "drumline-join"
JOIN_RESOURCES = {"cpu": "500m", "memory": "128Mi"}
"""Requests and limits of the join container. Both are equal, because the QoS class of a pod counts
init containers too. Not a whole CPU: the static CPU manager would pin the join container to CPUs of
any NUMA node, to which the main container is then tied, or which leak (kubernetes/kubernetes#94220,
#112228)."""
_CPU_MILLIS_PER_GPU = 100
_MEMORY_MEBIBYTES_PER_GPU = 128


def containers_of(job: Job, member: GangMember, *, gpus: PoolGpus, settings: PodSettings) -> Json:
    """The part of the pod's spec with containers, init containers, volumes and pull secrets."""
    resources = _resources(job, gpus.resource)
    if job.spec.template is None:
        config = trainer_config(job.spec, gpus.hardware)
        return _trainer_containers(
            job, member, config=config, resources=resources, settings=settings
        )
    return _template_containers(
        job, job.spec.template, member, resources=resources, settings=settings
    )


def _trainer_containers(
    job: Job,
    member: GangMember,
    *,
    config: TrainerConfig,
    resources: Json,
    settings: PodSettings,
) -> Json:
    spec, extra = job.spec, settings.trainer_pod
    volumes: list[Json] = [scratch_volume("tmp"), shared_memory_volume(), token_volume(job)]
    mounts: list[Json] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        {"name": "drumline-shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        token_mount(),
    ]
    if spec.checkpoint is not None:
        volumes.append(claim_volume("checkpoints", spec.checkpoint.claim_name, read_only=False))
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINT_FOLDER})
    if spec.trainer is not None and spec.trainer.data is not None:
        volumes.append(claim_volume("data", spec.trainer.data.claim_name, read_only=True))
        mounts.append({"name": "data", "mountPath": DATA_FOLDER, "readOnly": True})
    text = json.dumps(config.written(), sort_keys=True, separators=(",", ":"))
    folder = checkpoint_folder(spec, name=job.name, uid=job.uid)
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": image_of(job, settings),
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", "drumline_trainer.agent", "run"],
        "env": [
            *_agent_environment(job, member),
            {"name": Env.CONFIG, "value": text},
            {"name": Env.CHECKPOINT_FOLDER, "value": folder or ""},
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
    volumes: list[Json] = [template_volume(volume) for volume in template.volumes or []]
    mounts = [
        mount.model_dump(by_alias=True, exclude_none=True) for mount in template.volume_mounts or []
    ]
    if not any(mount["mountPath"] == "/dev/shm" for mount in mounts):  # noqa: S108 - the pod's own
        volumes.append(shared_memory_volume())
        mounts.append({"name": "drumline-shm", "mountPath": "/dev/shm"})  # noqa: S108 - same
    user_env = [
        variable.model_dump(by_alias=True, exclude_none=True) for variable in template.env or []
    ]
    variables = launcher_variables(job, index=member.index)
    if template.run_as_user is None and all(each["name"] != "HOME" for each in user_env):
        # No image knows user 65532: its home would be `/`, where no library can write its cache.
        variables["HOME"] = HOME_FOLDER
        if not any(mount["mountPath"] == HOME_FOLDER for mount in mounts):
            volumes.append(scratch_volume("drumline-home"))
            mounts.append({"name": "drumline-home", "mountPath": HOME_FOLDER})
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
        volumes += [scratch_volume("drumline-gang"), token_volume(job)]
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
        "resources": {"requests": dict(JOIN_RESOURCES), "limits": dict(JOIN_RESOURCES)},
        "securityContext": _container_security(read_only_root=True),
        "volumeMounts": [
            {"name": "drumline-gang", "mountPath": GANG_FOLDER},
            token_mount(),
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


def main_requests(job: Job) -> dict[str, str]:
    """What the main container requests besides its GPUs.

    CPU or memory that the job does not state is requested in a small amount without a limit: a pod
    that requests neither is BestEffort, the first to be evicted and the last to get CPU time.
    """
    gpus = job.spec.gpus_per_node
    least = {
        "cpu": f"{gpus * _CPU_MILLIS_PER_GPU}m",
        "memory": f"{gpus * _MEMORY_MEBIBYTES_PER_GPU}Mi",
    }
    return least | _stated_resources(job)


def _resources(job: Job, gpu_resource: str) -> Json:
    gpus = {gpu_resource: str(job.spec.gpus_per_node)}
    return {"requests": main_requests(job) | gpus, "limits": _stated_resources(job) | gpus}


def _stated_resources(job: Job) -> dict[str, str]:
    return {str(name): str(amount) for name, amount in (job.spec.resources or {}).items()}


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
