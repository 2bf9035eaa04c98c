"""Adapters go to the library peft and come back, and give the logits of the merged model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

peft = pytest.importorskip("peft", reason="make test-all WHAT=libraries")
transformers = pytest.importorskip("transformers")

from drumline_contract.config import LoraConfig, ModelConfig  # noqa: E402
from drumline_trainer.adapters.lora import merge_adapter  # noqa: E402
from drumline_trainer.adapters.peft import read_peft, write_peft  # noqa: E402
from drumline_trainer.models.build import build_on_meta  # noqa: E402
from drumline_trainer.models.hugging_face import export_hugging_face  # noqa: E402
from drumline_trainer.models.initialize import initialize  # noqa: E402

MODEL = ModelConfig(layers=2, hidden_size=16, heads=4, kv_heads=2, ffn_size=32, vocab_size=256)
LORA = LoraConfig(rank=4, alpha=12.0)
TOKENS = torch.arange(24).reshape(2, 12) * 7 % 256


def weights() -> dict[str, torch.Tensor]:
    module = build_on_meta(MODEL).to_empty(device="cpu")
    initialize(module, seed=1)
    return {name: weight.detach() for name, weight in module.named_parameters()}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    export_hugging_face(weights(), MODEL, tmp_path / "base")
    return tmp_path / "base"


def adapters() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    made: dict[str, torch.Tensor] = {}
    for name, weight in weights().items():
        layer = name.removesuffix(".weight")
        if layer.startswith("layers.") and layer.rpartition(".")[2] in LORA.projections:
            outputs, inputs = weight.shape
            made[f"{layer}.lora_a"] = torch.randn((4, inputs), generator=random) / 8
            made[f"{layer}.lora_b"] = torch.randn((outputs, 4), generator=random) / 8
    assert len(made) == 2 * 7 * 2
    return made


@torch.no_grad()
def test_peft_gives_the_logits_of_the_merged_model(base: Path, tmp_path: Path) -> None:
    write_peft(
        adapters(), tmp_path / "adapter", lora=LORA, model=MODEL, base=base, dtype=torch.float32
    )
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    without = plain(TOKENS).logits
    beside = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    merged = {
        name: merge_adapter(name, weight, adapters(), config=LORA)
        for name, weight in weights().items()
    }
    export_hugging_face(merged, MODEL, tmp_path / "merged")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    expected = whole(TOKENS).logits
    assert (beside(TOKENS).logits - expected).abs().max() <= 1e-5
    assert (without - expected).abs().max() > 1e-2


def test_what_peft_writes_is_read(base: Path, tmp_path: Path) -> None:
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    asked = peft.LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules=["q_proj", "down_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    theirs = peft.get_peft_model(plain, asked)
    theirs.save_pretrained(tmp_path / "theirs")
    stored = read_peft(tmp_path / "theirs", model=MODEL, base=base)
    assert (stored.config.rank, stored.config.alpha) == (4, 12.0)
    assert stored.config.projections == {"query", "down"}
    layer = theirs.base_model.model.model.layers[1].self_attn.q_proj
    assert torch.equal(
        stored.tensors["layers.1.attention.query.lora_b"], layer.lora_B["default"].weight
    )
