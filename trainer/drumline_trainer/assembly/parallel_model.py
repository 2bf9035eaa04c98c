"""The model that a rank trains: its stages with every parallelism applied, and how to step it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from drumline_trainer.assembly.preferences import Preferences
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.mixture import MixtureOfExperts, mixtures_of, set_loss_scale
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.parallelism.pipeline_parallel.tied import TiedGroup, sum_tied_gradients
from drumline_trainer.sharding.slices import TensorSlice


class PipelineSchedule(Protocol):
    """`parallelism.pipeline_parallel.pipeline.Pipeline`, whose module imports torch's compiler."""

    def forward_backward(
        self,
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        documents: Sequence[tuple[Documents, ...]] = (),
    ) -> Tensor:
        """Pass all micro-batches through; the sum of the losses, 0 without the last stage.

        Args:
            inputs: inputs of each micro-batch [batch, sequence].
            targets: targets of each micro-batch [batch, sequence].
            documents: limits of documents, by micro-batch.
        """
        ...

    def forward_loss(
        self,
        inputs: Tensor,
        targets: Tensor,
        documents: tuple[Documents, ...],
        *,
        summed: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the loss of a micro-batch (a scalar), 0 without the last stage. No gradients.

        Args:
            inputs: inputs [batch, sequence].
            targets: targets [batch, sequence].
            documents: limits of documents in each sequence.
            summed: loss that is summed over tokens.
        """
        ...


@dataclass(slots=True)
class MeanLoss:
    """A micro-batch's part of the mean over all targets of the global batch, scaled for fp16."""

    summed: Callable[[Tensor, Tensor], Tensor]
    divisor: float = 1.0
    """Targets of the global batch by the scale."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of logits, whole or cut by vocabulary, and of the targets."""
        # The sum is divided by the targets of the whole global batch. Gradients of all ranks then
        # add up to the mean's.
        return self.summed(logits, targets) / self.divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel:
    """This rank's part of the model."""

    stages: tuple[nn.Module, ...]
    """A single stage, but for pipelines whose ranks have several."""
    weights: DataParallelModel
    slices: tuple[TensorSlice, ...]
    """The fp32 weights this rank updates; `weights.refresh_copies()` follows an update."""
    loss: MeanLoss
    pipeline: PipelineSchedule | None = None
    tied: TiedGroup | None = None
    """The two ranks that hold a tied embedding at the ends of a pipeline."""
    preferences: Preferences | None = None
    """None: every target is learned."""
    siblings: int = 1
    """Models like this that share the global batch but not the update (`workers`)."""
    _mixtures: tuple[MixtureOfExperts, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find the mixtures of experts once: the walk over all modules takes time in each step."""
        mixtures = tuple(mixture for stage in self.stages for mixture in mixtures_of(stage))
        object.__setattr__(self, "_mixtures", mixtures)

    @property
    def frozen(self) -> tuple[TensorSlice, ...]:
        """Weights of a base or a reference. No update changes them and no checkpoint holds them."""
        copy = None if self.preferences is None else self.preferences.reference
        return (*self.weights.frozen, *(() if copy is None else copy.weights.frozen))

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All that this rank holds of models."""
        copy = None if self.preferences is None else self.preferences.reference
        return (*self.stages, *(() if copy is None else (copy.module,)))

    def begin_step(self, *, targets: int, tokens: int | None = None, scale: float = 1.0) -> None:
        """Begin a step, and drop the gradients of the last one.

        If siblings share the batch, each takes the mean over an equal part of the targets.

        Args:
            targets: number of targets in the global batch.
            tokens: number of tokens in it, for the mean of the loss that balances experts. It
                includes tokens that are not trained on. None: equal to `targets`.
            scale: a power of 2 that losses and gradients are multiplied by.
        """
        # Each sibling updates its own weights, so its loss is a mean over its own part of the
        # batch.
        own_targets = targets / self.siblings
        self.weights.zero()
        if self.preferences is not None:
            self.preferences.rewards = None
        # Dividing by targets / scale multiplies by the scale. It is a power of 2, so the product is
        # exact.
        self.loss.divisor = own_targets / scale
        # The balance loss counts every token, learned or not.
        own_tokens = (targets if tokens is None else tokens) / self.siblings
        set_loss_scale(self._mixtures, scale / own_tokens)

    def micro_batch_loss(
        self, inputs: Tensor, targets: Tensor, documents: Sequence[Documents]
    ) -> Tensor:
        """Return a micro-batch's part of the global batch's mean loss, for a model in one stage.

        Args:
            inputs: inputs [batch, sequence].
            targets: targets [batch, sequence].
            documents: limits of documents in each sequence.
        """
        (model,) = self.stages
        # Phase 1: ordinary targets. `documents` is empty unless documents are separate.
        if self.preferences is None:
            return self.loss(model(inputs, *documents), targets)
        # Phase 2: pairs of answers. They always have documents, one for each answer.
        (separate,) = documents
        losses = self.preferences.losses_sum(model, inputs, targets, separate)
        return losses / self.loss.divisor

    def counted(self) -> Tensor | None:
        """Return this rank's part of the mean rewards of pairs [3], times the scale.

        None: no pairs.
        """
        if self.preferences is None or self.preferences.rewards is None:
            return None
        # The same divisor as the loss, so that means over the ranks are sums.
        return self.preferences.rewards / self.loss.divisor

    @torch.no_grad()
    def held_out_loss(
        self, inputs: Tensor, targets: Tensor, documents: tuple[Documents, ...]
    ) -> Tensor:
        """Return this rank's part of the summed loss of a held-out micro-batch (a scalar).

        Args:
            inputs: inputs [batch, sequence].
            targets: targets [batch, sequence].
            documents: limits of documents in each sequence.
        """
        # All ranks of a pipeline take part, and only the last stage has a loss.
        if self.pipeline is not None:
            return self.pipeline.forward_loss(inputs, targets, documents, summed=self.loss.summed)
        (model,) = self.stages
        return self.loss.summed(model(inputs, *documents), targets)

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the slices, summed over all ranks.

        Call it after the backward passes of all micro-batches. Collective.
        """
        # The data axis first: the two ends of a pipeline sum gradients that are complete at each
        # end.
        gradients = self.weights.gradients()
        if self.pipeline is not None:
            sum_tied_gradients(self.slices, gradients, tied=self.tied)
        return gradients
