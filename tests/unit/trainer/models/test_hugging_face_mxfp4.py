"""GPT-OSS as it is published, its experts in MXFP4: read as `transformers` unpacks them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from drumline_contract.shapes.hugging_face import read_json, to_ours
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    import_hugging_face,
    load_hugging_face,
)
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import slices_of

TOKENS_BS = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(0))
PACKED = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
EXPERTS, HIDDEN, INNER = 4, 64, 32


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def theirs() -> Any:
    config = AutoConfig.for_model(
        "gpt_oss",
        vocab_size=300,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        sliding_window=5,
        max_position_embeddings=64,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 15e4,
            "factor": 4.0,
            "truncate": False,
            "original_max_position_embeddings": 16,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
        },
    )
    torch.manual_seed(1)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()


def packed(generator: torch.Generator, *, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Blocks of every byte and scales around 2^-6, those of the smallest and largest power too."""
    shape = (EXPERTS, rows, columns // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(119, 123, shape, generator=generator, dtype=torch.uint8)
    return blocks, scales


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Attention, embeddings and biases as they are saved; the experts' matrices packed."""
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors, generator = load_file(path), torch.Generator().manual_seed(3)
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.experts"
        for kind, rows, columns in (
            ("gate_up_proj", 2 * INNER, HIDDEN),
            ("down_proj", HIDDEN, INNER),
        ):
            del tensors[f"{name}.{kind}"]
            blocks, scales = packed(generator, rows=rows, columns=columns)
            tensors |= {f"{name}.{kind}_blocks": blocks, f"{name}.{kind}_scales": scales}
    save_file(tensors, path, metadata={"format": "pt"})
    changed(tmp_path, quantization_config=PACKED)
    return tmp_path


def changed(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def unpacked_there(folder: Path) -> dict[str, Tensor]:
    """All weights by their names, unpacked by their code."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_blocks")]:
        bare = name.removesuffix("_blocks")
        tensors[bare] = convert_moe_packed_tensors(
            tensors.pop(name), tensors.pop(f"{bare}_scales"), dtype=torch.float32
        )
    return tensors


def ours_of(folder: Path) -> Any:
    config, stored = import_hugging_face(folder)
    model = build_on_meta(config).to_empty(device="cpu")
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in stored:
            named.pop(name).copy_(tensor)
    assert not named
    return model


def test_a_packed_model_computes_what_it_computes_unpacked_by_its_authors(folder: Path) -> None:
    reference = theirs()
    reference.load_state_dict(unpacked_there(folder))
    with torch.no_grad():
        ours_BSV, theirs_BSV = ours_of(folder)(TOKENS_BS), reference(TOKENS_BS).logits
    assert theirs_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-4


def test_every_scale_and_every_byte_means_the_same_there(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj"
    every = torch.arange(255, dtype=torch.uint8)  # 255 is NaN, which no model has
    scales = tensors[f"{name}_scales"]
    scales.view(-1)[:255] = every[: scales.numel()]
    blocks = tensors[f"{name}_blocks"]
    blocks.view(-1)[:256] = torch.arange(256, dtype=torch.uint8)
    save_file(tensors, path, metadata={"format": "pt"})
    expected = unpacked_there(folder)[name].bfloat16()
    down = dict(import_hugging_face(folder)[1])["layers.0.feed_forward.experts.down"]
    assert torch.equal(down.mT.contiguous(), expected)


def test_a_rank_reads_the_slices_that_it_holds(folder: Path) -> None:
    whole, config = ours_of(folder), to_ours(read_json(folder / "config.json"))
    for expected in slices_of(whole):
        if ".experts." not in expected.name:
            continue
        offsets = tuple(1 for _ in expected.shape)
        shape = tuple(size - 2 for size in expected.shape)
        box = Box(offsets=offsets, shape=shape)
        part = replace(expected, box=box, tensor=torch.empty(shape))
        load_hugging_face(folder, [part], config=config)
        inside = tuple(slice(1, size - 1) for size in expected.shape)
        assert torch.equal(part.tensor, expected.tensor[inside]), part.name


def test_what_is_exported_is_not_packed(folder: Path, tmp_path: Path) -> None:
    ours = ours_of(folder)
    back = tmp_path / "back"
    export_hugging_face(
        dict(ours.named_parameters()), ours.config, back, dtype=torch.bfloat16, like=folder
    )
    assert "quantization_config" not in read_json(back / "config.json")
    again = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32)
    with torch.no_grad():
        assert (again(TOKENS_BS).logits - ours(TOKENS_BS)).abs().max() <= 1e-2  # attention in bf16


@pytest.mark.parametrize("method", ["gptq", None, ["mxfp4"]])
def test_other_packing_is_refused(folder: Path, method: object) -> None:
    changed(folder, quantization_config={"quant_method": method})
    with pytest.raises(HuggingFaceError, match="says that the weights are packed"):
        import_hugging_face(folder)


@pytest.mark.parametrize(
    ("part", "value", "sentence"),
    [
        ("scales", None, "down_proj_scales is missing"),
        ("scales", torch.zeros(4, 64, 2, dtype=torch.uint8), "is U8 of shape"),
        ("scales", torch.zeros(4, 64, 1), r"\(F32\) is U8"),
        ("blocks", torch.zeros(4, 64, 1, 8, dtype=torch.uint8), r"of shape \(4, 64, 1, 16\)"),
    ],
)
def test_blocks_that_are_none_are_refused(
    folder: Path, part: str, value: Tensor | None, sentence: str
) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = f"model.layers.0.mlp.experts.down_proj_{part}"
    del tensors[name]
    if value is not None:
        tensors[name] = value
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=sentence):
        import_hugging_face(folder)
