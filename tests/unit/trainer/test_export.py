"""What a run learned is put onto its base a weight at a time, so that no base has to fit memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drumline_contract.config import LoraConfig, TrainerConfig
from drumline_trainer.adapters.base import base_description
from drumline_trainer.adapters.lora import A, B
from drumline_trainer.checkpoint.folder_files import FolderFiles
from drumline_trainer.export import whole_weights
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.models.initialize import initialize
from tests.unit.trainer.test_main_export import CONFIG, stored

pytestmark = pytest.mark.usefixtures("_unfrozen")
LORA = LoraConfig(rank=2, alpha=6.0)


def begun(config: TrainerConfig) -> dict[str, Tensor]:
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=config.seed)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def adapter_shapes(config: TrainerConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in our_shapes(config.model).items():
        layer = name.removesuffix(".weight")
        if layer.startswith("layers.") and layer.rpartition(".")[2] in LORA.projections:
            shapes |= {f"{layer}.{A}": (2, shape[1]), f"{layer}.{B}": (shape[0], 2)}
    assert len(shapes) == 2 * 7
    return shapes


def living() -> int:
    """Tensors made since `gc.freeze` that something still holds."""
    gc.collect()
    return sum(issubclass(type(value), Tensor) for value in gc.get_objects())


@pytest.fixture
def _unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def check_each_alone(step: Path, config: TrainerConfig, expected: dict[str, Tensor]) -> None:
    gc.freeze()  # so that only what is made from here on is walked
    with whole_weights(FolderFiles(path=step, committed_place=step.name), config) as weights:
        assert living() == 0
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            weight = weights[name]
            assert living() == 1, name
            assert torch.equal(weight, value), name
            del weight


@pytest.mark.parametrize("with_folder", [True, False])
def test_adapters_are_merged_into_a_weight_at_a_time(tmp_path: Path, *, with_folder: bool) -> None:
    base, config = begun(CONFIG), replace(CONFIG, lora=LORA)
    if with_folder:
        export_hugging_face(base, CONFIG.model, tmp_path / "base", dtype=torch.bfloat16)
        base = {name: weight.bfloat16().float() for name, weight in base.items()}
        config = replace(config, model_from=str(tmp_path / "base"))
    step = tmp_path / "step-3"
    learned = stored(
        step, config=config, shapes=adapter_shapes(config), base=base_description(config)
    )
    expected = dict(base)
    for name in (name.removesuffix(f".{A}") for name in learned if name.endswith(A)):
        product = learned[f"{name}.{B}"] @ learned[f"{name}.{A}"]
        expected[f"{name}.weight"] = base[f"{name}.weight"] + product * 3.0
    check_each_alone(step, config, expected)


def test_what_was_frozen_is_read_a_weight_at_a_time(tmp_path: Path) -> None:
    base, config = begun(CONFIG), replace(CONFIG, freeze="embedding.*, layers.0.attention.*")
    learned = stored(tmp_path / "step-3", config=config, base=base_description(config))
    assert base.keys() - learned.keys()
    check_each_alone(tmp_path / "step-3", config, {**base, **learned})
