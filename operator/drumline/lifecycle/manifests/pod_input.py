"""One pod of a gang before it is a manifest: everything that its manifest depends on.

`pod_inputs` asks the job, its pool and the installation once. The steps in `pods` only read the
answers, so each fragment of a manifest is a function of one `PodInput`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from drumline.lifecycle.manifests.children import (
    SHARED_BUDGET_NODES,
    owner_reference,
    token_secret_name,
)
from drumline.lifecycle.manifests.pod_settings import PodSettings, image_of
from drumline.lifecycle.manifests.trainer_config import trainer_variables
from drumline.lifecycle.model.hardware import PoolGpus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember, members_of
from drumline.lifecycle.model.roles import RolePod, role_pod
from drumline_api.base import (
    LABEL_GANG_NETWORK,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_NODES,
    LABEL_PROTECTED,
    LABEL_QUEUE,
)
from drumline_api.podprofile import PodProfile
from drumline_api.podtemplate import PodTemplate
from drumline_api.role import RoleSpec
from drumline_contract import Launch

Json = dict[str, Any]

_TRAINER_GRACE_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInput:
    """Everything that the manifest of one pod depends on."""

    job: Job
    member: GangMember
    role: RolePod | None
    """None: the pod has ranks."""
    template: PodTemplate | None
    """With the container of the pod's role. None: the pod runs the bundled trainer."""
    trainer_variables: dict[str, str]
    """Environment variables that the bundled trainer reads. Empty with a template."""
    launch: Launch | None
    """Launch of the template's command by an agent. None: the kubelet starts it."""
    joins: bool
    """True if an init container waits for the gang before the kubelet starts the command."""

    image: str
    agent_image: str
    """Image of the init container that brings the agent: that of the peers, over upgrades too."""
    pull_secrets: list[Json]

    gpus: int
    gpu_resource: str
    """Extended resource that counts them."""
    by_claims: bool
    """True if the pod needs ResourceClaims before it is bound to its node."""
    channel: bool
    """True if the pod gets a channel of the job's ComputeDomain."""

    labels: dict[str, str]
    """Labels that all pods of the gang have."""
    owner: Json
    token_secret: str
    grace_seconds: int
    settings: PodSettings
    platform: Json
    """Additions of the installation to pods of the bundled trainer. Empty with a template."""
    profile: PodProfile | None
    """Additions of the pool's administrator."""


def pod_inputs(
    job: Job,
    *,
    indices: Collection[int],
    gpus: PoolGpus,
    settings: PodSettings,
    own_budget: bool,
) -> list[PodInput]:
    """Return an input for each member with one of these indices. O(members).

    Args:
        job: the job with its present status.
        indices: indices of members to create.
        gpus: GPU resource of the pool.
        settings: operator settings for all pods.
        own_budget: whether the job has its own PodDisruptionBudget.

    Raises:
        ConfigError: the trainer's configuration is invalid.
    """
    # Phase 1: values that are the same for all pods of the gang, computed once.
    spec, template, chosen = job.spec, job.spec.template, frozenset(indices)
    launch, has_agents = job.launch, job.has_agents
    hardware = None if spec.gpu_partition else gpus.hardware
    variables = trainer_variables(job, hardware) if template is None else {}
    image = image_of(job, settings)
    agent_image = job.status.agent_image or settings.agent_image or settings.join_image
    pull_secrets = _pull_secrets(template, settings.trainer_pod if has_agents else {})
    labels = _gang_labels(job, has_agents=has_agents, own_budget=own_budget)
    owner, token_secret = owner_reference(job), token_secret_name(job)
    # The installation bounds the grace period: a template cannot keep its GPUs for longer.
    grace = template.termination_grace_period_seconds if template else _TRAINER_GRACE_SECONDS

    def pod_input(member: GangMember) -> PodInput:
        # Phase 2: values of one pod. A pod of a role has another container and other GPUs.
        pod = role_pod(spec, member.index)
        role = pod.role if pod is not None else None
        count = spec.gpus_per_node if role is None else role.gpus_per_node
        channel = spec.compute_domain is not None and count > 0
        return PodInput(
            job=job,
            member=member,
            role=pod,
            template=_template_of_role(template, role) if template and role else template,
            trainer_variables=variables,
            launch=launch if role is None else None,
            joins=template is not None and launch is None and has_agents,
            image=(role.image if template and role else None) or image,
            agent_image=agent_image,
            pull_secrets=pull_secrets,
            gpus=count,
            gpu_resource=spec.gpu_partition or gpus.resource,
            by_claims=gpus.by_claims or channel,
            channel=channel,
            labels=labels,
            owner=owner,
            token_secret=token_secret,
            grace_seconds=min(grace, settings.max_grace_seconds),
            settings=settings,
            platform=settings.trainer_pod if template is None else {},
            profile=gpus.profile,
        )

    return [pod_input(member) for member in members_of(job.status) if member.index in chosen]


def _pull_secrets(template: PodTemplate | None, platform: Json) -> list[Json]:
    """Return the template's pull secrets and the platform's, each once."""
    names = template.image_pull_secrets if template else None
    secrets: list[Json] = [
        *({"name": name} for name in names or []),
        *platform.get("imagePullSecrets", []),
    ]
    return list({secret["name"]: secret for secret in secrets}.values())


def _gang_labels(job: Job, *, has_agents: bool, own_budget: bool) -> dict[str, str]:
    pods = job.wanted
    labels = {
        LABEL_JOB: job.name,
        LABEL_JOB_UID: job.uid,
        LABEL_NODES: str(pods),
        LABEL_QUEUE: job.spec.queue,
    }
    if pods <= SHARED_BUDGET_NODES and not own_budget:
        labels[LABEL_PROTECTED] = "true"
    if has_agents:
        labels[LABEL_GANG_NETWORK] = "true"
    return labels


def _template_of_role(template: PodTemplate, role: RoleSpec) -> PodTemplate:
    """Return the template with the role's container, without what prepares a pod for the ranks."""
    return template.model_copy(
        update={
            "command": role.command,
            "args": role.args,
            "working_dir": role.working_dir,
            "env": role.env,
            "env_from": role.env_from,
            "volume_mounts": role.volume_mounts,
            "init_containers": None,
            "sidecars": None,
        }
    )
