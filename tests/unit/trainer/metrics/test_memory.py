from __future__ import annotations

import torch
from torch import nn

from drumline_trainer.metrics.memory import MemoryMeter, MemoryUsage, bytes_of, split


def counted(model: nn.Module, state: dict[str, torch.Tensor]) -> MemoryUsage:
    meter = MemoryMeter(device=torch.device("cpu"))
    meter.count_state([model], state=state.values())
    meter.count_gradients(p.grad for p in model.parameters() if p.grad is not None)
    return meter.take()


def test_weights_gradients_and_optimizer_state_to_the_byte() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    parameters, buffers = 4 * (8 * 4 + 4 + 4 + 4), 4 * 4 + 4 * 4 + 8  # running means and a count
    state = {f"exp_avg.{name}": torch.zeros_like(p) for name, p in model.named_parameters()}
    state |= dict(model.named_parameters())
    model(torch.ones(3, 8)).sum().backward()
    taken = counted(model, state)
    assert taken.by_category() == {
        "weights": parameters + buffers,
        "gradients": parameters,
        "optimizer": parameters,
        "peak": taken.peak,
    }
    assert taken.peak > 10 << 20
    assert taken.used_share is None


def test_tied_weights_and_slices_of_one_buffer_count_once() -> None:
    flat = torch.zeros(100)
    assert bytes_of([flat[:50], flat[50:], torch.zeros(10)]) == 440
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    taken = counted(model, {"master": torch.zeros(16)})
    assert (taken.weights, taken.optimizer) == (64, 64)


def test_what_nobody_counted_is_not_there() -> None:
    assert MemoryMeter(device=torch.device("cpu")).take().by_category().keys() == {"peak"}


def test_the_allocator_s_peak_by_category() -> None:
    memory = split(weights=10, gradients=5, optimizer=20, activations=40, peak=100, capacity=200)
    assert memory == MemoryUsage(
        weights=10,
        gradients=5,
        optimizer=20,
        activations=40,
        other=25,
        peak=100,
        capacity=200,
    )
    assert memory.used_share == 0.5
    offloaded = split(
        weights=10, gradients=5, optimizer=900, activations=40, peak=100, capacity=200
    )
    assert offloaded.other == 0
