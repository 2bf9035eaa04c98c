from __future__ import annotations

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.launch.launchers import LAUNCHERS, LaunchedRank, detect_launcher

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29400",
}
SLURM_BATCH = {  # what a batch script has, which is no rank
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "node[03-04]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "7",
}
SRUN = SLURM_BATCH | {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
    "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9",
    "SLURM_RESTART_COUNT": "1",
}
PBS_BATCH = {"PBS_JOBID": "99.head", "PBS_NODENUM": "0", "PBS_NODEFILE": "/spool/99"}
PBSDSH = PBS_BATCH | {"PBS_NODENUM": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}
PALS = {
    "PBS_JOBID": "99.head",
    "PALS_APID": "a-b-c",
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "4",
    "MASTER_ADDR": "node1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "168755201",
}
JSRUN = OPEN_MPI | {  # its MPI is Open MPI, and says so
    "LSB_JOBID": "12",
    "LSB_MCPU_HOSTS": "batch1 1 node1 42 node2 42",
    "JSM_NAMESPACE_RANK": "6",
    "JSM_NAMESPACE_SIZE": "12",
    "JSM_NAMESPACE_LOCAL_RANK": "0",
    "JSM_NAMESPACE_LOCAL_SIZE": "6",
}
HYDRA = {
    "PMI_RANK": "5",
    "PMI_SIZE": "8",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "4",
    "MASTER_ADDR": "node1",
}
JAX = {
    "JAX_COORDINATOR_ADDRESS": "node1:1234",
    "JAX_PROCESS_ID": "1",
    "JAX_NUM_PROCESSES": "2",
}
PLAIN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}


def expected(launcher: str, rank: int, of: int, local: tuple[int, int], where: str) -> LaunchedRank:
    address, _, port = where.partition(":")
    return LaunchedRank(
        launcher=launcher,
        rank=rank,
        world_size=of,
        local_rank=local[0],
        local_world_size=local[1],
        address=address,
        port=int(port),
        attempt={"torchrun": 2, "Slurm (srun)": 1}.get(launcher, 0),
        store_served=launcher == "torchrun",
    )


@pytest.mark.parametrize(
    ("environment", "result"),
    [
        (TORCHRUN, expected("torchrun", 5, 8, (1, 4), "node1:29400")),
        (SRUN | TORCHRUN, expected("torchrun", 5, 8, (1, 4), "node1:29400")),
        (SRUN, expected("Slurm (srun)", 5, 7, (1, 3), "node03:25251")),
        (JSRUN, expected("LSF (jsrun)", 6, 12, (0, 6), "node1:20165")),
        (OPEN_MPI, expected("Open MPI (mpirun)", 3, 4, (3, 4), "127.0.0.1:27255")),
        (OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "2"},  # of the pod that mpirun was started in
         expected("Open MPI (mpirun)", 3, 4, (3, 4), "127.0.0.1:27255")),
        (SRUN | OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8"},
         expected("Open MPI (mpirun)", 3, 8, (3, 4), "node03:28206")),
        (HYDRA, expected("MPICH and Intel MPI (mpiexec.hydra)", 5, 8, (1, 4), "node1:29500")),
        (PALS, expected("PBS with PALS (mpiexec)", 5, 8, (1, 4), "node1:24070")),
        (PBSDSH, expected("PBS (pbsdsh)", 1, 2, (0, 1), "node1:27103")),
        (JAX, expected("JAX-style", 1, 2, (0, 1), "node1:1234")),
        (PLAIN, expected("plain", 1, 2, (0, 1), "node1:29500")),
        (PLAIN | SRUN, expected("plain", 1, 2, (0, 1), "node1:29500")),
    ],
)  # fmt: skip
def test_the_rank_of_a_process(environment: dict[str, str], result: LaunchedRank) -> None:
    assert detect_launcher(environment) == result


def test_every_launcher_is_in_the_table_above() -> None:
    rows = [TORCHRUN, SRUN, JSRUN, OPEN_MPI, HYDRA, PALS, PBSDSH, JAX, PLAIN]
    results = {answer.launcher for row in rows if (answer := detect_launcher(row)) is not None}
    assert results == {row.name for row in LAUNCHERS}


@pytest.mark.parametrize("environment", [{}, SLURM_BATCH, PBS_BATCH, JAX | {"JAX_PROCESS_ID": ""}])
def test_a_batch_script_is_no_rank(environment: dict[str, str]) -> None:
    assert detect_launcher(environment) is None


def test_all_ranks_of_a_job_derive_the_same_port_and_job_steps_differ() -> None:
    def port(**changed: str) -> int:
        answer = detect_launcher(SRUN | changed)
        assert answer is not None
        return answer.port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    assert port() != port(SLURM_STEP_ID="1")
    assert port(MASTER_PORT="1234") == 1234
    assert port(MASTER_PORT="1234", DRUMLINE_MASTER_PORT="4321") == 4321


def test_our_own_port_is_not_where_torchrun_serves_its_store() -> None:
    answer = detect_launcher(TORCHRUN | {"DRUMLINE_MASTER_PORT": "4321"})
    assert answer is not None
    assert (answer.port, answer.store_served) == (4321, False)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (SRUN | {"SLURM_PROCID": "7"}, "SLURM_PROCID=7 contradicts SLURM_STEP_NUM_TASKS=7"),
        (SRUN | {"SLURM_NODEID": "2"}, "does not say how many ranks node 2 has"),
        (SRUN | {"SLURM_LOCALID": "3"}, "SLURM_LOCALID=3 contradicts SLURM_STEP_TASKS_PER_NODE"),
        (SRUN | {"SLURM_STEP_NODELIST": "a["}, "SLURM_STEP_NODELIST=a[ names no host"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": ""}, "SIZE is not set, though OMPI_COMM_WORLD_RANK=3"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "8"}, "nothing else says on which host rank 0 runs"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "one"}, "OMPI_COMM_WORLD_RANK=one is no number"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "5"}, "LOCAL_SIZE=5 contradicts OMPI_COMM"),
        (JAX | {"JAX_COORDINATOR_ADDRESS": "node1"}, "JAX_COORDINATOR_ADDRESS=node1 names no host"),
        (PLAIN | {"MASTER_PORT": "70000"}, "MASTER_PORT=70000 gives no port from 1 to 65535"),
        (PLAIN | {"MASTER_ADDR": ""}, "plain: MASTER_ADDR is not set"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        detect_launcher(environment)
    assert sentence in str(raised.value)
