from __future__ import annotations

import torch

from drumline_trainer.config import ModelConfig, OptimizerConfig
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama
from drumline_trainer.optimization.adamw import (
    build_optimizer,
    set_finished_steps,
    set_learning_rate,
    training_tensors,
)


def model() -> Llama:
    made = Llama(ModelConfig(layers=1, hidden_size=8, ffn_size=8, tied_embeddings=False))
    initialize(made, seed=0)
    return made


def test_only_matrices_that_are_no_embedding_decay() -> None:
    built = model()
    optimizer = build_optimizer(built, OptimizerConfig(weight_decay=0.3))
    decay = {
        name: group["weight_decay"]
        for name, parameter in built.named_parameters()
        for group in optimizer.param_groups
        if any(parameter is member for member in group["params"])
    }
    assert decay == {
        "embedding.weight": 0.0,
        "layers.0.attention_norm.weight": 0.0,
        "layers.0.attention.query.weight": 0.3,
        "layers.0.attention.key.weight": 0.3,
        "layers.0.attention.value.weight": 0.3,
        "layers.0.attention.output.weight": 0.3,
        "layers.0.feed_forward_norm.weight": 0.0,
        "layers.0.feed_forward.gate.weight": 0.3,
        "layers.0.feed_forward.up.weight": 0.3,
        "layers.0.feed_forward.down.weight": 0.3,
        "norm.weight": 0.0,
        "output.weight": 0.3,
    }


def one_step(built: Llama, optimizer: torch.optim.AdamW) -> None:
    for parameter in built.parameters():
        parameter.grad = parameter.detach().cos()
    set_learning_rate(optimizer, 0.01)
    optimizer.step()


def test_a_prepared_optimizer_steps_like_a_fresh_one() -> None:
    fresh, prepared = model(), model()
    optimizers = [build_optimizer(m, OptimizerConfig()) for m in (fresh, prepared)]
    training_tensors(prepared, optimizers[1])
    for built, optimizer in zip((fresh, prepared), optimizers, strict=True):
        one_step(built, optimizer)
    for left, right in zip(fresh.parameters(), prepared.parameters(), strict=True):
        assert torch.equal(left, right)


def test_copied_tensors_and_step_count_are_the_whole_state() -> None:
    left, right = model(), model()
    left_optimizer, right_optimizer = (build_optimizer(m, OptimizerConfig()) for m in (left, right))
    for _ in range(3):
        one_step(left, left_optimizer)
    targets = training_tensors(right, right_optimizer)
    for name, tensor in training_tensors(left, left_optimizer).items():
        targets[name].copy_(tensor)
    set_finished_steps(right_optimizer, 3)
    one_step(left, left_optimizer)
    one_step(right, right_optimizer)
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(a, b)
