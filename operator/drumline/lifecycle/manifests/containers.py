"""Containers of a pod: the bundled trainer, or a template's container and what an agent adds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from drumline.api.base import ApiModel
from drumline.api.podtemplate import PodTemplate
from drumline.api.role import RoleSpec
from drumline.api.trainingjob import CheckpointSpec
from drumline.lifecycle.manifests.agents import (
    TRAINER_PROGRAM,
    agent_endpoint,
    agent_environment,
    container_security,
    joined,
    supervised,
    with_code,
)
from drumline.lifecycle.manifests.environment import launcher_variables
from drumline.lifecycle.manifests.init_containers import init_container, sidecar_container
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.manifests.roles import role_variables, template_of_role
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
from drumline.lifecycle.model.roles import RolePod, role_pod
from drumline_trainer.config import FolderConfig, TrainerConfig
from drumline_trainer.contract import BUCKET_VARIABLES, Env

Json = dict[str, Any]

TRAINER_CONTAINER = "trainer"
HOME_FOLDER = "/home/drumline"
_CPU_MILLIS_PER_GPU = 100
_MEMORY_MEBIBYTES_PER_GPU = 128


def containers_of(job: Job, member: GangMember, *, gpus: PoolGpus, settings: PodSettings) -> Json:
    """The part of the pod's spec with containers, init containers, volumes and pull secrets."""
    role = role_pod(job.spec, member.index)
    resources = _resources(
        job, job.spec.gpu_partition or gpus.resource, role=role.role if role else None
    )
    template = job.spec.template
    if template is None:
        config = trainer_config(job.spec, None if job.spec.gpu_partition else gpus.hardware)
        return _trainer_containers(
            job, member, config=config, resources=resources, settings=settings
        )
    if role is not None:
        return _role_containers(
            job, template, member, role=role, resources=resources, settings=settings
        )
    # An agent sets the launcher's variables itself, anew for each attempt.
    variables = launcher_variables(job, index=member.index) if job.launch is None else {}
    image = image_of(job, settings)
    spec = _template_containers(
        template, image=image, variables=variables, resources=resources, node=member.node
    )
    if job.launch is not None:
        spec = supervised(
            spec,
            job=job,
            template=template,
            member=member,
            launch=job.launch,
            settings=settings,
        )
    elif job.has_agents:
        spec = joined(spec, job=job, member=member, settings=settings)
    return _with_pull_secrets(spec, job, template, settings=settings)


def _role_containers(
    job: Job,
    template: PodTemplate,
    member: GangMember,
    *,
    role: RolePod,
    resources: Json,
    settings: PodSettings,
) -> Json:
    """A pod without ranks: it has the template's volumes and user, and a command of its own."""
    own = template_of_role(role.role, template)
    spec = _template_containers(
        own,
        image=role.role.image or image_of(job, settings),
        variables=role_variables(job, role),
        resources=resources,
        node=member.node,
    )
    if job.launch is None:
        spec = joined(spec, job=job, member=member, settings=settings)
    elif template.code is not None:
        spec = with_code(spec, job=job, member=member, code=template.code, settings=settings)
    return _with_pull_secrets(spec, job, template, settings=settings)


def _trainer_containers(
    job: Job,
    member: GangMember,
    *,
    config: TrainerConfig | FolderConfig,
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
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.claim_name is not None:
        volumes.append(claim_volume("checkpoints", checkpoint.claim_name, read_only=False))
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
        "command": list(TRAINER_PROGRAM),
        "env": [
            *agent_environment(job, member),
            {"name": Env.CONFIG, "value": text},
            {"name": Env.CHECKPOINT_FOLDER, "value": folder or ""},
            *_credentials(checkpoint, above=extra.get("env", [])),
            *extra.get("env", []),
        ],
        **agent_endpoint(),
        "resources": resources,
        "securityContext": container_security(read_only_root=True),
        "volumeMounts": [*mounts, *extra.get("volumeMounts", [])],
    }
    return {
        "containers": [container],
        "volumes": [*volumes, *extra.get("volumes", [])],
        **_pull_secrets(extra.get("imagePullSecrets", [])),
    }


def _credentials(checkpoint: CheckpointSpec | None, *, above: Sequence[Json]) -> list[Json]:
    """A bucket's, each named: of all keys of a Secret one could be NVIDIA_VISIBLE_DEVICES.

    Those of `above`, which the installation sets, are not among them.
    """
    if checkpoint is None or checkpoint.secret_name is None:
        return []
    known = {variable["name"] for variable in above}
    return [
        {
            "name": name,
            "valueFrom": {
                "secretKeyRef": {"name": checkpoint.secret_name, "key": name, "optional": True}
            },
        }
        for name in BUCKET_VARIABLES
        if name not in known
    ]


def _template_containers(
    template: PodTemplate, *, image: str, variables: dict[str, str], resources: Json, node: str
) -> Json:
    """What the kubelet would start without an agent."""
    variables = dict(variables)
    volumes: list[Json] = [template_volume(volume, node=node) for volume in template.volumes or []]
    mounts = _written(template.volume_mounts)
    if not any(mount["mountPath"] == "/dev/shm" for mount in mounts):  # noqa: S108 - the pod's own
        volumes.append(shared_memory_volume())
        mounts.append({"name": "drumline-shm", "mountPath": "/dev/shm"})  # noqa: S108 - same
    user_env = _written(template.env)
    if template.run_as_user is None and all(each["name"] != "HOME" for each in user_env):
        # No image knows user 65532: its home would be `/`, where no library can write its cache.
        variables["HOME"] = HOME_FOLDER
        if not any(mount["mountPath"] == HOME_FOLDER for mount in mounts):
            volumes.append(scratch_volume("drumline-home"))
            mounts.append({"name": "drumline-home", "mountPath": HOME_FOLDER})
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": image,
        "env": [*({"name": k, "value": v} for k, v in variables.items()), *user_env],
        "resources": resources,
        "securityContext": container_security(read_only_root=False),
        "volumeMounts": mounts,
    }
    for key, value in (
        ("imagePullPolicy", template.image_pull_policy),
        ("command", template.command),
        ("args", template.args),
        ("workingDir", template.working_dir),
        ("envFrom", _written(template.env_from) or None),
        ("stdin", template.tty or None),  # stays open when whoever was connected leaves
        ("tty", template.tty or None),
    ):
        if value is not None:
            container[key] = value
    spec: Json = {"containers": [container], "volumes": volumes}
    if template.init_containers or template.sidecars:
        spec["initContainers"] = [
            # First, so that they also serve what runs before the command, as a proxy does.
            *(sidecar_container(each, main=container) for each in template.sidecars or ()),
            *(init_container(each, main=container) for each in template.init_containers or ()),
        ]
    return spec


def _with_pull_secrets(
    spec: Json, job: Job, template: PodTemplate, *, settings: PodSettings
) -> Json:
    pull_secrets: list[Json] = [{"name": name} for name in template.image_pull_secrets or []]
    if job.has_agents:
        pull_secrets += settings.trainer_pod.get("imagePullSecrets", [])
    return {**spec, **_pull_secrets(pull_secrets)}


def _written(models: Sequence[ApiModel] | None) -> list[Json]:
    """As core/v1 spells them, which the models of a template take over."""
    return [model.model_dump(by_alias=True, exclude_none=True) for model in models or ()]


def main_requests(job: Job, role: RoleSpec | None = None) -> dict[str, str]:
    """What the main container requests besides its GPUs, in a pod with ranks or of a role.

    CPU or memory that the job does not state is requested in a small amount without a limit: a pod
    that requests neither is BestEffort, the first to be evicted and the last to get CPU time.
    """
    gpus = job.spec.gpus_per_node if role is None else max(1, role.gpus_per_node)
    least = {
        "cpu": f"{gpus * _CPU_MILLIS_PER_GPU}m",
        "memory": f"{gpus * _MEMORY_MEBIBYTES_PER_GPU}Mi",
    }
    return least | _stated_resources(job, role)


def _resources(job: Job, gpu_resource: str, *, role: RoleSpec | None) -> Json:
    count = job.spec.gpus_per_node if role is None else role.gpus_per_node
    gpus = {gpu_resource: str(count)} if count else {}
    return {
        "requests": main_requests(job, role) | gpus,
        "limits": _stated_resources(job, role) | gpus,
    }


def _stated_resources(job: Job, role: RoleSpec | None) -> dict[str, str]:
    stated = job.spec.resources if role is None else role.resources
    return {str(name): str(amount) for name, amount in (stated or {}).items()}


def _pull_secrets(secrets: list[Json]) -> Json:
    """The pod's `imagePullSecrets` without duplicates; no field where the list is empty."""
    distinct = list({secret["name"]: secret for secret in secrets}.values())
    return {"imagePullSecrets": distinct} if distinct else {}
