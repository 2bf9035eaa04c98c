from __future__ import annotations

from typing import NoReturn

import pytest
import torch

from drumline_contract.config import MODEL_PRESETS
from drumline_trainer.models.build import build_on_meta, layer_modules

FAMILIES = ["tiny", "toy-gpt2", "toy-moe", "toy-vit"]


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("a value was drawn")


@pytest.mark.parametrize("preset", FAMILIES)
def test_nothing_is_drawn_for_tensors_that_have_no_values(
    preset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("normal_", "uniform_"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    model = build_on_meta(MODEL_PRESETS[preset])
    assert all(p.is_meta for p in model.parameters())
    assert list(model.buffers()) == []


@pytest.mark.parametrize("preset", FAMILIES)
def test_layers_are_those_that_are_left_in_order(preset: str) -> None:
    model = build_on_meta(MODEL_PRESETS[preset])
    layers = layer_modules(model)
    assert len(layers) == MODEL_PRESETS[preset].layers
    del model.layers["0"]
    assert layer_modules(model) == layers[1:]
