"""Environment variables of pods with a template: torchrun, JAX and MPI find the gang unchanged.

Members resolve each other's host names through an /etc/hosts file that the join container writes
once all addresses are known: it needs no Service and no DNS, and works with any image.
"""

from __future__ import annotations

from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import GANG_FOLDER, STORE_PORT, host_name, launcher_environment


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
