"""Environment variables of pods with a template: torchrun, JAX and MPI find the gang unchanged.

Members resolve each other's host names through an /etc/hosts file that the join container writes
once all addresses are known: it needs no Service and no DNS, and works with any image.
"""

from __future__ import annotations

from typing import Final

from drumline.lifecycle.manifests.pod_input import PodInput
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import RolePod
from drumline_contract import (
    GANG_FOLDER,
    STORE_PORT,
    Env,
    host_name,
    hostfile_environment,
    launcher_environment,
)

NO_GPUS: Final = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""NVIDIA's runtime gives all GPUs of the node to a container that asks for none, where its image
says `all`, as CUDA's images do. `void`: none.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"""
_HOSTFILE: Final = f"{GANG_FOLDER}/hostfile"


def gang_variables(pod: PodInput) -> dict[str, str]:
    """Return the variables with which the pod's program finds its gang."""
    if pod.role is not None:
        return _role_variables(pod, pod.role)
    if pod.launch is not None:  # the agent sets them itself, anew for each attempt
        return {}
    return launcher_variables(pod.job, index=pod.member.index)


def launcher_variables(job: Job, *, index: int) -> dict[str, str]:
    """Return torchrun's (plain and PET_), JAX's and MPI's variables for the pod of this index."""
    nodes = job.spec.nodes
    return launcher_environment(
        nodes=nodes,
        index=index,
        gpus=job.spec.gpus_per_node,
        host=host_name(job.name, 0) if nodes > 1 else "127.0.0.1",
        port=STORE_PORT,
        hostfile=_HOSTFILE,
    )


def _role_variables(pod: PodInput, role: RolePod) -> dict[str, str]:
    """Return which pod of its role it is and, where it waits for its gang, where the ranks are.

    The host file has the pods with ranks, so `mpirun` in a launcher starts one process for each.
    """
    # A role without GPUs must not see the GPUs of its node.
    own = {str(Env.ROLE): role.role.name, str(Env.ROLE_INDEX): str(role.number)}
    if pod.gpus == 0:
        own |= NO_GPUS
    if not pod.joins:
        return own
    return {
        **own,
        "MASTER_ADDR": host_name(pod.job.name, 0),
        "MASTER_PORT": str(STORE_PORT),
        **hostfile_environment(_HOSTFILE),
    }
