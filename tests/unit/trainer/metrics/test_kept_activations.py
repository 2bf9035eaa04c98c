"""Bytes that autograd keeps: each storage once, as long as it is used, without the weights."""

from __future__ import annotations

import torch
from torch import nn

from drumline_trainer.metrics.kept_activations import KeptActivations


def test_storages_are_counted_once_and_forgotten_when_they_were_used() -> None:
    linear, kept = nn.Linear(8, 8), KeptActivations()
    given = torch.randn(4, 8)
    with kept.watched():
        for _ in range(3):  # one micro-batch after the other: never two at once
            hidden = linear(given)
            (hidden * hidden).sum().backward()
    assert kept.most_bytes == 2 * 4 * 8 * 4  # what went in, and what is squared, twice saved


def test_what_is_in_flight_together_adds_up() -> None:
    linear, kept = nn.Linear(8, 8), KeptActivations()
    with kept.watched():
        losses = [linear(torch.randn(4, 8)).sum() for _ in range(3)]
        for loss in losses:
            loss.backward()
    assert kept.most_bytes == 3 * 4 * 8 * 4
