"""Adapters train in every kind of layout what they train in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_contract.config import merge
from drumline_trainer.checkpoint.named import named_checkpoint
from drumline_trainer.export import export_checkpoint
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import import_hugging_face
from drumline_trainer.models.initialize import initialize
from tests.gloo.stored import whole_tensors
from tests.layouts.cases import STEPS, Case
from tests.layouts.jobs import train, train_until
from tests.layouts.pool import LayoutError
from tests.layouts.runs import HALF, Runs, failings

LORA: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8.0}}
FOUR_BITS: dict[str, Any] = {
    "lora": {"rank": 4, "alpha": 8.0, "base_bits": 4},
    "model": {"hidden_size": 128, "ffn_size": 128, "layers": 2},
    "optimizer": {"learning_rate": 1e-2},
}
"""Each of two ranks has whole blocks of every weight."""
BF16_TOLERANCE = FP8_TOLERANCE = 2e-2

pytestmark = [pytest.mark.gloo, pytest.mark.extended(keep=2, of="kinds of layout")]


def case(data: str = "ddp", *, model: str = "untied", **changes: Any) -> Case:
    return Case(data=data, model=model, **changes)


CASES = [
    case("fsdp", accumulation=4),
    case("zero2", accumulation=4),
    case("ddp", tensor=2, recompute="full"),
    case("fsdp", tensor=2, model="gpt2", recompute="selective"),
    case("zero2", pipeline="1f1b", model="tied"),
    case("fsdp", pipeline="zbv", model="tied"),
    case("fsdp", tensor=2, pipeline="1f1b"),
    case("zero1", context=2),
    case("fsdp", expert=2, tensor=2, model="deepseek"),
]


@pytest.mark.parametrize("layout", CASES, ids=[each.name for each in CASES])
def test_adapters_learn_the_same_in_every_layout(runs: Runs, layout: Case) -> None:
    assert failings(runs.whole(layout, **LORA), runs.plain(layout, **LORA)) == []


def test_adapters_learn_the_same_without_sequence_parallelism(runs: Runs) -> None:
    whole = {"parallelism": {"sequence_parallel": False}}
    assert failings(runs.whole(case(tensor=2), **LORA, **whole), runs.alone("untied", **LORA)) == []


def test_checkpoints_hold_adapters_alone_and_any_layout_goes_on_from_them(runs: Runs) -> None:
    got = runs.in_two(case("fsdp", tensor=2), case("zero2", pipeline="1f1b"), **LORA)
    assert failings(got, runs.alone("untied", **LORA)) == []
    assert {name.rpartition(".")[2] for name in got.tensors} == {"lora_a", "lora_b"}


def test_an_export_has_the_adapters_in_its_weights(runs: Runs, tmp_path: Path) -> None:
    config = case("fsdp", tensor=2).config(**merge(runs.text, LORA))
    step = runs.whole(case("fsdp", tensor=2), **LORA).folder / f"step-{STEPS:08d}"
    export_checkpoint(named_checkpoint(str(step)), config, tmp_path / "merged")
    adapters = whole_tensors(step)
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=0)
    base = dict(model.named_parameters())
    layer = "layers.1.attention.output"
    a, b = (torch.from_numpy(adapters[f"model.{layer}.{name}"]) for name in ("lora_a", "lora_b"))
    exported = dict(import_hugging_face(tmp_path / "merged")[1])
    weight = base[f"{layer}.weight"].detach()
    torch.testing.assert_close(exported[f"{layer}.weight"], weight + 2 * b @ a)
    assert not torch.equal(exported[f"{layer}.weight"], weight)
    assert torch.equal(exported["norm.weight"], base["norm.weight"].detach())


def test_a_checkpoint_of_adapters_on_another_base_is_refused(runs: Runs) -> None:
    folder = runs.folder / "other"
    folder.mkdir()
    first = case().config(**merge(runs.text, LORA))
    runs.pool.run(train_until, first, HALF, ranks=2, checkpoint_folder=folder)
    second = case().config(**merge(runs.text, LORA), seed=1)
    with pytest.raises(LayoutError, match="weights: seed 0 there and seed 1 here"):
        runs.pool.run(train, second, ranks=2, checkpoint_folder=folder)


@pytest.mark.parametrize("layout", [case("fsdp"), case("zero2", tensor=2)], ids=["fsdp", "tp"])
def test_adapters_on_four_bits_learn_the_same_too(runs: Runs, layout: Case) -> None:
    expected = runs.alone("untied", **FOUR_BITS)
    assert failings(runs.whole(layout, **FOUR_BITS), expected) == []
    assert expected.losses[STEPS] < expected.losses[1] - 0.1


def test_adapters_on_doubly_quantised_weights_learn_the_same_too(runs: Runs) -> None:
    doubly = merge(FOUR_BITS, {"lora": {"double_quantization": True}})
    got, expected = runs.whole(case("fsdp"), **doubly), runs.alone("untied", **doubly)
    assert failings(got, expected) == []
    assert 0 < expected.loss_error(runs.alone("untied", **FOUR_BITS)) < 1e-2


@pytest.mark.parametrize("layout", [None, case("fsdp"), case("ddp", tensor=2)])
def test_fp8_follows_bf16(runs: Runs, layout: Case | None) -> None:
    expected = runs.alone("untied", precision="bf16")
    fp8 = {"precision": "bf16", "fp8": True}
    got = runs.alone("untied", **fp8) if layout is None else runs.whole(layout, **fp8)
    assert 0 < got.loss_error(expected) <= FP8_TOLERANCE


def test_rowwise_fp8_follows_bf16_and_learns(runs: Runs) -> None:
    fp8 = {"precision": "bf16", "fp8": True, "fp8_scaling": "rowwise"}
    got = runs.whole(case("ddp", tensor=2), **fp8)
    assert 0 < got.loss_error(runs.alone("untied", precision="bf16")) <= FP8_TOLERANCE
    tensorwise = runs.whole(case("ddp", tensor=2), **{**fp8, "fp8_scaling": "tensorwise"})
    assert got.loss_error(tensorwise) > 0
    assert got.losses[STEPS] < got.losses[1]


def test_adapters_in_bf16_follow_those_in_fp32(runs: Runs) -> None:
    """Frozen weights of fsdp are kept in bf16, beside adapters in fp32."""
    got = runs.whole(case("fsdp", tensor=2), **LORA, precision="bf16")
    assert 0 < got.loss_error(runs.alone("untied", **LORA)) <= BF16_TOLERANCE
