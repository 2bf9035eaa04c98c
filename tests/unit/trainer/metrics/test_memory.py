from __future__ import annotations

import torch
from torch import nn

from drumline_trainer.metrics.memory import Memory, MemoryMeter, bytes_of, split, state_bytes


def test_weights_gradients_and_optimizer_state_to_the_byte() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    weights = 4 * (8 * 4 + 4 + 4 + 4) + (4 * 4 + 4 * 4 + 8)  # parameters; running means and a count
    state = {f"exp_avg.{name}": torch.zeros_like(p) for name, p in model.named_parameters()}
    state |= dict(model.named_parameters())
    assert state_bytes(model, state) == (weights, 4 * (8 * 4 + 4 + 4 + 4))

    meter = MemoryMeter(device=torch.device("cpu"))
    meter.hold(weights=weights, optimizer=7)
    model(torch.ones(3, 8)).sum().backward()
    meter.count_gradients(p.grad for p in model.parameters() if p.grad is not None)
    taken = meter.take()
    assert (taken.weights, taken.gradients, taken.optimizer) == (weights, 4 * 44, 7)
    assert taken.peak > 10 << 20
    assert taken.share is None
    assert taken.by_category().keys() == {"weights", "gradients", "optimizer", "peak"}


def test_tied_weights_and_slices_of_one_buffer_count_once() -> None:
    flat = torch.zeros(100)
    assert bytes_of([flat[:50], flat[50:], torch.zeros(10)]) == 440
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert state_bytes(model, {"master": torch.zeros(16)}) == (64, 64)


def test_the_allocator_s_peak_by_category() -> None:
    memory = split(weights=10, gradients=5, optimizer=20, activations=40, peak=100, capacity=200)
    assert memory == Memory(
        weights=10,
        gradients=5,
        optimizer=20,
        activations=40,
        other=25,
        peak=100,
        capacity=200,
    )
    assert memory.share == 0.5
    offloaded = split(
        weights=10, gradients=5, optimizer=900, activations=40, peak=100, capacity=200
    )
    assert offloaded.other == 0
