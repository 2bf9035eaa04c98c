from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.config import ModelConfig
from drumline_trainer.models.initialize import fill_normal, initialize, standard_deviation
from drumline_trainer.models.llama import Llama
from drumline_trainer.parallelism.shards import Box


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
    others = [
        filled(whole(100, 100), (100, 100), seed=1).flatten(),
        filled(whole(100, 100), (100, 100), name="v").flatten(),
        base.roll(1),
        base.roll(100),
    ]
    for other in others:
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
    ("name", "std"),
    [
        ("embedding.weight", 0.02),
        ("output.weight", 0.02),
        ("layers.0.attention.output.weight", 0.01),
        ("layers.1.feed_forward.down.weight", 0.01),
        ("layers.1.attention.query.weight", 0.02),
        ("layers.1.feed_forward_norm.weight", None),
        ("norm.weight", None),
    ],
)
def test_standard_deviations_by_name(name: str, std: float | None) -> None:
    assert standard_deviation(name, ModelConfig(layers=2)) == std
