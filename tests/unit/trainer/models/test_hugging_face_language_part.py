"""Gemma 3 with a vision tower, as its larger sizes are published: its language model is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from drumline_contract.shapes.hugging_face import read_config, read_json, to_ours
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    import_hugging_face,
)

TOKENS_BS = torch.randint(3, 250, (2, 24), generator=torch.Generator().manual_seed(0))
TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "num_attention_heads": 4,
    "query_pre_attn_scalar": 24,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    },
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
PUBLISHED: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
"""The shape of what is published for 4B: what is not said has the defaults of its authors."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture
def theirs() -> Any:
    config = AutoConfig.for_model(
        "gemma3",
        text_config={**TEXT, "model_type": "gemma3_text"},
        vision_config={**VISION, "model_type": "siglip_vision_model"},
        mm_tokens_per_image=4,
        image_token_index=299,
    )
    torch.manual_seed(1)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model


@pytest.fixture(params=["earlier names", "later names"])
def folder(theirs: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """As it is saved, with the names of either generation of their files."""
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    if request.param == "later names":
        tensors = {_later(name): tensor for name, tensor in tensors.items()}
    else:
        assert "language_model.model.norm.weight" in tensors
    save_file(tensors, path, metadata={"format": "pt"})
    return tmp_path


def _later(name: str) -> str:
    if name.startswith("language_model.model."):
        return name.replace("language_model.model.", "model.language_model.")
    return f"model.{name}"


def ours_of(folder: Path) -> Any:
    config, stored = import_hugging_face(folder)
    model = build_on_meta(config).to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in stored:
            model.get_parameter(name).copy_(tensor)
    return model


def test_it_computes_what_the_whole_model_computes_of_text(folder: Path, theirs: Any) -> None:
    with torch.no_grad():
        ours_BSV, theirs_BSV = ours_of(folder)(TOKENS_BS), theirs(TOKENS_BS).logits
    assert theirs_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-4


def test_a_model_of_text_is_written(folder: Path, theirs: Any, tmp_path: Path) -> None:
    ours = ours_of(folder)
    back = tmp_path / "back"
    export_hugging_face(dict(ours.named_parameters()), ours.config, back, like=folder)
    described = read_json(back / "config.json")
    assert described["model_type"] == "gemma3_text"
    assert described["architectures"] == ["Gemma3ForCausalLM"]
    again, loading = AutoModelForCausalLM.from_pretrained(
        back, dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert (again(TOKENS_BS).logits - theirs(TOKENS_BS).logits).abs().max() <= 1e-4


def test_what_is_not_said_inside_has_the_defaults_of_its_authors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    theirs = AutoConfig.from_pretrained(tmp_path).text_config
    ours = to_ours(read_config(tmp_path))
    assert (ours.heads, ours.kv_heads, ours.features_per_head) == (
        theirs.num_attention_heads,
        theirs.num_key_value_heads,
        theirs.head_dim,
    )
    assert ours.vocab_size == theirs.vocab_size
    assert ours.max_positions == theirs.max_position_embeddings
    assert ours.query_divisor == theirs.query_pre_attn_scalar
    assert [ours.window(layer) for layer in range(ours.layers)] == [
        theirs.sliding_window if kind == "sliding_attention" else None
        for kind in theirs.layer_types
    ]
    assert read_config(tmp_path)["eos_token_id"] == [1, 106]


def test_one_without_a_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED, "text_config": [1]}))
    with pytest.raises(HuggingFaceError, match="text_config"):
        import_hugging_face(tmp_path)


def test_packed_weights_are_refused_though_it_is_said_beside_the_language_model(
    tmp_path: Path,
) -> None:
    packed = {**PUBLISHED, "quantization_config": {"quant_method": "bitsandbytes"}}
    (tmp_path / "config.json").write_text(json.dumps(packed))
    with pytest.raises(HuggingFaceError, match=r"weights are packed \('bitsandbytes'\)"):
        import_hugging_face(tmp_path)


def test_a_tensor_that_is_of_neither_part_is_unknown(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "ears.weight": torch.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(HuggingFaceError, match=r"1 tensors.*ears\.weight"):
        import_hugging_face(folder)
