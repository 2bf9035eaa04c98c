"""The variables by which a launcher in a pod finds its gang: torchrun, JAX and MPI.

The operator sets them where the kubelet starts the command, the agent where it starts a launcher.
"""

from __future__ import annotations


def launcher_environment(
    *, nodes: int, index: int, gpus: int, host: str, port: int, hostfile: str
) -> dict[str, str]:
    """Return the torchrun (plain and PET_), JAX and MPI variables of one pod.

    Args:
        nodes: pods of the gang.
        index: index of this pod.
        gpus: GPUs of each pod.
        host: name or address of the first pod; IPv6 without brackets.
        port: on which its rendezvous listens.
        hostfile: path of MPI's host file.
    """
    variables = {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "NNODES": str(nodes),
        "NODE_RANK": str(index),
        "NPROC_PER_NODE": str(gpus),
        "WORLD_SIZE": str(nodes * gpus),
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": str(index),
        "PET_NPROC_PER_NODE": str(gpus),
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "JAX_COORDINATOR_ADDRESS": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "JAX_NUM_PROCESSES": str(nodes),
        "JAX_PROCESS_ID": str(index),
    }
    if gpus == 1:  # a single process a pod needs no launcher
        variables |= {"RANK": str(index), "LOCAL_RANK": "0"}
    if nodes > 1:
        variables |= hostfile_environment(hostfile)
    return variables


def hostfile_environment(hostfile: str) -> dict[str, str]:
    """Return the variables that point MPI launchers to the host file at this path."""
    return {
        "OMPI_MCA_orte_default_hostfile": hostfile,  # Open MPI 4
        "PRTE_MCA_prte_default_hostfile": hostfile,  # Open MPI 5
        "I_MPI_HYDRA_HOST_FILE": hostfile,
        "HYDRA_HOST_FILE": hostfile,
    }
