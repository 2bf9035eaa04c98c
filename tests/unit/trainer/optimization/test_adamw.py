from __future__ import annotations

import pytest
import torch

from drumline_contract.config import ModelConfig, OptimizerConfig
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama
from drumline_trainer.optimization.adamw import ShardedAdamW, by_decay, decays
from drumline_trainer.sharding.slices import slices_of


def model() -> Llama:
    made = Llama(ModelConfig(layers=1, hidden_size=8, ffn_size=8, tied_embeddings=False))
    initialize(made, seed=0)
    return made


def test_only_matrices_that_are_no_embedding_decay() -> None:
    built = model()
    names = [name for name, _ in built.named_parameters()]
    decay = {
        names[place]: weight_decay
        for places, weight_decay in by_decay(slices_of(built), weight_decay=0.3)
        for place in places
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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embedding.weight", False),
        ("position_embedding.weight", False),
        ("embedding.projection.weight", True),
        ("output.weight", True),
    ],
)
def test_tables_of_vectors_do_not_decay_and_projections_do(name: str, *, expected: bool) -> None:
    assert decays(name, (8, 4)) is expected
    assert not decays(name, (8,))


def one_step(built: Llama, optimizer: ShardedAdamW) -> None:
    optimizer.update([weight.detach().cos() for weight in built.parameters()], rate=0.01)


def test_steps_like_torchs_own_on_the_same_groups() -> None:
    ours, theirs = model(), model()
    config = OptimizerConfig()
    optimizer = ShardedAdamW(slices_of(ours), config)
    named = list(theirs.named_parameters())
    plain = torch.optim.AdamW(
        [
            {"params": [p for n, p in named if decays(n, p.shape)], "weight_decay": 0.1},
            {"params": [p for n, p in named if not decays(n, p.shape)], "weight_decay": 0.0},
        ],
        lr=0.01,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )
    for _ in range(2):
        one_step(ours, optimizer)
        for _, parameter in named:
            parameter.grad = parameter.detach().cos()
        plain.step()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(left, right)


def test_copied_tensors_and_step_count_are_the_whole_state() -> None:
    left, right = model(), model()
    left_optimizer, right_optimizer = (
        ShardedAdamW(slices_of(m), OptimizerConfig()) for m in (left, right)
    )
    for _ in range(3):
        one_step(left, left_optimizer)
    for target, source in zip(right_optimizer.slices(), left_optimizer.slices(), strict=True):
        assert target.name == source.name
        target.tensor.copy_(source.tensor)
    right_optimizer.set_finished_steps(3)
    one_step(left, left_optimizer)
    one_step(right, right_optimizer)
    for a, b in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(a, b)
