"""Direct preference optimization (Rafailov et al. 2023): the loss of pairs of answers.

Of each pair the chosen answer shall gain on the rejected one, beside a reference:

    gained(answer) = log p(answer) - log r(answer)
    loss = -log sigmoid(beta · (gained(chosen) - gained(rejected)))

p is the model, r the reference, beta · gained an answer's reward; the probability of an answer is
the product of its tokens'. Both answers of a pair are neighbouring documents of a window
(`models.documents`): so each is seen as if alone, and pairs of all lengths share windows. Only the
answers' tokens are targets.

Shapes: B batch, S sequence, V vocabulary, P pairs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from drumline_trainer.models.documents import Documents
from drumline_trainer.models.loss import token_losses


def answer_log_probabilities(
    logits_BSV: Tensor, targets_BS: Tensor, documents: Documents
) -> Tensor:
    """Return the log-probabilities of each pair's chosen and rejected answer, fp32 [P, 2].

    Args:
        logits_BSV: of the model.
        targets_BS: tokens, or IGNORED.
        documents: the answers, in pairs.
    """
    # fp32 [B, S]. Targets of the prompt and of padding are IGNORED and add 0.
    losses_BS = token_losses(logits_BSV, targets_BS).view_as(targets_BS)
    # A run is an answer. Sums per run are log-probabilities, because losses are their negatives.
    sums = [
        losses_S[run].sum()
        for losses_S, runs in zip(losses_BS.unbind(), documents.runs(), strict=True)
        for run in runs[: len(runs) // 2 * 2]  # an odd one at the end is padding
    ]
    # Runs alternate: chosen, rejected. [2 P] becomes [P, 2].
    return -torch.stack(sums).view(-1, 2)


def preference_losses_sum(model_P2: Tensor, reference_P2: Tensor, *, beta: float) -> Tensor:
    """Return the loss (a scalar), summed over the pairs.

    Args:
        model_P2: log-probabilities of the chosen and rejected answers.
        reference_P2: those of the reference.
        beta: penalty for moving away from the reference.
    """
    gained_P2 = model_P2 - reference_P2
    # `logsigmoid` is stable for large differences, unlike the logarithm of a sigmoid. TRL calls
    # this loss "sigmoid".
    return -F.logsigmoid(beta * (gained_P2[:, 0] - gained_P2[:, 1])).sum()


@torch.no_grad()
def reward_sums(model_P2: Tensor, reference_P2: Tensor, *, beta: float) -> Tensor:
    """Return sums over pairs [3]: chosen rewards, rejected rewards, pairs in the right order.

    Args:
        model_P2: log-probabilities of the chosen and rejected answers.
        reference_P2: those of the reference.
        beta: beta of the loss.
    """
    rewards_P2 = beta * (model_P2 - reference_P2)
    # A tie counts as wrong, as in TRL's `rewards/accuracies`.
    ahead_P = (rewards_P2[:, 0] > rewards_P2[:, 1]).to(rewards_P2.dtype)
    # [2, P] and [P] are stacked to [3, P] and summed over the pairs.
    return torch.stack((*rewards_P2.unbind(1), ahead_P)).sum(1)
