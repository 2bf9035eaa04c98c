"""The variables by which torchrun, JAX and MPI find the gang."""

from __future__ import annotations

from typing import Any

from drumline.lifecycle.manifests.environment import launcher_variables
from drumline.lifecycle.model.job import Job
from drumline_api.variables import RESERVED_ENV
from tests.builders import a_job

HOSTFILE = "/var/run/drumline/gang/hostfile"
MPI = {
    "OMPI_MCA_orte_default_hostfile": HOSTFILE,
    "PRTE_MCA_prte_default_hostfile": HOSTFILE,
    "I_MPI_HYDRA_HOST_FILE": HOSTFILE,
    "HYDRA_HOST_FILE": HOSTFILE,
}


def own(**spec: Any) -> Job:
    return a_job(template={"image": "any:1"}, **spec)


def test_several_nodes_with_several_gpus() -> None:
    assert launcher_variables(own(nodes=3, gpusPerNode=8), index=2) == {
        "MASTER_ADDR": "llama-0",
        "MASTER_PORT": "29500",
        "NNODES": "3",
        "NODE_RANK": "2",
        "NPROC_PER_NODE": "8",
        "WORLD_SIZE": "24",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "llama-0",
        "PET_MASTER_PORT": "29500",
        "JAX_COORDINATOR_ADDRESS": "llama-0:29500",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "2",
        **MPI,
    }


def test_a_pod_with_a_single_gpu_is_a_rank_without_a_launcher() -> None:
    several = launcher_variables(own(nodes=3, gpusPerNode=8), index=2)
    single = launcher_variables(own(nodes=3, gpusPerNode=1), index=2)
    assert single == several | {
        "NPROC_PER_NODE": "1",
        "PET_NPROC_PER_NODE": "1",
        "WORLD_SIZE": "3",
        "RANK": "2",
        "LOCAL_RANK": "0",
    }


def test_a_lone_pod_meets_itself_on_loopback_without_a_hostfile() -> None:
    variables = launcher_variables(own(nodes=1, gpusPerNode=4), index=0)
    assert variables["MASTER_ADDR"] == variables["PET_MASTER_ADDR"] == "127.0.0.1"
    assert variables["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:29500"
    assert not variables.keys() & MPI.keys()


def test_a_template_may_set_none_of_them() -> None:
    for shape in ({"nodes": 2, "gpusPerNode": 1}, {"nodes": 2, "gpusPerNode": 8}):
        assert launcher_variables(own(**shape), index=0).keys() <= set(RESERVED_ENV)
