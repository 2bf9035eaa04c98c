from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config import MODEL_PRESETS, ModelConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import (
    Normal,
    fill_normal,
    initial_values,
    initialize,
    initialize_slices,
)
from drumline_trainer.models.llama import Llama
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import slices_of


def filled(box: Box, shape: tuple[int, ...], *, name: str = "w", seed: int = 0) -> torch.Tensor:
    tensor = torch.empty(box.shape)
    fill_normal(tensor, box=box, name=name, shape=shape, seed=seed, std=1.0)
    return tensor


def whole(*shape: int) -> Box:
    return Box(offsets=(0,) * len(shape), shape=shape)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_box_holds_the_values_of_the_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    offsets = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    sizes = tuple(data.draw(st.integers(1, n - o)) for n, o in zip(shape, offsets, strict=True))
    box = Box(offsets=offsets, shape=sizes)
    expected = filled(whole(*shape), shape)[box.slices_within(whole(*shape))]
    assert torch.equal(filled(box, shape), expected)


def test_chunks_leave_no_seam() -> None:
    rows = (1 << 20) // 64 + 3  # a little more than one chunk of temporaries
    tail = Box(offsets=(rows - 5, 0), shape=(5, 64))
    assert torch.equal(filled(whole(rows, 64), (rows, 64))[-5:], filled(tail, (rows, 64)))


def test_values_are_standard_normal_and_cut() -> None:
    values = filled(whole(1000, 1000), (1000, 1000)).double()
    assert values.mean().abs() < 4e-3
    assert (values.std() - 1).abs() < 4e-3
    assert (values.pow(3).mean()).abs() < 1e-2
    assert (values.pow(4).mean() - 3).abs() < 4e-2
    assert 3.6 < values.abs().max() < 3.9


def test_seeds_names_and_neighbours_are_unrelated() -> None:
    base = filled(whole(100, 100), (100, 100)).flatten()
    rest = [
        filled(whole(100, 100), (100, 100), seed=1).flatten(),
        filled(whole(100, 100), (100, 100), name="v").flatten(),
        base.roll(1),
        base.roll(100),
    ]
    for other in rest:
        assert torch.corrcoef(torch.stack([base, other]))[0, 1].abs() < 0.04


def test_norms_start_at_one_and_the_residual_stream_is_scaled() -> None:
    config = ModelConfig(layers=8, hidden_size=64, ffn_size=128)
    model = Llama(config)
    initialize(model, seed=0)
    weights = dict(model.named_parameters())
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    assert torch.equal(weights["layers.3.attention_norm.weight"], torch.ones(64))
    assert weights["layers.3.feed_forward.up.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["layers.3.feed_forward.down.weight"].std().item() == pytest.approx(
        0.005, rel=0.05
    )


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("embedding.weight", Normal(0.02)),
        ("position_embedding.weight", Normal(0.02)),
        ("embedding.projection.weight", Normal(0.02)),
        ("embedding.projection.bias", 0.0),
        ("output.weight", Normal(0.02)),
        ("layers.0.attention.output.weight", Normal(0.01)),
        ("layers.0.attention.output.bias", 0.0),
        ("layers.0.attention.query_norm.weight", 1.0),
        ("layers.1.feed_forward.down.weight", Normal(0.01)),
        ("layers.1.feed_forward.experts.down", Normal(0.01)),
        ("layers.1.feed_forward.experts.gate", Normal(0.02)),
        ("layers.1.feed_forward.shared.down.weight", Normal(0.01)),
        ("layers.1.feed_forward.router.weight", Normal(0.02)),
        ("layers.1.feed_forward.correction", 0.0),
        ("layers.1.attention.query.weight", Normal(0.02)),
        ("layers.1.feed_forward_norm.weight", 1.0),
        ("layers.1.feed_forward_norm.bias", 0.0),
        ("norm.weight", 1.0),
    ],
)
def test_how_a_parameter_begins_follows_from_its_name(name: str, start: Normal | float) -> None:
    assert initial_values(name, ModelConfig(layers=2)) == start


@pytest.mark.parametrize("preset", ["tiny", "toy-gpt2", "toy-moe", "toy-vit"])
def test_slices_however_they_are_cut_hold_the_values_of_the_whole_model(preset: str) -> None:
    config = MODEL_PRESETS[preset]
    model = build_on_meta(config).to_empty(device="cpu")
    initialize(model, seed=5)
    for part in slices_of(model):
        cut = part.tensor.dim() - 1  # the last dimension: its pieces are not contiguous
        width = part.shape[cut] // 3
        offsets = (0,) * cut + (width,)
        box = Box(offsets=offsets, shape=(*part.shape[:cut], width))
        tensor = torch.empty(part.shape).narrow(cut, width, width)
        piece = replace(part, box=box, tensor=tensor)
        initialize_slices([piece], config=config, seed=5)
        assert torch.equal(tensor, part.tensor.narrow(cut, width, width)), part.name
