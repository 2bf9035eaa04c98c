"""Adapters go out and come in again, whatever the model, its head and the layers that have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    Family,
    LoraConfig,
    ModelConfig,
    TrainerConfig,
)
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.lora import PROJECTIONS
from drumline_contract.config.routing import Routing
from drumline_trainer.adapters.base import initialize_frozen_and_adapters
from drumline_trainer.adapters.peft import read_peft, write_peft
from drumline_trainer.models.hugging_face import HuggingFaceError, export_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

RANK = 2


def shrunk(model: ModelConfig) -> ModelConfig:
    """The same in kind, with a few thousand weights."""
    return replace(
        model,
        layers=2,
        hidden_size=32,
        heads=4,
        kv_heads=4 if model.kv_heads == model.heads else 2,
        head_size=None if model.head_size is None else 16,
        ffn_size=24,
        vocab_size=64,
        max_positions=32,
        experts=min(model.experts, 4),
        expert_ffn_size=8 if model.experts else None,
        experts_per_token=2,
    )


LATENT = ModelConfig(
    layers=2,
    hidden_size=32,
    heads=4,
    kv_heads=4,
    head_size=12,
    ffn_size=24,
    vocab_size=64,
    latent_attention=LatentAttention(query_rank=8, key_value_rank=8, turned_size=4, value_size=8),
    experts=4,
    expert_ffn_size=8,
    shared_experts=1,
    dense_layers=1,
    routing=Routing(normalized=False),
)
MODELS = {name: shrunk(model) for name, model in MODEL_PRESETS.items()} | {"latent": LATENT}
TARGETS = {
    "default": ",".join(PROJECTIONS),
    "attention": "query,key,value,output",
    "output": "output",
    "feed-forward": "gate,up,down",
    "query, down": "query,down",
}
NO_LAYOUT = {"toy-moe", "toy-vit", "vit-b16"}
"""Shared experts beside Llama's attention, and means of patches: transformers has no such model."""


def named_layers(model: ModelConfig, lora: LoraConfig) -> dict[str, tuple[int, ...]]:
    """The adapted layers of a model, with the shapes of their weights."""
    return {
        name.removesuffix(".weight"): shape
        for name, shape in our_shapes(model).items()
        if name.startswith("layers.") and name.split(".")[-2] in lora.projections_of(model)
        if name.endswith(".weight")
    }


def slices_for(tensors: dict[str, torch.Tensor]) -> list[TensorSlice]:
    return [
        TensorSlice(
            name=name,
            shape=tuple(tensor.shape),
            box=Box(offsets=(0, 0), shape=tuple(tensor.shape)),
            tensor=torch.empty_like(tensor),
        )
        for name, tensor in tensors.items()
    ]


@pytest.mark.extended(keep=6)
@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "a head of its own"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_adapters_come_back_as_they_went(
    tmp_path: Path, name: str, *, tied: bool, targets: str
) -> None:
    model = replace(MODELS[name], tied_embeddings=tied)
    lora = LoraConfig(rank=RANK, alpha=3.0, targets=TARGETS[targets], rslora=tied)
    base, folder = tmp_path / "base", tmp_path / "adapter"
    weights = {each: torch.zeros(shape) for each, shape in our_shapes(model).items()}
    if name in NO_LAYOUT:
        with pytest.raises(HuggingFaceError, match="has no layout there"):
            export_hugging_face(weights, model, base)
        return
    export_hugging_face(weights, model, base)
    try:
        layers = named_layers(model, lora)
    except ConfigError:
        assert name == "qwen-moe"  # every layer is a mixture
        assert targets == "feed-forward"
        return
    made = {
        f"{layer}.lora_{part}": torch.rand(shape)
        for layer, (outputs, inputs) in layers.items()
        for part, shape in (("a", (RANK, inputs)), ("b", (outputs, RANK)))
    }
    write = {"lora": lora, "model": model, "base": base, "dtype": torch.float32}
    if model.family is Family.GPT2:
        with pytest.raises(HuggingFaceError, match="in one tensor with others"):
            write_peft(made, folder, **write)
        return
    write_peft(made, folder, **write)
    stored = read_peft(folder, model=model, base=base)
    assert stored.config == replace(lora, targets=stored.config.targets)
    assert stored.config.projections == lora.projections_of(model)
    # a run with the settings that it was trained with goes on with them
    going_on = replace(lora, adapters_from=str(folder))
    config = TrainerConfig(model=model, model_from=str(base), lora=going_on)
    parts = slices_for(made)
    initialize_frozen_and_adapters(parts, [], [], config=config, restored=None)
    assert all(torch.equal(part.tensor, made[part.name]) for part in parts)
