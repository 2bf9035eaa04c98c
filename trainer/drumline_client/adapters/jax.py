"""Use JAX with Drumline: the processes of a job, and its notices.

    run = initialize()  # before any other call of JAX
    for step in range(begin, total):
        state, loss = train_step(state, batch)
        if step_done(run, step + 1, save, loss=loss):
            break

JAX itself reads the coordinator's address of the variables that a pod has, but neither the number
of processes nor its own: without this they are arguments of `jax.distributed.initialize`.
"""

# The library is in the images of users, not in this repository's environment: the tests run in
# one that has it (make test-all WHAT=libraries).
# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable

import jax

from drumline_client.environment import rank_place
from drumline_client.run import Run, join


def initialize(variables: Mapping[str, str] | None = None, **options: Any) -> Run:
    """Connect the processes of a job and join it. A single process needs no other.

    Args:
        variables: variables of the launcher. `launch: PerPod`: a process uses all GPUs of its pod.
            `PerGpu`: it uses its own. Default: the environment.
        options: further options of `jax.distributed.initialize`.
    """
    environment = os.environ if variables is None else variables
    place = rank_place(environment)
    if place.world_size > 1:
        if "MASTER_ADDR" in environment and "LOCAL_RANK" in environment:
            host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            options = {"local_device_ids": [place.local_rank], **options}
        else:
            address = environment["JAX_COORDINATOR_ADDRESS"]
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=place.world_size,
            process_id=place.rank,
            **options,
        )
    return join(rank=place.rank, world_size=place.world_size)


def step_done(
    run: Run, step: int, save: Callable[[int], str], *, loss: Any = None, tokens: int = 0
) -> bool:
    """Report a step in every process. True: the state was saved, and the loop may end.

    Args:
        run: result of `initialize`.
        step: step, counted over the whole run.
        save: writes the checkpoint of a step. Called in all processes at the same step. Returns
            its path when it is complete (Orbax: after `wait_until_finished`).
        loss: loss. An array is read only from time to time, because reading waits for the device.
        tokens: tokens of this process.
    """
    run.step(step, loss=loss, tokens=tokens)
    if run.should_save():
        run.saved(step, save(step))
    return run.should_stop()
