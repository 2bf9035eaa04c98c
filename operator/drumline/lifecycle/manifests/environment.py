"""Environment variables of pods with a template: torchrun, JAX and MPI find the gang unchanged.

Members resolve each other's host names through an /etc/hosts file that the join container writes
once all addresses are known: it needs no Service and no DNS, and works with any image.
"""

from __future__ import annotations

from typing import Final

from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import GANG_FOLDER, STORE_PORT, host_name, launcher_environment

NO_GPUS: Final = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""NVIDIA's runtime gives all GPUs of the node to a container that asks for none, where its image
says `all`, as CUDA's images do. `void`: none.
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"""


def launcher_variables(job: Job, *, index: int) -> dict[str, str]:
    """Torchrun (plain and PET_), JAX and MPI variables of the pod with this index."""
    nodes = job.spec.nodes
    return launcher_environment(
        nodes=nodes,
        index=index,
        gpus=job.spec.gpus_per_node,
        host=host_name(job.name, 0) if nodes > 1 else "127.0.0.1",
        port=STORE_PORT,
        hostfile=f"{GANG_FOLDER}/hostfile",
    )
