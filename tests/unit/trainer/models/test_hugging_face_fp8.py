"""DeepSeek-V3 as it is published, in blocks of 8 bits: read as its numbers times their factors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from drumline_contract.shapes.hugging_face import read_json, to_ours
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
)
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import named_weights, slices_of

from .test_hugging_face_families import DEEPSEEK_V3, TOKENS_BS, imported, theirs_of

PACKED = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
SIZES = {"hidden_size": 160, "intermediate_size": 272, "kv_lora_rank": 136}
"""No multiples of a block."""
NAME = "model.layers.0.mlp.gate_proj.weight"


def is_packed(name: str) -> bool:
    """Norms, routers, embeddings and the head stay in 16 bits."""
    return name.endswith(("_proj.weight", "_with_mqa.weight"))


def pack(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Each block with the factor that makes its largest value 448."""
    rows, columns = (-(-size // 128) for size in weight.shape)
    numbers, factors = torch.empty_like(weight), torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            block = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
            factors[row, column] = weight[block].abs().max() / 448
            numbers[block] = weight[block] / factors[row, column]
    return numbers.to(torch.float8_e4m3fn), factors


def unpack(numbers: Tensor, factors: Tensor) -> Tensor:
    """By definition, one by one."""
    rows, columns = (torch.arange(size) // 128 for size in numbers.shape)
    return numbers.float() * factors[rows][:, columns]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fp8")
    theirs_of({**DEEPSEEK_V3, **SIZES}).save_pretrained(made)
    path = made / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if is_packed(name)]:
        tensors[name], tensors[f"{name}_scale_inv"] = pack(tensors[name])
    save_file(tensors, path, metadata={"format": "pt"})
    said = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**said, "quantization_config": PACKED}))
    return made


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return tmp_path


def test_a_packed_model_computes_what_its_unpacked_weights_compute(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if is_packed(name)]:
        tensors[name] = unpack(tensors[name], tensors.pop(f"{name}_scale_inv"))
    reference = theirs_of({**DEEPSEEK_V3, **SIZES})
    for name, weight in reference.state_dict().items():
        if ".experts." not in name:  # which they keep in one tensor
            weight.copy_(tensors[name])
    for layer in (1, 2):
        experts: Any = reference.get_submodule(f"model.layers.{layer}.mlp.experts")
        prefix = f"model.layers.{layer}.mlp.experts"
        with torch.no_grad():
            for expert in range(8):
                gate, up, down = (
                    tensors[f"{prefix}.{expert}.{kind}_proj.weight"]
                    for kind in ("gate", "up", "down")
                )
                experts.gate_up_proj[expert].copy_(torch.cat((gate, up)))
                experts.down_proj[expert].copy_(down)
    with torch.no_grad():
        ours_BSV, theirs_BSV = imported(folder)(TOKENS_BS), reference(TOKENS_BS).logits
    assert theirs_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-4


def test_a_rank_reads_the_slices_that_it_holds(folder: Path) -> None:
    whole, config = imported(folder), to_ours(read_json(folder / "config.json"))
    for expected in slices_of(whole):
        if "attention.key_value" not in expected.name and ".experts.gate" not in expected.name:
            continue
        begin = tuple(size // 2 if size > 128 else 1 for size in expected.shape)
        shape = tuple(size - first for size, first in zip(expected.shape, begin, strict=True))
        box = Box(offsets=begin, shape=shape)
        part = replace(expected, box=box, tensor=torch.empty(shape))
        load_hugging_face(folder, [part], config=config)
        inside = tuple(slice(first, None) for first in begin)
        assert torch.equal(part.tensor, expected.tensor[inside]), part.name


def test_what_is_exported_is_not_packed(folder: Path, tmp_path: Path) -> None:
    ours = imported(folder)
    export_hugging_face(dict(named_weights(ours)), ours.config, tmp_path, like=folder)
    assert "quantization_config" not in read_json(tmp_path / "config.json")
    back = load_file(tmp_path / "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    assert torch.equal(back[NAME], unpack(stored[NAME], stored[f"{NAME}_scale_inv"]))
    assert not any(name.endswith("_scale_inv") for name in back)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (f"{NAME}_scale_inv", None, "gate_proj.weight_scale_inv is missing"),
        (f"{NAME}_scale_inv", torch.ones(2, 2), r"with factors of shape \(2, 2\)"),
        (NAME, None, "scale_inv: model.layers.0.mlp.gate_proj.weight is missing"),
        (NAME, torch.ones(272, 160), "F32 of shape"),
    ],
)
def test_blocks_that_are_none_are_refused(
    changed: Path, name: str, value: Tensor | None, sentence: str
) -> None:
    path = changed / "model.safetensors"
    tensors = load_file(path)
    del tensors[name]
    if value is not None:
        tensors[name] = value
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=sentence):
        list(import_hugging_face(changed)[1])
