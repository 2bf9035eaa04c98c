"""Adapters go to the library peft and come back, and give the logits of the merged model."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

peft = pytest.importorskip("peft", reason="make test-all WHAT=libraries")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from drumline_contract.config import LoraConfig, ModelConfig  # noqa: E402
from drumline_trainer.adapters.lora import merge_adapter  # noqa: E402
from drumline_trainer.adapters.peft import KNOWN, check_plain, read_peft, write_peft  # noqa: E402
from drumline_trainer.models.build import build_on_meta  # noqa: E402
from drumline_trainer.models.hugging_face import export_hugging_face  # noqa: E402
from drumline_trainer.models.initialize import initialize  # noqa: E402

TIED = ModelConfig(layers=2, hidden_size=16, heads=4, kv_heads=2, ffn_size=32, vocab_size=256)
MODELS = {"tied": TIED, "a head of its own": replace(TIED, tied_embeddings=False)}
VARIANTS = {
    *("velora_config", "alora_invocation_tokens", "use_qalora", "monteclora_config", "kasa_config"),
    *("layer_replication", "lora_bias", "target_parameters", "use_bdlora", "arrow_config"),
    *("ensure_weight_tying", "megatron_config"),
}
"""Fields of peft that change what adapters compute, and are null or false where they do not."""
TOKENS = torch.arange(24).reshape(2, 12) * 7 % 256


def weights(model: ModelConfig) -> dict[str, torch.Tensor]:
    module = build_on_meta(model).to_empty(device="cpu")
    initialize(module, seed=1)
    return {name: weight.detach() for name, weight in module.named_parameters()}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> ModelConfig:
    return MODELS[request.param]


@pytest.fixture
def base(model: ModelConfig, tmp_path: Path) -> Path:
    export_hugging_face(weights(model), model, tmp_path / "base")
    return tmp_path / "base"


def adapters(model: ModelConfig, lora: LoraConfig) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    made: dict[str, torch.Tensor] = {}
    for name, weight in weights(model).items():
        layer = name.removesuffix(".weight")
        if layer.startswith("layers.") and layer.rpartition(".")[2] in lora.projections:
            outputs, inputs = weight.shape
            made[f"{layer}.lora_a"] = torch.randn((4, inputs), generator=random) / 8
            made[f"{layer}.lora_b"] = torch.randn((outputs, 4), generator=random) / 8
    assert len(made) == 2 * 7 * 2
    return made


@torch.no_grad()
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_gives_the_logits_of_the_merged_model(
    model: ModelConfig, base: Path, tmp_path: Path, *, rslora: bool
) -> None:
    lora = LoraConfig(rank=4, alpha=12.0, rslora=rslora)
    made = adapters(model, lora)
    write_peft(made, tmp_path / "adapter", lora=lora, model=model, base=base, dtype=torch.float32)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    without = plain(TOKENS).logits
    beside = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    merged = {
        name: merge_adapter(name, weight, made, config=lora)
        for name, weight in weights(model).items()
    }
    export_hugging_face(merged, model, tmp_path / "merged")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    expected = whole(TOKENS).logits
    assert (beside(TOKENS).logits - expected).abs().max() <= 1e-5
    assert (without - expected).abs().max() > 1e-2


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], "all-linear"])
def test_what_peft_writes_is_read(
    model: ModelConfig, base: Path, tmp_path: Path, targets: list[str] | str, *, rslora: bool
) -> None:
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    asked = peft.LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules=targets,
        task_type="CAUSAL_LM",
        init_lora_weights=False,
        use_rslora=rslora,
    )
    theirs = peft.get_peft_model(plain, asked)
    theirs.save_pretrained(tmp_path / "theirs")
    stored = read_peft(tmp_path / "theirs", model=model, base=base)
    assert (stored.config.rank, stored.config.alpha, stored.config.rslora) == (4, 12.0, rslora)
    every = targets == "all-linear"
    expected = LoraConfig().projections_of(model) if every else {"query", "down"}
    assert stored.config.projections == expected
    layer = theirs.base_model.model.model.layers[1].self_attn.q_proj
    assert torch.equal(
        stored.tensors["layers.1.attention.query.lora_b"], layer.lora_B["default"].weight
    )


def test_what_this_version_of_peft_writes_of_itself_changes_nothing(tmp_path: Path) -> None:
    """So a new key of a new version is looked at."""
    peft.LoraConfig(r=4, peft_type="LORA").save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    check_plain(settings, folder=tmp_path)
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert fields - KNOWN == VARIANTS


MIXTURE = {
    "layers": 2,
    "hidden_size": 16,
    "heads": 4,
    "kv_heads": 2,
    "ffn_size": 32,
    "vocab_size": 256,
    "tied_embeddings": False,
    "experts": 4,
    "experts_per_token": 2,
    "expert_ffn_size": 24,
}
MIXTURES = {
    "qwen3_moe": ModelConfig(**MIXTURE, query_key_norm=True),
    "mixtral": ModelConfig(**MIXTURE | {"expert_ffn_size": 32}),
}
EXPERTS = ["experts_gate_up,experts_down", "experts_down", "experts_gate_up,query"]


def of_experts(model: ModelConfig, lora: LoraConfig) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(2)
    inner, hidden = model.features_per_expert, model.hidden_size
    sizes = {"gate_up": (hidden, 2 * inner), "down": (inner, hidden)}
    made: dict[str, torch.Tensor] = {}
    for layer in range(model.layers):
        for name, (inputs, outputs) in sizes.items():
            if f"experts_{name}" in lora.projections:
                path = f"layers.{layer}.feed_forward.experts.{name}_adapter"
                made[f"{path}.lora_a"] = torch.randn((4, lora.rank, inputs), generator=random) / 4
                made[f"{path}.lora_b"] = torch.randn((4, outputs, lora.rank), generator=random) / 4
        if "query" in lora.projections:
            path = f"layers.{layer}.attention.query"
            made[f"{path}.lora_a"] = torch.randn((lora.rank, hidden), generator=random) / 4
            made[f"{path}.lora_b"] = torch.randn((hidden, lora.rank), generator=random) / 4
    return made


@torch.no_grad()
@pytest.mark.parametrize("kind", MIXTURES)
@pytest.mark.parametrize("targets", EXPERTS)
def test_peft_gives_the_logits_of_merged_experts(tmp_path: Path, kind: str, targets: str) -> None:
    model, base = MIXTURES[kind], tmp_path / "base"
    export_hugging_face(weights(model), model, base)
    assert json.loads((base / "config.json").read_text())["model_type"] == kind
    lora = LoraConfig(rank=3, alpha=6.0, targets=targets)
    made = of_experts(model, lora)
    write_peft(made, tmp_path / "adapter", lora=lora, model=model, base=base, dtype=torch.float32)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    without = plain(TOKENS).logits
    beside = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    merged = {
        name: merge_adapter(name, weight, made, config=lora)
        for name, weight in weights(model).items()
    }
    export_hugging_face(merged, model, tmp_path / "merged")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    expected = whole(TOKENS).logits
    assert (beside(TOKENS).logits - expected).abs().max() <= 1e-5
    assert (without - expected).abs().max() > 1e-2
    again = read_peft(tmp_path / "adapter", model=model, base=base)
    assert again.config.projections == lora.projections
    assert again.tensors.keys() == made.keys()
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in made.items())


@torch.no_grad()
@pytest.mark.parametrize("targets", ["query,down", "gate,up,down", "down,experts_down"])
def test_peft_finds_dense_layers_of_a_mixture(tmp_path: Path, targets: str) -> None:
    model, base = replace(MIXTURES["qwen3_moe"], dense_layers=1), tmp_path / "base"
    export_hugging_face(weights(model), model, base)
    lora = LoraConfig(rank=3, alpha=6.0, targets=targets)
    random = torch.Generator().manual_seed(3)
    made = of_experts(model, replace(lora, targets=targets.replace("query", "experts_down")))
    made = {
        name: each for name, each in made.items() if "experts_down" in targets and ".1." in name
    }
    for name, weight in weights(model).items():
        layer = name.removesuffix(".weight")
        if layer.rpartition(".")[2] in lora.projections and weight.dim() == 2:
            outputs, inputs = weight.shape
            made[f"{layer}.lora_a"] = torch.randn((3, inputs), generator=random) / 4
            made[f"{layer}.lora_b"] = torch.randn((outputs, 3), generator=random) / 4
    write_peft(made, tmp_path / "adapter", lora=lora, model=model, base=base, dtype=torch.float32)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    beside = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter")
    merged = {
        name: merge_adapter(name, weight, made, config=lora)
        for name, weight in weights(model).items()
    }
    export_hugging_face(merged, model, tmp_path / "merged")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert (beside(TOKENS).logits - whole(TOKENS).logits).abs().max() <= 1e-5


def test_adapters_of_experts_that_peft_writes_are_read(tmp_path: Path) -> None:
    model, base = MIXTURES["qwen3_moe"], tmp_path / "base"
    export_hugging_face(weights(model), model, base)
    plain = transformers.AutoModelForCausalLM.from_pretrained(base)
    asked = peft.LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.down_proj", "mlp.experts.gate_up_proj"],
        task_type="CAUSAL_LM",
        init_lora_weights=False,
    )
    peft.get_peft_model(plain, asked).save_pretrained(tmp_path / "theirs")
    stored = read_peft(tmp_path / "theirs", model=model, base=base)
    assert stored.config.projections == {"query", "experts_gate_up", "experts_down"}
    write_peft(
        stored.tensors,
        tmp_path / "ours",
        lora=stored.config,
        model=model,
        base=base,
        dtype=torch.float32,
    )
    ours = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    theirs = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
