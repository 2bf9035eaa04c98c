"""Initial weights of a run without a checkpoint or snapshot.

They are random by seed and name (`models.initialize`), or from a folder in the layout of Hugging
Face. With adapters the base is frozen, and with preferences the reference (`adapters.base`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from drumline_contract import RestoreTier
from drumline_contract.config import Family, TrainerConfig
from drumline_trainer.adapters.base import initialize_frozen_and_adapters, with_progress
from drumline_trainer.assembly.parallel_model import ParallelModel
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.recovery.tiered_checkpointer import StartingPoint


def initialize_weights(
    parallel_model: ParallelModel,
    start: StartingPoint,
    *,
    config: TrainerConfig,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Fill what `start` did not restore; `weights.refresh_copies()` has to follow. Collective.

    Args:
        parallel_model: assembled; what `start` restored is filled.
        start: where training begins.
        config: configuration of the run.
        device: device of the tensors that travel between ranks.
        progress: called between two weights.

    Raises:
        ConfigError: the folder of weights is not of this model, or what was restored belongs to
            another base.
    """
    fresh = start.tier is RestoreTier.INITIAL
    # transformers modules read or draw weights by their own rules, also without a base.
    own = config.model.family is not Family.TRANSFORMERS
    # Without a base every weight is trained, so a restored run has all of them.
    if own and not config.has_base and config.model_from is None:
        if fresh:
            slices = with_progress(progress, parallel_model.slices)
            initialize_slices(slices, config=config.model, seed=config.seed)
        return
    initialize_frozen_and_adapters(
        parallel_model.slices,
        parallel_model.frozen,
        parallel_model.stages,
        config=config,
        # A restored run still needs its frozen weights, and checks that the base is the same.
        restored=None if fresh else start.trainer,
        device=device,
        progress=progress,
    )
