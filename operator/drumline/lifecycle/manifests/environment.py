"""Environment variables of pods with a template: torchrun, JAX and MPI find the gang unchanged.

Members resolve each other's host names through an /etc/hosts file that the join container writes
once all addresses are known: it needs no Service and no DNS, and works with any image.
"""

from __future__ import annotations

from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import GANG_FOLDER, STORE_PORT, host_name


def launcher_variables(job: Job, *, index: int) -> dict[str, str]:
    """Torchrun (plain and PET_), JAX and MPI variables of the pod with this index."""
    nodes, gpus = job.spec.nodes, job.spec.gpus_per_node
    leader = host_name(job.name, 0) if nodes > 1 else "127.0.0.1"
    hostfile = f"{GANG_FOLDER}/hostfile"
    variables = {
        "MASTER_ADDR": leader,
        "MASTER_PORT": str(STORE_PORT),
        "NNODES": str(nodes),
        "NODE_RANK": str(index),
        "NPROC_PER_NODE": str(gpus),
        "WORLD_SIZE": str(nodes * gpus),
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(index),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": leader,
        "PET_MASTER_PORT": str(STORE_PORT),
        "JAX_COORDINATOR_ADDRESS": f"{leader}:{STORE_PORT}",
        "JAX_NUM_PROCESSES": str(nodes),
        "JAX_PROCESS_ID": str(index),
    }
    if gpus == 1:  # a single process a pod needs no launcher
        variables |= {"RANK": str(index), "LOCAL_RANK": "0"}
    if nodes > 1:
        variables |= {
            "OMPI_MCA_orte_default_hostfile": hostfile,  # Open MPI 4
            "PRTE_MCA_prte_default_hostfile": hostfile,  # Open MPI 5
            "I_MPI_HYDRA_HOST_FILE": hostfile,
            "HYDRA_HOST_FILE": hostfile,
        }
    return variables
