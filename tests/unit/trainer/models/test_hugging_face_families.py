"""Models of `transformers`, made there at random: what they compute, what they learn, what returns.

Each is saved by them, read by us, trained for three steps by both, and written back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face, import_hugging_face
from drumline_trainer.shapes.flops import weights

TOKENS_BS = torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
THEIRS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES, "attention_bias": True},
    "llama 3.1": {"model_type": "llama", **SIZES, "rope_parameters": LLAMA_3},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 5},
    "mistral 7b v0.3": {"model_type": "mistral", **SIZES, "sliding_window": None, "head_dim": 12},
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 4, "sliding_window": 7},
    "qwen2.5": {"model_type": "qwen2", **SIZES, "tie_word_embeddings": True},
    "qwen2 with windows": {
        "model_type": "qwen2",
        **SIZES,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 0,
    },
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16, "attention_bias": True},
    "qwen3-moe": {"model_type": "qwen3_moe", **SIZES, **EXPERTS, "num_experts": 5, "head_dim": 16},
    "gpt2": {"model_type": "gpt2", "vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4},
}
NO_DROPOUT = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
EVERY = pytest.mark.parametrize("values", THEIRS.values(), ids=THEIRS)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Their progress bars and advice are for people."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def theirs_of(values: dict[str, Any]) -> nn.Module:
    """With weights that are all different, norms and biases too, and large enough to matter."""
    kind = values["model_type"]
    rest = {name: value for name, value in values.items() if name != "model_type"}
    settings = {"norm_topk_prob": True} if kind == "qwen3_moe" else {}
    settings |= NO_DROPOUT if kind == "gpt2" else {}
    config = AutoConfig.for_model(kind, **(settings | rest))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.float()


def imported(folder: Path) -> nn.Module:
    config, stored = import_hugging_face(folder)
    model = build_on_meta(config).to_empty(device="cpu")
    named = dict(model.named_parameters())
    assert weights(config) == sum(parameter.numel() for parameter in named.values())
    with torch.no_grad():
        for name, tensor in stored:
            named.pop(name).copy_(tensor)
    assert not named
    return model


def loss_of(logits_BSV: Tensor) -> Tensor:
    return F.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), TOKENS_BS[:, 1:].flatten())


def three_losses(model: nn.Module, logits: Any) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    losses: list[float] = []
    for _ in range(3):
        loss = loss_of(logits(TOKENS_BS))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@EVERY
def test_a_model_of_theirs_computes_and_learns_the_same_here(
    values: dict[str, Any], tmp_path: Path
) -> None:
    theirs = theirs_of(values)
    theirs.save_pretrained(tmp_path)
    ours = imported(tmp_path)
    with torch.no_grad():
        ours_BSV, theirs_BSV = ours(TOKENS_BS), theirs(TOKENS_BS).logits
    assert theirs_BSV.std() > 0.1
    assert (ours_BSV - theirs_BSV).abs().max() <= 1e-4
    here = three_losses(ours, ours)
    there = three_losses(theirs, lambda tokens: theirs(tokens).logits)
    assert here == pytest.approx(there, abs=1e-5)
    assert there[2] < there[0]


@EVERY
def test_a_model_of_theirs_goes_back_as_it_came(values: dict[str, Any], tmp_path: Path) -> None:
    theirs = theirs_of(values)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = imported(tmp_path / "theirs")
    export_hugging_face(dict(ours.named_parameters()), ours.config, tmp_path / "back")
    stored, back = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert stored.keys() == back.keys()
    for name, tensor in stored.items():
        assert torch.equal(tensor, back[name]), name
    again, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading[f"{kind}_keys"] for kind in ("missing", "unexpected", "mismatched"))
    assert (again(TOKENS_BS).logits - theirs(TOKENS_BS).logits).abs().max() <= 1e-4
