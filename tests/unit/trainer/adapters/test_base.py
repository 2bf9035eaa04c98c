from __future__ import annotations

from pathlib import Path

import pytest
import torch

from drumline_contract.config import ConfigError
from drumline_trainer.adapters.base import base_description, check_base
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.initialize import initialize
from tests.unit.trainer.adapters.parallel_models import begun, configured, logits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of another seed."""
    config = configured()
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=99)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    export_hugging_face(weights, config.model, tmp_path / "theirs", dtype=torch.float32)
    return tmp_path / "theirs"


@pytest.mark.parametrize("bits", [16, 4])
def test_weights_begin_from_a_folder(folder: Path, bits: int) -> None:
    there = begun(configured(model_from=str(folder), lora={"base_bits": bits}))
    here = begun(configured(seed=99, lora={"base_bits": bits}))
    other = begun(configured(lora={"base_bits": bits}))
    assert torch.equal(logits(there), logits(here))
    assert not torch.equal(logits(there), logits(other))


def test_full_fine_tuning_begins_from_a_folder_too(folder: Path) -> None:
    trained = begun(configured(model_from=str(folder), lora=None))
    assert torch.equal(logits(trained), logits(begun(configured(seed=99, lora=None))))
    assert trained.weights.frozen == ()


def test_a_folder_of_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"ffn_size.*40.*48"):
        begun(configured(model_from=str(folder), model={"ffn_size": 48}))


def test_frozen_weights_are_filled_after_a_restore_and_adapters_are_not() -> None:
    config = configured()
    restored = begun(config, restored={"base": base_description(config)})
    fresh = begun(config)
    for mine, its in zip(restored.weights.frozen, fresh.weights.frozen, strict=True):
        assert torch.equal(mine.tensor, its.tensor)


@pytest.mark.parametrize("doubly", [False, True])
def test_packed_weights_are_the_same_bits_after_a_restore(doubly: bool) -> None:
    config = configured(lora={"base_bits": 4, "double_quantization": doubly})
    restored, fresh = (
        begun(config, restored=r) for r in ({"base": base_description(config)}, None)
    )
    mine, its = (dict(each.stages[0].named_buffers()) for each in (restored, fresh))
    assert {name.rpartition(".")[2] for name in mine} == {"codes", "scales"} | (
        {"steps"} if doubly else set()
    )
    assert all(torch.equal(mine[name], its[name]) for name in mine)


def test_adapters_are_refused_on_another_base(folder: Path) -> None:
    config = configured()
    check_base({"base": base_description(config)}, config=config)
    for other in (
        configured(seed=1),
        configured(model_from=str(folder)),
        configured(model={"rope_theta": 5e5}),
        configured(lora={"base_bits": 4}),
        configured(lora={"base_bits": 4, "double_quantization": True}),
        configured(lora={"alpha": 1.0}),
    ):
        with pytest.raises(ConfigError, match="adapters belong on another base;"):
            check_base({"base": base_description(config)}, config=other)
    with pytest.raises(ConfigError, match="does not say which base"):
        check_base({}, config=config)


def test_the_reference_of_preferences_begins_where_the_run_began_and_stays_the_same(
    folder: Path,
) -> None:
    config = configured(model_from=str(folder), lora=None, dpo={})
    base = {"base": base_description(config)}
    model = begun(config, restored=base)
    assert model.weights.frozen == ()
    assert {part.name for part in model.frozen} == {part.name for part in model.slices}
    first = begun(configured(seed=99, lora=None))
    for reference, learned in zip(model.frozen, first.slices, strict=True):
        assert torch.equal(reference.tensor, learned.tensor)
    with pytest.raises(ConfigError, match="compared with another reference; weights:"):
        check_base(base, config=configured(lora=None, dpo={}))
    with pytest.raises(ConfigError, match="does not say which reference"):
        check_base({}, config=config)


def test_a_base_is_the_same_in_another_place(folder: Path, tmp_path: Path) -> None:
    before = base_description(configured(model_from=str(folder)))
    folder.rename(tmp_path / "moved")
    assert base_description(configured(model_from=str(tmp_path / "moved"))) == before
