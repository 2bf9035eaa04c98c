from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from drumline_contract.config import ModelConfig
from drumline_contract.config.rope import RopeScaling, RopeScalingKind
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.rotary import rotary_tables, rotate

CONFIG = ModelConfig(vocab_size=256, layers=2, hidden_size=16, ffn_size=24, heads=4, kv_heads=2)


@pytest.fixture
def model() -> Llama:
    model = Llama(CONFIG)
    initialize(model, seed=1)
    return model


def reference(model: Llama, tokens_S: Tensor) -> Tensor:
    """The whole model once more, one position and one head at a time."""
    config, head = model.config, model.config.hidden_size // model.config.heads
    weights = dict(model.named_parameters())

    def norm(x_D: Tensor, name: str) -> Tensor:
        return x_D / (x_D.square().mean() + config.norm_epsilon).sqrt() * weights[name]

    def turned(x_E: Tensor, position: int) -> Tensor:
        out = x_E.clone()
        for i in range(head // 2):
            angle = torch.tensor(position * config.rope_theta ** (-2 * i / head))
            a, b = x_E[i], x_E[i + head // 2]
            out[i] = a * angle.cos() - b * angle.sin()
            out[i + head // 2] = b * angle.cos() + a * angle.sin()
        return out

    x_SD = [weights["embedding.weight"][token] for token in tokens_S]
    for layer in range(config.layers):
        at = f"layers.{layer}."
        normed = [norm(x, at + "attention_norm.weight") for x in x_SD]
        q, k, v = (
            [(weights[f"{at}attention.{kind}.weight"] @ x).view(-1, head) for x in normed]
            for kind in ("query", "key", "value")
        )
        for s in range(len(x_SD)):
            heads = []
            for h in range(config.heads):
                g = h * config.kv_heads // config.heads
                scores = [turned(q[s][h], s) @ turned(k[t][g], t) / head**0.5 for t in range(s + 1)]
                shares = torch.stack(scores).softmax(0)
                heads.append(sum(share * v[t][g] for t, share in enumerate(shares)))
            x_SD[s] = x_SD[s] + weights[at + "attention.output.weight"] @ torch.cat(heads)
            y = norm(x_SD[s], at + "feed_forward_norm.weight")
            gate = weights[at + "feed_forward.gate.weight"] @ y
            up = weights[at + "feed_forward.up.weight"] @ y
            down = weights[at + "feed_forward.down.weight"]
            x_SD[s] = x_SD[s] + down @ (gate * gate.sigmoid() * up)
    out = [weights["embedding.weight"] @ norm(x, "norm.weight") for x in x_SD]
    return torch.stack(out)


def test_logits_equal_the_formulas_written_out(model: Llama) -> None:
    tokens_BS = torch.tensor([[1, 250, 3, 77, 3], [9, 9, 8, 0, 255]])
    with torch.no_grad():
        for row, tokens_S in zip(model(tokens_BS), tokens_BS, strict=True):
            torch.testing.assert_close(row, reference(model, tokens_S), rtol=1e-4, atol=1e-6)


def test_the_future_does_not_change_the_past(model: Llama) -> None:
    tokens_BS = torch.tensor([[1, 2, 3, 4]])
    changed_BS = torch.tensor([[1, 2, 3, 200]])
    before, after = model(tokens_BS), model(changed_BS)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_rotation_depends_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, generator=generator)
    tables = rotary_tables(torch.arange(12), 8, theta=10_000.0, like=q)
    q_SE = rotate(q.expand(12, 8), tables)
    k_SE = rotate(k.expand(12, 8), tables)
    scores = [q_SE[s] @ k_SE[s - 4] for s in range(4, 12)]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(8), rtol=1e-5, atol=1e-6)


class CosineCounter(TorchFunctionMode):
    """Counts the tables that are made: each takes the cosine of its angles once."""

    made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made += func is torch.Tensor.cos
        return func(*args, **(kwargs or {}))


def test_rotary_tables_are_kept_until_the_length_or_the_type_changes(model: Llama) -> None:
    short_BS, long_BS = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3, 4, 5]])
    made: list[int] = []
    with torch.no_grad(), CosineCounter() as cosines:
        first = model(short_BS)
        for tokens_BS in (short_BS, long_BS, short_BS):
            last = model(tokens_BS)
            made.append(cosines.made)
        assert torch.equal(first, last)
        model.double()
        assert model(short_BS).dtype is torch.float64
    assert [*made, cosines.made] == [1, 2, 3, 4]


@pytest.mark.parametrize(("length", "factors"), [(8, (1.0, 2.0)), (9, (4.0, 16.0))])
def test_longrope_slows_each_pair_by_the_length_of_the_whole_sequence(
    length: int, factors: tuple[float, float]
) -> None:
    scaling = RopeScaling(
        kind=RopeScalingKind.LONGROPE,
        factor=8.0,
        original_positions=8,
        short_factors="1,2",
        long_factors="4,16",
    )
    like = torch.zeros((), dtype=torch.float64)
    positions = torch.tensor([3, 7])  # those of a part of it
    cos, sin = rotary_tables(positions, 4, theta=100.0, scaling=scaling, lengths=length, like=like)
    longer = math.sqrt(2)  # 1 + ln 8 / ln 8
    for place, position in enumerate((3, 7)):
        for pair, speed in enumerate((1 / factors[0], 0.1 / factors[1])):
            assert float(cos[place, pair]) == pytest.approx(longer * math.cos(position * speed))
            assert float(sin[place, pair]) == pytest.approx(longer * math.sin(position * speed))


def test_tied_embeddings_are_one_parameter() -> None:
    tied = {name for name, _ in build_on_meta(CONFIG).named_parameters()}
    untied_config = ModelConfig(**{**vars_of(CONFIG), "tied_embeddings": False})
    untied = {name for name, _ in build_on_meta(untied_config).named_parameters()}
    assert untied - tied == {"output.weight"}


def test_a_model_on_meta_holds_no_memory_and_no_buffers() -> None:
    model = build_on_meta(CONFIG)
    assert all(p.is_meta for p in model.parameters())
    assert list(model.buffers()) == []


def test_names_survive_the_loss_of_a_layer() -> None:
    model = build_on_meta(CONFIG)
    del model.layers["0"]
    names = {name for name, _ in model.named_parameters()}
    assert "layers.1.attention.query.weight" in names
    assert not any(name.startswith("layers.0") for name in names)


def vars_of(config: ModelConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}
