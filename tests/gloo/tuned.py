"""A tiny Llama as Hugging Face lays it out, and its fine-tuning on a small instruction set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ModelConfig, TrainerConfig, merge
from drumline_contract.shapes.hugging_face import with_model_of_folder
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.initialize import initialize
from tests.unit.trainer.data.records.conversations import (
    TEMPLATE,
    conversation,
    write_chat_model,
    write_lines,
)

STEPS = 30


def write_tiny_llama(folder: Path, *, template: str = TEMPLATE) -> Path:
    """Random weights, a tokenizer and a chat template."""
    write_chat_model(folder, template=template)
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = ModelConfig(
        layers=2, hidden_size=32, ffn_size=64, heads=4, kv_heads=2, vocab_size=tokens
    )
    module = build_on_meta(config).to_empty(device="cpu")
    initialize(module, seed=3)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    export_hugging_face(weights, config, folder)
    return folder


def write_conversations(folder: Path) -> Path:
    """Some to train on, and some to measure on."""
    write_lines(folder / "train.jsonl", [conversation(n) for n in range(96)])
    write_lines(folder / "held.jsonl", [conversation(n) for n in range(96, 108)])
    return folder


def tuned(model: AnyPath, folder: Path, /, **changes: Any) -> TrainerConfig:
    """A run of a few seconds."""
    raw = {
        "model_from": str(model),
        "data": {"source": str(folder), "pattern": "train.jsonl", "sequence_length": 128},
        "evaluation": {"pattern": "held.jsonl", "every_steps": STEPS // 2},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 4},
        "checkpoint": {"every_steps": STEPS},
        "steps": STEPS,
        "global_batch_size": 4,
    }
    return TrainerConfig.from_dict(with_model_of_folder(merge(raw, changes)))
