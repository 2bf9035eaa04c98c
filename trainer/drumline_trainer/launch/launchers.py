"""Detects the launcher that started this process, and the rank that it assigned.

A launcher assigns ranks by environment variables; each has its own names. `LAUNCHERS` lists them,
the most specific first: mpirun in a Slurm job inherits Slurm's variables, with the rank of the
daemon that started it; a batch script has the variables of its job, but is not a rank (so Slurm is
detected by variables that only srun sets, and PBS by WORLD_SIZE beside its own).

Pure: environment in, `LaunchedRank` out, or an error that names the variable. Our own agent is not
in the table: it forks its ranks and gives them a `Placement`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import STORE_PORT
from drumline_contract.config import ConfigError
from drumline_trainer.launch.nodelist import (
    first_compute_host,
    first_in_nodelist,
    host_part,
    port_part,
    tasks_of,
)

Environment = Mapping[str, str]
RankProgram = Callable[[Placement], int]
"""The program of a rank; returns an exit code of the contract."""
LOOPBACK = "127.0.0.1"
PORT_VARIABLE = "DRUMLINE_MASTER_PORT"
"""Overrides the port that the launcher gives or that is derived from the job."""
_PORTS = range(1, 65536)
DERIVED_PORTS = range(20000, 29000)
"""Below those that Linux gives to outgoing connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher. If a field lists several variables, the first one that is set counts."""

    name: str
    known_by: tuple[str, ...]
    """Variables that are all set if this launcher started the process."""
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ("LOCAL_RANK",)
    """Variables of the local rank. None set: 0, one rank per node."""
    local_world_size: tuple[str, ...] = ("LOCAL_WORLD_SIZE",)
    """Variables of the number of local ranks. None set: 1, one rank per node."""
    address: tuple[str, ...] = ()
    """Host of rank 0. MASTER_ADDR goes before, and loopback where all ranks are on one node."""
    port: tuple[str, ...] = ("MASTER_PORT",)
    job: tuple[str, ...] = ()
    """Variables that identify a run on shared hosts. The default port is derived from them."""
    attempt: tuple[str, ...] = ()
    """Variables with the number of restarts of this run."""


LAUNCHERS = (
    Launcher(
        name="torchrun",
        known_by=("TORCHELASTIC_RUN_ID", "RANK"),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        attempt=("TORCHELASTIC_RESTART_COUNT",),
    ),
    Launcher(
        name="LSF (jsrun)",
        known_by=("JSM_NAMESPACE_RANK",),
        rank=("JSM_NAMESPACE_RANK",),
        world_size=("JSM_NAMESPACE_SIZE",),
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
        address=("LSB_MCPU_HOSTS",),
        job=("LSB_JOBID",),
    ),
    Launcher(
        name="Open MPI (mpirun)",
        known_by=("OMPI_COMM_WORLD_RANK",),
        rank=("OMPI_COMM_WORLD_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        address=("SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"),
        job=("PMIX_NAMESPACE", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    ),
    Launcher(
        name="MPICH and Intel MPI (mpiexec.hydra)",
        known_by=("PMI_RANK", "MPI_LOCALRANKID"),
        rank=("PMI_RANK",),
        world_size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_world_size=("MPI_LOCALNRANKS",),
        address=("SLURM_JOB_NODELIST", "LSB_MCPU_HOSTS"),
        job=("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"),
    ),
    Launcher(
        name="PBS with PALS (mpiexec)",
        known_by=("PALS_APID", "PMI_RANK"),
        rank=("PMI_RANK",),
        world_size=("PMI_SIZE",),
        local_rank=("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"),
        local_world_size=("PMI_LOCAL_SIZE",),
        job=("PBS_JOBID", "PALS_APID"),
    ),
    Launcher(
        name="plain",
        known_by=("RANK", "WORLD_SIZE"),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
    ),
    Launcher(
        name="PBS (pbsdsh)",
        known_by=("PBS_JOBID", "PBS_NODENUM", "WORLD_SIZE"),
        rank=("PBS_VNODENUM", "PBS_NODENUM"),
        world_size=("WORLD_SIZE",),
        job=("PBS_JOBID",),
    ),
    Launcher(
        name="Slurm (srun)",
        known_by=("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        rank=("SLURM_PROCID",),
        world_size=("SLURM_STEP_NUM_TASKS",),
        local_rank=("SLURM_LOCALID",),
        local_world_size=("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
        address=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        attempt=("SLURM_RESTART_COUNT",),
    ),
    Launcher(
        name="JAX-style",
        known_by=("JAX_PROCESS_ID",),
        rank=("JAX_PROCESS_ID",),
        world_size=("JAX_NUM_PROCESSES",),
        address=("JAX_COORDINATOR_ADDRESS",),
        port=("JAX_COORDINATOR_ADDRESS",),
    ),
)

_READ_HOST: dict[str, Callable[[str], str]] = {
    "SLURM_STEP_NODELIST": first_in_nodelist,
    "SLURM_JOB_NODELIST": first_in_nodelist,
    "LSB_MCPU_HOSTS": first_compute_host,
    "JAX_COORDINATOR_ADDRESS": host_part,
}
"""Parsers of variables whose value is not a bare host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """The rank that a launcher assigned to this process."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    """Host name or IP of rank 0."""
    port: int
    attempt: int = 0
    store_served: bool = False
    """The launcher itself serves the store there; else rank 0 does."""

    @property
    def single_node(self) -> bool:
        """True if all ranks are on this machine."""
        return self.local_world_size == self.world_size


def detect_launcher(environment: Environment) -> LaunchedRank | None:
    """Return the rank of this process. None: it was not started by a launcher.

    Raises:
        ConfigError: a variable is missing, not a number, or contradicts another.
    """
    # The first row wins: `LAUNCHERS` is ordered from the most specific to the most general.
    row = next((row for row in LAUNCHERS if all(map(environment.get, row.known_by))), None)
    return None if row is None else _Reading(row=row, environment=environment).whole()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One row against one environment."""

    row: Launcher
    environment: Environment

    def whole(self) -> LaunchedRank:
        row = self.row
        # Phase 1: numbers.
        rank, world_size = self._number(row.rank), self._number(row.world_size)
        local_rank = self._number(row.local_rank, default=0)
        local_world_size = self._local_world_size()
        # Phase 2: contradictions. A wrong rank would otherwise hang the rendezvous until its
        # timeout.
        if rank >= world_size:
            raise self._contradiction(row.rank, row.world_size)
        if local_rank >= local_world_size:
            raise self._contradiction(row.local_rank, row.local_world_size)
        if local_world_size > world_size:
            raise self._contradiction(row.local_world_size, row.world_size)
        # torchrun's agent serves a store on MASTER_PORT, so rank 0 must connect and not listen.
        served = self.environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return LaunchedRank(
            launcher=row.name,
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=local_world_size,
            address=self._address(single_node=local_world_size == world_size),
            port=self._port(),
            attempt=self._number(row.attempt, default=0),
            # With a port of its own, the run does not use the store of torchrun.
            store_served=served and PORT_VARIABLE not in self.environment,
        )

    def _address(self, *, single_node: bool) -> str:
        # One node needs no name: all ranks reach loopback.
        if single_node or self.environment.get("MASTER_ADDR"):
            return self.environment.get("MASTER_ADDR") or LOOPBACK
        variable = self._first_set(self.row.address)
        if variable is None:
            raise self._error(
                "MASTER_ADDR is not set, and nothing else says on which host rank 0 runs; set it"
                " to that host's name on all ranks"
            )
        # Host lists have formats of their own. A bare name passes unchanged.
        try:
            return _READ_HOST.get(variable, str)(self.environment[variable])
        except (ValueError, IndexError) as error:
            raise self._error(f"{self._assignment((variable,))} names no host") from error

    def _port(self) -> int:
        """Return the given port, or one derived from the job: the same on all ranks."""
        # The user's variable comes first, then the usual one, then the launcher's own.
        variable = self._first_set((PORT_VARIABLE, "MASTER_PORT", *self.row.port))
        if variable is None:
            # Every rank has the same job variables, so all derive the same port without a message.
            parts = [self.environment[name] for name in self.row.job if name in self.environment]
            # CRC and not `hash`, which Python randomizes for each process.
            place = zlib.crc32(" ".join(parts).encode()) % len(DERIVED_PORTS)
            return DERIVED_PORTS[place] if parts else STORE_PORT
        text = port_part(self.environment[variable])
        if not text.isdecimal() or int(text) not in _PORTS:
            raise self._error(f"{self._assignment((variable,))} gives no port from 1 to 65535")
        return int(text)

    def _local_world_size(self) -> int:
        """Return the number of local ranks: a number, or in Slurm this node's entry of a list.

        Raises:
            ConfigError: the list does not have this node.
        """
        names = self.row.local_world_size
        # Slurm's list has one entry for each node, such as `4(x2),3`. Other variables are numbers.
        if self._first_set(names) != "SLURM_STEP_TASKS_PER_NODE":
            return self._number(names, default=1)
        node = self._number(("SLURM_NODEID",), default=0)
        try:
            return tasks_of(self.environment["SLURM_STEP_TASKS_PER_NODE"])[node]
        except (ValueError, IndexError) as error:
            message = f"{self._assignment(names)} does not say how many ranks node {node} has"
            raise self._error(message) from error

    def _number(self, names: tuple[str, ...], *, default: int | None = None) -> int:
        variable = self._first_set(names)
        # Only local figures and attempts have defaults. A rank without a number cannot join.
        if variable is None and default is not None:
            return default
        if variable is None:
            raise self._error(
                f"{names[0]} is not set, though {self._assignment(self.row.known_by)} is"
            )
        # `isdecimal` rejects signs and spaces, which `int` accepts.
        if not self.environment[variable].isdecimal():
            raise self._error(f"{self._assignment(names)} is no number")
        return int(self.environment[variable])

    def _contradiction(self, small: tuple[str, ...], large: tuple[str, ...]) -> ConfigError:
        return self._error(f"{self._assignment(small)} contradicts {self._assignment(large)}")

    def _assignment(self, names: tuple[str, ...]) -> str:
        """Return the variable that is set, as `NAME=value`."""
        variable = self._first_set(names)
        return (
            f"{names[0]} unset" if variable is None else f"{variable}={self.environment[variable]}"
        )

    def _first_set(self, names: tuple[str, ...]) -> str | None:
        """Return the first variable with a value. An empty value counts as unset."""
        return next((name for name in names if self.environment.get(name)), None)

    def _error(self, sentence: str) -> ConfigError:
        return ConfigError(f"{self.row.name}: {sentence}")
