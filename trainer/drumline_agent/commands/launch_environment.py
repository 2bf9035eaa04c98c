"""The environment and arguments of a user's command; pure.

PerGpu sets what torchrun sets for each worker, so a script that torchrun starts finds the same
(torch/distributed/elastic/agent/server/local_elastic_agent.py). PerPod sets what torchrun,
accelerate, mpirun and JAX read on each node before they start the ranks themselves.

    rank 5 of 2 pods with 4 GPUs each    PerGpu   RANK=5 LOCAL_RANK=1 GROUP_RANK=1 WORLD_SIZE=8
    pod 1 of the same                    PerPod   NODE_RANK=1 NNODES=2 NPROC_PER_NODE=4
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Launch, launcher_environment

MAX_RESTARTS_SHOWN = 2**31 - 1
"""TORCHELASTIC_MAX_RESTARTS: the budgets of restarts are by fault class and the operator's."""
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def launch_variables(
    placement: Placement, *, launch: Launch, gpus: int, gang_folder: Path
) -> dict[str, str]:
    """Return the environment variables of one process of an attempt.

    Args:
        placement: placement of the process.
        launch: whether it is one rank, or starts the ranks of its pod itself.
        gpus: number of GPUs of its pod.
        gang_folder: contains the hostfile.
    """
    if launch is Launch.PER_GPU:
        return _of_a_rank(placement)
    return launcher_environment(
        nodes=placement.world_size,  # a process in each pod
        index=placement.rank,
        gpus=gpus,
        host=placement.store_host,
        port=placement.store_port,
        hostfile=str(gang_folder / "hostfile"),
    )


def expanded(argument: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as the kubelet does, for the variables that only the agent knows."""
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]), argument)


def command_line(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Expand variables in the command of one process of an attempt."""
    return [expanded(argument, variables) for argument in command]


def thread_variables(placement: Placement, inherited: Mapping[str, str]) -> dict[str, str]:
    """Give each of several ranks one OpenMP thread, as torchrun, if the image says nothing."""
    alone = placement.local_world_size == 1
    return {} if alone or "OMP_NUM_THREADS" in inherited else {"OMP_NUM_THREADS": "1"}


def _of_a_rank(placement: Placement) -> dict[str, str]:
    nodes = placement.world_size // placement.local_world_size
    return {
        "RANK": str(placement.rank),
        "LOCAL_RANK": str(placement.local_rank),
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "GROUP_RANK": str(placement.rank // placement.local_world_size),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(placement.rank),
        "ROLE_WORLD_SIZE": str(placement.world_size),
        "MASTER_ADDR": placement.store_host,
        "MASTER_PORT": str(placement.store_port),
        "TORCHELASTIC_RUN_ID": run_id(placement),
        "TORCHELASTIC_RESTART_COUNT": str(placement.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(MAX_RESTARTS_SHOWN),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def run_id(placement: Placement) -> str:
    """Return the run id of torch elastic that a rank gets."""
    return placement.owner or "drumline"
