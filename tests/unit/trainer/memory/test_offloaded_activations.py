"""Activations that go away and come back: the same bits, and the memory of few layers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from drumline_contract.config import Family, MemoryConfig, ModelConfig, Offload, Recompute
from drumline_trainer.memory.offload_store import FileStore, open_store
from drumline_trainer.memory.offloaded_activations import OffloadedLayers
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.storage import OffloadStore
from tests.unit.trainer.memory.alive import Alive

CPU = torch.device("cpu")
TOKENS = 128
LLAMA = ModelConfig(layers=12, hidden_size=32, ffn_size=64, heads=2, kv_heads=1, vocab_size=256)
GPT2 = ModelConfig(
    family=Family.GPT2,
    layers=3,
    hidden_size=32,
    ffn_size=64,
    heads=2,
    kv_heads=2,
    vocab_size=256,
    max_positions=TOKENS,
)
MIXTURE = ModelConfig(
    layers=3, hidden_size=32, ffn_size=64, experts=4, experts_per_token=2, heads=2, kv_heads=2
)
LEAST = 4 * TOKENS * 16
"""Bytes: half of a layer's input."""


def model_of(config: ModelConfig, mode: Recompute = Recompute.NONE) -> nn.Module:
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=0)
    recompute(model, mode=mode, every=None)
    return model


def send_away(model: nn.Module, place: Callable[[Sequence[int]], OffloadStore]) -> None:
    through = model.layer_loop
    assert isinstance(through, nn.Module)
    model.layer_loop = OffloadedLayers(through, open_store=place, device=CPU, least_bytes=LEAST)


def backward(model: nn.Module, *, micro_batches: int = 1) -> list[Tensor]:
    """Losses and all gradients; the forward passes of all micro-batches come first."""
    tokens = torch.arange(TOKENS)
    losses = [
        model((tokens * (number + 3)).remainder(256).unsqueeze(0)).square().mean()
        for number in range(micro_batches)
    ]
    for loss in losses:
        loss.backward()
    return [*map(torch.detach, losses), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("config", "mode", "where"),
    [
        (LLAMA, Recompute.NONE, Offload.CPU),
        (LLAMA, Recompute.FULL, Offload.NVME),
        (LLAMA, Recompute.BLOCKS, Offload.CPU),
        (GPT2, Recompute.NONE, Offload.NVME),
        (MIXTURE, Recompute.NONE, Offload.NVME),
    ],
)
def test_gradients_are_the_same_bits(
    config: ModelConfig, mode: Recompute, where: Offload, tmp_path: Path
) -> None:
    memory = MemoryConfig(offload_activations=where, offload_folder=str(tmp_path))
    asked: list[int] = []

    def place(sizes: Sequence[int]) -> OffloadStore:
        asked.extend(sizes)
        return open_store(where, memory, sizes=sizes, device=CPU)

    model = model_of(config, mode)
    plain = backward(model, micro_batches=2)
    model.zero_grad()
    send_away(model, place)
    for _ in range(2):
        away = backward(model, micro_batches=2)
        assert all(torch.equal(item, other) for item, other in zip(plain, away, strict=True))
        model.zero_grad()
    runs = {Recompute.BLOCKS: 4}.get(mode, config.layers)
    assert len(asked) == 2 * runs  # of both micro-batches; the second step asks for none


def test_sizes_that_differ_in_every_step_leave_no_homes_behind(tmp_path: Path) -> None:
    files: weakref.WeakSet[FileStore] = weakref.WeakSet()

    def place(sizes: Sequence[int]) -> OffloadStore:
        files.add(file := FileStore(tmp_path, sizes=sizes))
        return file

    model = model_of(replace(LLAMA, layers=4))
    send_away(model, place)
    for step in range(8):
        model(torch.arange(TOKENS - 37 * step % 64).unsqueeze(0)).sum().backward()
        # one for each layer; the thread that copies may still hold those of the step before
        assert len(files) <= 2 * 4


def test_the_memory_is_that_of_few_layers(tmp_path: Path) -> None:
    few, many = replace(LLAMA, layers=6), LLAMA
    layer = (most_bytes(model_of(many)) - most_bytes(model_of(few))) / 6
    fewer, more = (most_bytes(model_of(config), away=tmp_path) for config in (few, many))
    # a slow disk leaves two layers in flight, a fast one none; what is small stays
    assert more - fewer < (2 + 0.1 * 6) * layer
    assert most_bytes(model_of(many)) - more > 5 * layer


def in_file(folder: Path, alive: Alive, sizes: Sequence[int]) -> OffloadStore:
    with _disable_current_modes():
        file = FileStore(folder, sizes=sizes)
        alive.leave_out(file.empty((0,), dtype=torch.uint8))
    return file


def most_bytes(model: nn.Module, *, away: Path | None = None) -> int:
    """At the worst moment of forward and backward, weights and their gradients left out."""
    model.requires_grad_(requires_grad=False)
    model.embedding.requires_grad_()
    with Alive() as alive:
        for weight in model.parameters():
            alive.leave_out(weight)
        if away is not None:
            send_away(model, functools.partial(in_file, away, alive))
        backward(model)
    return alive.most
