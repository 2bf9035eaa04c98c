"""The section `optimizer`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config.bounds import Batch, Steps
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive


class OptimizerKind(StrEnum):
    """Rules of the update."""

    ADAMW = "adamw"
    """Loshchilov and Hutter 2019."""
    SGD = "sgd"
    """With momentum."""
    MUON = "muon"
    """Orthogonalised momentum for the layers' matrices, AdamW for everything else."""


class RateSchedule(StrEnum):
    """Course of the learning rate after its warm-up."""

    COSINE = "cosine"
    """Falls by half a cosine."""
    LINEAR = "linear"
    """Falls in a line."""
    WSD = "wsd"
    """Warm-up, stable, decay: falls in a line over the last steps only."""
    CONSTANT = "constant"
    """Stays at the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The rule of the update, and its rate over the steps."""

    kind: OptimizerKind = OptimizerKind.ADAMW
    schedule: RateSchedule = RateSchedule.COSINE
    learning_rate: float = 3e-3
    """The peak, reached at the end of the warm-up."""
    reference_batch_size: Batch | None = None
    """Global batch that `learning_rate` was found with: at another one the rate is multiplied by
    their ratio (the linear scaling rule; leave the warm-up some steps). None: it stays as it is."""
    min_learning_rate_ratio: float = 0.1
    """Share of the peak that is left in the last step; constant keeps all of it."""
    warmup_steps: Steps = 10
    """Steps over which the rate rises in a line to its peak; 0: none."""
    decay_share: float = 0.2
    """Share of all steps over which wsd decays."""
    beta1: float = 0.9
    """With adamw, and for weights that muon leaves to adamw: decay of the first moment."""
    beta2: float = 0.95
    """With adamw, and for weights that muon leaves to adamw: decay of the second moment."""
    epsilon: float = 1e-8
    """With adamw, and for weights that muon leaves to adamw: added to the root of the second
    moment."""
    momentum: float = 0.95
    """With sgd and muon: share of the momentum that remains from step to step."""
    bf16_iteration: bool = False
    """With muon: run its iteration in bf16, as its authors do, instead of fp32. Much faster on
    GPUs, but rounding then differs between layouts."""
    weight_decay: float = 0.1
    """Decay of matrices. Embeddings, norms and biases do not decay. With sgd it is added to the
    gradient; otherwise it is decoupled."""
    max_gradient_norm: float | None = 1.0
    """Gradients whose norm over all weights is larger are scaled down to it. None: none are."""
    average_decay: float = 0.0
    """Share of an exponential moving average of the weights that each update keeps, 0.999 say,
    reached over the first updates. It is saved beside the weights, for `evaluation.average` and
    `export --average`. 0: none is kept."""
    loss_scale: float = 65536.0
    """fp16 only: what the loss is multiplied by at first; a power of 2. Halved, and the step
    skipped, when gradients overflow."""
    loss_scale_growth_steps: Steps = 2000
    """fp16 only: number of steps without an overflow after which the loss scale doubles."""
    max_skipped_steps: Steps = 0
    """fp32 and bf16 only: maximum number of steps of the run that are skipped because the loss or a
    gradient is not finite. Each is logged. One more ends the run."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "optimizer.learning_rate": self.learning_rate,
                "optimizer.max_gradient_norm": (
                    1 if self.max_gradient_norm is None else self.max_gradient_norm
                ),
                "optimizer.decay_share": self.decay_share,
                "optimizer.loss_scale_growth_steps": self.loss_scale_growth_steps,
                "optimizer.reference_batch_size": (
                    1 if self.reference_batch_size is None else self.reference_batch_size
                ),
            }
        )
        require_not_negative(
            {
                "optimizer.warmup_steps": self.warmup_steps,
                "optimizer.max_skipped_steps": self.max_skipped_steps,
                "optimizer.epsilon": self.epsilon,
                "optimizer.weight_decay": self.weight_decay,
            }
        )
        if self.bf16_iteration and self.kind is not OptimizerKind.MUON:
            raise ConfigError("optimizer.bf16_iteration: is for muon; leave it out, or set kind")
        # A decay of 1 would never take up a new value.
        for name in ("beta1", "beta2", "momentum", "average_decay"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"optimizer.{name}: must be at least 0 and below 1, not {value}")
        for name in ("min_learning_rate_ratio", "decay_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"optimizer.{name}: must be between 0 and 1, not {value}")
        # frexp gives a mantissa of 0.5 exactly for powers of 2.
        if self.loss_scale < 1 or math.frexp(self.loss_scale)[0] != 0.5:
            raise ConfigError(
                f"optimizer.loss_scale: must be a power of 2 and at least 1, not {self.loss_scale}"
            )
