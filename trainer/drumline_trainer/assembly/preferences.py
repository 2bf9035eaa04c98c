"""Training on preferences: the loss, and the reference that the model is compared with.

The reference is the initial model. With adapters it is the model without them. If all weights are
trained, it is a second model with frozen weights in the compute type. fsdp shards it like the first
one, and no checkpoint holds it.

Shapes: B batch, S sequence, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drumline_trainer.adapters.lora import without_adapters
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.preferences import (
    answer_log_probabilities,
    preference_losses_sum,
    reward_sums,
)
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCopy:
    """A second model, whole, of which nothing learns."""

    module: nn.Module
    weights: DataParallelModel


@dataclass(slots=True, kw_only=True)
class Preferences:
    """The loss of micro-batches of pairs, and the rewards of a step."""

    beta: float
    reference: FrozenCopy | None
    """None: the model without its adapters."""
    rewards: Tensor | None = None
    """`reward_sums` of this rank's pairs of the step so far."""

    def losses_sum(
        self, model: nn.Module, inputs_BS: Tensor, targets_BS: Tensor, separate: Documents
    ) -> Tensor:
        """Return the summed loss (a scalar) of a micro-batch's pairs. Each answer is a document.

        Args:
            model: model of this rank.
            inputs_BS: tokens.
            targets_BS: tokens, or IGNORED.
            separate: the answers.
        """
        # Phase 1: the reference. No graph is kept, so its activations are freed before the model's
        # forward pass.
        with torch.no_grad():
            reference_P2 = self._reference_answers(model, inputs_BS, targets_BS, separate)
        # Phase 2: the model, with gradients. Both passes see the same tokens and documents.
        answers_P2 = answer_log_probabilities(model(inputs_BS, separate), targets_BS, separate)
        # Rewards are sums without gradients. The mean over ranks is taken with the loss.
        rewards = reward_sums(answers_P2, reference_P2, beta=self.beta)
        self.rewards = rewards if self.rewards is None else self.rewards + rewards
        return preference_losses_sum(answers_P2, reference_P2, beta=self.beta)

    def _reference_answers(
        self, model: nn.Module, inputs_BS: Tensor, targets_BS: Tensor, separate: Documents
    ) -> Tensor:
        """Run the reference without dropout; what was gathered for it is freed afterwards."""
        if self.reference is not None:
            logits_BSV = self.reference.module(inputs_BS, separate)
            # fsdp keeps the last gathered layers for a backward pass. The reference has none, so
            # they are dropped here.
            self.reference.weights.refresh_copies()
            return answer_log_probabilities(logits_BSV, targets_BS, separate)
        # Only dropout differs between the modes. The reference must not be random.
        model.eval()
        with without_adapters(model):
            logits_BSV = model(inputs_BS, separate)
        model.train()
        return answer_log_probabilities(logits_BSV, targets_BS, separate)
