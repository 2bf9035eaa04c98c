"""The pods of roles: what of the template they have, and what they know of their gang."""

from __future__ import annotations

from drumline.api.podtemplate import PodTemplate
from drumline.api.role import RoleSpec
from drumline.lifecycle.manifests.environment import NO_GPUS
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import RolePod
from drumline_trainer.contract import (
    GANG_FOLDER,
    STORE_PORT,
    Env,
    host_name,
    hostfile_environment,
)


def template_of_role(role: RoleSpec, template: PodTemplate) -> PodTemplate:
    """The template with the role's container; what prepares a pod for the ranks is left out."""
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


def role_variables(job: Job, pod: RolePod) -> dict[str, str]:
    """Which pod it is; where it waits for its gang, also where the ranks are.

    The host file has the pods with ranks, so `mpirun` in a launcher starts one process for each.
    """
    own = {str(Env.ROLE): pod.role.name, str(Env.ROLE_INDEX): str(pod.number)}
    if pod.role.gpus_per_node == 0:
        own |= NO_GPUS
    if job.is_supervised:
        return own
    return {
        **own,
        "MASTER_ADDR": host_name(job.name, 0),
        "MASTER_PORT": str(STORE_PORT),
        **hostfile_environment(f"{GANG_FOLDER}/hostfile"),
    }
