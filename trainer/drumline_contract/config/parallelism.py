"""The section `parallelism`: degrees by axis, data parallelism, the pipeline schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from drumline_contract.config.bounds import Layers, Ranks, Steps
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive


class ServerMode(StrEnum):
    """When a server applies what workers push."""

    SYNCHRONOUS = "synchronous"
    """Once per step, the sum of all gradients, like ddp."""
    ASYNCHRONOUS = "asynchronous"
    """Each push on arrival. Workers are at most `max_staleness` steps apart (Ho et al. 2013)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """With data_parallel parameter-server: how many servers, and when they apply what comes."""

    servers: Ranks = 1
    """Among which the weights and the optimizer's state are shared out by rows; threads of ranks
    spread evenly."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    max_staleness: Steps = 2
    """Asynchronous only: steps that the fastest worker may be ahead of the slowest."""
    copies_per_node: Ranks = 1
    """Above 1 the synchronization is hierarchical. This number of neighbouring model copies on a
    node sum their gradients first. One of them pushes and pulls for all."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "parallelism.server.servers": self.servers,
                "parallelism.server.copies_per_node": self.copies_per_node,
            }
        )
        require_not_negative({"parallelism.server.max_staleness": self.max_staleness})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgdConfig:
    """Copies of the model that train alone and meet now and then (DiLoCo, Douillard et al. 2023).

    With an outer rate of 1 and no momentum it is plain local SGD: weights are averaged.
    """

    every_steps: Steps = 50
    """Steps from one meeting to the next."""
    outer_learning_rate: float = 0.7
    """Learning rate of the outer step, which uses the mean distance that the copies moved."""
    outer_momentum: float = 0.9
    """Nesterov's."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "parallelism.local_sgd.every_steps": self.every_steps,
                "parallelism.local_sgd.outer_learning_rate": self.outer_learning_rate,
            }
        )
        # A momentum of 1 would never forget.
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                "parallelism.local_sgd.outer_momentum: must be at least 0 and below 1, not"
                f" {self.outer_momentum}"
            )


class LayoutMode(StrEnum):
    """Source of the layout: the configuration, or the planner."""

    MANUAL = "manual"
    """It is as it is written."""
    AUTO = "auto"
    """The planner, by the devices that the ranks find: what is at its default, with
    `micro_batch_size` and `memory.recompute`. All else stays as it is written."""


class DataParallel(StrEnum):
    """State that is replicated on ranks with different samples (Rajbhandari et al. 2020)."""

    DDP = "ddp"
    """Everything."""
    ZERO1 = "zero1"
    """Weights and gradients; the optimizer's state is shared out."""
    ZERO2 = "zero2"
    """Weights; gradients and the optimizer's state are shared out."""
    FSDP = "fsdp"
    """No state is replicated: ZeRO-3. With `replicate` above 1 it is HSDP, copies of sharded
    groups."""
    PARAMETER_SERVER = "parameter-server"
    """Weights and gradients; what is updated lies on servers (Li et al. 2014)."""


class Schedule(StrEnum):
    """In which order a pipeline's ranks work on their micro-batches."""

    GPIPE = "gpipe"
    """All forward passes, then all backward passes (Huang et al. 2018)."""
    ONE_F_ONE_B = "1f1b"
    """One forward, one backward, once the pipeline is full (Narayanan et al. 2019)."""
    INTERLEAVED = "interleaved"
    """1F1B with several stages on each rank (Narayanan et al. 2021)."""
    ZERO_BUBBLE = "zero-bubble"
    """Interleaved with split backward passes (Qi et al. 2023)."""
    ZBV = "zbv"
    """Split backward passes, two stages a rank in a V (Qi et al. 2023)."""
    DUAL_PIPE_V = "dualpipev"
    """The V of zbv, with paired forward and backward passes (DeepSeek-AI 2024)."""

    @property
    def splits_backward(self) -> bool:
        """True if gradients of inputs and of weights are computed at different times."""
        return self in (Schedule.ZERO_BUBBLE, Schedule.ZBV, Schedule.DUAL_PIPE_V)

    @property
    def is_v_shaped(self) -> bool:
        """True if each rank has two stages, and the first rank also has the last stage."""
        return self in (Schedule.ZBV, Schedule.DUAL_PIPE_V)

    @property
    def interleaves(self) -> bool:
        """True if each rank has several stages."""
        return self not in (Schedule.GPIPE, Schedule.ONE_F_ONE_B)


class StageBalance(StrEnum):
    """Cost of layers that the division into pipeline stages balances.

    The slowest stage is made as fast as possible.
    """

    COST = "cost"
    """Computed operations of the layers, the embedding and the head."""
    MEASURED = "measured"
    """Measured stage times from before the checkpoint that the run resumes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismConfig:
    """Degrees that divide the ranks. The remaining factor is used for data parallelism."""

    mode: LayoutMode = LayoutMode.MANUAL
    data_parallel: DataParallel = DataParallel.FSDP
    replicate: Ranks = 1
    """With fsdp: copies of the sharded model (HSDP); weights travel within a copy only."""
    tensor: Ranks = 1
    """Ranks that share every matrix product; fastest inside one node."""
    sequence_parallel: bool = True
    """With tensor above 1: norms and residuals are shared out by position too."""
    context: Ranks = 1
    """Ranks that share every sequence (ring attention)."""
    pipeline: Ranks = 1
    """Groups of layers, one after the other."""
    schedule: Schedule = Schedule.ONE_F_ONE_B
    stages_per_rank: Layers | None = None
    """Stages of the pipeline on each rank. None: 1, or 2 where the schedule has several."""
    stage_balance: StageBalance = StageBalance.COST
    expert: Ranks = 1
    """Ranks that share the experts of a mixture. They are a subset of the data-parallel ranks."""
    server: ServerConfig = field(default_factory=ServerConfig)
    local_sgd: LocalSgdConfig | None = None
    """Copies of the model (`replicate`; with ddp, all copies) train alone and are averaged at
    intervals. None: all ranks do every step together."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "parallelism.replicate": self.replicate,
                "parallelism.tensor": self.tensor,
                "parallelism.context": self.context,
                "parallelism.pipeline": self.pipeline,
                "parallelism.expert": self.expert,
                "parallelism.stages_per_rank": self.stages_per_rank or 1,
            }
        )
        # The planner predicts synchronous steps.
        if self.mode is LayoutMode.AUTO and self.independent:
            raise ConfigError(
                "parallelism.mode: auto plans for ranks that make every step together; write the"
                " layout of local_sgd and of asynchronous servers yourself"
            )
        if self.local_sgd is not None:
            self._check_local_sgd()
        if self.data_parallel is DataParallel.PARAMETER_SERVER:
            self._check_server()

    @property
    def asynchronous(self) -> bool:
        """True if parameter servers apply each gradient when it arrives."""
        servers = self.data_parallel is DataParallel.PARAMETER_SERVER
        return servers and self.server.mode is ServerMode.ASYNCHRONOUS

    @property
    def independent(self) -> bool:
        """True if some ranks do not synchronize in every step."""
        return self.local_sgd is not None or self.asynchronous

    def _check_local_sgd(self) -> None:
        if self.data_parallel not in (DataParallel.DDP, DataParallel.FSDP):
            raise ConfigError(
                f"parallelism.local_sgd: works with ddp and fsdp; {self.data_parallel} shares out"
                " what copies that train alone do not have in common"
            )

    def _check_server(self) -> None:
        # Experts sum gradients over fewer ranks than dense weights, and servers sum over all.
        if self.expert > 1:
            raise ConfigError(
                "parallelism.expert: parameter servers sum over all copies of the model, and"
                " experts have others; use ddp, zero or fsdp"
            )
        # Parts of one copy must all see the same version of the weights.
        if self.asynchronous and self.tensor * self.context * self.pipeline > 1:
            raise ConfigError(
                "parallelism.server.mode: asynchronous workers are single ranks, as each part of a"
                " copy would get weights of another moment; leave out tensor, context and pipeline"
            )
