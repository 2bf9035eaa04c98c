"""Interface of a data-parallel model to the rest of the trainer, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, nn

from drumline_trainer.parallelism.data_parallel.ddp import DdpModel
from drumline_trainer.parallelism.data_parallel.zero import ZeroModel
from drumline_trainer.sharding.slices import TensorSlice


class DataParallelModel(Protocol):
    """The part of the model that this rank holds and updates."""

    slices: tuple[TensorSlice, ...]
    """fp32 weights that this rank updates, in place."""
    frozen: tuple[TensorSlice, ...]
    """Weights that are not updated (`requires_grad` is off), in the type they are kept in."""

    @property
    def stage_done(self) -> Callable[[nn.Module], None] | None:
        """For a pipeline to call when all gradients are in a stage; None where it has no use.

        Where backward passes are split, torch accumulates weights' gradients past all hooks.
        """
        ...

    def gradients(self) -> list[Tensor]:
        """Return one fp32 sum for each slice, zeros if there was no gradient.

        Once a step, after the last backward pass; waits for collectives that are under way.
        """
        ...

    def refresh_copies(self) -> None:
        """Refresh gathered or low-precision copies from the slices. Collective.

        The next forward pass uses what has been written into the slices.
        """
        ...

    def zero(self) -> None:
        """Drop the gradients."""
        ...


class CombinedModel:
    """Ordinary weights and experts, which are summed over different ranks, as one model."""

    def __init__(
        self, parts: Sequence[DdpModel | ZeroModel], *, frozen: tuple[TensorSlice, ...]
    ) -> None:
        self._parts = parts
        self.slices = tuple(weight for part in parts for weight in part.slices)
        self.frozen = frozen

    def gradients(self) -> list[Tensor]:
        """Return the gradients of all parts."""
        return [gradient for part in self._parts for gradient in part.gradients()]

    def refresh_copies(self) -> None:
        """Refresh the copies of all parts."""
        for part in self._parts:
            part.refresh_copies()

    def stage_done(self, stage: nn.Module) -> None:
        """Tell all parts that the stage is done."""
        for part in self._parts:
            part.stage_done(stage)

    def zero(self) -> None:
        """Zero the gradients of all parts."""
        for part in self._parts:
            part.zero()
