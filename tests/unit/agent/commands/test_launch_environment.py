from __future__ import annotations

from pathlib import Path

from drumline_agent.commands.launch_environment import (
    command_line,
    launch_variables,
    thread_variables,
)
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Launch

POD = Placement(rank=1, world_size=2, store_host="fd00::7", store_port=29507, generation=1)


def variables(*, gpus: int) -> dict[str, str]:
    return launch_variables(POD, launch=Launch.PER_POD, gpus=gpus, gang_folder=Path("/gang"))


def test_a_launcher_finds_the_gang_as_torchrun_jax_and_mpi_name_it() -> None:
    names = variables(gpus=4)
    assert (names["NNODES"], names["NODE_RANK"], names["NPROC_PER_NODE"]) == ("2", "1", "4")
    assert (names["WORLD_SIZE"], names["PET_MASTER_PORT"]) == ("8", "29507")
    assert names["JAX_COORDINATOR_ADDRESS"] == "[fd00::7]:29507"
    assert names["HYDRA_HOST_FILE"] == "/gang/hostfile"
    assert "RANK" not in names


def test_a_pod_of_a_single_gpu_needs_no_launcher() -> None:
    names = variables(gpus=1)
    assert (names["RANK"], names["LOCAL_RANK"], names["WORLD_SIZE"]) == ("1", "0", "2")


def test_what_the_agent_sets_is_expanded_and_the_rest_is_left() -> None:
    command = ["run", "--port=$(MASTER_PORT)", "$(HOME)", "$MASTER_PORT"]
    assert command_line(command, variables(gpus=1)) == [
        *("run", "--port=29507", "$(HOME)", "$MASTER_PORT")
    ]


def test_several_ranks_have_a_thread_each_unless_the_image_says_otherwise() -> None:
    of_two = Placement(rank=0, world_size=2, local_world_size=2)
    assert thread_variables(of_two, {}) == {"OMP_NUM_THREADS": "1"}
    assert thread_variables(of_two, {"OMP_NUM_THREADS": "8"}) == {}
    assert thread_variables(Placement(rank=0, world_size=2), {}) == {}
