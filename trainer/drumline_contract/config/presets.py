"""Named model shapes: toys, and published models with their authors' sizes."""

from __future__ import annotations

from dataclasses import replace

from drumline_contract.config.model import ModelConfig
from drumline_contract.config.variants import Family

_GPT2 = ModelConfig(
    family=Family.GPT2,
    vocab_size=50_257,
    layers=12,
    hidden_size=768,
    ffn_size=3072,
    heads=12,
    kv_heads=12,
)
_LLAMA_3 = ModelConfig(
    layers=32,
    hidden_size=4096,
    ffn_size=14_336,
    heads=32,
    kv_heads=8,
    vocab_size=128_256,
    rope_theta=500_000.0,
    tied_embeddings=False,
)

MODEL_PRESETS: dict[str, ModelConfig] = {
    "tiny": ModelConfig(),
    "small": ModelConfig(layers=4, hidden_size=128, ffn_size=384, heads=4, kv_heads=2),
    "toy-gpt2": ModelConfig(
        family=Family.GPT2,
        layers=4,
        hidden_size=128,
        ffn_size=512,
        heads=4,
        kv_heads=4,
        max_positions=256,
    ),
    "toy-moe": ModelConfig(
        layers=2,
        hidden_size=64,
        ffn_size=192,
        heads=4,
        kv_heads=2,
        experts=8,
        experts_per_token=2,
        expert_ffn_size=64,
        shared_experts=1,
        balance_weight=0.01,
    ),
    "toy-vit": ModelConfig(
        family=Family.VIT, layers=4, hidden_size=128, ffn_size=512, heads=4, kv_heads=4
    ),
    "gpt2-124m": _GPT2,
    "gpt2-1.5b": replace(_GPT2, layers=48, hidden_size=1600, ffn_size=6400, heads=25, kv_heads=25),
    "llama-125m": ModelConfig(
        layers=12, hidden_size=768, ffn_size=2048, heads=12, kv_heads=12, vocab_size=256
    ),
    "llama-1b": replace(_LLAMA_3, layers=16, hidden_size=2048, ffn_size=8192, tied_embeddings=True),
    "llama-1.3b": ModelConfig(
        layers=24,
        hidden_size=2048,
        ffn_size=5504,
        heads=16,
        kv_heads=16,
        vocab_size=32_000,
        tied_embeddings=False,
    ),
    "llama-8b": _LLAMA_3,
    "llama-70b": replace(_LLAMA_3, layers=80, hidden_size=8192, ffn_size=28_672, heads=64),
    "llama-405b": replace(_LLAMA_3, layers=126, hidden_size=16_384, ffn_size=53_248, heads=128),
    "qwen-moe": ModelConfig(
        layers=48,
        hidden_size=2048,
        ffn_size=6144,
        heads=32,
        kv_heads=4,
        head_size=128,
        query_key_norm=True,
        vocab_size=151_936,
        rope_theta=1_000_000.0,
        norm_epsilon=1e-6,
        tied_embeddings=False,
        experts=128,
        experts_per_token=8,
        expert_ffn_size=768,
        balance_weight=0.001,
    ),
    "vit-b16": ModelConfig(
        family=Family.VIT,
        layers=12,
        hidden_size=768,
        ffn_size=3072,
        heads=12,
        kv_heads=12,
        norm_epsilon=1e-6,
        image_size=224,
        patch_size=16,
        classes=1000,
    ),
}
