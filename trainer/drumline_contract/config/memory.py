"""The section `memory`: recomputation and offload."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config.bounds import Layers
from drumline_contract.config.errors import ConfigError, require_positive
from drumline_contract.config.optimizer import OptimizerConfig, OptimizerKind
from drumline_contract.config.parallelism import DataParallel, ParallelismConfig


class Recompute(StrEnum):
    """Activations that are dropped and recomputed in the backward pass."""

    NONE = "none"
    """Keep them all."""
    SELECTIVE = "selective"
    """All but the results of matrix products and attention."""
    FULL = "full"
    """All but the input of every layer."""
    BLOCKS = "blocks"
    """All but the input of every k-th layer; computed again run by run, then layer by layer."""


class Offload(StrEnum):
    """Location of a tensor while the device does not work on it."""

    NONE = "none"
    """On the device."""
    CPU = "cpu"
    """In the host's memory."""
    NVME = "nvme"
    """In a file of `offload_folder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Ways to trade speed for memory, cheapest first."""

    recompute: Recompute = Recompute.NONE
    recompute_every: Layers | None = None
    """With blocks: the layers of a run. None: the square root of a stage's layers."""
    shard_gradients: bool | None = None
    """With fsdp: gradients are summed over the ranks after each micro-batch, so that a rank holds
    its slice alone. Otherwise whole ones, 4 bytes a parameter, wait for the last micro-batch, and
    are sent once. Over replicas they are summed once in either case. None: where whole ones would
    be more than 8 GiB."""
    offload_optimizer: Offload = Offload.NONE
    """The optimizer's moments, and fp32 weights where the model computes with a copy of them."""
    offload_parameters: Offload = Offload.NONE
    """With fsdp: weights and their gradients, which are then also updated on the host."""
    offload_activations: Offload = Offload.NONE
    """Location of the activations that layers keep for the backward pass. With recompute these are
    the layers' inputs."""
    offload_folder: str | None = None
    """For nvme: on a disk of the node. Files in it have no names, and end with their process."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"memory.recompute_every": self.recompute_every or 1})
        goes = self.offload_activations is not Offload.NONE
        if goes and self.recompute is Recompute.SELECTIVE:
            raise ConfigError(
                "memory.offload_activations: what recompute selective keeps, torch keeps itself;"
                " use none, full or blocks"
            )
        for name in ("offload_optimizer", "offload_parameters", "offload_activations"):
            if getattr(self, name) is Offload.NVME and not self.offload_folder:
                raise ConfigError(
                    f"memory.offload_folder: must name a folder on a disk of the node, as"
                    f" memory.{name} is nvme"
                )

    def check_beside(
        self, parallelism: ParallelismConfig, optimizer: OptimizerConfig, *, adapters: bool
    ) -> None:
        """Validate against these sections. Raises ConfigError.

        Args:
            parallelism: degrees of parallelism.
            optimizer: settings of the optimizer.
            adapters: whether the run trains adapters.
        """
        kind = parallelism.data_parallel
        if self.shard_gradients and kind is not DataParallel.FSDP:
            raise ConfigError(
                f"memory.shard_gradients: is for fsdp, not {kind}; zero2 always sums them after"
                " each micro-batch"
            )
        if self.shard_gradients and (parallelism.pipeline or 1) > 1:
            raise ConfigError(
                "memory.shard_gradients: a pipeline sums gradients with the last micro-batch;"
                " leave it out"
            )
        # Offloading of state needs a rank that owns whole slices of it.
        weights = {self.offload_optimizer, self.offload_parameters} != {Offload.NONE}
        if weights and kind is DataParallel.PARAMETER_SERVER:
            raise ConfigError(
                "memory.offload_optimizer: parameter servers hold the state already; leave it out"
            )
        if weights and parallelism.local_sgd is not None:
            raise ConfigError(
                "memory.offload_optimizer: not with local_sgd, whose ranks exchange weights from"
                " their devices; offload_activations works"
            )
        # Later rules concern offloaded parameters only.
        if self.offload_parameters is Offload.NONE:
            return
        if kind is not DataParallel.FSDP:
            raise ConfigError(
                f"memory.offload_parameters: is for fsdp, not {kind}; offload_optimizer takes the"
                " fp32 weights that bf16 and fp16 have beside the model's"
            )
        if optimizer.kind is OptimizerKind.MUON:
            raise ConfigError(
                "memory.offload_parameters: muon multiplies matrices, and would on the host; use"
                " adamw or sgd"
            )
        if adapters:
            raise ConfigError(
                "memory.offload_parameters: not with lora; its frozen weights can be packed instead"
                " (lora.base_bits)"
            )
