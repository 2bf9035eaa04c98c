from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.config import Family, ModelConfig
from drumline_trainer.models.build import build_on_meta, layer_modules
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.replaceable import CoreAttention, Positions

TIED = ModelConfig(layers=3, hidden_size=16, ffn_size=24)
UNTIED = replace(TIED, tied_embeddings=False)
GPT2 = replace(TIED, family=Family.GPT2, max_positions=8)
MIXTURE = replace(UNTIED, experts=4, query_key_norm=True)
WINDOWED = replace(TIED, sliding_window=2, full_attention_every=2)
VIT = replace(TIED, family=Family.VIT, image_size=8, patch_size=4)
IMAGES_BCII = torch.arange(2 * 3 * 64).view(2, 3, 8, 8) % 256
TOKENS_BS = torch.tensor([[1, 250, 3, 77], [9, 9, 8, 0]])


def built(config: ModelConfig) -> nn.Module:
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=3)
    return model


def stage_of(model: nn.Module, *, layers: set[str], first: bool, last: bool) -> nn.Module:
    for name in {str(i) for i in range(len(layer_modules(model)))} - layers:
        del model.layers[name]
    if not first:
        if hasattr(model, "position_embedding"):
            model.position_embedding = None
        if not last or model.output is not None:
            model.embedding = None
    if not last:
        model.norm = model.output = None
    return model


@pytest.mark.parametrize("config", [TIED, UNTIED, GPT2, MIXTURE, WINDOWED, VIT])
def test_stages_one_after_another_are_the_whole_model(config: ModelConfig) -> None:
    whole = built(config)
    first = stage_of(built(config), layers={"0"}, first=True, last=False)
    middle = stage_of(built(config), layers={"1"}, first=False, last=False)
    last = stage_of(built(config), layers={"2"}, first=False, last=True)
    vision = config.family is Family.VIT
    inputs = IMAGES_BCII if vision else TOKENS_BS
    assert torch.equal(last(middle(first(inputs))), whole(inputs))
    names = [dict(stage.named_parameters()).keys() for stage in (first, middle, last)]
    assert set().union(*names) == dict(whole.named_parameters()).keys()
    assert sum(map(len, names)) - len(set().union(*names)) == (
        config.tied_embeddings and not vision
    )


@pytest.mark.parametrize("window", [3, 600])
def test_a_window_is_what_a_mask_leaves(window: int) -> None:
    q_BHSE, k_BGSE, v_BGSE = torch.randn(3, 1, 2, 1300, 4, generator=torch.manual_seed(0))
    attention = CoreAttention(causal=True, window=window)
    seen_SS = torch.ones(1300, 1300, dtype=torch.bool).tril().triu(1 - window)
    expected_BHSE = F.scaled_dot_product_attention(q_BHSE, k_BGSE, v_BGSE, attn_mask=seen_SS)
    torch.testing.assert_close(attention(q_BHSE, k_BGSE, v_BGSE), expected_BHSE)


class Elsewhere(Positions):
    """The tokens are a later part of a longer sequence."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        return torch.arange(x_BSD.shape[1]) + 40


def test_the_positions_are_the_seam_s() -> None:
    model = built(TIED)
    there = model(TOKENS_BS)
    model.positions = Elsewhere()
    # rotary embedding sees distances alone, and only up to the rounding of other angles
    torch.testing.assert_close(model(TOKENS_BS), there, rtol=1e-4, atol=1e-5)
    model.positions = Spread()
    assert (model(TOKENS_BS) - there).abs().max() > 1e-6


class Spread(Positions):
    """The tokens are every second one of a longer sequence."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        return torch.arange(x_BSD.shape[1]) * 2


@pytest.mark.parametrize("config", [TIED, GPT2, VIT])
def test_the_way_through_the_layers_is_the_seam_s(config: ModelConfig) -> None:
    model = built(config)
    inputs = IMAGES_BCII if config.family is Family.VIT else TOKENS_BS

    class Twice(nn.Module):
        def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: object) -> Tensor:
            for layer in layers:
                x_BSD = layer(layer(x_BSD, *rest), *rest)
            return x_BSD

    model.layer_loop = Twice()
    out = model(inputs)
    doubled = built(config)
    layers = [layer for layer in layer_modules(doubled) for _ in range(2)]
    doubled.layers = nn.ModuleDict({str(i): layer for i, layer in enumerate(layers)})
    assert torch.equal(out, doubled(inputs))


def test_attention_is_replaceable() -> None:
    model = built(TIED)
    seen: list[tuple[int, ...]] = []

    class Recorded(nn.Module):
        def forward(self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, _: None) -> Tensor:
            seen.extend([tuple(q_BHSE.shape), tuple(k_BGSE.shape), tuple(v_BGSE.shape)])
            return torch.zeros_like(q_BHSE)

    for layer in layer_modules(model):
        layer.attention.core_attention = Recorded()
    model(TOKENS_BS)
    assert seen == [(2, 4, 4, 4), (2, 2, 4, 4), (2, 2, 4, 4)] * 3


def test_a_layer_takes_its_heads_from_what_the_projections_give() -> None:
    whole = built(TIED)
    half = built(TIED)
    for layer in layer_modules(half):
        attention = layer.attention
        for name in ("query", "key", "value"):
            linear = getattr(attention, name)
            linear.weight = nn.Parameter(linear.weight[: linear.weight.shape[0] // 2])
        attention.output.weight = nn.Parameter(attention.output.weight[:, :8])
    for layer in layer_modules(whole):
        with torch.no_grad():
            layer.attention.output.weight[:, 8:] = 0
    torch.testing.assert_close(half(TOKENS_BS), whole(TOKENS_BS))


@pytest.mark.parametrize("feed", [lambda: TOKENS_BS, lambda: torch.zeros(1, 4, 16)])
def test_a_stage_that_lacks_what_it_needs_says_so(feed: Callable[[], Tensor]) -> None:
    model = built(TIED)
    model.embedding = None
    with pytest.raises(TypeError, match="embedding"):
        model(feed())


def test_losses_of_the_parts_of_a_batch_add_up() -> None:
    logits_BSV = torch.randn(4, 5, 256, generator=torch.Generator().manual_seed(0))
    targets_BS = torch.arange(20).view(4, 5)
    whole = token_losses_sum(logits_BSV, targets_BS)
    parts = [token_losses_sum(logits_BSV[rows], targets_BS[rows]) for rows in ([0, 1, 2], [3])]
    torch.testing.assert_close(parts[0] + parts[1], whole)
    torch.testing.assert_close(
        whole, -logits_BSV.log_softmax(-1).gather(2, targets_BS[..., None]).sum()
    )


def test_losses_are_computed_in_fp32() -> None:
    logits_BSV = torch.full((1, 1, 256), 3.0, dtype=torch.bfloat16)
    loss = token_losses_sum(logits_BSV, torch.zeros(1, 1, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(5.545177, abs=1e-6)  # ln 256, which bf16 cannot hold
