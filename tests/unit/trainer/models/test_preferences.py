"""The loss of pairs, by hand and without windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.preferences import (
    answer_log_probabilities,
    preference_losses_sum,
    reward_sums,
)

LENGTHS = ((3, 2, 4, 1, 2), (5, 7))
"""Of the documents of two windows: two pairs and padding; one pair that fills its own."""
IDS = np.array([np.repeat(range(len(row)), row) for row in LENGTHS], dtype=np.int32)
POSITIONS = np.array([np.concatenate([range(n) for n in row]) for row in LENGTHS], dtype=np.int32)
DOCUMENTS = Documents.of(IDS, POSITIONS)
WORDS = 11


def test_an_answer_s_probability_is_the_product_of_its_tokens() -> None:
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 12, WORDS, generator=random)
    targets = torch.randint(0, WORDS, (2, 12), generator=random)
    targets[0, 0] = targets[1, 6] = IGNORED  # of prompts
    targets[0, 10:] = IGNORED
    made = answer_log_probabilities(logits, targets, DOCUMENTS)
    expected = [
        -F.cross_entropy(logits[row, begin:end], targets[row, begin:end], reduction="sum")
        for row, begin, end in ((0, 0, 3), (0, 3, 5), (0, 5, 9), (0, 9, 10), (1, 0, 5), (1, 5, 12))
    ]
    torch.testing.assert_close(made, torch.stack(expected).view(3, 2))


def test_the_loss_is_that_of_the_paper() -> None:
    model = torch.tensor([[-1.0, -3.0], [-2.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-2.0, -2.5], [-2.0, -1.0]])
    # gained: 1 and -0.5, then nothing
    expected = -math.log(1 / (1 + math.exp(-0.4 * 1.5))) + math.log(2)
    loss = preference_losses_sum(model, reference, beta=0.4)
    assert loss.item() == pytest.approx(expected)
    (slopes,) = torch.autograd.grad(loss, model)
    first, second = 0.4 / (1 + math.exp(0.4 * 1.5)), 0.4 / 2
    torch.testing.assert_close(slopes, torch.tensor([[-first, first], [-second, second]]))


def test_rewards_say_what_both_answers_gained_and_which_gained_more() -> None:
    model = torch.tensor([[-1.0, -3.0], [-2.0, -1.0], [-4.0, -1.0]])
    reference = torch.tensor([[-2.0, -2.5], [-2.0, -1.0], [-3.0, -2.0]])
    # gained: 1 and -0.5, nothing on either side, -1 and 1
    assert reward_sums(model, reference, beta=0.5).tolist() == pytest.approx([0.0, 0.25, 1.0])
