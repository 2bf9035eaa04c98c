"""The settings that every layout is crossed with, each a few options of one kind together.

`tests.layouts.coverage` holds that every option and every value of it is here, in the layouts'
own axes, or in its table of reasons.
"""

from __future__ import annotations

from typing import Any, Final

from tests.layouts.cases import MODELS
from tests.layouts.images import CHANNELS, CLASSES, SIDE
from tests.layouts.judge import LOSS_TOLERANCE
from tests.layouts.materials import ADAPTERS, TOKENS
from tests.layouts.settings import Setting

BF16, FP16, FP8 = 2e-2, 2e-2, 2e-2
COMPILER = 1e-5
"""What reordered arithmetic changes of a loss."""
ANSWERS = 2e-5
"""A loss that is made of sums over whole answers has their rounding."""
FOUR_BITS = 1e-4
"""Adapters begin as nothing, and Adam makes whole steps of gradients that are rounding; the weights
are compared in test_adapters."""
PACKED_TWICE = 1e-2
"""Ranks of the tensor axis share out what has one scale of the scales."""
DROPPED = 5e-2
"""Ranks drop other features: losses are those of another draw."""
PLAIN_LLAMA: Final = ("untied",)
TEXT: Final = tuple(MODELS)
IMAGES: Final[dict[str, Any]] = {
    "family": "vit",
    "image_size": SIDE,
    "patch_size": 2,
    "channels": CHANNELS,
    "classes": CLASSES,
}
BASE: Final[dict[str, Any]] = {
    "model_from": "/$base",
    "model": {"vocab_size": TOKENS, "layers": 2},
    "data": {
        "source": "/$records",
        "pattern": "*.jsonl",
        "field": "body",
        "sequence_length": 64,
    },
}
MEASURED: Final[dict[str, Any]] = {"every_steps": 10, "share": 0.2, "samples": 8}

_OPTIMIZERS: Final = (
    Setting(
        name="rates",
        changes={
            "seed": 7,
            "global_batch_size": 8,
            "optimizer": {
                "schedule": "linear",
                "reference_batch_size": 4,
                "min_learning_rate_ratio": 0.2,
                "beta1": 0.8,
                "beta2": 0.9,
                "weight_decay": 0.05,
                "max_gradient_norm": 0.5,
                "max_skipped_steps": 2,
            },
        },
        apart={"deterministic": False},
    ),
    Setting(
        name="late decay",
        changes={
            "optimizer": {"schedule": "wsd", "decay_share": 0.5, "max_gradient_norm": None},
        },
    ),
    Setting(
        name="sgd",
        changes={
            "optimizer": {
                "kind": "sgd",
                "schedule": "constant",
                "learning_rate": 0.1,
                "momentum": 0.8,
            },
        },
    ),
    Setting(name="muon", changes={"optimizer": {"kind": "muon"}}),
    Setting(
        name="muon in bf16",
        changes={"optimizer": {"kind": "muon", "bf16_iteration": True}},
        tolerance=BF16,
    ),
    Setting(
        name="average",
        changes={
            "optimizer": {"average_decay": 0.9},
            "evaluation": {**MEASURED, "average": True},
        },
    ),
)
_NUMBERS: Final = (
    Setting(name="bf16", changes={"precision": "bf16"}, tolerance=BF16),
    Setting(
        name="fp16",
        changes={
            "precision": "fp16",
            "optimizer": {"loss_scale": 1024.0, "loss_scale_growth_steps": 5},
        },
        tolerance=FP16,
    ),
    Setting(name="fp8", changes={"precision": "bf16", "fp8": True}, tolerance=FP8),
    Setting(
        name="fp8 by rows",
        changes={"precision": "bf16", "fp8": True, "fp8_scaling": "rowwise"},
        tolerance=FP8,
    ),
    Setting(name="compiled", apart={"compile": "blocks"}, tolerance=COMPILER),
    Setting(name="dropout", changes={"model": {"dropout": 0.1}}, tolerance=DROPPED),
)
_ADAPTERS: Final = (
    Setting(
        name="lora",
        changes={"lora": {"rank": 4, "alpha": 8.0, "targets": "query,value,up,down"}},
    ),
    Setting(
        name="rank-stabilized lora",
        changes={"lora": {"rank": 4, "alpha": 8.0, "rslora": True}},
        models=("untied",),
    ),
    Setting(
        name="lora on four bits",
        changes={
            "lora": {"rank": 4, "base_bits": 4},
            "model": {"hidden_size": 128, "ffn_size": 128},
        },
        models=("untied", "gpt2"),
        tolerance=FOUR_BITS,
    ),
    Setting(
        name="lora on four bits packed twice",
        changes={
            "lora": {"rank": 4, "base_bits": 4, "double_quantization": True},
            "model": {"hidden_size": 128, "ffn_size": 128},
        },
        models=("untied", "gpt2"),
        tolerance=PACKED_TWICE,
    ),
    Setting(
        name="stored adapters",
        changes={**BASE, "lora": {**ADAPTERS, "adapters_from": "/$adapters"}},
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="conversations",
        changes={
            **BASE,
            "data": {
                "source": "/$chats",
                "pattern": "train.jsonl",
                "sequence_length": 64,
                "tokenizer": "/$base/tokenizer.json",
                "chat_template": "/$chats/template.jinja",
            },
            "evaluation": {**MEASURED, "source": "/$chats", "pattern": "held.jsonl"},
        },
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="preferences",
        changes={
            **BASE,
            "data": {"source": "/$pairs", "pattern": "*.jsonl", "sequence_length": 128},
            "dpo": {"beta": 0.5},
            "optimizer": {"learning_rate": 1e-3},
        },
        models=PLAIN_LLAMA,
        tolerance=ANSWERS,
    ),
    Setting(
        name="preferences by adapters",
        changes={
            **BASE,
            "data": {"source": "/$pairs", "pattern": "*.jsonl", "sequence_length": 128},
            "dpo": {"beta": 0.5},
            "lora": {"rank": 4},
        },
        models=PLAIN_LLAMA,
        tolerance=ANSWERS,
    ),
)
_FROZEN: Final = (
    Setting(name="frozen", changes={"freeze": "embedding.*, layers.0.*"}),
    Setting(
        name="few that learn",
        changes={"trainable": "layers.1.attention.*, layers.?.*_norm.*", "precision": "bf16"},
        tolerance=BF16,
    ),
)
_CORRECTIONS: Final = (
    Setting(
        name="corrections that move",
        changes={"model": {"routing": {"correction_rate": 0.01}}},
        models=("deepseek",),
    ),
)
_STOPPING: Final = (
    Setting(
        name="may stop early",
        changes={"evaluation": {**MEASURED, "patience": 3, "least_gain": 0.01}},
    ),
)
_MODELS: Final = (
    Setting(
        name="qwen 2",
        changes={"model": {"heads": 2, "attention_bias": "inputs", "rope_theta": 1e6}},
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="olmo 2",
        changes={
            "model": {
                "norm_placement": "after",
                "query_key_norm": True,
                "query_key_norm_over_heads": True,
                "norm_epsilon": 1e-3,
            }
        },
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="gemma 2",
        changes={
            "model": {
                "attention_softcap": 20.0,
                "query_divisor": 8,
                "sliding_window": 5,
                "full_attention_every": 2,
            }
        },
        models=("tied",),
    ),
    Setting(
        name="gemma 3",
        changes={
            "model": {
                "sliding_window": 5,
                "window_rope_theta": 1000.0,
                "rope_scaling": {"kind": "linear", "factor": 8.0},
            }
        },
        models=("tied",),
    ),
    Setting(
        name="smollm3",
        changes={"model": {"no_rope_every": 2}},
        models=("tied", "untied"),
    ),
    Setting(
        name="granite",
        changes={
            "model": {
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.25,
                "query_divisor": 16,
                "logit_divisor": 4.0,
            }
        },
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="gpt-oss",
        changes={
            "model": {
                "attention_sinks": True,
                "activation": "clamped_swiglu",
                "expert_bias": True,
                "experts_per_token": 3,
                "shared_experts": 0,
                "rope_scaling": {
                    "kind": "yarn",
                    "factor": 4.0,
                    "original_positions": 8,
                    "beta_fast": 16.0,
                    "beta_slow": 0.5,
                    "whole_pairs": False,
                    "magnitude": 1.1,
                },
            }
        },
        models=("mixture",),
    ),
    Setting(
        name="llama 3.1",
        changes={
            "model": {
                "rope_scaling": {
                    "factor": 8.0,
                    "low_frequency_factor": 0.5,
                    "high_frequency_factor": 2.0,
                    "original_positions": 8,
                }
            }
        },
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="phi 3",
        changes={
            "model": {
                "rope_scaling": {
                    "kind": "longrope",
                    "factor": 2.0,
                    "original_positions": 8,
                    "short_factors": "1,1.5",
                    "long_factors": "2,4",
                }
            }
        },
        models=PLAIN_LLAMA,
    ),
    Setting(
        name="deepseek-v2",
        changes={
            "model": {
                "latent_attention": {"query_rank": None, "interleaved": False},
                "routing": {"scores": "softmax", "normalized": False},
                "rope_scaling": {
                    "kind": "yarn",
                    "factor": 4.0,
                    "original_positions": 8,
                    "score_growth": 0.7,
                },
            }
        },
        models=("deepseek",),
    ),
    Setting(name="few positions", changes={"model": {"max_positions": 16}}, models=("gpt2",)),
    Setting(
        name="images",
        changes={"model": IMAGES, "data": {"source": "/$images"}},
        models=("gpt2",),
    ),
    Setting(
        name="photos",
        changes={
            "model": {**IMAGES, "image_size": 6, "channels": 3, "class_token": True},
            "data": {"source": "/$photos", "augmentation": "crop_and_mirror"},
        },
        models=("gpt2",),
    ),
)


def _packed(packing: str) -> dict[str, Any]:
    source = {"source": "/$records", "pattern": "*.jsonl", "field": "body"}
    tokens = {"tokenizer": "/$base/tokenizer.json", "sequence_length": 64}
    return {"model": {"vocab_size": TOKENS}, "data": {**source, **tokens, "packing": packing}}


_DATA: Final = (
    *(
        Setting(name=f"{packing} packing", changes=_packed(packing))
        for packing in ("documents", "separate", "whole", "padded")
    ),
    Setting(
        name="mixed sources",
        changes={
            "data": {
                "source": "/$mixed",
                "pattern": "*.txt",
                "mixture": "even=2,odd=1",
                "packing": "stream",
            },
            "evaluation": MEASURED,
        },
    ),
)
_MEMORY: Final = (
    Setting(name="gradients at once", apart={"memory": {"shard_gradients": True}}),
    Setting(name="gradients once", apart={"memory": {"shard_gradients": False}}),
    Setting(
        name="away in memory",
        apart={
            "memory": {
                "offload_optimizer": "cpu",
                "offload_parameters": "cpu",
                "offload_activations": "cpu",
            }
        },
    ),
    Setting(
        name="optimizer and activations away in files",
        apart={
            "memory": {
                "offload_optimizer": "nvme",
                "offload_activations": "nvme",
                "offload_folder": "/$spill",
            }
        },
    ),
    Setting(
        name="weights away in files",
        apart={"memory": {"offload_parameters": "nvme", "offload_folder": "/$spill"}},
    ),
    Setting(
        name="saves in between",
        apart={"checkpoint": {"asynchronous": False, "snapshot_every_steps": 3, "every_steps": 4}},
    ),
)
_LAYOUTS: Final = (
    Setting(name="whole positions", apart={"parallelism": {"sequence_parallel": False}}),
    Setting(
        name="three stages a rank",
        changes={"model": {"layers": 6}},
        apart={"parallelism": {"stages_per_rank": 3}},
    ),
    Setting(name="measured stages", apart={"parallelism": {"stage_balance": "measured"}}),
    Setting(
        name="servers",
        apart={"parallelism": {"data_parallel": "parameter-server", "server": {"servers": 2}}},
        data=("ddp",),
    ),
    Setting(
        name="servers of nodes",
        apart={
            "parallelism": {"data_parallel": "parameter-server", "server": {"copies_per_node": 2}}
        },
        data=("ddp",),
    ),
    Setting(
        name="averaged weights",  # plain local SGD in every step is SGD
        changes={
            "optimizer": {
                "kind": "sgd",
                "momentum": 0.0,
                "learning_rate": 0.1,
                "max_gradient_norm": None,
            }
        },
        apart={
            "parallelism": {
                "local_sgd": {"every_steps": 1, "outer_learning_rate": 1.0, "outer_momentum": 0.0}
            }
        },
        tolerance=LOSS_TOLERANCE,  # each copy keeps moments of its own
    ),
    Setting(
        name="planned",
        apart={"parallelism": {"mode": "auto"}, "hardware": {"gpu": "H100"}},
    ),
)
SETTINGS: Final = {
    setting.name: setting
    for setting in (
        *(*_OPTIMIZERS, *_NUMBERS, *_ADAPTERS, *_FROZEN, *_STOPPING, *_CORRECTIONS, *_MODELS),
        *(*_DATA, *_MEMORY, *_LAYOUTS),
    )
}
