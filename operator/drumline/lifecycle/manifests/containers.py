"""The main container of a pod: the bundled trainer, or a template's container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from drumline.lifecycle.manifests.agents import (
    AGENT_ENDPOINT,
    READ_ONLY,
    RESTRICTED,
    agent_environment,
)
from drumline.lifecycle.manifests.environment import gang_variables
from drumline.lifecycle.manifests.pod_input import PodInput
from drumline.lifecycle.manifests.volumes import HOME_FOLDER, template_volumes, trainer_volumes
from drumline.lifecycle.model.job import Job
from drumline_api.podtemplate import PodTemplate
from drumline_api.role import RoleSpec
from drumline_api.trainingjob import CheckpointSpec
from drumline_contract import BUCKET_VARIABLES

Json = dict[str, Any]

TRAINER_CONTAINER = "trainer"
_TRAINER_PROGRAM = ("python3", "-m", "drumline_agent", "run")
_CPU_MILLIS_PER_GPU = 100
_MEMORY_MEBIBYTES_PER_GPU = 128


def main_container(pod: PodInput) -> Json:
    """Return the container that trains, as the kubelet would start it, with its volumes."""
    if pod.template is None:
        return _trainer_container(pod)
    return _template_container(pod, pod.template)


def _trainer_container(pod: PodInput) -> Json:
    platform_env = pod.platform.get("env", [])
    volumes, mounts = trainer_volumes(pod)
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": pod.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(_TRAINER_PROGRAM),
        "env": [
            *agent_environment(pod),
            *({"name": name, "value": value} for name, value in pod.trainer_variables.items()),
            *_credentials(pod.job.spec.checkpoint, above=platform_env),
            *platform_env,
        ],
        **AGENT_ENDPOINT,
        "resources": _resources(pod),
        "securityContext": READ_ONLY,
        "volumeMounts": mounts,
    }
    return {"containers": [container], "volumes": volumes}


def _credentials(checkpoint: CheckpointSpec | None, *, above: Sequence[Json]) -> list[Json]:
    """Return a bucket's credentials, except those that `above` sets.

    Each is named: of all keys of a Secret one could be NVIDIA_VISIBLE_DEVICES.
    """
    if checkpoint is None or checkpoint.secret_name is None:
        return []
    # The platform's variables win: its administrator may give the pods other credentials.
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


def _template_container(pod: PodInput, template: PodTemplate) -> Json:
    variables = gang_variables(pod)
    user_env = [variable.as_json() for variable in template.env or ()]
    # No image knows user 65532: its home would be `/`, where no library can write its cache.
    home = template.run_as_user is None and all(each["name"] != "HOME" for each in user_env)
    if home:
        variables["HOME"] = HOME_FOLDER
    volumes, mounts = template_volumes(template, node=pod.member.node, home=home)
    container: Json = {
        "name": TRAINER_CONTAINER,
        "image": pod.image,
        "env": [*({"name": k, "value": v} for k, v in variables.items()), *user_env],
        "resources": _resources(pod),
        "securityContext": RESTRICTED,
        "volumeMounts": mounts,
    }
    for key, value in (
        ("imagePullPolicy", template.image_pull_policy),
        ("command", template.command),
        ("args", template.args),
        ("workingDir", template.working_dir),
        ("envFrom", [source.as_json() for source in template.env_from or ()] or None),
        ("stdin", template.tty or None),  # stays open when whoever was connected leaves
        ("tty", template.tty or None),
    ):
        if value is not None:
            container[key] = value
    return {"containers": [container], "volumes": volumes}


def main_requests(job: Job, role: RoleSpec | None = None) -> dict[str, str]:
    """Return what the main container requests besides its GPUs, with ranks or of a role.

    CPU or memory that the job does not state is requested in a small amount without a limit: a pod
    that requests neither is BestEffort, the first to be evicted and the last to get CPU time.
    """
    gpus = job.spec.gpus_per_node if role is None else max(1, role.gpus_per_node)
    least = {
        "cpu": f"{gpus * _CPU_MILLIS_PER_GPU}m",
        "memory": f"{gpus * _MEMORY_MEBIBYTES_PER_GPU}Mi",
    }
    return least | _stated_resources(job, role)


def with_limits(manifest: Json) -> Json:
    """Return a pod whose CPU and memory are limited to its requests where it states no limit.

    A LimitRange of the namespace gives each container a default limit. If that is below what is
    requested, no pod without a limit of its own can be created there.
    """
    spec = dict(manifest["spec"])
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [_limited(container) for container in spec[kind]]
    return {**manifest, "spec": spec}


def _limited(container: Json) -> Json:
    resources = container.get("resources", {})
    requests = resources.get("requests", {})
    # Limits equal to the requests cannot exceed any quota that the requests fit in.
    least = {name: requests[name] for name in ("cpu", "memory") if name in requests}
    limits = {**least, **resources.get("limits", {})}
    return {**container, "resources": {**resources, "limits": limits}} if limits else container


def _resources(pod: PodInput) -> Json:
    role = pod.role.role if pod.role is not None else None
    gpus = {pod.gpu_resource: str(pod.gpus)} if pod.gpus else {}
    return {
        "requests": main_requests(pod.job, role) | gpus,
        "limits": _stated_resources(pod.job, role) | gpus,
    }


def _stated_resources(job: Job, role: RoleSpec | None) -> dict[str, str]:
    stated = job.spec.resources if role is None else role.resources
    return {str(name): str(amount) for name, amount in (stated or {}).items()}
